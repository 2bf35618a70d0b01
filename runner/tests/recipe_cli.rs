//! `atlas recipe` through the binary.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

use atlas_schemas::outputs::{RecipeList, RecipeReport, ValidationReport};
use atlas_schemas::provenance::Source;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

fn atlas(words: &[&str]) -> Output {
    atlas_in(Path::new("."), words)
}

fn atlas_in(folder: &Path, words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_atlas"))
        .args(words)
        .current_dir(folder)
        .env("NO_COLOR", "1")
        .stdin(Stdio::null())
        .output()
        .expect("the binary starts")
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

fn code(output: &Output) -> i32 {
    output.status.code().expect("ended by itself")
}

fn fixture(name: &str) -> String {
    let root: PathBuf = [env!("CARGO_MANIFEST_DIR"), "..", "schemas", "tests", "fixtures", name].iter().collect();
    root.to_str().unwrap().to_owned()
}

const VALID: &str = "recipe_version: \"2\"\nmodel: a/b\nruntime: atlas\n";

#[test]
fn list_names_every_built_in_recipe() {
    let output = atlas(&["recipe", "list", "--json"]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let list: RecipeList = serde_json::from_slice(&output.stdout).unwrap();
    let names: Vec<&str> = list.recipes.iter().map(|recipe| recipe.name.as_str()).collect();
    for name in [
        "qwen3.8-27b-nvfp4",
        "qwen3.8-27b-nvfp4-latency",
        "qwen3.8-27b-nvfp4-throughput",
        "qwen3.8-flash-next-nvfp4",
        "qwen3.8-flash-next-nvfp4-throughput",
        "nemotron-3.5-lightning-30b-a3b-nvfp4-dspark",
        "nemotron-3-nano-30b-a3b-nvfp4",
        "nemotron-3-super-120b-a12b-nvfp4",
        "qwen3.6-35b-a3b-fp8-mtp",
        "gemma-4-26b-a4b-nvfp4",
        "deepseek-v4-flash-nvfp4-ep2",
        "glm-5.3-flash-nvfp4-ep2",
        "qwen3.5-0.8b-bf16",
        "smollm2-135m-bf16",
        "tiny",
    ] {
        assert!(names.contains(&format!("@atlas/{name}").as_str()), "{name}");
    }
    assert!(list.recipes.iter().all(|recipe| recipe.errors.is_empty() && recipe.hash.is_some()));
    let table = stdout(&atlas(&["recipe", "list"]));
    assert_eq!(table.lines().count(), 1 + list.recipes.len(), "{table}");
}

#[test]
fn one_broken_recipe_does_not_break_the_list() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("sub")).unwrap();
    fs::write(folder.path().join("bad.yaml"), "model: [\n").unwrap();
    fs::write(folder.path().join("sub/good.yaml"), VALID).unwrap();
    fs::write(folder.path().join("sub/bomb.yaml"), "a: &a [*a]\n").unwrap();
    fs::write(folder.path().join("notes.txt"), "no recipe").unwrap();
    std::os::unix::fs::symlink(folder.path(), folder.path().join("loop")).unwrap();
    let folder = folder.path().to_str().unwrap();
    let output = atlas(&["recipe", "list", folder, "--json"]);
    assert_eq!(code(&output), 0);
    let list: RecipeList = serde_json::from_slice(&output.stdout).unwrap();
    let mine: Vec<_> = list.recipes.iter().filter(|recipe| recipe.origin != "@atlas").collect();
    let broken: Vec<bool> = mine.iter().map(|recipe| !recipe.errors.is_empty()).collect();
    assert_eq!(broken, [true, true, false], "{mine:?}");
    let text = stdout(&atlas(&["recipe", "list", folder]));
    assert!(text.contains("(broken)") && text.contains("good.yaml"), "{text}");
    assert_eq!(code(&atlas(&["recipe", "list", "/nowhere/at/all"])), 1);
}

#[test]
fn show_tells_where_every_option_comes_from() {
    let output = atlas(&["recipe", "show", "@atlas/tiny", "--set", "max-model-len=512", "--json"]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let report: RecipeReport = serde_json::from_slice(&output.stdout).unwrap();
    let source = |key: &str| report.options.iter().find(|option| option.key == key).unwrap().source;
    assert_eq!(source("max_seq_len"), Source::Cli);
    assert_eq!(source("tool_call_parser"), Source::Recipe);
    assert_eq!(source("port"), Source::Default);
    assert_eq!(report.recipe["model"], "embedded");
    assert_eq!((report.origin.as_str(), report.refusals.len()), ("@atlas", 0));

    let text = stdout(&atlas(&["recipe", "show", "tiny", "--set", "max_seq_len=512"]));
    let text: String = text.lines().filter(|line| !line.starts_with("hash")).map(|line| format!("{line}\n")).collect();
    insta::assert_snapshot!("show_tiny", text);
}

#[test]
fn show_explains_what_it_cannot_find_or_use() {
    let cases: [(&[&str], i32, &str); 6] = [
        (&["@atlas/tinny"], 1, "did you mean `@atlas/tiny`?"),
        (&["@nobody/tiny"], 1, "`@nobody` is not known"),
        (&["https://example.org/x.yaml"], 1, "does not fetch"),
        (&["@atlas/tiny", "--set", "prot=1"], 2, "did you mean `port`?"),
        (&["@atlas/tiny", "--set", "port=x"], 2, "0 to 65535"),
        (&["@atlas/tiny", "--set", "host=0.0.0.0"], 2, "no API key is set"),
    ];
    for (words, exit, message) in cases {
        let output = atlas(&[&["recipe", "show"], words].concat());
        assert_eq!(code(&output), exit, "{words:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(message), "{words:?}: {}", stderr(&output));
        assert!(output.stdout.is_empty());
    }
    let broken = fixture("broken/unknown-option.yaml");
    let output = atlas(&["recipe", "show", &broken]);
    assert_eq!(code(&output), 1);
    assert!(stderr(&output).contains("did you mean `max_seq_len`?"), "{}", stderr(&output));
}

#[test]
fn validate_shows_every_problem_of_every_file_and_exits_1() {
    let folder = tempfile::tempdir().unwrap();
    let broken = "recipe_version: \"2\"\nmodel: a/b\nruntime: atlas\ndefaults:\n  prot: 1\n  max_num_seqs: 0\n";
    fs::write(folder.path().join("broken.yaml"), broken).unwrap();
    fs::write(folder.path().join("good.yaml"), VALID).unwrap();
    fs::copy(fixture("foreign/dflash.yaml"), folder.path().join("foreign.yaml")).unwrap();
    let files = ["good.yaml", "broken.yaml", "foreign.yaml", "nowhere.yaml", "."];
    let output = atlas_in(folder.path(), &[&["recipe", "validate"], files.as_slice()].concat());
    assert_eq!(code(&output), 1);
    insta::assert_snapshot!("validate", stdout(&output));

    let output = atlas_in(folder.path(), &[&["recipe", "validate", "--json"], files.as_slice()].concat());
    assert_eq!(code(&output), 1);
    let report: ValidationReport = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report.files.iter().map(|file| file.valid).collect::<Vec<_>>(), [true, false, true, false, false]);
    let first = &report.files[1].diagnostics[0];
    assert_eq!((first.line, first.column, first.field.as_str()), (5, 3, "defaults.prot"));
    assert_eq!(first.did_you_mean.as_deref(), Some("port"));
    assert_eq!(first.snippet.as_deref(), Some("  prot: 1"));

    let output = atlas_in(folder.path(), &["recipe", "validate", "--format", "github", "broken.yaml"]);
    assert!(stdout(&output).starts_with("::error file=broken.yaml,line=5,col=3,title=defaults.prot::"));
}

#[test]
fn warnings_are_visible_and_leave_the_file_valid() {
    let foreign = fixture("foreign/everything.yaml");
    let output = atlas(&["recipe", "validate", &foreign]);
    assert_eq!(code(&output), 0, "{}", stdout(&output));
    assert!(stdout(&output).contains("warning: ") && stdout(&output).contains(": valid ("));
    assert_eq!(code(&atlas(&["recipe", "validate", "--strict", &foreign])), 1);
    assert_eq!(code(&atlas(&["recipe", "validate", "@atlas/tiny", "@atlas/qwen3.8-27b-nvfp4"])), 0);
    assert_eq!(code(&atlas(&["recipe", "validate", "@atlas/nope"])), 1);
    assert_eq!(code(&atlas(&["recipe", "validate"])), 2);
}

#[test]
fn hostile_files_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let huge = folder.path().join("huge.yaml");
    fs::File::create(&huge).unwrap().set_len(50 << 20).unwrap();
    let nul = folder.path().join("nul.yaml");
    fs::write(&nul, b"model: a\0\n").unwrap();
    let deep = folder.path().join("deep.yaml");
    fs::write(&deep, "[".repeat(100_000)).unwrap();
    let escape = folder.path().join("escape.yaml");
    fs::write(&escape, format!("{VALID}metadata: {{description: \"\\e[31mred\"}}\n")).unwrap();
    for (file, message) in [(&huge, "52428800 bytes"), (&nul, "U+0000"), (&deep, "nested deeper")] {
        let output = atlas(&["recipe", "validate", file.to_str().unwrap()]);
        assert_eq!(code(&output), 1);
        assert!(stdout(&output).contains(message), "{}", stdout(&output));
    }
    let output = atlas(&["recipe", "show", escape.to_str().unwrap()]);
    assert_eq!(code(&output), 0);
    assert!(!stdout(&output).contains('\u{1b}'), "a recipe writes to the terminal");
    let endless = atlas(&["recipe", "validate", "/dev/zero"]);
    assert!(stdout(&endless).contains("not a regular file"), "{}", stdout(&endless));
}

#[test]
fn schemas_are_the_committed_ones() {
    let committed: PathBuf = [env!("CARGO_MANIFEST_DIR"), "..", "schemas", "json"].iter().collect();
    let recipe = stdout(&atlas(&["recipe", "schema"]));
    assert_eq!(recipe, fs::read_to_string(committed.join("recipe.schema.json")).unwrap());
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("json");
    assert_eq!(code(&atlas(&["recipe", "schema", "--all", target.to_str().unwrap()])), 0);
    let names = stdout(&atlas(&["recipe", "schema", "--names"]));
    assert_eq!(fs::read_dir(&target).unwrap().count(), names.lines().count());
    for name in names.lines() {
        let file = format!("{name}.schema.json");
        assert!(fs::read(target.join(&file)).unwrap() == fs::read(committed.join(&file)).unwrap(), "{file}");
    }
    assert!(stdout(&atlas(&["recipe", "schema", "--options"])).contains("| `max_seq_len` |"));
    let output = atlas(&["recipe", "schema", "recpie"]);
    assert_eq!(code(&output), 2);
    assert!(stderr(&output).contains("did you mean `recipe`?"));
}

#[test]
fn new_writes_a_valid_recipe() {
    let folder = tempfile::tempdir().unwrap();
    let words = [
        "recipe",
        "new",
        "mine",
        "--model",
        "Qwen/Qwen3.5-0.8B",
        "--description",
        "For \"tests\": fast.",
        "--set",
        "max_model_len=4096",
        "--set",
        "kv_cache_dtype=fp8:nvfp4",
        "--set",
        "default_chat_template_kwargs={\"a\": [1]}",
    ];
    let output = atlas_in(folder.path(), &words);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let text = fs::read_to_string(folder.path().join("mine.yaml")).unwrap();
    insta::assert_snapshot!("new", text);
    let output = atlas_in(folder.path(), &["recipe", "validate", "--strict", "mine.yaml"]);
    assert_eq!((code(&output), stdout(&output).as_str()), (0, "mine.yaml: valid\n"));

    let output = atlas_in(folder.path(), &words);
    assert_eq!(code(&output), 1, "an existing file was replaced");
    assert!(stderr(&output).contains("--force"));
    assert_eq!(code(&atlas_in(folder.path(), &[&words[..], &["--force"]].concat())), 0);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "something was left behind");
    let output = atlas_in(folder.path(), &["recipe", "new", "x", "--model", "embedded", "--output", "-"]);
    assert!(stdout(&output).contains("model: \"embedded\""));
}

#[test]
fn new_refuses_what_would_not_be_valid_and_writes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let cases: [(&[&str], &str); 7] = [
        (&["mine"], "--model is missing"),
        (&["--model", "a/b"], "NAME is missing"),
        (&["../evil", "--model", "a/b"], "not a recipe's name"),
        (&["mine", "--model", "no-model"], "not a model's name"),
        (&["mine", "--model", "a/b", "--set", "dflash=true"], "needs `draft_model`"),
        (&["mine", "--model", "a/b", "--set", "api_key=sentinel"], "holds no secrets"),
        (&["mine", "--model", "a/b", "--set", "max_seq_len=1"], "16 to 16777216"),
    ];
    for (words, message) in cases {
        let output = atlas_in(folder.path(), &[&["recipe", "new"], words].concat());
        assert_eq!(code(&output), 2, "{words:?}");
        assert!(stderr(&output).contains(message), "{words:?}: {}", stderr(&output));
        assert!(!stderr(&output).contains("sentinel"));
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}
