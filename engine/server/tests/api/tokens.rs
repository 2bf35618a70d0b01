//! `/tokenize` and `/detokenize`.

use crate::support::TestServer;
use crate::support::engine::{END, MAX_CONTEXT, ScriptedEngine};
use serde_json::json;

#[tokio::test]
async fn text_to_ids_and_back() {
    let server = TestServer::start(ScriptedEngine::says("x")).await;
    let answer = server.post("/tokenize", r#"{"model": "atlas-test", "prompt": "né<|im_end|>"}"#).await.json();
    assert_eq!(
        answer,
        json!({
            "count": 4, "max_model_len": MAX_CONTEXT, "tokens": [110, 195, 169, END], "token_strs": null,
        })
    );
    let answer = server.post("/tokenize", r#"{"prompt": "né", "return_token_strs": true}"#).await.json();
    assert_eq!(answer["token_strs"], json!(["n", "Ã", "©"]));
    let answer = server.post("/detokenize", r#"{"tokens": [110, 195, 169, 258]}"#).await.json();
    assert_eq!(answer, json!({"prompt": "né<|im_end|>"}));
    let empty = server.post("/tokenize", r#"{"prompt": ""}"#).await.json();
    assert_eq!((&empty["count"], &empty["tokens"]), (&json!(0), &json!([])));
}

#[tokio::test]
async fn a_chat_has_the_ids_that_it_is_answered_with() {
    let server = TestServer::start(ScriptedEngine::says("x")).await;
    let fields = r#""messages": [{"role": "user", "content": "a<|im_end|>b"}], "chat_template_kwargs": {"enable_thinking": true}"#;
    let counted = server.post("/tokenize", format!("{{{fields}}}")).await.json();
    server.post("/v1/chat/completions", format!("{{{fields}}}")).await;
    assert_eq!(counted["tokens"], json!(server.engine.requests()[0].prompt));
    let without = server.post("/tokenize", format!("{{{fields}, \"add_generation_prompt\": false}}")).await.json();
    assert!(without["count"].as_u64() < counted["count"].as_u64());
}
