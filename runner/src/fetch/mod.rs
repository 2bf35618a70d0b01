//! Makes a model ready to be loaded: fetches what is missing, and verifies what was never verified.

pub(crate) mod progress;

use crate::errors::CliError;
use crate::interrupt::Interrupt;
use crate::model::{HubModel, Located, ModelSource, hub_config, look};
use atlas_hub::{Adopted, Cache, Disk, Fetched, Hub, HubError, Observer, adopt};
use progress::FetchProgress;
use std::sync::Arc;

impl From<HubError> for CliError {
    fn from(error: HubError) -> Self {
        match error.before_anything_was_touched() {
            true => Self::Refused(error.to_string()),
            false => Self::Failed(error.to_string()),
        }
    }
}

/// Brings a model from the hub into the cache. A signal stops it; the next run goes on from there.
pub(crate) async fn fetch(model: &HubModel, interrupt: &Interrupt, quiet: bool) -> Result<Fetched, CliError> {
    let hub = Hub::new(hub_config()?)?;
    let progress = Arc::new(FetchProgress::new(quiet));
    let observer: Arc<dyn Observer> = progress.clone();
    let fetched = interrupt.or(hub.fetch(&model.repo, &model.revision, &observer)).await;
    progress.finish();
    Ok(fetched??)
}

/// The model of this name, on this machine, whole and verified.
pub(crate) async fn ready(
    model: &str,
    revision: Option<&str>,
    before: impl AsyncFnOnce() -> Result<(), CliError>,
    interrupt: &Interrupt,
    quiet: bool,
) -> Result<ModelSource, CliError> {
    match look(model, revision)? {
        Located::Here(source) => verified(source, interrupt, quiet).await,
        Located::AtHub(model) if model.offline => Err(model.missing()),
        Located::AtHub(model) => {
            before().await?;
            let fetched = fetch(&model, interrupt, quiet).await?;
            Ok(ModelSource::Folder(fetched.snapshot.folder))
        }
    }
}

/// Verifies a model that is here, once in its life: a snapshot of the cache, or a folder that a hub's tool filled.
pub(crate) async fn verified(source: ModelSource, interrupt: &Interrupt, quiet: bool) -> Result<ModelSource, CliError> {
    let ModelSource::Folder(folder) = &source else { return Ok(source) };
    let (folder, progress) = (folder.clone(), Arc::new(FetchProgress::new(quiet)));
    let observer = progress.clone();
    let own_cache = hub_config().ok().and_then(|config| config.own_cache);
    let work = tokio::task::spawn_blocking(move || match Cache::of_folder(&folder, own_cache.clone()) {
        Some((cache, snapshot)) => cache.verify(&snapshot, &Disk, &*observer).map(Adopted::Verified),
        None => adopt(&folder, own_cache.as_deref(), &Disk, &*observer),
    });
    let outcome = interrupt.or(work).await;
    progress.finish();
    let outcome = outcome?.map_err(|error| CliError::Failed(format!("verifying the model panicked: {error}")))?;
    outcome.map(|_| source).map_err(|error| match error {
        HubError::Damaged { .. } => CliError::Failed(format!("{error}\n  remove that file and fetch it again")),
        other => other.into(),
    })
}
