//! `atlas gate`: measure what a recipe promises, judge it, make it the promise, tell it.

use super::gate_changed;
use crate::errors::CliError;
use crate::interrupt::{Interrupt, block_on};
use crate::output::{GlobalArgs, print_json, write_file, write_stdout};
use crate::target::{Ready, Target, YARDSTICK, binary_sha256, measured};
use atlas_gates::progress::Progress;
use atlas_gates::record::{self, GateRun, ProbeSource};
use atlas_gates::{baseline, compare, report, suites};
use atlas_schemas::gate::{GateBaseline, GateRecord, GateReport, GateSuite, Verdict};
use atlas_schemas::hardware::HardwareClass;
use clap::{Args, Subcommand};
use std::collections::BTreeSet;
use std::fmt::{Display, Write};
use std::path::{Path, PathBuf};

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum GateCommand {
    /// Measure a recipe, a model or an endpoint, and write a record.
    Run(RunArgs),
    /// Judge a record against its baseline, or the recipes of a change. Exits 0 (pass), 1 (fail) or 3 (inconclusive).
    Check(CheckArgs),
    /// Make a record the baseline.
    Bless(BlessArgs),
    /// Show a record's judgement as Markdown.
    Report(ReportArgs),
}

impl GateCommand {
    /// Runs the command.
    pub(crate) fn run(self, global: &GlobalArgs) -> Result<(), CliError> {
        match self {
            Self::Run(args) => args.run(global),
            Self::Check(args) => args.run(global),
            Self::Bless(args) => args.run(global),
            Self::Report(args) => args.run(global),
        }
    }
}

/// Arguments of `gate run`.
#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// A recipe, a model folder, or `embedded`; it is started for the time of the measurement.
    #[arg(value_name = "RECIPE", required_unless_present = "url", conflicts_with = "url")]
    target: Option<Target>,
    /// An endpoint that runs already.
    #[arg(long, value_name = "URL")]
    url: Option<String>,
    /// A suite by name, or a suite's YAML file; may be repeated. All built-in suites unless told.
    #[arg(long = "suite", value_name = "SUITE")]
    suites: Vec<String>,
    /// Name under which the record is filed; that of the recipe unless told.
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Hardware class of this machine.
    #[arg(long, value_name = "CLASS", default_value = "cpu")]
    class: HardwareClass,
    /// The file to write the record to.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

impl RunArgs {
    fn run(self, global: &GlobalArgs) -> Result<(), CliError> {
        let suites = load_suites(&self.suites)?;
        let target = match (self.target, self.url) {
            (Some(target), _) => target,
            (None, Some(url)) => Target::Url(url),
            (None, None) => return Err(CliError::Usage("give a recipe or --url".to_owned())),
        };
        let name = match (self.name, &target) {
            (Some(name), _) => name,
            (None, Target::Url(url)) => return Err(CliError::Usage(format!("{url}: give the record a --name"))),
            (None, target) => target.short_name(),
        };
        let progress = Progress::new(!global.quiet);
        let record = block_on(async {
            let interrupt = Interrupt::install()?;
            measure(&target, name, self.class, &suites, &interrupt, &progress).await
        })?;
        if let Some(out) = &self.out {
            write_file(out, &record)?;
        }
        match global.json {
            true => print_json(&record),
            false => write_stdout(&summary(&record)),
        }
        Ok(())
    }
}

/// The suites named, or all that are built in.
pub(super) fn load_suites(names: &[String]) -> Result<Vec<GateSuite>, CliError> {
    let all: Vec<String> = suites::built_in().map(str::to_owned).collect();
    let names = if names.is_empty() { &all } else { names };
    let loaded = names.iter().map(|name| suites::load(name)).collect::<Result<_, _>>();
    loaded.map_err(|error| CliError::Usage(error.to_string()))
}

/// Measures `suites` on `target`.
pub(super) async fn measure(
    target: &Target,
    name: String,
    class: HardwareClass,
    suites: &[GateSuite],
    interrupt: &Interrupt,
    progress: &Progress,
) -> Result<GateRecord, CliError> {
    progress.line(&format!("starting {target}"));
    measured(target, interrupt, async |ready| measure_ready(ready, name, class, suites, progress).await).await
}

/// Measures `suites` on what is ready already.
pub(super) async fn measure_ready(
    ready: Ready,
    name: String,
    class: HardwareClass,
    suites: &[GateSuite],
    progress: &Progress,
) -> Result<GateRecord, CliError> {
    let started_here = ready.model.is_some();
    let run = GateRun {
        name,
        class,
        model: None,
        recipe_hash: ready.recipe_hash.clone(),
        weights_hash: ready.weights_hash()?,
        binary_sha256: if started_here { binary_sha256() } else { None },
        version: if started_here { env!("CARGO_PKG_VERSION").to_owned() } else { "unknown".to_owned() },
        work: ready.work()?,
        probe: ProbeSource::Measure(YARDSTICK),
    };
    record::measure(ready.client, &run, suites, progress).await.map_err(failed)
}

fn summary(record: &GateRecord) -> String {
    let mut text = String::new();
    for (name, suite) in &record.suites {
        for (metric, measured) in &suite.metrics {
            let fraction = measured
                .roofline
                .as_ref()
                .map_or(String::new(), |r| format!(", {:.1} % of roofline", 100.0 * r.median));
            let (samples, unit) = (&measured.samples, &measured.unit);
            let runs = samples.values.len();
            let _ = writeln!(
                text,
                "{name:12} {metric:24} {:.4} {unit} (spread {:.4}, {runs} runs{fraction})",
                samples.median, samples.spread
            );
        }
    }
    text
}

/// Arguments of `gate check`.
#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    /// The record to judge.
    #[arg(value_name = "RECORD", required_unless_present = "changed", conflicts_with = "changed")]
    record: Option<PathBuf>,
    /// The baseline; that of the record's class and name unless told.
    #[arg(long, value_name = "FILE", conflicts_with = "changed")]
    baseline: Option<PathBuf>,
    /// Judge these suites only; may be repeated.
    #[arg(long = "suite", value_name = "NAME", conflicts_with = "changed")]
    suites: Vec<String>,
    /// Judge every recipe that changed since this git revision: it is valid, and on every hardware class that it names
    /// a record of exactly this recipe keeps the baseline. On class `cpu` the gate is run.
    #[arg(long, value_name = "REF")]
    changed: Option<String>,
}

impl CheckArgs {
    fn run(self, global: &GlobalArgs) -> Result<(), CliError> {
        if let Some(reference) = &self.changed {
            return gate_changed::check(reference, global);
        }
        let Some(path) = &self.record else { return Err(CliError::Usage("give a record or --changed".to_owned())) };
        let record = record::read(path).map_err(failed)?;
        let only: Option<BTreeSet<String>> = (!self.suites.is_empty()).then(|| self.suites.iter().cloned().collect());
        let judged = judge(&record, self.baseline.as_deref(), only.as_ref())?;
        match global.json {
            true => print_json(&judged),
            false => write_stdout(&report::markdown(&judged, None)),
        }
        outcome(judged.verdict)
    }
}

/// The judgement of a record against `file`, else against the baseline of its class and name.
pub(super) fn judge(
    record: &GateRecord,
    file: Option<&Path>,
    only: Option<&BTreeSet<String>>,
) -> Result<GateReport, CliError> {
    let found = find_baseline(file, record.class, &record.target.name)?;
    Ok(match found {
        Some(baseline) => compare::compare(record, &baseline, only),
        None => compare::without_baseline(record),
    })
}

fn find_baseline(file: Option<&Path>, class: HardwareClass, name: &str) -> Result<Option<GateBaseline>, CliError> {
    baseline::find(file, Path::new(baseline::FOLDER), class, name).map_err(failed)
}

/// A verdict as the command's end: 0, 1 or 3. What there is to say was printed already.
pub(super) fn outcome(verdict: Verdict) -> Result<(), CliError> {
    match verdict {
        Verdict::Pass => Ok(()),
        Verdict::Fail => Err(CliError::Reported),
        Verdict::Inconclusive => Err(CliError::Inconclusive("the gate is inconclusive".to_owned())),
    }
}

/// Arguments of `gate bless`.
#[derive(Debug, Args)]
pub(crate) struct BlessArgs {
    /// The record that becomes the promise.
    #[arg(value_name = "RECORD")]
    record: PathBuf,
    /// The file to write; `gates/baselines/CLASS/NAME.json` unless told.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Suite files of the record that are not built in; may be repeated.
    #[arg(long = "suite", value_name = "FILE")]
    suites: Vec<String>,
    /// Drop suites of the present baseline that the record did not measure.
    #[arg(long)]
    drop_suites: bool,
}

impl BlessArgs {
    fn run(self, global: &GlobalArgs) -> Result<(), CliError> {
        let record = record::read(&self.record).map_err(failed)?;
        let mut suites = load_suites(&[])?;
        if !self.suites.is_empty() {
            let own = load_suites(&self.suites)?;
            suites.retain(|suite| own.iter().all(|own| own.name != suite.name));
            suites.extend(own);
        }
        let name = &record.target.name;
        let path = self.out.clone().unwrap_or_else(|| baseline::path(Path::new(baseline::FOLDER), record.class, name));
        if path.exists() && !self.drop_suites {
            let lost = lost_suites(&baseline::read(&path).map_err(failed)?, &record);
            if !lost.is_empty() {
                return Err(CliError::Refused(format!(
                    "{} promises {}, which the record did not measure: measure it too, or pass --drop-suites",
                    path.display(),
                    lost.join(", ")
                )));
            }
        }
        let blessed = baseline::bless(&record, &suites).map_err(|problems| {
            CliError::Failed(format!("{} cannot be a baseline:\n  {}", self.record.display(), problems.join("\n  ")))
        })?;
        write_file(&path, &blessed)?;
        match global.json {
            true => print_json(&blessed),
            false => write_stdout(&format!("{}\n", path.display())),
        }
        Ok(())
    }
}

fn lost_suites(present: &GateBaseline, record: &GateRecord) -> Vec<String> {
    present.suites.keys().filter(|suite| !record.suites.contains_key(*suite)).cloned().collect()
}

/// Arguments of `gate report`.
#[derive(Debug, Args)]
pub(crate) struct ReportArgs {
    /// The record.
    #[arg(value_name = "RECORD")]
    record: PathBuf,
    /// The baseline; that of the record's class and name unless told.
    #[arg(long, value_name = "FILE")]
    baseline: Option<PathBuf>,
}

impl ReportArgs {
    fn run(self, global: &GlobalArgs) -> Result<(), CliError> {
        let record = record::read(&self.record).map_err(failed)?;
        let judged = judge(&record, self.baseline.as_deref(), None)?;
        match global.json {
            true => print_json(&judged),
            false => write_stdout(&report::markdown(&judged, Some(&record))),
        }
        Ok(())
    }
}

pub(super) fn failed(error: impl Display) -> CliError {
    CliError::Failed(error.to_string())
}
