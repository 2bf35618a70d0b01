//! Places are right, hostile files are refused, and fast.

use super::*;

fn tree(text: &str) -> (Node, Vec<Diagnostic>) {
    let mut problems = Problems::default();
    let source = check_bytes("test.yaml", text.as_bytes()).unwrap();
    let node = parse(&source, &mut problems).unwrap();
    (node, problems.into_sorted(&source))
}

#[test]
fn every_key_and_value_knows_its_place() {
    let text = "model: ü/x\ndefaults:\n  port: 8888\n  list: [1, two]\n";
    let (node, diagnostics) = tree(text);
    assert!(diagnostics.is_empty());
    let NodeValue::Map(top) = &node.value else { panic!() };
    let defaults = &top[1];
    assert_eq!((defaults.key_span.line, defaults.key_span.column), (2, 1));
    let NodeValue::Map(options) = &defaults.value.value else { panic!() };
    assert_eq!((options[0].key_span.line, options[0].key_span.column), (3, 3));
    assert_eq!((options[0].value.span.line, options[0].value.span.column), (3, 9));
    assert_eq!(options[0].key_span.slice(text), "port");
    assert_eq!(options[0].value.span.slice(text), "8888");
    assert_eq!(top[0].value.span.slice(text), "ü/x");
    assert_eq!(node.to_json(), serde_json::json!({ "model": "ü/x", "defaults": { "port": 8888, "list": [1, "two"] } }));
}

#[test]
fn scalars_have_the_types_of_yaml_1_2() {
    let (node, _) = tree("a: on\nb: yes\nc: true\nd: 007\ne: 1_000\nf: 1.5\ng: ~\nh: 'null'\ni: 0x10\nj: -3\n");
    let expected = serde_json::json!({
        "a": "on", "b": "yes", "c": true, "d": "007", "e": "1_000", "f": 1.5, "g": null, "h": "null", "i": 16, "j": -3
    });
    assert_eq!(node.to_json(), expected);
}

#[test]
fn duplicate_and_merge_keys_are_all_reported() {
    let (_, diagnostics) = tree("a: 1\nb: {x: 1, x: 2}\na: 2\nc: &c {y: 1}\nd:\n  <<: *c\n");
    let places: Vec<(usize, usize)> = diagnostics.iter().map(|d| (d.line, d.column)).collect();
    assert_eq!(places, [(2, 11), (3, 1), (6, 3)]);
    assert!(diagnostics.iter().all(Diagnostic::is_error));
}

fn alias_bomb() -> String {
    let mut text = "a0: &a0 [lol, lol, lol, lol, lol, lol, lol, lol, lol]\n".to_owned();
    for level in 1..12 {
        let previous = vec![format!("*a{}", level - 1); 9].join(", ");
        text += &format!("a{level}: &a{level} [{previous}]\n");
    }
    text
}

fn merge_abuse() -> String {
    let mut text = "a0: &a0 {k: v}\n".to_owned();
    for level in 1..40 {
        text += &format!("a{level}: &a{level}\n  <<: [*a{}, *a{}]\n", level - 1, level - 1);
    }
    text
}

/// Name, bytes, and a word that the message must hold.
fn hostile() -> Vec<(&'static str, Vec<u8>, &'static str)> {
    let deep_block: String = (0..600).map(|depth| format!("{}a:\n", " ".repeat(depth))).collect();
    vec![
        ("alias bomb", alias_bomb().into_bytes(), "repeat"),
        ("self alias", b"a: &a [*a]\n".to_vec(), "inside itself"),
        ("self alias in a mapping", b"a: &a {b: *a}\n".to_vec(), "inside itself"),
        ("unknown alias", b"a: *nowhere\n".to_vec(), "anchor"),
        ("merge abuse", merge_abuse().into_bytes(), "repeat"),
        ("deep flow", "[".repeat(100_000).into_bytes(), "nested"),
        ("deep flow mappings", "{a: ".repeat(50_000).into_bytes(), "nested"),
        ("deep flow, closed", format!("a: {}{}", "[".repeat(100_000), "]".repeat(100_000)).into_bytes(), "nested"),
        ("deep block", deep_block.into_bytes(), "nested"),
        ("deep compact lists", format!("{}x\n", "- ".repeat(100_000)).into_bytes(), "nested"),
        ("many nodes", "- x\n".repeat(60_000).into_bytes(), "values"),
        ("many documents", "---\na: 1\n".repeat(10_000).into_bytes(), "document"),
        ("many anchors", (0..5000).map(|n| format!("a{n}: &a{n} x\n")).collect::<String>().into_bytes(), "anchors"),
        ("tabs", b"model: x\ndefaults:\n\tport: 1\n".to_vec(), "tab"),
        ("only a tab", b"\t- a: [\t\n".to_vec(), "bracket"),
        ("nul", b"model: a\0b\n".to_vec(), "U+0000"),
        ("escape", b"model: a\x1b[31m\n".to_vec(), "U+001B"),
        ("invalid utf-8", b"model: ok\nrun: \xff\xfe\n".to_vec(), "UTF-8"),
        ("utf-16", b"\xff\xfem\0o\0d\0e\0l\0".to_vec(), "UTF-8"),
        ("unclosed quote", format!("model: \"{}", "x".repeat(200_000)).into_bytes(), "quote"),
        ("unclosed flow", b"defaults: {port: 1\n".to_vec(), "bracket"),
        ("list as a key", b"? [a, b]\n: x\n".to_vec(), "key"),
        ("empty", b" \n \n".to_vec(), "empty"),
        ("50 MB of text", vec![b'a'; 50 << 20], "bytes"),
        ("50 MB of brackets", vec![b'['; 50 << 20], "bytes"),
        ("50 MB of bad UTF-8", vec![0xff; 50 << 20], "bytes"),
    ]
}

#[test]
fn hostile_files_are_refused_with_a_reason() {
    for (name, bytes, word) in hostile() {
        let result = check_bytes("hostile.yaml", &bytes).and_then(|source| {
            let mut problems = Problems::default();
            parse(&source, &mut problems)?;
            problems.into_sorted(&source).into_iter().next().map_or(Ok(()), |first| Err(Box::new(first)))
        });
        let diagnostic = result.expect_err(name);
        assert!(diagnostic.message.contains(word), "{name}: {}", diagnostic.message);
        assert!(diagnostic.message.len() < 400, "{name}: {}", diagnostic.message);
        assert!(render(&diagnostic).len() < 1000, "{name}: {}", render(&diagnostic));
    }
}

#[test]
fn length_is_checked_before_anything_else() {
    let bytes = vec![0xff; MAX_BYTES + 1];
    let diagnostic = check_bytes("big.yaml", &bytes).unwrap_err();
    assert!(diagnostic.message.contains("bytes"), "{}", diagnostic.message);
    // One byte fewer passes the length check and fails on encoding.
    let diagnostic = check_bytes("big.yaml", &bytes[1..]).unwrap_err();
    assert!(diagnostic.message.contains("UTF-8"), "{}", diagnostic.message);
}

#[test]
fn syntax_errors_point_at_the_line() {
    let source = check_bytes("test.yaml", b"model: x\ndefaults: [1, 2\nport: 3\n").unwrap();
    let diagnostic = parse(&source, &mut Problems::default()).unwrap_err();
    assert!(diagnostic.line >= 2, "{diagnostic:?}");
    insta::assert_snapshot!(render(&diagnostic));
}

#[test]
fn long_lines_are_cropped_around_the_mark() {
    let text = format!("description: {} <<<here {}\n", "x".repeat(300), "y".repeat(300));
    let source = Source { name: "long.yaml", text: &text };
    let offset = text.find("here").unwrap();
    let span = Span { length: 4, ..Span::at_offset(&text, offset) };
    let rendered = render(&Diagnostic::error("long.yaml", span, "look here").snippet_from(&source));
    let lines: Vec<&str> = rendered.lines().collect();
    let caret = lines[4].chars().position(|c| c == '^').unwrap();
    let marked: String = lines[3].chars().skip(caret).take(4).collect();
    assert_eq!(marked, "here", "{rendered}");
    assert!(lines.iter().all(|line| line.chars().count() < 130), "{rendered}");
}

#[test]
fn annotations_escape_what_the_protocol_reserves() {
    let span = Span { line: 3, column: 5, ..Span::default() };
    let diagnostic = Diagnostic::error("a,b:c.yaml", span, "100% wrong\nreally").field("defaults.port").help("fix it");
    assert_eq!(
        render_github(&diagnostic),
        "::error file=a%2Cb%3Ac.yaml,line=3,col=5,title=defaults.port::100%25 wrong%0Areally%0Afix it\n"
    );
}

#[test]
fn a_flood_of_problems_is_counted_not_told() {
    let text: String = (0..2000).map(|_| "a: 1\n").collect();
    let (_, diagnostics) = tree(&text);
    assert_eq!(diagnostics.len(), 51);
    let last = diagnostics.last().unwrap();
    assert!(last.is_error() && last.message == "1949 more errors not shown", "{}", last.message);
}
