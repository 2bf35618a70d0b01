//! The filters top-n-sigma, top-k, typical, top-p and min-p.
//!
//! Top-n-sigma and top-k look at logits and rank tokens by (logit descending, id ascending); top-p and min-p rank them
//! by (score descending, id ascending), typical by (distance ascending, id ascending). All are total orders on finite
//! numbers, so that partial selection finds the same prefix as a full sort. (Scores are rounded: tokens of different
//! logits may have one score. Logits do not depend on the temperature, so a device can rank them.)

use super::SamplingParams;
use super::selection::Candidate;
use std::cmp::Ordering;

/// The lowest logit that top-n-sigma keeps (Tang et al. 2024): `n` standard deviations of all finite logits below the
/// largest. Summed in f64 in the order of ids.
pub(super) fn top_n_sigma(logits: &[f32], largest: f32, n: f32) -> f32 {
    let finite = || logits.iter().filter(|logit| **logit > f32::NEG_INFINITY).map(|logit| f64::from(*logit));
    let count = finite().count() as f64;
    let mean = finite().sum::<f64>() / count;
    let variance = finite().map(|logit| (logit - mean).powi(2)).sum::<f64>() / count;
    largest - n * variance.sqrt() as f32
}

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
    pub(super) typical_p: f32,
    /// 1 keeps all.
    pub(super) top_p: f32,
    /// 0 keeps all.
    pub(super) min_p: f32,
}

/// Candidates sorted first when looking for a set of some probability; most sets are smaller.
const FIRST_SORTED: usize = 256;

impl Filters {
    pub(super) fn of(params: &SamplingParams) -> Self {
        let &SamplingParams { typical_p, top_p, min_p, .. } = params;
        Self { typical_p, top_p, min_p }
    }

    /// Whether every token passes.
    pub(super) fn keep_all(&self) -> bool {
        self.typical_p >= 1.0 && self.top_p >= 1.0 && self.min_p <= 0.0
    }

    /// Keeps the tokens that pass: typical, then top-p, then min-p (relative to the likeliest that is left). Before each
    /// of them, the probabilities of the tokens that are left sum to one. At least one token stays. Scores are finite.
    pub(super) fn apply(&self, candidates: &mut Vec<Scored>) {
        if self.typical_p < 1.0 {
            let mean = mean_score(candidates);
            let distance = |c: &Scored| (c.score - mean).abs();
            let by_distance = |a: &Scored, b: &Scored| distance(a).total_cmp(&distance(b)).then(a.id.cmp(&b.id));
            keep_probability(candidates, self.typical_p, by_distance);
        }
        if self.top_p < 1.0 {
            keep_probability(candidates, self.top_p, by_rank);
        }
        if self.min_p > 0.0 {
            let largest = candidates.iter().map(|c| c.score).fold(f32::NEG_INFINITY, f32::max);
            candidates.retain(|c| c.score == largest || (c.score - largest).exp() >= self.min_p);
        }
    }
}

/// The mean score under the tokens' own probabilities. A token's distance from it is the distance of its information
/// from the entropy (Meister et al. 2022), in which the normalisation cancels.
fn mean_score(candidates: &mut [Scored]) -> f32 {
    candidates.sort_unstable_by_key(|c| c.id);
    let total: f64 = candidates.iter().map(weight).sum();
    let weighted: f64 = candidates.iter().map(|c| weight(c) * f64::from(c.score)).sum();
    (weighted / total) as f32
}

/// Keeps the shortest prefix in the given order whose probability reaches `wanted`.
///
/// The total is summed in the order of ids and the prefix in its own order, both in f64, so neither depends on how the
/// candidates were selected.
fn keep_probability(candidates: &mut Vec<Scored>, wanted: f32, order: impl Fn(&Scored, &Scored) -> Ordering) {
    candidates.sort_unstable_by_key(|c| c.id);
    let total: f64 = candidates.iter().map(weight).sum();
    let wanted = f64::from(wanted) * total;
    let mut sorted = 0;
    let mut reached = 0.0;
    let mut size = FIRST_SORTED;
    while sorted < candidates.len() {
        let end = size.min(candidates.len());
        let rest = &mut candidates[sorted..];
        if end - sorted < rest.len() {
            rest.select_nth_unstable_by(end - sorted - 1, &order);
        }
        rest[..end - sorted].sort_unstable_by(&order);
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

fn weight(candidate: &Scored) -> f64 {
    f64::from(candidate.score.exp())
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use proptest::prelude::*;

    const ALL: Filters = Filters { typical_p: 1.0, top_p: 1.0, min_p: 0.0 };

    /// The definition: sort everything, then cut; the result is in rank order.
    pub(in super::super) fn reference(params: &SamplingParams, logits: &[f32]) -> Vec<Scored> {
        let mut all: Vec<(u32, f32)> = (0..).zip(logits.iter().copied()).filter(|l| l.1 > f32::NEG_INFINITY).collect();
        let largest = all.iter().map(|l| l.1).fold(f32::NEG_INFINITY, f32::max);
        if params.top_n_sigma > 0.0 {
            let mean = all.iter().map(|l| f64::from(l.1)).sum::<f64>() / all.len() as f64;
            let variance = all.iter().map(|l| (f64::from(l.1) - mean).powi(2)).sum::<f64>() / all.len() as f64;
            all.retain(|l| l.1 >= largest - params.top_n_sigma * variance.sqrt() as f32);
        }
        all.sort_by(|a, b| b.1.partial_cmp(&a.1).unwrap().then(a.0.cmp(&b.0)));
        all.truncate(if params.top_k == 0 { usize::MAX } else { params.top_k as usize });
        let scored = |&(id, logit): &(u32, f32)| Scored { score: (logit - largest) / params.temperature, id };
        let mut all: Vec<Scored> = all.iter().map(scored).filter(|c| c.score > f32::NEG_INFINITY).collect();
        let by_id = |all: &[Scored]| {
            let mut sorted = all.to_vec();
            sorted.sort_by_key(|c| c.id);
            sorted
        };
        let cut = |sorted: &mut Vec<Scored>, wanted: f32| {
            let wanted = f64::from(wanted) * by_id(sorted).iter().map(weight).sum::<f64>();
            let mut reached = 0.0;
            let crossing = sorted.iter().position(|c| {
                reached += weight(c);
                reached >= wanted
            });
            sorted.truncate(crossing.map_or(sorted.len(), |i| i + 1));
        };
        if params.typical_p < 1.0 {
            let total: f64 = by_id(&all).iter().map(weight).sum();
            let mean = (by_id(&all).iter().map(|c| weight(c) * f64::from(c.score)).sum::<f64>() / total) as f32;
            all.sort_by(|a, b| (a.score - mean).abs().total_cmp(&(b.score - mean).abs()).then(a.id.cmp(&b.id)));
            cut(&mut all, params.typical_p);
        }
        all.sort_by(by_rank);
        if params.top_p < 1.0 {
            cut(&mut all, params.top_p);
        }
        let likeliest = all[0].score;
        all.retain(|c| c.score == likeliest || (c.score - likeliest).exp() >= params.min_p);
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

    fn ids(k: usize, filters: Filters, logits: &[f32]) -> Vec<u32> {
        kept(k, filters, logits).iter().map(|c| c.id).collect()
    }

    #[test]
    fn filters_one_by_one() {
        let ids = |k, top_p, min_p| ids(k, Filters { top_p, min_p, ..ALL }, &[0.0, 2.0, 2.0, 1.0]);
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
    fn top_n_sigma_measures_from_the_largest() {
        // The standard deviation of 1, 3, 3, 5 is √2; an impossible token does not count.
        let logits = [1.0, 3.0, f32::NEG_INFINITY, 3.0, 5.0];
        assert_eq!(top_n_sigma(&logits, 5.0, 1.0), 5.0 - 2f32.sqrt());
        assert_eq!(top_n_sigma(&logits, 5.0, 2.0), 5.0 - 2.0 * 2f32.sqrt());
        assert_eq!(top_n_sigma(&[4.0; 3], 4.0, 9.0), 4.0);
        assert_eq!(top_n_sigma(&[-3e38, 3e38], 3e38, 100.0), f32::NEG_INFINITY);
    }

    #[test]
    fn typical_keeps_what_carries_the_usual_information() {
        // Probabilities 0.5, 0.2, 0.1 (three times): the entropy is 1.359 nats; the tokens carry 0.69, 1.61 and 2.30.
        let logits: Vec<f32> = [0.5f32, 0.2, 0.1, 0.1, 0.1].iter().map(|p| p.ln()).collect();
        let typical = |typical_p| ids(9, Filters { typical_p, ..ALL }, &logits);
        assert_eq!(typical(0.0), [1]);
        assert_eq!(typical(0.19), [1]);
        assert_eq!(typical(0.69), [0, 1]);
        assert_eq!(typical(0.75), [0, 1, 2]);
        assert_eq!(typical(1.0), [0, 1, 2, 3, 4]);
        // The likeliest may go; min-p is then relative to what is likeliest among the rest.
        assert_eq!(ids(9, Filters { typical_p: 0.1, min_p: 1.0, ..ALL }, &logits), [1]);
    }

    #[test]
    fn top_k_ranks_by_logit_even_where_scores_round_to_one_number() {
        let logits = [100.0, 1.0, 1.000_000_1];
        assert_eq!(scaled(logits[1], &logits), scaled(logits[2], &logits));
        assert_eq!(ids(2, ALL, &logits), [0, 2]);
        // Both zeros are one logit: the lower id stays.
        let mut candidates = Vec::new();
        top_k(&[-1.0, -0.0, 0.0], 1, &mut candidates);
        assert_eq!(candidates, [Candidate { id: 1, logit: 0.0 }]);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(600))]
        #[test]
        fn selection_equals_sorting(
            logits in prop::collection::vec(prop_oneof![-8.0f32..8.0, (-3i8..3).prop_map(f32::from)], 1..3000),
            k in prop_oneof![Just(0usize), 1usize..40, 1usize..3000],
            typical_p in prop_oneof![Just(1.0f32), 0.0f32..1.0],
            top_p in prop_oneof![Just(1.0f32), 0.0f32..1.0],
            min_p in prop_oneof![Just(0.0f32), 0.0f32..1.0],
        ) {
            let filters = Filters { typical_p, top_p, min_p };
            let params = SamplingParams { temperature: 1.0, top_k: k as u32, typical_p, top_p, min_p, ..Default::default() };
            let kept = kept(if k == 0 { usize::MAX } else { k }, filters, &logits);
            prop_assert_eq!(&kept, &reference(&params, &logits));
            if filters.keep_all() && k == 0 {
                prop_assert_eq!(kept.len(), logits.len());
            }
        }
    }
}
