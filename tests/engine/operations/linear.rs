//! Projections: every format, odd shapes, fused parts, biases, and the residual stream.

use super::case::{Builder, Case};
use super::formats::Format;
use super::scenario::Scenario;
use super::{Forms, lengths, rng, verify};
use crate::devices::cases;
use crate::random::Rng;
use atlas_engine::plan::{Op, Part};

/// Inputs with a tail: NVFP4 has blocks of 16.
fn inputs(rng: &mut Rng) -> usize {
    16 * rng.between(1, 40)
}

/// Fused parts side by side, in formats of their own.
fn parts(builder: &mut Builder<'_>, k: usize, count: usize) -> (Vec<Part>, Vec<String>) {
    let (mut column, mut parts, mut shapes) = (0, Vec::new(), Vec::new());
    for _ in 0..count {
        let (n, bias) = (builder.rng.between(1, 130), builder.rng.one_in(3));
        let format = builder.rng.pick(&[Format::Bf16, Format::Nvfp4]);
        parts.push(builder.part(format, n, k, column, bias));
        shapes.push(format!("{n} {format:?}{}", if bias { " bias" } else { "" }));
        column += n;
    }
    (parts, shapes)
}

#[test]
fn linear() {
    for index in 0..cases(12) {
        let mut rng = rng(5, index);
        let (k, count) = (inputs(&mut rng), rng.between(1, 4));
        let mut builder = Builder::new(&mut rng, k, true);
        let (residual, x) = (builder.plan.residual, builder.view("normed", k));
        builder.norm("norm", residual, x, false);
        let (parts, shapes) = parts(&mut builder, k, count);
        let out = builder.view("projected", parts.iter().map(|part| part.n).sum());
        builder.push("proj", Op::Linear { x, parts, out, accumulate: false });
        let case = builder.finish();
        let lengths = lengths(&mut rng);
        verify(&("k", k, shapes), &Forms::single(case), &Scenario::ragged(&mut rng, lengths));
    }
}

#[test]
fn linear_into_the_residual_stream() {
    for index in 0..cases(8) {
        let mut rng = rng(6, index);
        let (k, hidden) = (inputs(&mut rng), 2 * rng.between(1, 100));
        let (format, bias) = (rng.pick(&[Format::Bf16, Format::Nvfp4]), rng.one_in(3));
        let mut builder = Builder::new(&mut rng, hidden, true);
        let gate_up = builder.input("projected", 2 * k, 1.0);
        let (x, out) = (builder.view("activated", k), builder.plan.residual);
        builder.push("silu_mul", Op::SiluMul { gate_up, out: x });
        let parts = vec![builder.part(format, hidden, k, 0, bias)];
        builder.push("down", Op::Linear { x, parts, out, accumulate: true });
        let case = builder.finish();
        let lengths = lengths(&mut rng);
        verify(&("k", k, "n", hidden, format, bias), &Forms::single(case), &Scenario::ragged(&mut rng, lengths));
    }
}

/// Sums as long as real models have, and as many outputs as fill a device's multiprocessors.
#[test]
fn linear_of_real_sizes() {
    for index in 0..cases(4) {
        let mut rng = rng(17, index);
        let (k, sizes) = match index {
            0 => (17408, vec![(Format::Nvfp4, rng.between(100, 200))]),
            1 => (5120, vec![(Format::Bf16, rng.between(300, 400))]),
            2 => (16 * rng.between(4, 9), vec![(Format::Nvfp4, rng.between(15_400, 16_800))]),
            _ => (16 * rng.between(4, 9), vec![(Format::Bf16, 48), (Format::Nvfp4, 9000), (Format::Bf16, 7003)]),
        };
        let mut builder = Builder::new(&mut rng, 32, true);
        let gate_up = builder.input("mixed", 2 * k, 1.0);
        let x = builder.view("activated", k);
        builder.push("silu_mul", Op::SiluMul { gate_up, out: x });
        let mut column = 0;
        let mut parts = Vec::new();
        for (format, n) in &sizes {
            parts.push(builder.part(*format, *n, k, column, false));
            column += n;
        }
        let out = builder.view("projected", column);
        builder.push("proj", Op::Linear { x, parts, out, accumulate: false });
        let case = builder.finish();
        let lengths = [rng.between(1, 20), rng.between(1, 9), rng.between(2, 40), rng.between(130, 200)];
        verify(&("k", k, sizes), &Forms::single(case), &Scenario::ragged(&mut rng, lengths));
    }
}

/// Gate and up projections with the activation after them.
#[test]
fn gate_up_and_activation() {
    for index in 0..cases(8) {
        let mut rng = rng(15, index);
        let (k, inner) = (inputs(&mut rng), 2 * rng.between(1, 150));
        let (format, bias) = (rng.pick(&[Format::Bf16, Format::Nvfp4]), rng.one_in(3));
        let seed = rng.clone();
        let forms = Forms::both(|apart| gate_up_case(&mut seed.clone(), k, inner, format, bias, apart));
        let lengths = lengths(&mut rng);
        verify(&("k", k, "inner", inner, format, bias), &forms, &Scenario::ragged(&mut rng, lengths));
    }
}

fn gate_up_case(rng: &mut Rng, k: usize, inner: usize, format: Format, bias: bool, apart: bool) -> Case {
    let mut builder = Builder::new(rng, k, apart);
    let (residual, x) = (builder.plan.residual, builder.view("normed", k));
    builder.norm("norm", residual, x, false);
    let parts = vec![builder.part(format, inner, k, 0, bias), builder.part(format, inner, k, inner, bias)];
    let (gate_up, out) = (builder.view("projected", 2 * inner), builder.view("activated", inner));
    builder.push("gate_up", Op::Linear { x, parts, out: gate_up, accumulate: false });
    builder.keep("gate_up", gate_up);
    builder.push("silu_mul", Op::SiluMul { gate_up, out });
    builder.finish()
}

/// Every number of rows from 1 to 129 has the bits of the longest chunk.
#[test]
fn rows_of_any_number() {
    for index in 0..cases(2) {
        let mut rng = rng(7, index);
        let (k, n) = (16 * rng.between(9, 20), rng.between(100, 200));
        let mut builder = Builder::new(&mut rng, k, true);
        let (residual, x) = (builder.plan.residual, builder.view("normed", k));
        builder.norm("norm", residual, x, false);
        let parts = vec![builder.part([Format::Bf16, Format::Nvfp4][index as usize % 2], n, k, 0, false)];
        let out = builder.view("projected", n);
        builder.push("proj", Op::Linear { x, parts, out, accumulate: false });
        let case = builder.finish();
        verify(&("k", k, "n", n), &Forms::single(case), &Scenario::every_row_count(&mut rng));
    }
}
