//! What may never reach a log or a metric: keys, prompts, answers, raw control characters.

use crate::support::engine::{ScriptedEngine, Step};
use crate::support::http::{Raw, request};
use crate::support::{TestServer, chat_body, config};
use atlas_server::ApiKey;
use std::io::Write;
use std::sync::{Arc, Mutex};
use tracing_subscriber::fmt::MakeWriter;

#[derive(Clone, Default)]
struct Captured(Arc<Mutex<Vec<u8>>>);

impl Captured {
    fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().unwrap()).into_owned()
    }
}

impl Write for Captured {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for Captured {
    type Writer = Self;

    fn make_writer(&self) -> Self {
        self.clone()
    }
}

#[tokio::test]
async fn no_secret_and_no_prompt_at_any_level() {
    let log = Captured::default();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::TRACE)
        .with_ansi(false)
        .with_writer(log.clone())
        .finish();
    // The whole server runs on this thread.
    let guard = tracing::subscriber::set_default(subscriber);
    let mut config = config();
    config.api_keys = vec![ApiKey::new("SENTINEL-KEY").unwrap()];
    let script = [Step::Text("SENTINEL-ANSWER".into()), Step::Fail("engine trouble")];
    let server = TestServer::start_with(config, ScriptedEngine::plays(script)).await;
    let chat = chat_body(", \"user\": \"SENTINEL-USER\", \"odd\\u001b[31m\\r\\nforged line\": 1")
        .replace("Hi", "SENTINEL-PROMPT");
    let completion = r#"{"prompt": "SENTINEL-PROMPT", "stream": true}"#;
    let wrong = r#"{"prompt": {"SENTINEL-PROMPT": 1}}"#;
    for key in ["SENTINEL-KEY", "SENTINEL-WRONG"] {
        for (path, body) in [
            ("/v1/chat/completions", &*chat),
            ("/v1/completions", completion),
            ("/v1/completions", wrong),
            ("/tokenize", r#"{"prompt": "SENTINEL-PROMPT"}"#),
            ("/SENTINEL-PATH%1b%0d%0a", "{}"),
        ] {
            let headers = [
                "host: localhost",
                "content-type: application/json",
                "connection: close",
                &format!("authorization: Bearer {key}"),
                "x-request-id: SENTINEL ID",
                "user-agent: SENTINEL-AGENT",
            ];
            Raw::say(server.address, request("POST", path, &headers, body)).await.until_closed().await;
        }
    }
    let key = "SENTINEL-KEY";
    let metrics =
        server.client.get(server.url("/metrics")).bearer_auth(key).send().await.unwrap().text().await.unwrap();
    drop(guard);
    let log = log.text();
    assert!(log.contains("answered") && log.contains("/v1/chat/completions"), "the log was captured:\n{log}");
    assert!(log.contains("a request field without effect"), "{log}");
    assert!(!log.contains("SENTINEL"), "{log}");
    assert!(!metrics.contains("SENTINEL"));
    assert!(!log.chars().any(|c| c.is_control() && c != '\n'), "{log}");
    assert!(!log.lines().any(|line| line.starts_with("forged")), "{log}");
}
