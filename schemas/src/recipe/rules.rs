//! Which options contradict each other: one table, for recipes and for what the command line adds to them.

use crate::serve_options::{OptionSet, ServeOptions, Speculative, SsmStateDtype};
use crate::yaml::Span;
use std::collections::BTreeMap;
use std::net::IpAddr;

/// What the rules look at.
#[derive(Debug, Clone, Copy)]
pub struct Facts<'a> {
    /// The options that were set.
    pub options: &'a OptionSet,
    /// Hosts that are needed at least.
    pub min_nodes: u32,
    /// Hosts that are used at most.
    pub max_nodes: Option<u32>,
}

/// How bad it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Breach {
    /// The options cannot hold together.
    Conflict,
    /// An option has no effect beside another.
    Redundant,
    /// Atlas will change an option to keep a promise.
    Policy,
}

/// A rule that does not hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// Name of the rule.
    pub rule: &'static str,
    /// The options concerned, the one to change first.
    pub keys: &'static [&'static str],
    /// How bad it is.
    pub breach: Breach,
    /// What is wrong.
    pub message: String,
    /// What to do.
    pub help: String,
}

/// Where options stand in the file.
#[derive(Debug, Default)]
pub(super) struct Places {
    pub(super) options: BTreeMap<&'static str, Span>,
}

impl Places {
    pub(super) fn of(&self, violation: &Violation) -> Span {
        violation.keys.iter().find_map(|key| self.options.get(key)).copied().unwrap_or_default()
    }
}

/// One rule: what it is about, and a check that returns the breach, the problem and the remedy.
struct Rule {
    name: &'static str,
    keys: &'static [&'static str],
    check: fn(&View<'_>) -> Option<(Breach, String, String)>,
}

/// The facts and the complete options, side by side.
struct View<'a> {
    facts: &'a Facts<'a>,
    options: ServeOptions,
}

impl View<'_> {
    fn set(&self, key: &str) -> bool {
        self.facts.options.get(key).is_some_and(|value| !value.is_null())
    }

    fn speculative(&self) -> Option<Speculative> {
        self.options.speculative.filter(|method| *method != Speculative::Off)
    }

    fn block_drafter(&self) -> bool {
        self.options.dflash || matches!(self.options.speculative, Some(Speculative::Dflash | Speculative::Dspark))
    }

    fn drafts(&self) -> bool {
        self.block_drafter() || self.options.ngram_speculative || self.speculative().is_some()
    }
}

fn conflict(message: impl Into<String>, help: impl Into<String>) -> Option<(Breach, String, String)> {
    Some((Breach::Conflict, message.into(), help.into()))
}

fn redundant(message: impl Into<String>, help: impl Into<String>) -> Option<(Breach, String, String)> {
    Some((Breach::Redundant, message.into(), help.into()))
}

static RULES: &[Rule] = &[
    Rule {
        name: "one way of drafting",
        keys: &["dflash", "speculative", "ngram_speculative"],
        check: |view| {
            // `speculative: false` beside a drafter only says that the checkpoint's own head stays off.
            let (dflash, ngram) = (view.options.dflash, view.options.ngram_speculative);
            match view.options.speculative {
                Some(Speculative::Dflash) if dflash && !ngram => {
                    redundant("`dflash: true` says again what `speculative: dflash` says", "remove `dflash`")
                }
                Some(Speculative::Ngram) if ngram && !dflash => redundant(
                    "`ngram_speculative: true` says again what `speculative: ngram` says",
                    "remove `ngram_speculative`",
                ),
                Some(method) if method != Speculative::Off && (dflash || ngram) => {
                    let other = if dflash { "dflash" } else { "ngram_speculative" };
                    conflict(
                        format!("`{other}` and `speculative: {method}` exclude each other: one of them drafts"),
                        "keep the one that the model has",
                    )
                }
                _ if dflash && ngram => {
                    conflict("`dflash` and `ngram_speculative` exclude each other: one of them drafts", "keep one")
                }
                _ => None,
            }
        },
    },
    Rule {
        name: "a block drafter has no num_drafts",
        keys: &["num_drafts"],
        check: |view| {
            if !(view.set("num_drafts") && view.block_drafter()) {
                return None;
            }
            redundant("`num_drafts` has no effect beside a block drafter", "remove it; `dflash_gamma` sets the block")
        },
    },
    Rule {
        name: "a block drafter needs its model",
        keys: &["dflash", "speculative"],
        check: |view| {
            if !view.block_drafter() || view.set("draft_model") {
                return None;
            }
            conflict("a block drafter needs `draft_model`", "add `draft_model: owner/name`")
        },
    },
    Rule {
        name: "drafter options need a block drafter",
        keys: &["dflash_gamma", "dflash_window_size", "draft_model", "draft_model_revision"],
        check: |view| {
            let keys = ["dflash_gamma", "dflash_window_size", "draft_model", "draft_model_revision"];
            let orphan = keys.into_iter().find(|key| view.set(key)).filter(|_| !view.block_drafter())?;
            redundant(format!("`{orphan}` has no effect without a block drafter"), "add `dflash: true`, or remove it")
        },
    },
    Rule {
        name: "draft options need drafting",
        keys: &["num_drafts", "mtp_quantization", "mtp_gate", "mtp_vocab"],
        check: |view| {
            let keys = ["num_drafts", "mtp_quantization", "mtp_gate", "mtp_vocab"];
            let orphan = keys.into_iter().find(|key| view.set(key)).filter(|_| !view.drafts())?;
            redundant(format!("`{orphan}` has no effect without drafting"), "add `speculative: mtp`, or remove it")
        },
    },
    Rule {
        name: "a 16-bit state needs the fused norm",
        keys: &["ssm_h_dtype", "gdn_fused_norm"],
        check: |view| {
            if view.options.ssm_h_dtype != SsmStateDtype::F16 || view.options.gdn_fused_norm == Some(true) {
                return None;
            }
            conflict("`ssm_h_dtype: f16` needs `gdn_fused_norm: true`", "add `gdn_fused_norm: true`")
        },
    },
    Rule {
        name: "node counts are in order",
        keys: &["max_nodes", "min_nodes"],
        check: |view| {
            let (min, max) = (view.facts.min_nodes, view.facts.max_nodes?);
            if min <= max {
                return None;
            }
            conflict(format!("`min_nodes: {min}` is more than `max_nodes: {max}`"), "swap them, or remove one")
        },
    },
    Rule {
        name: "experts on several devices need nodes",
        keys: &["ep_size"],
        check: |view| {
            let ep = view.options.ep_size;
            if ep == 1 || view.facts.min_nodes > 1 {
                return None;
            }
            conflict(
                format!("`ep_size: {ep}` spreads experts over devices, but the recipe asks for one node"),
                format!("add `min_nodes: {}`", ep.max(view.options.tp_size)),
            )
        },
    },
    Rule {
        name: "tp and ep fill the nodes",
        keys: &["tp_size", "ep_size", "min_nodes"],
        check: |view| {
            let (tp, ep) = (view.options.tp_size, view.options.ep_size);
            let (min, max) = (view.facts.min_nodes, view.facts.max_nodes);
            // Another rule reports each of these.
            if (ep > 1 && min == 1) || max.is_some_and(|max| min > max) {
                return None;
            }
            let fits = |world: u32| {
                let upper = max.unwrap_or(if min > 1 { min } else { u32::MAX });
                (min..=upper).contains(&world)
            };
            if fits(tp.saturating_mul(ep)) || (tp == ep && fits(tp)) {
                return None;
            }
            let nodes = match max {
                Some(max) if max != min => format!("{min} to {max} nodes"),
                _ if min == 1 => "1 node".to_owned(),
                _ => format!("{min} nodes"),
            };
            conflict(
                format!("`tp_size: {tp}` × `ep_size: {ep}` does not fill {nodes}"),
                "tp × ep must be the number of nodes, or tp = ep = the number of nodes",
            )
        },
    },
    Rule {
        name: "a step decodes no more than is in progress",
        keys: &["max_batch_size", "max_num_seqs"],
        check: |view| {
            let (batch, sequences) = (view.options.max_batch_size, view.options.max_num_seqs);
            if batch <= sequences || !view.set("max_batch_size") {
                return None;
            }
            redundant(
                format!("`max_batch_size: {batch}` can never be reached with `max_num_seqs: {sequences}`"),
                format!("lower it to {sequences}, or raise `max_num_seqs`"),
            )
        },
    },
    Rule {
        name: "thinking is on or off",
        keys: &["disable_thinking", "default_chat_template_kwargs"],
        check: |view| {
            let kwargs = &view.options.default_chat_template_kwargs;
            let on = ["enable_thinking", "thinking"].iter().any(|key| kwargs.get(*key) == Some(&true.into()));
            if !(view.options.disable_thinking && on) {
                return None;
            }
            conflict(
                "`disable_thinking` contradicts `default_chat_template_kwargs`, which switches thinking on",
                "remove one of the two",
            )
        },
    },
    Rule {
        name: "one API key",
        keys: &["api_key", "api_key_file"],
        check: |view| {
            if !(view.set("api_key") && view.set("api_key_file")) {
                return None;
            }
            conflict("`api_key` and `api_key_file` exclude each other", "keep `api_key_file`")
        },
    },
    Rule {
        name: "required authentication has a key",
        keys: &["require_auth"],
        check: |view| {
            if !view.options.require_auth || has_key(&view.options) {
                return None;
            }
            conflict("`require_auth` needs an API key", "add `api_key_file: PATH`")
        },
    },
    Rule {
        name: "a public address has a key",
        keys: &["host"],
        check: |view| {
            if !is_exposed(&view.options) {
                return None;
            }
            let host = &view.options.host;
            Some((
                Breach::Policy,
                format!("`host: {host}` is reachable by others and no API key is set; Atlas will listen on 127.0.0.1"),
                "set `api_key_file`; or pass `--allow-unauthenticated` if everybody may use it".to_owned(),
            ))
        },
    },
];

fn has_key(options: &ServeOptions) -> bool {
    options.api_key.is_some() || options.api_key_file.is_some()
}

/// Whether these options would serve beyond loopback without an API key, and nobody allowed that.
pub fn is_exposed(options: &ServeOptions) -> bool {
    !is_loopback(&options.host) && !has_key(options) && !options.allow_unauthenticated
}

/// Whether an address can be reached from this machine only.
pub fn is_loopback(host: &str) -> bool {
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    match bare.parse::<IpAddr>() {
        Ok(IpAddr::V6(address)) => {
            address.is_loopback() || address.to_ipv4_mapped().is_some_and(|address| address.is_loopback())
        }
        Ok(IpAddr::V4(address)) => address.is_loopback(),
        Err(_) => bare.eq_ignore_ascii_case("localhost"),
    }
}

/// Every rule that does not hold.
pub fn check(facts: &Facts<'_>) -> Vec<Violation> {
    let view = View { facts, options: facts.options.resolve() };
    let violations = RULES.iter().filter_map(|rule| {
        (rule.check)(&view).map(|(breach, message, help)| Violation {
            rule: rule.name,
            keys: rule.keys,
            breach,
            message,
            help,
        })
    });
    violations.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serve_options::find;

    fn violations(options: &[(&str, &str)], min_nodes: u32, max_nodes: Option<u32>) -> Vec<(Breach, &'static str)> {
        let mut set = OptionSet::default();
        for (key, value) in options {
            set.set_text(find(key).unwrap(), value).unwrap();
        }
        let facts = Facts { options: &set, min_nodes, max_nodes };
        check(&facts).into_iter().map(|violation| (violation.breach, violation.rule)).collect()
    }

    #[test]
    fn topologies_fill_their_nodes() {
        let fits = |tp: &str, ep: &str, min, max| violations(&[("tp_size", tp), ("ep_size", ep)], min, max).is_empty();
        assert!(fits("1", "1", 1, None) && fits("1", "1", 1, Some(1)));
        assert!(fits("2", "1", 1, None) && fits("2", "1", 2, Some(2)) && fits("2", "1", 1, Some(4)));
        assert!(fits("1", "2", 2, Some(2)) && fits("2", "2", 2, Some(2)) && fits("2", "2", 4, Some(4)));
        assert!(!fits("1", "1", 2, None) && !fits("2", "1", 1, Some(1)) && !fits("1", "2", 1, None));
        assert!(!fits("2", "4", 2, Some(2)) && !fits("3", "1", 2, None) && !fits("64", "64", 2, Some(2)));
    }

    #[test]
    fn a_drafter_beside_a_head_that_is_off_is_no_conflict() {
        let drafter = [("dflash", "true"), ("draft_model", "a/d")];
        assert_eq!(violations(&[&drafter[..], &[("speculative", "false")]].concat(), 1, None), []);
        let both = violations(&[&drafter[..], &[("speculative", "true")]].concat(), 1, None);
        assert_eq!(both, [(Breach::Conflict, "one way of drafting")]);
    }

    #[test]
    fn only_this_machine_is_loopback() {
        for host in ["127.0.0.1", "127.9.9.9", "::1", "[::1]", "localhost", "LOCALHOST", "::ffff:127.0.0.1"] {
            assert!(is_loopback(host), "{host}");
        }
        for host in
            ["0.0.0.0", "::", "192.168.1.2", "localhost.example.org", "127.0.0.1.example.org", "::ffff:10.0.0.1", ""]
        {
            assert!(!is_loopback(host), "{host}");
        }
    }

    #[test]
    fn rules_have_names_of_their_own_and_keys_that_exist() {
        let mut names: Vec<&str> = RULES.iter().map(|rule| rule.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), RULES.len());
        for key in RULES.iter().flat_map(|rule| rule.keys) {
            assert!(find(key).is_some_and(|spec| spec.key == *key) || key.ends_with("_nodes"), "{key}");
        }
    }
}
