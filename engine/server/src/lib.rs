//! The HTTP API of the Atlas engine: OpenAI's chat and text completions, models, tokenisation, health and metrics.
//!
//! A request's way: `guard` (origin, key, size) → `chat` or `completions` (JSON to a parsed request) → the template
//! and tokenizer → `grammars` where the output is held to one → `generation::submit` → the engine → `generation::text_stream` (tokens to text) → `output` (text to
//! JSON) → `sse`. Nothing on that way outlives its client: when the connection closes, the response is dropped, and
//! with it the engine's stream, which cancels the generation.
//!
//! Policy on request fields: a field that would change the result and has no effect here is refused by name
//! (`unsupported`); every other field that is not understood is accepted and named in a debug line of the log.

mod admission;
mod breakers;
mod chat;
mod completions;
mod config;
mod envelope;
mod error;
mod fields;
mod generation;
mod grammars;
mod guard;
mod health;
mod identity;
mod metrics;
mod model;
mod models;
mod options;
mod router;
mod serve;
mod sse;
mod stall;
mod state;
mod structured;
mod tokenize;
mod unsupported;

pub use config::{ConfigError, DeadlineFinish, Limits, RequestDefaults, ServerConfig, ToolGrammar};
pub use guard::auth::ApiKey;
pub use identity::{Identity, RandomIdentity};
pub use model::ServedModel;
pub use router::router;
pub use serve::{ServeError, serve};
pub use state::AppState;
