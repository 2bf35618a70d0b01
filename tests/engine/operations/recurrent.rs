//! The gated delta net: causal convolution, gated delta rule and gated norm on one fused projection, as models have
//! them. Devices may compute them together; either way each of the three is observed and answers for itself.

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

/// The same case twice: the three operations apart, and as devices join them.
fn forms(rng: &mut Rng, state: StateLayerSpec) -> Forms {
    let seed = rng.clone();
    Forms::both(|apart| case(&mut seed.clone(), state, apart))
}

fn case(rng: &mut Rng, state: StateLayerSpec, apart: bool) -> Case {
    let (channels, heads, width) = (state.conv_channels, state.value_heads, state.value_heads * state.value_dim);
    let (gate_offset, a_offset, b_offset) = (channels, channels + width, channels + width + heads);
    let mut builder = Builder::new(rng, 32, apart);
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
    builder.keep("convolved", convolved);
    let (qkv, ab) = (convolved, projected);
    builder.push("delta", Op::GatedDelta { qkv, ab, a_offset, b_offset, a_log, dt_bias, layer, out: mixed });
    builder.keep("mixed", mixed);
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
        let forms = forms(&mut rng, state);
        let lengths = lengths(&mut rng);
        verify(&state, &forms, &Scenario::ragged(&mut rng, lengths));
    }
}

/// Heads of 128, which devices may have kernels of their own for: few of them and, first, as many as a large model has.
#[test]
fn delta_net_of_common_heads() {
    for index in 0..cases(4) {
        let mut rng = rng(13, index);
        let (key_heads, group) = if index == 0 { (16, 3) } else { (rng.between(1, 3), rng.between(1, 4)) };
        let (value_heads, dim) = (key_heads * group, 128);
        let conv_channels = (2 * key_heads + value_heads) * dim;
        let state =
            StateLayerSpec { key_heads, value_heads, key_dim: dim, value_dim: dim, conv_channels, conv_taps: 4 };
        let forms = forms(&mut rng, state);
        let lengths = match index {
            0 => [2, rng.between(60, 75), 10, rng.between(100, 140)],
            _ => [rng.between(60, 70), rng.between(100, 150), rng.between(2, 80), rng.between(190, 260)],
        };
        verify(&state, &forms, &Scenario::ragged(&mut rng, lengths));
    }
}
