//! Grammars made to hang, exhaust or crash whoever compiles or follows them.

use super::*;

fn repeated(text: &str, count: usize) -> String {
    text.repeat(count)
}

fn grammars() -> Vec<(&'static str, Grammar)> {
    let lax = |value: Value| Grammar::JsonSchema { schema: value, strict: false };
    let many = |count: usize, value: Value| vec![value; count];
    let properties = |count: usize| -> serde_json::Map<String, Value> {
        (0..count).map(|i| (format!("p{i}"), json!({ "type": "string", "maxLength": 1000 }))).collect()
    };
    let doubling = |levels: usize| {
        let mut definitions = serde_json::Map::new();
        definitions.insert("d0".into(), json!({ "type": "string" }));
        for level in 1..levels {
            let below = json!({ "$ref": format!("#/$defs/d{}", level - 1) });
            let value = json!({ "type": "object", "properties": { "a": below, "b": below }, "allOf": [below, below] });
            definitions.insert(format!("d{level}"), value);
        }
        json!({ "$ref": format!("#/$defs/d{}", levels - 1), "$defs": definitions })
    };
    vec![
        ("a reference to itself", lax(json!({ "$ref": "#" }))),
        (
            "references in a ring",
            lax(json!({ "$ref": "#/$defs/a", "$defs": {
            "a": { "$ref": "#/$defs/b" }, "b": { "$ref": "#/$defs/a" } } })),
        ),
        (
            "a ring of intersections",
            lax(json!({ "$ref": "#/$defs/a", "$defs": {
            "a": { "allOf": [{ "$ref": "#/$defs/b" }, { "$ref": "#/$defs/b" }] },
            "b": { "allOf": [{ "$ref": "#/$defs/a" }, { "$ref": "#/$defs/a" }] } } })),
        ),
        ("a value inside itself", lax(json!({ "type": "array", "items": { "$ref": "#" }, "minItems": 2 }))),
        ("doubling references", lax(doubling(40))),
        ("the largest array", lax(json!({ "type": "array", "maxItems": u64::MAX }))),
        ("a large array", lax(json!({ "type": "array", "items": { "type": "integer" }, "minItems": 1_000_000 }))),
        ("a long string", lax(json!({ "type": "string", "minLength": 1_000_000 }))),
        ("the longest string", lax(json!({ "type": "string", "maxLength": u64::MAX }))),
        ("many properties", lax(json!({ "type": "object", "properties": properties(4000) }))),
        (
            "many required properties",
            lax(json!({ "type": "object", "properties": properties(2000),
            "required": (0..2000).map(|i| format!("p{i}")).collect::<Vec<_>>() })),
        ),
        (
            "alternatives of alternatives",
            lax(json!({ "allOf": many(30, json!({ "anyOf": [
            { "properties": { "a": { "type": "string" } } }, { "properties": { "b": { "type": "integer" } } } ] })) })),
        ),
        ("many alternatives", lax(json!({ "anyOf": many(5000, record()) }))),
        ("a large enum", lax(json!({ "enum": (0..50_000).collect::<Vec<_>>() }))),
        ("nested patterns", lax(json!({ "type": "string", "pattern": "^((a{1,100}){1,100}){1,100}$" }))),
        (
            "patterns that meet",
            lax(json!({ "allOf": [
            { "type": "string", "pattern": "^(a|b|ab)*c{0,200}(x|y)*$" },
            { "type": "string", "pattern": "^(ab|ba)*c*(xy|yx){0,300}$" } ] })),
        ),
        ("the finest multiple", lax(json!({ "type": "number", "multipleOf": 1e-300, "minimum": -1e300 }))),
        ("an exact multiple", lax(json!({ "type": "integer", "multipleOf": 999_983 }))),
        ("a wide range", lax(json!({ "type": "number", "minimum": -1.234_567_890_123e300, "maximum": 9.87e307 }))),
        (
            "many counted properties",
            lax(json!({ "type": "object", "properties": properties(30), "minProperties": 15 })),
        ),
        ("nested groups", Grammar::Regex(repeated("(", 60_000) + "a" + &repeated(")", 60_000))),
        ("groups within the limit", Grammar::Regex(repeated("(", 99) + "a" + &repeated(")?b", 99))),
        ("counted groups", Grammar::Regex("((((a{1,50}){1,50}){1,50}){1,50}){1,50}".into())),
        ("a far count", Grammar::Regex("(.*a.{5000}){3}".into())),
        ("states that explode", Grammar::Regex("(a|b)*a(a|b){24}c".into())),
        ("a long text", Grammar::Regex(repeated("ab", 200_000))),
        ("many alternatives in a row", Grammar::Regex(repeated("(x|yy|zzz)?", 20_000))),
        ("all of Unicode", Grammar::Regex(repeated(r"[\p{L}\p{N}]{1,50}", 50))),
        ("a rule of itself", Grammar::Lark("start: start".into())),
        ("left recursion", Grammar::Lark("start: start start | \"a\" | ".into())),
        ("an ambiguous sum", Grammar::Lark("start: e\ne: e \"+\" e | e e | \"1\" | \"11\"".into())),
        ("nothing for ever", Grammar::Lark("start: a*\na: b*\nb: a* \"\"".into())),
        ("a denied text", Grammar::Lark("start: T\nT: ~(/(.|\\n)*(a|b){12}c(.|\\n)*/ & ~/.*(b|c){12}a.*/)".into())),
        (
            "many rules",
            Grammar::Lark(
                (0..20_000).fold("start: r0".to_owned(), |text, i| format!("{text}\nr{i}: \"a\" r{} | \"b\"", i + 1))
                    + "\nr20000: \"c\"",
            ),
        ),
        ("deep rules", Grammar::Lark(format!("start: {}\"a\"{}", repeated("(", 99), repeated(")", 99)))),
        (
            "doubling terminals",
            Grammar::Lark(
                (0..30).fold("start: T0".to_owned(), |text, i| format!("{text}\nT{i}: T{} T{}", i + 1, i + 1))
                    + "\nT30: (\"x\" | \"yy\")?",
            ),
        ),
        (
            "doubling rules",
            Grammar::Lark(
                (0..30).fold("start: r0".to_owned(), |text, i| format!("{text}\nr{i}: r{} r{}", i + 1, i + 1))
                    + "\nr30: (\"x\" | \"yy\")?",
            ),
        ),
        ("the longest optional parts", Grammar::Regex(repeated("a?", 4096))),
        ("multiples that meet", lax(json!({ "allOf": [{ "multipleOf": 997 }, { "multipleOf": 991 }] }))),
        ("a large count", Grammar::Lark("start: (\"a\" | \"b\"){1000000}".into())),
        ("nested schemas", Grammar::Lark("start: %json { \"%lark\": \"start: %json {}\" }".into())),
        ("a long choice", Grammar::Choice((0..4096).map(|i| format!("{i:0200}")).collect())),
    ]
}

/// Those that must not come further than the compiler.
const REFUSED: [&str; 21] = [
    "a reference to itself",
    "references in a ring",
    "a ring of intersections",
    "doubling references",
    "the longest string",
    "many properties",
    "many required properties",
    "alternatives of alternatives",
    "many alternatives",
    "the finest multiple",
    "an exact multiple",
    "a wide range",
    "nested groups",
    "groups within the limit",
    "a long text",
    "many alternatives in a row",
    "a rule of itself",
    "doubling terminals",
    "the longest optional parts",
    "multiples that meet",
    "a long choice",
];

/// Whatever comes of them, it comes, and the compiler and its threads go on.
#[test]
fn they_are_refused_or_can_be_followed() {
    let [compiler, ..] = compilers();
    let vocab = compiler.tokenizer().vocab_size();
    let mut refused = Vec::new();
    for (name, grammar) in grammars() {
        let compiled = match compiler.compile(&OutputGrammar::content(grammar)) {
            Ok(compiled) => compiled,
            Err(error) => {
                assert!(error.to_string().len() < 2000);
                refused.push(name);
                continue;
            }
        };
        let mut sampler = Sampler::new(&SamplingParams::default(), &[], vocab).with_grammar(Some(&compiled));
        for position in 0..40 {
            match sampler.choose(&noise(3, position, vocab), position.into()) {
                Ok(token) => sampler.accept(token),
                Err(error) => {
                    assert!(sampler.explain(error).starts_with("the grammar cannot be followed: "), "{name}");
                    break;
                }
            }
            if sampler.is_complete() {
                break;
            }
        }
    }
    for name in REFUSED {
        assert!(refused.contains(&name), "{name} was not refused");
    }
    let fine = compile(&compiler, Grammar::Choice(vec!["ok".into()]));
    assert_eq!(babble(&compiler, &fine, 1, 9).as_deref(), Some("ok"));
}
