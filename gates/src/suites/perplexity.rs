//! Perplexity: which tokens are fed, which are scored, and as what.
//!
//! The text is tokenised as if whole, its special tokens parsed. It is cut into documents at the separator token, which
//! is neither fed nor scored. Every document starts with an empty context and is fed in one piece; its first token has
//! no prediction and is not scored. A document longer than the window is cut into windows, each with an empty context.
//! Assistant tokens are those after an assistant turn's opening marker, the closing token included, whatever follows it
//! (a line break) excluded. Perplexity is `exp(-Σ ln p / n)` over all scored tokens of all documents together.

use crate::data::DataError;
use atlas_schemas::gate::PerplexityMeasure;

/// Markers of a text, as the model's own token ids.
#[derive(Debug, Clone, PartialEq)]
pub struct Markers {
    /// Ends a document; exactly one token.
    pub separator: u32,
    /// Opens an assistant turn.
    pub assistant_start: Vec<u32>,
    /// Closes an assistant turn; exactly one token.
    pub assistant_end: u32,
}

impl Markers {
    /// Checks the markers of `measure`, tokenised by the model. Both ends must be single tokens.
    pub fn new(
        measure: &PerplexityMeasure,
        separator: &[u32],
        assistant_start: Vec<u32>,
        assistant_end: &[u32],
    ) -> Result<Self, DataError> {
        let single = |marker: &str, ids: &[u32]| match ids {
            [id] => Ok(*id),
            _ => Err(DataError::content(
                &measure.text,
                None,
                format!(
                    "{marker:?} is {} tokens of this model, not one: give the suite the model's own marker",
                    ids.len()
                ),
            )),
        };
        if assistant_start.is_empty() {
            return Err(DataError::content(&measure.text, None, "assistant_start is empty"));
        }
        Ok(Self {
            separator: single(&measure.separator, separator)?,
            assistant_end: single(&measure.assistant_end, assistant_end)?,
            assistant_start,
        })
    }
}

/// Token sequences to score, each with an empty context.
#[derive(Debug, Clone, PartialEq)]
pub struct PerplexityPlan {
    /// Documents in the text.
    pub documents: usize,
    /// What is fed.
    pub windows: Vec<Window>,
}

/// One sequence.
#[derive(Debug, Clone, PartialEq)]
pub struct Window {
    /// Token ids; at least two.
    pub tokens: Vec<u32>,
    /// For each token, whether it belongs to an assistant turn.
    pub assistant: Vec<bool>,
}

impl PerplexityPlan {
    /// Cuts `tokens` into documents and those into windows of at most `window` tokens.
    pub fn new(tokens: &[u32], markers: &Markers, window: usize) -> Self {
        let documents: Vec<&[u32]> =
            tokens.split(|token| *token == markers.separator).filter(|document| !document.is_empty()).collect();
        let mut windows = Vec::new();
        for document in &documents {
            let roles = assistant_tokens(document, markers);
            let size = window.max(2);
            windows.extend(
                document
                    .chunks(size)
                    .zip(roles.chunks(size))
                    .filter(|(part, _)| part.len() > 1)
                    .map(|(part, roles)| Window { tokens: part.to_vec(), assistant: roles.to_vec() }),
            );
        }
        Self { documents: documents.len(), windows }
    }
}

fn assistant_tokens(document: &[u32], markers: &Markers) -> Vec<bool> {
    let mut roles = vec![false; document.len()];
    let (mut at, mut inside) = (0, false);
    while at < document.len() {
        if document[at..].starts_with(&markers.assistant_start) {
            inside = true;
            at += markers.assistant_start.len();
            continue;
        }
        roles[at] = inside;
        inside &= document[at] != markers.assistant_end;
        at += 1;
    }
    roles
}

/// Sums of log-probabilities.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct PerplexityTally {
    sum: f64,
    tokens: usize,
    assistant_sum: f64,
    assistant_tokens: usize,
}

impl PerplexityTally {
    /// Adds a window, given the natural log-probability of each of its tokens (the first is ignored). Fails if their
    /// number is wrong or one is missing, positive or not a number.
    pub fn add(&mut self, window: &Window, logprobs: &[Option<f64>]) -> Result<(), String> {
        if logprobs.len() != window.tokens.len() {
            return Err(format!("{} log-probabilities for {} tokens", logprobs.len(), window.tokens.len()));
        }
        for (position, (logprob, assistant)) in logprobs.iter().zip(&window.assistant).enumerate().skip(1) {
            let value = logprob.ok_or_else(|| format!("token {position} has no log-probability"))?;
            // Rounding may lift the log-probability of a certain token a little above zero.
            if !(value <= 1e-3 && value.is_finite()) {
                return Err(format!("token {position} has log-probability {value}"));
            }
            self.sum += value;
            self.tokens += 1;
            if *assistant {
                self.assistant_sum += value;
                self.assistant_tokens += 1;
            }
        }
        Ok(())
    }

    /// Perplexity and number of all scored tokens; none if there are none.
    pub fn all(&self) -> Option<(f64, usize)> {
        score(self.sum, self.tokens)
    }

    /// The same for assistant tokens.
    pub fn assistant(&self) -> Option<(f64, usize)> {
        score(self.assistant_sum, self.assistant_tokens)
    }
}

fn score(sum: f64, tokens: usize) -> Option<(f64, usize)> {
    (tokens > 0).then(|| ((-sum / tokens as f64).exp(), tokens))
}

#[cfg(test)]
mod tests {
    use super::*;

    // 0 separator, 1 start, 2 "assistant", 3 line break, 4 end, 9 "user"
    fn markers() -> Markers {
        Markers { separator: 0, assistant_start: vec![1, 2, 3], assistant_end: 4 }
    }

    #[test]
    fn documents_split_at_the_separator_and_turns_are_found() {
        let text = [1, 9, 3, 20, 4, 3, 1, 2, 3, 21, 22, 4, 3, 0, 0, 30, 31, 0, 40];
        let plan = PerplexityPlan::new(&text, &markers(), 1024);
        assert_eq!(plan.documents, 3);
        assert_eq!(plan.windows.len(), 2, "a document of one token has nothing to score");
        let scored: Vec<u32> = plan.windows[0]
            .tokens
            .iter()
            .zip(&plan.windows[0].assistant)
            .filter(|(_, assistant)| **assistant)
            .map(|(token, _)| *token)
            .collect();
        assert_eq!(scored, [21, 22, 4]);
        assert_eq!(plan.windows[1].tokens, [30, 31]);
        assert_eq!(plan.windows[1].assistant, [false, false]);
    }

    #[test]
    fn an_open_turn_runs_to_the_end_and_windows_keep_its_role() {
        let plan = PerplexityPlan::new(&[1, 2, 3, 5, 6, 7, 8], &markers(), 4);
        assert_eq!(plan.windows[0].tokens, [1, 2, 3, 5]);
        assert_eq!(plan.windows[1].assistant, [true, true, true]);
    }

    #[test]
    fn the_tally_is_the_mean_over_all_tokens() {
        let plan = PerplexityPlan::new(&[1, 2, 3, 5, 4, 0, 30, 31], &markers(), 1024);
        let mut tally = PerplexityTally::default();
        tally.add(&plan.windows[0], &[None, Some(-1.0), Some(-1.0), Some(-2.0), Some(-4.0)]).unwrap();
        tally.add(&plan.windows[1], &[None, Some(-2.0)]).unwrap();
        let (all, n) = tally.all().unwrap();
        assert!((all - 2f64.exp()).abs() < 1e-12 && n == 5);
        let (assistant, n) = tally.assistant().unwrap();
        assert!((assistant - 3f64.exp()).abs() < 1e-12 && n == 2);
    }

    #[test]
    fn bad_logprobs_are_errors() {
        let plan = PerplexityPlan::new(&[7, 8, 9], &markers(), 16);
        let mut tally = PerplexityTally::default();
        assert!(tally.add(&plan.windows[0], &[None, Some(-1.0)]).is_err());
        assert!(tally.add(&plan.windows[0], &[None, None, Some(-1.0)]).is_err());
        assert!(tally.add(&plan.windows[0], &[None, Some(f64::NAN), Some(-1.0)]).is_err());
        assert!(tally.add(&plan.windows[0], &[None, Some(0.5), Some(-1.0)]).is_err());
        assert!(PerplexityTally::default().all().is_none());
    }

    #[test]
    fn markers_must_be_single_tokens() {
        let measure = PerplexityMeasure {
            text: "t".into(),
            separator: "<end>".into(),
            assistant_start: "<a>".into(),
            assistant_end: "</a>".into(),
            window: 8,
        };
        let error = Markers::new(&measure, &[1, 2], vec![3], &[4]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "t: \"<end>\" is 2 tokens of this model, not one: give the suite the model's own marker"
        );
        assert!(Markers::new(&measure, &[1], vec![], &[4]).is_err());
        assert!(Markers::new(&measure, &[1], vec![3], &[4]).is_ok());
    }
}
