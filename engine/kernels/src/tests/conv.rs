//! Causal convolution: one sequence in any chunks, beside others, is one result.

use super::{Random, assert_bits, chunks, each_isa, pools, reference, rounded};
use crate::{ConvRing, ConvSegment, causal_conv};

const TOKENS: usize = 200;

struct Case {
    channels: usize,
    taps: usize,
    capacity: usize,
    bias: bool,
    silu: bool,
    round: bool,
}

#[test]
fn every_chunking_gives_the_reference() {
    let mut random = Random::new(30);
    let pools = pools();
    let cases = [
        Case { channels: 1, taps: 1, capacity: 1, bias: false, silu: false, round: false },
        Case { channels: 20, taps: 4, capacity: 3, bias: false, silu: true, round: false },
        Case { channels: 150, taps: 4, capacity: 8, bias: true, silu: true, round: true },
        Case { channels: 33, taps: 9, capacity: 80, bias: true, silu: false, round: false },
    ];
    for case in cases {
        let Case { channels, taps, capacity, .. } = case;
        let (ldx, offset, ldo) = (channels + 5, 3, channels + 2);
        let weight = random.values(channels * taps);
        let bias = case.bias.then(|| random.values(channels));
        let x = [random.values(TOKENS * ldx), random.values(TOKENS * ldx)];
        let expected = x.each_ref().map(|x| {
            let mut out = vec![0.0; TOKENS * channels];
            for c in 0..channels {
                let channel: Vec<f32> = (0..TOKENS).map(|t| x[t * ldx + offset + c]).collect();
                let bias = bias.as_ref().map_or(0.0, |bias| bias[c]);
                let values = reference::conv(&channel, &weight[c * taps..(c + 1) * taps], bias);
                for (t, &value) in values.iter().enumerate() {
                    let value = if case.silu { reference::silu(value) } else { value };
                    out[t * channels + c] = rounded(&[value], case.round)[0];
                }
            }
            out
        });
        each_isa(|isa| {
            for (pool, kind) in pools.iter().zip([1, 7, 64, 0]) {
                let mut ring = ConvRing::new(5, capacity, channels);
                // Two sequences in one call, the second three steps behind, in slots that are not neighbours.
                let mut steps = chunks(TOKENS, kind, &mut random);
                let lag = vec![0..0; 3];
                let late: Vec<_> = lag.into_iter().chain(steps.clone()).collect();
                steps.resize(late.len(), 0..0);
                for (a, b) in steps.iter().zip(&late) {
                    let rows = a.len() + b.len();
                    let mut step_x = x[0][a.start * ldx..a.end * ldx].to_vec();
                    step_x.extend(&x[1][b.start * ldx..b.end * ldx]);
                    let segments = [
                        ConvSegment { first_row: 0, rows: a.len(), start: a.start, slot: 3 },
                        ConvSegment { first_row: a.len(), rows: b.len(), start: b.start, slot: 1 },
                    ];
                    let mut out = vec![0.0; rows * ldo];
                    causal_conv(
                        pool,
                        &step_x,
                        ldx,
                        offset,
                        &segments,
                        channels,
                        &weight,
                        bias.as_deref(),
                        taps,
                        case.silu,
                        &mut ring,
                        &mut out,
                        ldo,
                        case.round,
                    );
                    for (r, (sequence, t)) in a.clone().map(|t| (0, t)).chain(b.clone().map(|t| (1, t))).enumerate() {
                        let what = format!("{isa}, chunks {kind}, sequence {sequence}, token {t}");
                        let expected = &expected[sequence][t * channels..(t + 1) * channels];
                        assert_bits(&out[r * ldo..][..channels], expected, &what);
                    }
                }
            }
        });
    }
}

#[test]
fn a_position_can_be_computed_again() {
    let mut random = Random::new(31);
    let pool = &pools()[1];
    let (channels, taps) = (8, 4);
    let (x, weight) = (random.values(20 * channels), random.values(channels * taps));
    // The ring holds more than taps − 1 inputs, so the last rows may be taken back.
    let mut ring = ConvRing::new(1, 8, channels);
    let mut run = |start: usize, rows: usize| {
        let mut out = vec![0.0; rows * channels];
        let segment = ConvSegment { first_row: 0, rows, start, slot: 0 };
        let x = &x[start * channels..];
        causal_conv(
            pool,
            x,
            channels,
            0,
            &[segment],
            channels,
            &weight,
            None,
            taps,
            true,
            &mut ring,
            &mut out,
            channels,
            false,
        );
        out
    };
    let first = run(0, 12);
    let again = run(9, 11);
    assert_bits(&again[..3 * channels], &first[9 * channels..], "rows 9 to 12");
}
