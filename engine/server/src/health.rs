//! `/health`, `/health/ready`, `/health/live`: open to everyone, and silent about everything but the phase.

use crate::state::{AppState, Phase};
use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::Serialize;

#[derive(Debug, Serialize)]
pub(crate) struct Health {
    status: &'static str,
}

/// 200 when requests are answered, else 503.
pub(crate) async fn ready(State(state): State<AppState>) -> (StatusCode, Json<Health>) {
    let phase = state.phase();
    answer(phase, phase == Phase::Ready)
}

/// 503 only when nothing but a restart helps.
pub(crate) async fn live(State(state): State<AppState>) -> (StatusCode, Json<Health>) {
    let phase = state.phase();
    answer(phase, phase != Phase::Failed)
}

fn answer(phase: Phase, good: bool) -> (StatusCode, Json<Health>) {
    let status = match phase {
        Phase::Loading => "loading",
        Phase::Ready => "ok",
        Phase::Stopping => "stopping",
        Phase::Failed => "failed",
    };
    (if good { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }, Json(Health { status }))
}
