//! Token counts as clients see them.

use crate::generation::text_stream::End;
use serde::Serialize;
use std::ops::AddAssign;

/// The `usage` object. A prompt shared by several choices counts once.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Usage {
    prompt_tokens: usize,
    completion_tokens: usize,
    total_tokens: usize,
    prompt_tokens_details: PromptDetails,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
struct PromptDetails {
    /// Prompt tokens that came from the prefix cache.
    cached_tokens: usize,
}

impl Usage {
    /// The prompt's part, reported by its first choice, and the choice's own tokens.
    pub(crate) fn of(end: &End, first_choice: bool) -> Self {
        let (prompt_tokens, cached_tokens) = if first_choice { (end.prompt_tokens, end.cached_tokens) } else { (0, 0) };
        Self {
            prompt_tokens,
            completion_tokens: end.completion_tokens,
            total_tokens: prompt_tokens + end.completion_tokens,
            prompt_tokens_details: PromptDetails { cached_tokens },
        }
    }
}

impl AddAssign for Usage {
    fn add_assign(&mut self, other: Self) {
        self.prompt_tokens += other.prompt_tokens;
        self.completion_tokens += other.completion_tokens;
        self.total_tokens += other.total_tokens;
        self.prompt_tokens_details.cached_tokens += other.prompt_tokens_details.cached_tokens;
    }
}
