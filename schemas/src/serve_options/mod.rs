//! The options of a served model, each defined once.
//!
//! [`OPTIONS`] is the table. From it come the recipe's `defaults` keys, the flags of `atlas serve`, validation, the
//! JSON Schema and the documentation. [`ServeOptions`] is the same table as a typed struct, complete with defaults;
//! [`OptionSet`] holds only what somebody set.

mod docs;
mod schema;
mod set;
mod spec;
mod table;
mod types;

pub use docs::markdown;
pub use schema::property_schema;
pub use set::OptionSet;
pub use spec::{Checked, OptionError, OptionKind, OptionSpec, Status};
pub use table::{OPTIONS, ServeOptions};
pub(crate) use types::shown;
pub use types::{
    ActivationDtype, Device, HighPrecisionLayers, KvCacheDtype, KvDtype, LmHeadDtype, MtpQuantization, ReasoningParser,
    SchedulingPolicy, Secret, SpeculationGate, Speculative, SsmStateDtype, ToolCallParser,
};

/// The option with this key, alias or flag (`max_seq_len`, `max_model_len`, `--ctx-size` are one).
pub fn find(name: &str) -> Option<&'static OptionSpec> {
    OPTIONS.iter().find(|spec| spec.is_named(name))
}

/// ` (did you mean X?)` for a name that [`find`] does not know, or nothing.
pub fn hint(name: &str) -> String {
    nearest(name).map(|key| format!(" (did you mean `{key}`?)")).unwrap_or_default()
}

/// The known key nearest to a name that [`find`] does not know. Aliases are candidates, keys are the answer.
pub fn nearest(name: &str) -> Option<&'static str> {
    let names = OPTIONS.iter().flat_map(|spec| std::iter::once(spec.key).chain(spec.aliases.iter().copied()));
    crate::suggest::nearest(name, names).and_then(find).map(|spec| spec.key)
}

/// Brings the peers' forms of flags into one: `--max_seq_len N` becomes `--max-seq-len N`, and a switch followed by
/// its value (`--gdn-fused-norm true`) becomes one word (`--gdn-fused-norm=true`), so that a switch never swallows the
/// model's name.
pub fn normalise_args(args: impl IntoIterator<Item = String>) -> Vec<String> {
    let mut normal: Vec<String> = Vec::new();
    let mut open_switch: Option<&'static OptionSpec> = None;
    for arg in args {
        let value_of = open_switch.take().filter(|spec| !arg.starts_with('-') && spec.parse(&arg).is_ok());
        if let (Some(_), Some(last)) = (value_of, normal.last_mut()) {
            last.push('=');
            last.push_str(&arg);
            continue;
        }
        match arg.strip_prefix("--") {
            Some(rest) if !rest.is_empty() => {
                let (name, value) = rest.split_once('=').map_or((rest, None), |(name, value)| (name, Some(value)));
                let Some(spec) = find(name) else {
                    normal.push(arg);
                    continue;
                };
                let name = name.replace('_', "-");
                open_switch = (value.is_none() && spec.is_bare()).then_some(spec);
                normal.push(value.map_or_else(|| format!("--{name}"), |value| format!("--{name}={value}")));
            }
            _ => normal.push(arg),
        }
    }
    normal
}

#[cfg(test)]
mod tests;
