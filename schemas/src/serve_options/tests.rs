//! The table agrees with itself, with the struct and with the values that peers' recipes hold.

use super::*;
use serde_json::{Value, json};
use std::collections::BTreeMap;

fn spec(key: &str) -> &'static OptionSpec {
    find(key).unwrap_or_else(|| panic!("no option {key}"))
}

#[test]
fn the_table_covers_exactly_the_fields_of_the_struct() {
    let Value::Object(fields) = serde_json::to_value(ServeOptions::default()).unwrap() else { panic!("not a map") };
    let table: Vec<&str> = OPTIONS.iter().map(|spec| spec.key).collect();
    assert_eq!(fields.keys().map(String::as_str).collect::<Vec<_>>(), table);
    for spec in OPTIONS {
        assert_eq!(fields[spec.key], spec.default_value(), "{}", spec.key);
    }
}

#[test]
fn every_name_is_snake_case_and_means_one_option() {
    let mut owners: BTreeMap<String, &str> = BTreeMap::new();
    for spec in OPTIONS {
        for name in std::iter::once(&spec.key).chain(spec.aliases) {
            assert!(name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_'), "{name}");
            assert_eq!(owners.insert((*name).to_owned(), spec.key), None, "{name} has two owners");
        }
        assert!(spec.doc().ends_with('.'), "{}: {}", spec.key, spec.doc());
    }
}

#[test]
fn every_default_is_a_valid_value_and_survives_the_typed_struct() {
    for spec in OPTIONS {
        let default = spec.default_value();
        if !default.is_null() {
            assert_eq!(spec.check(&default).unwrap().value, default, "{}", spec.key);
        }
    }
}

/// Values at the edges of each kind; each must become a field of the typed struct unchanged.
fn edge_values(spec: &OptionSpec) -> Vec<Value> {
    match spec.kind {
        OptionKind::Switch { .. } => vec![json!(true), json!(false)],
        OptionKind::Integer { min, max } => vec![json!(min), json!(max)],
        OptionKind::Number { min, max } => vec![json!(min), json!(max)],
        OptionKind::Text | OptionKind::Secret | OptionKind::Path => vec![json!("x"), json!("ü 1")],
        OptionKind::Choice { names, .. } => names.iter().map(|name| json!(name)).collect(),
        OptionKind::Pattern { .. } if spec.key == "host" => {
            vec![json!("::1"), json!("0.0.0.0"), json!("my-host.local")]
        }
        OptionKind::Pattern { .. } => vec![json!("auto")],
        OptionKind::Object => vec![json!({}), json!({ "enable_thinking": false, "list": [1, "two"] })],
    }
}

#[test]
fn canonical_values_deserialise_into_the_struct() {
    for spec in OPTIONS {
        for value in edge_values(spec) {
            let mut set = OptionSet::default();
            set.set(spec, &value).unwrap();
            let options = set.resolve();
            let field = &serde_json::to_value(&options).unwrap()[spec.key];
            let expected = if spec.is_secret() { json!(Secret::PLACEHOLDER) } else { value.clone() };
            assert_eq!(*field, expected, "{}", spec.key);
            // `resolve` falls back to the defaults if a canonical value does not fit the field; that must not happen.
            let exact: ServeOptions = serde_json::from_value(json!({ spec.key: value })).unwrap();
            assert_eq!(exact, options, "{}", spec.key);
        }
    }
}

#[test]
fn numbers_outside_their_range_are_refused() {
    for spec in OPTIONS {
        let outside = match spec.kind {
            OptionKind::Integer { min, max } => {
                vec![json!(-1), json!(max as f64 + 1e6), json!(min as f64 + 0.5), json!(format!("{max}0"))]
            }
            OptionKind::Number { min, max } => vec![json!(min - 0.001), json!(max + 0.001), json!("nan"), json!("inf")],
            _ => continue,
        };
        for value in outside {
            assert!(spec.check(&value).is_err(), "{}: {value} was accepted", spec.key);
        }
    }
}

#[test]
fn portable_and_peer_names_mean_the_same_option() {
    for (name, key) in [
        ("max_model_len", "max_seq_len"),
        ("--max-model-len", "max_seq_len"),
        ("--ctx-size", "max_seq_len"),
        ("tensor_parallel", "tp_size"),
        ("--tensor-parallel-size", "tp_size"),
        ("served_model_name", "model_name"),
        ("--served-model-name", "model_name"),
        ("auth_token", "api_key"),
        ("--api-key", "api_key"),
        ("bind", "host"),
        ("max_num_batched_tokens", "max_prefill_tokens"),
        ("--gpu-mem", "gpu_memory_utilization"),
        ("--max_seq_len", "max_seq_len"),
    ] {
        assert_eq!(spec(name).key, key);
    }
    assert!(find("max_sequence_len").is_none());
    assert_eq!(nearest("max_sequence_len"), Some("max_seq_len"));
    assert_eq!(nearest("tensor_paralel"), Some("tp_size"));
}

#[test]
fn switches_take_the_three_arities_of_the_peers() {
    let switch = spec("gdn_fused_norm");
    for (text, value) in
        [("true", json!(true)), ("on", json!(true)), ("OFF", json!(false)), ("0", json!(false)), ("auto", Value::Null)]
    {
        assert_eq!(switch.parse(text).unwrap(), value, "{text}");
    }
    assert!(switch.parse("maybe").is_err());
    assert!(spec("disable_thinking").parse("auto").is_err());
    assert_eq!(switch.check(&json!(true)).unwrap().legacy, None);
    assert!(switch.check(&json!("on")).unwrap().legacy.is_some());

    assert_eq!(spec("speculative").check(&json!(true)).unwrap().value, json!("mtp"));
    assert_eq!(spec("speculative").check(&json!(false)).unwrap().value, json!("off"));
    assert_eq!(spec("speculative").parse("dflash").unwrap(), json!("dflash"));
}

#[test]
fn a_switch_on_the_command_line_never_swallows_the_model() {
    let args = |line: &str| normalise_args(line.split(' ').map(str::to_owned)).join(" ");
    assert_eq!(args("serve --speculative ./model"), "serve --speculative ./model");
    assert_eq!(args("serve --gdn-fused-norm true ./model"), "serve --gdn-fused-norm=true ./model");
    assert_eq!(args("--ssm-batched-recurrent auto m"), "--ssm-batched-recurrent=auto m");
    assert_eq!(args("--speculative dflash m"), "--speculative=dflash m");
    assert_eq!(args("--max_seq_len 4096 --tp_size=2"), "--max-seq-len 4096 --tp-size=2");
    assert_eq!(args("--unknown_flag true --"), "--unknown_flag true --");
}

#[test]
fn kv_cache_dtypes_come_alone_or_in_pairs() {
    let kv = spec("kv_cache_dtype");
    assert_eq!(kv.parse("fp8:nvfp4").unwrap(), json!("fp8:nvfp4"));
    assert_eq!(kv.parse("fp8_e4m3:fp8").unwrap(), json!("fp8"));
    let dtype: KvCacheDtype = "bf16:turbo4".parse().unwrap();
    assert_eq!((dtype.keys, dtype.values), (KvDtype::Bf16, KvDtype::Turbo4));
    for bad in ["auto:fp8", "fp8:", ":", "fp9", "fp8:fp8:fp8", ""] {
        assert!(kv.parse(bad).is_err(), "{bad}");
    }
}

#[test]
fn mappings_may_be_written_as_json_text() {
    let kwargs = spec("default_chat_template_kwargs");
    let expected = json!({ "enable_thinking": false });
    assert_eq!(kwargs.parse(r#"{"enable_thinking": false}"#).unwrap(), expected);
    assert_eq!(kwargs.check(&expected).unwrap().value, expected);
    for bad in ["[1]", "{", "true", ""] {
        assert!(kwargs.parse(bad).is_err(), "{bad}");
    }
}

#[test]
fn secrets_never_show() {
    let sentinel = "sk-sentinel-0123456789";
    let mut set = OptionSet::default();
    set.set_text(spec("api_key"), sentinel).unwrap();
    let options = set.resolve();
    assert_eq!(options.api_key.as_ref().unwrap().expose(), sentinel);
    let bad = spec("api_key").check(&json!([sentinel])).unwrap_err().to_string();
    let control = spec("api_key").check(&json!(format!("{sentinel}\n"))).unwrap_err().to_string();
    assert!(spec("api_key").parse(Secret::PLACEHOLDER).is_err(), "a printed secret must not become the key");
    for shown in [
        format!("{set:?}"),
        set.to_json().to_string(),
        serde_json::to_string(&set).unwrap(),
        format!("{options:?}"),
        serde_json::to_string(&options).unwrap(),
        bad,
        control,
    ] {
        assert!(!shown.contains(sentinel), "{shown}");
    }
}

#[test]
fn messages_name_the_value_and_the_remedy() {
    let messages: Vec<String> = [
        ("port", json!(65_536)),
        ("port", json!("eighty")),
        ("port", json!([80])),
        ("pp_size", json!(2)),
        ("max_seq_len", json!(0)),
        ("gpu_memory_utilization", json!(90)),
        ("kv_cache_dtype", json!("fp9")),
        ("kv_cache_dtype", json!("auto:fp8")),
        ("scheduling_policy", json!("slia")),
        ("tool_call_parser", json!("hermès\u{1b}[31m")),
        ("disable_thinking", json!("yes please")),
        ("model_name", json!("")),
        ("model_name", json!({ "a": 1 })),
        ("default_chat_template_kwargs", json!("{enable_thinking: false}")),
        ("kv_high_precision_layers", json!("most")),
        ("host", json!("0.0.0.0:8888")),
        ("host", json!("-oProxyCommand=x")),
        ("host", json!(0)),
    ]
    .into_iter()
    .map(|(key, value)| spec(key).check(&value).unwrap_err().to_string())
    .collect();
    insta::assert_snapshot!(messages.join("\n"));
}

#[test]
fn the_documentation_lists_every_option() {
    let page = markdown();
    for spec in OPTIONS {
        assert!(page.contains(&format!("| `{}` |", spec.key)), "{}", spec.key);
    }
}
