//! What all requests share: configuration, the model once it is loaded, the server's phase, and its budgets.

use crate::config::ServerConfig;
use crate::error::ApiError;
use crate::guard::body::BUDGET_UNIT;
use crate::identity::{Identity, RandomIdentity};
use crate::metrics::Metrics;
use crate::model::ServedModel;
use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

/// The shared state of a server; cheap to clone. It exists before the model does.
#[derive(Clone)]
pub struct AppState(Arc<Shared>);

struct Shared {
    config: ServerConfig,
    model: OnceLock<ServedModel>,
    phase: watch::Sender<Phase>,
    identity: Arc<dyn Identity>,
    metrics: Metrics,
    requests: Arc<Semaphore>,
    body_budget: Arc<Semaphore>,
    started: u64,
}

/// Where the server is in its life. It only moves forward.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    /// The model is not there yet.
    Loading,
    /// Requests are answered.
    Ready,
    /// Running requests finish; new ones are refused.
    Stopping,
    /// The engine is lost.
    Failed,
}

impl AppState {
    /// A server whose model is still loading.
    pub fn new(config: ServerConfig) -> Self {
        Self::with_identity(config, Arc::new(RandomIdentity))
    }

    /// As [`Self::new`], with ids, seeds and timestamps from `identity`.
    pub fn with_identity(config: ServerConfig, identity: Arc<dyn Identity>) -> Self {
        let permits = |count: usize| Arc::new(Semaphore::new(count.clamp(1, u32::MAX as usize)));
        Self(Arc::new(Shared {
            model: OnceLock::new(),
            phase: watch::Sender::new(Phase::Loading),
            metrics: Metrics::new(&config.model_name),
            requests: permits(config.limits.max_concurrent_requests),
            body_budget: permits(config.limits.max_total_body_bytes / BUDGET_UNIT),
            started: identity.unix_seconds(),
            identity,
            config,
        }))
    }

    /// Puts the loaded model in place; requests are answered from here on. A second model is ignored.
    pub fn set_model(&self, model: ServedModel) {
        if self.0.model.set(model).is_ok() {
            self.advance(Phase::Ready);
        }
    }

    /// Declares that there is no working engine, because loading failed or the engine was lost.
    pub fn set_failed(&self) {
        self.advance(Phase::Failed);
    }

    /// Notes that the engine turned a request away as if it were gone. While the server stops, that is to be expected.
    pub(crate) fn engine_is_silent(&self) {
        if self.phase() == Phase::Ready {
            self.set_failed();
        }
    }

    /// Refuses new requests and tells the engine to end those that run by `deadline`.
    pub(crate) fn stop(&self, deadline: Instant) {
        self.advance(Phase::Stopping);
        if let Some(model) = self.0.model.get() {
            model.engine.shutdown(deadline);
        }
    }

    fn advance(&self, to: Phase) {
        self.0.phase.send_if_modified(|phase| {
            let forward = *phase < to;
            *phase = (*phase).max(to);
            forward
        });
    }

    /// The model, if requests are being answered.
    pub(crate) fn ready_model(&self) -> Result<&ServedModel, ApiError> {
        match (self.phase(), self.0.model.get()) {
            (Phase::Ready, Some(model)) => Ok(model),
            (Phase::Stopping, _) => Err(ApiError::unavailable("server_stopping", "the server is shutting down")),
            (Phase::Failed, _) => Err(ApiError::unavailable("engine_failed", "the engine has failed")),
            (Phase::Loading | Phase::Ready, _) => {
                Err(ApiError::unavailable("model_loading", "the model is still being loaded"))
            }
        }
    }

    /// The model, whatever the phase.
    pub(crate) fn model(&self) -> Option<&ServedModel> {
        self.0.model.get()
    }

    pub(crate) fn phase(&self) -> Phase {
        *self.0.phase.borrow()
    }

    /// Follows the phase.
    pub(crate) fn subscribe(&self) -> watch::Receiver<Phase> {
        self.0.phase.subscribe()
    }

    /// Returns once the engine is lost.
    pub(crate) async fn engine_lost(&self) {
        // The sender lives as long as this state, so waiting cannot fail.
        let _ = self.subscribe().wait_for(|phase| *phase == Phase::Failed).await;
    }

    /// A place among the concurrent requests, kept until the answer has been sent or given up.
    pub(crate) fn admit(&self) -> Result<OwnedSemaphorePermit, ApiError> {
        self.0.requests.clone().try_acquire_owned().map_err(|_| {
            let limit = self.0.config.limits.max_concurrent_requests;
            ApiError::busy(format!("{limit} requests are in progress already"), Duration::from_secs(1))
        })
    }

    /// Returns once no admitted request is left.
    pub(crate) async fn idle(&self) {
        let all = self.0.config.limits.max_concurrent_requests.clamp(1, u32::MAX as usize);
        drop(self.0.requests.acquire_many(u32::try_from(all).unwrap_or(u32::MAX)).await);
    }

    pub(crate) fn config(&self) -> &ServerConfig {
        &self.0.config
    }

    pub(crate) fn identity(&self) -> &dyn Identity {
        &*self.0.identity
    }

    pub(crate) fn metrics(&self) -> &Metrics {
        &self.0.metrics
    }

    pub(crate) fn body_budget(&self) -> &Arc<Semaphore> {
        &self.0.body_budget
    }

    /// When the server was made, in seconds since 1970.
    pub(crate) fn started(&self) -> u64 {
        self.0.started
    }
}

impl fmt::Debug for AppState {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("AppState").field("phase", &self.phase()).finish_non_exhaustive()
    }
}
