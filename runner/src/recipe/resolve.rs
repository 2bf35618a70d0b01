//! Finding a recipe by what a person calls it.

use super::builtin::{self, BUILTIN};
use super::file::validate_file;
use atlas_schemas::recipe::{Recipe, Strictness, parse};
use atlas_schemas::suggest;
use atlas_schemas::yaml::{Diagnostic, render};
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Where a recipe comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Origin {
    /// This binary.
    Builtin,
    /// A file.
    File(PathBuf),
}

impl std::fmt::Display for Origin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Builtin => f.write_str("@atlas"),
            Self::File(path) => write!(f, "{}", path.display()),
        }
    }
}

/// A recipe that was found and is valid.
#[derive(Debug, Clone)]
pub(crate) struct ResolvedRecipe {
    /// As it was named.
    pub(crate) reference: String,
    /// Where it comes from.
    pub(crate) origin: Origin,
    /// The recipe.
    pub(crate) recipe: Recipe,
    /// What should be looked at.
    pub(crate) warnings: Vec<Diagnostic>,
}

/// Why there is no recipe.
#[derive(Debug, Error)]
pub(crate) enum ResolveError {
    /// Nothing has this name.
    #[error("{0}")]
    NotFound(String),
    /// Something has this name and is not a valid recipe.
    #[error("{}", diagnostics.iter().map(render).collect::<Vec<_>>().join("\n").trim_end())]
    Invalid {
        /// Every error and warning.
        diagnostics: Vec<Diagnostic>,
    },
}

/// Finds a recipe: `@atlas/NAME`, a file, or the bare name of a built-in one.
pub(crate) fn resolve(reference: &str) -> Result<ResolvedRecipe, ResolveError> {
    if let Some(rest) = reference.strip_prefix('@') {
        return from_registry(reference, rest);
    }
    if reference.contains("://") {
        return Err(ResolveError::NotFound(format!(
            "`{}` is an address; this build does not fetch recipes. Download the file and name its path",
            super::plain(reference)
        )));
    }
    let path = Path::new(reference);
    if reference.contains('/') || reference.ends_with(".yaml") || reference.ends_with(".yml") || path.exists() {
        return from_file(reference, path);
    }
    match builtin::find(reference) {
        Some(found) => from_builtin(reference, found),
        None => Err(unknown(reference, reference)),
    }
}

fn from_registry(reference: &str, rest: &str) -> Result<ResolvedRecipe, ResolveError> {
    match rest.split_once('/') {
        Some(("atlas", name)) => match builtin::find(name) {
            Some(found) => from_builtin(reference, found),
            None => Err(unknown(reference, name)),
        },
        Some((registry, _)) => Err(ResolveError::NotFound(format!(
            "registry `@{}` is not known; this build has `@atlas` only. Clone the registry and name the recipe's path",
            super::plain(registry)
        ))),
        None => {
            Err(ResolveError::NotFound(format!("`{}` names no recipe; write `@atlas/NAME`", super::plain(reference))))
        }
    }
}

fn unknown(reference: &str, name: &str) -> ResolveError {
    let hint = suggest::nearest(name, BUILTIN.iter().map(|recipe| recipe.name));
    let hint = hint.map(|name| format!(" (did you mean `@atlas/{name}`?)")).unwrap_or_default();
    let reference = super::plain(reference);
    ResolveError::NotFound(format!("no recipe `{reference}`{hint}; `atlas recipe list` shows what there is"))
}

fn from_builtin(reference: &str, found: &builtin::Builtin) -> Result<ResolvedRecipe, ResolveError> {
    let parsed = parse(found.path, found.text.as_bytes(), Strictness::Own);
    let (recipe, warnings) = parsed.into_result().map_err(|diagnostics| ResolveError::Invalid { diagnostics })?;
    Ok(ResolvedRecipe { reference: reference.to_owned(), origin: Origin::Builtin, recipe, warnings })
}

fn from_file(reference: &str, path: &Path) -> Result<ResolvedRecipe, ResolveError> {
    let parsed = validate_file(path, Strictness::Detect);
    let (recipe, warnings) = parsed.into_result().map_err(|diagnostics| ResolveError::Invalid { diagnostics })?;
    Ok(ResolvedRecipe { reference: reference.to_owned(), origin: Origin::File(path.to_owned()), recipe, warnings })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_built_in_recipe_resolves_by_both_names_without_a_warning() {
        for builtin in BUILTIN {
            for reference in [format!("@atlas/{}", builtin.name), builtin.name.to_owned()] {
                let found = resolve(&reference).unwrap_or_else(|error| panic!("{reference}: {error}"));
                assert_eq!(found.origin, Origin::Builtin);
                assert!(found.warnings.is_empty(), "{reference}");
            }
        }
    }

    #[test]
    fn what_is_not_there_is_explained() {
        let message = |reference: &str| resolve(reference).unwrap_err().to_string();
        assert!(message("@atlas/tinny").contains("did you mean `@atlas/tiny`?"));
        assert!(message("@other/tiny").contains("`@other` is not known"));
        assert!(message("@atlas").contains("`@atlas/NAME`"));
        assert!(message("https://example.org/x.yaml").contains("does not fetch"));
        assert!(message("./nowhere.yaml").contains("./nowhere.yaml"));
        assert!(message("zzz\u{1b}[31m").contains('\u{fffd}'));
    }
}
