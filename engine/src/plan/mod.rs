//! The plan: a flat list of fused operations over named buffers, made once a model. Rows are symbolic.
//!
//! Everything that a device needs is derived from it: the parameters to load, the arena, the caches, the operations
//! to resolve before any weight is read, and the bytes and floating-point operations of a step.

mod cost;

use crate::config::rope::RopeSpec;
use crate::config::spec::ParamSpec;
use atlas_kernels::KvScales;

/// Index into [`Plan::params`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ParamId(pub usize);

/// Index into [`Plan::buffers`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct BufferId(pub usize);

/// Which rows of a step a buffer has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rows {
    /// One row for every token of the step.
    Step,
    /// One row for every token whose logits were asked for.
    Logits,
}

/// A named activation buffer, shared by all operations that use its name; `width` is the widest use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Buffer {
    /// Role, as in `residual`.
    pub name: &'static str,
    /// Elements a row at the widest use.
    pub width: usize,
    /// Which rows it has.
    pub rows: Rows,
}

/// A buffer as one operation sees it: rows of `width` elements, densely.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct View {
    /// The buffer.
    pub buffer: BufferId,
    /// Elements a row.
    pub width: usize,
}

/// One weight of a fused projection: its outputs start at `column` of the output row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// The weight, `[n, k]`.
    pub weight: ParamId,
    /// Its bias, `[n]`.
    pub bias: Option<ParamId>,
    /// First output column.
    pub column: usize,
    /// Outputs.
    pub n: usize,
    /// Inputs.
    pub k: usize,
}

/// Where queries, keys and values stand in the rows of a fused projection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QkvSpec {
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Distance between query heads: twice the width when a gate follows each head.
    pub q_stride: usize,
    /// First column of keys.
    pub k_offset: usize,
    /// First column of values.
    pub v_offset: usize,
}

/// A fused operation. Rows are those of the output buffer.
#[derive(Debug, Clone, PartialEq)]
pub enum Op {
    /// Rows of the embedding table for the step's tokens.
    Embed {
        /// Table `[vocab, hidden]`.
        table: ParamId,
        /// Output.
        out: View,
    },
    /// Copies the rows whose logits were asked for.
    GatherLogitRows {
        /// Input, step rows.
        x: View,
        /// Output, logit rows.
        out: View,
    },
    /// Root-mean-square norm.
    RmsNorm {
        /// Input.
        x: View,
        /// Weight.
        weight: ParamId,
        /// Epsilon.
        eps: f32,
        /// Whether the weight is an offset from one.
        unit_offset: bool,
        /// Output.
        out: View,
    },
    /// Projections of one input side by side, or added to the output.
    Linear {
        /// Input.
        x: View,
        /// The weights.
        parts: Vec<Part>,
        /// Output.
        out: View,
        /// Whether the result is added to the output (the residual stream).
        accumulate: bool,
    },
    /// Per-head norms and rotary embedding of queries and keys in place, then keys and values into the cache.
    RopeStore {
        /// Fused projection.
        qkv: View,
        /// Its layout.
        layout: QkvSpec,
        /// Query norm, key norm, epsilon, `1 + w`.
        norms: Option<(ParamId, ParamId, f32, bool)>,
        /// Frequencies: index into [`Plan::ropes`].
        rope: usize,
        /// KV layer: index into [`Plan::kv_layers`].
        layer: usize,
    },
    /// Softmax attention over the cache.
    Attention {
        /// Fused projection holding the queries.
        qkv: View,
        /// Its layout.
        layout: QkvSpec,
        /// KV layer.
        layer: usize,
        /// Multiplies scores.
        scale: f32,
        /// Sliding window.
        window: Option<usize>,
        /// Output.
        out: View,
    },
    /// `x *= sigmoid(gate)`, the gate interleaved after each query head.
    GateOutput {
        /// Attention output, in place.
        x: View,
        /// Fused projection holding the gates.
        gate: View,
        /// Its layout.
        layout: QkvSpec,
    },
    /// `silu(gate) * up` with gate and up side by side.
    SiluMul {
        /// Input.
        gate_up: View,
        /// Output.
        out: View,
    },
    /// Depthwise causal convolution with SiLU over the first `channels` columns.
    CausalConv {
        /// Input.
        x: View,
        /// Channels.
        channels: usize,
        /// Weight `[channels, taps]`.
        weight: ParamId,
        /// Taps.
        taps: usize,
        /// State layer: index into [`Plan::state_layers`].
        layer: usize,
        /// Output.
        out: View,
    },
    /// Gated delta rule in anchored blocks (NUMERICS N5).
    GatedDelta {
        /// Convolution output: queries, keys, values.
        qkv: View,
        /// Fused projection holding a and b.
        ab: View,
        /// First column of a.
        a_offset: usize,
        /// First column of b.
        b_offset: usize,
        /// Log decay `[value_heads]`.
        a_log: ParamId,
        /// Step bias `[value_heads]`.
        dt_bias: ParamId,
        /// State layer.
        layer: usize,
        /// Output.
        out: View,
    },
    /// Per-head norm times `silu(gate)`.
    GatedNorm {
        /// Input.
        x: View,
        /// Fused projection holding the gates.
        gate: View,
        /// First column of the gates.
        gate_offset: usize,
        /// Heads.
        heads: usize,
        /// Weight `[head width]`.
        weight: ParamId,
        /// Epsilon.
        eps: f32,
        /// Output.
        out: View,
    },
}

impl Op {
    /// The view that the operation writes.
    pub fn out(&self) -> View {
        match self {
            Self::Embed { out, .. }
            | Self::GatherLogitRows { out, .. }
            | Self::RmsNorm { out, .. }
            | Self::Linear { out, .. }
            | Self::Attention { out, .. }
            | Self::SiluMul { out, .. }
            | Self::CausalConv { out, .. }
            | Self::GatedDelta { out, .. }
            | Self::GatedNorm { out, .. } => *out,
            Self::RopeStore { qkv, .. } => *qkv,
            Self::GateOutput { x, .. } => *x,
        }
    }
}

/// An operation in its place.
#[derive(Debug, Clone, PartialEq)]
pub struct PlannedOp {
    /// Unique name, as in `layers.3.mlp.down_proj`: what dumps and profiles use.
    pub name: String,
    /// Index into [`Plan::scopes`].
    pub scope: usize,
    /// What to do.
    pub op: Op,
}

/// One layer's paged keys and values.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct KvLayerSpec {
    /// Key and value heads.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// The weights that make keys and values: where a checkpoint puts their scales.
    pub weights: Option<(ParamId, ParamId)>,
    /// Scales of an FP8 cache: ones, unless the checkpoint has others (see [`crate::weights::loader::kv_scales`]).
    pub scales: KvScales,
}

impl KvLayerSpec {
    /// Without scales.
    pub fn new(kv_heads: usize, head_dim: usize) -> Self {
        Self { kv_heads, head_dim, weights: None, scales: KvScales::default() }
    }
}

/// Dimensions of one layer's recurrent state and convolution history.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StateLayerSpec {
    /// Query and key heads.
    pub key_heads: usize,
    /// Value heads.
    pub value_heads: usize,
    /// Width of a key head.
    pub key_dim: usize,
    /// Width of a value head.
    pub value_dim: usize,
    /// Channels of the convolution.
    pub conv_channels: usize,
    /// Taps of the convolution.
    pub conv_taps: usize,
}

/// A model lowered to operations.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// Everything to load, in order.
    pub params: Vec<ParamSpec>,
    /// Activation buffers.
    pub buffers: Vec<Buffer>,
    /// Operations, in order.
    pub ops: Vec<PlannedOp>,
    /// Names of sublayers and other groups of operations, for reports.
    pub scopes: Vec<String>,
    /// Which scope each parameter belongs to.
    pub param_scopes: Vec<usize>,
    /// Distinct rotary embeddings.
    pub ropes: Vec<RopeSpec>,
    /// Layers with paged keys and values.
    pub kv_layers: Vec<KvLayerSpec>,
    /// Layers with a recurrent state.
    pub state_layers: Vec<StateLayerSpec>,
    /// For each decoder layer, the operation after which the residual stream holds its output.
    pub layer_ends: Vec<usize>,
    /// The residual stream.
    pub residual: View,
    /// Input of the output projection (after the final norm).
    pub final_hidden: View,
    /// Logits, `[logit rows, vocab]`.
    pub logits: View,
}
