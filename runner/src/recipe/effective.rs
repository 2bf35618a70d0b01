//! A recipe's options with the command line's over them, and where each value came from.

use super::ResolvedRecipe;
use atlas_schemas::provenance::{EffectiveOption, Source};
use atlas_schemas::recipe::canonical_hash;
use atlas_schemas::recipe::rules::{self, Breach, Facts, Violation};
use atlas_schemas::serve_options::{self, OPTIONS, OptionSet, OptionSpec, ServeOptions, Status};
use serde_json::Value;
use thiserror::Error;

/// One option set on the command line.
#[derive(Clone)]
pub(crate) struct Override {
    spec: &'static OptionSpec,
    value: Value,
}

/// An override that cannot be understood, or options that contradict each other.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{0}")]
pub(crate) struct OverrideError(String);

impl Override {
    /// Reads `KEY=VALUE`.
    pub(crate) fn parse(text: &str) -> Result<Self, OverrideError> {
        let Some((key, value)) = text.split_once('=') else {
            return Err(OverrideError(format!("`{}` is not KEY=VALUE", super::plain(text))));
        };
        Self::new(key.trim(), value)
    }

    /// Sets a key, alias or flag to a text.
    pub(crate) fn new(key: &str, text: &str) -> Result<Self, OverrideError> {
        let Some(spec) = serve_options::find(key) else {
            let key = super::plain(key);
            let hint = serve_options::hint(&key);
            return Err(OverrideError(format!("no option `{key}`{hint}; `atlas recipe schema --options` lists them")));
        };
        let value = spec.parse(text).map_err(|error| OverrideError(format!("{error}; values: {}", spec.values())))?;
        Ok(Self { spec, value })
    }
}

impl Override {
    /// Sets the option in `options`.
    pub(crate) fn apply(&self, options: &mut OptionSet) -> Result<(), OverrideError> {
        options.set(self.spec, &self.value).map(drop).map_err(|error| OverrideError(error.to_string()))
    }
}

/// The options that a launch uses.
#[derive(Debug, Clone)]
pub(crate) struct EffectiveOptions {
    /// What recipe, command line and policy set; `set.resolve()` is every option with its value.
    pub(crate) set: OptionSet,
    /// Every option with its value and its source, in the table's order. Secrets are placeholders.
    pub(crate) provenance: Vec<EffectiveOption>,
    /// Hash of the recipe with the overrides.
    pub(crate) hash: String,
    /// What should be looked at, for people.
    pub(crate) notes: Vec<String>,
    /// What this build cannot do. A launch must refuse.
    pub(crate) refusals: Vec<String>,
}

impl ResolvedRecipe {
    /// Merges: default, recipe, command line; then applies the policy that nothing is published without a key.
    ///
    /// # Errors
    /// Options that contradict each other, all of them in one message.
    pub(crate) fn effective(&self, overrides: &[Override]) -> Result<EffectiveOptions, OverrideError> {
        let mut set = self.recipe.defaults.clone();
        let mut cli = OptionSet::default();
        for over in overrides {
            over.apply(&mut set)?;
            over.apply(&mut cli)?;
        }
        let before = rules::check(&self.facts(&self.recipe.defaults));
        let added = rules::check(&self.facts(&set)).into_iter().filter(|violation| !before.contains(violation));
        let (mut conflicts, mut notes) = (Vec::new(), Vec::new());
        let mut rebound = false;
        for violation in added.chain(before.iter().filter(|old| old.breach == Breach::Policy).cloned()) {
            let text = format!("{}; {}", violation.message, violation.help);
            match violation.breach {
                Breach::Conflict => conflicts.push(text),
                Breach::Redundant => notes.push(text),
                Breach::Policy if rebound || !rules::is_exposed(&set.resolve()) => {}
                Breach::Policy if cli.contains("host") => conflicts.push(exposed(&violation)),
                Breach::Policy => {
                    rebound = true;
                    notes.push(text);
                }
            }
        }
        if !conflicts.is_empty() {
            return Err(OverrideError(conflicts.join("\n")));
        }
        if let (true, Some(host)) = (rebound, serve_options::find("host")) {
            set.set(host, &Value::from("127.0.0.1")).map_err(|error| OverrideError(error.to_string()))?;
        }
        let hash = canonical_hash(&self.recipe, &set);
        let provenance = OPTIONS.iter().map(|spec| self.option(spec, &set, &cli, rebound)).collect();
        let refusals = self.refusals(&set.resolve());
        Ok(EffectiveOptions { set, provenance, hash, notes, refusals })
    }

    fn facts<'a>(&self, options: &'a OptionSet) -> Facts<'a> {
        Facts { options, min_nodes: self.recipe.min_nodes, max_nodes: self.recipe.max_nodes }
    }

    fn option(&self, spec: &OptionSpec, set: &OptionSet, cli: &OptionSet, rebound: bool) -> EffectiveOption {
        let source = if rebound && spec.key == "host" {
            Source::Policy
        } else if cli.contains(spec.key) {
            Source::Cli
        } else if set.contains(spec.key) {
            Source::Recipe
        } else {
            Source::Default
        };
        let value = match set.get(spec.key) {
            Some(value) if spec.is_secret() => Value::from(spec.show(value)),
            Some(value) => value.clone(),
            None => spec.default_value(),
        };
        let no_effect = match spec.status {
            Status::Accepted { why } => Some(why.to_owned()),
            Status::Effective => None,
        };
        EffectiveOption { key: spec.key.to_owned(), value, source, no_effect }
    }

    fn refusals(&self, options: &ServeOptions) -> Vec<String> {
        let mut refusals = self.recipe.refusals();
        let devices = options.tp_size.saturating_mul(options.ep_size);
        if devices > 1 && self.recipe.min_nodes == 1 {
            refusals.push(format!("tp_size × ep_size is {devices}: this build runs on one device"));
        }
        refusals
    }
}

fn exposed(violation: &Violation) -> String {
    let problem = violation.message.split("; ").next().unwrap_or_default();
    format!("{problem}; {}", violation.help)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipe::resolve;
    use atlas_schemas::recipe::{Strictness, parse};

    fn recipe(more: &str) -> ResolvedRecipe {
        let text = format!("recipe_version: \"2\"\nmodel: a/b\nruntime: atlas\n{more}");
        let (recipe, warnings) = parse("test.yaml", text.as_bytes(), Strictness::Foreign).into_result().unwrap();
        ResolvedRecipe { recipe, warnings, ..resolve("@atlas/tiny").unwrap() }
    }

    fn source<'a>(effective: &'a EffectiveOptions, key: &str) -> (&'a Value, Source) {
        let option = effective.provenance.iter().find(|option| option.key == key).unwrap();
        (&option.value, option.source)
    }

    fn set(words: &[&str]) -> Vec<Override> {
        words.iter().map(|word| Override::parse(word).unwrap()).collect()
    }

    #[test]
    fn the_command_line_wins_over_the_recipe_and_the_recipe_over_the_default() {
        let recipe = recipe("defaults: {max_num_seqs: 4, max_model_len: 4096}\n");
        let effective = recipe.effective(&set(&["--max-model-len=8192", "port=0"])).unwrap();
        assert_eq!(source(&effective, "max_seq_len"), (&8192.into(), Source::Cli));
        assert_eq!(source(&effective, "max_num_seqs"), (&4.into(), Source::Recipe));
        assert_eq!(source(&effective, "max_batch_size"), (&8.into(), Source::Default));
        let options = effective.set.resolve();
        assert_eq!((options.max_seq_len, options.port), (Some(8192), 0));
        assert_eq!(effective.provenance.len(), OPTIONS.len());
    }

    #[test]
    fn the_hash_follows_results_and_ignores_the_port() {
        let recipe = recipe("defaults: {max_num_seqs: 4}\n");
        let hash = |words: &[&str]| recipe.effective(&set(words)).unwrap().hash;
        assert_eq!(hash(&[]), recipe.recipe.hash());
        assert_eq!(hash(&["port=1234"]), recipe.recipe.hash());
        assert_eq!(hash(&["max_num_seqs=4"]), recipe.recipe.hash());
        assert_ne!(hash(&["max_num_seqs=5"]), recipe.recipe.hash());
    }

    #[test]
    fn a_recipe_never_publishes_a_server_without_a_key() {
        let public = recipe("defaults: {host: 0.0.0.0}\n");
        let effective = public.effective(&[]).unwrap();
        assert_eq!(source(&effective, "host"), (&"127.0.0.1".into(), Source::Policy));
        assert_eq!(effective.set.resolve().host, "127.0.0.1");
        assert_eq!(effective.notes.len(), 1, "{:?}", effective.notes);

        for words in [["api_key=sentinel"], ["allow_unauthenticated=true"]] {
            let effective = public.effective(&set(&words)).unwrap();
            assert_eq!(source(&effective, "host"), (&"0.0.0.0".into(), Source::Recipe));
            assert!(effective.notes.is_empty() && !format!("{effective:?}").contains("sentinel"));
        }
        let asked = recipe("").effective(&set(&["host=0.0.0.0"])).unwrap_err().to_string();
        assert!(asked.contains("no API key is set") && !asked.contains("will listen"), "{asked}");
        assert!(recipe("").effective(&set(&["host=::1"])).is_ok());
    }

    #[test]
    fn overrides_obey_the_rules_too_and_all_conflicts_are_told() {
        let recipe = recipe("defaults: {speculative: mtp, num_drafts: 3}\n");
        let error = recipe.effective(&set(&["dflash=true", "draft_model=a/d", "api_key=x", "api_key_file=y"]));
        let error = error.unwrap_err().to_string();
        assert_eq!(error.lines().count(), 2, "{error}");
        let effective = recipe.effective(&set(&["speculative=off"])).unwrap();
        assert!(effective.notes[0].contains("`num_drafts` has no effect"), "{:?}", effective.notes);
    }

    #[test]
    fn bad_overrides_are_explained() {
        let message = |text: &str| Override::parse(text).err().unwrap().to_string();
        assert!(message("port").contains("KEY=VALUE"));
        assert!(message("prot=1").contains("did you mean `port`?"));
        assert!(message("port=x").contains("values: 0 to 65535"));
        assert!(!message("api_key=se\nntinel").contains("ntinel"));
    }

    #[test]
    fn what_this_build_cannot_do_is_refused_not_ignored() {
        assert_eq!(recipe("command: x {model}\n").effective(&[]).unwrap().refusals.len(), 1);
        assert_eq!(recipe("").effective(&set(&["tp_size=2"])).unwrap().refusals.len(), 1);
        assert_eq!(resolve("@atlas/glm-5.3-flash-nvfp4-ep2").unwrap().effective(&[]).unwrap().refusals.len(), 1);
        assert!(resolve("@atlas/tiny").unwrap().effective(&[]).unwrap().refusals.is_empty());
    }
}
