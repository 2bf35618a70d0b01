//! The CPU backend: the oracle of every other device, and a product.
//!
//! Activations are f32 in memory; in bf16 mode every operation rounds what it writes (NUMERICS N2), except logits.

mod weights;

use super::{ActivationDtype, Backend, Observer, Prepare, StepOutput, qkv_layout};
use crate::cache::CacheSizes;
use crate::errors::EngineError;
use crate::plan::{BufferId, Op, ParamId, Plan, Rows, View};
use crate::schedule::StepBatch;
use crate::weights::RawParam;
use atlas_kernels::{
    AttentionArgs, ConvCache, ConvSegment, DeltaArgs, DeltaSegment, DeltaState, GateLayout, KvDtype, KvLayer,
    KvSegment, LinearPart, Pool, QkNorm, RopeArgs, attention, causal_conv, gated_delta, gated_rms_norm, linear,
    rms_norm, rope_and_store, sigmoid_mul, silu_mul,
};
use weights::Weights;
pub use weights::pack;

/// Options of the CPU backend.
#[derive(Debug, Clone, Copy)]
pub struct CpuOptions {
    /// Threads of a step.
    pub threads: usize,
    /// Activation format.
    pub activations: ActivationDtype,
    /// Format of cached keys and values.
    pub kv_dtype: KvDtype,
    /// Cache sizes.
    pub sizes: CacheSizes,
}

/// One model on the CPU.
pub struct CpuBackend {
    plan: Plan,
    weights: Weights,
    options: CpuOptions,
    pool: Pool,
    buffers: Vec<Vec<f32>>,
    kv: Vec<KvLayer>,
    states: Vec<DeltaState>,
    convs: Vec<ConvCache>,
}

impl CpuBackend {
    /// Allocates the caches of `plan`; its weights come through [`Prepare`].
    pub fn new(plan: Plan, options: CpuOptions) -> Self {
        let sizes = options.sizes;
        let kv = (plan.kv_layers.iter())
            .map(|layer| {
                let (heads, dim) = (layer.kv_heads, layer.head_dim);
                KvLayer::new(options.kv_dtype, sizes.pages, heads, dim, dim).with_scales(layer.scales)
            })
            .collect();
        let states = (plan.state_layers.iter())
            .map(|l| {
                DeltaState::new(sizes.anchors + 1, sizes.open_pages, l.key_heads, l.value_heads, l.key_dim, l.value_dim)
            })
            .collect();
        let convs = (plan.state_layers.iter())
            .map(|l| ConvCache::new(sizes.rings, sizes.ring_rows, sizes.anchors + 1, l.conv_taps, l.conv_channels))
            .collect();
        let buffers = plan.buffers.iter().map(|_| Vec::new()).collect();
        let weights = Weights::default();
        Self { pool: Pool::new(options.threads), plan, weights, options, buffers, kv, states, convs }
    }

    fn run(&mut self, index: usize, batch: &StepBatch) {
        let rows = batch.rows();
        let round = self.options.activations == ActivationDtype::Bf16;
        let (weights, pool) = (&self.weights, &self.pool);
        let vector = |id: &ParamId| weights.vector(id.0);
        match &self.plan.ops[index].op {
            Op::Embed { table, out } => {
                let table = weights.matrix(table.0);
                let out_rows = self.buffers[out.buffer.0].chunks_exact_mut(out.width);
                for (token, row) in batch.tokens.iter().zip(out_rows) {
                    table.row(*token as usize, row);
                    if round {
                        row.iter_mut().for_each(|value| *value = half::bf16::from_f32(*value).to_f32());
                    }
                }
            }
            Op::GatherLogitRows { x, out } => {
                let (x, out_rows) = pair(&mut self.buffers, *x, *out);
                for (row, out_row) in batch.logit_rows.iter().zip(out_rows.chunks_exact_mut(out.width)) {
                    out_row.copy_from_slice(&x[*row as usize * out.width..][..out.width]);
                }
            }
            Op::RmsNorm { x, weight, eps, unit_offset, out } => {
                let rows = self.rows_of(out.buffer, batch);
                let (source, target) = pair(&mut self.buffers, *x, *out);
                let weight = Some(vector(weight));
                rms_norm(pool, source, x.width, rows, x.width, weight, *unit_offset, *eps, target, out.width, round);
            }
            Op::Linear { x, parts, out, accumulate } => {
                let rows = self.rows_of(out.buffer, batch);
                let parts: Vec<LinearPart<'_>> = (parts.iter())
                    .map(|part| LinearPart {
                        weight: weights.matrix(part.weight.0),
                        bias: part.bias.as_ref().map(vector),
                        column: part.column,
                    })
                    .collect();
                // Logits stay f32 in every mode: sampling is defined on them.
                let round = round && out.buffer != self.plan.logits.buffer;
                let (source, target) = pair(&mut self.buffers, *x, *out);
                linear(pool, source, x.width, rows, &parts, target, out.width, *accumulate, round);
            }
            Op::RopeStore { qkv, layout, norms, rope, layer } => {
                let rope = &self.plan.ropes[*rope];
                let norms = norms.as_ref().map(|(q, k, eps, unit_offset)| QkNorm {
                    q: vector(q),
                    k: vector(k),
                    eps: *eps,
                    unit_offset: *unit_offset,
                });
                let args = RopeArgs {
                    positions: &batch.positions,
                    inv_freq: &rope.inv_freq,
                    attention_scaling: rope.attention_scaling,
                    interleaved: false,
                };
                let (buffer, segments) = (&mut self.buffers[qkv.buffer.0], kv_segments(batch));
                let kv = &mut self.kv[*layer];
                rope_and_store(
                    pool,
                    buffer,
                    qkv.width,
                    rows,
                    &qkv_layout(layout),
                    norms,
                    Some(&args),
                    &segments,
                    kv,
                    round,
                );
            }
            Op::Attention { qkv, layout, layer, scale, window, out } => {
                let args = AttentionArgs { scale: *scale, window: *window, softcap: None };
                let (layout, segments) = (qkv_layout(layout), kv_segments(batch));
                let (source, target) = pair(&mut self.buffers, *qkv, *out);
                let kv = &self.kv[*layer];
                attention(pool, source, qkv.width, &layout, &segments, kv, &args, None, target, out.width, round);
            }
            Op::GateOutput { x, gate, layout } => {
                let gates = GateLayout {
                    offset: layout.head_dim,
                    head_stride: layout.q_stride,
                    head_dim: layout.head_dim,
                    heads: layout.heads,
                };
                let (gate_rows, target) = pair(&mut self.buffers, *gate, *x);
                sigmoid_mul(pool, target, x.width, gate_rows, gate.width, &gates, rows, round);
            }
            Op::SiluMul { gate_up, out } => {
                let (source, target) = pair(&mut self.buffers, *gate_up, *out);
                silu_mul(pool, source, gate_up.width, rows, out.width, target, out.width, round);
            }
            Op::CausalConv { x, channels, weight, taps, layer, out } => {
                let segments: Vec<ConvSegment<'_>> = (batch.segments.iter())
                    .map(|s| ConvSegment {
                        first_row: s.first_row,
                        rows: s.rows,
                        start: s.start,
                        slot: s.tables.ring,
                        anchors: &s.tables.anchors,
                    })
                    .collect();
                let cache = &mut self.convs[*layer];
                let (source, target) = pair(&mut self.buffers, *x, *out);
                let weight = vector(weight);
                causal_conv(
                    pool, source, x.width, 0, &segments, *channels, weight, None, *taps, true, cache, target,
                    out.width, round,
                );
            }
            Op::GatedDelta { qkv, ab, a_offset, b_offset, a_log, dt_bias, layer, out } => {
                let dims = self.plan.state_layers[*layer];
                let args = DeltaArgs {
                    k_heads: dims.key_heads,
                    v_heads: dims.value_heads,
                    k_dim: dims.key_dim,
                    v_dim: dims.value_dim,
                    a_log: vector(a_log),
                    dt_bias: vector(dt_bias),
                    eps: 1e-6,
                };
                let segments: Vec<DeltaSegment<'_>> = (batch.segments.iter())
                    .map(|s| DeltaSegment {
                        first_row: s.first_row,
                        rows: s.rows,
                        start: s.start,
                        anchors: &s.tables.anchors,
                        pages: &s.tables.open_pages,
                    })
                    .collect();
                let [x, ab_rows, target] = three(&mut self.buffers, [*qkv, *ab, *out]);
                let state = &mut self.states[*layer];
                gated_delta(
                    pool, x, qkv.width, ab_rows, ab.width, *a_offset, *b_offset, &segments, &args, state, target,
                    out.width, round,
                );
            }
            Op::GatedNorm { x, gate, gate_offset, heads, weight, eps, out } => {
                let dim = x.width / heads;
                let weight = vector(weight);
                let [source, gate_rows, target] = three(&mut self.buffers, [*x, *gate, *out]);
                gated_rms_norm(
                    pool,
                    source,
                    gate_rows,
                    gate.width,
                    *gate_offset,
                    rows,
                    *heads,
                    dim,
                    weight,
                    *eps,
                    false,
                    target,
                    out.width,
                    round,
                );
            }
        }
    }

    fn rows_of(&self, buffer: BufferId, batch: &StepBatch) -> usize {
        match self.plan.buffers[buffer.0].rows {
            Rows::Step => batch.rows(),
            Rows::Logits => batch.logit_rows.len(),
        }
    }
}

impl Prepare for CpuBackend {
    fn load(&mut self, index: usize, param: RawParam) -> Result<(), EngineError> {
        assert_eq!(index, self.weights.len(), "parameters come in the plan's order");
        self.weights.push(param);
        Ok(())
    }

    fn finish(self: Box<Self>) -> Result<Box<dyn Backend>, EngineError> {
        assert_eq!(self.weights.len(), self.plan.params.len(), "every parameter has been loaded");
        Ok(self)
    }
}

impl Backend for CpuBackend {
    fn plan(&self) -> &Plan {
        &self.plan
    }

    fn execute(
        &mut self,
        batch: &StepBatch,
        mut observer: Option<&mut dyn Observer>,
    ) -> Result<StepOutput<'_>, EngineError> {
        let vocab = self.plan.logits.width as u32;
        if let Some(token) = batch.tokens.iter().find(|token| **token >= vocab) {
            return Err(EngineError::Unsupported(format!("token {token} is outside the vocabulary of {vocab}")));
        }
        for (buffer, spec) in self.buffers.iter_mut().zip(&self.plan.buffers) {
            let rows = if spec.rows == Rows::Step { batch.rows() } else { batch.logit_rows.len() };
            buffer.resize(rows * spec.width, 0.0);
        }
        for index in 0..self.plan.ops.len() {
            let out = self.plan.ops[index].op.out();
            let rows = self.rows_of(out.buffer, batch);
            if rows == 0 {
                continue;
            }
            self.run(index, batch);
            if let Some(observer) = observer.as_deref_mut() {
                let output = &self.buffers[out.buffer.0][..rows * out.width];
                observer.after(index, &self.plan.ops[index], output, rows, out.width);
            }
        }
        Ok(StepOutput::of_logits(&self.buffers[self.plan.logits.buffer.0], self.plan.logits.width))
    }

    fn resumes_at_anchors(&self) -> bool {
        true
    }

    fn weight_bytes(&self) -> u64 {
        self.weights.bytes()
    }

    fn cache_bytes(&self) -> u64 {
        let kv: usize = self.kv.iter().map(KvLayer::bytes).sum();
        let states: usize = self.states.iter().map(DeltaState::bytes).sum();
        let convs: usize = self.convs.iter().map(ConvCache::bytes).sum();
        (kv + states + convs) as u64
    }
}

fn kv_segments(batch: &StepBatch) -> Vec<KvSegment<'_>> {
    (batch.segments.iter())
        .map(|s| KvSegment { first_row: s.first_row, rows: s.rows, start: s.start, pages: &s.tables.pages })
        .collect()
}

/// Two different buffers, the second for writing.
fn pair(buffers: &mut [Vec<f32>], read: View, write: View) -> (&[f32], &mut [f32]) {
    let [read, write] = buffers.get_disjoint_mut([read.buffer.0, write.buffer.0]).unwrap_or_else(|_| same_buffer());
    (read, write)
}

/// Three different buffers, the last for writing.
fn three(buffers: &mut [Vec<f32>], views: [View; 3]) -> [&mut [f32]; 3] {
    let slices = buffers.get_disjoint_mut(views.map(|view| view.buffer.0)).unwrap_or_else(|_| same_buffer());
    slices.map(|buffer| buffer.as_mut_slice())
}

fn same_buffer() -> ! {
    panic!("an operation of the plan reads and writes one buffer")
}
