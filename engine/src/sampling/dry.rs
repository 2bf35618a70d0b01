//! DRY ("don't repeat yourself"): a penalty on tokens that would prolong a repetition.
//!
//! A token that followed an earlier occurrence of the text's present end is penalised, the more the longer that end
//! is. The definition is by p-e-w (text-generation-webui, pull request 5677).

use std::collections::HashMap;
use std::sync::Arc;

/// Parameters of the penalty. The default is off.
#[derive(Debug, Clone, PartialEq)]
pub struct Dry {
    /// Scales the penalty; 0 is off.
    pub multiplier: f32,
    /// The penalty grows by this factor with each further token of the repetition.
    pub base: f32,
    /// The shortest repetition that is penalised, in tokens. At least 1.
    pub allowed_length: u32,
    /// Only so many of the last tokens are searched; `None` is all of them.
    pub last_n: Option<usize>,
    /// Tokens that a repetition does not reach across, ascending.
    pub breakers: Arc<[u32]>,
}

impl Default for Dry {
    fn default() -> Self {
        Self { multiplier: 0.0, base: 1.75, allowed_length: 2, last_n: None, breakers: Arc::new([]) }
    }
}

/// No penalty is larger: logits stay finite, and their order below it is kept.
const MAX_PENALTY: f32 = 1e30;

impl Dry {
    /// Whether [`Self::apply`] can change anything.
    pub(super) fn is_active(&self) -> bool {
        self.multiplier > 0.0 && self.last_n != Some(0)
    }

    fn breaks(&self, id: u32) -> bool {
        self.breakers.binary_search(&id).is_ok()
    }

    /// Lowers the logits of tokens that would prolong a repetition at the end of `history` followed by `extra`.
    pub(super) fn apply(&self, logits: &mut [f32], history: &[u32], extra: &[u32]) {
        let searched = self.last_n.unwrap_or(usize::MAX);
        let backwards: Vec<u32> = extra.iter().rev().chain(history.iter().rev()).take(searched).copied().collect();
        for (id, length) in self.repetitions(&backwards) {
            if let Some(logit) = logits.get_mut(id as usize) {
                *logit -= self.penalty(length);
            }
        }
    }

    /// For each token that followed an earlier occurrence of the text's end, the length of the longest such end.
    /// Takes the text backwards.
    fn repetitions(&self, backwards: &[u32]) -> HashMap<u32, usize> {
        let mut found = HashMap::new();
        let allowed = self.allowed_length as usize;
        let unbroken = backwards.iter().position(|&id| self.breaks(id)).unwrap_or(backwards.len());
        if unbroken < allowed {
            return found;
        }
        for (i, &length) in common_prefixes(backwards).iter().enumerate().skip(1) {
            let (length, next) = (length.min(unbroken), backwards[i - 1]);
            if length >= allowed && !self.breaks(next) {
                let longest = found.entry(next).or_insert(length);
                *longest = length.max(*longest);
            }
        }
        found
    }

    /// `multiplier * base^(length - allowed_length)`, by multiplication so that every machine gets the same bits.
    fn penalty(&self, length: usize) -> f32 {
        let mut penalty = self.multiplier;
        for _ in self.allowed_length as usize..length {
            if penalty >= MAX_PENALTY || self.base <= 1.0 {
                break;
            }
            penalty *= self.base;
        }
        penalty.min(MAX_PENALTY)
    }
}

/// For each place, how many tokens from there on equal those from the beginning on (the Z function), in linear time.
fn common_prefixes(tokens: &[u32]) -> Vec<usize> {
    let mut lengths = vec![0; tokens.len()];
    let (mut begin, mut end) = (0, 0);
    for i in 1..tokens.len() {
        let mut length = if i < end { lengths[i - begin].min(end - i) } else { 0 };
        while i + length < tokens.len() && tokens[length] == tokens[i + length] {
            length += 1;
        }
        if i + length > end {
            (begin, end) = (i, i + length);
        }
        lengths[i] = length;
    }
    lengths
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The definition: for each earlier occurrence of the last token, walk back while the texts agree.
    fn reference(dry: &Dry, text: &[u32]) -> HashMap<u32, usize> {
        let mut found: HashMap<u32, usize> = HashMap::new();
        let text = &text[text.len() - dry.last_n.unwrap_or(usize::MAX).min(text.len())..];
        let Some((&last, earlier)) = text.split_last() else { return found };
        if dry.breaks(last) {
            return found;
        }
        for i in (0..earlier.len()).filter(|&i| earlier[i] == last) {
            let next = text[i + 1];
            if dry.breaks(next) {
                continue;
            }
            let mut length = 1;
            while length <= i {
                let previous = text[text.len() - 1 - length];
                if text[i - length] != previous || dry.breaks(previous) {
                    break;
                }
                length += 1;
            }
            if length >= dry.allowed_length as usize {
                let longest = found.entry(next).or_default();
                *longest = length.max(*longest);
            }
        }
        found
    }

    fn dry(breakers: &[u32]) -> Dry {
        Dry { multiplier: 1.0, base: 2.0, breakers: breakers.into(), ..Dry::default() }
    }

    #[test]
    fn a_repetition_costs_more_the_longer_it_is() {
        let mut logits = [0.0; 8];
        // After "1 2 3", 4 followed once and 5 followed "9 2 3", which agrees in two tokens.
        dry(&[]).apply(&mut logits, &[1, 2, 3, 4, 7, 2, 3, 5, 1, 2], &[3]);
        assert_eq!(logits, [0.0, 0.0, 0.0, 0.0, -2.0, -1.0, 0.0, 0.0]);
        // A breaker ends the repetition, and is never penalised itself.
        let mut logits = [0.0; 8];
        dry(&[2]).apply(&mut logits, &[1, 2, 3, 4, 1, 2], &[3]);
        dry(&[4]).apply(&mut logits, &[1, 2, 3, 4, 1, 2], &[3]);
        dry(&[3]).apply(&mut logits, &[1, 2, 3, 4, 1, 2], &[3]);
        Dry { last_n: Some(5), ..dry(&[]) }.apply(&mut logits, &[1, 2, 3, 4, 1, 2, 3], &[]);
        assert_eq!(logits, [0.0; 8]);
        Dry { last_n: Some(0), ..dry(&[]) }.apply(&mut logits, &[1, 1, 1, 1], &[]);
        dry(&[]).apply(&mut logits, &[], &[]);
        assert_eq!(logits, [0.0; 8]);
        assert!(
            !Dry { last_n: Some(0), ..dry(&[]) }.is_active() && dry(&[]).is_active() && !Dry::default().is_active()
        );
    }

    #[test]
    fn the_longest_repetition_leaves_logits_finite() {
        let mut logits = [1.0, 2.0];
        dry(&[]).apply(&mut logits, &[1; 100_000], &[]);
        assert_eq!(logits, [1.0, -1e30]);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]
        #[test]
        fn the_linear_search_finds_what_the_definition_does(
            text in prop::collection::vec(0u32..4, 0..60),
            allowed_length in 1u32..5,
            last_n in prop_oneof![Just(None), (1usize..70).prop_map(Some)],
            breakers in prop_oneof![Just(vec![]), Just(vec![3u32]), Just(vec![0, 3])],
            split in 0usize..60,
        ) {
            let dry = Dry { allowed_length, last_n, ..dry(&breakers) };
            let (history, extra) = text.split_at(split.min(text.len()));
            let mut logits = [0.0f32; 4];
            dry.apply(&mut logits, history, extra);
            let expected = reference(&dry, &text);
            for id in 0..4u32 {
                let penalty = expected.get(&id).map_or(0.0, |&length| dry.penalty(length));
                prop_assert_eq!(logits[id as usize], -penalty);
            }
        }
    }
}
