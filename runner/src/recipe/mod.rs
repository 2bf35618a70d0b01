//! From a recipe's name to effective options: resolve, validate, merge overrides with provenance.
//!
//! Upstream are the command line and `recipes/`; downstream are `atlas run` and `atlas recipe`.

pub(crate) mod builtin;
mod effective;
mod file;
mod resolve;

pub(crate) use effective::{EffectiveOptions, Override, OverrideError};
pub(crate) use file::{validate_bytes, validate_file};
pub(crate) use resolve::{ResolveError, ResolvedRecipe, resolve};

/// Text from a recipe, fit for a terminal: without control characters.
pub(crate) fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() && c != '\n' { '\u{fffd}' } else { c }).collect()
}
