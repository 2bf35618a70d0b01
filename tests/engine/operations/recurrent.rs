//! The gated delta net's own operations: causal convolution and the gated delta rule.

use super::case::Builder;
use super::scenario::Scenario;
use super::{lengths, rng, verify};
use crate::devices::cases;
use atlas_engine::plan::{Op, StateLayerSpec};

#[test]
fn causal_conv() {
    for index in 0..cases(8) {
        let mut rng = rng(12, index);
        let (channels, taps, more) = (2 * rng.between(1, 200), rng.between(2, 4), 2 * rng.between(0, 50));
        let mut builder = Builder::new(&mut rng, 32);
        let x = builder.input("projected", channels + more, 1.0);
        let out = builder.view("convolved", channels);
        let weight = builder.conv(channels, taps);
        let state = StateLayerSpec { conv_channels: channels, conv_taps: taps, ..heads(1, 1, 16, 16) };
        builder.plan.state_layers.push(state);
        builder.push("conv", Op::CausalConv { x, channels, weight, taps, layer: 0, out });
        let case = builder.finish();
        let lengths = lengths(&mut rng);
        verify(&(channels, taps, more), &case, &Scenario::ragged(&mut rng, lengths));
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
        let mut builder = Builder::new(&mut rng, 32);
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
        verify(&state, &case, &Scenario::ragged(&mut rng, lengths));
    }
}

fn heads(key_heads: usize, value_heads: usize, key_dim: usize, value_dim: usize) -> StateLayerSpec {
    let conv_channels = 2 * key_heads * key_dim + value_heads * value_dim;
    StateLayerSpec { key_heads, value_heads, key_dim, value_dim, conv_channels, conv_taps: 4 }
}
