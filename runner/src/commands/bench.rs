//! `atlas bench`: speed of an endpoint, a model or a recipe, in every combination asked for.

use super::device_args::DeviceArgs;
use crate::bench_synthetic::{Shape, Synthetic};
use crate::errors::CliError;
use crate::interrupt::{Interrupt, block_on};
use crate::output::{GlobalArgs, print_json, write_stdout};
use crate::target::{Target, YARDSTICK, binary_sha256, measured};
use atlas_engine::backend::{DeviceKind, cuda};
use atlas_engine::config::WeightFormat;
use atlas_gates::bench::{self, BenchPlan};
use atlas_gates::probe;
use atlas_gates::progress::Progress;
use atlas_schemas::bench::{BenchRecord, MemoryRates};
use clap::{Args, ValueEnum};
use comfy_table::Table;
use indicatif::HumanBytes;
use std::path::{Path, PathBuf};

/// Measure speed.
///
/// Every combination of prompt length, output length and concurrency is one row: medians over the runs, after a
/// warm-up run. Prompts are unlike each other, so that no cache knows them.
#[derive(Debug, Args)]
pub(crate) struct BenchArgs {
    /// A model folder, `embedded`, a recipe, or the URL of a running endpoint.
    #[arg(value_name = "TARGET", required_unless_present = "synthetic")]
    target: Option<Target>,
    /// Measure the engine on seeded random weights of this `config.json` instead, without HTTP.
    #[arg(long, value_name = "CONFIG", conflicts_with = "target")]
    synthetic: Option<PathBuf>,
    /// With --synthetic: the format of the projections' weights; the configuration's own unless told.
    #[arg(long, value_name = "FORMAT", requires = "synthetic", value_enum)]
    weights: Option<Weights>,
    /// With --synthetic: threads of a step; all cores unless told.
    #[arg(long, value_name = "N", requires = "synthetic", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
    #[command(flatten)]
    how: DeviceArgs,
    /// Prompt lengths, in tokens.
    #[arg(long, value_name = "N,..", value_delimiter = ',', default_value = "128,512", value_parser = tokens())]
    prompt: Vec<u32>,
    /// Numbers of tokens to generate.
    #[arg(long, value_name = "N,..", value_delimiter = ',', default_value = "128", value_parser = tokens())]
    decode: Vec<u32>,
    /// Numbers of requests at once.
    #[arg(long, value_name = "N,..", value_delimiter = ',', default_value = "1,4", value_parser = clap::value_parser!(u32).range(1..=1024))]
    concurrency: Vec<u32>,
    /// Runs of each combination.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    runs: u32,
}

fn tokens() -> clap::builder::RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(1..=1 << 20)
}

/// Formats of synthetic weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Weights {
    /// 32-bit float.
    F32,
    /// bfloat16.
    Bf16,
    /// NVFP4 projections; embedding and output projection in bfloat16.
    Nvfp4,
}

impl BenchArgs {
    /// Measures and prints.
    pub(crate) fn run(self, global: &GlobalArgs) -> Result<(), CliError> {
        let record = match (&self.synthetic, &self.target) {
            (Some(config), _) => self.synthetic(config, global),
            (None, Some(target)) => self.served(target, global),
            (None, None) => Err(CliError::Usage("a TARGET or --synthetic CONFIG is needed".to_owned())),
        }?;
        match global.json {
            true => print_json(&record),
            false => write_stdout(&table(&record)),
        }
        Ok(())
    }

    fn synthetic(&self, config: &Path, global: &GlobalArgs) -> Result<BenchRecord, CliError> {
        let progress = Progress::new(!global.quiet);
        let format = self.weights.map(|format| match format {
            Weights::F32 => WeightFormat::F32,
            Weights::Bf16 => WeightFormat::Bf16,
            Weights::Nvfp4 => WeightFormat::Nvfp4,
        });
        let mut options = self.how.load_options();
        options.threads = self.threads.map_or(options.threads, usize::from);
        let model = Synthetic::read(config, format, options)?;
        let rates = match options.device {
            DeviceKind::Cpu => {
                let read = probe::measure(model.bytes_per_token, &YARDSTICK).read_bytes_per_s.median;
                MemoryRates { read_bytes_per_s: read, copy_bytes_per_s: None }
            }
            DeviceKind::Cuda(ordinal) => {
                let (read, copy) = cuda::memory_rates(ordinal)?;
                MemoryRates { read_bytes_per_s: read, copy_bytes_per_s: Some(copy) }
            }
        };
        let bandwidth = rates.read_bytes_per_s;
        progress.line(&format!("reads {:.2} GB/s at {} a token", bandwidth / 1e9, HumanBytes(model.bytes_per_token)));
        let mut record = bench::about(&format!("synthetic {}", config.display()), env!("CARGO_PKG_VERSION"));
        record.memory = Some(rates);
        for prompt in self.prompt.iter().copied() {
            for decode in self.decode.iter().copied() {
                for concurrency in self.concurrency.iter().copied() {
                    progress.line(&format!("prompt {prompt}, decode {decode}, concurrency {concurrency}"));
                    let shape = Shape { prompt, decode, concurrency };
                    record.rows.push(model.measure(shape, self.runs, bandwidth)?);
                }
            }
        }
        Ok(record)
    }

    fn served(&self, target: &Target, global: &GlobalArgs) -> Result<BenchRecord, CliError> {
        let progress = Progress::new(!global.quiet);
        let plan = BenchPlan {
            prompt: self.prompt.clone(),
            decode: self.decode.clone(),
            concurrency: self.concurrency.clone(),
            runs: self.runs,
        };
        block_on(async {
            let interrupt = Interrupt::install()?;
            let mut about = bench::about(&target.to_string(), env!("CARGO_PKG_VERSION"));
            measured(target, &interrupt, async |ready| {
                about.recipe_hash = ready.recipe_hash.clone();
                about.engine_hash = ready.model.as_ref().and_then(|_| binary_sha256());
                let work = ready.work()?;
                let probed = work.weight_bytes.map(|bytes| probe::measure(bytes, &YARDSTICK));
                let bandwidth = probed.map(|probe| probe.read_bytes_per_s.median);
                let record = bench::run(ready.client, &plan, about, work, bandwidth, &progress).await;
                record.map_err(|error| CliError::Failed(error.to_string()))
            })
            .await
        })
    }
}

/// A benchmark for people.
pub(crate) fn table(record: &BenchRecord) -> String {
    let mut table = Table::new();
    table.load_style(comfy_table::presets::UTF8_BORDERS_ONLY);
    table.set_header(["prompt", "decode", "at once", "prefill tok/s", "decode tok/s", "first token ms", "of roofline"]);
    for row in &record.rows {
        table.add_row([
            row.prompt_tokens.to_string(),
            row.decode_tokens.to_string(),
            row.concurrency.to_string(),
            format!("{:.1}", row.prefill_tok_s),
            format!("{:.1}", row.decode_tok_s),
            format!("{:.2}", row.ttft_ms),
            row.decode_roofline_fraction.map_or_else(|| "–".into(), |fraction| format!("{:.1} %", 100.0 * fraction)),
        ]);
    }
    format!("{table}\n")
}
