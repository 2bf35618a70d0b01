//! The serve options as command-line flags, made from the table in `atlas-schemas`.

use atlas_schemas::serve_options::{OPTIONS, OptionKind, OptionSet, OptionSpec, Status};
use clap::{Arg, ArgAction, ArgMatches, Command};

/// What was set on the command line.
#[derive(Debug, Clone, Default)]
pub(crate) struct OptionFlags(pub(crate) OptionSet);

impl clap::Args for OptionFlags {
    fn augment_args(command: Command) -> Command {
        OPTIONS.iter().fold(command, |command, spec| {
            let command = command.arg(flag(spec));
            if is_switch(spec) { command.arg(negation(spec)) } else { command }
        })
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl clap::FromArgMatches for OptionFlags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut flags = Self::default();
        flags.update_from_arg_matches(matches)?;
        Ok(flags)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        for spec in OPTIONS {
            if let Some(text) = matches.get_one::<String>(spec.key) {
                self.0.set_text(spec, text).map_err(|error| invalid(&format!("{}: {}", spec.flag(), error.cause)))?;
            }
            if is_switch(spec) && matches.get_flag(&negation_id(spec)) {
                self.0.set_text(spec, "false").map_err(|error| invalid(&error.to_string()))?;
            }
        }
        Ok(())
    }
}

fn invalid(message: &str) -> clap::Error {
    clap::Error::raw(clap::error::ErrorKind::ValueValidation, format!("{message}\n"))
}

fn flag(spec: &'static OptionSpec) -> Arg {
    let mut help = spec.doc();
    let default = spec.default_value();
    if !default.is_null() && default != serde_json::json!({}) {
        help.push_str(&format!(" [default: {}]", spec.show(&default)));
    }
    if let Status::Accepted { why } = spec.status {
        help.push_str(&format!(" (accepted, without effect: {why})"));
    }
    let arg = Arg::new(spec.key)
        .long(long(spec.key))
        .aliases(spec.aliases.iter().map(|alias| long(alias)))
        .help(help)
        .help_heading(spec.group)
        .value_name(value_name(spec))
        .action(ArgAction::Set)
        .hide_short_help(matches!(spec.status, Status::Accepted { .. }));
    if !spec.is_bare() {
        return arg;
    }
    // `require_equals`, so that the flag does not swallow the model's name. `normalise_args` joins a value to it.
    arg.num_args(0..=1).require_equals(true).default_missing_value("true")
}

fn negation(spec: &'static OptionSpec) -> Arg {
    let names = std::iter::once(spec.key).chain(spec.aliases.iter().copied());
    let mut names = names.map(|name| format!("no-{}", long(name)));
    Arg::new(negation_id(spec))
        .long(names.next().unwrap_or_default())
        .aliases(names)
        .action(ArgAction::SetTrue)
        .conflicts_with(spec.key)
        .hide(true)
}

fn is_switch(spec: &OptionSpec) -> bool {
    matches!(spec.kind, OptionKind::Switch { .. })
}

fn negation_id(spec: &OptionSpec) -> String {
    format!("no_{}", spec.key)
}

fn long(key: &str) -> String {
    key.replace('_', "-")
}

fn value_name(spec: &OptionSpec) -> String {
    match spec.kind {
        OptionKind::Switch { .. } => "true|false".to_owned(),
        OptionKind::Choice { names, .. } => names.join("|"),
        OptionKind::Integer { .. } => "N".to_owned(),
        OptionKind::Number { .. } => "X".to_owned(),
        OptionKind::Text => "TEXT".to_owned(),
        OptionKind::Secret => "SECRET".to_owned(),
        OptionKind::Path => "PATH".to_owned(),
        OptionKind::Pattern { shape, .. } => shape.to_owned(),
        OptionKind::Object => "JSON".to_owned(),
    }
}

/// The flags that set exactly these options, without secrets: `--port 0`, `--dflash=true`.
pub(crate) fn to_arguments(options: &OptionSet) -> Vec<String> {
    let mut arguments = Vec::new();
    for (spec, value) in options.iter().filter(|(spec, _)| !spec.is_secret()) {
        let text = if value.is_null() { "auto".to_owned() } else { spec.show(value) };
        if spec.is_bare() || text.starts_with('-') {
            arguments.push(format!("{}={text}", spec.flag()));
        } else {
            arguments.extend([spec.flag(), text]);
        }
    }
    arguments
}

#[cfg(test)]
mod tests {
    use super::*;
    use atlas_schemas::serve_options::normalise_args;
    use clap::{Args, FromArgMatches};

    fn parse(words: &[&str]) -> Result<OptionSet, String> {
        let command = OptionFlags::augment_args(Command::new("serve").no_binary_name(true).arg(Arg::new("model")));
        let words = normalise_args(words.iter().map(|word| (*word).to_owned()));
        let matches = command.try_get_matches_from(words).map_err(|error| error.to_string())?;
        OptionFlags::from_arg_matches(&matches).map(|flags| flags.0).map_err(|error| error.to_string())
    }

    #[test]
    fn clap_accepts_the_whole_table() {
        OptionFlags::augment_args(Command::new("serve")).debug_assert();
    }

    #[test]
    fn every_option_survives_the_way_through_its_flag() {
        let mut all = OptionSet::default();
        for spec in OPTIONS.iter().filter(|spec| !spec.is_secret()) {
            let value = match spec.kind {
                OptionKind::Switch { .. } => serde_json::json!(true),
                OptionKind::Integer { max, .. } => serde_json::json!(max),
                OptionKind::Number { max, .. } => serde_json::json!(max),
                OptionKind::Text | OptionKind::Path | OptionKind::Secret => serde_json::json!("-a b"),
                OptionKind::Choice { names, .. } => serde_json::json!(names[names.len() - 1]),
                OptionKind::Pattern { .. } => spec.default_value(),
                OptionKind::Object => serde_json::json!({ "a": "b c" }),
            };
            all.set(spec, &value).unwrap();
        }
        let arguments = to_arguments(&all);
        let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
        assert_eq!(parse(&words).unwrap(), all);
    }

    #[test]
    fn a_switch_does_not_swallow_the_model_and_has_an_opposite() {
        let set =
            parse(&["--enable-prefix-caching", "embedded", "--no-disable-thinking", "--speculative", "ngram"]).unwrap();
        assert_eq!(set.get("enable_prefix_caching"), Some(&serde_json::json!(true)));
        assert_eq!(set.get("disable_thinking"), Some(&serde_json::json!(false)));
        assert_eq!(set.get("speculative"), Some(&serde_json::json!("ngram")));
        assert!(parse(&["--disable-thinking", "--no-disable-thinking"]).is_err());
    }

    #[test]
    fn secrets_are_never_made_into_arguments() {
        let set = parse(&["--api-key", "sentinel"]).unwrap();
        assert!(to_arguments(&set).is_empty());
    }

    #[test]
    fn misspelt_flags_and_bad_values_are_told() {
        assert!(parse(&["--max-seqlen", "5"]).unwrap_err().contains("--max-seq-len"));
        assert!(parse(&["--port", "70000"]).unwrap_err().contains("--port: 70000 is not in 0 to 65535"));
    }
}
