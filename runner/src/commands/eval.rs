//! `atlas eval`: what the engine computes, exactly, for comparison with references.

use super::device_args::DeviceArgs;
use super::eval_tasks::{CasesArgs, PerplexityArgs};
use crate::engine_host;
use crate::errors::CliError;
use crate::output::{GlobalArgs, print_json, write_bytes};
use atlas_engine::model::{LoadOptions, Model};
use atlas_engine::session::Session;
use atlas_gates::suites::cases::Task;
use clap::{Args, Subcommand};
use safetensors::tensor::{Dtype, TensorView};
use serde_json::json;
use std::path::{Path, PathBuf};

/// What to compute.
#[derive(Debug, Subcommand)]
pub(crate) enum EvalCommand {
    /// Logits of every token of a prompt, f32 `[tokens, vocabulary]`, into a safetensors file.
    Logits(LogitsArgs),
    /// Greedy token ids after a prompt; end-of-sequence does not stop it.
    Generate(GenerateArgs),
    /// Accuracy of function calls.
    Tools(CasesArgs),
    /// Accuracy of exact answers.
    Qa(CasesArgs),
    /// Perplexity of a text.
    Perplexity(PerplexityArgs),
}

impl EvalCommand {
    /// Runs the evaluation.
    pub(crate) fn run(self, global: &GlobalArgs) -> Result<(), CliError> {
        match self {
            Self::Logits(args) => args.run(global),
            Self::Generate(args) => args.run(global),
            Self::Tools(args) => args.run(Task::Tools, global),
            Self::Qa(args) => args.run(Task::Qa, global),
            Self::Perplexity(args) => args.run(global),
        }
    }
}

/// The model, the prompt and how they are computed.
#[derive(Debug, Args)]
struct Common {
    /// Model folder, or `embedded`.
    model: String,
    /// JSON array of token ids.
    #[arg(long, value_name = "FILE.json")]
    tokens: PathBuf,
    /// Tokens computed at once; the result does not depend on it.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    chunk: Option<u32>,
    #[command(flatten)]
    how: DeviceArgs,
    /// Threads; all cores unless told.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
}

impl Common {
    fn prompt(&self) -> Result<Vec<u32>, CliError> {
        let fail = |message: String| CliError::Failed(format!("{}: {message}", self.tokens.display()));
        let text = std::fs::read(&self.tokens).map_err(|error| fail(error.to_string()))?;
        let tokens: Vec<u32> = serde_json::from_slice(&text)
            .map_err(|error| fail(format!("expected a JSON array of token ids: {error}")))?;
        if tokens.is_empty() {
            return Err(fail("the array of token ids is empty".into()));
        }
        Ok(tokens)
    }

    fn load(&self, context: usize) -> Result<Model, CliError> {
        let mut options = LoadOptions { context: Some(context), step_rows: self.chunk(), ..self.how.load_options() };
        if let Some(threads) = self.threads {
            options.threads = threads.into();
        }
        let model = Model::load(&engine_host::open(&self.model)?, &options, |_, _| {})?;
        model.spec.warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
        Ok(model)
    }

    fn chunk(&self) -> usize {
        self.chunk.unwrap_or(512) as usize
    }
}

/// Arguments of `eval logits`.
#[derive(Debug, Args)]
pub(crate) struct LogitsArgs {
    #[command(flatten)]
    common: Common,
    /// The file to write.
    #[arg(long, value_name = "FILE.safetensors")]
    out: PathBuf,
}

impl LogitsArgs {
    fn run(self, global: &GlobalArgs) -> Result<(), CliError> {
        let tokens = self.common.prompt()?;
        let mut model = self.common.load(tokens.len())?;
        let logits = Session::new(&mut model)?.all_logits(&tokens, self.common.chunk())?;
        let shape = vec![tokens.len(), model.spec.vocab];
        write_tensor(&self.out, "logits", &shape, &logits)?;
        if global.json {
            print_json(&json!({ "out": self.out, "shape": shape }));
        }
        Ok(())
    }
}

/// Arguments of `eval generate`.
#[derive(Debug, Args)]
pub(crate) struct GenerateArgs {
    #[command(flatten)]
    common: Common,
    /// How many tokens.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    max_tokens: u32,
}

impl GenerateArgs {
    fn run(self, global: &GlobalArgs) -> Result<(), CliError> {
        let tokens = self.common.prompt()?;
        let count = self.max_tokens as usize;
        let mut model = self.common.load(tokens.len() + count)?;
        let generated = Session::new(&mut model)?.greedy(&tokens, count, self.common.chunk())?;
        if global.json {
            print_json(&json!({ "tokens": generated }));
        } else {
            let words: Vec<String> = generated.iter().map(u32::to_string).collect();
            crate::output::write_stdout(&(words.join(" ") + "\n"));
        }
        Ok(())
    }
}

/// Writes one f32 tensor; the file appears whole or not at all.
fn write_tensor(path: &Path, name: &str, shape: &[usize], values: &[f32]) -> Result<(), CliError> {
    let fail = |error: String| CliError::Failed(format!("{}: {error}", path.display()));
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    let view = TensorView::new(Dtype::F32, shape.to_vec(), &bytes).map_err(|error| fail(error.to_string()))?;
    let file = safetensors::serialize([(name, view)], None).map_err(|error| fail(error.to_string()))?;
    write_bytes(path, &file)
}
