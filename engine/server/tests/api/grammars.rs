//! What a request's output is held to: which requests reach the engine with a grammar, and which are refused.

use crate::support::engine::{END, ScriptedEngine, VOCAB};
use crate::support::{Answer, TestServer, config};
use atlas_engine::sampling::{Sampler, SamplingParams};
use atlas_engine::text::chat_template::ChatTemplate;
use atlas_server::ToolGrammar;
use serde_json::{Value, json};

const TOOLS: &str = r#", "tools": [
    {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object",
        "properties": {"city": {"type": "string"}}, "required": ["city"], "additionalProperties": false}}},
    {"type": "function", "function": {"name": "now"}}]"#;
const STRICT_TOOLS: &str = r#", "tools": [
    {"type": "function", "function": {"name": "get_weather", "strict": true, "parameters": {"type": "object",
        "properties": {"city": {"type": "string"}}, "required": ["city"], "additionalProperties": false}}}]"#;

fn call(name: &str, arguments: &str) -> String {
    format!("<tool_call>\n{{\"name\": \"{name}\", \"arguments\": {arguments}}}\n</tool_call>")
}

/// Whether the latest request's grammar lets a text be the whole output. (The test tokenizer has one token a byte.)
fn allows(server: &TestServer, text: &str) -> bool {
    let request = server.engine.requests().pop().unwrap();
    let grammar = request.grammar.as_ref().expect("a grammar");
    let mut sampler = Sampler::new(&SamplingParams::default(), &[], VOCAB).with_grammar(Some(grammar));
    for id in crate::support::tokenizer().encode(text, false, true).unwrap() {
        let mut logits = vec![0.0; VOCAB];
        logits[id as usize] = 1.0;
        if sampler.is_complete() || sampler.choose(&logits, 0) != Ok(id) {
            return false;
        }
        sampler.accept(id);
    }
    let mut logits = vec![0.0; VOCAB];
    logits[END as usize] = 1.0;
    sampler.is_complete() || sampler.choose(&logits, 0) == Ok(END)
}

fn problem(answer: &Answer) -> (String, String) {
    assert_eq!(answer.status, 400, "{}", answer.text);
    (answer.error_param().unwrap_or_default(), answer.json()["error"]["message"].as_str().unwrap().to_owned())
}

#[tokio::test]
async fn content_is_held_to_what_is_asked_for() {
    let server = TestServer::start(ScriptedEngine::says("x")).await;
    let schema = json!({ "type": "object", "properties": { "a": { "type": "integer" } }, "required": ["a"],
        "additionalProperties": false });
    let json_schema =
        format!(r#", "response_format": {{"type": "json_schema", "json_schema": {{"schema": {schema}}}}}"#);
    assert_eq!(server.chat(&json_schema).await.status, 200);
    assert!(allows(&server, r#"{"a": 7}"#) && !allows(&server, r#"{"b": 7}"#) && !allows(&server, "7"));
    // This template opens a block of reasoning where there is to be one.
    assert!(!allows(&server, "<think>\nhm\n</think>\n\n{\"a\": 7}"));
    assert_eq!(server.chat(&format!(r#"{json_schema}, "reasoning_effort": "none""#)).await.status, 200);
    assert!(allows(&server, r#"{"a": 7}"#) && !allows(&server, "<think>\nhm\n</think>\n\n{\"a\": 7}"));
    assert_eq!(server.chat(&format!(r#"{json_schema}, "reasoning_effort": "high""#)).await.status, 200);
    assert!(allows(&server, "hm\n</think>\n\n{\"a\": 7}") && !allows(&server, r#"{"a": 7}"#));

    server.chat(r#", "response_format": {"type": "json_object"}"#).await;
    assert!(allows(&server, r#"{"x": [1, {"y": null}]}"#) && !allows(&server, "[1]"));
    server.chat(r#", "structured_outputs": {"choice": ["yes", "no"]}"#).await;
    assert!(allows(&server, "no") && !allows(&server, "maybe"));
    let completion = r#"{"prompt": "a", "guided_regex": "[ab]{2}", "n": 2}"#;
    assert_eq!(server.post("/v1/completions", completion).await.status, 200);
    assert!(allows(&server, "ba") && !allows(&server, "bac"));
    let requests = server.engine.requests();
    let [.., first, second] = requests.as_slice() else { panic!() };
    assert!(std::ptr::eq(&**first.grammar.as_ref().unwrap(), &**second.grammar.as_ref().unwrap()));

    assert_eq!(server.chat(r#", "response_format": {"type": "text"}"#).await.status, 200);
    assert!(server.engine.requests().pop().unwrap().grammar.is_none());
}

#[tokio::test]
async fn a_model_that_opens_its_own_reasoning_may_think_first() {
    let server = TestServer::start_empty(config(), ScriptedEngine::says("x")).await;
    let plain = "{% for m in messages %}{{ m.content }}{% endfor %}{% if not enable_thinking | default(true) %}<think>\n\n</think>\n\n{% endif %}";
    server.load_with(Some(ChatTemplate::new(plain, None, None).unwrap()));
    let choice = r#", "guided_choice": ["yes"]"#;
    server.chat(choice).await;
    assert!(allows(&server, "yes") && allows(&server, "<think>\nhm {\n</think>\n\nyes"));
    server.chat(&format!(r#"{choice}, "enable_thinking": false"#)).await;
    assert!(allows(&server, "yes") && !allows(&server, "<think>\nhm\n</think>\n\nyes"));
}

#[tokio::test]
async fn calls_are_demanded_named_and_strict() {
    let server = TestServer::start(ScriptedEngine::says("x")).await;
    server.chat(TOOLS).await;
    assert!(server.engine.requests()[0].grammar.is_none(), "free calls are free");

    server.chat(&format!(r#"{TOOLS}, "tool_choice": "required""#)).await;
    let oslo = call("get_weather", r#"{"city": "Oslo"}"#);
    let now = call("now", "{}");
    assert!(allows(&server, &oslo) && allows(&server, &format!("{oslo}\n{now}")));
    assert!(!allows(&server, "Hello.") && !allows(&server, &call("get_weather", r#"{"town": "Oslo"}"#)));
    assert!(!allows(&server, &call("now", r#"{"a": 1}"#)));

    server.chat(&format!(r#"{TOOLS}, "tool_choice": "required", "parallel_tool_calls": false"#)).await;
    assert!(allows(&server, &oslo) && !allows(&server, &format!("{oslo}\n{now}")));

    server.chat(&format!(r#"{TOOLS}, "tool_choice": {{"type": "function", "function": {{"name": "now"}}}}"#)).await;
    assert!(allows(&server, &now) && !allows(&server, &oslo) && !allows(&server, &format!("{now}\n{now}")));

    server.chat(STRICT_TOOLS).await;
    assert!(allows(&server, "Hello.") && allows(&server, &format!("Let me see.\n{oslo}")) && !allows(&server, &now));
    assert!(!allows(&server, &call("get_weather", "{}")));

    let schema = r#", "response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "null"}}}"#;
    server.chat(&format!("{TOOLS}{schema}")).await;
    assert!(allows(&server, "null") && allows(&server, &now) && !allows(&server, "Hello."));
    assert!(allows(&server, &call("get_weather", r#"{"town": 3}"#)), "only the content is held to a schema");
    server.chat(&format!(r#"{TOOLS}{schema}, "tool_choice": "none""#)).await;
    assert!(allows(&server, "null") && !allows(&server, &now));
}

#[tokio::test]
async fn the_server_says_which_calls_are_held_to_schemas() {
    let free = call("get_weather", r#"{"town": 3}"#);
    let mut config = config();
    config.tool_grammar = ToolGrammar::Never;
    let server = TestServer::start_with(config.clone(), ScriptedEngine::says("x")).await;
    server.chat(STRICT_TOOLS).await;
    assert!(server.engine.requests()[0].grammar.is_none());
    server.chat(&format!(r#"{STRICT_TOOLS}, "tool_choice": "required""#)).await;
    assert!(allows(&server, &free) && !allows(&server, "Hello."));
    config.tool_grammar = ToolGrammar::Always;
    let server = TestServer::start_with(config, ScriptedEngine::says("x")).await;
    server.chat(TOOLS).await;
    assert!(!allows(&server, &free) && allows(&server, &call("now", "{}")) && allows(&server, "Hello."));
}

#[tokio::test]
async fn what_does_not_compile_is_refused_with_its_reason() {
    let server = TestServer::start(ScriptedEngine::says("x")).await;
    let schema = |schema: &str, strict: bool| {
        format!(
            r#", "response_format": {{"type": "json_schema", "json_schema": {{"schema": {schema}, "strict": {strict}}}}}"#
        )
    };
    for (fields, param, reason) in [
        (schema(r#"{"type": "strange"}"#, false), "response_format.json_schema.schema", "strange"),
        (schema(r#"{"not": {}}"#, true), "response_format.json_schema.schema", "not"),
        (schema(r##"{"$ref": "#"}"##, false), "response_format.json_schema.schema", "no text fits"),
        (
            schema(r#"{"type": "integer", "multipleOf": 999983}"#, false),
            "response_format.json_schema.schema",
            "multipleOf",
        ),
        (r#", "guided_regex": "(a""#.into(), "guided_regex", "regex"),
        (r#", "structured_outputs": {"grammar": "start: missing"}"#.into(), "structured_outputs.grammar", "missing"),
        (r#", "structured_outputs": {"choice": []}"#.into(), "structured_outputs.choice", "1 to"),
        (r#", "grammar": "root ::= \"a\"""#.into(), "grammar", "Lark"),
        (TOOLS.replace("\"string\"", "\"strong\"") + r#", "tool_choice": "required""#, "tools", "tool `get_weather`"),
        (
            format!(r#"{TOOLS}, "tool_choice": {{"type": "function", "function": {{"name": "later"}}}}"#),
            "tool_choice",
            "later",
        ),
        (r#", "tool_choice": "required""#.into(), "tool_choice", "none"),
        (r#", "tools": [], "tool_choice": "required""#.into(), "tool_choice", "none"),
    ] {
        let (named, message) = problem(&server.chat(&fields).await);
        assert_eq!(named, param, "{fields}: {message}");
        assert!(message.contains(reason), "{fields}: {message}");
    }
    assert_eq!(server.engine.submitted(), 0);
    assert_eq!(server.chat(&schema(r#"{"not": {}}"#, false)).await.status, 200, "the client does not insist");
    let continued = json!({
        "messages": [{ "role": "user", "content": "a" }, { "role": "assistant", "content": "{" }],
        "continue_final_message": true, "guided_choice": ["}"],
    });
    let (named, _) = problem(&server.post("/v1/chat/completions", continued.to_string()).await);
    assert_eq!(named, "guided_choice");
}

/// A corpus of schemas and grammars made to hang or exhaust, all at once, beside someone who only wants to chat.
#[tokio::test]
async fn hostile_grammars_disturb_nobody() {
    let server = TestServer::start(ScriptedEngine::says("x")).await;
    let doubling = (0..30).fold("start: T0".to_owned(), |text, i| format!("{text}\nT{i}: T{} T{}", i + 1, i + 1));
    let properties: Value = (0..4000).map(|i| (format!("p{i}"), json!({ "type": "string" }))).collect();
    let hostile = [
        json!({ "guided_grammar": format!("{doubling}\nT30: (\"x\" | \"yy\")?") }),
        json!({ "guided_regex": "(".repeat(60_000) + &")".repeat(60_000) }),
        json!({ "guided_regex": "(x|yy|zzz)?".repeat(20_000) }),
        json!({ "guided_json": { "type": "integer", "multipleOf": 999_983 } }),
        json!({ "guided_json": { "type": "object", "properties": properties } }),
        json!({ "guided_json": { "$ref": "#" } }),
        json!({ "guided_json": { "enum": vec!["x".repeat(100); 20_000] } }),
        json!({ "guided_choice": vec!["x"; 100_000] }),
    ];
    let attacks = hostile.iter().map(|fields| {
        let mut body = json!({ "messages": [{ "role": "user", "content": "Hi" }] });
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        server.post("/v1/chat/completions", body.to_string())
    });
    let (attacks, neighbours) = futures_util::future::join(
        futures_util::future::join_all(attacks),
        futures_util::future::join_all((0..20).map(|_| server.chat(""))),
    )
    .await;
    assert!(neighbours.iter().all(|answer| answer.status == 200));
    for (answer, fields) in attacks.iter().zip(&hostile) {
        assert_eq!(answer.status, 400, "{:.100}: {:.300}", fields.to_string(), answer.text);
        assert!(answer.text.len() < 2000);
    }
}
