//! The `atlas` binary: from a recipe's name to a verified, running model.

mod bench_synthetic;
mod commands;
mod embedded;
mod engine_host;
mod errors;
mod fetch;
mod host;
mod http;
mod interrupt;
mod job;
mod memory_fit;
mod model;
mod option_flags;
mod output;
mod progress;
mod recipe;
mod run;
mod serve_config;
mod target;

use atlas_schemas::serve_options::normalise_args;
use clap::Parser;
use errors::CliError;
use std::ffi::OsString;
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
    std::panic::set_hook(Box::new(|panic| {
        // The message may quote a prompt or a key; the place is enough for a report.
        let place = panic.location().map(ToString::to_string).unwrap_or_default();
        eprintln!("internal error at {place}; please report it");
    }));
    let cli = match Cli::try_parse_from(arguments()) {
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

/// The command line; the flags of `serve` in one form, whichever of the peers' forms they were written in.
fn arguments() -> Vec<OsString> {
    let words: Vec<OsString> = std::env::args_os().collect();
    let command = words.iter().skip(1).find(|word| !word.to_string_lossy().starts_with('-'));
    if command.is_none_or(|command| command != "serve") {
        return words;
    }
    let texts: Option<Vec<String>> = words.iter().map(|word| word.to_str().map(str::to_owned)).collect();
    texts.map_or(words, |texts| normalise_args(texts).into_iter().map(OsString::from).collect())
}
