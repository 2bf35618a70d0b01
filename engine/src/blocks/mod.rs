//! Lowering a model's sublayers to plan operations.
//!
//! Each block declares its parameters and appends its operations. A block knows dimensions and module names, never a
//! model's name.

mod attention;
mod gated_delta;
mod mlp;

use crate::config::rope::RopeSpec;
use crate::config::spec::{Body, LayerSpec, ModelSpec, NormSpec, ParamShape, ParamSpec, Partition};
use crate::plan::{Buffer, BufferId, Op, ParamId, Part, Plan, PlannedOp, Rows, View};
use crate::plan::{KvLayerSpec, StateLayerSpec};
use std::collections::HashMap;

/// Lowers a model to its plan.
pub fn lower(spec: &ModelSpec) -> Plan {
    let mut lower = Lower::new(spec);
    let residual = lower.view("residual", spec.hidden);
    let table =
        lower.param(&format!("{}.weight", spec.embed), ParamShape::Table { rows: spec.vocab, width: spec.hidden });
    lower.push("embed", Op::Embed { table, out: residual });
    let mut layer_ends = Vec::new();
    for (index, layer) in spec.layers.iter().enumerate() {
        lower.layer(&format!("layers.{index}"), layer, residual);
        layer_ends.push(lower.ops.len() - 1);
    }
    lower.scope("head");
    let gathered = lower.logit_view("gathered", spec.hidden);
    let final_hidden = lower.logit_view("final_hidden", spec.hidden);
    let logits = lower.logit_view("logits", spec.vocab);
    lower.push("gather", Op::GatherLogitRows { x: residual, out: gathered });
    lower.norm("norm", "", &spec.head.norm, gathered, final_hidden);
    let weight = match spec.head.tied {
        true => table,
        false => lower.linear(&spec.head.name, spec.vocab, spec.hidden, Partition::Rows { unit: 1 }),
    };
    let part = Part { weight, bias: None, column: 0, n: spec.vocab, k: spec.hidden };
    lower.push("lm_head", Op::Linear { x: final_hidden, parts: vec![part], out: logits, accumulate: false });
    if let Some(mtp) = &spec.mtp {
        lower.scope("mtp");
        for norm in [&mtp.embedding_norm, &mtp.hidden_norm, &mtp.norm] {
            lower.vector(&format!("{}.weight", norm.name), spec.hidden);
        }
        lower.linear(&mtp.fusion, spec.hidden, 2 * spec.hidden, Partition::Replicated);
        mtp.layers.iter().for_each(|layer| lower.declare_layer(layer));
    }
    lower.finish(layer_ends, residual, final_hidden, logits)
}

/// The plan under construction.
struct Lower<'a> {
    spec: &'a ModelSpec,
    params: Vec<ParamSpec>,
    param_scopes: Vec<usize>,
    by_name: HashMap<String, ParamId>,
    buffers: Vec<Buffer>,
    ops: Vec<PlannedOp>,
    scopes: Vec<String>,
    ropes: Vec<RopeSpec>,
    kv_layers: Vec<KvLayerSpec>,
    state_layers: Vec<StateLayerSpec>,
}

impl<'a> Lower<'a> {
    fn new(spec: &'a ModelSpec) -> Self {
        Self {
            spec,
            params: Vec::new(),
            param_scopes: Vec::new(),
            by_name: HashMap::new(),
            buffers: Vec::new(),
            ops: Vec::new(),
            scopes: vec!["embed".into()],
            ropes: Vec::new(),
            kv_layers: Vec::new(),
            state_layers: Vec::new(),
        }
    }

    fn layer(&mut self, name: &str, layer: &LayerSpec, residual: View) {
        for sublayer in &layer.sublayers {
            let normed = self.view("normed", self.spec.hidden);
            match &sublayer.body {
                Body::Attention(spec) => {
                    self.scope(&format!("{name}.{}", spec.name));
                    self.norm("norm", &layer.prefix, &sublayer.pre_norm, residual, normed);
                    attention::lower(self, spec, &layer.prefix, normed, residual);
                }
                Body::GatedDelta(spec) => {
                    self.scope(&format!("{name}.{}", spec.name));
                    self.norm("norm", &layer.prefix, &sublayer.pre_norm, residual, normed);
                    gated_delta::lower(self, spec, &layer.prefix, normed, residual);
                }
                Body::Mlp(spec) => {
                    self.scope(&format!("{name}.{}", spec.name));
                    self.norm("norm", &layer.prefix, &sublayer.pre_norm, residual, normed);
                    mlp::lower(self, spec, &layer.prefix, normed, residual);
                }
            }
        }
    }

    fn declare_layer(&mut self, layer: &LayerSpec) {
        for sublayer in &layer.sublayers {
            self.vector(&format!("{}{}.weight", layer.prefix, sublayer.pre_norm.name), self.spec.hidden);
            match &sublayer.body {
                Body::Attention(spec) => drop(attention::declare(self, spec, &layer.prefix)),
                Body::GatedDelta(spec) => drop(gated_delta::declare(self, spec, &layer.prefix)),
                Body::Mlp(spec) => drop(mlp::declare(self, spec, &layer.prefix)),
            }
        }
    }

    fn scope(&mut self, name: &str) {
        self.scopes.push(name.to_owned());
    }

    fn push(&mut self, name: &str, op: Op) {
        let scope = self.scopes.len() - 1;
        self.ops.push(PlannedOp { name: format!("{}.{name}", self.scopes[scope]), scope, op });
    }

    fn norm(&mut self, name: &str, prefix: &str, norm: &NormSpec, x: View, out: View) {
        let weight = self.vector(&format!("{prefix}{}.weight", norm.name), x.width);
        self.push(name, Op::RmsNorm { x, weight, eps: norm.eps, unit_offset: norm.unit_offset, out });
    }

    fn view(&mut self, name: &'static str, width: usize) -> View {
        self.buffer(name, width, Rows::Step)
    }

    fn logit_view(&mut self, name: &'static str, width: usize) -> View {
        self.buffer(name, width, Rows::Logits)
    }

    fn buffer(&mut self, name: &'static str, width: usize, rows: Rows) -> View {
        let found = self.buffers.iter().position(|buffer| buffer.name == name);
        let index = found.unwrap_or_else(|| {
            self.buffers.push(Buffer { name, width: 0, rows });
            self.buffers.len() - 1
        });
        self.buffers[index].width = self.buffers[index].width.max(width);
        View { buffer: BufferId(index), width }
    }

    fn linear(&mut self, module: &str, n: usize, k: usize, partition: Partition) -> ParamId {
        let format = self.spec.quantization.format_of(module);
        self.add(format!("{module}.weight"), ParamShape::Linear { n, k }, partition, format)
    }

    fn part(&mut self, module: &str, shape: (usize, usize), column: usize, bias: bool, partition: Partition) -> Part {
        let (n, k) = shape;
        let weight = self.linear(module, n, k, partition);
        let bias = bias.then(|| self.vector(&format!("{module}.bias"), n));
        Part { weight, bias, column, n, k }
    }

    fn vector(&mut self, name: &str, len: usize) -> ParamId {
        self.param(name, ParamShape::Vector { len })
    }

    fn param(&mut self, name: &str, shape: ParamShape) -> ParamId {
        self.add(name.to_owned(), shape, Partition::Replicated, self.spec.quantization.dense)
    }

    fn add(
        &mut self,
        name: String,
        shape: ParamShape,
        partition: Partition,
        format: crate::config::WeightFormat,
    ) -> ParamId {
        if let Some(id) = self.by_name.get(&name) {
            return *id;
        }
        let id = ParamId(self.params.len());
        self.by_name.insert(name.clone(), id);
        self.params.push(ParamSpec { name, shape, partition, format });
        self.param_scopes.push(self.scopes.len() - 1);
        id
    }

    fn rope(&mut self, rope: &RopeSpec) -> usize {
        self.ropes.iter().position(|known| known == rope).unwrap_or_else(|| {
            self.ropes.push(rope.clone());
            self.ropes.len() - 1
        })
    }

    fn finish(self, layer_ends: Vec<usize>, residual: View, final_hidden: View, logits: View) -> Plan {
        Plan {
            params: self.params,
            buffers: self.buffers,
            ops: self.ops,
            scopes: self.scopes,
            param_scopes: self.param_scopes,
            ropes: self.ropes,
            kv_layers: self.kv_layers,
            state_layers: self.state_layers,
            layer_ends,
            residual,
            final_hidden,
            logits,
        }
    }
}
