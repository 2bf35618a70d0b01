//! Attention: any chunks, pages, neighbours, threads and instruction set give the reference's bits.

use super::{Random, assert_bits, chunks, each_isa, pools, reference, rounded};
use crate::kv::KvElement;
use crate::{AttentionArgs, KvDtype, KvLayer, KvScales, KvSegment, PAGE, Pool, QkvLayout, attention, rope_and_store};

struct Case {
    dtype: KvDtype,
    scales: KvScales,
    tokens: usize,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    v_dim: usize,
    args: AttentionArgs,
    sinks: bool,
    round: bool,
}

impl Case {
    fn layout(&self) -> QkvLayout {
        let q_head_stride = 2 * self.head_dim;
        let k_offset = 3 + self.heads * q_head_stride;
        QkvLayout {
            heads: self.heads,
            kv_heads: self.kv_heads,
            head_dim: self.head_dim,
            q_offset: 3,
            q_head_stride,
            k_offset,
            v_offset: k_offset + self.kv_heads * self.head_dim,
            v_dim: self.v_dim,
        }
    }

    fn ld(&self) -> usize {
        self.layout().v_offset + self.kv_heads * self.v_dim + 1
    }

    fn width(&self) -> usize {
        self.heads * self.v_dim
    }

    /// The reference's output of a sequence.
    fn expected(&self, qkv: &[f32], sinks: Option<&[f32]>) -> Vec<f32> {
        let (layout, ld) = (self.layout(), self.ld());
        let mut out = vec![0.0; self.tokens * self.width()];
        for kv_head in 0..self.kv_heads {
            let part = |offset: usize, dim: usize, scale: f32| {
                let row = |t: usize| &qkv[t * ld + offset + kv_head * dim..][..dim];
                (0..self.tokens).map(|t| stored(self.dtype, row(t), scale)).collect::<Vec<_>>()
            };
            let keys = part(layout.k_offset, self.head_dim, self.scales.k);
            let values = part(layout.v_offset, self.v_dim, self.scales.v);
            let group = self.heads / self.kv_heads;
            for head in kv_head * group..(kv_head + 1) * group {
                for t in 0..self.tokens {
                    let q = &qkv[t * ld + layout.q_offset + head * layout.q_head_stride..][..self.head_dim];
                    let history = reference::History { keys: &keys[..=t], values: &values[..=t] };
                    let AttentionArgs { scale, window, softcap } = self.args;
                    let scale = scale * self.scales.k;
                    let mut row =
                        reference::attend(q, &history, scale, window, softcap, sinks.map(|sinks| sinks[head]));
                    row.iter_mut().for_each(|value| *value *= self.scales.v);
                    out[t * self.width() + head * self.v_dim..][..self.v_dim]
                        .copy_from_slice(&rounded(&row, self.round));
                }
            }
        }
        out
    }
}

/// The numbers that a cache holds of some values.
pub(super) fn stored(dtype: KvDtype, values: &[f32], scale: f32) -> Vec<f32> {
    match dtype {
        KvDtype::F32 => values.to_vec(),
        KvDtype::Bf16 => rounded(values, true),
        KvDtype::Fp8 => {
            values.iter().map(|value| <u8 as KvElement>::from_f32(value * (1.0 / scale)).to_f32()).collect()
        }
    }
}

fn cases() -> Vec<Case> {
    let plain = AttentionArgs { scale: 0.31, window: None, softcap: None };
    let base = Case {
        dtype: KvDtype::F32,
        scales: KvScales::default(),
        tokens: 150,
        heads: 2,
        kv_heads: 1,
        head_dim: 16,
        v_dim: 16,
        args: plain,
        sinks: false,
        round: false,
    };
    vec![
        Case { tokens: 1100, ..base },
        Case { dtype: KvDtype::Bf16, heads: 6, kv_heads: 2, head_dim: 20, v_dim: 36, round: true, sinks: true, ..base },
        Case { args: AttentionArgs { window: Some(37), ..plain }, heads: 3, kv_heads: 3, v_dim: 4, ..base },
        Case {
            tokens: 700,
            args: AttentionArgs { window: Some(530), softcap: Some(2.5), ..plain },
            sinks: true,
            ..base
        },
        Case { dtype: KvDtype::Bf16, args: AttentionArgs { window: Some(1), ..plain }, head_dim: 4, v_dim: 64, ..base },
        Case { dtype: KvDtype::Fp8, heads: 6, kv_heads: 2, head_dim: 20, v_dim: 36, round: true, sinks: true, ..base },
        Case {
            dtype: KvDtype::Fp8,
            scales: KvScales { k: 0.03, v: 0.7 },
            tokens: 600,
            args: AttentionArgs { window: Some(530), ..plain },
            ..base
        },
    ]
}

#[test]
fn every_chunking_and_page_order_gives_the_reference() {
    let mut random = Random::new(60);
    let pools = pools();
    for (number, case) in cases().iter().enumerate() {
        let (layout, ld, tokens) = (case.layout(), case.ld(), case.tokens);
        let sequences = [0, 1].map(|_| random.values(tokens * ld).iter().map(|x| x * 3.0).collect::<Vec<_>>());
        let sinks = case.sinks.then(|| random.values(case.heads));
        let expected = sequences.each_ref().map(|qkv| case.expected(qkv, sinks.as_deref()));
        // Both sequences draw their pages from one shuffled cache; what lies there before is not zero.
        let blocks = tokens.div_ceil(PAGE);
        let mut order: Vec<u32> = (0..2 * blocks as u32).collect();
        for i in (1..order.len()).rev() {
            order.swap(i, random.below(i + 1));
        }
        let tables = [&order[..blocks], &order[blocks..]];
        each_isa(|isa| {
            for (i, kind) in [1, 7, 64, tokens, 0].into_iter().enumerate() {
                if isa == "Portable" && kind == 1 && tokens > 500 {
                    continue;
                }
                let pool = &pools[i % 4];
                let mut cache = dirty_cache(case, 2 * blocks, pool);
                let mut steps = chunks(tokens, kind, &mut random);
                let late: Vec<_> = std::iter::once(0..0).chain(steps.clone()).collect();
                steps.push(0..0);
                for (a, b) in steps.iter().zip(&late) {
                    let mut qkv = sequences[0][a.start * ld..a.end * ld].to_vec();
                    qkv.extend(&sequences[1][b.start * ld..b.end * ld]);
                    let segments = [
                        KvSegment { first_row: 0, rows: a.len(), start: a.start, pages: tables[0] },
                        KvSegment { first_row: a.len(), rows: b.len(), start: b.start, pages: tables[1] },
                    ];
                    let rows = a.len() + b.len();
                    let ldo = case.width() + 2;
                    let mut out = vec![0.0; rows * ldo];
                    rope_and_store(pool, &mut qkv, ld, rows, &layout, None, None, &segments, &mut cache, false);
                    attention(
                        pool,
                        &qkv,
                        ld,
                        &layout,
                        &segments,
                        &cache,
                        &case.args,
                        sinks.as_deref(),
                        &mut out,
                        ldo,
                        case.round,
                    );
                    for (r, (sequence, t)) in a.clone().map(|t| (0, t)).chain(b.clone().map(|t| (1, t))).enumerate() {
                        let what = format!("case {number} on {isa}, chunks {kind}, sequence {sequence}, token {t}");
                        let expected = &expected[sequence][t * case.width()..][..case.width()];
                        assert_bits(&out[r * ldo..][..case.width()], expected, &what);
                    }
                }
            }
        });
    }
}

/// A cache whose pages hold NaN from an earlier tenant.
fn dirty_cache(case: &Case, pages: usize, pool: &Pool) -> KvLayer {
    let mut cache = KvLayer::new(case.dtype, pages, case.kv_heads, case.head_dim, case.v_dim).with_scales(case.scales);
    let table: Vec<u32> = (0..pages as u32).collect();
    let rows = pages * PAGE;
    let mut qkv = vec![f32::NAN; rows * case.ld()];
    let segment = KvSegment { first_row: 0, rows, start: 0, pages: &table };
    rope_and_store(pool, &mut qkv, case.ld(), rows, &case.layout(), None, None, &[segment], &mut cache, false);
    cache
}

#[test]
fn a_window_needs_no_pages_behind_it() {
    let mut random = Random::new(61);
    let pool = Pool::new(1);
    let case = Case { args: AttentionArgs { scale: 1.0, window: Some(20), softcap: None }, ..cases().swap_remove(0) };
    let (layout, ld) = (case.layout(), case.ld());
    let mut qkv = random.values(200 * ld);
    let mut cache = KvLayer::new(KvDtype::F32, 13, 1, 16, 16);
    let whole: Vec<u32> = (0..13).collect();
    let all = KvSegment { first_row: 0, rows: 200, start: 0, pages: &whole };
    rope_and_store(&pool, &mut qkv, ld, 200, &layout, None, None, &[all], &mut cache, false);
    let run = |pages: &[u32]| {
        let mut out = vec![0.0; 200 * case.width()];
        let segment = KvSegment { first_row: 199, rows: 1, start: 199, pages };
        attention(&pool, &qkv, ld, &layout, &[segment], &cache, &case.args, None, &mut out, case.width(), false);
        out
    };
    let mut freed = whole.clone();
    freed[..11].fill(u32::MAX);
    assert_bits(&run(&freed), &run(&whole), "freed pages");
}

#[test]
fn the_reference_is_close_to_plain_soft_max() {
    let mut random = Random::new(62);
    for case in cases().iter().take(3) {
        let (tokens, dim) = (300, case.head_dim);
        let keys: Vec<_> = (0..tokens).map(|_| random.values(dim)).collect();
        let values: Vec<_> = (0..tokens).map(|_| random.values(case.v_dim)).collect();
        let q = random.values(dim);
        let history = reference::History { keys: &keys, values: &values };
        let got = reference::attend(&q, &history, case.args.scale, case.args.window, None, Some(0.7));
        let begin = case.args.window.map_or(0, |window| tokens - window);
        let weights: Vec<f64> = keys[begin..]
            .iter()
            .map(|key| key.iter().zip(&q).map(|(&k, &q)| f64::from(k) * f64::from(q)).sum::<f64>())
            .map(|score| (score * f64::from(case.args.scale)).exp())
            .collect();
        let total: f64 = weights.iter().sum::<f64>() + 0.7_f64.exp();
        for (d, &got) in got.iter().enumerate() {
            let exact: f64 =
                weights.iter().zip(&values[begin..]).map(|(w, v)| w * f64::from(v[d])).sum::<f64>() / total;
            assert!((f64::from(got) - exact).abs() < 2e-6, "{got} for {exact}");
        }
    }
}
