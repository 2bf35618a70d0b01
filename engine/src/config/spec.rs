//! The model as data: what is computed, with which parameters. No tensors and no device here.
//!
//! Tensor names, weight bytes, the cache plan, memory estimates and rooflines are all derived from a [`ModelSpec`],
//! so that `atlas explain`, the runner's memory check and the engine cannot disagree.

use super::quant::{Quantization, WeightFormat};
use super::rope::RopeSpec;

/// A decoder-only language model.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelSpec {
    /// Family name, as in `qwen3_5`.
    pub family: &'static str,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Rows of the vocabulary.
    pub vocab: usize,
    /// Positions the checkpoint was made for.
    pub max_positions: usize,
    /// Token embedding: module name.
    pub embed: String,
    /// Decoder layers, in order.
    pub layers: Vec<LayerSpec>,
    /// Final norm and output projection.
    pub head: HeadSpec,
    /// Multi-token-prediction head, when the checkpoint has one.
    pub mtp: Option<MtpSpec>,
    /// End-of-sequence ids from `config.json`.
    pub eos_tokens: Vec<u32>,
    /// Declared weight formats.
    pub quantization: Quantization,
    /// Tensor-name prefixes of parts that are not computed, with what they are.
    pub skipped: Vec<(String, &'static str)>,
    /// What the reader should know: unused configuration fields.
    pub warnings: Vec<String>,
}

/// One decoder layer: sublayers applied in order to the residual stream.
#[derive(Debug, Clone, PartialEq)]
pub struct LayerSpec {
    /// Name prefix of the layer's modules, with the final dot.
    pub prefix: String,
    /// The sublayers.
    pub sublayers: Vec<SublayerSpec>,
}

/// `residual += body(pre_norm(residual))`.
#[derive(Debug, Clone, PartialEq)]
pub struct SublayerSpec {
    /// Norm before the body.
    pub pre_norm: NormSpec,
    /// What is computed.
    pub body: Body,
}

/// Root-mean-square norm over the last dimension.
#[derive(Debug, Clone, PartialEq)]
pub struct NormSpec {
    /// Module name below the layer's prefix (or from the top for model-level norms).
    pub name: String,
    /// Added to the mean square.
    pub eps: f32,
    /// Whether the stored weight is an offset from one (`1 + w`).
    pub unit_offset: bool,
}

/// The computation of a sublayer.
#[derive(Debug, Clone, PartialEq)]
pub enum Body {
    /// Softmax attention with a paged KV cache.
    Attention(AttentionSpec),
    /// Gated delta rule with a recurrent state (arXiv 2412.06464).
    GatedDelta(GatedDeltaSpec),
    /// Gated feed-forward.
    Mlp(MlpSpec),
}

/// Grouped-query attention.
#[derive(Debug, Clone, PartialEq)]
pub struct AttentionSpec {
    /// Module name below the layer's prefix.
    pub name: String,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; divides `heads`.
    pub kv_heads: usize,
    /// Width of a query or key head.
    pub head_dim: usize,
    /// Multiplies query-key products.
    pub scale: f32,
    /// Whether q, k, v and o projections have a bias.
    pub bias: bool,
    /// Per-head norm of queries and keys: epsilon and `1 + w`.
    pub qk_norm: Option<(f32, bool)>,
    /// Rotary embedding.
    pub rope: RopeSpec,
    /// Sliding window: a key is visible iff `q_pos - k_pos < window`.
    pub window: Option<usize>,
    /// Whether the query projection also yields a per-head output gate, interleaved as `[q | gate]`.
    pub output_gate: bool,
}

/// Gated delta net: short convolution, gated delta rule, gated norm.
#[derive(Debug, Clone, PartialEq)]
pub struct GatedDeltaSpec {
    /// Module name below the layer's prefix.
    pub name: String,
    /// Query and key heads; divides `value_heads`.
    pub key_heads: usize,
    /// Value heads.
    pub value_heads: usize,
    /// Width of a query or key head.
    pub key_dim: usize,
    /// Width of a value head.
    pub value_dim: usize,
    /// Taps of the causal convolution.
    pub conv_taps: usize,
    /// Epsilon of the gated norm.
    pub norm_eps: f32,
}

impl GatedDeltaSpec {
    /// Channels of the convolution: queries, keys and values.
    pub fn conv_channels(&self) -> usize {
        2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim
    }

    /// Width of the output before its projection.
    pub fn value_width(&self) -> usize {
        self.value_heads * self.value_dim
    }
}

/// `down(silu(gate(x)) * up(x))`.
#[derive(Debug, Clone, PartialEq)]
pub struct MlpSpec {
    /// Module name below the layer's prefix.
    pub name: String,
    /// Inner width.
    pub intermediate: usize,
    /// Whether the projections have a bias.
    pub bias: bool,
}

/// Final norm and output projection.
#[derive(Debug, Clone, PartialEq)]
pub struct HeadSpec {
    /// The norm before it.
    pub norm: NormSpec,
    /// Module name of the projection; the embedding's when tied.
    pub name: String,
    /// Whether the projection is the embedding.
    pub tied: bool,
}

/// A multi-token-prediction head that fuses the target's hidden state with the next token's embedding:
/// `x = fc([norm_e(embed(t+1)) ; norm_h(h_t)])`, then its own layers, its own norm and the shared output projection.
#[derive(Debug, Clone, PartialEq)]
pub struct MtpSpec {
    /// Norm of the embedding.
    pub embedding_norm: NormSpec,
    /// Norm of the hidden state.
    pub hidden_norm: NormSpec,
    /// Module name of the fusion projection, `[hidden, 2 * hidden]`.
    pub fusion: String,
    /// The head's layers.
    pub layers: Vec<LayerSpec>,
    /// Norm before the output projection.
    pub norm: NormSpec,
}

/// How a parameter may be divided over ranks of tensor parallelism.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Partition {
    /// Every rank holds all of it.
    Replicated,
    /// Ranks hold ranges of output rows, in units of so many rows (a head's width).
    Rows {
        /// Rows that must stay together.
        unit: usize,
    },
    /// Ranks hold ranges of input columns, in units of so many columns; results are summed over ranks.
    Columns {
        /// Columns that must stay together.
        unit: usize,
    },
}

/// The shape and role of a parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ParamShape {
    /// A projection's weight `[n, k]`: may be quantised.
    Linear {
        /// Outputs.
        n: usize,
        /// Inputs.
        k: usize,
    },
    /// A table `[rows, width]` that is looked up by row: never quantised.
    Table {
        /// Rows.
        rows: usize,
        /// Width.
        width: usize,
    },
    /// A depthwise convolution `[channels, 1, taps]`: never quantised.
    Conv {
        /// Channels.
        channels: usize,
        /// Taps.
        taps: usize,
    },
    /// A vector: norm weight, bias, decay.
    Vector {
        /// Length.
        len: usize,
    },
}

impl ParamShape {
    /// Number of elements.
    pub fn elements(self) -> u64 {
        match self {
            Self::Linear { n, k } => n as u64 * k as u64,
            Self::Table { rows, width } => rows as u64 * width as u64,
            Self::Conv { channels, taps } => channels as u64 * taps as u64,
            Self::Vector { len } => len as u64,
        }
    }

    /// The shape as a checkpoint stores it.
    pub fn dims(self) -> Vec<usize> {
        match self {
            Self::Linear { n, k } => vec![n, k],
            Self::Table { rows, width } => vec![rows, width],
            Self::Conv { channels, taps } => vec![channels, 1, taps],
            Self::Vector { len } => vec![len],
        }
    }
}

/// One parameter of the model.
#[derive(Debug, Clone, PartialEq)]
pub struct ParamSpec {
    /// Tensor name in the checkpoint, as in `model.layers.0.mlp.up_proj.weight`.
    pub name: String,
    /// Shape and role.
    pub shape: ParamShape,
    /// Division over ranks.
    pub partition: Partition,
    /// Declared format; a checkpoint's own dtype wins for dense tensors.
    pub format: WeightFormat,
}

impl ParamSpec {
    /// Bytes of the parameter as declared, scales included.
    pub fn bytes(&self) -> u64 {
        match self.shape {
            ParamShape::Linear { n, k } => self.format.bytes(n, k),
            shape => self.format.bytes(1, shape.elements() as usize),
        }
    }
}
