use super::*;
use proptest::prelude::*;
use serde_json::json;

const BOTH: OutputFormat =
    OutputFormat { tools: ToolFormat::Hermes, reasoning: ReasoningFormat::ThinkTags, starts_in_reasoning: false };
const TOOLS: OutputFormat = OutputFormat { reasoning: ReasoningFormat::None, ..BOTH };
const THINKING: OutputFormat = OutputFormat { starts_in_reasoning: true, ..BOTH };

/// Deltas of an output pushed in these pieces, neighbours of one kind joined.
fn parse<'a>(format: OutputFormat, pieces: impl IntoIterator<Item = &'a str>) -> Vec<Delta> {
    let mut parser = OutputParser::new(format, CallIds::new(1));
    let mut deltas: Vec<Delta> = pieces.into_iter().flat_map(|piece| parser.push(piece)).collect();
    deltas.extend(parser.finish());
    let mut joined: Vec<Delta> = Vec::new();
    for delta in deltas {
        match (joined.last_mut(), delta) {
            (Some(Delta::Content(a)), Delta::Content(b)) | (Some(Delta::Reasoning(a)), Delta::Reasoning(b)) => *a += &b,
            (
                Some(Delta::ToolCallArguments { index: i, fragment: a }),
                Delta::ToolCallArguments { index: j, fragment: b },
            ) if *i == j => *a += &b,
            (_, delta) => joined.push(delta),
        }
    }
    joined
}

fn chars(text: &str) -> impl Iterator<Item = &str> {
    text.char_indices().map(|(i, c)| &text[i..i + c.len_utf8()])
}

/// A readable form, equal for every way of cutting: `C:` content, `R:` reasoning, `name(arguments)` a call.
fn show(format: OutputFormat, text: &str) -> String {
    let whole = parse(format, [text]);
    assert_eq!(parse(format, chars(text)), whole, "{text:?}");
    let mut out = Vec::new();
    for delta in whole {
        match delta {
            Delta::Content(text) => out.push(format!("C:{text}")),
            Delta::Reasoning(text) => out.push(format!("R:{text}")),
            Delta::ToolCallStart { index, id, name } => {
                assert!(id.starts_with("call_") && id.len() == 29, "{id}");
                out.push(format!("{index}.{name}("));
            }
            Delta::ToolCallArguments { fragment, .. } => *out.last_mut().unwrap() += &fragment,
            Delta::ToolCallEnd { .. } => *out.last_mut().unwrap() += ")",
        }
    }
    out.join("|")
}

#[test]
fn plain_content() {
    assert_eq!(show(BOTH, "Hello <b>world</b>\n"), "C:Hello <b>world</b>\n");
    assert_eq!(show(BOTH, "a < b, <tool_cal, </think>, <think>"), "C:a < b, <tool_cal, </think>, <think>");
    assert_eq!(show(OutputFormat::default(), "<think>x</think><tool_call>"), "C:<think>x</think><tool_call>");
    assert_eq!(show(BOTH, ""), "");
    assert_eq!(show(BOTH, "\n\n"), "C:\n\n");
}

#[test]
fn reasoning() {
    assert_eq!(show(BOTH, "<think>\nwhy\n\nso\n</think>\n\nBecause."), "R:why\n\nso|C:Because.");
    assert_eq!(show(BOTH, "\n<think>x</think>y<think>z"), "R:x|C:y<think>z");
    assert_eq!(show(THINKING, "why\n</think>\n\nBecause."), "R:why|C:Because.");
    assert_eq!(show(THINKING, "<think>\nwhy</think>yes"), "R:why|C:yes");
    assert_eq!(show(THINKING, "never ends\n"), "R:never ends\n");
    assert_eq!(show(BOTH, "<think></think>\n\nyes"), "C:yes");
    assert_eq!(show(BOTH, "<think>a </thin"), "R:a </thin");
    assert_eq!(show(TOOLS, "<think>x</think>"), "C:<think>x</think>");
}

#[test]
fn calls() {
    let call = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"city\": \"Oslo\"}}\n</tool_call>";
    assert_eq!(show(BOTH, call), "0.f({\"city\": \"Oslo\"})");
    let two = format!("Sure.\n{call}\n{call}\n");
    assert_eq!(show(TOOLS, &two), "C:Sure.|0.f({\"city\": \"Oslo\"})|1.f({\"city\": \"Oslo\"})");
    assert_eq!(show(TOOLS, "<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>done"), "0.f({})|C:done");
    assert_eq!(
        show(TOOLS, "<tool_call>{\"arguments\":{\"a\":[1,{\"b\":2}]},\"name\":\"f\"}"),
        "0.f({\"a\":[1,{\"b\":2}]})"
    );
    assert_eq!(show(TOOLS, "<tool_call>{\"name\":\"f\"}</tool_call>"), "0.f({})");
    assert_eq!(show(TOOLS, "<tool_call>{\"name\":\"f\",\"arguments\":null}</tool_call>"), "0.f({})");
    assert_eq!(show(TOOLS, "<tool_call>{\"id\":-1.5e3,\"name\":\"f\",\"x\":[{}],\"parameters\":{}}"), "0.f({})");
    assert_eq!(show(TOOLS, r#"<tool_call>{"n\u0061me":"\u00f8\"","arguments":{}}"#), "0.ø\"({})");
    // Without closers, or several in one block.
    assert_eq!(show(TOOLS, "<tool_call>{\"name\":\"f\"}\n<tool_call>{\"name\":\"g\"}"), "0.f({})|1.g({})");
    assert_eq!(show(TOOLS, "<tool_call>{\"name\":\"f\"}\n{\"name\":\"g\"}</tool_call>"), "0.f({})|1.g({})");
}

#[test]
fn arguments_as_text() {
    let call = |arguments: &str| format!("<tool_call>{{\"name\":\"f\",\"arguments\":{arguments}}}</tool_call>");
    assert_eq!(
        show(TOOLS, &call(r#""{\"city\": \"Os\\nlo \\ud83d\\ude00\"}""#)),
        r#"0.f({"city": "Os\nlo \ud83d\ude00"})"#
    );
    assert_eq!(show(TOOLS, &call(r#""\u007b\"e\": \"\ud83d\ude00\"}""#)), r#"0.f({"e": "😀"})"#);
    assert_eq!(show(TOOLS, &call(r#""""#)), "0.f({})");
    assert_eq!(show(TOOLS, &call(r#"" {} ""#)), "0.f({})");
    let text = call("\"Oslo\"");
    assert_eq!(show(TOOLS, &text), format!("C:{text}"));
}

#[test]
fn markers_inside_arguments() {
    let arguments = r#"{"html": "<b></tool_call><tool_call>{</think>\"", "n": "a < b"}"#;
    let text = format!("<tool_call>{{\"name\": \"f\", \"arguments\": {arguments}}}</tool_call>");
    assert_eq!(show(BOTH, &text), format!("0.f({arguments})"));
}

#[test]
fn control_characters_in_strings_are_escaped() {
    let shown = show(TOOLS, "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":\"x\ny\tz\u{1}\"}}");
    assert_eq!(shown, r#"0.f({"a":"x\ny\tz\u0001"})"#);
}

#[test]
fn what_is_no_call_stays_text() {
    for text in [
        "use <tool_call> like this",
        "<tool_call>\n{\"name\": 3}\n</tool_call>",
        "<tool_call>{}</tool_call>",
        "<tool_call>{\"name\":\"\",\"arguments\":{}}",
        "<tool_call>{\"name\":\"f\",\"arguments\":[1]}</tool_call>",
        "<tool_call>{\"name\":\"f\",\"name\":\"g\"}",
        "<tool_call>{\"arguments\":{\"a\":1}}</tool_call>",
        "<tool_call>{\"arguments\":{\"a\":1},",
        "<tool_call>{\"name\":\"f",
        "a\n\n<tool_call>\n\n{\"name\" \"f\"}\n\nb",
        "<tool_call><tool_call>",
        "<tool_call>",
        "a <tool_cal",
    ] {
        assert_eq!(show(TOOLS, text), format!("C:{text}"));
        assert_eq!(show(THINKING, text), format!("R:{text}"));
    }
    // A marker right where a block breaks is still one.
    assert_eq!(show(TOOLS, "<tool_call>{<tool_call>{\"name\":\"f\"}"), "C:<tool_call>{|0.f({})");
}

#[test]
fn a_call_that_breaks_after_it_began_keeps_what_came() {
    let shown = show(TOOLS, "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":1,,}}\n</tool_call> so");
    assert_eq!(shown, "0.f({\"a\":1,)|C:,}}\n</tool_call> so");
    assert_eq!(show(TOOLS, "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":\"Os"), "0.f({\"a\":\"Os)");
    assert_eq!(show(TOOLS, "<tool_call>{\"name\":\"f\"}junk"), "0.f({})|C:junk");
    assert_eq!(show(TOOLS, "<tool_call>{\"name\":\"f\"}</tool"), "0.f({})|C:</tool");
}

#[test]
fn a_call_closes_an_open_reasoning_block() {
    let text = "I need it.\n<tool_call>{\"name\":\"f\"}</tool_call>\nafter";
    assert_eq!(show(THINKING, text), "R:I need it.|0.f({})|C:after");
    assert_eq!(show(BOTH, "<think>\na</think>\n<tool_call>{\"name\":\"f\"}</tool_call>"), "R:a|0.f({})");
    // A mere mention does not.
    assert_eq!(show(THINKING, "perhaps <tool_call> helps</think>no"), "R:perhaps <tool_call> helps|C:no");
}

#[test]
fn only_what_may_become_a_marker_waits() {
    let mut parser = OutputParser::new(BOTH, CallIds::new(1));
    let said = |deltas: Vec<Delta>| match deltas.as_slice() {
        [] => String::new(),
        [Delta::Content(text)] => text.clone(),
        other => panic!("{other:?}"),
    };
    assert_eq!(said(parser.push("a <")), "a ");
    assert_eq!(said(parser.push("tool")), "");
    assert_eq!(said(parser.push("box> b\n")), "<toolbox> b");
    assert_eq!(said(parser.push("\nc")), "\n\nc");
    assert_eq!(said(parser.push("<tool_call")), "");
    assert_eq!(said(parser.finish()), "<tool_call");
}

#[test]
fn arguments_stream_as_they_come() {
    let mut parser = OutputParser::new(TOOLS, CallIds::new(7));
    assert_eq!(parser.push("<tool_call>{\"name\": \"f\", \"arguments\""), []);
    let start = parser.push(": {\"a\"");
    let id = CallIds::new(7).next();
    assert_eq!(
        start,
        [
            Delta::ToolCallStart { index: 0, id, name: "f".into() },
            Delta::ToolCallArguments { index: 0, fragment: "{\"a\"".into() },
        ]
    );
    assert_eq!(parser.push(": 1"), [Delta::ToolCallArguments { index: 0, fragment: ": 1".into() }]);
    assert_eq!(
        parser.push("}}</tool"),
        [Delta::ToolCallArguments { index: 0, fragment: "}".into() }, Delta::ToolCallEnd { index: 0 },]
    );
    assert_eq!(parser.finish(), [Delta::Content("</tool".into())]);
}

#[test]
fn ids_differ_and_repeat_with_the_seed() {
    let ids = |seed| -> Vec<String> {
        let mut ids = CallIds::new(seed);
        (0..3).map(|_| ids.next()).collect()
    };
    assert_eq!(ids(5), ids(5));
    let all: std::collections::HashSet<String> = (0..50).flat_map(ids).collect();
    assert_eq!(all.len(), 150);
}

#[test]
fn prompts_that_open_a_block() {
    let format = ReasoningFormat::ThinkTags;
    assert!(format.opened_by("<|im_start|>assistant\n<think>\n"));
    assert!(!format.opened_by("<|im_start|>assistant\n<think>\n\n</think>\n\n"));
    assert!(!format.opened_by("user: what is <think>?\nassistant:"));
    assert!(!ReasoningFormat::None.opened_by("<think>"));
    assert!(format.left_open_by("<think>a</think><think>b") && !format.left_open_by("<think>a</think>b"));
    assert!(!format.left_open_by("x"));
}

/// Hostile megabytes. A parser that is not linear would take hours; in pieces, too.
#[test]
fn hostile_megabytes_are_linear() {
    let units = [
        "<",
        "<tool_call>",
        "<tool_call>{",
        "<tool_call>{\"",
        "</think>",
        "<think>",
        "\n",
        "\n<",
        " ",
        "</tool_call",
        "<tool_call>{\"name\":\"f\"}",
        "{\"name\":\"f\"}",
        "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":",
        "[",
        "\\u",
    ];
    let begins = [
        "",
        "<tool_call>",
        "<tool_call>{\"x\":",
        "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":\"",
        "<tool_call>{\"name\":\"f\",\"arguments\":\"",
        "<tool_call>{\"name\":\"f\"}",
        "<tool_call>{\"x\":1",
    ];
    for format in [BOTH, THINKING] {
        for begin in begins {
            for unit in units {
                let text = begin.to_owned() + &unit.repeat((1 << 20) / unit.len());
                let mut parser = OutputParser::new(format, CallIds::new(1));
                let mut deltas = 0;
                for piece in text.as_bytes().chunks(7) {
                    deltas += parser.push(std::str::from_utf8(piece).unwrap()).len();
                }
                deltas += parser.finish().len();
                assert!(deltas <= text.len(), "{begin:?} {unit:?}");
            }
        }
    }
}

fn fragments() -> impl Strategy<Value = String> {
    let fragment = prop_oneof![
        Just("<tool_call>"),
        Just("</tool_call>"),
        Just("<think>"),
        Just("</think>"),
        Just("\n"),
        Just(" "),
        Just("<"),
        Just("{\"name\": \"f\", \"arguments\": {\"a\": 1}}"),
        Just("{\"name\":\"g\"}"),
        Just("{\"arguments\": "),
        Just("\"{\\\"a\\\": \\\"\\ud83d\\ude00\\\"}\""),
        Just("{\"name\""),
        Just(": "),
        Just("\"é\""),
        Just("{"),
        Just("}"),
        Just(","),
        Just("[1.5]"),
        Just("text"),
        Just("null"),
        Just("\\"),
        Just("\""),
        Just("-1"),
        Just("tool_call>"),
    ];
    prop::collection::vec(fragment, 0..14).prop_map(|f| f.concat())
}

fn formats() -> impl Strategy<Value = OutputFormat> {
    (any::<bool>(), any::<bool>(), any::<bool>()).prop_map(|(tools, think, starts_in_reasoning)| OutputFormat {
        tools: if tools { ToolFormat::Hermes } else { ToolFormat::None },
        reasoning: if think { ReasoningFormat::ThinkTags } else { ReasoningFormat::None },
        starts_in_reasoning,
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]
    #[test]
    fn split_anywhere_equals_unsplit(text in fragments(), format in formats(), cuts in prop::collection::vec(0usize..200, 0..4)) {
        let whole = parse(format, [text.as_str()]);
        prop_assert_eq!(parse(format, chars(&text)), whole.clone());
        let mut cuts: Vec<usize> = cuts.into_iter().filter(|&c| text.is_char_boundary(c)).collect();
        cuts.extend([0, text.len()]);
        cuts.sort_unstable();
        prop_assert_eq!(parse(format, cuts.windows(2).map(|w| &text[w[0]..w[1]])), whole);
    }

    #[test]
    fn nothing_but_framing_is_lost(text in fragments(), format in formats()) {
        // Every letter of what is no marker and no call comes out again.
        let letters = |text: &str| text.matches("text").count();
        let out: usize = parse(format, [text.as_str()]).iter().map(|delta| match delta {
            Delta::Content(text) | Delta::Reasoning(text) => letters(text),
            Delta::ToolCallArguments { fragment, .. } => letters(fragment),
            _ => 0,
        }).sum();
        if !text.contains('"') {
            prop_assert_eq!(out, letters(&text));
        }
        if format.tools == ToolFormat::None && format.reasoning == ReasoningFormat::None {
            let expected = if text.is_empty() { vec![] } else { vec![Delta::Content(text.clone())] };
            prop_assert_eq!(parse(format, [text.as_str()]), expected);
        }
    }

    #[test]
    fn calls_come_back(
        calls in prop::collection::vec(("[a-z_]{1,8}", prop::collection::vec(("\\PC{0,8}", "(\\PC|[\n<>\"\\\\]|</?tool_call>){0,12}"), 0..4)), 1..4),
        before in "[a-z]{0,6}",
        as_text: bool,
    ) {
        let mut output = before.clone();
        for (name, arguments) in &calls {
            let object: serde_json::Map<String, serde_json::Value> =
                arguments.iter().map(|(k, v)| (k.clone(), json!([v, 1.5, null]))).collect();
            let arguments = serde_json::Value::Object(object);
            let arguments = if as_text { json!(arguments.to_string()) } else { arguments };
            output += &format!("\n<tool_call>\n{}\n</tool_call>", json!({"name": name, "arguments": arguments}));
        }
        let deltas = parse(TOOLS, chars(&output));
        let mut expected = 0;
        for delta in &deltas {
            match delta {
                Delta::Content(text) => prop_assert_eq!(text, &before),
                Delta::ToolCallStart { index, name, .. } => {
                    prop_assert_eq!((*index, name), (expected, &calls[expected].0));
                    expected += 1;
                }
                Delta::ToolCallArguments { index, fragment } => {
                    let parsed: serde_json::Map<String, serde_json::Value> = serde_json::from_str(fragment).unwrap();
                    for (key, value) in &calls[*index].1 {
                        let last = calls[*index].1.iter().rev().find(|(k, _)| k == key).unwrap();
                        prop_assert_eq!(&parsed[key][0], &json!(last.1), "{}", value);
                    }
                }
                _ => {}
            }
        }
        prop_assert_eq!(expected, calls.len());
    }
}
