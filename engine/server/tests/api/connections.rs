//! Limits of size, count and time, as hostile or unlucky connections meet them.

use crate::support::engine::{ScriptedEngine, Step};
use crate::support::http::{Raw, request, status};
use crate::support::{TestServer, chat_body, config, eventually};
use atlas_server::ServerConfig;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const SOON: Duration = Duration::from_millis(150);

fn limited(change: impl FnOnce(&mut atlas_server::Limits)) -> ServerConfig {
    let mut config = config();
    change(&mut config.limits);
    config
}

fn post(body: &str) -> String {
    request("POST", "/v1/chat/completions", &["host: localhost", "content-type: application/json"], body)
}

fn head(length: &str) -> String {
    format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n{length}\r\n\r\n"
    )
}

#[tokio::test]
async fn giant_and_many_headers() {
    let server = TestServer::start(ScriptedEngine::says("x")).await;
    let line = |size: usize| format!("x-filler: {}", "a".repeat(size));
    let answer = Raw::say(server.address, request("GET", "/health", &["host: localhost", &line(100_000)], "")).await;
    assert_eq!(status(&answer.until_closed().await), 431);
    let many: Vec<_> = (0..200).map(|number| format!("x-{number}: 1")).collect();
    let many: Vec<_> = many.iter().map(String::as_str).chain(["host: localhost"]).collect();
    let answer = Raw::say(server.address, request("GET", "/health", &many, "")).await;
    assert_eq!(status(&answer.until_closed().await), 431);
    let long = format!("/health?{}", "a".repeat(100_000));
    let answer = Raw::say(server.address, request("GET", &long, &["host: localhost"], "")).await;
    assert!(matches!(status(&answer.until_closed().await), 414 | 431));
    let fine = request("GET", "/health", &["host: localhost", "connection: close", &line(30_000)], "");
    assert_eq!(status(&Raw::say(server.address, fine).await.until_closed().await), 200);
}

#[tokio::test]
async fn what_is_no_http_is_closed() {
    let server = TestServer::start(ScriptedEngine::says("x")).await;
    let nonsense: [&[u8]; 7] = [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET /health\r\n\r\n",
        b"GET /health HTTP/9.9\r\nhost: localhost\r\n\r\n",
        b"GET /health HTTP/1.1\r\nhost: localhost\r\nbad header\r\n\r\n",
        b"POST /tokenize HTTP/1.1\r\nhost: localhost\r\ncontent-length: -1\r\n\r\n",
        b"POST /tokenize HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n{}",
    ];
    for bytes in nonsense {
        let answer = Raw::say(server.address, bytes).await.until_closed().await;
        assert!(matches!(status(&answer), 0 | 400 | 505), "{}: {answer}", String::from_utf8_lossy(bytes));
    }
    assert_eq!(server.get("/health").await.status, 200);
}

#[tokio::test]
async fn slow_headers_are_cut_off() {
    let server = TestServer::start_with(limited(|l| l.header_timeout = SOON), ScriptedEngine::says("x")).await;
    let mut drips = Vec::new();
    for _ in 0..50 {
        drips.push(Raw::say(server.address, "GET /health HTTP/1.1\r\nhost: loc").await);
    }
    let silent = Raw::connect(server.address).await;
    assert_eq!(server.get("/health").await.status, 200);
    for drip in drips {
        drip.until_closed().await;
    }
    silent.until_closed().await;
}

#[tokio::test]
async fn slow_bodies_are_cut_off() {
    let server = TestServer::start_with(limited(|l| l.body_timeout = SOON), ScriptedEngine::says("x")).await;
    for length in ["content-length: 100", "transfer-encoding: chunked"] {
        let mut raw = Raw::say(server.address, head(length)).await;
        raw.send("4\r\n{\"a\"\r\n").await;
        let answer = raw.until_closed().await;
        assert_eq!(status(&answer), 408, "{answer}");
        assert!(answer.contains("\"error\""));
    }
    let expecting = Raw::say(server.address, head("content-length: 10\r\nexpect: 100-continue")).await;
    assert!(expecting.until_closed().await.contains(" 408 "));
    assert_eq!(server.engine.submitted(), 0);
}

#[tokio::test]
async fn large_bodies_are_refused() {
    let server = TestServer::start_with(limited(|l| l.max_body_bytes = 10_000), ScriptedEngine::says("x")).await;
    // Announced, and refused without reading.
    let answer = Raw::say(server.address, head("content-length: 10001")).await.until_closed().await;
    assert_eq!(status(&answer), 413);
    let answer = Raw::say(server.address, head("content-length: 18446744073709551615")).await.until_closed().await;
    assert!(matches!(status(&answer), 400 | 413 | 431), "{answer}");
    // Not announced.
    let mut raw = Raw::say(server.address, head("transfer-encoding: chunked")).await;
    for _ in 0..11 {
        raw.send(format!("3e8\r\n{}\r\n", "a".repeat(1000))).await;
    }
    assert_eq!(status(&raw.until_closed().await), 413);
    let exact = chat_body("").replace("Hi", &"x".repeat(10_000 - chat_body("").len() + 2));
    assert_eq!(exact.len(), 10_000);
    let answer = server.post("/v1/chat/completions", exact).await;
    assert!(answer.text.contains("context_length_exceeded"), "{}", answer.text);
}

#[tokio::test]
async fn a_refusal_reaches_a_client_that_sends_on() {
    let mut config = limited(|l| l.max_body_bytes = 10_000);
    config.api_keys = vec![atlas_server::ApiKey::new("key").unwrap()];
    let server = TestServer::start_with(config, ScriptedEngine::says("x")).await;
    for (header, expected) in [("x-api-key: wrong", 401), ("x-api-key: key", 413)] {
        // More than the sockets' buffers hold, so that it is still being sent when the answer comes.
        let length = 20 << 20;
        let mut raw = Raw::say(server.address, head(&format!("content-length: {length}\r\n{header}"))).await;
        raw.0.write_all(&vec![b' '; length]).await.expect("the server listens to the end");
        assert_eq!(status(&raw.until_closed().await), expected);
    }
}

#[tokio::test]
async fn a_body_in_very_many_chunks() {
    let server = TestServer::start(ScriptedEngine::says("ok")).await;
    let body = chat_body(&format!(", \"user\": \"{}\"", "u".repeat(50_000)));
    let chunks: String = body.bytes().map(|byte| format!("1\r\n{}\r\n", char::from(byte))).collect();
    let message = format!("{}{chunks}0\r\n\r\n", head("transfer-encoding: chunked\r\nconnection: close"));
    let answer = Raw::say(server.address, message).await.until_closed().await;
    assert_eq!(status(&answer), 200, "{answer}");
}

#[tokio::test]
async fn bodies_share_a_bounded_memory() {
    let config = limited(|l| l.max_total_body_bytes = 64 << 10);
    let server = TestServer::start_with(config, ScriptedEngine::says("ok")).await;
    let mut held = Raw::say(server.address, head("content-length: 60000")).await;
    held.send(" ".repeat(59_000)).await;
    let big = chat_body(&format!(", \"user\": \"{}\"", "u".repeat(20_000)));
    let mut refused = None;
    for _ in 0..200 {
        // Until the server has read what is held.
        let answer = server.post("/v1/chat/completions", big.clone()).await;
        if answer.status == 429 {
            refused = Some(answer);
            break;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(refused.expect("refused while memory is short").headers.contains_key("retry-after"));
    drop(held);
    let mut accepted = false;
    for _ in 0..200 {
        accepted = server.post("/v1/chat/completions", big.clone()).await.status == 200;
        if accepted {
            break;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(accepted, "memory is given back");
}

#[tokio::test]
async fn pipelined_requests_are_answered_in_order() {
    let engine = ScriptedEngine::with(|request| {
        let text = format!("seed {}", request.sampling.seed);
        vec![Step::Text(text), Step::Finish(atlas_engine::engine::FinishReason::Stop)]
    });
    let server = TestServer::start(engine).await;
    let requests: String = (1..=5).map(|seed| post(&chat_body(&format!(", \"seed\": {seed}")))).collect();
    let last = request("GET", "/health", &["host: localhost", "connection: close"], "");
    let text = Raw::say(server.address, requests + &last).await.until_closed().await;
    let places: Vec<_> = (1..=5).map(|seed| text.find(&format!("seed {seed}")).unwrap()).collect();
    assert!(places.is_sorted());
    assert!(text.ends_with(r#"{"status":"ok"}"#));
}

#[tokio::test]
async fn a_smuggled_request_is_not_seen() {
    let server = TestServer::start(ScriptedEngine::says("x")).await;
    let both = "POST /tokenize HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 6\r\n\
        transfer-encoding: chunked\r\nconnection: close\r\n\r\n0\r\n\r\nGET /metrics HTTP/1.1\r\nhost: localhost\r\n\r\n";
    let text = Raw::say(server.address, both).await.until_closed().await;
    assert_eq!(text.matches("HTTP/1.1 ").count(), 1, "{text}");
    assert!(!text.contains("atlas_"));
}

#[tokio::test]
async fn two_hundred_at_once() {
    let engine = ScriptedEngine::with(|request| {
        let text = format!("seed {}", request.sampling.seed);
        vec![Step::Gate, Step::Text(text), Step::Finish(atlas_engine::engine::FinishReason::Stop)]
    });
    let server = TestServer::start(engine).await;
    let answers = (0..200).map(|seed| {
        let stream = if seed % 2 == 0 { "true" } else { "false" };
        let body = format!(", \"seed\": {seed}, \"stream\": {stream}");
        let server = &server;
        async move { (seed, server.chat(&body).await) }
    });
    let answers = futures_util::future::join_all(answers);
    let opener = async {
        eventually("all requests are in the engine", || server.engine.submitted() == 200).await;
        server.engine.open_gate();
    };
    for (seed, answer) in futures_util::future::join(answers, opener).await.0 {
        assert_eq!(answer.status, 200);
        let said: String = match seed % 2 {
            0 => answer.events().iter().filter_map(|e| e["choices"][0]["delta"]["content"].as_str()).collect(),
            _ => answer.json()["choices"][0]["message"]["content"].as_str().unwrap().to_owned(),
        };
        assert_eq!(said, format!("seed {seed}"));
    }
}

#[tokio::test]
async fn too_many_requests_are_told_to_come_back() {
    let config = limited(|l| l.max_concurrent_requests = 2);
    let server = TestServer::start_with(config, ScriptedEngine::plays([Step::Hang])).await;
    let first = Raw::say(server.address, post(&chat_body(""))).await;
    let second = Raw::say(server.address, post(&chat_body(", \"stream\": true"))).await;
    eventually("both run", || server.engine.submitted() == 2).await;
    let refused = server.chat("").await;
    assert_eq!((refused.status, &refused.headers["retry-after"]), (429, &"1".parse().unwrap()));
    assert_eq!(server.get("/health").await.status, 200, "health and metrics are never busy");
    assert_eq!(server.get("/metrics").await.status, 200);
    drop(first);
    drop(second);
    eventually("places are given back", || server.engine.running.load(Ordering::Relaxed) == 0).await;
    let third = Raw::say(server.address, post(&chat_body(""))).await;
    eventually("a place is free again", || server.engine.submitted() == 3).await;
    drop(third);
}

#[tokio::test]
async fn connections_over_the_limit_wait() {
    let config = limited(|l| l.max_connections = 3);
    let server = TestServer::start_with(config, ScriptedEngine::says("x")).await;
    let mut idle = Vec::new();
    for _ in 0..3 {
        let mut raw = Raw::say(server.address, request("GET", "/health", &["host: localhost"], "")).await;
        assert_eq!(status(&raw.until("\"ok\"}").await), 200);
        idle.push(raw);
    }
    let mut fourth = Raw::say(server.address, request("GET", "/health", &["host: localhost"], "")).await;
    let early = tokio::time::timeout(SOON, fourth.0.read_u8()).await;
    assert!(early.is_err(), "no answer while all places are taken");
    idle.pop();
    assert!(fourth.until("\"ok\"}").await.contains("ok"));
}

#[tokio::test]
async fn a_client_that_reads_nothing_is_dropped() {
    let config = limited(|l| l.write_timeout = SOON);
    let script = [Step::Text("word ".repeat(400)), Step::Hang];
    let server = TestServer::start_with(config, ScriptedEngine::plays(script)).await;
    // Many choices make more output than the sockets' buffers hold.
    let raw = Raw::say(server.address, post(&chat_body(", \"stream\": true, \"n\": 60"))).await;
    eventually("all choices are cancelled", || server.engine.submitted() == 60 && server.engine.cancelled() == 60)
        .await;
    drop(raw);
}

#[tokio::test]
async fn a_long_prefill_is_bridged_by_comments() {
    let config = limited(|l| l.keep_alive = Duration::from_millis(20));
    let script = [Step::Gate, Step::Text("ok".into()), Step::Finish(atlas_engine::engine::FinishReason::Stop)];
    let server = TestServer::start_with(config, ScriptedEngine::plays(script)).await;
    let mut raw = Raw::say(server.address, post(&chat_body(", \"stream\": true"))).await;
    let start = raw.until(":\n\n").await;
    assert!(start.contains("200 OK") && !start.contains("data:"), "{start}");
    server.engine.open_gate();
    let rest = raw.until("[DONE]").await;
    assert!(rest.contains("data: {"));
}
