//! A small client of OpenAI-compatible endpoints that keeps the time of every streamed piece.
//!
//! Every error names the address, and the status and the beginning of the body where there are any.

mod reply;
mod sse;
mod wire;

pub use reply::{Reply, Timing};
pub use sse::{EventTooLong, SseParser};
pub use wire::{ChatRequest, CompletionRequest, ModelCard, Sampling, ToolCall, Usage};

use futures_util::StreamExt;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use thiserror::Error;
use wire::{Chunk, ModelList, Tokenized};

/// A reply may pause this long before it counts as dead.
const IDLE_TIMEOUT: Duration = Duration::from_secs(300);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// How much of a body an error message quotes.
const EXCERPT_BYTES: usize = 400;
/// A reply that is not streamed may not be longer than this.
const MAX_BODY_BYTES: usize = 256 << 20;

/// A request that did not end in a usable reply.
#[derive(Debug, Error)]
pub enum ClientError {
    /// The address is not one that can be asked.
    #[error("{url}: {message}")]
    Url {
        /// As given.
        url: String,
        /// Why not.
        message: String,
    },
    /// No connection, or it broke, or nothing came for too long.
    #[error("{url}: {message}")]
    Transport {
        /// The address asked.
        url: String,
        /// The whole chain of causes.
        message: String,
    },
    /// The server refused or failed.
    #[error("{url}: status {status}: {body}")]
    Status {
        /// The address asked.
        url: String,
        /// HTTP status.
        status: u16,
        /// The beginning of the body.
        body: String,
    },
    /// The reply is not what the API promises.
    #[error("{url}: {message}: {body}")]
    Reply {
        /// The address asked.
        url: String,
        /// What is wrong.
        message: String,
        /// The beginning of the offending part.
        body: String,
    },
    /// The endpoint did not become ready in time.
    #[error("{url}: not ready after {seconds} s: {last}")]
    NotReady {
        /// The address asked.
        url: String,
        /// How long it was waited for.
        seconds: u64,
        /// The last answer.
        last: String,
    },
}

/// One endpoint. Cheap to clone; clones share connections.
#[derive(Debug, Clone)]
pub struct Client {
    http: reqwest::Client,
    base: String,
    api_key: Option<String>,
}

impl Client {
    /// A client of `url` (`http://host:port`, with or without `/v1`), sending `api_key` as a bearer token.
    pub fn new(url: &str, api_key: Option<String>) -> Result<Self, ClientError> {
        let fail = |message: String| ClientError::Url { url: url.into(), message };
        let parsed = reqwest::Url::parse(url).map_err(|error| fail(error.to_string()))?;
        if parsed.scheme() != "http" {
            return Err(fail(format!("{} is not supported: give an http:// address", parsed.scheme())));
        }
        // A client cannot be built without; whoever was first is fine.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut http = reqwest::Client::builder()
            // Plain http needs no certificates, and reading them takes a while.
            .tls_certs_only([])
            .connect_timeout(CONNECT_TIMEOUT)
            .read_timeout(IDLE_TIMEOUT)
            .redirect(reqwest::redirect::Policy::none());
        if parsed.host_str().is_some_and(is_loopback) {
            http = http.no_proxy();
        }
        let base = url.trim_end_matches('/').trim_end_matches("/v1").to_owned();
        Ok(Self { http: http.build().map_err(|error| fail(causes(&error)))?, base, api_key })
    }

    /// The address without `/v1`.
    pub fn base(&self) -> &str {
        &self.base
    }

    /// Waits until `/health/ready` answers 200, for at most `limit`.
    pub async fn wait_ready(&self, limit: Duration) -> Result<(), ClientError> {
        let (url, start) = (format!("{}/health/ready", self.base), Instant::now());
        let mut last = String::from("no answer");
        while start.elapsed() < limit {
            let request = self.authorised(self.http.get(&url)).timeout(CONNECT_TIMEOUT);
            match request.send().await {
                Ok(response) if response.status().is_success() => return Ok(()),
                Ok(response) => last = format!("status {}", response.status().as_u16()),
                Err(error) => last = causes(&error),
            }
            tokio::time::sleep(Duration::from_millis(100).min(limit)).await;
        }
        Err(ClientError::NotReady { url, seconds: limit.as_secs(), last })
    }

    /// The served models.
    pub async fn models(&self) -> Result<Vec<ModelCard>, ClientError> {
        let url = format!("{}/v1/models", self.base);
        let list: ModelList = self.json(&url, self.http.get(&url)).await?;
        Ok(list.data)
    }

    /// The first served model.
    pub async fn first_model(&self) -> Result<ModelCard, ClientError> {
        self.models().await?.into_iter().next().ok_or_else(|| ClientError::Reply {
            url: format!("{}/v1/models", self.base),
            message: "no model is served".into(),
            body: String::new(),
        })
    }

    /// Token ids of `text`, its special tokens parsed, none added.
    pub async fn tokenize(&self, model: &str, text: &str) -> Result<Vec<u32>, ClientError> {
        let body = json!({ "model": model, "prompt": text, "add_special_tokens": false });
        let reply: Tokenized = self.post("/tokenize", &body).await?;
        Ok(reply.tokens)
    }

    /// A chat completion, streamed or not.
    pub async fn chat(&self, request: &ChatRequest, stream: bool) -> Result<Reply, ClientError> {
        self.generate("/v1/chat/completions", request, stream).await
    }

    /// A plain completion, streamed or not.
    pub async fn complete(&self, request: &CompletionRequest, stream: bool) -> Result<Reply, ClientError> {
        self.generate("/v1/completions", request, stream).await
    }

    /// Natural log-probability of each prompt token given those before it; none for the first.
    pub async fn prompt_logprobs(&self, model: &str, prompt: &[u32]) -> Result<Vec<Option<f64>>, ClientError> {
        let request = CompletionRequest {
            model: model.into(),
            prompt: prompt.to_vec(),
            sampling: Sampling { max_tokens: 0, ..Sampling::default() },
            logprobs: Some(0),
            echo: true,
        };
        let reply = self.complete(&request, false).await?;
        if reply.tokens.len() != prompt.len() {
            return Err(ClientError::Reply {
                url: format!("{}/v1/completions", self.base),
                message: format!("{} log-probabilities for {} prompt tokens", reply.tokens.len(), prompt.len()),
                body: excerpt(reply.text.as_bytes()),
            });
        }
        Ok(reply.tokens.into_iter().map(|(_, logprob)| logprob).collect())
    }

    async fn generate(&self, path: &str, request: &impl Serialize, stream: bool) -> Result<Reply, ClientError> {
        let url = format!("{}{path}", self.base);
        let mut body = serde_json::to_value(request).map_err(|error| ClientError::Reply {
            url: url.clone(),
            message: format!("the request cannot be written: {error}"),
            body: String::new(),
        })?;
        if stream {
            body["stream"] = json!(true);
            body["stream_options"] = json!({ "include_usage": true });
            return self.stream(&url, &body).await;
        }
        let sent = Instant::now();
        let chunk: Chunk = self.json(&url, self.http.post(&url).json(&body)).await?;
        let mut reply = Reply::default();
        reply.add(chunk, sent.elapsed()).map_err(|message| reply_error(&url, message))?;
        finished(&url, reply)
    }

    async fn stream(&self, url: &str, body: &Value) -> Result<Reply, ClientError> {
        let sent = Instant::now();
        let response = self.authorised(self.http.post(url).json(body)).send().await;
        let response = self.success(url, response).await?;
        let (mut bytes, mut parser) = (response.bytes_stream(), SseParser::default());
        let mut reply = Reply::default();
        while let Some(piece) = bytes.next().await {
            let piece = piece.map_err(|error| transport(url, &error))?;
            let at = sent.elapsed();
            for event in parser.push(&piece).map_err(|error| reply_error(url, error.to_string()))? {
                if event == "[DONE]" {
                    return finished(url, reply);
                }
                let chunk: Chunk = decode(url, event.as_bytes())?;
                reply.add(chunk, at).map_err(|message| reply_error(url, message))?;
            }
        }
        Err(reply_error(url, "the stream ended before [DONE]".into()))
    }

    async fn post<T: DeserializeOwned>(&self, path: &str, body: &Value) -> Result<T, ClientError> {
        let url = format!("{}{path}", self.base);
        self.json(&url, self.http.post(&url).json(body)).await
    }

    async fn json<T: DeserializeOwned>(&self, url: &str, request: reqwest::RequestBuilder) -> Result<T, ClientError> {
        let response = self.success(url, self.authorised(request).send().await).await?;
        let mut body = Vec::new();
        let mut stream = response.bytes_stream();
        while let Some(piece) = stream.next().await {
            body.extend_from_slice(&piece.map_err(|error| transport(url, &error))?);
            if body.len() > MAX_BODY_BYTES {
                return Err(reply_error(url, format!("the reply is longer than {MAX_BODY_BYTES} bytes")));
            }
        }
        decode(url, &body)
    }

    fn authorised(&self, request: reqwest::RequestBuilder) -> reqwest::RequestBuilder {
        match &self.api_key {
            Some(key) => request.bearer_auth(key),
            None => request,
        }
    }

    async fn success(
        &self,
        url: &str,
        response: Result<reqwest::Response, reqwest::Error>,
    ) -> Result<reqwest::Response, ClientError> {
        let response = response.map_err(|error| transport(url, &error))?;
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let first = response.bytes_stream().next().await;
        let body = first.and_then(Result::ok).map(|bytes| excerpt(&bytes)).unwrap_or_default();
        Err(ClientError::Status { url: url.into(), status: status.as_u16(), body })
    }
}

/// A reply without a finish reason was cut off.
fn finished(url: &str, reply: Reply) -> Result<Reply, ClientError> {
    match reply.finish_reason {
        Some(_) => Ok(reply),
        None => Err(ClientError::Reply {
            url: url.into(),
            message: "the reply has no finish reason".into(),
            body: excerpt(reply.text.as_bytes()),
        }),
    }
}

fn decode<T: DeserializeOwned>(url: &str, body: &[u8]) -> Result<T, ClientError> {
    serde_json::from_slice(body).map_err(|error| ClientError::Reply {
        url: url.into(),
        message: error.to_string(),
        body: excerpt(body),
    })
}

fn reply_error(url: &str, message: String) -> ClientError {
    ClientError::Reply { url: url.into(), message, body: String::new() }
}

fn transport(url: &str, error: &reqwest::Error) -> ClientError {
    ClientError::Transport { url: url.into(), message: causes(error) }
}

/// An error with everything below it; reqwest alone says only "error sending request".
fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text
}

/// The beginning of a body on one line, control characters escaped.
fn excerpt(bytes: &[u8]) -> String {
    let cut = &bytes[..bytes.len().min(EXCERPT_BYTES)];
    let text: String =
        String::from_utf8_lossy(cut).chars().flat_map(|c| escape(c).chars().collect::<Vec<_>>()).collect();
    if bytes.len() > EXCERPT_BYTES { text + "…" } else { text }
}

fn escape(c: char) -> String {
    if c.is_control() { c.escape_default().to_string() } else { c.to_string() }
}

fn is_loopback(host: &str) -> bool {
    let host = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}
