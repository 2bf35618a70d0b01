//! Errors as clients see them: a status and the OpenAI error object.

use atlas_engine::engine::SubmitError;
use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use std::time::Duration;

/// A refusal or failure, told in the OpenAI error shape. Its message is shown to the client.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ApiError {
    status: StatusCode,
    kind: &'static str,
    code: Option<&'static str>,
    param: Option<String>,
    message: String,
    retry_after: Option<Duration>,
}

/// `{"error": …}`, the body of every refusal and the payload of a stream that fails midway.
#[derive(Debug, Serialize)]
pub(crate) struct ErrorBody<'a> {
    error: ErrorObject<'a>,
}

#[derive(Debug, Serialize)]
struct ErrorObject<'a> {
    message: &'a str,
    #[serde(rename = "type")]
    kind: &'a str,
    param: Option<&'a str>,
    code: Option<&'a str>,
}

impl ApiError {
    fn new(status: StatusCode, kind: &'static str, message: impl Into<String>) -> Self {
        Self { status, kind, code: None, param: None, message: message.into(), retry_after: None }
    }

    /// 400 for the request as a whole.
    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_request_error", message)
    }

    /// 400 that names the field at fault; the message begins with its name.
    pub(crate) fn field(name: impl Into<String>, problem: impl std::fmt::Display) -> Self {
        let name = name.into();
        let message = format!("{name}: {problem}");
        Self { param: Some(name), ..Self::bad_request(message) }
    }

    /// 400 for a field whose effect this server does not have.
    pub(crate) fn unsupported(name: impl Into<String>, problem: impl std::fmt::Display) -> Self {
        Self { code: Some("unsupported_parameter"), ..Self::field(name, problem) }
    }

    /// 400 for a prompt that leaves no room in the context.
    pub(crate) fn context_length(param: &'static str, prompt_tokens: usize, max_context: usize) -> Self {
        let problem = format!(
            "this model's context holds {max_context} tokens, the prompt has {prompt_tokens}, \
             and at least one must be left for the answer; shorten the prompt"
        );
        Self { code: Some("context_length_exceeded"), ..Self::field(param, problem) }
    }

    pub(crate) fn unauthorized(message: &'static str) -> Self {
        let error = Self::new(StatusCode::UNAUTHORIZED, "authentication_error", message);
        Self { code: Some("invalid_api_key"), ..error }
    }

    pub(crate) fn forbidden(code: &'static str, message: impl Into<String>) -> Self {
        Self { code: Some(code), ..Self::new(StatusCode::FORBIDDEN, "permission_error", message) }
    }

    pub(crate) fn not_found(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "invalid_request_error", message)
    }

    pub(crate) fn model_not_found<'a>(model: &str, served: impl Iterator<Item = &'a str>) -> Self {
        let served: Vec<_> = served.map(|name| format!("`{name}`")).collect();
        let message = format!("model `{}` is not served here; served: {}", shorten(model), served.join(", "));
        Self { code: Some("model_not_found"), param: Some("model".into()), ..Self::not_found(message) }
    }

    pub(crate) fn method_not_allowed() -> Self {
        let message = "this path exists, but not for this method; see the Allow header";
        let error = Self::new(StatusCode::METHOD_NOT_ALLOWED, "invalid_request_error", message);
        Self { code: Some("method_not_allowed"), ..error }
    }

    pub(crate) fn request_timeout() -> Self {
        let message = "the request body did not arrive in time";
        Self::new(StatusCode::REQUEST_TIMEOUT, "invalid_request_error", message)
    }

    pub(crate) fn body_too_large(limit: usize) -> Self {
        let message = format!("the request body is larger than the limit of {limit} bytes");
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "invalid_request_error", message)
    }

    pub(crate) fn media_type() -> Self {
        let message = "send JSON with the header `Content-Type: application/json`";
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "invalid_request_error", message)
    }

    pub(crate) fn busy(message: impl Into<String>, retry_after: Duration) -> Self {
        let error = Self::new(StatusCode::TOO_MANY_REQUESTS, "rate_limit_error", message);
        Self { code: Some("server_busy"), retry_after: Some(retry_after), ..error }
    }

    pub(crate) fn unavailable(code: &'static str, message: impl Into<String>) -> Self {
        let error = Self::new(StatusCode::SERVICE_UNAVAILABLE, "service_unavailable_error", message);
        Self { code: Some(code), retry_after: Some(Duration::from_secs(5)), ..error }
    }

    pub(crate) fn internal(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "server_error", message)
    }

    /// A refusal by the engine; `prompt` is the field that holds the prompt.
    pub(crate) fn from_submit(error: &SubmitError, prompt: &'static str) -> Self {
        match error {
            SubmitError::EmptyPrompt => Self::field(prompt, "the prompt is empty"),
            SubmitError::PromptTooLong { prompt_tokens, max_context } => {
                Self::context_length(prompt, *prompt_tokens, *max_context)
            }
            SubmitError::TooLarge(message) | SubmitError::Invalid(message) => Self::bad_request(message),
            SubmitError::QueueFull { retry_after, .. } => Self::busy(error.to_string(), *retry_after),
            SubmitError::NotRunning => Self::unavailable("engine_not_running", error.to_string()),
        }
    }

    /// The JSON object.
    pub(crate) fn body(&self) -> ErrorBody<'_> {
        ErrorBody {
            error: ErrorObject {
                message: &self.message,
                kind: self.kind,
                param: self.param.as_deref(),
                code: self.code,
            },
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(self.body())).into_response();
        let headers = response.headers_mut();
        if let Some(pause) = self.retry_after {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(pause.as_secs().max(1)));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if matches!(self.status, StatusCode::PAYLOAD_TOO_LARGE | StatusCode::REQUEST_TIMEOUT) {
            // The rest of the body is not worth reading.
            headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }
}

/// A client's own string for an error message, cut to a length that is pleasant to read.
pub(crate) fn shorten(text: &str) -> String {
    const MAX_CHARS: usize = 64;
    match text.char_indices().nth(MAX_CHARS) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}
