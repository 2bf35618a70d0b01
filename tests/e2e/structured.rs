//! Outputs that are held to schemas, grammars and tools, of the embedded model.

use crate::server::{Server, http_client};
use serde_json::{Value, json};
use std::path::Path;

struct Client {
    http: reqwest::Client,
    url: String,
}

impl Client {
    fn of(server: &Server) -> Self {
        Self { http: http_client(), url: server.url.clone() }
    }

    async fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        let request = self.http.post(format!("{}{path}", self.url)).header("content-type", "application/json");
        let answer = request.body(body.to_string()).send().await.unwrap();
        let status = answer.status().as_u16();
        let text = answer.text().await.unwrap();
        (status, serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}")))
    }

    /// The first choice of a chat.
    async fn chat(&self, body: &Value) -> Value {
        let (status, answer) = self.post("/v1/chat/completions", body).await;
        assert_eq!(status, 200, "{body}: {answer}");
        answer["choices"][0].clone()
    }
}

fn run(test: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(test);
}

fn merged(fields: Value, more: Value) -> Value {
    let (Value::Object(mut fields), Value::Object(more)) = (fields, more) else { panic!("two objects") };
    fields.extend(more);
    Value::Object(fields)
}

/// Whether a value fits a schema made of the keywords that these tests use.
fn fits(schema: &Value, value: &Value) -> bool {
    let kind = match schema["type"].as_str() {
        None => true,
        Some("object") => value.is_object(),
        Some("array") => value.is_array(),
        Some("string") => value.is_string(),
        Some("boolean") => value.is_boolean(),
        Some("null") => value.is_null(),
        Some("number") => value.is_number(),
        Some("integer") => value.as_f64().is_some_and(|number| number.fract() == 0.0),
        Some(other) => panic!("{other} is not among the types of these tests"),
    };
    let known = [
        "type",
        "description",
        "title",
        "properties",
        "required",
        "additionalProperties",
        "enum",
        "items",
        "minItems",
        "maxItems",
        "minimum",
        "maximum",
        "maxLength",
        "default",
    ];
    for keyword in schema.as_object().unwrap().keys() {
        assert!(known.contains(&keyword.as_str()), "{keyword} is not among the keywords of these tests");
    }
    let within = |low: &str, high: &str, size: f64| {
        schema[low].as_f64().is_none_or(|low| size >= low) && schema[high].as_f64().is_none_or(|high| size <= high)
    };
    let object = value.as_object().is_none_or(|fields| {
        let required = schema["required"].as_array().into_iter().flatten();
        required.clone().all(|name| fields.contains_key(name.as_str().unwrap()))
            && fields.iter().all(|(name, field)| match schema["properties"].get(name) {
                Some(schema) => fits(schema, field),
                None => schema["additionalProperties"] != json!(false),
            })
    });
    let items = value.as_array().is_none_or(|items| {
        within("minItems", "maxItems", items.len() as f64)
            && (schema["items"].is_null() || items.iter().all(|item| fits(&schema["items"], item)))
    });
    kind && object
        && items
        && schema["enum"].as_array().is_none_or(|values| values.contains(value))
        && value.as_f64().is_none_or(|number| within("minimum", "maximum", number))
        && value.as_str().is_none_or(|text| within("minLength", "maxLength", text.chars().count() as f64))
}

/// Cases of the tool evaluation: messages and tools.
fn cases() -> Vec<Value> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../gates/data/tool_calls.jsonl");
    std::fs::read_to_string(file).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Checks every call of a choice against the tools of its request.
fn check_calls(choice: &Value, tools: &Value) -> usize {
    let calls = choice["message"]["tool_calls"].as_array().map_or(&[][..], Vec::as_slice);
    for call in calls {
        let name = &call["function"]["name"];
        let tool = tools.as_array().unwrap().iter().find(|tool| tool["function"]["name"] == *name);
        let tool = tool.unwrap_or_else(|| panic!("{name} is no tool: {choice}"));
        let text = call["function"]["arguments"].as_str().unwrap();
        let arguments: Value = serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"));
        assert!(fits(&tool["function"]["parameters"], &arguments), "{arguments} for {tool}");
    }
    calls.len()
}

/// Hot sampling, so that without a grammar hardly a call would be well formed.
const HOT: f64 = 1.3;

#[test]
fn a_demanded_call_always_fits_its_tool() {
    let server = Server::start(&[]);
    let client = Client::of(&server);
    run(async {
        let cases: Vec<Value> = cases().into_iter().step_by(5).take(60).collect();
        let mut ended = 0;
        for (seed, batch) in cases.chunks(6).enumerate() {
            let bodies: Vec<Value> = (batch.iter())
                .map(|case| {
                    json!({ "messages": case["messages"], "tools": case["tools"], "tool_choice": "required",
                        "temperature": HOT, "top_p": 1.0, "top_k": 0, "seed": seed, "max_tokens": 160,
                        "parallel_tool_calls": false })
                })
                .collect();
            let answers = futures_util::future::join_all(bodies.iter().map(|body| client.chat(body))).await;
            for (choice, body) in answers.iter().zip(&bodies) {
                // A string that the sampler never closes meets the limit: then there is no whole call to judge.
                match choice["finish_reason"].as_str().unwrap() {
                    "length" => continue,
                    reason => assert_eq!(reason, "tool_calls", "{choice}"),
                }
                assert_eq!(check_calls(choice, &body["tools"]), 1, "{choice}");
                assert!(choice["message"]["content"].is_null(), "{choice}");
                ended += 1;
            }
        }
        assert!(cases.len() == 60 && ended >= 50, "{ended} of {} ended", cases.len());
        // Greedy, as clients ask; a named tool is called even where another one would do better.
        for case in cases.iter().take(12) {
            let tools = case["tools"].as_array().unwrap();
            let name = tools.last().unwrap()["function"]["name"].clone();
            let named = json!({ "type": "function", "function": { "name": name } });
            let body = json!({ "messages": case["messages"], "tools": tools, "tool_choice": named,
                "temperature": 0, "max_tokens": 200 });
            let choice = client.chat(&body).await;
            assert_eq!(choice["finish_reason"], "tool_calls", "{choice}");
            assert_eq!(check_calls(&choice, &case["tools"]), 1);
            assert_eq!(choice["message"]["tool_calls"][0]["function"]["name"], name);
        }
    });
}

#[test]
fn calls_of_strict_tools_fit_and_text_stays_free() {
    let server = Server::start(&[]);
    let client = Client::of(&server);
    run(async {
        let mut called = 0;
        for (seed, mut case) in cases().into_iter().step_by(11).take(24).enumerate() {
            for tool in case["tools"].as_array_mut().unwrap() {
                tool["function"]["strict"] = json!(true);
                tool["function"]["parameters"]["additionalProperties"] = json!(false);
            }
            let body = json!({ "messages": case["messages"], "tools": case["tools"], "temperature": 0.9,
                "top_k": 0, "top_p": 1, "seed": seed, "max_tokens": 160 });
            called += check_calls(&client.chat(&body).await, &case["tools"]);
        }
        assert!(called >= 12, "{called} calls");
        let tools = json!([{ "type": "function", "function": { "name": "f", "strict": true, "parameters": {
            "type": "object", "properties": {}, "additionalProperties": false } } }]);
        let hello = json!({ "messages": [{ "role": "user", "content": "Hello!" }], "tools": tools,
            "temperature": 0, "max_tokens": 40 });
        assert!(client.chat(&hello).await["message"]["content"].as_str().is_some_and(|text| text.len() > 3));
    });
}

fn person() -> Value {
    json!({
        "type": "object",
        "properties": {
            "name": { "type": "string", "maxLength": 20 },
            "age": { "type": "integer", "minimum": 0, "maximum": 130 },
            "mood": { "enum": ["good", "bad", null] },
            "friends": { "type": "array", "items": { "type": "string", "maxLength": 8 }, "maxItems": 3 }
        },
        "required": ["name", "age", "mood", "friends"],
        "additionalProperties": false
    })
}

fn about(topic: &str) -> Value {
    json!({ "messages": [{ "role": "user", "content": format!("Tell me about {topic}.") }], "max_tokens": 250,
        "response_format": { "type": "json_schema",
            "json_schema": { "name": "person", "strict": true, "schema": person() } } })
}

const TOPICS: [&str; 8] = ["a baker", "Oslo", "the sea", "numbers", "a red boat", "{\"x\"", "your day", "nothing"];

#[test]
fn content_always_fits_its_schema() {
    let server = Server::start(&[]);
    let client = Client::of(&server);
    run(async {
        for (seed, topic) in TOPICS.into_iter().enumerate() {
            for more in [
                json!({ "temperature": 0 }),
                json!({ "temperature": HOT, "top_k": 0, "top_p": 1, "seed": seed }),
                json!({ "temperature": 1, "seed": seed, "logprobs": true, "top_logprobs": 2 }),
                json!({ "temperature": 1, "seed": seed, "dry_multiplier": 0.8, "typical_p": 0.9, "top_n_sigma": 2 }),
            ] {
                let choice = client.chat(&merged(about(topic), more.clone())).await;
                let text = choice["message"]["content"].as_str().unwrap();
                assert_eq!(choice["finish_reason"], "stop", "{more}: {choice}");
                let value: Value = serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"));
                assert!(fits(&person(), &value), "{text}");
                if more["logprobs"] == true {
                    let tokens = choice["logprobs"]["content"].as_array().unwrap();
                    let bytes = |token: &Value| serde_json::from_value::<Vec<u8>>(token["bytes"].clone()).unwrap();
                    let whole: Vec<u8> = tokens.iter().flat_map(bytes).collect();
                    assert_eq!(String::from_utf8(whole).unwrap(), text);
                    assert!(tokens.iter().all(|token| token["top_logprobs"][1].is_object()), "{choice}");
                }
            }
        }
        // Ends that have nothing to do with the grammar.
        let short = client.chat(&merged(about("a baker"), json!({ "max_tokens": 5, "temperature": 0 }))).await;
        assert_eq!(short["finish_reason"], "length");
        assert!(short["message"]["content"].as_str().unwrap().starts_with("{\"name\":"));
        let stopped = client.chat(&merged(about("a baker"), json!({ "stop": "\"age\"", "temperature": 0 }))).await;
        assert_eq!(stopped["finish_reason"], "stop");
        assert!(stopped["message"]["content"].as_str().unwrap().ends_with(", "), "{stopped}");
        // Thinking stays outside of the schema.
        let thought =
            client.chat(&merged(about("12 + 30"), json!({ "enable_thinking": true, "temperature": 0 }))).await;
        if thought["finish_reason"] == "stop" {
            assert!(fits(&person(), &serde_json::from_str(thought["message"]["content"].as_str().unwrap()).unwrap()));
        }
        assert!(thought["message"]["reasoning_content"].is_string(), "{thought}");
    });
}

/// Whether a text is one of a grammar.
type Fits = fn(&str) -> bool;

#[test]
fn every_kind_of_grammar_over_both_routes() {
    let server = Server::start(&[]);
    let client = Client::of(&server);
    let matches: [(Value, Fits); 4] = [
        (json!({ "structured_outputs": { "regex": "[A-Z][a-z]{2,5}-[0-9]{3}" } }), |text| {
            text.split_once('-').is_some_and(|(word, digits)| {
                (3..=6).contains(&word.len()) && digits.len() == 3 && digits.bytes().all(|b| b.is_ascii_digit())
            })
        }),
        (json!({ "guided_choice": ["positive", "negative"] }), |text| ["positive", "negative"].contains(&text)),
        (json!({ "grammar": "start: \"x\" (OP \"x\"){2}\nOP: \"+\" | \"-\"" }), |text| {
            text.len() == 5 && text.chars().step_by(2).all(|c| c == 'x')
        }),
        (
            json!({ "response_format": { "type": "json_object", "schema": { "type": "object", "properties": {
            "ok": { "type": "boolean" } }, "required": ["ok"], "additionalProperties": false } } }),
            |text| serde_json::from_str::<Value>(text).is_ok_and(|value| value["ok"].is_boolean()),
        ),
    ];
    run(async {
        for (grammar, fits) in matches {
            for seed in 0..4 {
                let more =
                    json!({ "max_tokens": 60, "temperature": HOT, "top_k": 0, "top_p": 1, "seed": seed, "n": 2 });
                let chat = json!({ "messages": [{ "role": "user", "content": "Say something." }] });
                let body = merged(merged(chat, more.clone()), grammar.clone());
                let (status, answer) = client.post("/v1/chat/completions", &body).await;
                assert_eq!(status, 200, "{answer}");
                for choice in answer["choices"].as_array().unwrap() {
                    let text = choice["message"]["content"].as_str().unwrap();
                    assert!(fits(text) && choice["finish_reason"] == "stop", "{grammar}: {choice}");
                }
                let body = merged(merged(json!({ "prompt": "It was" }), more), grammar.clone());
                let (status, answer) = client.post("/v1/completions", &body).await;
                assert_eq!(status, 200, "{answer}");
                for choice in answer["choices"].as_array().unwrap() {
                    assert!(fits(choice["text"].as_str().unwrap()) && choice["finish_reason"] == "stop", "{choice}");
                }
            }
        }
    });
}

/// One seed, one answer: alone, among others, and as one of several choices.
#[test]
fn seeds_repeat_in_any_company() {
    let server = Server::start(&[]);
    let client = Client::of(&server);
    run(async {
        let filters = [
            json!({ "top_n_sigma": 1.5 }),
            json!({ "typical_p": 0.6, "top_k": 0 }),
            json!({ "dry_multiplier": 0.8, "dry_allowed_length": 1 }),
            json!({ "min_p": 0.05, "repetition_penalty": 1.2 }),
        ];
        let body = |index: usize| {
            let base = json!({ "temperature": 1, "seed": 100 + index });
            let more = merged(base, filters[index % filters.len()].clone());
            match index % 3 {
                0 => merged(about(TOPICS[index % TOPICS.len()]), more),
                1 => merged(
                    json!({ "messages": [{ "role": "user", "content": TOPICS[index % TOPICS.len()] }],
                    "max_tokens": 40 }),
                    more,
                ),
                _ => {
                    let case = cases().swap_remove(index);
                    merged(
                        json!({ "messages": case["messages"], "tools": case["tools"], "tool_choice": "required",
                        "max_tokens": 120, "parallel_tool_calls": false }),
                        more,
                    )
                }
            }
        };
        let told = |choice: &Value| {
            let calls = choice["message"]["tool_calls"].as_array().into_iter().flatten();
            let calls: Vec<Value> = calls.map(|call| call["function"].clone()).collect();
            (choice["message"]["content"].clone(), calls, choice["finish_reason"].clone())
        };
        let bodies: Vec<Value> = (0..18).map(body).collect();
        let mut alone = Vec::new();
        for body in &bodies {
            alone.push(told(&client.chat(body).await));
        }
        for _ in 0..2 {
            let together = futures_util::future::join_all(bodies.iter().rev().map(|body| client.chat(body))).await;
            let together: Vec<_> = together.iter().rev().map(told).collect();
            assert_eq!(together, alone);
        }
        let (_, several) =
            client.post("/v1/chat/completions", &merged(about("a baker"), json!({ "n": 3, "seed": 7 }))).await;
        for (index, choice) in several["choices"].as_array().unwrap().iter().enumerate() {
            let lone = client.chat(&merged(about("a baker"), json!({ "seed": 7 + index }))).await;
            assert_eq!(told(choice), told(&lone), "choice {index} is the choice of its own seed");
        }
    });
}

#[test]
fn streamed_calls_and_content_are_the_same_as_whole_ones() {
    let server = Server::start(&[]);
    let client = Client::of(&server);
    run(async {
        let case = cases().swap_remove(1);
        let call = json!({ "messages": case["messages"], "tools": case["tools"], "tool_choice": "required",
            "temperature": 0, "max_tokens": 200, "parallel_tool_calls": false });
        for body in [call, merged(about("a baker"), json!({ "temperature": 0 }))] {
            let whole = client.chat(&body).await;
            let request = client.http.post(format!("{}/v1/chat/completions", client.url));
            let body = merged(body, json!({ "stream": true })).to_string();
            let answer = request.header("content-type", "application/json").body(body).send().await.unwrap();
            let (mut content, mut arguments, mut finish) = (String::new(), String::new(), Value::Null);
            for line in answer.text().await.unwrap().lines().filter_map(|line| line.strip_prefix("data: {")) {
                let chunk: Value = serde_json::from_str(&format!("{{{line}")).unwrap();
                let choice = &chunk["choices"][0];
                content += choice["delta"]["content"].as_str().unwrap_or_default();
                arguments += choice["delta"]["tool_calls"][0]["function"]["arguments"].as_str().unwrap_or_default();
                if !choice["finish_reason"].is_null() {
                    finish = choice["finish_reason"].clone();
                }
            }
            assert_eq!(finish, whole["finish_reason"]);
            assert_eq!(content, whole["message"]["content"].as_str().unwrap_or_default());
            let called = whole["message"]["tool_calls"][0]["function"]["arguments"].as_str().unwrap_or_default();
            assert_eq!(arguments, called);
        }
    });
}

#[test]
fn a_bad_grammar_is_refused_and_the_server_goes_on() {
    let server = Server::start(&[]);
    let client = Client::of(&server);
    run(async {
        for (fields, param) in [
            (json!({ "guided_regex": "(" }), "guided_regex"),
            (json!({ "guided_json": { "$ref": "#/nowhere" } }), "guided_json"),
            (json!({ "guided_json": { "type": "string", "maxLength": u64::MAX } }), "guided_json"),
            (json!({ "guided_grammar": "start: a\na: a" }), "guided_grammar"),
            (json!({ "guided_regex": "((a?){1,1000}){1,1000}b".repeat(600) }), "guided_regex"),
        ] {
            let body = merged(json!({ "messages": [{ "role": "user", "content": "Hi" }], "max_tokens": 3 }), fields);
            let (status, answer) = client.post("/v1/chat/completions", &body).await;
            assert_eq!((status, &answer["error"]["param"]), (400, &json!(param)), "{answer}");
            assert!(answer["error"]["message"].as_str().unwrap().len() > param.len() + 10, "{answer}");
        }
        let choice = client.chat(&json!({ "messages": [{ "role": "user", "content": "Hi" }], "max_tokens": 3 })).await;
        assert!(choice["message"]["content"].is_string());
    });
}
