//! `/tokenize` and `/detokenize`, in vLLM's form.

use crate::chat::prompt;
use crate::chat::request::{ChatPrompt, requested_model};
use crate::error::ApiError;
use crate::guard::body::JsonBody;
use crate::options::token_id;
use crate::state::AppState;
use crate::unsupported::refuse_rest;
use axum::Json;
use axum::extract::State;
use serde::Serialize;

#[derive(Debug, Serialize)]
pub(crate) struct Tokens {
    count: usize,
    max_model_len: usize,
    tokens: Vec<u32>,
    token_strs: Option<Vec<String>>,
}

#[derive(Debug, Serialize)]
pub(crate) struct Text {
    prompt: String,
}

/// Token ids of a `prompt`, or of `messages` as the chat template renders them.
pub(crate) async fn tokenize(
    State(state): State<AppState>,
    JsonBody { mut fields, memory }: JsonBody,
) -> Result<Json<Tokens>, ApiError> {
    state.ready_model()?;
    requested_model(&mut fields, &state)?;
    let want_strings = fields.boolean("return_token_strs")?.unwrap_or(false);
    let ids = match fields.string("prompt")? {
        Some(text) => {
            let add_special = fields.boolean("add_special_tokens")?.unwrap_or(true);
            refuse_rest(fields)?;
            let state = state.clone();
            let encode = move || state.ready_model()?.encode(&text, add_special, "prompt");
            let failed = |_| ApiError::internal("the text could not be tokenised");
            tokio::task::spawn_blocking(encode).await.map_err(failed)??
        }
        None => {
            let (chat, _) = ChatPrompt::take(&mut fields, &state.config().defaults)?;
            refuse_rest(fields)?;
            prompt::render(&state, chat).await?.ids
        }
    };
    drop(memory);
    let model = state.ready_model()?;
    let spelling = |id: &u32| model.tokenizer.id_to_token(*id).unwrap_or_default();
    Ok(Json(Tokens {
        count: ids.len(),
        max_model_len: model.engine.info().max_context,
        token_strs: want_strings.then(|| ids.iter().map(spelling).collect()),
        tokens: ids,
    }))
}

/// Text of `tokens`.
pub(crate) async fn detokenize(
    State(state): State<AppState>,
    JsonBody { mut fields, .. }: JsonBody,
) -> Result<Json<Text>, ApiError> {
    let model = state.ready_model()?;
    requested_model(&mut fields, &state)?;
    let tokens = fields.array("tokens")?.ok_or_else(|| fields.error("tokens", "is required"))?;
    refuse_rest(fields)?;
    let vocab = model.engine.info().vocab_size;
    let id = |(index, value)| token_id(value, &format!("tokens[{index}]"), vocab);
    let ids = tokens.iter().enumerate().map(id).collect::<Result<Vec<_>, _>>()?;
    Ok(Json(Text { prompt: model.tokenizer.decode(&ids, false) }))
}
