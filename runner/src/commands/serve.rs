//! `atlas serve`: one model behind the HTTP API, in this process.

use crate::engine_host;
use crate::errors::CliError;
use crate::fetch::ready;
use crate::host::ports;
use crate::interrupt::{Interrupt, block_on};
use crate::job::launched::{LaunchEvent, Launched};
use crate::job::record::url_of;
use crate::job::store::JobStore;
use crate::option_flags::OptionFlags;
use crate::output::{GlobalArgs, print_json_line, write_stdout};
use crate::serve_config::server_config;
use atlas_schemas::outputs::ListeningEvent;
use atlas_schemas::serve_options::{OptionSet, ServeOptions, find};
use atlas_server::{AppState, ServerConfig};
use clap::Args;
use futures_util::FutureExt;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::net::TcpListener;

/// Serve a model over HTTP from this process.
///
/// The port is bound before the model is loaded; until it is loaded the server answers 503. The first Ctrl-C or
/// SIGTERM lets running answers finish, the second ends the process at once.
#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    /// A model folder, a hub id (`owner/name`, `owner/name@revision`; fetched if it is not in the Hugging Face cache),
    /// or `embedded`.
    model: String,
    /// Hub revision: a branch, a tag or a commit.
    #[arg(long, value_name = "REVISION")]
    revision: Option<String>,
    #[command(flatten)]
    options: OptionFlags,
}

impl ServeArgs {
    /// Serves until a signal comes.
    pub(crate) fn run(self, global: &GlobalArgs) -> Result<(), CliError> {
        let launched = Launched::receive()?;
        let note = launched.as_ref().map(Launched::note);
        let result = block_on(self.serve(global, launched));
        if let Some(note) = note {
            note.leave(&result);
        }
        result
    }

    async fn serve(self, global: &GlobalArgs, mut launched: Option<Launched>) -> Result<(), CliError> {
        let interrupt = Interrupt::install()?;
        let options = complete(self.options.0, launched.as_ref())?;
        let free = async || port_is_free(&options).await;
        let model = ready(&self.model, self.revision.as_deref(), free, &interrupt, global.quiet).await?;
        let config = server_config(&options, &engine_host::generation_config(&model)?, &self.model)?;
        let name = config.model_name.clone();
        let listener = match bind(&options, &config).await {
            Ok(listener) => listener,
            Err(error) => {
                if let Some(launched) = &launched {
                    launched.tell(&LaunchEvent::PortRefused { message: error.to_string() });
                }
                return Err(error);
            }
        };
        let address = listener.local_addr().map_err(|error| CliError::Failed(format!("the bound address: {error}")))?;
        if let Some(launched) = &launched {
            launched.tell(&LaunchEvent::Bound { host: address.ip().to_string(), port: address.port() });
        }
        tracing::info!(%address, model = name, "the port is bound, the model is being loaded");

        let mut ending = Ending::new(&interrupt, launched.as_mut());
        let state = AppState::new(config);
        let mut serving = std::pin::pin!(atlas_server::serve(listener, state.clone(), ending.signal()));
        let loading = tokio::task::spawn_blocking(move || engine_host::start(&model, &options));
        let served = tokio::select! {
            served = serving.as_mut() => served,
            loaded = loading => {
                let loaded = loaded.map_err(|error| CliError::Failed(format!("loading the model panicked: {error}")))?;
                state.set_model(loaded?);
                announce(&url_of(&address.ip().to_string(), address.port()), address, &name, global, launched.is_some());
                serving.await
            }
        };
        served.map_err(|error| CliError::Failed(error.to_string()))?;
        Err(ending.cause())
    }
}

/// The one line that says that requests are answered now. A launched server's stdout belongs to its launcher.
fn announce(url: &str, address: SocketAddr, model: &str, global: &GlobalArgs, launched: bool) {
    match (launched, global.json) {
        (true, _) => tracing::info!(url, model, "listening"),
        (false, true) => {
            print_json_line(&ListeningEvent {
                event: "listening".to_owned(),
                url: url.to_owned(),
                host: address.ip().to_string(),
                port: address.port(),
                model: model.to_owned(),
            });
        }
        (false, false) => write_stdout(&format!("listening on {url}\n")),
    }
}

/// What ends the server: a signal, or the loss of its launcher.
struct Ending {
    interrupt: Interrupt,
    orphaned: Option<futures_util::future::BoxFuture<'static, ()>>,
    lost_launcher: Arc<AtomicBool>,
}

impl Ending {
    fn new(interrupt: &Interrupt, launched: Option<&mut Launched>) -> Self {
        let orphaned = launched.map(|launched| launched.orphaned().boxed());
        let again = interrupt.clone();
        tokio::spawn(async move {
            again.received(2).await;
            std::process::exit(CliError::Interrupted.exit_code().into());
        });
        Self { interrupt: interrupt.clone(), orphaned, lost_launcher: Arc::default() }
    }

    /// Completes when it is time to end.
    fn signal(&mut self) -> impl Future<Output = ()> + use<> {
        let (interrupt, lost) = (self.interrupt.clone(), self.lost_launcher.clone());
        let orphaned = self.orphaned.take().unwrap_or_else(|| std::future::pending().boxed());
        async move {
            tokio::select! {
                () = interrupt.received(1) => {}
                () = orphaned => lost.store(true, Ordering::Relaxed),
            }
        }
    }

    /// Why the server ended, once it has.
    fn cause(&self) -> CliError {
        match self.lost_launcher.load(Ordering::Relaxed) {
            true => CliError::Failed("the launcher went away".to_owned()),
            false => CliError::Interrupted,
        }
    }
}

/// The options with the secrets that came over stdin.
fn complete(mut set: OptionSet, launched: Option<&Launched>) -> Result<ServeOptions, CliError> {
    for (key, value) in launched.into_iter().flat_map(|launched| &launched.secrets) {
        let spec = find(key).ok_or_else(|| CliError::Failed(format!("launch message: unknown option `{key}`")))?;
        set.set_text(spec, value).map_err(|error| CliError::Usage(error.to_string()))?;
    }
    Ok(set.resolve())
}

/// A port that is taken is refused before anything is fetched.
async fn port_is_free(options: &ServeOptions) -> Result<(), CliError> {
    let address = socket_address(&options.host, options.port)?;
    listen(address).await.map(drop)
}

/// Binds the first address of `host`; a port that is taken is refused with its owner's name.
async fn bind(options: &ServeOptions, config: &ServerConfig) -> Result<TcpListener, CliError> {
    let address = socket_address(&options.host, options.port)?;
    config.check_bind(address).map_err(|error| CliError::Refused(error.to_string()))?;
    listen(address).await
}

async fn listen(address: SocketAddr) -> Result<TcpListener, CliError> {
    TcpListener::bind(address).await.map_err(|error| match error.kind() {
        std::io::ErrorKind::AddrInUse => CliError::Refused(port_in_use(address)),
        std::io::ErrorKind::PermissionDenied => {
            CliError::Refused(format!("not permitted to listen on port {}; take one above 1023", address.port()))
        }
        _ => CliError::Refused(format!("cannot listen on {address}: {error}")),
    })
}

/// What `host` and `port` mean as a socket address.
pub(crate) fn socket_address(host: &str, port: u16) -> Result<SocketAddr, CliError> {
    let addresses = (host.trim_start_matches('[').trim_end_matches(']'), port).to_socket_addrs();
    let first = addresses.ok().and_then(|mut addresses| addresses.next());
    first.ok_or_else(|| CliError::Usage(format!("--host: `{host}` is not an address of this machine")))
}

/// Says whose a port is and what to do.
pub(crate) fn port_in_use(address: SocketAddr) -> String {
    let listener = ports::listener(address);
    let job = listener.as_ref().and_then(|listener| JobStore::open().ok()??.job_of_process(listener.pid?));
    let (owner, remedy) = match (job, listener) {
        (Some(job), _) => {
            (format!(" by job {} ({})", job.id, job.recipe), format!("stop it with `atlas stop {}`", job.id))
        }
        (None, Some(listener)) => (format!(" by {listener}"), "stop it".to_owned()),
        (None, None) => (String::new(), "stop what uses it".to_owned()),
    };
    format!(
        "port {} is in use{owner}; {remedy}, or take another port with `--port N` (0: any free one)",
        address.port()
    )
}
