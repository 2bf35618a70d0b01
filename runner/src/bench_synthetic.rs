//! `atlas bench --synthetic`: the engine on random weights of a given configuration, through the same scheduler that
//! serves requests.

use crate::errors::CliError;
use atlas_engine::config::{ModelSpec, Quantization, WeightFormat};
use atlas_engine::engine::{EngineHandle, GenerateEvent, GenerateRequest};
use atlas_engine::model::{LoadOptions, Model};
use atlas_engine::plan::{Op, StateLayerSpec};
use atlas_engine::sampling::SamplingParams;
use atlas_engine::worker::{EngineOptions, start};
use atlas_engine::{blocks, families};
use atlas_gates::stats::median;
use atlas_gates::suites::throughput::{Stream, decode_rate};
use atlas_schemas::bench::{BenchRaw, BenchRow, PrefillFlops};
use std::path::Path;
use std::time::{Duration, Instant};

/// The most tokens of a step.
const STEP_TOKENS: usize = 4096;

/// One combination to measure.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) prompt: u32,
    pub(crate) decode: u32,
    pub(crate) concurrency: u32,
}

/// A synthetic model and what a token of it reads.
pub(crate) struct Synthetic {
    spec: ModelSpec,
    /// Bytes of weights that one decoded token reads.
    pub(crate) bytes_per_token: u64,
    /// Bytes of keys and values that each cached token adds to a decode step.
    kv_bytes_per_token: u64,
    /// Bytes of matrix states that a decode step of one sequence reads.
    state_bytes: u64,
    /// Operations of a prompt token's linear layers, without the output projection.
    linear_flops_per_token: u64,
    /// Operations that a query of every attention layer spends on each cached token.
    attention_flops_per_cached: u64,
    options: LoadOptions,
}

impl Synthetic {
    /// Reads a `config.json` (or a folder that holds one). `format` replaces the declared weight format of
    /// projections.
    pub(crate) fn read(config: &Path, format: Option<WeightFormat>, options: LoadOptions) -> Result<Self, CliError> {
        let path = if config.is_dir() { config.join("config.json") } else { config.to_owned() };
        let shown = path.display().to_string();
        let text = std::fs::read(&path).map_err(|error| CliError::Failed(format!("{shown}: {error}")))?;
        let value: serde_json::Value = serde_json::from_slice(&text)
            .map_err(|error| CliError::Failed(format!("{shown}: line {}: {error}", error.line())))?;
        let mut quantization = Quantization::read(&shown, &value, None)?;
        match format {
            Some(WeightFormat::Nvfp4) if quantization.quantized.is_none() => {
                quantization.quantized = Some(WeightFormat::Nvfp4);
                quantization.excluded = vec!["lm_head".into(), "*in_proj_a".into(), "*in_proj_b".into()];
            }
            Some(WeightFormat::Nvfp4) | None => {}
            Some(dense) => quantization = Quantization { dense, quantized: None, excluded: Vec::new() },
        }
        let spec = families::read(&shown, &value, quantization)?;
        let plan = blocks::lower(&spec);
        let costs = plan.costs(|param| param.bytes(), options.kv_dtype.bytes(), 16);
        let bytes_per_token = costs.iter().map(|(_, cost)| cost.weight_bytes_per_token).sum();
        let kv_bytes_per_token = costs.iter().map(|(_, cost)| cost.kv_bytes_per_token).sum();
        let state = |layer: &StateLayerSpec| 4 * layer.value_heads * layer.key_dim * layer.value_dim;
        let state_bytes = plan.state_layers.iter().map(state).sum::<usize>() as u64;
        let linear = |op: &Op| match op {
            Op::Linear { parts, out, .. } if out.buffer != plan.logits.buffer => {
                parts.iter().map(|part| 2 * part.n * part.k).sum()
            }
            _ => 0,
        };
        let attention = |op: &Op| match op {
            Op::Attention { layout, .. } => 4 * layout.heads * layout.head_dim,
            _ => 0,
        };
        let sum = |of: &dyn Fn(&Op) -> usize| plan.ops.iter().map(|planned| of(&planned.op)).sum::<usize>() as u64;
        let (linear_flops_per_token, attention_flops_per_cached) = (sum(&linear), sum(&attention));
        Ok(Self {
            spec,
            bytes_per_token,
            kv_bytes_per_token,
            state_bytes,
            linear_flops_per_token,
            attention_flops_per_cached,
            options,
        })
    }

    /// Measures one combination: a warm-up, then `runs` runs. `bandwidth` is the machine's, in bytes a second.
    pub(crate) fn measure(&self, shape: Shape, runs: u32, bandwidth: f64) -> Result<BenchRow, CliError> {
        let context = (shape.prompt + shape.decode) as usize;
        let options = LoadOptions {
            sequences: shape.concurrency as usize,
            context: Some(context.next_multiple_of(16).min(self.spec.max_positions)),
            // Few steps for all prompts, so that the streams come to decode together.
            step_rows: (shape.prompt as usize * shape.concurrency as usize).clamp(512, STEP_TOKENS),
            ..self.options
        };
        let model = Model::synthetic(self.spec.clone(), &options, 1)?;
        let limits = EngineOptions {
            max_sequences: options.sequences,
            max_step_tokens: options.step_rows,
            // Every run computes its whole prompt.
            prefix_caching: false,
            ..EngineOptions::default()
        };
        let engine = start(model, limits).map_err(|error| CliError::Failed(error.to_string()))?;
        let mut raw = BenchRaw::default();
        for run in 0..=runs {
            let times = self.run(&engine, shape)?;
            if run > 0 {
                raw.prefill_tok_s.push(times.prefill_tok_s(shape));
                raw.decode_tok_s.push(times.decode_tok_s(shape));
                raw.ttft_ms.push(times.ttft_ms());
            }
        }
        engine.shutdown(Instant::now());
        let decode_tok_s = median(&raw.decode_tok_s);
        // One step serves all streams, so its weights are read once for all of them; caches belong to each.
        let mean_context = u64::from(shape.prompt + shape.decode / 2);
        let cached = self.kv_bytes_per_token * mean_context + self.state_bytes;
        let step_bytes = self.bytes_per_token + u64::from(shape.concurrency) * cached;
        let bound = bandwidth / step_bytes.max(1) as f64 * f64::from(shape.concurrency);
        // A token attends to itself and all before it.
        let prompt = u64::from(shape.prompt);
        let prefill_flops = PrefillFlops {
            linear: prompt * self.linear_flops_per_token,
            attention: prompt * (prompt + 1) / 2 * self.attention_flops_per_cached,
        };
        Ok(BenchRow {
            prompt_tokens: shape.prompt,
            decode_tokens: shape.decode,
            concurrency: shape.concurrency,
            runs,
            prefill_tok_s: median(&raw.prefill_tok_s),
            decode_tok_s,
            ttft_ms: median(&raw.ttft_ms),
            weight_bytes_per_token: Some(self.bytes_per_token),
            bytes_per_step: Some(step_bytes),
            prefill_flops: Some(prefill_flops),
            decode_roofline_fraction: Some(decode_tok_s / bound),
            raw,
        })
    }

    fn run(&self, engine: &EngineHandle, shape: Shape) -> Result<Times, CliError> {
        let submitted = Instant::now();
        let request = |stream: u32| GenerateRequest {
            id: format!("bench-{stream}"),
            prompt: (0..shape.prompt).map(|i| (i * 7 + stream * 13 + 1) % self.spec.vocab as u32).collect(),
            max_tokens: shape.decode as usize,
            sampling: SamplingParams::default(),
            grammar: None,
            stop_tokens: Vec::new(),
            logprobs: None,
            prompt_logprobs: None,
            deadline: None,
        };
        let failed = |error: String| CliError::Failed(format!("the engine refused the benchmark: {error}"));
        let streams: Result<Vec<_>, _> = (0..shape.concurrency).map(|stream| engine.submit(request(stream))).collect();
        let threads: Vec<_> = (streams.map_err(|error| failed(error.to_string()))?.into_iter())
            .map(|mut stream| {
                std::thread::spawn(move || {
                    let mut arrivals = Vec::new();
                    while let Some(event) = stream.blocking_next() {
                        match event {
                            GenerateEvent::Token(_) => arrivals.push(submitted.elapsed()),
                            GenerateEvent::Failed(message) => return Err(message),
                            _ => {}
                        }
                    }
                    if arrivals.is_empty() { Err("no token came".to_owned()) } else { Ok(arrivals) }
                })
            })
            .collect();
        let arrivals: Result<Vec<_>, _> = (threads.into_iter())
            .map(|thread| thread.join().map_err(|_| failed("a reader panicked".into()))?.map_err(failed))
            .collect();
        Ok(Times { arrivals: arrivals? })
    }
}

/// When each stream's tokens came in one run, since all were submitted.
struct Times {
    arrivals: Vec<Vec<Duration>>,
}

impl Times {
    fn firsts(&self) -> Vec<f64> {
        self.arrivals.iter().filter_map(|stream| stream.first()).map(Duration::as_secs_f64).collect()
    }

    /// All prompts, until the last stream has its first token.
    fn prefill_tok_s(&self, shape: Shape) -> f64 {
        f64::from(shape.prompt * shape.concurrency) / self.firsts().into_iter().fold(0.0, f64::max)
    }

    /// As for a served model.
    fn decode_tok_s(&self, shape: Shape) -> f64 {
        let end = |arrivals: &Vec<Duration>| arrivals.last().copied().unwrap_or_default();
        let streams: Vec<Stream<'_>> = (self.arrivals.iter())
            .map(|arrivals| Stream { arrivals, end: end(arrivals), tokens: shape.decode })
            .collect();
        decode_rate(&streams)
    }

    /// Median over the streams, in milliseconds.
    fn ttft_ms(&self) -> f64 {
        1e3 * median(&self.firsts())
    }
}
