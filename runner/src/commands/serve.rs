//! `atlas serve`: one model behind the HTTP API, in this process.

use crate::engine_host;
use crate::errors::CliError;
use crate::host::ports;
use crate::interrupt::{Interrupt, block_on};
use crate::job::launched::{LaunchEvent, Launched};
use crate::job::record::url_of;
use crate::model::{ModelSource, locate};
use crate::option_flags::OptionFlags;
use crate::output::{GlobalArgs, write_stdout};
use atlas_schemas::serve_options::{OptionSet, Secret, ServeOptions, find};
use clap::Args;
use std::net::{SocketAddr, ToSocketAddrs};
use tokio::net::TcpListener;

/// Serve a model over HTTP from this process.
///
/// The port is bound before the model is loaded; until it is loaded the server answers 503. The first Ctrl-C or
/// SIGTERM lets running answers finish, the second ends the process at once.
#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    /// A model folder, a hub id whose files are in the Hugging Face cache, or `embedded`.
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
        let listener = match bind(&options).await {
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
        let model = locate(&self.model, self.revision.as_deref())?;
        let orphaned = launched.as_mut().map(Launched::orphaned);
        let _ = (global, model, orphaned, interrupt, url_of("", 0));
        Err(CliError::Failed("this build has no engine yet".to_owned()))
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

/// Binds the first address of `host`; a port that is taken is refused with its owner's name.
async fn bind(options: &ServeOptions) -> Result<TcpListener, CliError> {
    let address = socket_address(&options.host, options.port)?;
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
    let owner = ports::listener(address).map(|owner| format!(" by {owner}")).unwrap_or_default();
    format!("port {} is in use{owner}; stop it, or take another port with `--port N` (0: any free one)", address.port())
}
