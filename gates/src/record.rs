//! A gate run: the machine is probed, the suites are measured, and everything goes into one record.

use crate::client::Client;
use crate::endpoint::Endpoint;
use crate::probe::Yardstick;
use crate::progress::Progress;
use crate::suites::{self, SuiteError};
use crate::{data, probe, provenance};
use atlas_schemas::gate::{EngineProvenance, GATE_VERSION, GateRecord, GateSuite, GateTarget, MachineProbe};
use atlas_schemas::hardware::HardwareClass;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;

/// What to measure, and what is known about it beforehand.
#[derive(Debug, Clone)]
pub struct GateRun {
    /// Short name of the target; baselines are filed under it.
    pub name: String,
    /// Hardware class.
    pub class: HardwareClass,
    /// Served model; the endpoint's first if none.
    pub model: Option<String>,
    /// sha256 of the recipe.
    pub recipe_hash: Option<String>,
    /// sha256 over the weights; the model's card is asked if none.
    pub weights_hash: Option<String>,
    /// sha256 of the serving executable.
    pub binary_sha256: Option<String>,
    /// Version of Atlas, used if the model's card names no engine version.
    pub version: String,
    /// What a token costs; the model's card is asked for what is absent.
    pub work: TokenWork,
    /// The machine's limits.
    pub probe: ProbeSource,
}

/// Where the machine's limits come from.
#[derive(Debug, Clone)]
pub enum ProbeSource {
    /// They are measured when the run begins, while the endpoint is idle.
    Measure(Yardstick),
    /// The caller knows them.
    Given(MachineProbe),
}

/// What a token costs the machine, as far as it is known.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TokenWork {
    /// Bytes of weights in memory.
    pub weight_bytes: Option<u64>,
    /// Bytes of weights read for one decoded token.
    pub weight_bytes_per_token: Option<u64>,
    /// Floating-point operations for one prefilled token.
    pub flops_per_token: Option<u64>,
}

/// Measures `suites` on a ready endpoint. For roofline fractions to mean anything it must run on this machine.
pub async fn measure(
    client: Client,
    run: &GateRun,
    suites: &[GateSuite],
    progress: &Progress,
) -> Result<GateRecord, SuiteError> {
    let (started_at, start) = (provenance::now(), Instant::now());
    let mut endpoint = Endpoint::new(client, run.model.as_deref()).await?;
    let card = &mut endpoint.card;
    card.weight_bytes = run.work.weight_bytes.or(card.weight_bytes);
    card.weight_bytes_per_token = run.work.weight_bytes_per_token.or(card.weight_bytes_per_token);
    card.flops_per_token = run.work.flops_per_token.or(card.flops_per_token);
    let probe = match &run.probe {
        ProbeSource::Given(probe) => Some(probe.clone()),
        ProbeSource::Measure(yardstick) => probe_machine(&endpoint, *yardstick, progress).await,
    };
    let mut results = BTreeMap::new();
    for suite in suites {
        progress.line(&format!("{}: {}", suite.name, suite.description));
        let result = suites::run(suite, &endpoint, probe.as_ref(), progress).await?;
        progress.line(&format!("{}: done in {:.1} s", suite.name, result.seconds));
        if results.insert(suite.name.clone(), result).is_some() {
            let message = "two suites have this name".into();
            return Err(SuiteError::Definition { origin: suite.name.clone(), message });
        }
    }
    let card = endpoint.card;
    Ok(GateRecord {
        schema_version: GATE_VERSION,
        started_at,
        seconds: start.elapsed().as_secs_f64(),
        class: run.class,
        target: GateTarget {
            name: run.name.clone(),
            model: card.id,
            recipe_hash: run.recipe_hash.clone(),
            weights_hash: run.weights_hash.clone().or(card.weights_hash),
            weight_bytes: card.weight_bytes,
            weight_bytes_per_token: card.weight_bytes_per_token,
            flops_per_token: card.flops_per_token,
        },
        engine: EngineProvenance {
            version: card.engine_version.unwrap_or_else(|| run.version.clone()),
            binary_sha256: run.binary_sha256.clone(),
            git: provenance::git_state(Path::new(".")),
        },
        hardware: provenance::machine(),
        probe,
        suites: results,
    })
}

/// Probes with the model's weight bytes; without them a roofline has no meaning.
async fn probe_machine(endpoint: &Endpoint, yardstick: Yardstick, progress: &Progress) -> Option<MachineProbe> {
    let bytes = endpoint.card.weight_bytes.or(endpoint.card.weight_bytes_per_token)?;
    let probe = tokio::task::spawn_blocking(move || probe::measure(bytes, &yardstick)).await.ok()?;
    progress.line(&format!(
        "machine: {:.1} GB/s over {:.1} MB, {:.1} Gflop/s",
        probe.read_bytes_per_s.median / 1e9,
        probe.working_set_bytes as f64 / 1e6,
        probe.flops.median / 1e9
    ));
    Some(probe)
}

/// Reads a record from a file.
pub fn read(path: &Path) -> Result<GateRecord, data::DataError> {
    let text = data::read(path)?;
    serde_json::from_str(&text).map_err(|error| {
        data::DataError::content(&path.display().to_string(), error.line(), format!("is no gate record: {error}"))
    })
}
