//! Operations that know one row only.

use super::case::Builder;
use super::scenario::Scenario;
use super::{Forms, lengths, rng, verify};
use crate::devices::cases;
use crate::random::Rng;
use atlas_engine::plan::Op;

fn scenario(rng: &mut Rng) -> Scenario {
    let lengths = lengths(rng);
    Scenario::ragged(rng, lengths)
}

#[test]
fn embed_and_gather() {
    for index in 0..cases(6) {
        let mut rng = rng(1, index);
        let hidden = 2 * rng.between(1, 150);
        let mut builder = Builder::new(&mut rng, hidden, true);
        builder.keep("residual", builder.plan.residual);
        let case = builder.finish();
        verify(&("hidden", hidden), &Forms::single(case), &scenario(&mut rng));
    }
}

#[test]
fn rms_norm() {
    for index in 0..cases(8) {
        let mut rng = rng(2, index);
        let (hidden, unit_offset) = (2 * rng.between(1, 400), rng.one_in(2));
        let mut builder = Builder::new(&mut rng, hidden, true);
        // Rows of very different sizes: epsilon matters in some.
        let x = builder.input("mixed", hidden, [1e-3, 1.0, 300.0][index as usize % 3]);
        let normed = builder.view("normed", hidden);
        builder.norm("norm", x, normed, unit_offset);
        let case = builder.finish();
        verify(&("hidden", hidden, "unit offset", unit_offset), &Forms::single(case), &scenario(&mut rng));
    }
}

#[test]
fn silu_mul() {
    for index in 0..cases(6) {
        let mut rng = rng(3, index);
        let width = 2 * rng.between(1, 300);
        let mut builder = Builder::new(&mut rng, 32, true);
        let gate_up = builder.input("projected", 2 * width, [1.0, 8.0, 60.0][index as usize % 3]);
        let out = builder.view("activated", width);
        builder.push("silu_mul", Op::SiluMul { gate_up, out });
        let case = builder.finish();
        verify(&("width", width), &Forms::single(case), &scenario(&mut rng));
    }
}
