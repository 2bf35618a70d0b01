//! Every number of a request at and beyond its bounds, and as things that are no numbers.

use crate::support::engine::ScriptedEngine;
use crate::support::{TestServer, chat_body};

/// A field, its path in an error, values just outside its bounds, and values at them.
struct Number {
    field: &'static str,
    outside: &'static [&'static str],
    inside: &'static [&'static str],
}

const CHAT: [Number; 19] = [
    Number { field: "max_tokens", outside: &["-1", "0", "2147483648", "1.5"], inside: &["1", "2147483647", "4.0"] },
    Number { field: "max_completion_tokens", outside: &["-1", "0", "2147483648"], inside: &["1", "2147483647"] },
    Number { field: "n", outside: &["-1", "0", "129", "2147483648", "1.5"], inside: &["1", "2"] },
    Number { field: "temperature", outside: &["-1", "-0.001", "2.001", "2147483648"], inside: &["0", "2", "0.5"] },
    Number { field: "top_p", outside: &["-1", "1.001", "2147483648"], inside: &["0", "1"] },
    Number { field: "min_p", outside: &["-1", "1.001", "2147483648"], inside: &["0", "1"] },
    Number { field: "top_k", outside: &["-2", "2147483648", "0.5"], inside: &["-1", "0", "2147483647"] },
    Number { field: "top_n_sigma", outside: &["-1.1", "100.1", "2147483648"], inside: &["-1", "0", "1.5", "100"] },
    Number { field: "typical_p", outside: &["-0.1", "1.001", "2147483648"], inside: &["0", "0.5", "1"] },
    Number { field: "dry_multiplier", outside: &["-0.1", "100.1", "2147483648"], inside: &["0", "0.8", "100"] },
    Number { field: "dry_base", outside: &["0.9", "100.1", "2147483648"], inside: &["1", "1.75", "100"] },
    Number { field: "dry_allowed_length", outside: &["0", "-1", "2147483648", "1.5"], inside: &["1", "2147483647"] },
    Number { field: "dry_penalty_last_n", outside: &["-2", "2147483648", "0.5"], inside: &["-1", "0", "2147483647"] },
    Number { field: "presence_penalty", outside: &["-2.1", "2.1", "2147483648"], inside: &["-2", "2", "0"] },
    Number { field: "frequency_penalty", outside: &["-2.1", "2.1", "2147483648"], inside: &["-2", "2", "0"] },
    Number { field: "repetition_penalty", outside: &["-1", "0", "10.1", "2147483648"], inside: &["0.01", "1", "10"] },
    Number {
        field: "seed",
        outside: &["-9223372036854775809", "0.5"],
        inside: &["-1", "0", "2147483648", "9223372036854775807", "-9223372036854775808"],
    },
    Number { field: "min_tokens", outside: &["-1", "1", "2147483648"], inside: &["0"] },
    Number { field: "mirostat", outside: &["-1", "1", "2147483648"], inside: &["0"] },
];

/// What no number field takes.
const NEVER: [&str; 16] = [
    "9223372036854775808",
    "18446744073709551616",
    "1e400",
    "-1e400",
    "1e308",
    "NaN",
    "Infinity",
    "-Infinity",
    "\"NaN\"",
    "\"1\"",
    "\"\"",
    "true",
    "[]",
    "[1]",
    "{}",
    "{\"a\": 1}",
];

async fn refused(server: &TestServer, path: &str, body: &str, param: &str) {
    let answer = server.post(path, body).await;
    assert_eq!(answer.status, 400, "{body}: {}", answer.text);
    let named = answer.error_param().unwrap_or_default();
    assert_eq!(named, param, "{body}: {}", answer.text);
}

#[tokio::test]
async fn in_chats() {
    let server = TestServer::start(ScriptedEngine::says("x")).await;
    for number in &CHAT {
        for value in number.outside.iter().chain(&NEVER) {
            let body = chat_body(&format!(", \"{}\": {value}", number.field));
            refused(&server, "/v1/chat/completions", &body, number.field).await;
        }
        assert_eq!(server.engine.submitted(), 0);
    }
    for number in &CHAT {
        for value in number.inside.iter().chain(&["null"]) {
            let answer = server.chat(&format!(", \"{}\": {value}", number.field)).await;
            assert_eq!(answer.status, 200, "{}: {value}: {}", number.field, answer.text);
        }
    }
}

#[tokio::test]
async fn top_logprobs_and_flags() {
    let server = TestServer::start(ScriptedEngine::says("x")).await;
    for value in ["-1", "21", "2147483648"].iter().chain(&NEVER) {
        let body = chat_body(&format!(", \"logprobs\": true, \"top_logprobs\": {value}"));
        refused(&server, "/v1/chat/completions", &body, "top_logprobs").await;
    }
    refused(&server, "/v1/chat/completions", &chat_body(", \"top_logprobs\": 2"), "top_logprobs").await;
    for flag in ["logprobs", "stream", "ignore_eos", "parallel_tool_calls", "enable_thinking", "continue_final_message"]
    {
        for value in ["0", "1", "\"true\"", "[]", "{}", "1e400"] {
            refused(&server, "/v1/chat/completions", &chat_body(&format!(", \"{flag}\": {value}")), flag).await;
        }
    }
    for (fields, param) in [
        (", \"stream_options\": 1", "stream_options"),
        (", \"stream_options\": {\"include_usage\": 1}", "stream_options.include_usage"),
        (", \"reasoning_effort\": \"extreme\"", "reasoning_effort"),
        (", \"reasoning_effort\": 3", "reasoning_effort"),
        (", \"chat_template_kwargs\": []", "chat_template_kwargs"),
        (", \"chat_template_kwargs\": {\"messages\": []}", "chat_template_kwargs.messages"),
        (
            ", \"response_format\": {\"type\": \"json_schema\", \"json_schema\": {}}",
            "response_format.json_schema.schema",
        ),
        (", \"response_format\": \"json\"", "response_format"),
        (", \"tool_choice\": \"required\"", "tool_choice"),
        (", \"model\": 3", "model"),
        (", \"functions\": []", "functions"),
        (", \"ebnf\": \"root ::= a\"", "ebnf"),
        (", \"echo\": true", "echo"),
    ] {
        refused(&server, "/v1/chat/completions", &without_duplicates(fields), param).await;
    }
    assert_eq!(server.engine.submitted(), 0);
    assert_eq!(server.chat(", \"response_format\": {\"type\": \"text\"}, \"store\": true, \"x\": 1").await.status, 200);
}

/// A chat body in which a field given in `fields` takes the place of its default.
fn without_duplicates(fields: &str) -> String {
    let body = chat_body(fields);
    if fields.contains("\"model\"") { body.replacen("\"model\": \"atlas-test\", ", "", 1) } else { body }
}

#[tokio::test]
async fn lists() {
    let server = TestServer::start(ScriptedEngine::says("x")).await;
    let many = |count: usize, item: &str| vec![item; count].join(", ");
    for (fields, param) in [
        (String::from(", \"stop\": 3"), "stop"),
        (String::from(", \"stop\": \"\""), "stop"),
        (String::from(", \"stop\": [\"a\", \"\"]"), "stop"),
        (String::from(", \"stop\": [null]"), "stop"),
        (format!(", \"stop\": [{}]", many(17, "\"a\"")), "stop"),
        (format!(", \"stop\": \"{}\"", "a".repeat(1025)), "stop"),
        (String::from(", \"dry_sequence_breakers\": 3"), "dry_sequence_breakers"),
        (String::from(", \"dry_sequence_breakers\": [\"\"]"), "dry_sequence_breakers"),
        (format!(", \"dry_sequence_breakers\": [{}]", many(17, "\"a\"")), "dry_sequence_breakers"),
        (format!(", \"dry_sequence_breakers\": [\"{}\"]", "a".repeat(65)), "dry_sequence_breakers"),
        (
            String::from(", \"dry_multiplier\": 1, \"dry_sequence_breakers\": [\"a\", \"bc\"]"),
            "dry_sequence_breakers[1]",
        ),
        (String::from(", \"stop_token_ids\": [265]"), "stop_token_ids[0]"),
        (String::from(", \"stop_token_ids\": [1, -1]"), "stop_token_ids[1]"),
        (String::from(", \"stop_token_ids\": {}"), "stop_token_ids"),
        (format!(", \"stop_token_ids\": [{}]", many(1025, "1")), "stop_token_ids"),
        (String::from(", \"logit_bias\": []"), "logit_bias"),
        (String::from(", \"logit_bias\": {\"foo\": 1}"), "logit_bias.foo"),
        (String::from(", \"logit_bias\": {\"265\": 1}"), "logit_bias.265"),
        (String::from(", \"logit_bias\": {\"-1\": 1}"), "logit_bias.-1"),
        (String::from(", \"logit_bias\": {\"4294967296\": 1}"), "logit_bias.4294967296"),
        (String::from(", \"logit_bias\": {\"1\": 100.5}"), "logit_bias.1"),
        (String::from(", \"logit_bias\": {\"1\": \"1\"}"), "logit_bias.1"),
    ] {
        refused(&server, "/v1/chat/completions", &chat_body(&fields), param).await;
    }
    let sixteen = server.chat(&format!(", \"stop\": [{}]", many(16, "\"a\""))).await;
    assert_eq!(sixteen.status, 200);
}

#[tokio::test]
async fn in_completions_and_tokens() {
    let server = TestServer::start(ScriptedEngine::says("x")).await;
    let values = |low: &[&'static str]| low.iter().copied().chain(NEVER).collect::<Vec<_>>();
    for (field, outside) in [
        ("max_tokens", values(&["-1", "2147483648"])),
        ("logprobs", values(&["-1", "21", "2147483648"])),
        ("n", values(&["-1", "0", "129"])),
        ("best_of", values(&["-1", "0", "129"])),
    ] {
        for value in outside {
            let body = format!("{{\"prompt\": \"a\", \"{field}\": {value}}}");
            refused(&server, "/v1/completions", &body, field).await;
        }
    }
    for value in ["-1", "265", "2147483648", "4294967296", "9223372036854775808", "1.5", "\"a\"", "null", "[]", "{}"] {
        refused(&server, "/detokenize", &format!("{{\"tokens\": [{value}]}}"), "tokens[0]").await;
    }
    refused(&server, "/detokenize", "{\"tokens\": [1e400]}", "tokens").await;
    refused(&server, "/detokenize", "{}", "tokens").await;
    refused(&server, "/tokenize", "{\"prompt\": 3}", "prompt").await;
    refused(&server, "/tokenize", "{}", "messages").await;
    assert_eq!(server.engine.submitted(), 0);
}

#[tokio::test]
async fn products_are_bounded_too() {
    let mut config = crate::support::config();
    config.limits.max_output_units = 1000;
    let server = TestServer::start_with(config, ScriptedEngine::says("x")).await;
    for (fields, fits) in [
        (", \"max_tokens\": 1000", true),
        (", \"max_tokens\": 1001", false),
        (", \"n\": 10, \"max_tokens\": 100", true),
        (", \"n\": 10, \"max_tokens\": 101", false),
        (", \"n\": 2, \"max_tokens\": 24, \"logprobs\": true, \"top_logprobs\": 20", false),
        (", \"n\": 2, \"max_tokens\": 23, \"logprobs\": true, \"top_logprobs\": 20", true),
        (", \"n\": 128, \"max_tokens\": 2147483647, \"logprobs\": true, \"top_logprobs\": 20", false),
    ] {
        if fits {
            assert_eq!(server.chat(fields).await.status, 200, "{fields}");
        } else {
            refused(&server, "/v1/chat/completions", &chat_body(fields), "n").await;
        }
    }
    let scored = format!("{{\"prompt\": \"{}\", \"max_tokens\": 0, \"echo\": true, \"logprobs\": 20}}", "a".repeat(48));
    refused(&server, "/v1/completions", &scored, "n").await;
}

#[tokio::test]
async fn bodies_that_are_no_request() {
    let server = TestServer::start(ScriptedEngine::says("x")).await;
    for body in
        ["", "null", "[]", "3", "\"x\"", "{", "{\"messages\"", "{}{}", "\u{0}", "{\"a\": \"\\ud800\"}", "{'a': 1}"]
    {
        for path in ["/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize"] {
            let answer = server.post(path, body).await;
            assert_eq!(answer.status, 400, "{path} {body}");
            answer.error_param();
        }
    }
    let deep = format!("{{\"messages\": {}{}}}", "[".repeat(100_000), "]".repeat(100_000));
    refused(&server, "/v1/chat/completions", &deep, "messages").await;
    refused(&server, "/v1/chat/completions", "{\"n\": 1, \"n\": 2}", "n").await;
}
