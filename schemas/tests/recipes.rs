//! Recipes from files: what loads, what is refused, and in which words.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

use atlas_schemas::recipe::{Parsed, Strictness, parse};
use atlas_schemas::yaml::{Severity, render};
use std::fs;
use std::path::{Path, PathBuf};

fn files(folder: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(folder);
    let mut files: Vec<PathBuf> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(!files.is_empty());
    files
}

fn read(path: &Path) -> (String, Parsed) {
    let name = path.file_name().unwrap().to_str().unwrap().to_owned();
    let parsed = parse(&name, &fs::read(path).unwrap(), Strictness::Detect);
    (name, parsed)
}

fn messages(parsed: &Parsed) -> String {
    parsed.diagnostics.iter().map(render).collect::<Vec<_>>().join("\n")
}

#[test]
fn broken_recipes_are_explained() {
    let mut all = String::new();
    for path in files("broken") {
        let (name, parsed) = read(&path);
        assert!(parsed.recipe.is_none(), "{name} was accepted");
        assert!(parsed.diagnostics.iter().any(|diagnostic| diagnostic.severity == Severity::Error), "{name}");
        for diagnostic in &parsed.diagnostics {
            assert!(diagnostic.line > 0 && diagnostic.column > 0, "{name}: no place: {}", diagnostic.message);
        }
        all += &format!("=== {name} ===\n{}\n", messages(&parsed));
    }
    assert!(!all.contains("sentinel"), "a secret is shown");
    insta::assert_snapshot!("broken", all);
}

#[test]
fn recipes_from_elsewhere_load_with_visible_warnings() {
    let mut all = String::new();
    for path in files("foreign") {
        let (name, parsed) = read(&path);
        assert!(!parsed.strict, "{name}");
        let recipe = parsed.recipe.as_ref().unwrap_or_else(|| panic!("{name} does not load:\n{}", messages(&parsed)));
        let recipe = serde_json::to_string_pretty(recipe).unwrap();
        assert!(!recipe.contains("sk-sentinel"), "{name} shows a secret");
        all += &format!("=== {name} ===\n{}\n{recipe}\n", messages(&parsed));
    }
    insta::assert_snapshot!("foreign", all);
}

#[test]
fn our_own_recipes_load_without_a_word() {
    for path in files("own") {
        let (name, parsed) = read(&path);
        assert!(parsed.strict, "{name}");
        assert_eq!(messages(&parsed), "", "{name}");
        let recipe = parsed.recipe.unwrap();
        insta::assert_json_snapshot!(name, recipe);
        assert_eq!(recipe.refusals().len(), 6);
    }
}

#[test]
fn the_hash_sees_what_runs_and_nothing_else() {
    let base = "recipe_version: \"2\"\nmodel: a/b\nruntime: atlas\n";
    let hash = |more: &str| {
        let text = format!("{base}{more}");
        parse("x.yaml", text.as_bytes(), Strictness::Own).recipe.unwrap_or_else(|| panic!("{more}")).hash()
    };
    let plain = hash("");
    assert_eq!(plain.len(), 64);
    for same in [
        "# comment\n",
        "metadata: {description: other words}\n",
        "defaults: {port: 1234, model_name: x}\n",
        "defaults: {max_num_seqs: 128}\n",
        "gates: {suites: [decode], classes: [cpu]}\n",
        "min_nodes: 1\n",
    ] {
        assert_eq!(hash(same), plain, "{same}");
    }
    for other in [
        "defaults: {max_num_seqs: 64}\n",
        "model_revision: abc\n",
        "env: {NCCL_DEBUG: INFO}\n",
        "command: atlas serve {model}\n",
    ] {
        assert_ne!(hash(other), plain, "{other}");
    }
    assert_eq!(hash("defaults: {max_num_seqs: 64, threads: 2}\n"), hash("defaults: {threads: 2, max_num_seqs: 64}\n"));
    assert_eq!(hash("defaults: {max_seq_len: 4096}\n"), hash("defaults: {max_model_len: 4096}\n"));
}

#[test]
fn nothing_panics_on_mangled_recipes() {
    // Every prefix, and every single-byte change to a few bytes of interest, of every fixture.
    for path in files("foreign").into_iter().chain(files("own")) {
        let bytes = fs::read(&path).unwrap();
        for length in (0..bytes.len()).step_by(7) {
            let _ = parse("x.yaml", &bytes[..length], Strictness::Detect);
        }
        for position in (0..bytes.len()).step_by(11) {
            for byte in [b'\t', b':', b'"', b'[', b'*', b'&', b'\n', 0xff, 0] {
                let mut mangled = bytes.clone();
                mangled[position] = byte;
                for diagnostic in parse("x.yaml", &mangled, Strictness::Detect).diagnostics {
                    let _ = render(&diagnostic);
                }
            }
        }
    }
}

#[test]
fn the_recipes_of_this_repository_are_flawless() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../recipes");
    let mut names = Vec::new();
    for family in fs::read_dir(&root).unwrap().map(|entry| entry.unwrap().path()).filter(|path| path.is_dir()) {
        for path in fs::read_dir(family).unwrap().map(|entry| entry.unwrap().path()) {
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            if name.ends_with(".lock.yaml") {
                continue;
            }
            let parsed = parse(&name, &fs::read(&path).unwrap(), Strictness::Detect);
            assert!(parsed.strict, "{name} does not name our schema");
            assert_eq!(messages(&parsed), "", "{name}");
            let recipe = parsed.recipe.unwrap();
            assert!(recipe.metadata.description.is_some(), "{name} has no description");
            assert!(recipe.command.is_none() && recipe.env.is_empty(), "{name} is more than settings");
            names.push(name.trim_end_matches(".yaml").to_owned());
        }
    }
    names.sort();
    let count = names.len();
    names.dedup();
    assert_eq!(names.len(), count, "two recipes have one name");
    assert!(names.contains(&"tiny".to_owned()) && count >= 15, "{names:?}");
}

#[test]
fn floods_of_problems_stay_readable() {
    let head = "recipe_version: \"2\"\nmodel: a/b\nruntime: atlas\n";
    let keys = |count: usize| (0..count).map(|n| format!("  kx{n}: 1\n")).collect::<String>();
    let floods = [
        format!("{head}defaults:\n{}", keys(2000)),
        format!("{head}env:\n{}", keys(2000).replace("kx", "ATLAS_KX")),
        format!("{head}metadata:\n{}", keys(2000)),
        format!("{{{}}}\n", keys(2000).replace('\n', ",")),
        format!("{head}# {}\n", (0..20_000).map(|n| format!("ATLAS_X{n} ")).collect::<String>()),
    ];
    for flood in floods {
        let parsed = parse("flood.yaml", flood.as_bytes(), Strictness::Foreign);
        assert!((10..=51).contains(&parsed.diagnostics.len()), "{}", parsed.diagnostics.len());
        assert!(messages(&parsed).len() < 64 * 1024);
    }
}

#[test]
fn a_byte_order_mark_and_windows_line_ends_are_welcome() {
    let text = "\u{feff}recipe_version: \"2\"\r\nmodel: a/b\r\nruntime: atlas\r\ndefaults:\r\n  prot: 1\r\n";
    let parsed = parse("x.yaml", text.as_bytes(), Strictness::Own);
    assert_eq!(parsed.diagnostics.len(), 1, "{}", messages(&parsed));
    let problem = &parsed.diagnostics[0];
    assert_eq!((problem.line, problem.column, problem.snippet.as_deref()), (5, 3, Some("  prot: 1")));
    assert!(messages(&parsed).contains("  ^^^^ did you mean `port`?"), "{}", messages(&parsed));
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig { failure_persistence: None, ..Default::default() })]

    #[test]
    fn any_bytes_are_judged_without_a_panic(bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..300)) {
        for diagnostic in parse("x.yaml", &bytes, Strictness::Detect).diagnostics {
            let _ = render(&diagnostic);
        }
    }

    #[test]
    fn any_value_of_any_option_is_judged_without_a_panic(key in "[a-z_]{1,24}", value in "\\PC{0,40}") {
        let key = atlas_schemas::serve_options::nearest(&key).unwrap_or("port");
        let text = format!("recipe_version: '2'\nmodel: a/b\nruntime: atlas\ndefaults:\n  {key}: {value}\n");
        for diagnostic in parse("x.yaml", text.as_bytes(), Strictness::Detect).diagnostics {
            proptest::prop_assert!(!render(&diagnostic).is_empty());
        }
    }
}
