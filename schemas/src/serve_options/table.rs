//! The table of options. Add an option here and nowhere else.

use super::spec::{OptionKind, OptionSpec, Status};
use super::types::*;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::str::FromStr;

/// Each entry: documentation, `key: type = default, kind, aliases, status;`.
macro_rules! serve_options {
    ($( $group:literal { $( $(#[doc = $doc:literal])+ $key:ident: $ty:ty = $default:expr, $kind:expr, [$($alias:literal),*], $status:expr; )+ } )+) => {
        /// Every option with its value: the defaults, and what recipe and command line set.
        #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct ServeOptions { $($( $(#[doc = $doc])+ pub $key: $ty, )+)+ }

        impl Default for ServeOptions {
            fn default() -> Self {
                Self { $($( $key: $default, )+)+ }
            }
        }

        /// Every option, grouped as in the documentation.
        pub static OPTIONS: &[OptionSpec] = &[ $($(
            OptionSpec {
                key: stringify!($key),
                aliases: &[$($alias),*],
                group: $group,
                kind: $kind,
                status: $status,
                doc_lines: &[$($doc),+],
                default: || { let value: $ty = $default; serde_json::to_value(value).unwrap_or(Value::Null) },
            },
        )+)+ ];
    };
}

const SWITCH: OptionKind = OptionKind::Switch { tri_state: false };
const TRI_STATE: OptionKind = OptionKind::Switch { tri_state: true };
const TEXT: OptionKind = OptionKind::Text;
const PATH: OptionKind = OptionKind::Path;
const EFFECTIVE: Status = Status::Effective;

const fn int(min: u64, max: u64) -> OptionKind {
    OptionKind::Integer { min, max }
}

const fn number(min: f64, max: f64) -> OptionKind {
    OptionKind::Number { min, max }
}

const fn accepted(why: &'static str) -> Status {
    Status::Accepted { why }
}

fn canonical<T: FromStr<Err = String> + ToString>(text: &str) -> Result<String, String> {
    text.parse::<T>().map(|value| value.to_string())
}

fn host(text: &str) -> Result<String, String> {
    let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    let is_name = !bare.is_empty()
        && bare.len() <= 253
        && !bare.starts_with('-')
        // `0` and `127.1` are addresses to some resolvers and names to others.
        && !bare.rsplit('.').next().is_some_and(|label| label.starts_with(|c: char| c.is_ascii_digit()))
        && bare.chars().all(|c| c.is_ascii_alphanumeric() || ".-_".contains(c));
    if is_name || bare.parse::<std::net::IpAddr>().is_ok() {
        return Ok(bare.to_owned());
    }
    Err(format!("`{}` is not an IP address or a host name", Shown(text)))
}

macro_rules! choice {
    ($ty:ty) => {
        OptionKind::Choice { names: <$ty>::NAMES, canonical: canonical::<$ty>, bare: None }
    };
    ($ty:ty, $bare:literal) => {
        OptionKind::Choice { names: <$ty>::NAMES, canonical: canonical::<$ty>, bare: Some($bare) }
    };
}

const KV_CACHE_DTYPE: OptionKind = OptionKind::Pattern {
    shape: "auto | f32 | bf16 | fp8 | nvfp4 | turbo4, or a pair `KEYS:VALUES`",
    regex: "^(auto|(f32|float32|bf16|bfloat16|fp8|fp8_e4m3|e4m3|nvfp4|turbo4)(:(f32|float32|bf16|bfloat16|fp8|fp8_e4m3|e4m3|nvfp4|turbo4))?)$",
    canonical: canonical::<KvCacheDtype>,
};
const HOST: OptionKind =
    OptionKind::Pattern { shape: "IP address or host name", regex: r"^[A-Za-z0-9._:\[\]-]{1,253}$", canonical: host };
const HIGH_PRECISION_LAYERS: OptionKind = OptionKind::Pattern {
    shape: "auto | max | number of layers",
    regex: "^(auto|max|[0-9]{1,4})$",
    canonical: canonical::<HighPrecisionLayers>,
};

const NO_GPU: &str = "it concerns the GPU backend, which this build does not have";
const NO_SPECULATION: &str = "this build does not speculate";
const NO_MEDIA: &str = "this build takes text only";
const NO_RANKS: &str = "this build runs on one host";
const NO_WATCHDOG: &str = "output is never cut or steered by a watchdog";
const CHECKPOINT_PRECISION: &str = "weights stay in the precision of the checkpoint";
const EXACT: &str = "results never depend on batching, chunking, cache hits or speculation";

serve_options! {
    "Model and device" {
        /// Name of the model in API requests and answers. By default the recipe's or the folder's name.
        model_name: Option<String> = None, TEXT, ["served_model_name"], EFFECTIVE;
        /// Where the model runs.
        device: Device = Device::Auto, choice!(Device), [], EFFECTIVE;
        /// Which GPU of the host.
        gpu_ordinal: u32 = 0, int(0, 63), [], accepted(NO_GPU);
        /// CPU threads of the engine. By default one a physical core.
        threads: Option<u32> = None, int(1, 1024), ["n_threads"], EFFECTIVE;
        /// Format of activations between operations.
        activation_dtype: ActivationDtype = ActivationDtype::Auto, choice!(ActivationDtype), [], EFFECTIVE;
        /// Precision of the output projection.
        lm_head_dtype: LmHeadDtype = LmHeadDtype::Default, choice!(LmHeadDtype), [], accepted(CHECKPOINT_PRECISION);
        /// Precision of the attention projections.
        attn_proj_dtype: LmHeadDtype = LmHeadDtype::Default, choice!(LmHeadDtype), [], accepted(CHECKPOINT_PRECISION);
        /// Kernel set of another engine's build.
        kernel_target: Option<String> = None, TEXT, [], accepted("kernels are chosen by operation, shape and device");
        /// Read the next weight file while the current one is placed.
        fast_load_prefetch_shards: bool = false, SWITCH, [], accepted("the loader decides by itself");
        /// Threads that read rows of an n-gram embedding table from disk.
        ple_fault_threads: u32 = 32, int(1, 1024), [], accepted("this build does not stream n-gram tables");
        /// Rows of an n-gram embedding table that are kept in memory.
        ple_cache_slots: u32 = 65_536, int(1, 1 << 28), [], accepted("this build does not stream n-gram tables");
    }
    "Network" {
        /// TCP port of the HTTP server. 0 takes a free one and reports it.
        port: u16 = 8888, int(0, 65_535), [], EFFECTIVE;
        /// Address that the HTTP server listens on. An address beyond loopback needs an API key.
        host: String = "127.0.0.1".to_owned(), HOST, ["bind"], EFFECTIVE;
        /// Serve beyond loopback without an API key. Only the command line may say so, never a recipe.
        allow_unauthenticated: bool = false, SWITCH, [], EFFECTIVE;
        /// Bearer token that requests must carry. Better kept in a file: see `api_key_file`.
        api_key: Option<Secret> = None, OptionKind::Secret, ["auth_token"], EFFECTIVE;
        /// File that holds the bearer token, readable by its owner only.
        api_key_file: Option<String> = None, PATH, ["auth_token_file", "auth_tokens_file"], EFFECTIVE;
        /// Refuse to start without an API key, on loopback too.
        require_auth: bool = false, SWITCH, [], EFFECTIVE;
        /// Seconds after which a request ends with what it has. 0 is no limit.
        request_timeout: u32 = 300, int(0, 604_800), [], EFFECTIVE;
        /// Requests that may wait. One more is answered with 429.
        max_queue: u32 = 256, int(1, 1_000_000), ["max_waiting_requests"], EFFECTIVE;
        /// Largest request body, in MiB.
        max_body_mb: u32 = 32, int(1, 1024), [], EFFECTIVE;
    }
    "Memory and batching" {
        /// Context length in tokens, prompt and output together. By default the model's own, as far as memory allows.
        max_seq_len: Option<u32> = None, int(16, 16_777_216), ["max_model_len", "context_length", "ctx_size"], EFFECTIVE;
        /// Sequences that may be in progress at once.
        max_num_seqs: u32 = 128, int(1, 4096), ["max_running_requests"], EFFECTIVE;
        /// Sequences that one step decodes at most.
        max_batch_size: u32 = 8, int(1, 4096), [], EFFECTIVE;
        /// Prompt tokens that one step computes at most; longer prompts are cut into chunks. 0 does not cut. By default
        /// 512 on a CPU, where a step of more keeps other requests waiting for seconds.
        max_prefill_tokens: Option<u32> = None, int(0, 1_048_576), ["max_num_batched_tokens", "chunked_prefill_size"], EFFECTIVE;
        /// Fraction of the device's memory that weights, caches and buffers may take together.
        gpu_memory_utilization: f64 = 0.9, number(0.05, 1.0), ["gpu_mem", "mem_fraction_static"], EFFECTIVE;
        /// Memory of the host that stays free, in MiB.
        oom_guard_mb: u32 = 4096, int(0, 1_048_576), [], accepted("memory is planned before weights are read");
        /// Disk space for swapped sequences, in GiB.
        swap_space_gb: u32 = 3, int(0, 65_536), [], accepted("a preempted sequence is recomputed, not swapped");
        /// Tokens in a page of the KV cache.
        block_size: u32 = 16, int(16, 16), [], EFFECTIVE;
        /// Which waiting request is prefilled next.
        scheduling_policy: SchedulingPolicy = SchedulingPolicy::Slai, choice!(SchedulingPolicy), [], EFFECTIVE;
        /// Longest wanted time between two tokens of a sequence, in milliseconds. Under `slai`, a step takes no more prompt
        /// tokens than this allows, within fairness limits.
        tbt_deadline_ms: u32 = 100, int(1, 600_000), [], EFFECTIVE;
        /// Prefill prompts of different lengths in one step.
        prefill_varlen_batch: Option<bool> = None, TRI_STATE, [], accepted("every step is ragged");
    }
    "KV cache" {
        /// Format of the KV cache: one for both, or keys and values apart (`fp8:nvfp4`).
        kv_cache_dtype: KvCacheDtype = KvCacheDtype::AUTO, KV_CACHE_DTYPE, ["kv_dtype"], EFFECTIVE;
        /// Layers at each end of the model that keep a bf16 KV cache when the rest is narrower.
        kv_high_precision_layers: HighPrecisionLayers = HighPrecisionLayers::Count(0), HIGH_PRECISION_LAYERS, [], accepted("all layers have the KV format of `kv_cache_dtype`");
        /// Tokens of a fixed text that calibrate FP8 scales at load. 0 takes the checkpoint's scales.
        fp8_kv_calibration_tokens: u32 = 0, int(0, 65_536), [], accepted(NO_GPU);
        /// Head-room that calibrated FP8 scales leave, as a factor.
        fp8_kv_headroom: f64 = 2.0, number(1.0, 16.0), [], accepted(NO_GPU);
        /// Keep computed prompts for later requests that begin alike. By default on.
        enable_prefix_caching: Option<bool> = None, TRI_STATE, [], EFFECTIVE;
        /// Only take cached prompts whose results are exact.
        exact_prefix_cache: bool = false, SWITCH, [], accepted(EXACT);
    }
    "Recurrent state" {
        /// Checkpoints of the recurrent state that are kept for prefix hits, as far as memory allows. By default as many as
        /// a sixteenth of the memory holds, from 16 to 1024. With 0, such models have no prefix cache.
        ssm_cache_slots: Option<u32> = None, int(0, 65_536), [], EFFECTIVE;
        /// Blocks of 16 tokens before the first checkpoint of the recurrent state inside a prompt; the next ones stand at
        /// its doublings. Where prompts end or part, there is always one.
        ssm_checkpoint_interval: u32 = 256, int(1, 65_536), [], EFFECTIVE;
        /// Format of the recurrent state between anchors.
        ssm_h_dtype: SsmStateDtype = SsmStateDtype::F32, choice!(SsmStateDtype), [], accepted("the state is kept in f32");
        /// Run the norm of a gated delta net together with its gate.
        gdn_fused_norm: Option<bool> = None, TRI_STATE, [], accepted("the norm and its gate are always one operation");
        /// Step the recurrence of several sequences together.
        ssm_batched_recurrent: Option<bool> = None, TRI_STATE, [], accepted("every step is batched");
        /// Checkpoint the recurrent state inside the last prefill chunk.
        ssm_tail_midchunk: Option<bool> = None, TRI_STATE, [], accepted("chunks have no influence on checkpoints");
    }
    "Speculation" {
        /// How tokens are drafted: `mtp` (also the bare flag), a block drafter, or prompt look-up.
        speculative: Option<Speculative> = None, choice!(Speculative, "mtp"), [], accepted(NO_SPECULATION);
        /// Tokens that are drafted in a step.
        num_drafts: Option<u32> = None, int(1, 16), ["num_speculative_tokens"], accepted(NO_SPECULATION);
        /// Precision of the multi-token-prediction head.
        mtp_quantization: MtpQuantization = MtpQuantization::Default, choice!(MtpQuantization), [], accepted(NO_SPECULATION);
        /// Whether drafting stops while it does not pay.
        mtp_gate: SpeculationGate = SpeculationGate::Auto, choice!(SpeculationGate), ["speculation_gate"], accepted(NO_SPECULATION);
        /// Likeliest token ids that the multi-token-prediction head chooses from. 0 is the whole vocabulary.
        mtp_vocab: u32 = 0, int(0, 16_777_216), [], accepted(NO_SPECULATION);
        /// Draft with the block drafter in `draft_model`.
        dflash: bool = false, SWITCH, [], accepted(NO_SPECULATION);
        /// Model that drafts: a folder or a hub id.
        draft_model: Option<String> = None, TEXT, ["speculative_draft_model"], accepted(NO_SPECULATION);
        /// Hub revision of the model that drafts.
        draft_model_revision: Option<String> = None, TEXT, [], accepted(NO_SPECULATION);
        /// Rows of a drafter's block: the last token and gamma − 1 drafts.
        dflash_gamma: Option<u32> = None, int(2, 64), [], accepted(NO_SPECULATION);
        /// Context that a block drafter attends to, in tokens.
        dflash_window_size: u32 = 4096, int(64, 1_048_576), [], accepted(NO_SPECULATION);
        /// Draft by looking up what followed the same words earlier.
        ngram_speculative: bool = false, SWITCH, [], accepted(NO_SPECULATION);
        /// Verify drafts exactly.
        exact_verify: bool = false, SWITCH, [], accepted(EXACT);
    }
    "Several devices" {
        /// Devices that share every layer.
        tp_size: u32 = 1, int(1, 64), ["tensor_parallel", "tensor_parallel_size"], accepted(NO_RANKS);
        /// Devices that share the experts.
        ep_size: u32 = 1, int(1, 64), ["expert_parallel", "expert_parallel_size"], accepted(NO_RANKS);
        /// Devices that share the layers in sequence.
        pp_size: u32 = 1, int(1, 1), ["pipeline_parallel", "pipeline_parallel_size"], EFFECTIVE;
        /// Copies of the model behind one address.
        dp_size: u32 = 1, int(1, 1), ["data_parallel", "data_parallel_size"], EFFECTIVE;
    }
    "Chat" {
        /// Syntax of tool calls.
        tool_call_parser: ToolCallParser = ToolCallParser::Auto, choice!(ToolCallParser), [], EFFECTIVE;
        /// Syntax of reasoning.
        reasoning_parser: ReasoningParser = ReasoningParser::Auto, choice!(ReasoningParser), [], EFFECTIVE;
        /// File of a Jinja chat template that replaces the checkpoint's.
        chat_template: Option<String> = None, PATH, [], EFFECTIVE;
        /// Variables that the chat template gets unless the request sets them.
        default_chat_template_kwargs: Map<String, Value> = Map::new(), OptionKind::Object, ["chat_template_kwargs"], EFFECTIVE;
        /// Ask the chat template not to think, whatever requests say.
        disable_thinking: bool = false, SWITCH, [], EFFECTIVE;
        /// Most tokens of reasoning a request. By default no limit but the request's own.
        max_thinking_budget: Option<u32> = None, int(0, 16_777_216), [], accepted("reasoning ends where the model ends it");
        /// Let the arguments of tool calls be any object instead of holding them to the tools' schemas. `false` holds all
        /// calls to them, `auto` those of tools marked `strict` and those that a request demands.
        disable_tool_grammar: Option<bool> = None, TRI_STATE, [], EFFECTIVE;
        /// Most tokens of one tool call.
        tool_max_tokens: u32 = 8192, int(1, 16_777_216), [], accepted("a request's own limit counts");
        /// Let the model call tools when a request offers them.
        enable_auto_tool_choice: bool = false, SWITCH, [], accepted("tools are always offered to the model");
        /// Characters between two tool calls after which output is cut.
        max_inter_tool_prose: u32 = 3072, int(0, 16_777_216), [], accepted(NO_WATCHDOG);
        /// Cut output that repeats itself.
        content_loop_watchdog: bool = false, SWITCH, [], accepted(NO_WATCHDOG);
        /// Repetitions after which output is cut.
        content_loop_min_repeats: u32 = 3, int(1, 65_536), [], accepted(NO_WATCHDOG);
    }
    "Sampling defaults" {
        /// Temperature of requests that set none. By default the checkpoint's `generation_config.json`, else 1.
        default_temperature: Option<f64> = None, number(0.0, 2.0), ["temperature", "temp"], EFFECTIVE;
        /// Top-p of requests that set none.
        default_top_p: Option<f64> = None, number(0.0, 1.0), ["top_p"], EFFECTIVE;
        /// Top-k of requests that set none. 0 does not filter.
        default_top_k: Option<u32> = None, int(0, 1_048_576), ["top_k"], EFFECTIVE;
        /// Min-p of requests that set none.
        default_min_p: Option<f64> = None, number(0.0, 1.0), ["min_p"], EFFECTIVE;
        /// Repetition penalty of requests that set none. 1 has no effect.
        default_repetition_penalty: Option<f64> = None, number(0.01, 10.0), ["repetition_penalty", "repeat_penalty"], EFFECTIVE;
        /// Presence penalty of requests that set none.
        default_presence_penalty: Option<f64> = None, number(-2.0, 2.0), ["presence_penalty"], EFFECTIVE;
        /// Frequency penalty of requests that set none.
        default_frequency_penalty: Option<f64> = None, number(-2.0, 2.0), ["frequency_penalty"], EFFECTIVE;
        /// Output tokens of requests that set no limit. By default what the context leaves.
        default_max_tokens: Option<u32> = None, int(1, 16_777_216), ["max_tokens", "max_new_tokens"], EFFECTIVE;
        /// Seed of requests that set none. By default a random one a request.
        default_seed: Option<u64> = None, int(0, u64::MAX), ["seed"], EFFECTIVE;
        /// Top-n-sigma of requests that set none: tokens whose logit is more than so many standard deviations below the
        /// largest are not chosen. 0 does not filter.
        default_top_n_sigma: f64 = 0.0, number(0.0, 100.0), [], EFFECTIVE;
        /// Change the temperature while generating.
        adaptive_sampling: bool = false, SWITCH, [], accepted("a request is sampled with the parameters it asked for");
    }
    "Images and video" {
        /// Largest image, in pixels. 0 is the model's own limit.
        vision_max_pixels: u64 = 0, int(0, 1 << 32), [], accepted(NO_MEDIA);
        /// Fetch images that requests name by URL.
        vision_allow_remote_images: bool = false, SWITCH, [], accepted(NO_MEDIA);
        /// Decode video through the host's ffmpeg.
        video_allow_ffmpeg: bool = false, SWITCH, [], accepted(NO_MEDIA);
        /// Frames a second that are taken from a video.
        video_fps: f64 = 2.0, number(0.01, 240.0), [], accepted(NO_MEDIA);
        /// Most frames that are taken from a video.
        video_max_frames: u32 = 768, int(1, 100_000), [], accepted(NO_MEDIA);
    }
}
