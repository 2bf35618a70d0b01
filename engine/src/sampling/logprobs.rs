//! Log-probabilities of the model's own distribution.

use crate::engine::TokenLogprobs;

/// Log-probabilities of `token` and of the `top` likeliest tokens under the raw logits (before bias, penalties,
/// temperature and filters). Computed in f64 in the order of ids; ties go to the lower id.
///
/// A token that is out of range has log-probability minus infinity.
pub fn logprobs(logits: &[f32], token: u32, top: usize) -> TokenLogprobs {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|&l| f64::from(l - largest).exp()).sum();
    let log_sum = sum.ln();
    let logprob = |id: u32| match logits.get(id as usize) {
        Some(&logit) => (f64::from(logit - largest) - log_sum) as f32,
        None => f32::NEG_INFINITY,
    };
    TokenLogprobs {
        logprob: logprob(token),
        top: likeliest(logits, top).into_iter().map(|id| (id, logprob(id))).collect(),
    }
}

/// The ids of the `top` largest logits, best first.
fn likeliest(logits: &[f32], top: usize) -> Vec<u32> {
    if top == 0 {
        return Vec::new();
    }
    let rank = |&a: &u32, &b: &u32| logits[b as usize].total_cmp(&logits[a as usize]).then(a.cmp(&b));
    let mut ids: Vec<u32> = (0..).take(logits.len()).collect();
    if top < ids.len() {
        ids.select_nth_unstable_by(top - 1, rank);
        ids.truncate(top);
    }
    ids.sort_unstable_by(rank);
    ids
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probabilities_sum_to_one_and_rank_ties_by_id() {
        let logits = [1.0, 3.0, 3.0, -2.0, f32::NEG_INFINITY];
        let out = logprobs(&logits, 3, 9);
        assert_eq!(out.top.iter().map(|t| t.0).collect::<Vec<_>>(), [1, 2, 0, 3, 4]);
        let sum: f64 = out.top.iter().map(|t| f64::from(t.1).exp()).sum();
        assert!((sum - 1.0).abs() < 1e-6);
        assert_eq!(out.logprob, out.top[3].1);
        assert_eq!(out.top[4].1, f32::NEG_INFINITY);
        assert_eq!(logprobs(&logits, 1, 2).top.len(), 2);
        assert!(logprobs(&logits, 0, 0).top.is_empty());
        assert_eq!(logprobs(&logits, 77, 0).logprob, f32::NEG_INFINITY);
    }

    #[test]
    fn large_logits_do_not_overflow() {
        let out = logprobs(&[3e38, -3e38, 3e38], 0, 1);
        assert!((out.logprob + std::f32::consts::LN_2).abs() < 1e-6, "{out:?}");
        // The uniform distribution over a large vocabulary, to f32 accuracy.
        let n = 248_000u32;
        let out = logprobs(&vec![-7.25; n as usize], 5, 3);
        assert!((out.logprob + (f64::from(n)).ln() as f32).abs() < 1e-6);
        assert_eq!(out.top.iter().map(|t| t.0).collect::<Vec<_>>(), [0, 1, 2]);
    }
}
