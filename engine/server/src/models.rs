//! `/v1/models`: the served model under its name and aliases.

use crate::error::ApiError;
use crate::state::AppState;
use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use serde::Serialize;

#[derive(Debug, Serialize)]
pub(crate) struct ModelList {
    object: &'static str,
    data: Vec<ModelCard>,
}

#[derive(Debug, Serialize)]
pub(crate) struct ModelCard {
    id: String,
    object: &'static str,
    created: u64,
    owned_by: &'static str,
    /// The name this is an alias of; its own name otherwise.
    root: String,
    parent: Option<String>,
    #[serde(flatten)]
    loaded: Option<LoadedFacts>,
}

/// What is known once the model is loaded.
#[derive(Debug, Serialize)]
struct LoadedFacts {
    /// Context length in tokens, prompt and answer together.
    max_model_len: usize,
    family: String,
    vocab_size: usize,
    weight_bytes: u64,
}

/// Every name.
pub(crate) async fn list(State(state): State<AppState>) -> Json<ModelList> {
    let data = state.config().names().map(|name| card(&state, name)).collect();
    Json(ModelList { object: "list", data })
}

/// One name, which may hold slashes.
pub(crate) async fn show(
    State(state): State<AppState>,
    name: Result<Path<String>, PathRejection>,
) -> Result<Json<ModelCard>, ApiError> {
    let Path(name) = name.map_err(|_| ApiError::bad_request("the model's name in the path is not UTF-8"))?;
    if !state.config().serves(&name) {
        return Err(ApiError::model_not_found(&name, state.config().names()));
    }
    Ok(Json(card(&state, &name)))
}

fn card(state: &AppState, name: &str) -> ModelCard {
    let loaded = state.model().map(|model| {
        let info = model.engine.info();
        LoadedFacts {
            max_model_len: info.max_context,
            family: info.family.clone(),
            vocab_size: info.vocab_size,
            weight_bytes: info.weight_bytes,
        }
    });
    ModelCard {
        id: name.to_owned(),
        object: "model",
        created: state.started(),
        owned_by: "atlas",
        root: state.config().model_name.clone(),
        parent: None,
        loaded,
    }
}
