//! The `atlas` binary: from a recipe's name to a verified, running model.

mod commands;
mod errors;
mod output;
mod recipe;

use clap::Parser;
use errors::CliError;
use std::process::ExitCode;

/// Runs large language models on the machines people own, from a declarative recipe.
#[derive(Debug, Parser)]
#[command(name = "atlas", version, propagate_version = true, arg_required_else_help = true)]
struct Cli {
    #[command(flatten)]
    global: output::GlobalArgs,
    #[command(subcommand)]
    command: commands::Command,
}

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() { errors::USAGE } else { 0 });
        }
    };
    cli.global.init();
    match cli.command.run(&cli.global) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            errors::report(&error, &cli.global);
            ExitCode::from(CliError::exit_code(&error))
        }
    }
}
