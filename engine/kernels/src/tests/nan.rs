//! A NaN never turns into a number, wherever it stands.

use super::each_isa;
use crate::{AttentionArgs, KvDtype, KvLayer, KvSegment, Pool, QkvLayout, attention, rope_and_store};

#[test]
fn a_nan_key_spoils_every_later_row_and_no_earlier_one() {
    let pool = Pool::new(1);
    let layout = QkvLayout {
        heads: 1,
        kv_heads: 1,
        head_dim: 4,
        q_offset: 0,
        q_head_stride: 4,
        k_offset: 4,
        v_offset: 8,
        v_dim: 4,
    };
    let args = AttentionArgs { scale: 1.0, window: None, softcap: None };
    let pages: Vec<u32> = (0..40).collect();
    // Alone in the last split, in the first tile, and inside a later one.
    for (bad, dtype) in [(512, KvDtype::F32), (0, KvDtype::Bf16), (100, KvDtype::F32), (100, KvDtype::Fp8)] {
        let mut qkv = vec![0.5; 600 * 12];
        qkv[bad * 12 + 4] = f32::NAN;
        each_isa(|isa| {
            let mut cache = KvLayer::new(dtype, 40, 1, 4, 4);
            let segment = KvSegment { first_row: 0, rows: 600, start: 0, pages: &pages };
            rope_and_store(&pool, &mut qkv, 12, 600, &layout, None, None, &[segment], &mut cache, false);
            let mut out = vec![0.0; 600 * 4];
            attention(&pool, &qkv, 12, &layout, &[segment], &cache, &args, None, &mut out, 4, false);
            for (row, out) in out.chunks(4).enumerate() {
                assert!(out.iter().all(|value| value.is_nan() == (row >= bad)), "{isa}: key {bad}, row {row}: {out:?}");
            }
        });
    }
}
