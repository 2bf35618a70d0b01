//! The client side of the HTTP API, as the runner needs it: health, the model's name, and streamed chats.

use crate::errors::CliError;
use atlas_schemas::serve_options::Secret;
use serde_json::Value;
use std::time::Duration;

/// The most bytes of one event of a stream or one plain answer.
const MAX_ANSWER: usize = 8 << 20;

/// What `/health/ready` says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Health {
    /// Requests are answered.
    Ready,
    /// The server answers, but it loads or is in trouble; its own words.
    NotReady(String),
    /// Nothing answers as HTTP.
    Unreachable(String),
}

/// A server's address with the key to use it.
#[derive(Debug, Clone)]
pub(crate) struct Endpoint {
    base: String,
    client: reqwest::Client,
    api_key: Option<Secret>,
}

impl Endpoint {
    /// `url` with or without a trailing `/v1`. Proxies are not used: the servers meant are the user's own.
    pub(crate) fn new(url: &str, api_key: Option<Secret>) -> Result<Self, CliError> {
        let base = url.trim_end_matches('/').trim_end_matches("/v1").trim_end_matches('/').to_owned();
        if !base.starts_with("http://") {
            let problem =
                if base.starts_with("https://") { "https is not supported yet" } else { "it must start with http://" };
            return Err(CliError::Usage(format!("`{url}` is not a URL that atlas can use: {problem}")));
        }
        atlas_hub::install_tls();
        let client = reqwest::Client::builder()
            .no_proxy()
            // Plain http needs no certificates, and reading them takes a while.
            .tls_certs_only([])
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(Duration::from_secs(5))
            .build()
            .map_err(|error| CliError::Failed(format!("cannot set up the HTTP client: {error}")))?;
        Ok(Self { base, client, api_key })
    }

    /// The address without `/v1`.
    pub(crate) fn base(&self) -> &str {
        &self.base
    }

    fn request(&self, method: reqwest::Method, path: &str) -> reqwest::RequestBuilder {
        let request = self.client.request(method, format!("{}{path}", self.base));
        match &self.api_key {
            Some(key) => request.bearer_auth(key.expose()),
            None => request,
        }
    }

    /// Asks for readiness; `limit` bounds the whole exchange.
    pub(crate) async fn health(&self, limit: Duration) -> Health {
        match self.request(reqwest::Method::GET, "/health/ready").timeout(limit).send().await {
            Err(error) => Health::Unreachable(self.explain(&error)),
            Ok(answer) if answer.status().is_success() => Health::Ready,
            Ok(answer) => {
                let status = answer.status();
                let text = read_limited(answer, 4096).await.unwrap_or_default();
                let words = error_message(&text).unwrap_or_else(|| text.trim().chars().take(200).collect());
                Health::NotReady(format!("{status} {words}").trim().to_owned())
            }
        }
    }

    /// Name of the first model that is served.
    pub(crate) async fn model_name(&self) -> Result<String, CliError> {
        let request = self.request(reqwest::Method::GET, "/v1/models").timeout(Duration::from_secs(10));
        let answer = self.send(request).await?;
        let models = json(&read_limited(answer, MAX_ANSWER).await.map_err(|error| self.broken(&error))?)?;
        let name = models.pointer("/data/0/id").and_then(Value::as_str);
        name.map(str::to_owned)
            .ok_or_else(|| CliError::Failed(format!("{} lists no model under /v1/models", self.base)))
    }

    /// One chat completion that is not streamed.
    pub(crate) async fn chat(&self, body: &Value, limit: Duration) -> Result<Value, CliError> {
        let request = self.request(reqwest::Method::POST, "/v1/chat/completions").json(body).timeout(limit);
        let answer = self.send(request).await?;
        json(&read_limited(answer, MAX_ANSWER).await.map_err(|error| self.broken(&error))?)
    }

    /// Starts a streamed chat completion.
    pub(crate) async fn chat_stream(&self, body: &Value) -> Result<EventStream, CliError> {
        let answer = self.send(self.request(reqwest::Method::POST, "/v1/chat/completions").json(body)).await?;
        Ok(EventStream { answer, buffer: Vec::new() })
    }

    async fn send(&self, request: reqwest::RequestBuilder) -> Result<reqwest::Response, CliError> {
        let answer = request.send().await.map_err(|error| self.broken(&error))?;
        if answer.status().is_success() {
            return Ok(answer);
        }
        let status = answer.status();
        let text = read_limited(answer, 64 << 10).await.unwrap_or_default();
        let words = error_message(&text).unwrap_or_else(|| text.trim().chars().take(300).collect());
        Err(CliError::Failed(format!("{} answered {status}: {words}", self.base)))
    }

    fn broken(&self, error: &reqwest::Error) -> CliError {
        CliError::Failed(self.explain(error))
    }

    /// reqwest's own text names the URL but not the cause; the innermost cause is what a person needs.
    fn explain(&self, error: &reqwest::Error) -> String {
        if error.is_timeout() {
            return format!("{} did not answer in time", self.base);
        }
        let mut cause: &dyn std::error::Error = error;
        while let Some(inner) = cause.source() {
            cause = inner;
        }
        if error.is_connect() {
            return format!("nothing listens at {} ({cause})", self.base);
        }
        format!("{}: the connection broke ({cause})", self.base)
    }
}

/// Server-sent events of one answer.
#[derive(Debug)]
pub(crate) struct EventStream {
    answer: reqwest::Response,
    buffer: Vec<u8>,
}

impl EventStream {
    /// The next event's JSON; `None` after `[DONE]`. A stream that ends before it is an error: its text is not whole.
    pub(crate) async fn next(&mut self) -> Result<Option<Value>, CliError> {
        loop {
            while let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=end).collect();
                let line = String::from_utf8_lossy(&line);
                // Comments, event names and blank lines carry nothing that is needed here.
                let Some(data) = line.trim_end().strip_prefix("data:") else { continue };
                if data.trim() == "[DONE]" {
                    return Ok(None);
                }
                let event = json(data)?;
                if let Some(message) = error_message(data) {
                    return Err(CliError::Failed(format!("the server broke off: {message}")));
                }
                return Ok(Some(event));
            }
            if self.buffer.len() > MAX_ANSWER {
                return Err(CliError::Failed("the server sent an event without end".to_owned()));
            }
            match self.answer.chunk().await {
                Ok(Some(bytes)) => self.buffer.extend_from_slice(&bytes),
                Ok(None) => return Err(CliError::Failed("the server closed the connection in mid-answer".to_owned())),
                Err(error) => return Err(CliError::Failed(format!("the connection broke in mid-answer: {error}"))),
            }
        }
    }
}

async fn read_limited(mut answer: reqwest::Response, limit: usize) -> reqwest::Result<String> {
    let mut bytes = Vec::new();
    while let Some(chunk) = answer.chunk().await? {
        bytes.extend_from_slice(&chunk);
        if bytes.len() >= limit {
            bytes.truncate(limit);
            break;
        }
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn json(text: &str) -> Result<Value, CliError> {
    serde_json::from_str(text).map_err(|error| CliError::Failed(format!("the answer is not JSON: {error}")))
}

/// The message in an OpenAI-shaped error.
fn error_message(text: &str) -> Option<String> {
    let value: Value = serde_json::from_str(text).ok()?;
    let error = value.get("error")?;
    let message = error.get("message").unwrap_or(error).as_str()?;
    Some(message.to_owned())
}
