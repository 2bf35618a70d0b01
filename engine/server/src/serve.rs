//! Listening, connections and their limits, and the way to a stop.

use crate::config::{ConfigError, Limits};
use crate::router::router;
use crate::stall::StallTimeout;
use crate::state::{AppState, Phase};
use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;

/// After the last answer, connections may take so long to close.
const LINGER: Duration = Duration::from_millis(500);
/// After the last answer of a connection, its client may go on sending so long.
const LISTENING_ON: Duration = Duration::from_secs(2);
/// After the engine is lost, clients may take so long to be told.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// Why serving ended, other than by the signal to stop.
#[derive(Debug, Error)]
pub enum ServeError {
    /// The configuration must not be served at this address.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The listener is unusable.
    #[error("the listening socket failed: {0}")]
    Listener(#[from] io::Error),
    /// The engine stopped working; its clients have been told.
    #[error("the engine stopped working: {0}")]
    EngineLost(&'static str),
}

/// Serves until `shutdown` completes and running generations have ended, or the engine is lost.
///
/// The model may come later, through [`AppState::set_model`]; until then requests are answered with 503.
pub async fn serve(
    listener: TcpListener,
    state: AppState,
    shutdown: impl Future<Output = ()>,
) -> Result<(), ServeError> {
    let bound = listener.local_addr()?;
    state.config().check_bind(bound)?;
    let app = router(state.clone(), bound);
    let (closing, _) = watch::channel(false);
    let mut connections = JoinSet::new();
    let outcome = {
        let accepting = accept_all(&listener, app, &state.config().limits, &mut connections, &closing);
        tokio::select! {
            never = accepting => match never {},
            outcome = until_the_end(&state, shutdown) => outcome,
        }
    };
    drop(listener);
    closing.send_replace(true);
    let all_closed = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(LINGER, all_closed).await.is_err() {
        connections.shutdown().await;
    }
    outcome
}

/// Completes when serving is over: stopped as asked, with running requests finished, or the engine lost.
async fn until_the_end(state: &AppState, shutdown: impl Future<Output = ()>) -> Result<(), ServeError> {
    tokio::select! {
        () = shutdown => {
            let grace = state.config().limits.shutdown_grace;
            state.stop(Instant::now() + grace);
            // The engine ends its generations at the deadline; a moment more lets their last words go out.
            if tokio::time::timeout(grace + LINGER, state.idle()).await.is_err() {
                tracing::warn!("requests were still running at the end of the grace period");
            }
            Ok(())
        }
        cause = watch_engine(state) => {
            tracing::error!(cause, "the engine is lost");
            state.set_failed();
            let _ = tokio::time::timeout(LAST_WORDS, state.idle()).await;
            Err(ServeError::EngineLost(cause))
        }
    }
}

/// Completes when the engine has failed, or has had running requests without a step for too long.
async fn watch_engine(state: &AppState) -> &'static str {
    let stall = state.config().limits.stall_timeout;
    let mut ticks = tokio::time::interval((stall / 10).clamp(Duration::from_millis(10), Duration::from_secs(1)));
    let mut progress = (0, Instant::now());
    loop {
        tokio::select! {
            () = state.engine_lost() => return "it failed",
            _ = ticks.tick() => {}
        }
        let Some(model) = state.model() else { continue };
        let stats = model.engine.stats();
        if stats.running == 0 || stats.steps != progress.0 {
            progress = (stats.steps, Instant::now());
        } else if progress.1.elapsed() > stall && state.phase() == Phase::Ready {
            return "it has made no step for too long";
        }
    }
}

enum Never {}

/// Accepts connections, no more at a time than the limit, each on its own task.
async fn accept_all(
    listener: &TcpListener,
    app: Router,
    limits: &Limits,
    connections: &mut JoinSet<()>,
    closing: &watch::Sender<bool>,
) -> Never {
    let places = Arc::new(Semaphore::new(limits.max_connections.clamp(1, Semaphore::MAX_PERMITS)));
    loop {
        let place = tokio::select! {
            Ok(place) = places.clone().acquire_owned() => place,
            Some(_) = connections.join_next() => continue,
        };
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(_) = connections.join_next() => continue,
        };
        match accepted {
            Ok((stream, _)) => {
                connections.spawn(connection(stream, app.clone(), limits.clone(), closing.subscribe(), place));
            }
            Err(error) => {
                // Out of file descriptors, or the peer has gone already: neither ends the server.
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

/// Serves one connection until it closes, or is closed after the answer at hand.
async fn connection(
    stream: TcpStream,
    app: Router,
    limits: Limits,
    mut closing: watch::Receiver<bool>,
    _place: OwnedSemaphorePermit,
) {
    if let Err(error) = tune(&stream) {
        tracing::debug!(%error, "socket options could not be set");
    }
    let io = TokioIo::new(StallTimeout::new(stream, limits.write_timeout));
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(limits.header_timeout)
        .max_headers(limits.max_headers)
        .max_header_size(limits.max_header_bytes)
        // A closed read side means that the client has gone: its request is dropped at once.
        .half_close(false);
    let mut serving = http.serve_connection(io, TowerToHyperService::new(app));
    let ended = tokio::select! {
        ended = poll_fn(|context| serving.poll_without_shutdown(context)) => ended,
        () = told_to_close(&mut closing) => {
            std::pin::Pin::new(&mut serving).graceful_shutdown();
            poll_fn(|context| serving.poll_without_shutdown(context)).await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection ended early");
    }
    let stream = serving.into_parts().io.into_inner();
    tokio::select! {
        () = close_gently(stream) => {}
        () = told_to_close(&mut closing) => {}
    }
}

async fn told_to_close(closing: &mut watch::Receiver<bool>) {
    drop(closing.wait_for(|closing| *closing).await);
}

/// Ends the sending side, and reads on for a moment.
///
/// Closing a socket whose client is still sending destroys the answer on its way to the client, who would see a reset
/// connection instead of, say, 401.
async fn close_gently(mut stream: impl AsyncRead + AsyncWrite + Unpin) {
    let closing = async {
        stream.shutdown().await?;
        tokio::io::copy(&mut stream, &mut tokio::io::sink()).await
    };
    let _ = tokio::time::timeout(LISTENING_ON, closing).await;
}

/// Small writes go out at once (tokens are small), and a peer that vanished without a word is noticed.
fn tune(stream: &TcpStream) -> io::Result<()> {
    use rustix::net::sockopt;
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, Duration::from_secs(30))?;
    sockopt::set_tcp_keepintvl(stream, Duration::from_secs(10))?;
    sockopt::set_tcp_keepcnt(stream, 3)?;
    Ok(())
}
