//! Temperature and the filters top-k, top-p and min-p.
//!
//! Candidates are ordered by (score descending, id ascending), a total order on finite scores, so that every filter
//! is a prefix of one list and partial selection finds the same prefix as a full sort.

use std::cmp::Ordering;

/// A token and its score: (logit - largest logit) / temperature, at most 0.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Candidate {
    pub(super) score: f32,
    pub(super) id: u32,
}

/// Ordered as the filters see it: likelier first, ties to the lower id.
pub(super) fn by_rank(a: &Candidate, b: &Candidate) -> Ordering {
    b.score.total_cmp(&a.score).then(a.id.cmp(&b.id))
}

/// What is asked of [`Filters::apply`].
#[derive(Debug, Clone, Copy)]
pub(super) struct Filters {
    /// 0 keeps all.
    pub(super) top_k: usize,
    /// 1 keeps all.
    pub(super) top_p: f32,
    /// 0 keeps all.
    pub(super) min_p: f32,
}

/// Candidates sorted first when looking for a nucleus; most are smaller.
const FIRST_NUCLEUS: usize = 256;

impl Filters {
    /// Keeps the candidates that pass: top-k, then top-p among those (probabilities renormalised), then min-p
    /// (relative to the likeliest). The likeliest candidate always stays.
    pub(super) fn apply(&self, candidates: &mut Vec<Candidate>) {
        if self.top_k > 0 && self.top_k < candidates.len() {
            candidates.select_nth_unstable_by(self.top_k - 1, by_rank);
            candidates.truncate(self.top_k);
        }
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
    fn keep_nucleus(&self, candidates: &mut Vec<Candidate>) {
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

fn weight(candidate: &Candidate) -> f64 {
    f64::from(candidate.score.exp())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The definition: sort everything, then cut.
    fn reference(filters: Filters, mut all: Vec<Candidate>) -> Vec<Candidate> {
        all.sort_by(by_rank);
        if filters.top_k > 0 {
            all.truncate(filters.top_k);
        }
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

    fn candidates(scores: &[f32]) -> Vec<Candidate> {
        let largest = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        (0..).zip(scores).map(|(id, s)| Candidate { score: s - largest, id }).collect()
    }

    fn kept(filters: Filters, all: &[Candidate]) -> Vec<Candidate> {
        let mut fast = all.to_vec();
        filters.apply(&mut fast);
        fast.sort_by(by_rank);
        fast
    }

    #[test]
    fn filters_one_by_one() {
        let all = candidates(&[0.0, 2.0, 2.0, 1.0]);
        let ids = |top_k, top_p, min_p| -> Vec<u32> {
            kept(Filters { top_k, top_p, min_p }, &all).iter().map(|c| c.id).collect()
        };
        assert_eq!(ids(0, 1.0, 0.0), [1, 2, 3, 0]);
        assert_eq!(ids(1, 1.0, 0.0), [1]);
        assert_eq!(ids(3, 1.0, 0.0), [1, 2, 3]);
        assert_eq!(ids(9, 1.0, 0.0), [1, 2, 3, 0]);
        // Probabilities 0.399, 0.399, 0.147, 0.054.
        assert_eq!(ids(0, 0.0, 0.0), [1]);
        assert_eq!(ids(0, 0.39, 0.0), [1]);
        assert_eq!(ids(0, 0.5, 0.0), [1, 2]);
        assert_eq!(ids(0, 0.9, 0.0), [1, 2, 3]);
        // Of the two likeliest, each has half.
        assert_eq!(ids(2, 0.5, 0.0), [1]);
        assert_eq!(ids(0, 1.0, 0.3), [1, 2, 3]);
        assert_eq!(ids(0, 1.0, 1.0), [1, 2]);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(400))]
        #[test]
        fn selection_equals_sorting(
            scores in prop::collection::vec(prop_oneof![-8.0f32..8.0, (-3i8..3).prop_map(f32::from)], 1..3000),
            top_k in prop_oneof![Just(0usize), 1usize..40, 1usize..3000],
            top_p in prop_oneof![Just(1.0f32), 0.0f32..1.0],
            min_p in prop_oneof![Just(0.0f32), 0.0f32..1.0],
        ) {
            let all = candidates(&scores);
            let filters = Filters { top_k, top_p, min_p };
            prop_assert_eq!(kept(filters, &all), reference(filters, all));
        }
    }
}
