//! Loading, serving, stopping, failing.

use crate::support::engine::{END, ScriptedEngine, Step};
use crate::support::{PATIENCE, TestServer, chat_body, config, eventually};
use atlas_engine::engine::FinishReason;
use atlas_server::ServeError;
use serde_json::json;
use std::time::Duration;

async fn health(server: &TestServer) -> [u16; 3] {
    let mut statuses = [0; 3];
    for (status, path) in statuses.iter_mut().zip(["/health", "/health/ready", "/health/live"]) {
        *status = server.get(path).await.status;
    }
    statuses
}

#[tokio::test]
async fn while_the_model_loads() {
    let server = TestServer::start_empty(config(), ScriptedEngine::says("x")).await;
    assert_eq!(health(&server).await, [503, 503, 200]);
    assert_eq!(server.get("/health").await.json(), json!({"status": "loading"}));
    let answer = server.chat("").await;
    assert_eq!((answer.status, &answer.json()["error"]["code"]), (503, &json!("model_loading")));
    assert!(answer.headers.contains_key("retry-after"));
    assert_eq!(server.post("/tokenize", r#"{"prompt": "a"}"#).await.status, 503);
    assert_eq!(server.get("/v1/models").await.status, 200);
    assert_eq!(server.get("/metrics").await.status, 200);
    server.load();
    assert_eq!(health(&server).await, [200, 200, 200]);
    assert_eq!(server.chat("").await.status, 200);
}

#[tokio::test]
async fn a_failed_load_is_told() {
    let server = TestServer::start_empty(config(), ScriptedEngine::says("x")).await;
    server.state.set_failed();
    let outcome = tokio::time::timeout(PATIENCE, server.serving).await.unwrap().unwrap();
    assert!(matches!(outcome, Err(ServeError::EngineLost(_))));
}

#[tokio::test]
async fn stopping_lets_streams_finish_and_refuses_new_work() {
    let script = [Step::Gate, Step::Text("done".into()), Step::Token(END), Step::Finish(FinishReason::Stop)];
    let server = TestServer::start(ScriptedEngine::plays(script)).await;
    let url = server.url("/v1/chat/completions");
    let body = |stream: &str| chat_body(&format!(", \"stream\": {stream}"));
    let send = |body: String| server.client.post(&url).header("content-type", "application/json").body(body).send();
    let stream = tokio::spawn(send(body("true")));
    let whole = tokio::spawn(send(body("false")));
    eventually("both run", || server.engine.submitted() == 2).await;

    let engine = server.engine.clone();
    let address = server.address;
    let client = server.client.clone();
    let stopping = tokio::spawn(server.stop());
    let mut refused = None;
    for _ in 0..500 {
        let answer = client.get(format!("http://{address}/health")).send().await.unwrap();
        if answer.status() == 503 {
            refused = Some(answer.text().await.unwrap());
            break;
        }
    }
    assert_eq!(refused.unwrap(), r#"{"status":"stopping"}"#);
    let late = client.post(format!("http://{address}/v1/chat/completions"));
    let late = late.header("content-type", "application/json").body(chat_body("")).send().await.unwrap();
    assert_eq!(late.status(), 503);
    assert!(!stopping.is_finished());

    engine.open_gate();
    assert!(stream.await.unwrap().unwrap().text().await.unwrap().ends_with("data: [DONE]\n\n"));
    assert!(whole.await.unwrap().unwrap().text().await.unwrap().contains("done"));
    stopping.await.unwrap().unwrap();
    assert!(client.get(format!("http://{address}/health")).send().await.is_err(), "nothing listens any more");
}

#[tokio::test]
async fn what_does_not_finish_in_time_is_told_so() {
    let mut config = config();
    config.limits.shutdown_grace = Duration::from_millis(50);
    let script = [Step::Text("half".into()), Step::Hang];
    let server = TestServer::start_with(config, ScriptedEngine::plays(script)).await;
    let url = server.url("/v1/chat/completions");
    let send = |stream: &str| {
        let body = chat_body(&format!(", \"stream\": {stream}"));
        server.client.post(&url).header("content-type", "application/json").body(body).send()
    };
    let stream = tokio::spawn(send("true"));
    let whole = tokio::spawn(send("false"));
    eventually("both run", || server.engine.submitted() == 2).await;
    server.stop().await.unwrap();
    let text = stream.await.unwrap().unwrap().text().await.unwrap();
    assert!(text.contains(r#""code":"server_stopping""#) && text.ends_with("data: [DONE]\n\n"), "{text}");
    assert_eq!(whole.await.unwrap().unwrap().status(), 503);
}

#[tokio::test]
async fn an_engine_that_drops_a_request_is_lost() {
    let server = TestServer::start(ScriptedEngine::plays([Step::Text("a".into()), Step::Vanish])).await;
    let answer = server.chat("").await;
    assert_eq!(answer.status, 500);
    let outcome = tokio::time::timeout(PATIENCE, server.serving).await.unwrap().unwrap();
    assert!(matches!(outcome, Err(ServeError::EngineLost(_))));
}

#[tokio::test]
async fn an_engine_that_makes_no_step_is_lost_and_streams_are_told() {
    let mut config = config();
    config.limits.stall_timeout = Duration::from_millis(200);
    let script = [Step::Text("a".into()), Step::Hang];
    let server = TestServer::start_with(config, ScriptedEngine::plays(script)).await;
    let answer = server.chat(", \"stream\": true").await;
    assert_eq!(answer.events().last().unwrap()["error"]["type"], "server_error");
    let outcome = tokio::time::timeout(PATIENCE, server.serving).await.unwrap().unwrap();
    assert!(matches!(outcome, Err(ServeError::EngineLost(_))));
}

#[tokio::test]
async fn a_panic_costs_one_request() {
    let engine = ScriptedEngine::with(|request| {
        assert_ne!(request.sampling.seed, 13, "the test's own panic");
        vec![Step::Text("ok".into()), Step::Finish(FinishReason::Stop)]
    });
    let server = TestServer::start(engine).await;
    let answer = server.chat(", \"seed\": 13").await;
    assert_eq!(answer.status, 500);
    insta::assert_json_snapshot!(answer.json());
    assert_eq!(server.chat(", \"seed\": 14").await.status, 200);
}
