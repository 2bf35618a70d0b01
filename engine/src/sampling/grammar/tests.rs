use super::*;
use crate::sampling::noise::philox;
use crate::sampling::{Sampler, SamplingError, SamplingParams};
use crate::text::parser::ToolFormat;
use crate::text::tokenizer::test_tokenizers::{bytes, sentencepiece, tiny};
use std::sync::Arc;

/// A compiler and what ends its outputs.
fn compilers() -> [GrammarCompiler; 3] {
    let [tiny, bytes, pieces] = [tiny().clone(), bytes(), sentencepiece()];
    [
        GrammarCompiler::new(&tiny, &[4089, 4087]),
        GrammarCompiler::new(&bytes, &[256]),
        GrammarCompiler::new(&pieces, &[2]),
    ]
}

fn compile(compiler: &GrammarCompiler, grammar: Grammar) -> Arc<CompiledGrammar> {
    compiler.compile(&OutputGrammar::content(grammar)).unwrap()
}

fn schema(schema: Value) -> Grammar {
    Grammar::JsonSchema { schema, strict: true }
}

/// How far a text gets.
#[derive(Debug, PartialEq)]
enum Fate {
    /// A token of it is not allowed; so many bytes were.
    Refused(usize),
    /// It goes on.
    Unfinished,
    /// It may end.
    MayEnd,
    /// It has ended: nothing may follow.
    Complete,
}

/// Gives the tokens of a text to a grammar, one by one.
fn fate(compiler: &GrammarCompiler, grammar: &Arc<CompiledGrammar>, text: &str) -> Fate {
    let tokenizer = compiler.tokenizer();
    let vocab = tokenizer.vocab_size();
    let mut constraint = Constraint::new(grammar);
    let mut done = 0;
    for token in tokenizer.encode(text, false, true).unwrap() {
        let mut logits = vec![0.0; vocab];
        if constraint.is_complete() || constraint.apply(&mut logits).is_err() || logits[token as usize] != 0.0 {
            return Fate::Refused(done);
        }
        constraint.accept(token);
        done += tokenizer.token_bytes(token).unwrap().len();
    }
    if constraint.is_complete() {
        return Fate::Complete;
    }
    let mut logits = vec![0.0; vocab];
    constraint.apply(&mut logits).unwrap();
    let eos = tokenizer.eos_id().unwrap() as usize;
    if logits[eos] == 0.0 { Fate::MayEnd } else { Fate::Unfinished }
}

/// Pseudo-random logits: what a model that knows nothing might say.
fn noise(seed: u32, position: u32, vocab: usize) -> Vec<f32> {
    let word = |id: u32| philox([id / 4, position, 7, 7], [seed, 9])[(id % 4) as usize];
    (0..vocab as u32).map(|id| word(id) as f32 / u32::MAX as f32 * 12.0).collect()
}

/// An output of a model that knows nothing, held to a grammar; `None` if it does not end within `most` tokens.
fn babble(compiler: &GrammarCompiler, grammar: &Arc<CompiledGrammar>, seed: u32, most: u32) -> Option<String> {
    let tokenizer = compiler.tokenizer();
    // A model has rows beyond the tokenizer's last token.
    let vocab = tokenizer.vocab_size() + 37;
    let params =
        SamplingParams { temperature: if seed.is_multiple_of(2) { 1.0 } else { 0.0 }, seed: 5, ..Default::default() };
    let mut sampler = Sampler::new(&params, &[], vocab).with_grammar(Some(grammar));
    let mut ids = Vec::new();
    for position in 0..most {
        let token = sampler.choose(&noise(seed, position, vocab), position.into()).unwrap();
        sampler.accept(token);
        if !tokenizer.is_special(token) {
            ids.push(token);
        }
        if sampler.is_complete() {
            let text: Vec<u8> = ids.iter().flat_map(|id| tokenizer.token_bytes(*id).unwrap()).collect();
            return Some(String::from_utf8(text).unwrap());
        }
    }
    None
}

fn record() -> Value {
    json!({
        "type": "object",
        "properties": {
            "name": { "type": "string", "maxLength": 6 },
            "kind": { "enum": ["cat", "dog", 7, null] },
            "age": { "type": "integer", "minimum": -5, "maximum": 120 },
            "tags": { "type": "array", "items": { "$ref": "#/$defs/tag" }, "minItems": 1, "maxItems": 3 },
            "sure": { "type": "boolean" }
        },
        "required": ["name", "kind", "age", "tags"],
        "additionalProperties": false,
        "$defs": { "tag": { "type": "string", "pattern": "^[a-z]{1,3}$" } }
    })
}

/// Whether a value fits [`record`].
fn is_record(value: &Value) -> bool {
    let fields = value.as_object().unwrap();
    let known = ["name", "kind", "age", "tags", "sure"];
    let tag = |tag: &Value| {
        let tag = tag.as_str().unwrap();
        (1..=3).contains(&tag.len()) && tag.bytes().all(|b| b.is_ascii_lowercase())
    };
    fields.keys().all(|key| known.contains(&key.as_str()))
        && fields["name"].as_str().unwrap().chars().count() <= 6
        && [json!("cat"), json!("dog"), json!(7), json!(null)].contains(&fields["kind"])
        && (-5.0..=120.0).contains(&fields["age"].as_f64().filter(|age| age.fract() == 0.0).unwrap())
        && (1..=3).contains(&fields["tags"].as_array().unwrap().len())
        && fields["tags"].as_array().unwrap().iter().all(tag)
        && fields.get("sure").is_none_or(Value::is_boolean)
}

#[test]
fn whatever_a_model_says_fits_the_schema() {
    for compiler in compilers() {
        let grammar = compile(&compiler, schema(record()));
        for seed in 0..60 {
            let text = babble(&compiler, &grammar, seed, 400).expect("a bounded value ends");
            let value: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{text}: {error}"));
            assert!(is_record(&value), "{text}");
            assert!(!text.contains('\n') && !text.contains("  \""), "{text}");
        }
    }
}

#[test]
fn every_kind_of_grammar() {
    for compiler in compilers() {
        let choice = compile(&compiler, Grammar::Choice(vec!["yes".into(), "no".into(), "say \"why\"\n".into()]));
        let regex = compile(&compiler, Grammar::Regex(r"[a-c]{2}-\d{3}".into()));
        let lark = compile(&compiler, Grammar::Lark("start: sum\nsum: N (\"+\" N){1,3}\nN: /[1-9][0-9]{0,2}/".into()));
        for seed in 0..20 {
            let chosen = babble(&compiler, &choice, seed, 20).unwrap();
            assert!(["yes", "no", "say \"why\"\n"].contains(&chosen.as_str()), "{chosen}");
            let matched = babble(&compiler, &regex, seed, 20).unwrap();
            let (letters, digits) = matched.split_once('-').unwrap();
            assert!(letters.len() == 2 && letters.bytes().all(|b| (b'a'..=b'c').contains(&b)), "{matched}");
            assert!(digits.len() == 3 && digits.bytes().all(|b| b.is_ascii_digit()), "{matched}");
            if let Some(sum) = babble(&compiler, &lark, seed, 40) {
                let terms: Vec<u32> = sum.split('+').map(|term| term.parse().unwrap()).collect();
                assert!((2..=4).contains(&terms.len()), "{sum}");
            }
        }
    }
}

#[test]
fn a_complete_text_ends_and_one_that_may_go_on_may_end() {
    for compiler in &compilers()[..2] {
        let number = compile(compiler, schema(json!({ "type": "integer" })));
        assert_eq!(fate(compiler, &number, "12"), Fate::MayEnd);
        assert_eq!(fate(compiler, &number, "-"), Fate::Unfinished);
        assert_eq!(fate(compiler, &number, "1x"), Fate::Refused(1));
        let object = compile(compiler, schema(json!({ "type": "object" })));
        assert_eq!(fate(compiler, &object, r#"{"a": [1, {"b": "c\n"}]"#), Fate::Unfinished);
        assert_eq!(fate(compiler, &object, r#"{"a": [1,{"b":"c\n"}]}"#), Fate::Complete);
        assert_eq!(fate(compiler, &object, "[1"), Fate::Refused(0));
        assert!(matches!(fate(compiler, &object, r#"{"a":  1"#), Fate::Refused(_)), "one space is enough");
    }
}

#[test]
fn special_tokens_are_no_text() {
    for compiler in &compilers()[..2] {
        let tokenizer = compiler.tokenizer();
        let object = compile(compiler, schema(json!({ "type": "object" })));
        let mut constraint = Constraint::new(&object);
        for token in tokenizer.encode("{\"", false, true).unwrap() {
            constraint.accept(token);
        }
        let mut logits = vec![0.0; tokenizer.vocab_size() + 3];
        constraint.apply(&mut logits).unwrap();
        let special = (0..tokenizer.vocab_size()).filter(|id| tokenizer.is_special(*id as u32));
        assert!(special.clone().count() >= 3 && special.into_iter().all(|id| logits[id] == f32::NEG_INFINITY));
        assert!(logits[tokenizer.vocab_size()..].iter().all(|logit| *logit == f32::NEG_INFINITY));
        assert!(logits.iter().filter(|logit| **logit == 0.0).count() > 90);
    }
}

fn weather(strict: bool) -> ToolSchema {
    let parameters = json!({
        "type": "object",
        "properties": { "city": { "$ref": "#/$defs/city" }, "days": { "type": "integer", "minimum": 1, "maximum": 9 } },
        "required": ["city"],
        "additionalProperties": false,
        "$defs": { "city": { "type": "string", "maxLength": 8 } }
    });
    ToolSchema { name: "get_weather".into(), parameters: Some(parameters), strict }
}

fn calls(parallel: bool) -> Calls {
    let empty = json!({ "type": "object", "properties": {}, "additionalProperties": false });
    let now = ToolSchema { name: "now-2.x".into(), parameters: Some(empty), strict: false };
    let free = ToolSchema { name: "get_anything".into(), parameters: None, strict: false };
    Calls { format: ToolFormat::Hermes, tools: vec![weather(true), now, free], parallel }
}

const OSLO: &str = "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Oslo\"}}\n</tool_call>";

#[test]
fn forced_calls() {
    for compiler in &compilers()[..2] {
        let forced = |parallel| OutputGrammar { calls: Some(calls(parallel)), ..OutputGrammar::default() };
        let one = compiler.compile(&forced(false)).unwrap();
        let many = compiler.compile(&forced(true)).unwrap();
        assert_eq!(fate(compiler, &one, OSLO), Fate::Complete);
        assert_eq!(fate(compiler, &many, OSLO), Fate::MayEnd);
        assert_eq!(fate(compiler, &many, &format!("{OSLO}\n{OSLO}")), Fate::MayEnd);
        let now = "<tool_call>{\"name\":\"now-2.x\",\"arguments\":{}}</tool_call>";
        assert_eq!(fate(compiler, &one, now), Fate::Complete);
        let open = |parameters: Value| {
            let tool = ToolSchema { name: "f".into(), parameters: Some(parameters), strict: false };
            let calls = Calls { format: ToolFormat::Hermes, tools: vec![tool], parallel: false };
            let grammar = compiler.compile(&OutputGrammar { calls: Some(calls), ..OutputGrammar::default() }).unwrap();
            fate(compiler, &grammar, "<tool_call>{\"name\": \"f\", \"arguments\": {\"x\": 1}}</tool_call>")
        };
        let properties = json!({ "a": { "type": "string" } });
        assert!(
            matches!(open(json!({ "properties": properties })), Fate::Refused(_)),
            "unknown arguments are not made up"
        );
        assert_eq!(open(json!({ "properties": properties, "additionalProperties": true })), Fate::Complete);
        assert_eq!(open(json!({ "type": "object" })), Fate::Complete);
        let free = "<tool_call>\n{\"name\": \"get_anything\", \"arguments\": {\"a\": [1]}}\n</tool_call>";
        assert_eq!(fate(compiler, &one, free), Fate::Complete);
        for wrong in [
            "Sure! <tool_call>",
            "{\"name\"",
            "<tool_call>\n{\"name\": \"get_time\"",
            "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"days\": 3}",
            "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": 3",
            "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Llanfairpwll",
            "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Oslo\", \"days\": 10",
            "<tool_call>\n{\"name\": \"now-2.x\", \"arguments\": {\"a\"",
        ] {
            assert!(matches!(fate(compiler, &one, wrong), Fate::Refused(_)), "{wrong}");
        }
        for seed in 0..30 {
            let text = babble(compiler, &one, seed * 2, 150);
            let Some(text) = text.filter(|text| !text.contains("get_anything")) else { continue };
            let body = text.trim_start_matches("<tool_call>").trim_end_matches("</tool_call>");
            let call: Value = serde_json::from_str(body).unwrap_or_else(|error| panic!("{text}: {error}"));
            assert!(
                call["name"] == "now-2.x" || call["arguments"]["city"].as_str().unwrap().chars().count() <= 8,
                "{text}"
            );
        }
    }
}

#[test]
fn calls_within_free_text() {
    for compiler in &compilers()[..2] {
        let auto = |parallel| OutputGrammar {
            content: Some(Content::Free),
            calls: Some(calls(parallel)),
            ..OutputGrammar::default()
        };
        let many = compiler.compile(&auto(true)).unwrap();
        let one = compiler.compile(&auto(false)).unwrap();
        for grammar in [&one, &many] {
            assert_eq!(fate(compiler, grammar, "Hello, <b>world</b>!\n\n{\"name\": 3}"), Fate::MayEnd);
            assert_eq!(fate(compiler, grammar, ""), Fate::MayEnd);
            let wrong = "Let me see.\n<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"town";
            assert!(matches!(fate(compiler, grammar, wrong), Fate::Refused(_)));
            assert!(matches!(fate(compiler, grammar, "<tool_call>\nfree text"), Fate::Refused(_)));
        }
        assert_eq!(fate(compiler, &one, &format!("Let me see.\n{OSLO}")), Fate::Complete);
        assert_eq!(fate(compiler, &many, &format!("Let me see.\n{OSLO}\nAnd:\n{OSLO} Done.")), Fate::MayEnd);
        let second = format!("{OSLO}\n<tool_call>\n{{\"name\": \"get_weather\", \"arguments\": {{}}");
        assert!(matches!(fate(compiler, &many, &second), Fate::Refused(_)));
    }
}

#[test]
fn thinking_comes_first() {
    for compiler in &compilers()[..2] {
        let with =
            |thinking| OutputGrammar { thinking, ..OutputGrammar::content(schema(json!({ "type": "integer" }))) };
        let open = compiler.compile(&with(Thinking::Open)).unwrap();
        let maybe = compiler.compile(&with(Thinking::Maybe)).unwrap();
        assert_eq!(fate(compiler, &open, "I see: <7 or {\"8\"}.\n</think>\n\n42"), Fate::MayEnd);
        assert_eq!(fate(compiler, &open, "</think>42"), Fate::MayEnd);
        assert_eq!(fate(compiler, &open, "still thinking"), Fate::Unfinished);
        assert!(matches!(fate(compiler, &open, "hm</think>\n\nx"), Fate::Refused(_)));
        assert_eq!(fate(compiler, &maybe, "<think>\nhm\n</think>\n\n42"), Fate::MayEnd);
        assert_eq!(fate(compiler, &maybe, "42"), Fate::MayEnd);
        assert!(matches!(fate(compiler, &maybe, "hm"), Fate::Refused(0)));
        let forced = OutputGrammar { thinking: Thinking::Open, calls: Some(calls(false)), ..OutputGrammar::default() };
        let forced = compiler.compile(&forced).unwrap();
        assert_eq!(fate(compiler, &forced, &format!("hm\n</think>\n\n{OSLO}")), Fate::Complete);
        let auto = OutputGrammar { content: Some(Content::Free), ..forced_with(Thinking::Open) };
        let auto = compiler.compile(&auto).unwrap();
        assert_eq!(fate(compiler, &auto, &format!("hm\n</think>\n\nI say {OSLO}")), Fate::MayEnd);
        assert_eq!(fate(compiler, &auto, "hm\n</think>\n\nI say"), Fate::MayEnd);
    }
}

fn forced_with(thinking: Thinking) -> OutputGrammar {
    OutputGrammar { thinking, calls: Some(calls(true)), ..OutputGrammar::default() }
}

#[test]
fn a_schema_or_calls() {
    for compiler in &compilers()[..2] {
        let either = OutputGrammar {
            calls: Some(calls(true)),
            ..OutputGrammar::content(schema(json!({ "type": "object", "properties": { "a": { "type": "null" } },
                "additionalProperties": false })))
        };
        let either = compiler.compile(&either).unwrap();
        assert_eq!(fate(compiler, &either, "{\"a\": null}"), Fate::Complete);
        assert_eq!(fate(compiler, &either, OSLO), Fate::MayEnd);
        assert!(matches!(fate(compiler, &either, "{\"b\""), Fate::Refused(_)));
        assert!(matches!(fate(compiler, &either, "Well"), Fate::Refused(0)));
    }
}

#[test]
fn verify_rows_choose_what_decode_rows_do() {
    let [compiler, ..] = compilers();
    let grammar = compile(&compiler, schema(record()));
    let vocab = compiler.tokenizer().vocab_size();
    for seed in 0..8 {
        let params = SamplingParams { temperature: 0.8, seed: 3, ..Default::default() };
        let mut decode = Sampler::new(&params, &[], vocab).with_grammar(Some(&grammar));
        let mut verify = decode.clone();
        let mut ids = Vec::new();
        for position in 0..12 {
            let token = decode.choose(&noise(seed, position, vocab), position.into()).unwrap();
            decode.accept(token);
            ids.push(token);
        }
        // Four drafts at a time, of which the last is never right.
        for start in (0..12usize).step_by(3) {
            let drafts = [&ids[start..start + 3], &[17]].concat();
            for row in 0..=drafts.len() {
                let position = (start + row) as u32;
                let chosen =
                    verify.choose_with(&noise(seed, position, vocab), position.into(), &drafts[..row]).unwrap();
                if row < 3 {
                    assert_eq!(chosen, ids[start + row]);
                }
            }
            ids[start..start + 3].iter().for_each(|id| verify.accept(*id));
        }
    }
}

#[test]
fn what_the_grammar_leaves_is_sampled_as_ever() {
    let [compiler, ..] = compilers();
    let grammar = compile(&compiler, Grammar::Choice(vec!["yes".into(), "no".into()]));
    let vocab = compiler.tokenizer().vocab_size();
    let allowed: Vec<u32> = (0..vocab as u32)
        .filter(|id| {
            let text = String::from_utf8(compiler.tokenizer().token_bytes(*id).unwrap()).unwrap_or_default();
            !text.is_empty() && ["yes", "no"].iter().any(|whole| whole.starts_with(&text))
        })
        .collect();
    let params = SamplingParams { temperature: 0.7, top_k: 3, top_p: 0.9, seed: 11, ..Default::default() };
    for position in 0..40 {
        let logits = noise(1, position, vocab);
        let mut masked = vec![f32::NEG_INFINITY; vocab];
        allowed.iter().for_each(|id| masked[*id as usize] = logits[*id as usize]);
        let held = Sampler::new(&params, &[], vocab).with_grammar(Some(&grammar)).choose(&logits, position.into());
        assert_eq!(held, Sampler::new(&params, &[], vocab).choose(&masked, position.into()));
    }
}

#[test]
fn a_token_that_is_not_allowed_is_an_error_with_a_reason() {
    let [compiler, ..] = compilers();
    let grammar = compile(&compiler, Grammar::Regex("a".into()));
    let vocab = compiler.tokenizer().vocab_size();
    let mut sampler = Sampler::new(&SamplingParams::default(), &[], vocab).with_grammar(Some(&grammar));
    sampler.accept(compiler.tokenizer().encode("b", false, false).unwrap()[0]);
    assert_eq!(sampler.choose(&vec![0.0; vocab], 1), Err(SamplingError::Grammar));
    let reason = sampler.explain(SamplingError::Grammar);
    assert!(reason.starts_with("the grammar cannot be followed: ") && !reason.contains('\n'), "{reason}");
}

#[test]
fn compiled_grammars_are_remembered_and_forgotten() {
    let [compiler, ..] = compilers();
    let number = |n: usize| Grammar::Regex(format!("a{{{n}}}"));
    let first = compile(&compiler, number(1));
    assert!(Arc::ptr_eq(&first, &compile(&compiler, number(1))));
    for n in 2..40 {
        compile(&compiler, number(n));
        assert!(Arc::ptr_eq(&first, &compile(&compiler, number(1))), "what is used is kept");
    }
    for n in 40..80 {
        compile(&compiler, number(n));
    }
    assert!(!Arc::ptr_eq(&first, &compile(&compiler, number(1))));
}

#[test]
fn what_is_no_grammar_is_refused_with_its_reason() {
    let [compiler, ..] = compilers();
    let refused = |grammar: Grammar| compiler.compile(&OutputGrammar::content(grammar)).unwrap_err().to_string();
    for (grammar, reason) in [
        (schema(json!({ "type": "strange" })), "strange"),
        (schema(json!({ "type": "string", "pattern": "(" })), "regex"),
        (schema(json!({ "$ref": "#/$defs/missing" })), "missing"),
        (schema(json!({ "$ref": "https://example.com/schema.json" })), "example.com"),
        (schema(json!({ "not": { "type": "string" } })), "not"),
        (schema(json!({ "type": "string", "format": "made-up" })), "made-up"),
        (schema(json!({ "type": "integer", "minimum": 3, "maximum": 2 })), "nsatisfiable"),
        (schema(json!(3)), "schema"),
        (Grammar::Regex("a{2,1}".into()), "regex"),
        (Grammar::Regex("(?=a)b".into()), "look"),
        (Grammar::Lark("root ::= \"a\"".into()), "root"),
        (Grammar::Lark("start: missing".into()), "missing"),
    ] {
        let message = refused(grammar);
        assert!(message.to_lowercase().contains(reason), "{reason}: {message}");
        assert!(message.len() < 600 && !message.contains("<state>") && !message.contains("backtrace"), "{message}");
    }
    // What cannot be enforced is ignored where the client does not insist.
    compile(&compiler, Grammar::JsonSchema { schema: json!({ "not": { "type": "string" } }), strict: false });
    // A part that nothing fits is found behind what may come before it, and a tool's error names the tool.
    let nothing = schema(json!({ "$ref": "#" }));
    let hidden = OutputGrammar { thinking: Thinking::Maybe, ..OutputGrammar::content(nothing) };
    assert_eq!(compiler.compile(&hidden).unwrap_err(), GrammarError::Invalid("no text fits the grammar".into()));
    let mut bad = calls(true);
    bad.tools[0].parameters = Some(json!({ "$ref": "#/$defs/missing" }));
    let error = compiler.compile(&OutputGrammar { calls: Some(bad), ..OutputGrammar::default() }).unwrap_err();
    assert!(error.to_string().starts_with("tool `get_weather`: "), "{error}");
    let none = Calls { format: ToolFormat::None, ..calls(true) };
    let error = compiler.compile(&OutputGrammar { calls: Some(none), ..OutputGrammar::default() }).unwrap_err();
    assert!(error.to_string().contains("syntax of this model"), "{error}");
}

mod hostile;
