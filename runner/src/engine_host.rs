//! Where the runner meets the engine: a model's files become a served model.

use crate::embedded;
use crate::errors::CliError;
use crate::host::memory::{available, this_machine};
use crate::memory_fit::MemoryNeed;
use crate::model::ModelSource;
use atlas_engine::backend::{ActivationDtype, DeviceKind, cuda};
use atlas_engine::cache::PAGE;
use atlas_engine::config::generation::GenerationConfig;
use atlas_engine::config::hf;
use atlas_engine::errors::EngineError;
use atlas_engine::explain::explain;
use atlas_engine::model::{LoadOptions, Model};
use atlas_engine::schedule::Policy;
use atlas_engine::session::Session;
use atlas_engine::text::chat_template::ChatTemplate;
use atlas_engine::text::parser::{ReasoningFormat, ToolFormat};
use atlas_engine::text::tokenizer::Tokenizer;
use atlas_engine::weights::ModelFiles;
use atlas_engine::worker::{self, EngineOptions};
use atlas_kernels::KvDtype;
use atlas_schemas::serve_options::{
    self as options, Device, KvCacheDtype, KvDtype as KvOption, ReasoningParser, SchedulingPolicy, ServeOptions,
    ToolCallParser,
};
use atlas_server::ServedModel;
use std::time::{Duration, Instant};

/// Largest small file (tokenizer, template, configuration) that is read whole.
const MAX_FILE: u64 = 256 << 20;
/// While weights are read, progress is logged this often.
const PROGRESS: Duration = Duration::from_secs(2);
/// Prompt tokens of a step unless told: prefill is at full speed from here on, and others wait no longer.
const CPU_STEP_TOKENS: usize = 512;
/// The same for GPUs, whose large matrix products need more rows.
const GPU_STEP_TOKENS: usize = 4096;
/// Full contexts for which there is KV memory with prefix caching, for each sequence that runs at once.
const CACHED_CONTEXTS: usize = 4;
/// Checkpoints of recurrent state unless told.
const LEAST_CHECKPOINTS: usize = 16;
const MOST_CHECKPOINTS: usize = 1024;
/// A context shorter than this is of no use.
const LEAST_CONTEXT: usize = 16;

/// Loads the model and starts its engine. Blocks for as long as loading takes.
pub(crate) fn start(model: &ModelSource, options: &ServeOptions) -> Result<ServedModel, CliError> {
    let files = files(model)?;
    // What is cheap to refuse is refused before weights are read.
    let (tokenizer, template) = text(&files, options)?;
    let (tools, reasoning) = formats(template.as_ref().map_or("", |(source, _)| source), options)?;
    let template = template.map(|(_, template)| template);
    let mut sized = size(&files, options)?;
    let loaded = match load(&files, &sized.load) {
        // `auto` means a GPU that can: one that lacks a format or an operation is passed over, visibly.
        Err(EngineError::Unsupported(reason))
            if options.device == Device::Auto && sized.load.device != DeviceKind::Cpu =>
        {
            tracing::warn!("the GPU is not used: {reason}");
            sized = size(&files, &ServeOptions { device: Device::Cpu, ..options.clone() })?;
            load(&files, &sized.load)?
        }
        loaded => loaded?,
    };
    loaded.spec.warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
    let limits = EngineOptions {
        max_queue: options.max_queue as usize,
        max_step_tokens: sized.load.step_rows,
        max_sequences: sized.load.sequences,
        policy: match options.scheduling_policy {
            SchedulingPolicy::Fifo => Policy::Fifo,
            SchedulingPolicy::Slai => Policy::Slai,
        },
        between_tokens: Duration::from_millis(options.tbt_deadline_ms.into()),
        prefix_caching: prefix_caching(options),
        checkpoint_interval: options.ssm_checkpoint_interval as usize * PAGE,
    };
    let engine = worker::start(loaded, limits)
        .map_err(|error| CliError::Failed(format!("the engine's thread cannot be started: {error}")))?;
    Ok(ServedModel::new(engine, tokenizer, template, tools, reasoning))
}

/// Loads a model and logs progress.
fn load(files: &ModelFiles, options: &LoadOptions) -> Result<Model, EngineError> {
    let mut shown = Instant::now();
    Model::load(files, options, |read, total| {
        if shown.elapsed() >= PROGRESS {
            tracing::info!(percent = read * 100 / total.max(1), "reading weights");
            shown = Instant::now();
        }
    })
}

/// What the checkpoint's `generation_config.json` suggests.
pub(crate) fn generation_config(model: &ModelSource) -> Result<GenerationConfig, CliError> {
    Ok(hf::load_generation(&files(model)?)?)
}

/// What serving the model takes at least: its weights, and the caches of one sequence at full context length.
pub(crate) fn memory_need(model: &ModelSource, options: &ServeOptions) -> Result<MemoryNeed, CliError> {
    Ok(size(&files(model)?, options)?.need)
}

/// Generates with the embedded model and compares with its known tokens. Returns what was done.
pub(crate) fn self_test() -> Result<String, CliError> {
    let known = embedded::KNOWN_TOKENS;
    let load = LoadOptions { context: Some(embedded::KNOWN_PROMPT.len() + known.len()), ..LoadOptions::default() };
    let mut model = Model::load(&embedded::files(), &load, |_, _| {})?;
    let tokens = Session::new(&mut model)?.greedy(embedded::KNOWN_PROMPT, known.len(), usize::MAX)?;
    match tokens.iter().zip(known).position(|(token, known)| token != known) {
        None => Ok(format!("generated the {} known tokens of the embedded model", known.len())),
        Some(at) => Err(CliError::Failed(format!(
            "token {at} of the embedded model is {} where {} is known: this machine does not compute right",
            tokens[at], known[at]
        ))),
    }
}

/// A model's files by the name that a user gives it: see [`crate::model::locate`].
pub(crate) fn open(model: &str) -> Result<ModelFiles, CliError> {
    files(&crate::model::locate(model, None)?)
}

fn files(model: &ModelSource) -> Result<ModelFiles, CliError> {
    match model {
        ModelSource::Embedded => Ok(embedded::files()),
        ModelSource::Folder(folder) => Ok(ModelFiles::folder(folder)?),
    }
}

type Template = (String, ChatTemplate);

fn text(files: &ModelFiles, options: &ServeOptions) -> Result<(Tokenizer, Option<Template>), CliError> {
    let missing = || CliError::Failed(format!("{} is missing", files.display("tokenizer.json")));
    let tokenizer_json = files.read("tokenizer.json", MAX_FILE)?.ok_or_else(missing)?;
    let config = files.read("tokenizer_config.json", MAX_FILE)?;
    let tokenizer = Tokenizer::from_bytes(&tokenizer_json, config.as_deref())?;
    let source = match &options.chat_template {
        Some(path) => Some(std::fs::read_to_string(path).map_err(|error| CliError::Usage(format!("{path}: {error}")))?),
        None => match files.read("chat_template.jinja", MAX_FILE)? {
            Some(bytes) => Some(
                String::from_utf8(bytes)
                    .map_err(|_| CliError::Failed(format!("{} is not UTF-8", files.display("chat_template.jinja"))))?,
            ),
            None => tokenizer.chat_template(),
        },
    };
    let Some(source) = source else { return Ok((tokenizer, None)) };
    let template = ChatTemplate::new(&source, tokenizer.bos_token(), tokenizer.eos_token())?;
    Ok((tokenizer, Some((source, template))))
}

/// How the model writes tool calls and reasoning: as told, else as its template shows it.
fn formats(template: &str, options: &ServeOptions) -> Result<(ToolFormat, ReasoningFormat), CliError> {
    let tools = match options.tool_call_parser {
        ToolCallParser::None => ToolFormat::None,
        ToolCallParser::Hermes => ToolFormat::Hermes,
        // A template that shows calls as JSON in these tags; other syntaxes use them too, with other content.
        ToolCallParser::Auto if template.contains("<tool_call>") && !template.contains("<function=") => {
            ToolFormat::Hermes
        }
        ToolCallParser::Auto => ToolFormat::None,
        other => return Err(unsupported("tool_call_parser", other)),
    };
    let reasoning = match options.reasoning_parser {
        ReasoningParser::None => ReasoningFormat::None,
        ReasoningParser::Think => ReasoningFormat::ThinkTags,
        ReasoningParser::Auto if template.contains("<think>") => ReasoningFormat::ThinkTags,
        ReasoningParser::Auto => ReasoningFormat::None,
        other => return Err(unsupported("reasoning_parser", other)),
    };
    Ok((tools, reasoning))
}

/// Options that this build cannot serve with, each as a sentence. They do not depend on the model.
pub(crate) fn unsupported_options(options: &ServeOptions) -> Vec<String> {
    let results = [load_options(options).err(), formats("", options).err()];
    results.into_iter().flatten().map(|error| error.to_string()).collect()
}

fn unsupported(option: &str, value: impl std::fmt::Display) -> CliError {
    CliError::Refused(format!("{option}: `{value}` is not supported by this build"))
}

/// How the model is loaded, and what that needs.
struct Sized {
    load: LoadOptions,
    need: MemoryNeed,
}

/// Fits context and caches into the memory that may be used. Where it does not fit, the need says so.
fn size(files: &ModelFiles, options: &ServeOptions) -> Result<Sized, CliError> {
    let mut load = load_options(options)?;
    let usable = usable_memory(load.device, options.gpu_memory_utilization)?;
    load.checkpoints = checkpoints(files, &load, options, usable)?;
    let explained = explain(files, &load, this_machine())?;
    let (total, sequences) = (explained.total, load.sequences as u64);
    let kv_all = total.kv_bytes_per_token.saturating_mul(explained.context as u64).saturating_mul(sequences);
    // Recurrent state of every sequence and of the prefix cache, and the buffers of a step.
    let state = explained.memory_bytes.saturating_sub(total.weight_bytes).saturating_sub(kv_all);
    let rest = usable.saturating_sub(total.weight_bytes).saturating_sub(state);
    let affordable = rest.checked_div(total.kv_bytes_per_token).map_or(usize::MAX, |tokens| tokens as usize);
    let context = match load.context {
        Some(context) => context,
        // By default the model's own context, as far as memory allows.
        None => (explained.context as usize).min(affordable.max(LEAST_CONTEXT)),
    };
    load.context = Some(context);
    // What sequences leave to the prefix cache should not be evicted by the next ones already. On CPUs memory that was
    // never used costs nothing.
    let share = if prefix_caching(options) && load.device == DeviceKind::Cpu { CACHED_CONTEXTS } else { 1 };
    load.kv_tokens = Some(context.saturating_mul(load.sequences * share).min(affordable).max(context));
    load.step_rows = match options.max_prefill_tokens {
        None if load.device == DeviceKind::Cpu => CPU_STEP_TOKENS,
        None => GPU_STEP_TOKENS.min(context).max(load.sequences),
        Some(0) => context,
        Some(tokens) => tokens as usize,
    };
    let need = MemoryNeed {
        weight_bytes: total.weight_bytes,
        kv_bytes: total.kv_bytes_per_token.saturating_mul(context as u64),
        state_bytes: state,
        context: context as u64,
    };
    Ok(Sized { load, need })
}

fn prefix_caching(options: &ServeOptions) -> bool {
    options.enable_prefix_caching != Some(false)
}

/// Checkpoints of recurrent state for the prefix cache: as many as wanted, as far as a quarter of what weights and
/// sequences leave of the usable memory goes.
fn checkpoints(files: &ModelFiles, load: &LoadOptions, options: &ServeOptions, usable: u64) -> Result<usize, CliError> {
    // On GPUs a sequence that resumes at an anchor has not been tested through the engine: it computes its prompt.
    if !prefix_caching(options) || load.device != DeviceKind::Cpu {
        return Ok(0);
    }
    let bytes = |checkpoints| {
        let least = LoadOptions { checkpoints, sequences: 1, context: load.context.or(Some(LEAST_CONTEXT)), ..*load };
        explain(files, &least, this_machine()).map(|explained| explained.memory_bytes)
    };
    let without = bytes(0)?;
    let each = bytes(1)? - without;
    if each == 0 {
        return Ok(0);
    }
    let wanted = match options.ssm_cache_slots {
        Some(slots) => slots as usize,
        None => ((usable / 16 / each) as usize).clamp(LEAST_CHECKPOINTS, MOST_CHECKPOINTS),
    };
    let room = (usable.saturating_sub(without) / 4 / each) as usize;
    if wanted > room && options.ssm_cache_slots.is_some() {
        tracing::warn!(wanted, room, "ssm_cache_slots: memory holds fewer checkpoints of the recurrent state");
    }
    Ok(wanted.min(room))
}

/// Bytes that weights, caches and buffers may take on the device.
fn usable_memory(device: DeviceKind, fraction: f64) -> Result<u64, CliError> {
    match device {
        DeviceKind::Cpu => Ok(available().map_or(0.0, |memory| memory.bytes as f64 * fraction) as u64),
        DeviceKind::Cuda(ordinal) => {
            let (free, total) = cuda::memory(ordinal)?;
            // A fraction of the whole device, less what others hold of it.
            Ok(((total as f64 * fraction) as u64).saturating_sub((total - free) as u64))
        }
    }
}

/// The device that the options mean on this machine. GPUs do not compute in f32, so whoever asks for that and leaves the
/// device open means the CPU.
fn device(options: &ServeOptions) -> Result<DeviceKind, CliError> {
    let exact =
        options.activation_dtype == options::ActivationDtype::F32 || options.kv_cache_dtype.keys == KvOption::F32;
    match (options.device, cuda::available()) {
        (Device::Cpu, _) | (Device::Auto, Err(_)) => Ok(DeviceKind::Cpu),
        (Device::Auto, Ok(())) if exact => Ok(DeviceKind::Cpu),
        (Device::Auto | Device::Cuda, Ok(())) => Ok(DeviceKind::Cuda(0)),
        (Device::Cuda, Err(error)) => Err(CliError::Refused(format!("device: `cuda` cannot be used: {error}"))),
    }
}

/// The engine's options, without regard to memory. What this build does not have is refused by name.
fn load_options(options: &ServeOptions) -> Result<LoadOptions, CliError> {
    let plain = LoadOptions::default();
    let device = device(options)?;
    let on_gpu = device != DeviceKind::Cpu;
    Ok(LoadOptions {
        device,
        threads: options.threads.map_or(plain.threads, |threads| threads as usize),
        activations: match options.activation_dtype {
            options::ActivationDtype::Auto if on_gpu => ActivationDtype::Bf16,
            options::ActivationDtype::Auto => plain.activations,
            options::ActivationDtype::F32 => ActivationDtype::F32,
            options::ActivationDtype::Bf16 => ActivationDtype::Bf16,
            other => return Err(unsupported("activation_dtype", other)),
        },
        kv_dtype: match options.kv_cache_dtype {
            KvCacheDtype { keys: KvOption::Auto, .. } if on_gpu => KvDtype::Bf16,
            KvCacheDtype { keys: KvOption::Auto, .. } => plain.kv_dtype,
            KvCacheDtype { keys: KvOption::F32, values: KvOption::F32 } => KvDtype::F32,
            KvCacheDtype { keys: KvOption::Bf16, values: KvOption::Bf16 } => KvDtype::Bf16,
            KvCacheDtype { keys: KvOption::Fp8, values: KvOption::Fp8 } => KvDtype::Fp8,
            other => return Err(unsupported("kv_cache_dtype", other)),
        },
        sequences: options.max_num_seqs.min(options.max_batch_size) as usize,
        context: options.max_seq_len.map(|tokens| tokens as usize),
        ..plain
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_template_tells_how_calls_are_written() {
        let plain = ServeOptions::default();
        let hermes = "… <tool_call>\n{\"name\": <think>";
        assert_eq!(formats(hermes, &plain).unwrap(), (ToolFormat::Hermes, ReasoningFormat::ThinkTags));
        assert_eq!(formats("<tool_call><function=f>", &plain).unwrap(), (ToolFormat::None, ReasoningFormat::None));
        let none =
            ServeOptions { tool_call_parser: ToolCallParser::None, reasoning_parser: ReasoningParser::None, ..plain };
        assert_eq!(formats(hermes, &none).unwrap(), (ToolFormat::None, ReasoningFormat::None));
        let other = ServeOptions { tool_call_parser: ToolCallParser::Mistral, ..ServeOptions::default() };
        assert_eq!(formats(hermes, &other).unwrap_err().exit_code(), 4);
    }

    #[test]
    fn what_this_build_lacks_is_refused_by_name() {
        let refusal = |options: ServeOptions| load_options(&options).unwrap_err().to_string();
        let plain = ServeOptions::default;
        if cuda::available().is_err() {
            assert!(refusal(ServeOptions { device: Device::Cuda, ..plain() }).starts_with("device: `cuda`"));
        }
        let fp8 = KvCacheDtype { keys: KvOption::Fp8, values: KvOption::Fp8 };
        let fp8 = load_options(&ServeOptions { kv_cache_dtype: fp8, ..plain() }).unwrap();
        assert_eq!(fp8.kv_dtype, KvDtype::Fp8);
        let kv = KvCacheDtype { keys: KvOption::Fp8, values: KvOption::Nvfp4 };
        assert!(refusal(ServeOptions { kv_cache_dtype: kv, ..plain() }).contains("`fp8:nvfp4`"));
        assert!(refusal(ServeOptions { activation_dtype: options::ActivationDtype::Fp4, ..plain() }).contains("`fp4`"));
        assert!(load_options(&plain()).is_ok());
        assert!(unsupported_options(&plain()).is_empty());
        let two = ServeOptions { kv_cache_dtype: kv, tool_call_parser: ToolCallParser::Mistral, ..plain() };
        assert_eq!(unsupported_options(&two).len(), 2);
    }
}
