//! RMS norms.

use super::{Random, assert_bits, each_isa, pools, reference, rounded};
use crate::{gated_rms_norm, rms_norm};

#[test]
fn rms_norm_matches_the_reference() {
    let mut random = Random::new(10);
    let pools = pools();
    for width in [1, 4, 16, 20, 100, 1000] {
        let (rows, ldx, ldo) = (9, width + 2, width + 3);
        let x = random.values(rows * ldx);
        let weight = random.values(width);
        for (weight, unit) in [(None, false), (Some(&weight[..]), false), (Some(&weight[..]), true)] {
            for round in [false, true] {
                each_isa(|isa| {
                    for pool in &pools {
                        let mut out = vec![5.0; rows * ldo];
                        rms_norm(pool, &x, ldx, rows, width, weight, unit, 1e-5, &mut out, ldo, round);
                        for r in 0..rows {
                            let row = reference::rms_norm(&x[r * ldx..][..width], weight, unit, 1e-5);
                            let what = format!("{isa}, width {width}, row {r}");
                            assert_bits(&out[r * ldo..][..width], &rounded(&row, round), &what);
                        }
                        assert_eq!(out[width..ldo], [5.0; 3], "columns outside the row");
                    }
                });
            }
        }
    }
}

#[test]
fn gated_norm_matches_the_reference() {
    let mut random = Random::new(11);
    let pools = pools();
    for (heads, dim) in [(1, 4), (3, 20), (5, 128)] {
        let (rows, width) = (11, heads * dim);
        let (ldg, gate_offset, ldo) = (width + 7, 4, width + 1);
        let x = random.values(rows * width);
        let gate: Vec<f32> = random.values(rows * ldg).iter().map(|x| x * 6.0).collect();
        let weight = random.values(dim);
        for (sigmoid, round) in [(false, false), (true, false), (false, true)] {
            let mut expected = vec![5.0; rows * ldo];
            for r in 0..rows {
                for h in 0..heads {
                    let row = reference::rms_norm(&x[r * width + h * dim..][..dim], Some(&weight), false, 1e-6);
                    for (d, value) in row.iter().enumerate() {
                        let z = gate[r * ldg + gate_offset + h * dim + d];
                        let value = value * if sigmoid { reference::sigmoid(z) } else { reference::silu(z) };
                        expected[r * ldo + h * dim + d] = rounded(&[value], round)[0];
                    }
                }
            }
            each_isa(|isa| {
                for pool in &pools {
                    let mut out = vec![5.0; rows * ldo];
                    gated_rms_norm(
                        pool,
                        &x,
                        &gate,
                        ldg,
                        gate_offset,
                        rows,
                        heads,
                        dim,
                        &weight,
                        1e-6,
                        sigmoid,
                        &mut out,
                        ldo,
                        round,
                    );
                    assert_bits(&out, &expected, &format!("{isa}, {heads} x {dim}"));
                }
            });
        }
    }
}

#[test]
fn sum_of_squares_is_close_to_f64() {
    let x = Random::new(12).values(5000);
    let exact: f64 = x.iter().map(|&x| f64::from(x).powi(2)).sum();
    assert!((f64::from(reference::sum_squares(&x)) / exact - 1.0).abs() < 1e-6);
}
