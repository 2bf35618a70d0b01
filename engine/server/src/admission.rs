//! The first thing a generating request gets: a place, an id and a deadline, before its body is read.

use crate::error::ApiError;
use crate::guard::request_id::RequestId;
use crate::state::AppState;
use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use std::time::Instant;
use tokio::sync::OwnedSemaphorePermit;

/// A request that may run. Keep it until the answer has been sent.
#[derive(Debug)]
pub(crate) struct Admission {
    /// For the engine's log lines.
    pub(crate) request_id: String,
    /// When its generations end.
    pub(crate) deadline: Instant,
    _place: OwnedSemaphorePermit,
}

impl FromRequestParts<AppState> for Admission {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &AppState) -> Result<Self, ApiError> {
        state.ready_model()?;
        let request_id = parts.extensions.get::<RequestId>().map(|id| id.0.clone()).unwrap_or_default();
        Ok(Self { request_id, deadline: Instant::now() + state.config().request_timeout, _place: state.admit()? })
    }
}
