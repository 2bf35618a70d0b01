//! A gate run: the machine is probed, the suites are measured, and everything goes into one record.

use crate::client::Client;
use crate::endpoint::Endpoint;
use crate::probe::{Pass, Prober, Yardstick};
use crate::progress::Progress;
use crate::suites::{self, SuiteError};
use crate::{data, provenance};
use atlas_schemas::gate::{EngineProvenance, GATE_VERSION, GateRecord, GateSuite, GateTarget, MachineProbe};
use atlas_schemas::hardware::HardwareClass;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
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
    /// They are measured when the run begins and before every run of a speed, while the endpoint is idle.
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
    let mut machine = Machine::new(&endpoint, &run.probe).await;
    if let Some(pass) = machine.look().await {
        let (read, compute) = (pass.read_bytes_per_s / 1e9, pass.flops / 1e9);
        progress.line(&format!("machine: {read:.1} GB/s at the size of the weights, {compute:.1} Gflop/s"));
    }
    let mut results = BTreeMap::new();
    for suite in suites {
        progress.line(&format!("{}: {}", suite.name, suite.description));
        let result = suites::run(suite, &endpoint, async || machine.look().await, progress).await?;
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
        probe: machine.summary(),
        suites: results,
    })
}

/// The machine under the endpoint, as it showed itself during the run.
struct Machine {
    prober: Option<Arc<Prober>>,
    passes: Vec<Pass>,
    given: Option<MachineProbe>,
}

impl Machine {
    /// Probes with the model's weight bytes; without them a roofline has no meaning.
    async fn new(endpoint: &Endpoint, source: &ProbeSource) -> Self {
        let bytes = endpoint.card.weight_bytes.or(endpoint.card.weight_bytes_per_token);
        let (prober, given) = match (source, bytes) {
            (ProbeSource::Given(probe), _) => (None, Some(probe.clone())),
            (ProbeSource::Measure(_), None) => (None, None),
            (ProbeSource::Measure(yardstick), Some(bytes)) => {
                let yardstick = *yardstick;
                let made = tokio::task::spawn_blocking(move || Prober::new(bytes, &yardstick)).await;
                (made.ok().map(Arc::new), None)
            }
        };
        Self { prober, passes: Vec::new(), given }
    }

    /// What the machine can do now.
    async fn look(&mut self) -> Option<Pass> {
        if let Some(given) = &self.given {
            return Some(Pass { read_bytes_per_s: given.read_bytes_per_s.median, flops: given.flops.median });
        }
        let prober = self.prober.clone()?;
        let pass = tokio::task::spawn_blocking(move || prober.pass()).await.ok()?;
        self.passes.push(pass);
        Some(pass)
    }

    fn summary(self) -> Option<MachineProbe> {
        self.given.or_else(|| Some(self.prober?.summary(&self.passes)))
    }
}

/// Reads a record from a file.
pub fn read(path: &Path) -> Result<GateRecord, data::DataError> {
    let text = data::read(path)?;
    serde_json::from_str(&text).map_err(|error| {
        data::DataError::content(&path.display().to_string(), error.line(), format!("is no gate record: {error}"))
    })
}
