//! Ctrl-C and SIGTERM as something to wait for, so that every stage of a command can clean up before it ends.

use crate::errors::CliError;
use std::future::Future;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

/// Counts the signals that ask this process to end (SIGINT, SIGTERM, SIGHUP). Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Interrupt {
    count: watch::Receiver<u32>,
}

impl Interrupt {
    /// Takes the signals over; from here on they no longer end the process by themselves. Needs a runtime with a
    /// worker of its own, so that signals are counted while the command's own thread is busy.
    pub(crate) fn install() -> Result<Self, CliError> {
        let listen = |kind| signal(kind).map_err(|error| CliError::Failed(format!("cannot handle signals: {error}")));
        let mut interrupt = listen(SignalKind::interrupt())?;
        let mut terminate = listen(SignalKind::terminate())?;
        let mut hangup = listen(SignalKind::hangup())?;
        let (sender, count) = watch::channel(0);
        tokio::spawn(async move {
            loop {
                tokio::select! {
                    _ = interrupt.recv() => {}
                    _ = terminate.recv() => {}
                    _ = hangup.recv() => {}
                }
                sender.send_modify(|count| *count += 1);
            }
        });
        Ok(Self { count })
    }

    /// Resolves once `times` signals have come since the start.
    pub(crate) async fn received(&self, times: u32) {
        let mut count = self.count.clone();
        if count.wait_for(|count| *count >= times).await.is_err() {
            // The listener ends only with the runtime.
            std::future::pending::<()>().await;
        }
    }

    /// An error once a signal has come; for use between steps that do not wait.
    pub(crate) fn check(&self) -> Result<(), CliError> {
        if *self.count.borrow() > 0 { Err(CliError::Interrupted) } else { Ok(()) }
    }

    /// Drives `work`, but gives up at the first signal.
    pub(crate) async fn or<T>(&self, work: impl Future<Output = T>) -> Result<T, CliError> {
        tokio::select! {
            biased;
            () = self.received(1) => Err(CliError::Interrupted),
            value = work => Ok(value),
        }
    }
}

/// Runs a command's future on a runtime of its own.
pub(crate) fn block_on<T>(work: impl Future<Output = Result<T, CliError>>) -> Result<T, CliError> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .map_err(|error| CliError::Failed(format!("cannot start the async runtime: {error}")))?;
    let result = runtime.block_on(work);
    // A task that still blocks (a read of a terminal, for one) must not hold up the end.
    runtime.shutdown_background();
    result
}
