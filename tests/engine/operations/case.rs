//! Small plans around the operation under test.
//!
//! A plan begins with the embedding into the residual stream and ends with an output projection, as every model's
//! does. Inputs of the operation under test are further embeddings: each token picks a row of a random table.

use super::formats::{Format, random_bf16, random_nvfp4};
use crate::random::Rng;
use atlas_engine::config::WeightFormat;
use atlas_engine::config::spec::{ParamShape, ParamSpec, Partition};
use atlas_engine::plan::{Buffer, BufferId, Op, ParamId, Part, Plan, PlannedOp, Rows, View};
use atlas_engine::weights::RawParam;

/// Rows of every table: token ids.
pub(crate) const VOCAB: usize = 229;

/// A plan with its parameters.
pub(crate) struct Case {
    pub(crate) plan: Plan,
    pub(crate) params: Vec<RawParam>,
}

/// A plan under construction.
pub(crate) struct Builder<'a> {
    pub(crate) rng: &'a mut Rng,
    pub(crate) plan: Plan,
    params: Vec<RawParam>,
    apart: bool,
}

impl<'a> Builder<'a> {
    /// A plan whose residual stream is `hidden` wide and holds embeddings. With `apart`, [`Self::keep`] keeps operations
    /// from being fused.
    pub(crate) fn new(rng: &'a mut Rng, hidden: usize, apart: bool) -> Self {
        let nowhere = View { buffer: BufferId(0), width: hidden };
        let plan = Plan {
            params: Vec::new(),
            buffers: Vec::new(),
            ops: Vec::new(),
            scopes: vec!["test".into()],
            param_scopes: Vec::new(),
            ropes: Vec::new(),
            kv_layers: Vec::new(),
            state_layers: Vec::new(),
            layer_ends: Vec::new(),
            residual: nowhere,
            final_hidden: nowhere,
            logits: nowhere,
        };
        let mut builder = Self { rng, plan, params: Vec::new(), apart };
        builder.plan.residual = builder.input("residual", hidden, 1.0);
        builder
    }

    pub(crate) fn view(&mut self, name: &'static str, width: usize) -> View {
        self.buffer(name, width, Rows::Step)
    }

    fn buffer(&mut self, name: &'static str, width: usize, rows: Rows) -> View {
        let buffers = &mut self.plan.buffers;
        let index = buffers.iter().position(|buffer| buffer.name == name).unwrap_or_else(|| {
            buffers.push(Buffer { name, width: 0, rows });
            buffers.len() - 1
        });
        buffers[index].width = buffers[index].width.max(width);
        View { buffer: BufferId(index), width }
    }

    /// A buffer that an embedding fills with values of about `gain`.
    pub(crate) fn input(&mut self, name: &'static str, width: usize, gain: f32) -> View {
        self.input_by(name, width, |_| gain)
    }

    /// A buffer that an embedding fills with values whose size depends on the column.
    pub(crate) fn input_by(&mut self, name: &'static str, width: usize, gain: impl Fn(usize) -> f32) -> View {
        let values = random_bf16(self.rng, VOCAB, width, gain);
        let table = self.param(values, ParamShape::Table { rows: VOCAB, width }, WeightFormat::Bf16);
        let out = self.view(name, width);
        self.push(&format!("embed_{name}"), Op::Embed { table, out });
        out
    }

    /// Copies rows of `view`, so that they are needed where they stand.
    pub(crate) fn keep(&mut self, name: &str, view: View) {
        if self.apart {
            let out = self.buffer("kept", view.width, Rows::Logits);
            self.push(&format!("keep_{name}"), Op::GatherLogitRows { x: view, out });
        }
    }

    pub(crate) fn vector(&mut self, values: Vec<f32>) -> ParamId {
        let shape = ParamShape::Vector { len: values.len() };
        self.param(RawParam::Vector(values), shape, WeightFormat::F32)
    }

    /// Weights around `mean`.
    pub(crate) fn random_vector(&mut self, len: usize, mean: f32, gain: f32) -> ParamId {
        let values = (0..len).map(|_| mean + gain * self.rng.normal()).collect();
        self.vector(values)
    }

    pub(crate) fn conv(&mut self, channels: usize, taps: usize) -> ParamId {
        let values = (0..channels * taps).map(|_| 0.6 * self.rng.normal()).collect();
        self.param(RawParam::Vector(values), ParamShape::Conv { channels, taps }, WeightFormat::F32)
    }

    /// A projection that keeps the size of its input, from `column` of the output on.
    pub(crate) fn part(&mut self, format: Format, n: usize, k: usize, column: usize, bias: bool) -> Part {
        let gain = (k as f32).powf(-0.5);
        let (raw, declared) = match format {
            Format::Nvfp4 => (random_nvfp4(self.rng, n, k, gain), WeightFormat::Nvfp4),
            Format::Bf16 => (random_bf16(self.rng, n, k, |_| gain), WeightFormat::Bf16),
        };
        let weight = self.param(raw, ParamShape::Linear { n, k }, declared);
        let bias = bias.then(|| self.random_vector(n, 0.0, 1.0));
        Part { weight, bias, column, n, k }
    }

    fn param(&mut self, raw: RawParam, shape: ParamShape, format: WeightFormat) -> ParamId {
        let id = ParamId(self.params.len());
        let name = format!("test.{}.weight", id.0);
        self.plan.params.push(ParamSpec { name, shape, partition: Partition::Replicated, format });
        self.plan.param_scopes.push(0);
        self.params.push(raw);
        id
    }

    pub(crate) fn push(&mut self, name: &str, op: Op) {
        self.plan.ops.push(PlannedOp { name: format!("test.{name}"), scope: 0, op });
    }

    pub(crate) fn norm(&mut self, name: &str, x: View, out: View, unit_offset: bool) {
        let weight = self.random_vector(x.width, if unit_offset { 0.0 } else { 1.0 }, 0.2);
        self.push(name, Op::RmsNorm { x, weight, eps: 1e-6, unit_offset, out });
    }

    /// Adds the output projection.
    pub(crate) fn finish(mut self) -> Case {
        let residual = self.plan.residual;
        self.plan.layer_ends = vec![self.plan.ops.len() - 1];
        let gathered = self.buffer("gathered", residual.width, Rows::Logits);
        let x = self.buffer("final_hidden", residual.width, Rows::Logits);
        let logits = self.buffer("logits", VOCAB, Rows::Logits);
        self.push("gather", Op::GatherLogitRows { x: residual, out: gathered });
        self.norm("final_norm", gathered, x, false);
        let part = self.part(Format::Bf16, VOCAB, residual.width, 0, false);
        self.push("lm_head", Op::Linear { x, parts: vec![part], out: logits, accumulate: false });
        (self.plan.final_hidden, self.plan.logits) = (x, logits);
        Case { plan: self.plan, params: self.params }
    }
}
