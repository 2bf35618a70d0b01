//! Request ids: the client's own if it is harmless, else a new one; echoed in the answer and put into every log line.

use crate::state::AppState;
use axum::extract::{Request, State};
use axum::http::{HeaderName, HeaderValue};
use axum::middleware::Next;
use axum::response::Response;

const HEADER: HeaderName = HeaderName::from_static("x-request-id");
const MAX_LENGTH: usize = 128;

/// The id of the request at hand.
#[derive(Debug, Clone)]
pub(crate) struct RequestId(pub(crate) String);

/// Gives every request an id.
pub(crate) async fn identify(State(state): State<AppState>, mut request: Request, next: Next) -> Response {
    let given = request.headers().get(HEADER).and_then(|value| value.to_str().ok()).filter(|id| is_harmless(id));
    let id = given.map_or_else(|| state.identity().id("req"), str::to_owned);
    request.extensions_mut().insert(RequestId(id.clone()));
    let mut response = next.run(request).await;
    if let Ok(value) = HeaderValue::from_str(&id) {
        response.headers_mut().insert(HEADER, value);
    }
    response
}

/// Printable without escapes in any log, and short.
fn is_harmless(id: &str) -> bool {
    (1..=MAX_LENGTH).contains(&id.len())
        && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.:/+=".contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::is_harmless;

    #[test]
    fn only_plain_ids_are_taken_over() {
        for id in ["a", "550e8400-e29b-41d4-a716-446655440000", "svc/7:x_y.z+="] {
            assert!(is_harmless(id), "{id}");
        }
        for id in ["", "a b", "a\tb", "a\u{1b}[31m", "é", "{\"a\":1}", &"x".repeat(129)] {
            assert!(!is_harmless(id), "{id:?}");
        }
    }
}
