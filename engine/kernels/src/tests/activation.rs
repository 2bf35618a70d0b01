//! Element-wise operations.

use super::{Random, assert_bits, each_isa, pools, reference, rounded};
use crate::{GateLayout, add, sigmoid_mul, silu_mul};

#[test]
fn silu_mul_matches_the_reference() {
    let mut random = Random::new(20);
    let pools = pools();
    for width in [1, 13, 64, 5000] {
        let (rows, ld, ldo) = (3, 2 * width + 3, width + 2);
        let x: Vec<f32> = random.values(rows * ld).iter().map(|x| x * 8.0).collect();
        for round in [false, true] {
            let mut expected = vec![5.0; rows * ldo];
            for r in 0..rows {
                for i in 0..width {
                    let value = reference::silu(x[r * ld + i]) * x[r * ld + width + i];
                    expected[r * ldo + i] = rounded(&[value], round)[0];
                }
            }
            each_isa(|isa| {
                for pool in &pools {
                    let mut out = vec![5.0; rows * ldo];
                    silu_mul(pool, &x, ld, rows, width, &mut out, ldo, round);
                    assert_bits(&out, &expected, &format!("{isa}, width {width}"));
                }
            });
        }
    }
}

#[test]
fn sigmoid_mul_reads_gates_between_queries() {
    let mut random = Random::new(21);
    let pools = pools();
    let (rows, heads, head_dim) = (5, 3, 20);
    let (ldx, ldg) = (heads * head_dim + 1, 2 * heads * head_dim + 9);
    let layout = GateLayout { offset: 4 + head_dim, head_stride: 2 * head_dim, head_dim, heads };
    let before = random.values(rows * ldx);
    let gate: Vec<f32> = random.values(rows * ldg).iter().map(|x| x * 9.0).collect();
    for round in [false, true] {
        let mut expected = before.clone();
        for r in 0..rows {
            for h in 0..heads {
                for d in 0..head_dim {
                    let slot = &mut expected[r * ldx + h * head_dim + d];
                    let gate = gate[r * ldg + layout.offset + h * layout.head_stride + d];
                    *slot = rounded(&[reference::sigmoid(gate) * *slot], round)[0];
                }
            }
        }
        each_isa(|isa| {
            for pool in &pools {
                let mut x = before.clone();
                sigmoid_mul(pool, &mut x, ldx, &gate, ldg, &layout, rows, round);
                assert_bits(&x, &expected, isa);
            }
        });
    }
}

#[test]
fn add_covers_exactly_n_values() {
    let mut random = Random::new(22);
    let pools = pools();
    for n in [0, 1, 17, 9001] {
        let (before, y) = (random.values(n + 3), random.values(n + 3));
        for round in [false, true] {
            let mut expected = before.clone();
            for i in 0..n {
                expected[i] = rounded(&[before[i] + y[i]], round)[0];
            }
            each_isa(|isa| {
                for pool in &pools {
                    let mut x = before.clone();
                    add(pool, &mut x, &y, n, round);
                    assert_bits(&x, &expected, isa);
                }
            });
        }
    }
}
