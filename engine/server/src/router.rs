//! Routes and the layers around them.

use crate::error::ApiError;
use crate::guard::origin::OriginPolicy;
use crate::guard::request_id::RequestId;
use crate::guard::{auth, origin, request_id};
use crate::state::AppState;
use crate::{chat, completions, health, metrics, models, tokenize};
use axum::Router;
use axum::extract::{MatchedPath, Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use std::any::Any;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;
use tower_http::catch_panic::CatchPanicLayer;

/// The whole API as it answers at the address `bound`.
///
/// Whether a key is needed is decided by the router's own match, never by a second look at the path.
pub fn router(state: AppState, bound: SocketAddr) -> Router {
    let policy = Arc::new(OriginPolicy::new(state.config(), bound));
    let protected = Router::new()
        .route("/v1/chat/completions", post(chat::create))
        .route("/v1/completions", post(completions::create))
        .route("/v1/models", get(models::list))
        .route("/v1/models/{*name}", get(models::show))
        .route("/tokenize", post(tokenize::tokenize))
        .route("/detokenize", post(tokenize::detokenize))
        .route("/metrics", get(metrics::scrape))
        .method_not_allowed_fallback(method_not_allowed)
        .fallback(not_found)
        .layer(from_fn_with_state(state.clone(), auth::require_key));
    let open = Router::new()
        .route("/health", get(health::ready))
        .route("/health/ready", get(health::ready))
        .route("/health/live", get(health::live))
        .method_not_allowed_fallback(method_not_allowed);
    protected
        .merge(open)
        .layer(from_fn_with_state(policy, origin::check_origin))
        .layer(CatchPanicLayer::custom(after_panic))
        .layer(from_fn_with_state(state.clone(), observe))
        .layer(from_fn_with_state(state.clone(), request_id::identify))
        .with_state(state)
}

async fn not_found() -> ApiError {
    ApiError::not_found("there is nothing at this path")
}

async fn method_not_allowed() -> ApiError {
    ApiError::method_not_allowed()
}

/// The answer after a handler panicked. The panic's own message may quote a prompt, so it goes nowhere.
fn after_panic(_: Box<dyn Any + Send + 'static>) -> Response {
    tracing::error!("a request handler panicked");
    ApiError::internal("the server failed on this request").into_response()
}

/// Counts and logs every answer: route pattern, status and time, never a client's own text.
async fn observe(State(state): State<AppState>, request: Request, next: Next) -> Response {
    let began = Instant::now();
    let method = known_method(&request);
    let route = request.extensions().get::<MatchedPath>().cloned();
    let route = route.as_ref().map_or("other", MatchedPath::as_str);
    let id = request.extensions().get::<RequestId>().map(|id| id.0.clone()).unwrap_or_default();
    let response = next.run(request).await;
    let status = response.status().as_u16();
    state.metrics().answered(method, route, status);
    let millis = began.elapsed().as_millis();
    // Probes come every second or so; at the level of requests they would bury them.
    match route.starts_with("/health") || route == "/metrics" {
        true => tracing::debug!(target: "atlas::http", request_id = id, method, route, status, millis, "answered"),
        false => tracing::info!(target: "atlas::http", request_id = id, method, route, status, millis, "answered"),
    }
    response
}

/// The method as a label: clients may invent methods, labels must stay few.
fn known_method(request: &Request) -> &'static str {
    const KNOWN: [&str; 9] = ["GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH", "TRACE", "CONNECT"];
    KNOWN.into_iter().find(|known| request.method().as_str() == *known).unwrap_or("other")
}
