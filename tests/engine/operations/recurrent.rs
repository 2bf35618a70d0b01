//! The gated delta net's own operations: causal convolution and the gated delta rule.

use super::case::{Builder, Case};
use super::scenario::Scenario;
use super::{Forms, lengths, rng, verify};
use crate::devices::cases;
use crate::random::Rng;
use atlas_engine::plan::{Op, StateLayerSpec};

#[test]
fn causal_conv() {
    for index in 0..cases(8) {
        let mut rng = rng(12, index);
        let (channels, taps, more) = (2 * rng.between(1, 200), rng.between(2, 4), 2 * rng.between(0, 50));
        let mut builder = Builder::new(&mut rng, 32, true);
        let x = builder.input("projected", channels + more, 1.0);
        let out = builder.view("convolved", channels);
        let weight = builder.conv(channels, taps);
        let state = StateLayerSpec { conv_channels: channels, conv_taps: taps, ..heads(1, 1, 16, 16) };
        builder.plan.state_layers.push(state);
        builder.push("conv", Op::CausalConv { x, channels, weight, taps, layer: 0, out });
        let case = builder.finish();
        let lengths = lengths(&mut rng);
        verify(&(channels, taps, more), &Forms::single(case), &Scenario::ragged(&mut rng, lengths));
    }
}

#[test]
fn gated_delta() {
    for index in 0..cases(10) {
        let mut rng = rng(13, index);
        let dim = rng.pick(&[16, 32, 64, 128]);
        let key_heads = rng.between(1, (128 / dim).min(4));
        let group = rng.between(1, 4);
        let state = heads(key_heads, key_heads * group, dim, dim);
        let (a_offset, b_offset) = (6, 6 + state.value_heads);
        let mut builder = Builder::new(&mut rng, 32, true);
        let qkv = builder.input("convolved", state.conv_channels, 0.7);
        let ab = builder.input("projected", b_offset + state.value_heads, 1.5);
        let out = builder.view("mixed", state.value_heads * dim);
        // Decays from almost none to almost all of a block.
        let a_log = builder.random_vector(state.value_heads, -1.0, 1.5);
        let dt_bias = builder.random_vector(state.value_heads, -1.0, 1.5);
        builder.plan.state_layers.push(state);
        builder.push("delta", Op::GatedDelta { qkv, ab, a_offset, b_offset, a_log, dt_bias, layer: 0, out });
        let case = builder.finish();
        let lengths = lengths(&mut rng);
        verify(&state, &Forms::single(case), &Scenario::ragged(&mut rng, lengths));
    }
}

/// The three operations in a row, as models have them, on one fused projection.
#[test]
fn delta_net() {
    for index in 0..cases(10) {
        let mut rng = rng(14, index);
        let dim = rng.pick(&[16, 32, 64, 128]);
        let key_heads = rng.between(1, (128 / dim).min(4));
        let taps = rng.between(2, 4);
        let state = StateLayerSpec { conv_taps: taps, ..heads(key_heads, key_heads * rng.between(1, 4), dim, dim) };
        let seed = rng.clone();
        let forms = Forms::both(|apart| delta_net_case(&mut seed.clone(), state, apart));
        let lengths = lengths(&mut rng);
        verify(&state, &forms, &Scenario::ragged(&mut rng, lengths));
    }
}

fn delta_net_case(rng: &mut Rng, state: StateLayerSpec, apart: bool) -> Case {
    let (channels, heads, width) = (state.conv_channels, state.value_heads, state.value_heads * state.value_dim);
    let (gate_offset, a_offset, b_offset) = (channels, channels + width, channels + width + heads);
    let mut builder = Builder::new(rng, 32, apart);
    let projected = builder.input("projected", b_offset + heads, 1.0);
    let (convolved, mixed) = (builder.view("convolved", channels), builder.view("mixed", width));
    let gated = builder.view("gated", width);
    let (weight, norm) = (builder.conv(channels, state.conv_taps), builder.random_vector(state.value_dim, 1.0, 0.2));
    let (a_log, dt_bias) = (builder.random_vector(heads, -1.0, 1.5), builder.random_vector(heads, -1.0, 1.5));
    builder.plan.state_layers.push(state);
    let (x, taps, layer) = (projected, state.conv_taps, 0);
    builder.push("conv", Op::CausalConv { x, channels, weight, taps, layer, out: convolved });
    builder.keep("convolved", convolved);
    let (qkv, ab) = (convolved, projected);
    builder.push("delta", Op::GatedDelta { qkv, ab, a_offset, b_offset, a_log, dt_bias, layer, out: mixed });
    builder.keep("mixed", mixed);
    let (x, gate) = (mixed, projected);
    builder.push("norm", Op::GatedNorm { x, gate, gate_offset, heads, weight: norm, eps: 1e-6, out: gated });
    builder.keep("gated", gated);
    builder.finish()
}

fn heads(key_heads: usize, value_heads: usize, key_dim: usize, value_dim: usize) -> StateLayerSpec {
    let conv_channels = 2 * key_heads * key_dim + value_heads * value_dim;
    StateLayerSpec { key_heads, value_heads, key_dim, value_dim, conv_channels, conv_taps: 4 }
}
