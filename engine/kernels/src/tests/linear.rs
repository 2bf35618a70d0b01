//! Linear layers and packed weights.

use half::{bf16, f16};

use super::{Random, assert_bits, each_isa, pools, reference, rounded};
use crate::{Dense, LinearPart, PackedMatrix, Pool, e2m1_to_f32, e4m3_to_f32, linear};

/// A packed weight and what the reference knows about it.
struct Weight {
    packed: PackedMatrix,
    rows: Vec<Row>,
}

enum Row {
    Dense(Vec<f32>),
    Nvfp4 { codes: Vec<f32>, scales: Vec<f32>, global: f32 },
}

impl Row {
    fn dot(&self, x: &[f32]) -> f32 {
        match self {
            Row::Dense(w) => reference::dense_dot(x, w),
            Row::Nvfp4 { codes, scales, global } => reference::nvfp4_dot(x, codes, scales, *global),
        }
    }

    fn values(&self) -> Vec<f32> {
        match self {
            Row::Dense(w) => w.clone(),
            Row::Nvfp4 { codes, scales, global } => {
                codes.iter().enumerate().map(|(k, code)| (code * scales[k / 16]) * global).collect()
            }
        }
    }
}

fn dense(dtype: Dense, n: usize, k: usize, random: &mut Random) -> Weight {
    let mut bytes = Vec::new();
    let rows = (0..n)
        .map(|_| {
            let row = (0..k).map(|_| {
                let value = random.value();
                match dtype {
                    Dense::F32 => {
                        bytes.extend(value.to_le_bytes());
                        value
                    }
                    Dense::F16 => {
                        bytes.extend(f16::from_f32(value).to_le_bytes());
                        f16::from_f32(value).to_f32()
                    }
                    Dense::Bf16 => {
                        bytes.extend(bf16::from_f32(value).to_le_bytes());
                        bf16::from_f32(value).to_f32()
                    }
                }
            });
            Row::Dense(row.collect())
        })
        .collect();
    Weight { packed: PackedMatrix::from_dense(dtype, n, k, &bytes), rows }
}

fn nvfp4(n: usize, k: usize, random: &mut Random) -> Weight {
    let packed = random.byte_vec(n * k / 2);
    // Any scale but NaN, signs and subnormals included.
    let scales: Vec<u8> = random.byte_vec(n * k / 16).iter().map(|&b| if b & 0x7f == 0x7f { 1 } else { b }).collect();
    let global = 0.000_713;
    let rows = (0..n)
        .map(|row| {
            let nibble = |column: usize| packed[(row * k + column) / 2] >> (4 * (column % 2));
            Row::Nvfp4 {
                codes: (0..k).map(|column| e2m1_to_f32(nibble(column))).collect(),
                scales: scales[row * k / 16..(row + 1) * k / 16].iter().map(|&b| e4m3_to_f32(b)).collect(),
                global,
            }
        })
        .collect();
    Weight { packed: PackedMatrix::from_nvfp4(n, k, &packed, &scales, global), rows }
}

#[test]
fn formats_decode_to_their_definition() {
    assert_eq!((0..8).map(e2m1_to_f32).collect::<Vec<_>>(), [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]);
    for byte in 0..=255_u8 {
        let sign = if byte & 0x80 == 0 { 1.0 } else { -1.0 };
        assert_eq!(e2m1_to_f32(byte), if byte & 8 == 0 { 1.0 } else { -1.0 } * e2m1_to_f32(byte & 7));
        let (exponent, mantissa) = (i32::from(byte >> 3 & 15), f32::from(byte & 7));
        let expected = match (exponent, byte & 7) {
            (15, 7) => f32::NAN,
            (0, _) => sign * mantissa / 8.0 * 2.0_f32.powi(-6),
            _ => sign * (1.0 + mantissa / 8.0) * 2.0_f32.powi(exponent - 7),
        };
        assert_bits(&[e4m3_to_f32(byte)], &[expected], "e4m3");
    }
}

#[test]
fn rows_are_exact() {
    let mut random = Random::new(1);
    for (n, k) in [(1, 1), (16, 2), (17, 33), (40, 64)] {
        let mut weights: Vec<_> =
            [Dense::F32, Dense::F16, Dense::Bf16].map(|dtype| dense(dtype, n, k, &mut random)).into();
        if k % 16 == 0 {
            weights.push(nvfp4(n, k, &mut random));
        }
        for weight in weights {
            let mut out = vec![f32::NAN; k];
            for (n, row) in weight.rows.iter().enumerate() {
                weight.packed.row(n, &mut out);
                assert_bits(&out, &row.values(), "row");
            }
        }
    }
}

#[test]
fn weights_stay_small() {
    let mut random = Random::new(2);
    let (n, k) = (64, 128);
    assert_eq!(dense(Dense::Bf16, n, k, &mut random).packed.bytes(), n * k * 2);
    assert_eq!(dense(Dense::F16, n, k, &mut random).packed.bytes(), n * k * 2);
    assert_eq!(dense(Dense::F32, n, k, &mut random).packed.bytes(), n * k * 4);
    assert_eq!(nvfp4(n, k, &mut random).packed.bytes(), n * k / 2 + n * k / 16 + 4);
}

#[test]
fn every_row_count_isa_and_thread_count_gives_the_reference() {
    let mut random = Random::new(3);
    let pools = pools();
    let shapes = [(1, 16), (15, 32), (67, 272), (131, 48)];
    let odd = [(1, 1), (33, 7), (70, 515)];
    let mut weights: Vec<_> = shapes.map(|(n, k)| nvfp4(n, k, &mut random)).into();
    for dtype in [Dense::F32, Dense::F16, Dense::Bf16] {
        weights.extend(odd.map(|(n, k)| dense(dtype, n, k, &mut random)));
    }
    for (w, weight) in weights.iter().enumerate() {
        let (n, k) = (weight.packed.n(), weight.packed.k());
        let (ldx, ldo) = (k + 3, n + 5);
        let x = random.values(129 * ldx);
        let expected: Vec<f32> = (0..129)
            .flat_map(|r| weight.rows.iter().map(|row| row.dot(&x[r * ldx..r * ldx + k])).collect::<Vec<_>>())
            .collect();
        each_isa(|isa| {
            for (p, pool) in pools.iter().enumerate() {
                for rows in [1, 2, 3, 5, 8, 17, 64, 129] {
                    if rows > 17 && p % 2 == 0 {
                        continue;
                    }
                    let mut out = vec![7.0; rows * ldo];
                    let part = LinearPart { weight: &weight.packed, bias: None, column: 2 };
                    linear(pool, &x, ldx, rows, &[part], &mut out, ldo, false, false);
                    for r in 0..rows {
                        let what = format!("weight {w} on {isa}, {} threads, row {r} of {rows}", pool.threads());
                        assert_bits(&out[r * ldo + 2..][..n], &expected[r * n..(r + 1) * n], &what);
                        assert_bits(&out[r * ldo..][..2], &[7.0; 2], "columns before");
                        assert_bits(&out[r * ldo + 2 + n..(r + 1) * ldo], &[7.0; 3], "columns after");
                    }
                }
            }
        });
    }
}

#[test]
fn parts_bias_accumulation_and_rounding() {
    let mut random = Random::new(4);
    let pool = Pool::new(2);
    let k = 48;
    let weights = [nvfp4(21, k, &mut random), dense(Dense::Bf16, 5, k, &mut random), nvfp4(16, k, &mut random)];
    let biases = [Some(random.values(21)), None, Some(random.values(16))];
    let columns = [20, 3, 50];
    let (rows, ldo) = (7, 70);
    let x = random.values(rows * k);
    let before = random.values(rows * ldo);
    let parts: Vec<_> = (0..3)
        .map(|i| LinearPart { weight: &weights[i].packed, bias: biases[i].as_deref(), column: columns[i] })
        .collect();
    each_isa(|isa| {
        for (accumulate, round) in [(false, false), (true, false), (false, true), (true, true)] {
            let mut expected = before.clone();
            for r in 0..rows {
                for i in 0..3 {
                    for (n, row) in weights[i].rows.iter().enumerate() {
                        let mut value = row.dot(&x[r * k..(r + 1) * k]);
                        value += biases[i].as_ref().map_or(0.0, |bias| bias[n]);
                        let slot = &mut expected[r * ldo + columns[i] + n];
                        value = if accumulate { *slot + value } else { value };
                        *slot = rounded(&[value], round)[0];
                    }
                }
            }
            let mut out = before.clone();
            linear(&pool, &x, k, rows, &parts, &mut out, ldo, accumulate, round);
            assert_bits(&out, &expected, &format!("{isa}, accumulate {accumulate}, round {round}"));
        }
    });
}

#[test]
fn a_nan_scale_is_not_taken_for_a_number() {
    let (packed, pool) = ([0x22; 16], Pool::new(1));
    let weight = PackedMatrix::from_nvfp4(2, 16, &packed, &[0x38, 0x7f], 2.0);
    let mut row = [0.0; 16];
    weight.row(0, &mut row);
    assert_bits(&row, &[2.0; 16], "a sound row");
    weight.row(1, &mut row);
    assert!(row.iter().all(|w| w.is_nan()));
    each_isa(|isa| {
        let mut out = [0.0; 2];
        let part = LinearPart { weight: &weight, bias: None, column: 0 };
        linear(&pool, &[1.0; 16], 16, 1, &[part], &mut out, 2, false, false);
        assert!(out.iter().all(|value| value.is_nan()), "{isa}: {out:?}");
    });
}

#[test]
fn sums_are_close_to_f64() {
    let mut random = Random::new(5);
    let pool = Pool::new(1);
    let k = 4096;
    for weight in [nvfp4(16, k, &mut random), dense(Dense::Bf16, 16, k, &mut random)] {
        let x = random.values(k);
        let mut out = vec![0.0; 16];
        let part = LinearPart { weight: &weight.packed, bias: None, column: 0 };
        linear(&pool, &x, k, 1, &[part], &mut out, 16, false, false);
        for (n, row) in weight.rows.iter().enumerate() {
            let terms = row.values().into_iter().zip(&x).map(|(w, &x)| f64::from(w) * f64::from(x));
            let (sum, magnitude) = terms.fold((0.0, 0.0), |(sum, size), term| (sum + term, size + term.abs()));
            assert!((f64::from(out[n]) - sum).abs() < 2e-7 * magnitude, "row {n}: {} for {sum}", out[n]);
        }
    }
}

#[test]
#[should_panic(expected = "overlap")]
fn overlapping_parts_are_refused() {
    let mut random = Random::new(6);
    let weight = dense(Dense::F32, 4, 4, &mut random);
    let part = |column| LinearPart { weight: &weight.packed, bias: None, column };
    linear(&Pool::new(1), &[0.0; 4], 4, 1, &[part(0), part(3)], &mut [0.0; 8], 8, false, false);
}
