//! What may never reach a log or a metric: keys, prompts, answers, raw control characters.

use crate::support::engine::{ScriptedEngine, Step};
use crate::support::http::{Raw, request};
use crate::support::{TestServer, chat_body, config, log};
use atlas_server::ApiKey;

#[tokio::test]
async fn no_secret_and_no_prompt_at_any_level() {
    let mut config = config();
    config.api_keys = vec![ApiKey::new("SENTINEL-KEY").unwrap()];
    let script = [Step::Text("SENTINEL-ANSWER".into()), Step::Fail("engine trouble")];
    let server = TestServer::start_with(config, ScriptedEngine::plays(script)).await;
    let odd = ", \"user\": \"SENTINEL-USER\", \"odd\\u001b[31m\\r\\nforged line\": 1";
    let chat = chat_body(odd).replace("Hi", "SENTINEL-PROMPT");
    let requests = [
        ("/v1/chat/completions", chat.as_str()),
        ("/v1/completions", r#"{"prompt": "SENTINEL-PROMPT", "stream": true}"#),
        ("/v1/completions", r#"{"prompt": {"SENTINEL-PROMPT": 1}}"#),
        ("/v1/completions", r#"{"model": "SENTINEL-MODEL", "prompt": "a"}"#),
        ("/tokenize", r#"{"prompt": "SENTINEL-PROMPT"}"#),
        ("/SENTINEL-PATH%1b%0d%0a", "{}"),
    ];
    for key in ["SENTINEL-KEY", "SENTINEL-WRONG"] {
        for (path, body) in requests {
            let key = format!("authorization: Bearer {key}");
            let headers = [
                "host: localhost",
                "content-type: application/json",
                "connection: close",
                &key,
                "x-request-id: SENTINEL ID",
                "user-agent: SENTINEL-AGENT",
            ];
            Raw::say(server.address, request("POST", path, &headers, body)).await.until_closed().await;
        }
    }
    let scrape = server.client.get(server.url("/metrics")).bearer_auth("SENTINEL-KEY");
    let metrics = scrape.send().await.unwrap().text().await.unwrap();
    assert!(metrics.contains(r#"handler="/v1/chat/completions",status="500""#), "{metrics}");
    assert!(!metrics.contains("SENTINEL"));

    let log = log::text();
    assert!(log.contains("answered") && log.contains("a request field without effect"), "{log}");
    for line in log.lines() {
        assert!(!line.contains("SENTINEL"), "{line}");
        assert!(!line.starts_with("forged") && !line.chars().any(char::is_control), "{line:?}");
    }
}
