//! Reading a JSON body within bounds of size, time and memory.

use crate::error::ApiError;
use crate::fields::Fields;
use crate::state::AppState;
use axum::body::Body;
use axum::extract::{FromRequest, Request};
use axum::http::{HeaderMap, header};
use futures_util::StreamExt;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Bytes that one permit of the body budget stands for.
pub(crate) const BUDGET_UNIT: usize = 1024;

/// From this many bytes on, a body is parsed away from the threads that serve connections.
const LARGE: usize = 256 << 10;

/// A JSON object that arrived in time and within the size limit.
#[derive(Debug)]
pub(crate) struct JsonBody {
    /// Its fields.
    pub(crate) fields: Fields,
    /// This body's part of the memory that all bodies share; given back when the request has been understood.
    pub(crate) memory: Option<OwnedSemaphorePermit>,
}

impl FromRequest<AppState> for JsonBody {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &AppState) -> Result<Self, ApiError> {
        if !is_json(request.headers()) {
            return Err(ApiError::media_type());
        }
        let limits = &state.config().limits;
        let announced =
            request.headers().get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
        if announced.is_some_and(|bytes: u64| bytes > limits.max_body_bytes as u64) {
            return Err(ApiError::body_too_large(limits.max_body_bytes));
        }
        let reading = read(request.into_body(), limits.max_body_bytes, state.body_budget());
        let (bytes, memory) =
            tokio::time::timeout(limits.body_timeout, reading).await.map_err(|_| ApiError::request_timeout())??;
        let fields = if bytes.len() < LARGE {
            Fields::parse(&bytes)?
        } else {
            let failed = |_| ApiError::internal("the request body could not be parsed");
            tokio::task::spawn_blocking(move || Fields::parse(&bytes)).await.map_err(failed)??
        };
        Ok(Self { fields, memory })
    }
}

/// Collects the body; its memory is accounted for as it arrives, so that a mere announcement costs others nothing.
async fn read(
    body: Body,
    limit: usize,
    budget: &Arc<Semaphore>,
) -> Result<(Vec<u8>, Option<OwnedSemaphorePermit>), ApiError> {
    let mut chunks = body.into_data_stream();
    let mut bytes = Vec::new();
    let mut memory: Option<OwnedSemaphorePermit> = None;
    while let Some(chunk) = chunks.next().await {
        let chunk = chunk.map_err(|_| ApiError::bad_request("the request body ended early or is malformed"))?;
        if chunk.len() > limit - bytes.len() {
            return Err(ApiError::body_too_large(limit));
        }
        bytes.extend_from_slice(&chunk);
        let held = memory.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        let missing = bytes.len().div_ceil(BUDGET_UNIT).saturating_sub(held);
        let more = u32::try_from(missing).ok().and_then(|units| budget.clone().try_acquire_many_owned(units).ok());
        match (more, &mut memory) {
            (None, _) => {
                let message = "the bodies of other requests fill the memory set aside for them";
                return Err(ApiError::busy(message, Duration::from_secs(1)));
            }
            (Some(more), Some(memory)) => memory.merge(more),
            (more, none) => *none = more,
        }
    }
    Ok((bytes, memory))
}

/// `application/json` or a type built on it. What a web page can send without asking (text, forms, no type) is not.
fn is_json(headers: &HeaderMap) -> bool {
    let Some(Ok(value)) = headers.get(header::CONTENT_TYPE).map(|value| value.to_str()) else { return false };
    let essence = value.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    essence == "application/json" || (essence.starts_with("application/") && essence.ends_with("+json"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;

    #[test]
    fn only_json_types_are_json() {
        let check = |value: &str| {
            is_json(&HeaderMap::from_iter([(header::CONTENT_TYPE, HeaderValue::from_str(value).unwrap())]))
        };
        for good in ["application/json", "Application/JSON; charset=utf-8", "application/vnd.x+json"] {
            assert!(check(good), "{good}");
        }
        for bad in
            ["text/plain", "text/json", "application/x-www-form-urlencoded", "", "application/jsonp", "text/x+json"]
        {
            assert!(!check(bad), "{bad}");
        }
        assert!(!is_json(&HeaderMap::new()));
    }

    #[tokio::test]
    async fn memory_is_shared_and_given_back() {
        let budget = Arc::new(Semaphore::new(4));
        let (bytes, memory) = read(Body::from(vec![b'x'; 3000]), 10_000, &budget).await.unwrap();
        assert_eq!((bytes.len(), budget.available_permits()), (3000, 1));
        assert!(read(Body::from(vec![b'x'; 3000]), 10_000, &budget).await.is_err());
        drop(memory);
        assert_eq!(budget.available_permits(), 4);
        assert!(read(Body::from(vec![b'x'; 3000]), 2999, &budget).await.is_err());
    }
}
