//! A scripted endpoint: it knows the right answers and can be told how to misbehave.

use atlas_gates::data;
use atlas_gates::suites::cases::{self, Task};
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use futures_util::{StreamExt, stream};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// What the endpoint does wrong.
#[derive(Debug, Clone, Default)]
pub(crate) struct Script {
    /// Pause before every token.
    pub(crate) token_delay: Duration,
    /// One answer in so many is wrong.
    pub(crate) wrong_every: Option<usize>,
    /// Streams end after so many tokens, without a finish reason.
    pub(crate) drop_after: Option<usize>,
    /// Log-probabilities change a little when requests run together.
    pub(crate) inconsistent: bool,
    /// Streamed replies lose their last token's text.
    pub(crate) stream_loses_text: bool,
    /// Added to every log-probability.
    pub(crate) logprob_shift: f64,
    /// Leaves the extensions out of the model card.
    pub(crate) bare_card: bool,
    /// Refuses every generation with this status.
    pub(crate) refuse: Option<u16>,
    /// Generates one token fewer than asked.
    pub(crate) short: bool,
}

struct Shared {
    script: Script,
    answers: HashMap<String, Value>,
    running: AtomicUsize,
    served: AtomicUsize,
}

/// A running endpoint; it stops when its runtime does.
pub(crate) struct Scripted {
    pub(crate) url: String,
}

impl Scripted {
    pub(crate) async fn start(script: Script) -> Self {
        let mut answers = HashMap::new();
        for (task, name) in [(Task::Tools, "tool_calls"), (Task::Qa, "qa")] {
            for case in cases::parse(task, &data::load(name).unwrap(), name).unwrap() {
                answers.insert(json!(case.messages).to_string() + &json!(case.tools).to_string(), case.expected);
            }
        }
        let shared = Arc::new(Shared { script, answers, running: AtomicUsize::new(0), served: AtomicUsize::new(0) });
        let app = Router::new()
            .route("/health/ready", get(|| async { "ok" }))
            .route("/v1/models", get(models))
            .route("/tokenize", post(tokenize))
            .route("/v1/chat/completions", post(chat))
            .route("/v1/completions", post(completion))
            .with_state(shared);
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        Self { url }
    }
}

async fn models(State(shared): State<Arc<Shared>>) -> Json<Value> {
    let mut card = json!({ "id": "scripted", "object": "model" });
    if !shared.script.bare_card {
        card["weight_bytes"] = json!(1 << 20);
        card["weight_bytes_per_token"] = json!(1 << 20);
        card["flops_per_token"] = json!(1_000_000);
    }
    Json(json!({ "object": "list", "data": [card] }))
}

/// Markers are one token each; so is every other word.
async fn tokenize(Json(body): Json<Value>) -> Json<Value> {
    let mut text = body["prompt"].as_str().unwrap().to_owned();
    for marker in ["<|endoftext|>", "<|im_start|>assistant\n", "<|im_end|>"] {
        text = text.replace(marker, &format!(" {} ", marker.trim_end()));
    }
    let tokens: Vec<u64> = text.split_whitespace().map(word_id).collect();
    Json(json!({ "count": tokens.len(), "tokens": tokens }))
}

/// A token id that depends on the word alone (FNV-1a).
fn word_id(word: &str) -> u64 {
    let hash = word
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
    hash % 1_000_003
}

/// Counts a request as running for as long as it lives.
struct Running(Arc<Shared>);

impl Running {
    fn new(shared: &Arc<Shared>) -> Self {
        shared.running.fetch_add(1, Ordering::SeqCst);
        Self(shared.clone())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, Ordering::SeqCst);
    }
}

async fn chat(State(shared): State<Arc<Shared>>, Json(body): Json<Value>) -> Response {
    if let Some(status) = shared.script.refuse {
        return (StatusCode::from_u16(status).unwrap(), "{\"error\":{\"message\":\"refused\"}}").into_response();
    }
    let running = Running::new(&shared);
    // Long enough for requests sent together to be seen together.
    tokio::time::sleep(Duration::from_millis(1)).await;
    let empty = json!([]);
    let key = body["messages"].to_string() + &body.get("tools").unwrap_or(&empty).to_string();
    let mut answer = shared.answers.get(&key).cloned().unwrap_or(json!("hello there"));
    let number = shared.served.fetch_add(1, Ordering::SeqCst);
    if shared.script.wrong_every.is_some_and(|every| number % every == 0) {
        answer = if answer.is_string() { json!("wrong") } else { json!([{ "name": "wrong", "arguments": {} }]) };
    }
    let text = answer.as_str().map_or_else(|| answer.to_string(), str::to_owned);
    let words: Vec<String> = text.split_inclusive(' ').map(str::to_owned).collect();
    let shift = if shared.script.inconsistent && shared.running.load(Ordering::SeqCst) > 1 { 1e-7 } else { 0.0 };
    let logprob = |place: usize| -0.25 * (place as f64 + 1.0) - body["seed"].as_f64().unwrap_or(0.0) - shift;
    let calls = answer.as_array().map(|calls| {
        let call = |(index, call): (usize, &Value)| {
            json!({ "index": index, "id": format!("call_{index}"), "type": "function",
                "function": { "name": call["name"], "arguments": call["arguments"].to_string() } })
        };
        calls.iter().enumerate().map(call).collect::<Vec<_>>()
    });
    let usage = json!({ "prompt_tokens": 1, "completion_tokens": words.len(), "total_tokens": words.len() + 1 });
    let logprobs = |range: std::ops::Range<usize>| {
        let entry = |place: usize| json!({ "token": words[place], "logprob": logprob(place), "top_logprobs": [] });
        json!({ "content": range.map(entry).collect::<Vec<_>>() })
    };
    if body["stream"] != json!(true) {
        let message = match &calls {
            Some(calls) if !calls.is_empty() => json!({ "role": "assistant", "content": null, "tool_calls": calls }),
            Some(_) => json!({ "role": "assistant", "content": "" }),
            None => json!({ "role": "assistant", "content": text }),
        };
        let choice =
            json!({ "index": 0, "message": message, "finish_reason": "stop", "logprobs": logprobs(0..words.len()) });
        return Json(json!({ "choices": [choice], "usage": usage })).into_response();
    }
    let mut events = Vec::new();
    for place in 0..words.len() {
        let lost = shared.script.stream_loses_text && place + 1 == words.len();
        let delta = match &calls {
            None if !lost => json!({ "content": words[place] }),
            _ => json!({}),
        };
        events.push(json!({ "choices": [{ "index": 0, "delta": delta, "logprobs": logprobs(place..place + 1) }] }));
    }
    for call in calls.into_iter().flatten() {
        events.push(json!({ "choices": [{ "index": 0, "delta": { "tool_calls": [call] } }] }));
    }
    events.push(json!({ "choices": [{ "index": 0, "delta": {}, "finish_reason": "stop" }] }));
    events.push(json!({ "choices": [], "usage": usage }));
    sse(events, &shared.script, running)
}

async fn completion(State(shared): State<Arc<Shared>>, Json(body): Json<Value>) -> Response {
    if let Some(status) = shared.script.refuse {
        return (StatusCode::from_u16(status).unwrap(), "{\"error\":{\"message\":\"refused\"}}").into_response();
    }
    let running = Running::new(&shared);
    let prompt = body["prompt"].as_array().unwrap();
    if body["echo"] == json!(true) {
        let logprob = |place: usize| match place {
            0 => Value::Null,
            _ => json!(-0.5 - (prompt[place].as_u64().unwrap() % 7) as f64 / 7.0 + shared.script.logprob_shift),
        };
        let logprobs = json!({
            "tokens": prompt.iter().map(|token| token.to_string()).collect::<Vec<_>>(),
            "token_logprobs": (0..prompt.len()).map(logprob).collect::<Vec<_>>(),
        });
        let choice = json!({ "index": 0, "text": "", "finish_reason": "length", "logprobs": logprobs });
        let usage = json!({ "prompt_tokens": prompt.len(), "completion_tokens": 0 });
        return Json(json!({ "choices": [choice], "usage": usage })).into_response();
    }
    let count = body["max_tokens"].as_u64().unwrap() as usize - usize::from(shared.script.short);
    let mut events: Vec<Value> = (0..count).map(|_| json!({ "choices": [{ "index": 0, "text": "word " }] })).collect();
    events.push(json!({ "choices": [{ "index": 0, "text": "", "finish_reason": "length" }] }));
    events.push(json!({ "choices": [], "usage": { "prompt_tokens": prompt.len(), "completion_tokens": count } }));
    sse(events, &shared.script, running)
}

fn sse(events: Vec<Value>, script: &Script, running: Running) -> Response {
    let (delay, cut) = (script.token_delay, script.drop_after);
    let whole = events.len();
    let mut lines: Vec<String> = events.into_iter().map(|event| format!("data: {event}\n\n")).collect();
    lines.push("data: [DONE]\n\n".into());
    lines.truncate(cut.unwrap_or(whole + 1));
    let running = Arc::new(running);
    let body = stream::iter(lines).then(move |line| {
        let running = running.clone();
        async move {
            if !delay.is_zero() {
                tokio::time::sleep(delay).await;
            }
            drop(running);
            Ok::<_, Infallible>(Bytes::from(line))
        }
    });
    ([("content-type", "text/event-stream")], Body::from_stream(body)).into_response()
}
