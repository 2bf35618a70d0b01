//! Rotary embedding with the write into the cache, attention over it, and the output gate.

use super::case::{Builder, Case};
use super::scenario::Scenario;
use super::{Forms, lengths, rng, verify};
use crate::devices::cases;
use crate::random::Rng;
use atlas_engine::config::rope::RopeSpec;
use atlas_engine::plan::{KvLayerSpec, Op, QkvSpec};
use atlas_kernels::KvScales;

/// What is drawn.
#[derive(Debug, Clone, Copy)]
struct Shape {
    kv_heads: usize,
    group: usize,
    head_dim: usize,
    rotated: usize,
    norms: bool,
    gate: bool,
    window: Option<usize>,
    scaling: f32,
    /// Of values: some are beyond the range of fp8, or below its normal numbers.
    gain: f32,
    /// Of keys and of values in fp8.
    scales: (f32, f32),
}

impl Shape {
    fn draw(rng: &mut Rng) -> Self {
        let head_dim = rng.pick(&[8, 16, 40, 64, 64, 80, 96, 128, 128, 192, 256, 256]);
        let group = rng.pick(&[1, 2, 3, 4, 5, 6, 7, 8, 12, 16]);
        Self {
            kv_heads: rng.between(1, (512 / (group * head_dim)).clamp(1, 3)),
            group,
            head_dim,
            rotated: if rng.one_in(2) { head_dim } else { 2 * rng.between(1, head_dim / 2) },
            norms: rng.one_in(2),
            gate: rng.one_in(2),
            window: rng.one_in(3).then(|| rng.between(1, 100)),
            scaling: if rng.one_in(4) { 1.2 } else { 1.0 },
            gain: rng.pick(&[1.5, 1.5, 200.0, 0.004]),
            scales: rng.pick(&[(1.0, 1.0), (0.0137, 0.371), (0.25, 1.93)]),
        }
    }

    fn case(&self, rng: &mut Rng, attends: bool, apart: bool) -> Case {
        let (heads, dim) = (self.kv_heads * self.group, self.head_dim);
        let q_stride = if self.gate { 2 * dim } else { dim };
        let k_offset = heads * q_stride;
        let v_offset = k_offset + self.kv_heads * dim;
        let layout = QkvSpec { heads, kv_heads: self.kv_heads, head_dim: dim, q_stride, k_offset, v_offset };
        let mut builder = Builder::new(rng, 32, apart);
        let gain = |column| if column < v_offset { 1.5 } else { self.gain };
        let qkv = builder.input_by("projected", v_offset + self.kv_heads * dim, gain);
        let scales = KvScales { k: self.scales.0, v: self.scales.1 };
        builder.plan.kv_layers.push(KvLayerSpec { scales, ..KvLayerSpec::new(self.kv_heads, dim) });
        let frequency = |pair: usize| 10_000f32.powf(-2.0 * pair as f32 / self.rotated as f32);
        let inv_freq = (0..self.rotated / 2).map(frequency).collect();
        builder.plan.ropes.push(RopeSpec { inv_freq, attention_scaling: self.scaling });
        let norms = self.norms.then(|| {
            let offset = builder.rng.one_in(2);
            let mut weight = || builder.random_vector(dim, if offset { 0.0 } else { 1.0 }, 0.2);
            (weight(), weight(), 1e-6, offset)
        });
        builder.push("rope", Op::RopeStore { qkv, layout, norms, rope: 0, layer: 0 });
        if attends {
            let out = builder.view("mixed", heads * dim);
            let scale = (dim as f32).powf(-0.5);
            builder.push("attention", Op::Attention { qkv, layout, layer: 0, scale, window: self.window, out });
            if self.gate {
                builder.keep("attended", out);
                builder.push("gate", Op::GateOutput { x: out, gate: qkv, layout });
            }
        }
        builder.finish()
    }
}

#[test]
fn rope_store() {
    for index in 0..cases(8) {
        let mut rng = rng(8, index);
        let shape = Shape::draw(&mut rng);
        let case = shape.case(&mut rng, false, true);
        let lengths = lengths(&mut rng);
        verify(&shape, &Forms::single(case), &Scenario::ragged(&mut rng, lengths));
    }
}

#[test]
fn attention() {
    for index in 0..cases(16) {
        let mut rng = rng(9, index);
        let shape = Shape { gate: false, ..Shape::draw(&mut rng) };
        let case = shape.case(&mut rng, true, true);
        let lengths = lengths(&mut rng);
        verify(&shape, &Forms::single(case), &Scenario::ragged(&mut rng, lengths));
    }
}

#[test]
fn gate_output() {
    for index in 0..cases(6) {
        let mut rng = rng(10, index);
        let shape = Shape { gate: true, ..Shape::draw(&mut rng) };
        let seed = rng.clone();
        let forms = Forms::both(|apart| shape.case(&mut seed.clone(), true, apart));
        let lengths = lengths(&mut rng);
        verify(&shape, &forms, &Scenario::ragged(&mut rng, lengths));
    }
}

/// Contexts of several splits, with and without a window that begins inside one.
#[test]
fn attention_over_long_contexts() {
    for (index, window) in [None, Some(600)].into_iter().enumerate().take(cases(2) as usize) {
        let mut rng = rng(11, index as u64);
        let head_dim = rng.pick(&[64, 128]);
        let shape = Shape {
            kv_heads: 1,
            group: 3,
            head_dim,
            rotated: head_dim,
            norms: true,
            gate: false,
            window,
            scaling: 1.0,
            gain: 1.0,
            scales: (0.03, 0.02),
        };
        let case = shape.case(&mut rng, true, true);
        let lengths = [rng.between(500, 530), rng.between(1020, 1100), rng.between(510, 520), rng.between(1100, 1300)];
        verify(&shape, &Forms::single(case), &Scenario::ragged(&mut rng, lengths));
    }
}

/// The heads of a large model.
#[test]
fn attention_of_real_sizes() {
    let mut rng = rng(18, 0);
    let shape = Shape {
        kv_heads: 4,
        group: 6,
        head_dim: 256,
        rotated: 64,
        norms: true,
        gate: true,
        window: None,
        scaling: 1.0,
        gain: 1.0,
        scales: (1.0, 1.0),
    };
    let seed = rng.clone();
    let forms = Forms::both(|apart| shape.case(&mut seed.clone(), true, apart));
    let lengths = [rng.between(1030, 1100), rng.between(1, 20), rng.between(60, 70), rng.between(130, 200)];
    verify(&shape, &forms, &Scenario::ragged(&mut rng, lengths));
}
