//! The gated delta net: causal convolution, gated delta rule and gated norm on one fused projection, as models have
//! them. Devices may compute them together; each of the three is observed and answers for itself.

use super::case::{Builder, Case};
use super::scenario::Scenario;
use super::{Forms, lengths, rng, verify};
use crate::devices::cases;
use crate::random::Rng;
use atlas_engine::plan::{Op, StateLayerSpec};

fn shape(rng: &mut Rng, key_dim: usize, value_dim: usize) -> StateLayerSpec {
    let key_heads = rng.between(1, (192 / key_dim).clamp(1, 4));
    let value_heads = key_heads * rng.between(1, 4);
    let conv_channels = 2 * key_heads * key_dim + value_heads * value_dim;
    StateLayerSpec { key_heads, value_heads, key_dim, value_dim, conv_channels, conv_taps: rng.between(2, 4) }
}

fn case(rng: &mut Rng, state: StateLayerSpec) -> Case {
    let (channels, heads, width) = (state.conv_channels, state.value_heads, state.value_heads * state.value_dim);
    let (gate_offset, a_offset, b_offset) = (channels, channels + width, channels + width + heads);
    let mut builder = Builder::new(rng, 32, false);
    // Decays, steps and gates are spread more than the rest.
    let gain = |column| if column < channels { 0.7 } else { 2.0 };
    let projected = builder.input_by("projected", b_offset + heads, gain);
    let (convolved, mixed) = (builder.view("convolved", channels), builder.view("mixed", width));
    let gated = builder.view("gated", width);
    let (weight, norm) = (builder.conv(channels, state.conv_taps), builder.random_vector(state.value_dim, 1.0, 0.2));
    // From decays that keep almost everything over a block to some that keep almost nothing of the last token.
    let (a_log, dt_bias) = (builder.random_vector(heads, -1.0, 1.5), builder.random_vector(heads, -1.0, 1.5));
    builder.plan.state_layers.push(state);
    let (x, taps, layer) = (projected, state.conv_taps, 0);
    builder.push("conv", Op::CausalConv { x, channels, weight, taps, layer, out: convolved });
    let (qkv, ab) = (convolved, projected);
    builder.push("delta", Op::GatedDelta { qkv, ab, a_offset, b_offset, a_log, dt_bias, layer, out: mixed });
    let (x, gate) = (mixed, projected);
    builder.push("norm", Op::GatedNorm { x, gate, gate_offset, heads, weight: norm, eps: 1e-6, out: gated });
    builder.finish()
}

#[test]
fn delta_net() {
    for index in 0..cases(12) {
        let mut rng = rng(12, index);
        let dims = [8, 16, 32, 40, 64, 96];
        let (key_dim, value_dim) = (rng.pick(&dims), rng.pick(&dims));
        let state = shape(&mut rng, key_dim, value_dim);
        let case = case(&mut rng, state);
        let lengths = lengths(&mut rng);
        verify(&state, &Forms::single(case), &Scenario::ragged(&mut rng, lengths));
    }
}

/// Heads of 128, which devices may have kernels of their own for.
#[test]
fn delta_net_of_common_heads() {
    for index in 0..cases(4) {
        let mut rng = rng(13, index);
        let state = shape(&mut rng, 128, 128);
        let case = case(&mut rng, state);
        let lengths = [rng.between(60, 70), rng.between(100, 150), rng.between(2, 80), rng.between(190, 260)];
        verify(&state, &Forms::single(case), &Scenario::ragged(&mut rng, lengths));
    }
}
