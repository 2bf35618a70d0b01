//! A client that goes away takes its request with it, wherever that is, and nobody else's.

use crate::support::engine::{END, ScriptedEngine, Step};
use crate::support::http::{Raw, request};
use crate::support::{TestServer, chat_body, eventually};
use atlas_engine::engine::FinishReason;
use std::sync::atomic::Ordering;

fn post(path: &str, body: &str) -> String {
    request("POST", path, &["host: localhost", "content-type: application/json"], body)
}

/// Sends a chat and hangs up once the engine has it.
async fn hang_up(server: &TestServer, more: &str, wait_for: &str) {
    let before = server.engine.submitted();
    let mut raw = Raw::say(server.address, post("/v1/chat/completions", &chat_body(more))).await;
    eventually("the request reaches the engine", || server.engine.submitted() > before).await;
    if !wait_for.is_empty() {
        raw.until(wait_for).await;
    }
    drop(raw);
}

#[tokio::test]
async fn while_queued_or_prefilling() {
    let server = TestServer::start(ScriptedEngine::plays([Step::Hang])).await;
    for (number, more) in ["", ", \"stream\": true", ", \"n\": 3", ", \"n\": 3, \"stream\": true"].iter().enumerate() {
        hang_up(&server, more, "").await;
        let expected = [1, 2, 5, 8][number];
        eventually("the requests are cancelled", || server.engine.cancelled() == expected).await;
    }
    eventually("the engine is idle", || server.engine.running.load(Ordering::Relaxed) == 0).await;
}

#[tokio::test]
async fn while_decoding() {
    let script = [Step::Text("some text".into()), Step::Hang];
    let server = TestServer::start(ScriptedEngine::plays(script)).await;
    hang_up(&server, ", \"stream\": true", "\"x\"").await;
    hang_up(&server, "", "").await;
    eventually("the requests are cancelled", || server.engine.cancelled() == 2).await;
}

#[tokio::test]
async fn in_a_completion_with_several_prompts() {
    let server = TestServer::start(ScriptedEngine::plays([Step::Hang])).await;
    let raw = Raw::say(server.address, post("/v1/completions", r#"{"prompt": ["a", "b"], "n": 2}"#)).await;
    eventually("all choices reach the engine", || server.engine.submitted() == 4).await;
    drop(raw);
    eventually("all choices are cancelled", || server.engine.cancelled() == 4).await;
}

#[tokio::test]
async fn a_half_closed_connection_counts_as_gone() {
    use tokio::io::AsyncWriteExt;
    let server = TestServer::start(ScriptedEngine::plays([Step::Hang])).await;
    let mut raw = Raw::say(server.address, post("/v1/chat/completions", &chat_body(""))).await;
    eventually("the request reaches the engine", || server.engine.submitted() == 1).await;
    raw.0.shutdown().await.unwrap();
    eventually("the request is cancelled", || server.engine.cancelled() == 1).await;
}

#[tokio::test]
async fn if_one_choice_is_refused_the_others_are_cancelled() {
    let engine = ScriptedEngine::plays([Step::Hang]).with_capacity(2);
    let server = TestServer::start(engine).await;
    for stream in ["", ", \"stream\": true"] {
        let answer = server.chat(&format!(", \"n\": 4{stream}")).await;
        assert_eq!(answer.status, 429);
        eventually("the accepted choices are cancelled", || server.engine.cancelled() == server.engine.submitted())
            .await;
        eventually("the engine is idle", || server.engine.running.load(Ordering::Relaxed) == 0).await;
    }
}

#[tokio::test]
async fn a_storm_of_cancellations_leaves_the_survivors_alone() {
    let engine = ScriptedEngine::with(|request| {
        let length = request.prompt.len() % 7;
        vec![Step::Gate, Step::Text(format!("answer {length}")), Step::Token(END), Step::Finish(FinishReason::Stop)]
    });
    let server = TestServer::start(engine).await;
    let body = |number: usize| chat_body(", \"stream\": true").replace("Hi", &"x".repeat(1 + number % 7));
    let mut leavers = Vec::new();
    let mut survivors = Vec::new();
    for number in 0..120 {
        let raw = Raw::say(server.address, post("/v1/chat/completions", &body(number))).await;
        if number % 3 == 0 { survivors.push((number, raw)) } else { leavers.push(raw) }
    }
    eventually("all requests reach the engine", || server.engine.submitted() == 120).await;
    drop(leavers);
    eventually("the leavers are cancelled", || server.engine.cancelled() == 80).await;
    server.engine.open_gate();
    let alone = server.post("/v1/chat/completions", body(0).replace(", \"stream\": true", "")).await.json();
    let prompt_tokens = alone["usage"]["prompt_tokens"].as_u64().unwrap() as usize;
    for (number, mut raw) in survivors {
        let text = raw.until("[DONE]").await;
        let expected = (prompt_tokens + number % 7) % 7;
        let said: String = text.split("\"content\":\"").skip(1).filter_map(|rest| rest.split('"').next()).collect();
        assert_eq!(said, format!("answer {expected}"));
    }
    assert_eq!(server.engine.cancelled(), 80 + 40 + 1, "ended requests are dropped, which the flag shows too");
}
