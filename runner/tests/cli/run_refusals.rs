//! What `atlas run` and `atlas serve` refuse, in which order, and that refusing or planning leaves no trace.

use crate::support::{Home, outcome};
use serde_json::Value;
use std::net::TcpListener;

/// A recipe for a model that is not there, with what a test needs to say beyond that.
fn recipe(home: &Home, more: &str) -> String {
    let path = home.path().join("recipe.yaml");
    std::fs::write(&path, format!("recipe_version: \"2\"\nmodel: no-such/model\nruntime: atlas\n{more}")).unwrap();
    path.display().to_string()
}

#[test]
fn a_dry_run_shows_everything_and_touches_nothing() {
    let home = Home::new();
    let (code, stdout, stderr) =
        home.outcome(&["run", "@atlas/tiny", "--dry-run", "--port", "0", "--set", "max_seq_len=512", "--json"]);
    assert_eq!(code, 0, "{stderr}");
    let plan: atlas_schemas::outputs::RunPlan = serde_json::from_str(&stdout).unwrap();
    let source = |key: &str| {
        let option = plan.options.iter().find(|option| option.key == key).unwrap();
        (option.value.clone(), option.source.to_string())
    };
    assert_eq!(source("max_seq_len"), (512.into(), "cli".to_owned()));
    assert_eq!(source("max_num_seqs"), (16.into(), "recipe".to_owned()));
    assert_eq!(source("scheduling_policy").1, "default");
    assert!(plan.refused.is_empty() && plan.missing.is_none());
    let memory = plan.memory.unwrap();
    assert!(memory.fits && memory.weight_bytes > 10_000_000 && memory.context == 512, "{memory:?}");
    assert_eq!(plan.argv[..3], ["atlas", "serve", "embedded"]);
    assert!(plan.argv.windows(2).any(|pair| pair == ["--max-seq-len", "512"]), "{:?}", plan.argv);

    let (code, text, _) = home.outcome(&["run", "@atlas/tiny", "--dry-run", "--port", "0"]);
    assert_eq!(code, 0);
    for expected in
        ["fits: needs", "max_num_seqs", "recipe\n", "default\n", "(any free port)", "argv     atlas serve embedded"]
    {
        assert!(text.contains(expected), "{expected} in {text}");
    }
    assert!(home.listing().is_empty(), "{:?}", home.listing());
}

#[test]
fn a_busy_port_is_refused_before_anything_else_and_names_its_owner() {
    let home = Home::new();
    let busy = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = busy.local_addr().unwrap().port().to_string();
    // The weights are missing too, but that is not what is told.
    let file = recipe(&home, "");
    for target in ["@atlas/tiny", &file] {
        let (code, stdout, stderr) = home.outcome(&["run", target, "--port", &port]);
        assert_eq!(code, 4, "{stderr}");
        let owner = format!("port {port} is in use by process {}", std::process::id());
        assert!(stdout.is_empty() && stderr.contains(&owner), "{stderr}");
    }
    assert!(!home.state().exists());
    // A plan shows it, and ends as the run would.
    let (code, stdout, _) = home.outcome(&["run", "@atlas/tiny", "--port", &port, "--dry-run"]);
    assert_eq!((code, stdout.contains("refused  port ")), (4, true), "{stdout}");
    let (code, _, stderr) = home.outcome(&["serve", "embedded", "--port", &port]);
    assert_eq!((code, stderr.contains("is in use by process")), (4, true), "{stderr}");
}

#[test]
fn other_hosts_unknown_clusters_and_impossible_topologies_are_refused() {
    let home = Home::new();
    let own = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    let tiny = |arguments: &[&str]| {
        let (code, _, stderr) =
            home.outcome(&[&["run", "@atlas/tiny", "--dry-run", "--port", "0"], arguments].concat());
        (code, stderr)
    };
    for here in ["localhost", "127.0.0.1", "::1", "localhost,127.0.0.1,[::1]", own.trim()] {
        assert_eq!(tiny(&["--hosts", here]).0, 0, "{here}");
    }
    let (code, stderr) = tiny(&["--hosts", "192.0.2.7"]);
    assert_eq!((code, stderr.contains("`192.0.2.7` is not this machine")), (4, true), "{stderr}");
    assert!(stderr.contains("not supported yet"), "{stderr}");
    let (code, stderr) = tiny(&["--cluster", "lab"]);
    assert_eq!((code, stderr.contains("unknown cluster `lab`")), (2, true), "{stderr}");
    assert_eq!(tiny(&["--cluster", "lab", "--hosts", "localhost"]).0, 2);

    let hosts = home.path().join("hosts");
    std::fs::write(&hosts, "# mine\nlocalhost # here\n\n127.0.0.1\n").unwrap();
    assert_eq!(tiny(&["--hosts-file", hosts.to_str().unwrap()]).0, 0);
    assert_eq!(tiny(&["--hosts-file", "/no/such/file"]).0, 2);

    let file = recipe(&home, "min_nodes: 2\ndefaults: {tp_size: 2}\n");
    let (code, _, stderr) = home.outcome(&["run", &file, "--port", "0"]);
    assert_eq!((code, stderr.contains("at least 2 hosts, 1 host given")), (4, true), "{stderr}");
}

#[test]
fn weights_that_are_not_here_come_with_advice_and_a_plan_still_works() {
    let home = Home::new();
    let file = recipe(&home, "model_revision: v2\n");
    let (code, _, stderr) = home.outcome(&["run", &file, "--port", "0"]);
    assert_eq!((code, stderr.contains("huggingface-cli download no-such/model --revision v2")), (4, true), "{stderr}");
    assert!(!home.state().exists());
    let (code, stdout, _) = home.outcome(&["run", &file, "--port", "0", "--dry-run"]);
    assert_eq!((code, stdout.contains("not here")), (0, true), "{stdout}");
}

/// A llama of a few megabytes whose KV cache takes a mebibyte a token. Its weights are a sparse file of zeros.
fn model_with_a_huge_cache(home: &Home) -> std::path::PathBuf {
    const LAYERS: usize = 8;
    let (hidden, heads, head_dim, ff, vocab) = (64, 64, 256, 64, 64);
    let folder = home.path().join("model");
    std::fs::create_dir(&folder).unwrap();
    let config = serde_json::json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": hidden, "num_hidden_layers": LAYERS,
        "num_attention_heads": heads, "num_key_value_heads": heads, "head_dim": head_dim, "intermediate_size": ff,
        "vocab_size": vocab, "max_position_embeddings": 1 << 30, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
        "tie_word_embeddings": true, "hidden_act": "silu", "torch_dtype": "bfloat16", "eos_token_id": 0,
    });
    std::fs::write(folder.join("config.json"), config.to_string()).unwrap();
    let mut header = serde_json::Map::new();
    let mut end = 0_u64;
    let mut tensor = |name: String, shape: &[usize]| {
        let bytes = 2 * shape.iter().product::<usize>() as u64;
        header.insert(name, serde_json::json!({ "dtype": "BF16", "shape": shape, "data_offsets": [end, end + bytes] }));
        end += bytes;
    };
    tensor("model.embed_tokens.weight".to_owned(), &[vocab, hidden]);
    tensor("model.norm.weight".to_owned(), &[hidden]);
    for layer in 0..LAYERS {
        let mut of = |name: &str, shape: &[usize]| tensor(format!("model.layers.{layer}.{name}.weight"), shape);
        of("input_layernorm", &[hidden]);
        of("post_attention_layernorm", &[hidden]);
        ["q_proj", "k_proj", "v_proj"]
            .iter()
            .for_each(|name| of(&format!("self_attn.{name}"), &[heads * head_dim, hidden]));
        of("self_attn.o_proj", &[hidden, heads * head_dim]);
        ["gate_proj", "up_proj"].iter().for_each(|name| of(&format!("mlp.{name}"), &[ff, hidden]));
        of("mlp.down_proj", &[hidden, ff]);
    }
    let header = serde_json::Value::Object(header).to_string();
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(header.as_bytes());
    let file = folder.join("model.safetensors");
    std::fs::write(&file, &bytes).unwrap();
    std::fs::OpenOptions::new().write(true).open(&file).unwrap().set_len(bytes.len() as u64 + end).unwrap();
    folder
}

#[test]
fn what_does_not_fit_is_refused_with_numbers() {
    let home = Home::new();
    let folder = model_with_a_huge_cache(&home);
    let file = home.path().join("recipe.yaml");
    std::fs::write(&file, format!("recipe_version: \"2\"\nmodel: {}\nruntime: atlas\n", folder.display())).unwrap();
    let run = |arguments: &[&str]| home.outcome(&[&["run", file.to_str().unwrap(), "--port", "0"], arguments].concat());
    // 16 Mi tokens of a MiB each are 16 TiB.
    let (code, _, stderr) = run(&["--set", "max_seq_len=16777216"]);
    assert_eq!((code, stderr.contains("not enough memory: needs 16.0 TiB")), (4, true), "{stderr}");
    assert!(stderr.contains("available") && stderr.contains("lower `max_seq_len`"), "{stderr}");
    assert!(!home.state().exists());
    let (code, stdout, _) = run(&["--set", "max_seq_len=16777216", "--dry-run"]);
    assert_eq!((code, stdout.contains("does not fit")), (4, true), "{stdout}");
    // Without a wish the context is what memory allows.
    let (code, stdout, stderr) = run(&["--dry-run"]);
    assert_eq!((code, stdout.contains("fits: needs")), (0, true), "{stdout}{stderr}");
}

#[test]
fn executable_parts_of_a_recipe_are_not_run() {
    let home = Home::new();
    let canary = home.path().join("canary");
    let file = recipe(&home, &format!("pre_exec:\n  - touch {}\n", canary.display()));
    for arguments in [&["run", &file, "--port", "0"][..], &["run", &file, "--port", "0", "--trust"]] {
        let (code, _, stderr) = home.outcome(arguments);
        assert_eq!((code, stderr.contains("pre_exec")), (4, true), "{stderr}");
    }
    assert!(!canary.exists());
}

#[test]
fn wrong_recipes_options_and_flags_are_explained() {
    let home = Home::new();
    let cases: [(&[&str], i32, &str); 7] = [
        (&["run", "@atlas/tinny"], 2, "did you mean"),
        (&["run", "@atlas/tiny", "--set", "max_seqlen=5"], 2, "max_seq_len"),
        (&["run", "@atlas/tiny", "--set", "port"], 2, "KEY=VALUE"),
        (&["run", "@atlas/tiny", "--set", "port=70000"], 2, "0 to 65535"),
        (&["run", "@atlas/tiny", "--prot", "1"], 2, "--port"),
        (&["serve", "embedded", "--max-seqlen", "5"], 2, "--max-seq-len"),
        (&["serve", "embedded", "--max-seq-len", "many"], 2, "is not a whole number"),
    ];
    for (arguments, code, words) in cases {
        let (actual, _, stderr) = home.outcome(arguments);
        assert_eq!((actual, stderr.contains(words)), (code, true), "{arguments:?}: {stderr}");
    }
    let broken = recipe(&home, "defaultz: {}\n");
    let (code, _, stderr) = home.outcome(&["run", &broken]);
    assert_eq!((code, stderr.contains("defaults")), (4, true), "{stderr}");
    assert!(!home.state().exists());
}

#[test]
fn a_server_beyond_loopback_needs_a_key() {
    let home = Home::new();
    let (code, _, stderr) = home.outcome(&["serve", "embedded", "--host", "0.0.0.0", "--port", "0"]);
    assert_eq!((code, stderr.contains("without an API key")), (4, true), "{stderr}");
    let (code, _, stderr) = home.outcome(&["serve", "embedded", "--require-auth", "--port", "0"]);
    assert_eq!((code, stderr.contains("needs an API key")), (2, true), "{stderr}");
}

#[test]
fn errors_are_json_when_asked() {
    let home = Home::new();
    let (code, stdout, stderr) = outcome(home.run(&["run", "@atlas/tiny", "--cluster", "lab", "--json"]));
    let error: Value = serde_json::from_str(&stderr).unwrap();
    assert_eq!((code, error["exit_code"].as_i64(), stdout.as_str()), (2, Some(2), ""));
}
