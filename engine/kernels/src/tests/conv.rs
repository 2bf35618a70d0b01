//! Causal convolution: one sequence in any chunks, beside others, is one result.

use super::{Random, assert_bits, chunks, each_isa, pools, reference, rounded};
use crate::{ConvCache, ConvSegment, causal_conv};

const TOKENS: usize = 200;
/// Anchors of two sequences at the multiples of 64.
const ANCHORS: [[u32; 4]; 2] = [[0, 4, 1, 5], [0, 2, 6, 3]];

struct Case {
    channels: usize,
    taps: usize,
    capacity: usize,
    bias: bool,
    silu: bool,
    round: bool,
}

fn segment(first_row: usize, rows: std::ops::Range<usize>, slot: u32, anchors: &[u32]) -> ConvSegment<'_> {
    ConvSegment { first_row, rows: rows.len(), start: rows.start, slot, anchors: &anchors[rows.start / 64..] }
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
                let mut cache = ConvCache::new(5, capacity, 7, taps, channels);
                // Two sequences in one call, the second three steps behind, in slots that are not neighbours.
                let mut steps = chunks(TOKENS, kind, &mut random);
                let lag = vec![0..0; 3];
                let late: Vec<_> = lag.into_iter().chain(steps.clone()).collect();
                steps.resize(late.len(), 0..0);
                for (a, b) in steps.iter().zip(&late) {
                    let rows = a.len() + b.len();
                    let mut step_x = x[0][a.start * ldx..a.end * ldx].to_vec();
                    step_x.extend(&x[1][b.start * ldx..b.end * ldx]);
                    let segments = [segment(0, a.clone(), 3, &ANCHORS[0]), segment(a.len(), b.clone(), 1, &ANCHORS[1])];
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
                        &mut cache,
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

/// One sequence of eight channels and four taps.
struct Lone {
    x: Vec<f32>,
    weight: Vec<f32>,
    cache: ConvCache,
}

impl Lone {
    const CHANNELS: usize = 8;

    fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let (x, weight) = (random.values(TOKENS * Self::CHANNELS), random.values(4 * Self::CHANNELS));
        // Rings hold more than taps − 1 inputs, so that the last rows may be taken back.
        Self { x, weight, cache: ConvCache::new(3, 8, 7, 4, Self::CHANNELS) }
    }

    fn run(&mut self, rows: std::ops::Range<usize>, slot: u32, anchors: &[u32]) -> Vec<f32> {
        let (pool, channels) = (&pools()[1], Self::CHANNELS);
        let mut out = vec![0.0; rows.len() * channels];
        let x = &self.x[rows.start * channels..];
        let segments = [segment(0, rows, slot, anchors)];
        let (weight, cache) = (&self.weight, &mut self.cache);
        causal_conv(pool, x, channels, 0, &segments, channels, weight, None, 4, true, cache, &mut out, channels, false);
        out
    }
}

#[test]
fn a_position_can_be_computed_again() {
    let mut lone = Lone::new(31);
    let first = lone.run(0..66, 0, &ANCHORS[0]);
    for start in [61, 62, 64, 65] {
        // Also across an anchor, whose history is then written anew.
        let again = lone.run(start..66, 0, &ANCHORS[0]);
        assert_bits(&again, &first[start * Lone::CHANNELS..], "the rows before 66");
    }
}

#[test]
fn a_sequence_begins_anew_at_any_anchor_whatever_its_ring_holds() {
    let mut lone = Lone::new(32);
    let whole = lone.run(0..TOKENS, 0, &ANCHORS[0]);
    for chunk in [1, 2, 3, 50, 200] {
        for anchor in 0..4 {
            let mut start = anchor * 64;
            // Another sequence has left its inputs in the ring.
            lone.run(0..30, 1, &ANCHORS[1]);
            while start < TOKENS {
                let end = TOKENS.min(start + chunk);
                let rows = lone.run(start..end, 1, &ANCHORS[0]);
                let expected = &whole[start * Lone::CHANNELS..end * Lone::CHANNELS];
                assert_bits(&rows, expected, &format!("anchor {anchor}, chunks of {chunk}, from {start}"));
                start = end;
            }
        }
    }
}

#[test]
fn of_neighbouring_anchors_in_one_slot_the_last_keeps_its_history() {
    let mut lone = Lone::new(33);
    let whole = lone.run(0..TOKENS, 0, &ANCHORS[0]);
    lone.run(0..TOKENS, 2, &[0, 2, 2, 3]);
    let rows = lone.run(128..TOKENS, 1, &[0, 0, 2, 6]);
    assert_bits(&rows, &whole[128 * Lone::CHANNELS..], "from 128");
}
