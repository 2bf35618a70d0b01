//! What the configurations of pre-norm decoders have in common, so that a family file says what is particular to it.

use super::head;
use crate::config::fields::Fields;
use crate::config::quant::Quantization;
use crate::config::rope;
use crate::config::spec::{AttentionSpec, Body, LayerSpec, MlpSpec, ModelSpec, MtpSpec, NormSpec, SublayerSpec};
use crate::errors::EngineError;

/// More layers than this are a damaged configuration.
pub(super) const MAX_LAYERS: usize = 4096;
/// Wider heads than this are a damaged configuration.
const MAX_HEAD_DIM: usize = 1 << 16;

/// Defaults and habits of a family, where its configuration is silent.
pub(super) struct Habits {
    /// Family name.
    pub(super) family: &'static str,
    /// Key and value heads; as many as query heads when `None`.
    pub(super) kv_heads: Option<usize>,
    /// Width of a head; the hidden size over the heads when `None`.
    pub(super) head_dim: Option<usize>,
    /// Positions the model was made for.
    pub(super) max_positions: usize,
    /// Fraction of a head that is rotated.
    pub(super) partial_rotary: f64,
    /// Whether norm weights are offsets from one.
    pub(super) unit_offset: bool,
    /// Whether queries and keys are normed by head.
    pub(super) qk_norm: bool,
    /// Whether attention output is gated.
    pub(super) output_gate: bool,
}

/// A decoder's common fields, read and checked.
pub(super) struct Dense {
    habits: Habits,
    prefix: String,
    hidden: usize,
    max_positions: usize,
    /// Number of layers.
    pub(super) layers: usize,
    /// Epsilon of the norms.
    pub(super) eps: f32,
    /// Full attention.
    pub(super) attention: AttentionSpec,
    /// Gated feed-forward.
    pub(super) mlp: MlpSpec,
}

impl Dense {
    pub(super) fn read(fields: &Fields<'_>, prefix: &str, habits: Habits) -> Result<Self, EngineError> {
        // Two names of one function.
        if fields.opt_str("hidden_act")? != Some("swish") {
            fields.only("hidden_act", "silu")?;
        }
        let hidden = fields.size("hidden_size")?;
        let heads = fields.size("num_attention_heads")?;
        let kv_heads = fields.size_or("num_key_value_heads", habits.kv_heads.unwrap_or(heads))?;
        if !heads.is_multiple_of(kv_heads) {
            let message = format!("is {kv_heads}, which does not divide {heads} heads");
            return Err(fields.error("num_key_value_heads", message));
        }
        let head_dim = fields.size_up_to("head_dim", habits.head_dim.or(Some(hidden / heads)), MAX_HEAD_DIM)?;
        let max_positions = fields.size_or("max_position_embeddings", habits.max_positions)?;
        let eps = fields.number_or("rms_norm_eps", 1e-6)?;
        if !(0.0..=1.0).contains(&eps) {
            return Err(fields.error("rms_norm_eps", format!("is {eps:e}; it must be from 0 to 1")));
        }
        let eps = eps as f32;
        let attention = AttentionSpec {
            name: "self_attn".into(),
            heads,
            kv_heads,
            head_dim,
            scale: (head_dim as f32).powf(-0.5),
            bias: fields.bool_or("attention_bias", false)?,
            qk_norm: habits.qk_norm.then_some((eps, habits.unit_offset)),
            rope: rope::read(fields, head_dim, max_positions, habits.partial_rotary)?,
            window: None,
            output_gate: habits.output_gate,
        };
        let mlp = MlpSpec { name: "mlp".into(), intermediate: fields.size("intermediate_size")?, bias: false };
        let layers = fields.size_up_to("num_hidden_layers", None, MAX_LAYERS)?;
        Ok(Self { habits, prefix: prefix.to_owned(), hidden, max_positions, layers, eps, attention, mlp })
    }

    /// A norm of the family's kind.
    pub(super) fn norm(&self, name: &str) -> NormSpec {
        NormSpec { name: name.into(), eps: self.eps, unit_offset: self.habits.unit_offset }
    }

    /// A layer of two sublayers: `mixer`, then the feed-forward.
    pub(super) fn layer(&self, prefix: String, mixer: Body) -> LayerSpec {
        let sublayers = vec![
            SublayerSpec { pre_norm: self.norm("input_layernorm"), body: mixer },
            SublayerSpec { pre_norm: self.norm("post_attention_layernorm"), body: Body::Mlp(self.mlp.clone()) },
        ];
        LayerSpec { prefix, sublayers }
    }

    /// The whole model: one layer for each of `mixers`.
    pub(super) fn model(
        self,
        fields: &Fields<'_>,
        quantization: Quantization,
        mixers: impl IntoIterator<Item = Body>,
        mtp: Option<MtpSpec>,
    ) -> Result<ModelSpec, EngineError> {
        let prefix = self.prefix.as_str();
        let mixers = mixers.into_iter().enumerate();
        Ok(ModelSpec {
            family: self.habits.family,
            hidden: self.hidden,
            vocab: fields.size("vocab_size")?,
            max_positions: self.max_positions,
            embed: format!("{prefix}embed_tokens"),
            layers: mixers.map(|(i, mixer)| self.layer(format!("{prefix}layers.{i}."), mixer)).collect(),
            head: head(fields.bool_or("tie_word_embeddings", false)?, prefix, self.norm(&format!("{prefix}norm"))),
            mtp,
            eos_tokens: fields.token_ids("eos_token_id")?,
            quantization,
            skipped: Vec::new(),
            warnings: Vec::new(),
        })
    }
}
