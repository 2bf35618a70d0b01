//! The filters top-k, top-p and min-p.
//!
//! Top-k ranks tokens by (logit descending, id ascending), the others by (score descending, id ascending). Both are
//! total orders on finite numbers, so that partial selection finds the same prefix as a full sort. (Scores are rounded:
//! tokens of different logits may have one score. Logits do not depend on the temperature, so a device can rank them.)

use super::selection::Candidate;
use std::cmp::Ordering;

/// Keeps the `k` likeliest of all tokens.
pub(super) fn top_k(logits: &[f32], k: usize, candidates: &mut Vec<Candidate>) {
    candidates.clear();
    // Adding zero turns minus zero into zero.
    candidates.extend((0..).zip(logits).map(|(id, &logit)| Candidate { id, logit: logit + 0.0 }));
    if k < candidates.len() {
        candidates.select_nth_unstable_by(k - 1, by_logit);
        candidates.truncate(k);
    }
}

fn by_logit(a: &Candidate, b: &Candidate) -> Ordering {
    b.logit.total_cmp(&a.logit).then(a.id.cmp(&b.id))
}

/// A token and its score: (logit - largest logit) / temperature, at most 0.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Scored {
    pub(super) score: f32,
    pub(super) id: u32,
}

/// Likelier first, ties to the lower id.
pub(super) fn by_rank(a: &Scored, b: &Scored) -> Ordering {
    b.score.total_cmp(&a.score).then(a.id.cmp(&b.id))
}

/// What is asked of [`Filters::apply`].
#[derive(Debug, Clone, Copy)]
pub(super) struct Filters {
    /// 1 keeps all.
    pub(super) top_p: f32,
    /// 0 keeps all.
    pub(super) min_p: f32,
}

/// Candidates sorted first when looking for a nucleus; most are smaller.
const FIRST_NUCLEUS: usize = 256;

impl Filters {
    /// Whether every token passes.
    pub(super) fn keep_all(&self) -> bool {
        self.top_p >= 1.0 && self.min_p <= 0.0
    }

    /// Keeps the tokens that pass: top-p (probabilities of those given sum to one), then min-p (relative to the
    /// likeliest). The likeliest always stays.
    pub(super) fn apply(&self, candidates: &mut Vec<Scored>) {
        if self.top_p < 1.0 {
            self.keep_nucleus(candidates);
        }
        if self.min_p > 0.0 {
            candidates.retain(|c| c.score == 0.0 || c.score.exp() >= self.min_p);
        }
    }

    /// The shortest prefix of the ranking whose probability reaches `top_p`.
    ///
    /// The total is summed in the order of ids and the prefix in the order of rank, both in f64, so neither depends
    /// on how the candidates were selected.
    fn keep_nucleus(&self, candidates: &mut Vec<Scored>) {
        candidates.sort_unstable_by_key(|c| c.id);
        let total: f64 = candidates.iter().map(weight).sum();
        let wanted = f64::from(self.top_p) * total;
        let mut sorted = 0;
        let mut reached = 0.0;
        let mut size = FIRST_NUCLEUS;
        while sorted < candidates.len() {
            let end = size.min(candidates.len());
            let rest = &mut candidates[sorted..];
            if end - sorted < rest.len() {
                rest.select_nth_unstable_by(end - sorted - 1, by_rank);
            }
            rest[..end - sorted].sort_unstable_by(by_rank);
            for i in sorted..end {
                reached += weight(&candidates[i]);
                if reached >= wanted {
                    candidates.truncate(i + 1);
                    return;
                }
            }
            sorted = end;
            size = size.saturating_mul(8);
        }
    }
}

fn weight(candidate: &Scored) -> f64 {
    f64::from(candidate.score.exp())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The definition: sort everything, then cut.
    fn reference(k: usize, filters: Filters, logits: &[f32]) -> Vec<Scored> {
        let mut all: Vec<(u32, f32)> = (0..).zip(logits.iter().copied()).collect();
        all.sort_by(|a, b| b.1.partial_cmp(&a.1).unwrap().then(a.0.cmp(&b.0)));
        all.truncate(k);
        let mut all: Vec<Scored> = all.iter().map(|&(id, l)| Scored { score: scaled(l, logits), id }).collect();
        all.sort_by(by_rank);
        if filters.top_p < 1.0 {
            let mut by_id = all.clone();
            by_id.sort_by_key(|c| c.id);
            let wanted = f64::from(filters.top_p) * by_id.iter().map(weight).sum::<f64>();
            let mut reached = 0.0;
            let crossing = all.iter().position(|c| {
                reached += weight(c);
                reached >= wanted
            });
            all.truncate(crossing.map_or(all.len(), |i| i + 1));
        }
        all.retain(|c| c.score == 0.0 || c.score.exp() >= filters.min_p);
        all
    }

    fn scaled(logit: f32, logits: &[f32]) -> f32 {
        logit - logits.iter().copied().fold(f32::NEG_INFINITY, f32::max)
    }

    fn kept(k: usize, filters: Filters, logits: &[f32]) -> Vec<Scored> {
        let mut candidates = Vec::new();
        top_k(logits, k, &mut candidates);
        let score = |c: &Candidate| Scored { score: scaled(c.logit, logits), id: c.id };
        let mut fast: Vec<Scored> = candidates.iter().map(score).collect();
        filters.apply(&mut fast);
        fast.sort_by(by_rank);
        fast
    }

    #[test]
    fn filters_one_by_one() {
        let ids = |k, top_p, min_p| -> Vec<u32> {
            kept(k, Filters { top_p, min_p }, &[0.0, 2.0, 2.0, 1.0]).iter().map(|c| c.id).collect()
        };
        assert_eq!(ids(9, 1.0, 0.0), [1, 2, 3, 0]);
        assert_eq!(ids(1, 1.0, 0.0), [1]);
        assert_eq!(ids(3, 1.0, 0.0), [1, 2, 3]);
        // Probabilities 0.399, 0.399, 0.147, 0.054.
        assert_eq!(ids(9, 0.0, 0.0), [1]);
        assert_eq!(ids(9, 0.39, 0.0), [1]);
        assert_eq!(ids(9, 0.5, 0.0), [1, 2]);
        assert_eq!(ids(9, 0.9, 0.0), [1, 2, 3]);
        // Of the two likeliest, each has half.
        assert_eq!(ids(2, 0.5, 0.0), [1]);
        assert_eq!(ids(9, 1.0, 0.3), [1, 2, 3]);
        assert_eq!(ids(9, 1.0, 1.0), [1, 2]);
    }

    #[test]
    fn top_k_ranks_by_logit_even_where_scores_round_to_one_number() {
        let logits = [100.0, 1.0, 1.000_000_1];
        assert_eq!(scaled(logits[1], &logits), scaled(logits[2], &logits));
        let ids: Vec<u32> = kept(2, Filters { top_p: 1.0, min_p: 0.0 }, &logits).iter().map(|c| c.id).collect();
        assert_eq!(ids, [0, 2]);
        // Both zeros are one logit: the lower id stays.
        let mut candidates = Vec::new();
        top_k(&[-1.0, -0.0, 0.0], 1, &mut candidates);
        assert_eq!(candidates, [Candidate { id: 1, logit: 0.0 }]);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(400))]
        #[test]
        fn selection_equals_sorting(
            logits in prop::collection::vec(prop_oneof![-8.0f32..8.0, (-3i8..3).prop_map(f32::from)], 1..3000),
            k in prop_oneof![Just(usize::MAX), 1usize..40, 1usize..3000],
            top_p in prop_oneof![Just(1.0f32), 0.0f32..1.0],
            min_p in prop_oneof![Just(0.0f32), 0.0f32..1.0],
        ) {
            let filters = Filters { top_p, min_p };
            prop_assert_eq!(kept(k, filters, &logits), reference(k, filters, &logits));
        }
    }
}
