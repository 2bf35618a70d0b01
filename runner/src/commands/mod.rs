//! One file a subcommand. Each has its `Args` and a `run` that returns when the work is done or has failed.

mod bench;
mod cache;
mod chat;
mod device_args;
mod doctor;
mod eval;
mod eval_tasks;
mod explain;
mod gate;
mod gate_changed;
mod logs;
mod pull;
mod recipe;
mod run;
mod serve;
mod status;
mod stop;

pub(crate) use serve::{port_in_use, socket_address};

use crate::errors::CliError;
use crate::output::GlobalArgs;
use clap::Subcommand;

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Run(Box<run::RunArgs>),
    Serve(Box<serve::ServeArgs>),
    Pull(pull::PullArgs),
    Chat(chat::ChatArgs),
    Status(status::StatusArgs),
    Logs(logs::LogsArgs),
    Stop(stop::StopArgs),
    /// See and clean the models on this machine.
    #[command(subcommand)]
    Cache(cache::CacheCommand),
    Doctor(doctor::DoctorArgs),
    /// Compute exactly what the engine computes, for comparison with references.
    #[command(subcommand)]
    Eval(eval::EvalCommand),
    Explain(explain::ExplainArgs),
    Recipe(recipe::RecipeArgs),
    Bench(bench::BenchArgs),
    /// Measure what a recipe promises, and judge it.
    #[command(subcommand)]
    Gate(gate::GateCommand),
}

impl Command {
    /// Runs the command.
    pub(crate) fn run(self, global: &GlobalArgs) -> Result<(), CliError> {
        match self {
            Self::Run(args) => args.run(global),
            Self::Serve(args) => args.run(global),
            Self::Pull(args) => args.run(global),
            Self::Chat(args) => args.run(global),
            Self::Status(args) => args.run(global),
            Self::Logs(args) => args.run(global),
            Self::Stop(args) => args.run(global),
            Self::Cache(command) => command.run(global),
            Self::Doctor(args) => args.run(global),
            Self::Eval(command) => command.run(global),
            Self::Explain(args) => args.run(global),
            Self::Recipe(args) => args.run(global),
            Self::Bench(args) => args.run(global),
            Self::Gate(command) => command.run(global),
        }
    }
}
