//! `atlas pull`: a model onto this machine, without running it.

use crate::errors::CliError;
use crate::fetch::fetch;
use crate::interrupt::{Interrupt, block_on};
use crate::model::{HubModel, wish};
use crate::output::{GlobalArgs, print_json, write_stdout};
use crate::recipe::resolve;
use crate::target::Target;
use atlas_hub::Fetched;
use atlas_schemas::cache::{PullReport, PulledFile};
use clap::Args;

/// Fetch a model into the Hugging Face cache, and verify it.
///
/// Asks the hub what the revision holds today, fetches what is missing and resumes what was interrupted. The cache is
/// the one that other tools use; HF_ENDPOINT, HF_TOKEN, HF_HOME, HF_HUB_CACHE and HF_HUB_OFFLINE are honoured.
#[derive(Debug, Args)]
pub(crate) struct PullArgs {
    /// A hub id (`owner/name`, `owner/name@revision`), or a recipe.
    #[arg(value_name = "MODEL|RECIPE")]
    target: Target,
    /// Hub revision: a branch, a tag or a commit.
    #[arg(long, value_name = "REVISION")]
    revision: Option<String>,
}

impl PullArgs {
    /// Returns when the model is here.
    pub(crate) fn run(self, global: &GlobalArgs) -> Result<(), CliError> {
        let model = self.model()?;
        let fetched = block_on(async {
            let interrupt = Interrupt::install()?;
            fetch(&model, &interrupt, global.quiet).await
        })?;
        let report = report(&model, fetched);
        match global.json {
            true => print_json(&report),
            false => write_stdout(&format!(
                "{} at {} is in {} ({} file{} fetched)\n",
                report.model,
                report.commit,
                report.folder,
                report.fetched,
                if report.fetched == 1 { "" } else { "s" }
            )),
        }
        Ok(())
    }

    fn model(&self) -> Result<HubModel, CliError> {
        let revision = self.revision.as_deref();
        match &self.target {
            Target::Url(url) => Err(CliError::Usage(format!("{url} is an endpoint; name a hub id or a recipe"))),
            Target::Model(model) => wish(model, revision),
            Target::Recipe(reference) => {
                let found = resolve(reference).map_err(|error| CliError::Usage(error.to_string()))?;
                wish(&found.recipe.model, revision.or(found.recipe.model_revision.as_deref()))
            }
        }
    }
}

fn report(model: &HubModel, fetched: Fetched) -> PullReport {
    let files = fetched.manifest.files;
    PullReport {
        model: model.repo.to_string(),
        revision: model.revision.to_string(),
        commit: fetched.snapshot.commit,
        folder: fetched.snapshot.folder.display().to_string(),
        fetched: fetched.fetched as u64,
        bytes: files.iter().map(|file| file.size).sum(),
        files: files
            .into_iter()
            .map(|file| PulledFile { path: file.path, size: file.size, sha256: file.sha256 })
            .collect(),
    }
}
