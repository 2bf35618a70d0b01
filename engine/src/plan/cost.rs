//! Bytes and floating-point operations of a plan, for `explain`, memory checks and rooflines.

use super::{Op, Plan, StateLayerSpec};
use crate::config::spec::{ParamShape, ParamSpec};
use atlas_schemas::outputs::Cost;

impl Plan {
    /// Bytes of one anchor: the states of all layers and the convolution inputs before it. A checkpoint costs as much.
    pub fn anchor_bytes(&self) -> u64 {
        let layer = |l: &StateLayerSpec| l.value_heads * l.key_dim * l.value_dim + (l.conv_taps - 1) * l.conv_channels;
        self.state_layers.iter().map(|l| 4 * layer(l) as u64).sum()
    }

    /// Costs by scope, with `bytes_of` giving a parameter's stored bytes and `kv_element` the bytes of a cached key or
    /// value element.
    pub fn costs(
        &self,
        bytes_of: impl Fn(&ParamSpec) -> u64,
        kv_element: f64,
        ring_rows: usize,
    ) -> Vec<(String, Cost)> {
        let mut costs: Vec<(String, Cost)> = self.scopes.iter().map(|name| (name.clone(), Cost::default())).collect();
        let mut projected = vec![false; self.params.len()];
        let mut computed = vec![false; self.scopes.len()];
        for planned in &self.ops {
            computed[planned.scope] = true;
            let cost = &mut costs[planned.scope].1;
            cost.flops_per_token += flops(&planned.op);
            match &planned.op {
                Op::Linear { parts, .. } => parts.iter().for_each(|part| projected[part.weight.0] = true),
                Op::RopeStore { layer, .. } => {
                    let kv = self.kv_layers[*layer];
                    cost.kv_bytes_per_token += (2.0 * (kv.kv_heads * kv.head_dim) as f64 * kv_element) as u64;
                }
                Op::GatedDelta { layer, .. } => {
                    let state = self.state_layers[*layer];
                    let anchor = state.value_heads * state.key_dim * state.value_dim;
                    let row = state.key_heads * state.key_dim + state.value_heads * (state.value_dim + 1);
                    let conv = state.conv_channels * (ring_rows + state.conv_taps - 1);
                    cost.state_bytes_per_sequence += 4 * (anchor + 64 * row + conv) as u64;
                }
                _ => {}
            }
        }
        for ((param, scope), projected) in self.params.iter().zip(&self.param_scopes).zip(projected) {
            let cost = &mut costs[*scope].1;
            let bytes = bytes_of(param);
            cost.params += param.shape.elements();
            cost.weight_bytes += bytes;
            cost.weight_bytes_per_token += match param.shape {
                // Loaded, but not part of a decode step (a draft head).
                _ if !computed[*scope] => 0,
                ParamShape::Table { width, rows } if !projected => bytes * width as u64 / (rows * width) as u64,
                _ => bytes,
            };
        }
        costs
    }
}

fn flops(op: &Op) -> u64 {
    let count = match op {
        Op::Embed { .. } | Op::GatherLogitRows { .. } => 0,
        Op::RmsNorm { x, .. } => 4 * x.width,
        Op::Linear { parts, .. } => parts.iter().map(|part| 2 * part.n * part.k).sum(),
        Op::RopeStore { layout, .. } => 6 * (layout.heads + layout.kv_heads) * layout.head_dim,
        // The part that grows with the context is the reader's to add: 4 * heads * head_dim a cached token.
        Op::Attention { layout, .. } => 4 * layout.heads * layout.head_dim,
        Op::GateOutput { x, .. } => 5 * x.width,
        Op::SiluMul { out, .. } => 6 * out.width,
        Op::CausalConv { channels, taps, .. } => 2 * channels * taps + 5 * channels,
        // Two products with the anchor state and, on average, half an open block of keys and updates.
        Op::GatedDelta { qkv, out, .. } => 4 * qkv.width * 32 + 4 * out.width * 128,
        Op::GatedNorm { x, .. } => 9 * x.width,
    };
    count as u64
}
