//! What a device may do with a row of logits instead of handing it to the host.
//!
//! A request's parameters say what is needed to choose its token ([`Selection`]); a backend answers with that or with
//! the whole row ([`RowOutput`]). [`super::Sampler`] makes the same choice of either.

use super::SamplingError;
pub use atlas_kernels::cuda::Candidate;

/// The most candidates that [`Selection::Top`] asks for.
pub const MAX_TOP: usize = 256;

/// What is needed of a row of logits.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum Selection {
    /// The row itself: log-probabilities, penalties, bias, or filters that look at all of it.
    #[default]
    Logits,
    /// The token with the largest logit, ties to the lower id.
    Greedy,
    /// The token with the largest `(logit - largest logit) / temperature + noise`, ties to the lower id, all in f32.
    Sample {
        /// Positive.
        temperature: f32,
        /// Of [`super::noise::Noise`].
        seed: u64,
        /// Of the token that is chosen, counted from the beginning of the sequence.
        position: u64,
    },
    /// The `k` tokens with the largest logits, ties to the lower id, or all if there are fewer.
    Top {
        /// 1 to [`MAX_TOP`].
        k: u32,
    },
}

/// What a backend computed of a row.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum RowOutput<'a> {
    /// All logits: always allowed, and the answer to [`Selection::Logits`].
    Logits(&'a [f32]),
    /// The chosen token: the answer to [`Selection::Greedy`] and [`Selection::Sample`].
    Token(u32),
    /// The best tokens, best first: the answer to [`Selection::Top`].
    Candidates(&'a [Candidate]),
    /// The row is such that no token can be chosen.
    Unusable(SamplingError),
}

impl<'a> RowOutput<'a> {
    /// The logits of a row that was asked for with [`Selection::Logits`].
    ///
    /// # Errors
    /// [`SamplingError::NoLogits`] if the backend broke its contract.
    pub fn logits(&self) -> Result<&'a [f32], SamplingError> {
        match *self {
            Self::Logits(logits) => Ok(logits),
            Self::Unusable(error) => Err(error),
            Self::Token(_) | Self::Candidates(_) => Err(SamplingError::NoLogits),
        }
    }
}
