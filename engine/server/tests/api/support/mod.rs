//! A real server on a free port, with a scripted engine behind it.

pub(crate) mod engine;
pub(crate) mod http;
pub(crate) mod log;

use atlas_engine::engine::EngineHandle;
use atlas_engine::text::chat_template::ChatTemplate;
use atlas_engine::text::parser::{ReasoningFormat, ToolFormat};
use atlas_engine::text::tokenizer::Tokenizer;
use atlas_server::{AppState, Identity, ServeError, ServedModel, ServerConfig, serve};
use engine::ScriptedEngine;
use serde_json::Value;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// No single wait of a test is longer; a longer one is a failure.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) fn tokenizer() -> Tokenizer {
    Tokenizer::from_bytes(include_bytes!("../fixtures/tokenizer.json"), None).unwrap()
}

pub(crate) fn template() -> ChatTemplate {
    ChatTemplate::new(include_str!("../fixtures/chat_template.jinja"), None, None).unwrap()
}

pub(crate) fn config() -> ServerConfig {
    let mut config = ServerConfig::new("atlas-test");
    config.model_aliases = vec!["org/alias".into()];
    config
}

/// Ids that count up, a fixed clock and a fixed seed.
#[derive(Debug, Default)]
struct FixedIdentity(AtomicU64);

impl Identity for FixedIdentity {
    fn id(&self, prefix: &str) -> String {
        format!("{prefix}-{}", self.0.fetch_add(1, Ordering::Relaxed))
    }

    fn unix_seconds(&self) -> u64 {
        1_800_000_000
    }

    fn seed(&self) -> u64 {
        7
    }
}

/// A running server. Dropping it stops it.
pub(crate) struct TestServer {
    pub(crate) address: SocketAddr,
    pub(crate) engine: Arc<ScriptedEngine>,
    pub(crate) state: AppState,
    pub(crate) client: reqwest::Client,
    pub(crate) stop: Option<oneshot::Sender<()>>,
    pub(crate) serving: JoinHandle<Result<(), ServeError>>,
}

impl TestServer {
    /// With the default configuration.
    pub(crate) async fn start(engine: ScriptedEngine) -> Self {
        Self::start_with(config(), engine).await
    }

    pub(crate) async fn start_with(config: ServerConfig, engine: ScriptedEngine) -> Self {
        let server = Self::start_empty(config, engine).await;
        server.load();
        server
    }

    /// Without the model, as while it loads.
    pub(crate) async fn start_empty(config: ServerConfig, engine: ScriptedEngine) -> Self {
        log::install();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let state = AppState::with_identity(config, Arc::new(FixedIdentity::default()));
        let (stop, stopped) = oneshot::channel::<()>();
        let shutdown = async { drop(stopped.await) };
        let serving = tokio::spawn(serve(listener, state.clone(), shutdown));
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = reqwest::Client::builder().no_proxy().build().unwrap();
        Self { address, engine: Arc::new(engine), state, client, stop: Some(stop), serving }
    }

    pub(crate) fn load(&self) {
        self.load_with(Some(template()));
    }

    pub(crate) fn load_with(&self, template: Option<ChatTemplate>) {
        let engine = EngineHandle::new(self.engine.clone());
        self.state.set_model(ServedModel::new(
            engine,
            tokenizer(),
            template,
            ToolFormat::Hermes,
            ReasoningFormat::ThinkTags,
        ));
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        Answer::of(self.client.get(self.url(path)).send().await.unwrap()).await
    }

    /// Posts JSON text as it is.
    pub(crate) async fn post(&self, path: &str, body: impl Into<String>) -> Answer {
        let request = self.client.post(self.url(path)).header("content-type", "application/json").body(body.into());
        Answer::of(request.send().await.unwrap()).await
    }

    /// A chat with one user message and `more` fields, as in `, "n": 2`.
    pub(crate) async fn chat(&self, more: &str) -> Answer {
        self.post("/v1/chat/completions", chat_body(more)).await
    }

    /// Asks the server to stop and returns how serving ended.
    pub(crate) async fn stop(mut self) -> Result<(), ServeError> {
        self.stop.take().map(|stop| stop.send(()));
        tokio::time::timeout(PATIENCE, &mut self.serving).await.unwrap().unwrap()
    }
}

pub(crate) fn chat_body(more: &str) -> String {
    format!(r#"{{"model": "atlas-test", "messages": [{{"role": "user", "content": "Hi"}}]{more}}}"#)
}

/// A complete answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: reqwest::header::HeaderMap,
    pub(crate) text: String,
}

impl Answer {
    async fn of(response: reqwest::Response) -> Self {
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        let text = tokio::time::timeout(PATIENCE, response.text()).await.unwrap().unwrap();
        Self { status, headers, text }
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error}: {}", self.text))
    }

    /// The JSON of every event but the last, which must be `[DONE]`.
    pub(crate) fn events(&self) -> Vec<Value> {
        let mut data: Vec<_> = self.text.split("\n\n").filter_map(|event| event.strip_prefix("data: ")).collect();
        assert_eq!(data.pop(), Some("[DONE]"), "{}", self.text);
        data.into_iter().map(|event| serde_json::from_str(event).unwrap()).collect()
    }

    /// Checks the OpenAI error shape and returns `param`.
    pub(crate) fn error_param(&self) -> Option<String> {
        let error = &self.json()["error"];
        assert!(error["message"].as_str().is_some_and(|message| !message.is_empty()), "{}", self.text);
        assert!(error["type"].is_string(), "{}", self.text);
        for optional in ["param", "code"] {
            assert!(error.get(optional).is_some_and(|value| value.is_null() || value.is_string()), "{}", self.text);
        }
        error["param"].as_str().map(str::to_owned)
    }
}

/// Waits for a condition that another task brings about.
pub(crate) async fn eventually(what: &str, condition: impl Fn() -> bool) {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while !condition() {
        assert!(tokio::time::Instant::now() < deadline, "never: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}
