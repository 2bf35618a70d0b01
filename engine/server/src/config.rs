//! What a server is told before it starts: names, keys, limits and defaults.

use crate::guard::auth::ApiKey;
use atlas_engine::sampling::SamplingParams;
use serde_json::{Map, Value};
use std::net::SocketAddr;
use std::time::Duration;
use thiserror::Error;

/// Everything that shapes the API of one served model.
#[derive(Debug, Clone)]
pub struct ServerConfig {
    /// The name that requests give as `model` and that `/v1/models` lists first.
    pub model_name: String,
    /// Further names for the same model.
    pub model_aliases: Vec<String>,
    /// Keys of which a request must present one. Empty: no key is asked for.
    pub api_keys: Vec<ApiKey>,
    /// Permits a bind beyond loopback without any key.
    pub allow_unauthenticated: bool,
    /// `Host` names accepted on a loopback bind besides the loopback names. Compared without port and case.
    pub allowed_hosts: Vec<String>,
    /// Foreign origins (`https://chat.example`) that browsers may call from; they receive CORS headers.
    pub allowed_origins: Vec<String>,
    /// What a request gets when it does not say.
    pub defaults: RequestDefaults,
    /// When tool calls are held to the schemas of their tools.
    pub tool_grammar: ToolGrammar,
    /// What a generation may last, queue included.
    pub request_timeout: Duration,
    /// What a generation that met its deadline reports.
    pub deadline_finish: DeadlineFinish,
    /// Sizes, counts and times that no client exceeds.
    pub limits: Limits,
}

/// Values for the fields that a request leaves out.
#[derive(Debug, Clone)]
pub struct RequestDefaults {
    /// Sampling, usually from the model's `generation_config.json`. Its seed is not used.
    pub sampling: SamplingParams,
    /// The seed; by default every request draws its own.
    pub seed: Option<u64>,
    /// The most tokens to generate; `None` is the rest of the context for chats and 16 for completions.
    pub max_tokens: Option<usize>,
    /// Template variables under those that a request sends in `chat_template_kwargs`.
    pub template_kwargs: Map<String, Value>,
    /// Thinking stays off whatever a request asks for.
    pub disable_thinking: bool,
}

/// When tool calls are held to the schemas of their tools.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ToolGrammar {
    /// Those of tools marked `strict`, and all if the request demands a call.
    #[default]
    Auto,
    /// All calls.
    Always,
    /// No call: arguments are any object, also where the request demands a call.
    Never,
}

/// `finish_reason` of a generation that met its deadline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeadlineFinish {
    /// `length`: understood by every client.
    Length,
    /// `timeout`: more exact, but outside the values that strictly typed clients accept.
    Timeout,
}

/// Sizes, counts and times that no client exceeds.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Bytes of one request body; more is answered with 413.
    pub max_body_bytes: usize,
    /// Bytes of all request bodies that are being read or parsed at once.
    pub max_total_body_bytes: usize,
    /// Bytes of the request line and headers together; more is answered with 431.
    pub max_header_bytes: usize,
    /// Number of header lines; more is answered with 431.
    pub max_headers: usize,
    /// A request's headers must be complete by then; an idle kept-alive connection is closed after it too.
    pub header_timeout: Duration,
    /// A request's body must be complete by then; later is answered with 408.
    pub body_timeout: Duration,
    /// A connection whose client reads nothing for so long is closed.
    pub write_timeout: Duration,
    /// Open connections; more wait in the listener's backlog.
    pub max_connections: usize,
    /// Requests being generated or waiting for it; more are answered with 429.
    pub max_concurrent_requests: usize,
    /// The largest `n` and the most prompts in one completion request.
    pub max_choices: usize,
    /// Upper bound of `choices × max_tokens × (1 + top logprobs)` of one request.
    pub max_output_units: u64,
    /// A comment is sent on a silent event stream this often.
    pub keep_alive: Duration,
    /// After the signal to stop, running generations may take so long.
    pub shutdown_grace: Duration,
    /// With running requests but no step for so long, the engine counts as lost. One step of a large model on a CPU may
    /// take minutes; on a GPU, seconds are enough.
    pub stall_timeout: Duration,
}

/// Why a configuration cannot be served.
#[derive(Debug, Error, PartialEq)]
pub enum ConfigError {
    /// The address can be reached from other machines, and no key protects it.
    #[error(
        "refusing to listen on {0} without an API key: it can be reached from other machines; \
         set an API key, bind to 127.0.0.1, or pass --allow-unauthenticated"
    )]
    Unauthenticated(SocketAddr),
    /// A key without a character.
    #[error("an API key must not be empty")]
    EmptyKey,
}

impl ServerConfig {
    /// A loopback configuration with the default limits.
    pub fn new(model_name: impl Into<String>) -> Self {
        Self {
            model_name: model_name.into(),
            model_aliases: Vec::new(),
            api_keys: Vec::new(),
            allow_unauthenticated: false,
            allowed_hosts: Vec::new(),
            allowed_origins: Vec::new(),
            defaults: RequestDefaults::default(),
            tool_grammar: ToolGrammar::default(),
            request_timeout: Duration::from_secs(300),
            deadline_finish: DeadlineFinish::Length,
            limits: Limits::default(),
        }
    }

    /// Whether `address` may be listened on. Call it before binding so that nothing is exposed for a moment.
    pub fn check_bind(&self, address: SocketAddr) -> Result<(), ConfigError> {
        let protected = address.ip().is_loopback() || !self.api_keys.is_empty() || self.allow_unauthenticated;
        if protected { Ok(()) } else { Err(ConfigError::Unauthenticated(address)) }
    }

    /// Whether a request's `model` means the served one.
    pub(crate) fn serves(&self, model: &str) -> bool {
        self.model_name == model || self.model_aliases.iter().any(|alias| alias == model)
    }

    /// The served name and its aliases.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        std::iter::once(self.model_name.as_str()).chain(self.model_aliases.iter().map(String::as_str))
    }
}

impl Default for RequestDefaults {
    fn default() -> Self {
        Self {
            sampling: SamplingParams { temperature: 1.0, ..SamplingParams::default() },
            seed: None,
            max_tokens: None,
            template_kwargs: Map::new(),
            disable_thinking: false,
        }
    }
}

impl DeadlineFinish {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Length => "length",
            Self::Timeout => "timeout",
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_body_bytes: 32 << 20,
            max_total_body_bytes: 256 << 20,
            max_header_bytes: 64 << 10,
            max_headers: 100,
            header_timeout: Duration::from_secs(30),
            body_timeout: Duration::from_secs(60),
            write_timeout: Duration::from_secs(60),
            max_connections: 1024,
            max_concurrent_requests: 512,
            max_choices: 128,
            max_output_units: 8 << 20,
            keep_alive: Duration::from_secs(10),
            shutdown_grace: Duration::from_secs(30),
            stall_timeout: Duration::from_secs(600),
        }
    }
}
