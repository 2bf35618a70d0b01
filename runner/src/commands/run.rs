//! `atlas run`: from a recipe's name to a running, tested model.

use super::gate::{judge, load_suites, measure_ready};
use crate::errors::CliError;
use crate::fetch::{fetch, verified};
use crate::host::identity::HostArgs;
use crate::interrupt::{Interrupt, block_on};
use crate::job::launch::LaunchedJob;
use crate::job::store::{JobStore, short_name};
use crate::output::{GlobalArgs, print_json, write_stdout};
use crate::progress::Progress;
use crate::recipe::{Override, OverrideError, ResolveError, ResolvedRecipe, resolve};
use crate::run::bring_up::{bring_up, follow, summary, summary_json};
use crate::run::plan::{RunPlan, RunRequest};
use crate::target::Ready;
use atlas_gates::report;
use atlas_schemas::gate::{GateSuite, Verdict};
use atlas_schemas::hardware::HardwareClass;
use atlas_schemas::yaml::render;
use clap::Args;

/// This build computes on the CPU.
const CLASS: HardwareClass = HardwareClass::Cpu;

/// Run a model from a recipe.
///
/// Everything is checked before anything is touched: options, hosts, port, weights, memory. A model that is not on
/// this machine is fetched from its hub; what another tool fetched is verified once. Then the server is
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
    /// Measure the recipe's gates once it is ready, and stop it again unless they pass.
    #[arg(long)]
    gate: bool,
    /// Trust the recipe. What needs trust, commands in a recipe, this build refuses in any case.
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
            let found = self.find()?;
            let gates = if self.gate { Some(gate_suites(&found)?) } else { None };
            let plan = RunPlan::make(self.request(found)?, hosts)?;
            interrupt.check()?;
            if self.dry_run {
                return show(&plan, global);
            }
            plan.require()?;
            let plan = with_model(plan, &interrupt, global.quiet).await?;
            self.launch(plan, gates, &interrupt, global).await
        })
    }

    fn find(&self) -> Result<ResolvedRecipe, CliError> {
        resolve(&self.recipe).map_err(|error| match error {
            ResolveError::NotFound(message) => CliError::Usage(message),
            invalid @ ResolveError::Invalid { .. } => {
                CliError::Refused(format!("{} is not a valid recipe\n{invalid}", self.recipe))
            }
        })
    }

    fn request(&self, found: ResolvedRecipe) -> Result<RunRequest, CliError> {
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

    async fn launch(
        &self,
        plan: RunPlan,
        gates: Option<Vec<GateSuite>>,
        interrupt: &Interrupt,
        global: &GlobalArgs,
    ) -> Result<(), CliError> {
        // Whatever this process and its children create is for its owner alone.
        rustix::process::umask(rustix::fs::Mode::RWXG | rustix::fs::Mode::RWXO);
        let store = JobStore::create().map_err(|error| CliError::Refused(error.to_string()))?;
        store.prune();
        let progress = Progress::new(global.quiet);
        let model_path = plan.model_path.clone();
        let mut job = bring_up(plan.into_launch(), &store, interrupt, &progress).await?;
        let checked = match gates {
            Some(suites) => {
                interrupt.or(pass_gates(&mut job, model_path, &suites, global)).await.and_then(|result| result)
            }
            None => interrupt.check(),
        };
        if let Err(error) = checked {
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

/// The plan with its model on this machine, whole and verified: fetched if it has to be.
async fn with_model(plan: RunPlan, interrupt: &Interrupt, quiet: bool) -> Result<RunPlan, CliError> {
    let plan = match &plan.fetch {
        Some(model) => {
            fetch(model, interrupt, quiet).await?;
            let plan = plan.again()?;
            plan.require()?;
            plan
        }
        None => plan,
    };
    if let Some(source) = plan.source() {
        verified(source, interrupt, quiet).await?;
    }
    Ok(plan)
}

/// The suites that the recipe names for machines like this one.
fn gate_suites(found: &ResolvedRecipe) -> Result<Vec<GateSuite>, CliError> {
    let none = |what: &str| CliError::Refused(format!("--gate: {} {what}", found.reference));
    let gates = found.recipe.gates.as_ref().ok_or_else(|| none("names no gates"))?;
    if !gates.classes.contains(&CLASS) {
        return Err(none(&format!("has no gates for machines of class `{CLASS}`")));
    }
    load_suites(&gates.suites)
}

/// Measures the suites on the job, keeps the record with the job, shows the judgement on stderr; anything but a pass
/// is an error.
async fn pass_gates(
    job: &mut LaunchedJob,
    model: Option<String>,
    suites: &[GateSuite],
    global: &GlobalArgs,
) -> Result<(), CliError> {
    let client = job.gate_client()?;
    let ready = Ready { client, model, recipe_hash: job.record.recipe_hash.clone() };
    let name = short_name(&job.record.recipe).to_owned();
    let progress = atlas_gates::progress::Progress::new(!global.quiet);
    let record = job.alive_during(measure_ready(ready, name, CLASS, suites, &progress)).await?;
    job.dir().write_gate_record(&record)?;
    let only = suites.iter().map(|suite| suite.name.clone()).collect();
    let judged = judge(&record, None, Some(&only))?;
    eprint!("{}", report::markdown(&judged, None));
    let end = |words: &str| format!("{words}, so it was stopped; `atlas logs {}` has its log", job.record.id);
    match judged.verdict {
        Verdict::Pass => Ok(()),
        Verdict::Fail => Err(CliError::Failed(end("the job does not keep what its gates promise"))),
        Verdict::Inconclusive => Err(CliError::Inconclusive(end("its gates could not judge the job"))),
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
