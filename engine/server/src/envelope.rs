//! What every part of one answer repeats.

use crate::state::AppState;

/// Id, time and model name of an answer.
#[derive(Debug, Clone)]
pub(crate) struct Envelope {
    pub(crate) id: String,
    pub(crate) created: u64,
    /// As the client named it.
    pub(crate) model: String,
    /// Whether chunks have a `usage` field.
    pub(crate) include_usage: bool,
}

impl Envelope {
    pub(crate) fn new(state: &AppState, prefix: &str, model: String, include_usage: bool) -> Self {
        Self { id: state.identity().id(prefix), created: state.identity().unix_seconds(), model, include_usage }
    }
}
