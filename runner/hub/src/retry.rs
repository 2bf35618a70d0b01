//! How often something may fail before it is given up.

use crate::error::HubError;
use crate::events::{Event, Observer};
use crate::limits::Limits;
use std::time::Duration;

/// Failures of one thing, in a row.
#[derive(Debug, Default)]
pub(crate) struct Attempts {
    failures: u32,
    progress: u64,
}

impl Attempts {
    /// Counts a failure and pauses, or gives up. `progress` is a number that grows while things go well; each time it
    /// has grown enough the count begins again, so the number of attempts is bounded by the bytes there are.
    pub(crate) async fn failed(
        &mut self,
        limits: &Limits,
        observer: &dyn Observer,
        what: &str,
        cause: String,
        after: Option<Duration>,
        progress: u64,
    ) -> Result<(), HubError> {
        if progress >= self.progress.saturating_add(limits.progress) {
            (self.failures, self.progress) = (0, progress);
        }
        self.failures += 1;
        if self.failures >= limits.failures {
            return Err(HubError::GaveUp { what: what.to_owned(), failures: self.failures, last: cause });
        }
        let growing = limits.backoff.saturating_mul(1 << (self.failures - 1).min(16));
        let pause = after.unwrap_or(growing).min(limits.max_pause);
        tracing::debug!(what, cause, ?pause, "trying again");
        observer.event(Event::Retry { what, cause: &cause, pause });
        tokio::time::sleep(pause).await;
        Ok(())
    }
}
