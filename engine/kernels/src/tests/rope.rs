//! Rotary positions and the write into the cache.

use super::attention::stored as in_cache;
use super::{Random, assert_bits, each_isa, pools, reference, rounded};
use crate::kv::{KvElement, KvStore};
use crate::{KvDtype, KvLayer, KvScales, KvSegment, PAGE, QkNorm, QkvLayout, RopeArgs, rope_and_store};

/// Key and value of a position as the cache returns them.
fn stored(cache: &KvLayer, page: u32, head: usize, token: usize) -> (Vec<f32>, Vec<f32>) {
    fn read<T: KvElement>(cache: &KvLayer, k: &[T], v: &[T], [page, head, token]: [usize; 3]) -> (Vec<f32>, Vec<f32>) {
        let (k_at, v_at) = (cache.k_at(page, head), cache.v_at(page, head));
        let key = (0..cache.head_dim).map(|d| k[k_at + d * PAGE + token].to_f32()).collect();
        let value = (0..cache.v_dim).map(|d| v[v_at + token * cache.v_dim + d].to_f32()).collect();
        (key, value)
    }
    match &cache.store {
        KvStore::F32 { k, v } => read(cache, k, v, [page as usize, head, token]),
        KvStore::Bf16 { k, v } => read(cache, k, v, [page as usize, head, token]),
        KvStore::Fp8 { k, v } => read(cache, k, v, [page as usize, head, token]),
    }
}

#[test]
fn heads_are_normed_rotated_and_stored() {
    let mut random = Random::new(50);
    let pools = pools();
    let (heads, kv_heads, head_dim, v_dim) = (4, 2, 20, 12);
    // Gate after each query; gaps between the parts.
    let layout = QkvLayout {
        heads,
        kv_heads,
        head_dim,
        q_offset: 1,
        q_head_stride: 2 * head_dim,
        k_offset: 2 + heads * 2 * head_dim,
        v_offset: 5 + heads * 2 * head_dim + kv_heads * head_dim,
        v_dim,
    };
    let (rows, ld) = (27, layout.v_offset + kv_heads * v_dim + 2);
    let before = random.values(rows * ld);
    let (qw, kw) = (random.values(head_dim), random.values(head_dim));
    let inv_freq: Vec<f32> = (0..6).map(|i| 10_000_f32.powf(-(i as f32) / 6.0)).collect();
    let segments = [
        KvSegment { first_row: 1, rows: 20, start: 13, pages: &[6, 1, 4] },
        KvSegment { first_row: 22, rows: 5, start: 100_000, pages: &[&[9; 6250][..], &[5]].concat() },
    ];
    let mut positions = vec![77; rows];
    for segment in &segments {
        for row in 0..segment.rows {
            positions[segment.first_row + row] = (segment.start + row) as u32;
        }
    }
    let dtypes = [KvDtype::F32, KvDtype::Bf16, KvDtype::F32, KvDtype::Bf16, KvDtype::Fp8];
    for (case, dtype) in dtypes.into_iter().enumerate() {
        let scales = if dtype == KvDtype::Fp8 { KvScales { k: 0.02, v: 3.0 } } else { KvScales::default() };
        let norms = (case > 0).then_some(QkNorm { q: &qw, k: &kw, eps: 1e-6, unit_offset: case == 1 });
        let interleaved = case == 2;
        let (scaling, round) = (if case == 3 { 1.25 } else { 1.0 }, case >= 2);
        let args = RopeArgs { positions: &positions, inv_freq: &inv_freq, attention_scaling: scaling, interleaved };
        let rope = (case != 1).then_some(&args);
        let mut expected = before.clone();
        for r in 0..rows {
            for head in 0..heads + kv_heads {
                let (at, weight) = match head.checked_sub(heads) {
                    None => (layout.q_offset + head * layout.q_head_stride, &qw),
                    Some(head) => (layout.k_offset + head * head_dim, &kw),
                };
                let values = &mut expected[r * ld + at..][..head_dim];
                if let Some(norms) = norms {
                    let normed = reference::rms_norm(values, Some(weight), norms.unit_offset, norms.eps);
                    values.copy_from_slice(&normed);
                }
                if rope.is_some() {
                    reference::rotate(values, positions[r], &inv_freq, scaling, interleaved);
                }
                let values_rounded = rounded(values, round);
                values.copy_from_slice(&values_rounded);
            }
        }
        each_isa(|isa| {
            for pool in &pools {
                let mut cache = KvLayer::new(dtype, 10, kv_heads, head_dim, v_dim).with_scales(scales);
                let mut qkv = before.clone();
                rope_and_store(pool, &mut qkv, ld, rows, &layout, norms, rope, &segments, &mut cache, round);
                assert_bits(&qkv, &expected, &format!("case {case} on {isa}"));
                for segment in &segments {
                    for row in 0..segment.rows {
                        let position = segment.start + row;
                        for head in 0..kv_heads {
                            let page = segment.pages[position / PAGE];
                            let (key, value) = stored(&cache, page, head, position % PAGE);
                            let row = &expected[(segment.first_row + row) * ld..][..ld];
                            let (k, v) = (layout.k_offset + head * head_dim, layout.v_offset + head * v_dim);
                            assert_bits(&key, &in_cache(dtype, &row[k..k + head_dim], scales.k), "key");
                            assert_bits(&value, &in_cache(dtype, &row[v..v + v_dim], scales.v), "value");
                        }
                    }
                }
                // Page 0 belongs to nobody.
                assert_eq!(stored(&cache, 0, 0, 0), (vec![0.0; head_dim], vec![0.0; v_dim]));
            }
        });
    }
}

#[test]
fn rotation_keeps_lengths_and_positions_matter() {
    let inv_freq: Vec<f32> = (0..8).map(|i| 1e6_f32.powf(-(i as f32) / 8.0)).collect();
    let head = Random::new(51).values(20);
    let length = |x: &[f32]| x.iter().map(|x| x * x).sum::<f32>();
    for interleaved in [false, true] {
        for position in [0, 1, 4095, 262_143] {
            let mut rotated = head.clone();
            reference::rotate(&mut rotated, position, &inv_freq, 1.0, interleaved);
            assert!((length(&rotated) / length(&head) - 1.0).abs() < 1e-6);
            assert_eq!(rotated == head, position == 0);
            assert_eq!(rotated[16..], head[16..], "dims past the rotary ones");
        }
    }
}

#[test]
fn sizes_are_what_pages_hold() {
    assert_eq!(KvLayer::new(KvDtype::F32, 3, 2, 8, 4).bytes(), 3 * 2 * 16 * (8 + 4) * 4);
    assert_eq!(KvLayer::new(KvDtype::Bf16, 3, 2, 8, 4).bytes(), 3 * 2 * 16 * (8 + 4) * 2);
    assert_eq!(KvLayer::new(KvDtype::Fp8, 3, 2, 8, 4).bytes(), 3 * 2 * 16 * (8 + 4));
}

#[test]
fn fp8_is_the_nearest_e4m3() {
    let code = <u8 as KvElement>::from_f32;
    let numbers: Vec<f32> = (0..0x7f_u8).map(KvElement::to_f32).collect();
    for (byte, pair) in (0_u8..).zip(numbers.windows(2)) {
        let middle = (pair[0] + pair[1]) / 2.0;
        let even = byte + byte % 2;
        for (value, expected) in [
            (pair[0], byte),
            (middle, even),
            (f32::from_bits(middle.to_bits() - 1), byte),
            (f32::from_bits(middle.to_bits() + 1), byte + 1),
            (pair[1], byte + 1),
        ] {
            assert_eq!(code(value), expected, "{value}");
            assert_eq!(code(-value), expected | 0x80, "-{value}");
        }
    }
    for large in [449.0, 464.0, 480.0, 1e30, f32::INFINITY] {
        assert_eq!((code(large), code(-large)), (0x7e, 0xfe), "{large}");
    }
    assert_eq!(code(f32::NAN) & 0x7f, 0x7f);
    assert_eq!((code(f32::MIN_POSITIVE), code(-0.0)), (0, 0x80));
}
