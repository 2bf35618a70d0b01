//! `atlas cache`: the models on this machine. What is there, is it whole, what can go.

use crate::errors::CliError;
use crate::fetch::progress::{FetchProgress, size};
use crate::model::hub_config;
use crate::output::{GlobalArgs, print_json, write_stdout};
use atlas_hub::{Cache, Prunable, PruneReason, Pruned, RepoEntry, RepoId};
use atlas_schemas::cache::{
    CacheList, CacheProblem, CachePruning, CacheVerification, CachedModel, CachedRevision, PruneItem, VerifiedModel,
};
use clap::{Args, Subcommand};
use std::path::PathBuf;

/// What to do with the cache.
#[derive(Debug, Subcommand)]
pub(crate) enum CacheCommand {
    /// Show the models in the cache: size, revisions, whether they are whole.
    List,
    /// Read every file and compare it with its digest. Exits 1 if anything is damaged or missing.
    Verify(VerifyArgs),
    /// Remove what nothing needs. Shows what would go unless `--yes` is given.
    Prune(PruneArgs),
}

/// Which models to read.
#[derive(Debug, Args)]
pub(crate) struct VerifyArgs {
    /// Hub ids [default: all models in the cache].
    models: Vec<String>,
}

/// What to remove.
#[derive(Debug, Args)]
pub(crate) struct PruneArgs {
    /// Models to remove altogether. Without any: unfinished downloads, and files to which no revision leads.
    models: Vec<String>,
    /// Also revisions that no branch or tag means any more. A recipe may still pin one of them.
    #[arg(long, conflicts_with = "models")]
    detached: bool,
    /// Remove them; without it they are only shown.
    #[arg(long)]
    yes: bool,
}

impl CacheCommand {
    /// Runs the command.
    pub(crate) fn run(self, global: &GlobalArgs) -> Result<(), CliError> {
        let cache = Cache::new(&hub_config()?);
        match self {
            Self::List => list(&cache, global),
            Self::Verify(args) => args.run(&cache, global),
            Self::Prune(args) => args.run(&cache, global),
        }
    }
}

/// The models that were named, which must be there, or all.
fn chosen(cache: &Cache, names: &[String]) -> Result<Vec<RepoId>, CliError> {
    let there = cache.repos()?;
    if names.is_empty() {
        return Ok(there);
    }
    let find = |name: &String| {
        let found = there.iter().find(|repo| repo.as_str() == name);
        found.cloned().ok_or_else(|| CliError::Usage(format!("{name} is not in the cache; see `atlas cache list`")))
    };
    names.iter().map(find).collect()
}

fn list(cache: &Cache, global: &GlobalArgs) -> Result<(), CliError> {
    let entries: Vec<RepoEntry> = cache.repos()?.iter().map(|repo| cache.entry(repo)).collect::<Result<_, _>>()?;
    let list = CacheList {
        cache: cache.root.display().to_string(),
        bytes: entries.iter().map(|entry| entry.bytes).sum(),
        models: entries.into_iter().map(cached).collect(),
    };
    if global.json {
        print_json(&list);
        return Ok(());
    }
    let mut text = String::new();
    for model in &list.models {
        let unfinished = match model.unfinished_bytes {
            0 => String::new(),
            bytes => format!("  ({} unfinished)", size(bytes)),
        };
        text.push_str(&format!("{}  {}{unfinished}\n", model.model, size(model.bytes)));
        for revision in &model.revisions {
            let state = match (&revision.problem, revision.verified) {
                (Some(problem), _) => problem.as_str(),
                (None, true) => "verified",
                (None, false) => "whole, not verified yet",
            };
            let names = if revision.names.is_empty() { "(no name)".to_owned() } else { revision.names.join(", ") };
            let (commit, bytes) = (revision.commit.get(..12).unwrap_or_default(), size(revision.bytes));
            text.push_str(&format!("  {commit}  {names:<12}  {:>3} files  {bytes:>10}  {state}\n", revision.files));
        }
    }
    text.push_str(&format!("{} models, {} in {}\n", list.models.len(), size(list.bytes), list.cache));
    write_stdout(&text);
    Ok(())
}

fn cached(entry: RepoEntry) -> CachedModel {
    let revision = |revision: atlas_hub::RevisionEntry| CachedRevision {
        commit: revision.commit,
        names: revision.names,
        files: revision.files as u64,
        bytes: revision.bytes,
        verified: revision.verified,
        problem: revision.problem,
    };
    CachedModel {
        model: entry.repo.to_string(),
        bytes: entry.bytes,
        unfinished_bytes: entry.unfinished,
        revisions: entry.revisions.into_iter().map(revision).collect(),
    }
}

impl VerifyArgs {
    fn run(&self, cache: &Cache, global: &GlobalArgs) -> Result<(), CliError> {
        let progress = FetchProgress::new(global.quiet);
        let mut models = Vec::new();
        for repo in chosen(cache, &self.models)? {
            let found = cache.verify_repo(&repo, &progress)?;
            let problem =
                |(path, problem): (PathBuf, String)| CacheProblem { path: path.display().to_string(), problem };
            models.push(VerifiedModel {
                model: repo.to_string(),
                files: found.files as u64,
                bytes: found.bytes,
                problems: found.problems.into_iter().map(problem).collect(),
            });
        }
        let whole = models.iter().all(|model| model.problems.is_empty());
        let report = CacheVerification { cache: cache.root.display().to_string(), whole, models };
        if global.json {
            print_json(&report);
        } else {
            for model in &report.models {
                let verdict = if model.problems.is_empty() { "whole" } else { "NOT WHOLE" };
                write_stdout(&format!("{}  {} files, {}: {verdict}\n", model.model, model.files, size(model.bytes)));
                for problem in &model.problems {
                    write_stdout(&format!("  {}: {}\n", problem.path, problem.problem));
                }
            }
        }
        match whole {
            true => Ok(()),
            false => Err(CliError::Failed(
                "the cache is not whole; `atlas pull MODEL` fetches damaged files again".to_owned(),
            )),
        }
    }
}

impl PruneArgs {
    fn run(&self, cache: &Cache, global: &GlobalArgs) -> Result<(), CliError> {
        let mut found = Vec::new();
        for repo in chosen(cache, &self.models)? {
            found.extend(cache.prunable(&repo, !self.models.is_empty(), self.detached)?);
        }
        let items: Vec<(PruneItem, bool)> = found.iter().map(|what| self.item(cache, what)).collect();
        let failed = items.iter().any(|(_, done)| !done);
        let counted = items.iter().filter(|(_, done)| *done).map(|(item, _)| item.bytes).sum();
        let pruning = CachePruning {
            cache: cache.root.display().to_string(),
            dry_run: !self.yes,
            bytes: counted,
            items: items.into_iter().map(|(item, _)| item).collect(),
        };
        if global.json {
            print_json(&pruning);
        } else {
            for item in &pruning.items {
                let (paths, bytes) = (item.paths.join(", "), size(item.bytes));
                write_stdout(&format!("{}  {}  {bytes}  {}: {paths}\n", item.outcome, item.model, item.reason));
            }
            let freed = size(pruning.bytes);
            write_stdout(&match (pruning.items.is_empty(), self.yes) {
                (true, _) => "nothing to remove\n".to_owned(),
                (false, true) => format!("{freed} freed\n"),
                (false, false) => format!("{freed} would be freed; `--yes` removes it\n"),
            });
        }
        if failed { Err(CliError::Failed("not everything could be removed".to_owned())) } else { Ok(()) }
    }

    fn item(&self, cache: &Cache, what: &Prunable) -> (PruneItem, bool) {
        let (outcome, done) = match self.yes.then(|| cache.remove(what)) {
            None => ("would go".to_owned(), true),
            Some(Ok(Pruned::Removed)) => ("removed".to_owned(), true),
            Some(Ok(Pruned::Busy)) => ("in use".to_owned(), false),
            Some(Err(error)) => (error.to_string(), false),
        };
        let reason = match what.reason {
            PruneReason::Named => "named",
            PruneReason::Unfinished => "unfinished",
            PruneReason::Unreferenced => "unreferenced",
            PruneReason::Detached => "detached",
        };
        let item = PruneItem {
            model: what.repo.to_string(),
            reason: reason.to_owned(),
            paths: what.paths.iter().map(|path| path.display().to_string()).collect(),
            bytes: what.bytes,
            outcome,
        };
        (item, done)
    }
}
