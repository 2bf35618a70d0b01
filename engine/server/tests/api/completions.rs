//! Text completions: prompts of all forms, echo, scoring, streams.

use crate::support::engine::ScriptedEngine;
use crate::support::{Answer, TestServer};
use serde_json::json;

async fn complete(server: &TestServer, fields: &str) -> Answer {
    server.post("/v1/completions", format!("{{{fields}}}")).await
}

#[tokio::test]
async fn a_whole_completion() {
    let server = TestServer::start(ScriptedEngine::says(" upon a time")).await;
    let answer = complete(&server, r#""model": "atlas-test", "prompt": "Once""#).await;
    insta::assert_json_snapshot!(answer.json());
    let request = &server.engine.requests()[0];
    assert_eq!(
        (request.prompt.as_slice(), request.max_tokens),
        ("Once".bytes().map(u32::from).collect::<Vec<_>>().as_slice(), 16)
    );
}

#[tokio::test]
async fn a_stream() {
    let server = TestServer::start(ScriptedEngine::says(" up")).await;
    let fields = r#""prompt": "Once", "stream": true, "echo": true, "stream_options": {"include_usage": true}"#;
    insta::assert_snapshot!(complete(&server, fields).await.text);
}

#[tokio::test]
async fn many_prompts_and_choices() {
    let engine = ScriptedEngine::with(|request| {
        use crate::support::engine::{END, Step};
        let text = format!("{}/{}", request.prompt.len(), request.sampling.seed);
        vec![Step::Text(text), Step::Token(END), Step::Finish(atlas_engine::engine::FinishReason::Stop)]
    });
    let server = TestServer::start(engine).await;
    for prompt in [r#"["a", "bcd"]"#, "[[97], [98, 99, 100]]"] {
        let answer = complete(&server, &format!("\"prompt\": {prompt}, \"n\": 2, \"seed\": 5")).await.json();
        let texts: Vec<_> = answer["choices"].as_array().unwrap().iter().map(|c| (&c["index"], &c["text"])).collect();
        let expected = [json!("1/5"), json!("1/6"), json!("3/5"), json!("3/6")];
        let indices = [json!(0), json!(1), json!(2), json!(3)];
        assert_eq!(texts, indices.iter().zip(&expected).collect::<Vec<_>>());
        assert_eq!(answer["usage"]["prompt_tokens"], 4);
        assert_eq!(answer["usage"]["completion_tokens"], 16);
        assert_eq!(answer["usage"]["prompt_tokens_details"]["cached_tokens"], 4);
    }
}

#[tokio::test]
async fn a_prompt_is_scored_without_generating() {
    let server = TestServer::start(ScriptedEngine::says("never")).await;
    for prompt in [r#""né""#, "[110, 195, 169]"] {
        let fields = format!("\"prompt\": {prompt}, \"echo\": true, \"logprobs\": 1, \"max_tokens\": 0");
        let answer = complete(&server, &fields).await;
        insta::assert_json_snapshot!("scored_prompt", answer.json()["choices"]);
    }
    let request = &server.engine.requests()[0];
    assert_eq!((request.max_tokens, request.prompt_logprobs), (0, Some(1)));
    let streamed =
        complete(&server, r#""prompt": "né", "echo": true, "logprobs": 1, "max_tokens": 0, "stream": true"#).await;
    let scored = complete(&server, r#""prompt": "né", "echo": true, "logprobs": 1, "max_tokens": 0"#).await.json();
    assert_eq!(streamed.events()[0]["choices"][0]["logprobs"], scored["choices"][0]["logprobs"]);
    for missing in [r#""echo": true"#, r#""logprobs": 1"#, r#""stream": true"#] {
        let answer = complete(&server, &format!("\"prompt\": \"a\", \"max_tokens\": 0, {missing}")).await;
        assert_eq!((answer.status, answer.error_param().as_deref()), (400, Some("max_tokens")));
    }
}

#[tokio::test]
async fn echo_with_logprobs_covers_prompt_and_completion() {
    let server = TestServer::start(ScriptedEngine::says("é!")).await;
    let answer = complete(&server, r#""prompt": "ab", "echo": true, "logprobs": 0"#).await.json();
    let choice = &answer["choices"][0];
    assert_eq!(choice["text"], "abé!");
    assert_eq!(choice["logprobs"]["tokens"], json!(["a", "b", "bytes:\\xc3", "bytes:\\xa9", "!"]));
    assert_eq!(choice["logprobs"]["token_logprobs"], json!([null, -0.5, -0.5, -0.5, -0.5]));
    assert_eq!(choice["logprobs"]["text_offset"], json!([0, 1, 2, 2, 3]));
}

#[tokio::test]
async fn what_is_refused_is_named() {
    let server = TestServer::start(ScriptedEngine::says("x")).await;
    for (fields, param) in [
        (r#""prompt": "a", "suffix": "b""#, "suffix"),
        (r#""prompt": "a", "best_of": 2"#, "best_of"),
        (r#""prompt": """#, "prompt"),
        (r#""prompt": []"#, "prompt"),
        (r#""prompt": [[]]"#, "prompt"),
        (r#""prompt": {"a": 1}"#, "prompt"),
        (r#""prompt": [265]"#, "prompt[0]"),
        (r#""prompt": ["a", 3]"#, "prompt[1]"),
        (r#""max_tokens": 3"#, "prompt"),
        (r#""prompt": "a", "logprobs": true"#, "logprobs"),
        (r#""prompt": "a", "n": 100, "echo": true, "prompt_logprobs": 1"#, "prompt_logprobs"),
        (r#""prompt": ["a", "b"], "n": 65"#, "prompt"),
    ] {
        let answer = complete(&server, fields).await;
        assert_eq!((answer.status, answer.error_param().as_deref()), (400, Some(param)), "{fields}: {}", answer.text);
    }
}
