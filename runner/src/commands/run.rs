//! `atlas run`: from a recipe's name to a running, tested model.

use crate::errors::CliError;
use crate::host::identity::HostArgs;
use crate::interrupt::{Interrupt, block_on};
use crate::job::store::JobStore;
use crate::output::{GlobalArgs, print_json, write_stdout};
use crate::progress::Progress;
use crate::recipe::{Override, OverrideError, ResolveError, resolve};
use crate::run::bring_up::{bring_up, follow, summary, summary_json};
use crate::run::plan::{RunPlan, RunRequest};
use atlas_schemas::yaml::render;
use clap::Args;

/// Run a model from a recipe.
///
/// Everything is checked before anything is touched: options, hosts, port, weights, memory. Then the server is
/// started and asked a first question. In the foreground its log is shown, and Ctrl-C stops it; with `--detach` it
/// goes on running, see `atlas status`.
#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// The recipe: `@atlas/NAME`, `@REGISTRY/NAME`, or a file.
    recipe: String,
    #[command(flatten)]
    hosts: HostArgs,
    /// Set an option, over the recipe's value.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    sets: Vec<String>,
    /// Port of the server; 0 takes a free one. Short for `--set port=N`.
    #[arg(long, value_name = "N")]
    port: Option<u16>,
    /// Leave the job running and return once it is ready.
    #[arg(long)]
    detach: bool,
    /// Show what would be done, and touch nothing.
    #[arg(long)]
    dry_run: bool,
    /// Measure the recipe's gates once it is ready.
    #[arg(long)]
    gate: bool,
    /// Allow the recipe to run the commands that it contains.
    #[arg(long)]
    trust: bool,
}

impl RunArgs {
    /// Returns when the job is ready (`--detach`) or has ended.
    pub(crate) fn run(self, global: &GlobalArgs) -> Result<(), CliError> {
        block_on(async move {
            // Before anything else: from here on a signal is an orderly end at every stage.
            let interrupt = Interrupt::install()?;
            let hosts = self.hosts.resolve()?;
            let plan = RunPlan::make(self.request()?, hosts)?;
            interrupt.check()?;
            if self.dry_run {
                return show(&plan, global);
            }
            plan.require()?;
            self.launch(plan, &interrupt, global).await
        })
    }

    fn request(&self) -> Result<RunRequest, CliError> {
        let found = resolve(&self.recipe).map_err(|error| match error {
            ResolveError::NotFound(message) => CliError::Usage(message),
            invalid @ ResolveError::Invalid { .. } => CliError::Refused(invalid.to_string()),
        })?;
        let usage = |error: OverrideError| CliError::Usage(error.to_string());
        let mut overrides =
            self.sets.iter().map(|set| Override::parse(set).map_err(usage)).collect::<Result<Vec<_>, _>>()?;
        if let Some(port) = self.port {
            overrides.push(Override::new("port", &port.to_string()).map_err(usage)?);
        }
        let effective = found.effective(&overrides).map_err(usage)?;
        found.warnings.iter().for_each(|warning| eprint!("{}", render(warning)));
        effective.notes.iter().for_each(|note| eprintln!("note: {note}"));
        let resolved = serde_json::to_value(&found.recipe).map_err(|error| CliError::Failed(error.to_string()))?;
        Ok(RunRequest {
            reference: found.reference,
            hash: effective.hash,
            resolved,
            model: found.recipe.model,
            revision: found.recipe.model_revision,
            min_nodes: found.recipe.min_nodes,
            max_nodes: found.recipe.max_nodes,
            env: found.recipe.env,
            refusals: effective.refusals,
            options: effective.set,
            effective: effective.provenance,
        })
    }

    async fn launch(&self, plan: RunPlan, interrupt: &Interrupt, global: &GlobalArgs) -> Result<(), CliError> {
        // Whatever this process and its children create is for its owner alone.
        rustix::process::umask(rustix::fs::Mode::RWXG | rustix::fs::Mode::RWXO);
        let store = JobStore::create().map_err(|error| CliError::Refused(error.to_string()))?;
        store.prune();
        let progress = Progress::new(global.quiet);
        let job = bring_up(plan.into_launch(), &store, interrupt, &progress).await?;
        if let Err(error) = interrupt.check() {
            job.abort(&error, &store, interrupt).await?;
            return Err(error);
        }
        let (url, log) = (job.url(), job.dir().log_path().display().to_string());
        let record = job.record.clone();
        let announce = || match global.json {
            true => print_json(&summary_json(&record, &url, &log, self.detach)),
            false => write_stdout(&summary(&record, &url, self.detach)),
        };
        if self.detach {
            job.detach().await?;
            announce();
            return Ok(());
        }
        announce();
        follow(job, interrupt, global.quiet).await
    }
}

/// A plan that would be refused is shown too, and ends with the refusal's exit code.
fn show(plan: &RunPlan, global: &GlobalArgs) -> Result<(), CliError> {
    match global.json {
        true => print_json(plan),
        false => write_stdout(&plan.text()),
    }
    match plan.refused.first() {
        Some(reason) => Err(CliError::Refused(reason.clone())),
        None => Ok(()),
    }
}
