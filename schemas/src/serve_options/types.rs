//! Types of option values that are more than a number or a text.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

/// Defines an enum whose values are names in recipes and on the command line.
macro_rules! choices {
    ($(#[$meta:meta])* $name:ident { $( $(#[doc = $doc:literal])+ $variant:ident = $text:literal $(| $alias:literal)* ),+ $(,)? }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum $name { $( $(#[doc = $doc])+ $variant ),+ }

        impl $name {
            /// Every name, in the order of the documentation.
            pub const NAMES: &'static [&'static str] = &[$($text),+];

            /// The name in recipes and on the command line.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text),+ }
            }
        }

        impl FromStr for $name {
            type Err = String;

            fn from_str(text: &str) -> Result<Self, String> {
                match text {
                    $($text $(| $alias)* => Ok(Self::$variant),)+
                    _ => Err(unknown_choice(text, Self::NAMES)),
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.as_str())
            }
        }

        text_serde!($name);
    };
}

/// Serde and schema through `Display` and `FromStr`.
macro_rules! text_serde {
    ($name:ident) => {
        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = Cow::<'de, str>::deserialize(deserializer)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}

fn unknown_choice(text: &str, names: &[&str]) -> String {
    let hint = crate::suggest::hint(text, names.iter().copied());
    format!("`{}` is not one of {}{hint}", Shown(text), names.join(", "))
}

/// Foreign text in a message: on one line, without control characters, and not longer than a line.
pub(crate) struct Shown<'a>(pub(crate) &'a str);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = self.0.chars().take(60).flat_map(|c| {
            let escape = c.is_control();
            escape.then(|| c.escape_default()).into_iter().flatten().chain((!escape).then_some(c))
        });
        shown.try_for_each(|c| fmt::Write::write_char(f, c))?;
        if self.0.chars().nth(60).is_some() { f.write_str("…") } else { Ok(()) }
    }
}

/// [`Shown`] as a text.
pub(crate) fn shown(text: &str) -> String {
    Shown(text).to_string()
}

choices! {
    /// Where the model runs.
    Device {
        /// A GPU if one is usable, else the CPU.
        Auto = "auto",
        /// The CPU backend.
        Cpu = "cpu",
        /// An NVIDIA GPU.
        Cuda = "cuda" | "gpu",
    }
}

choices! {
    /// Format of activations between operations (N2 of the numerics: it belongs to the layer, never to the phase).
    ActivationDtype {
        /// bf16 where the device computes in it, else f32.
        Auto = "auto",
        /// f32 everywhere: the reference mode.
        F32 = "f32" | "float32",
        /// bf16 between operations, f32 accumulation.
        Bf16 = "bf16" | "bfloat16",
        /// FP8 (E4M3) inputs of the layers whose weights allow it, else bf16.
        Fp8 = "fp8",
        /// FP4 (E2M1) inputs of the layers whose weights allow it, else bf16.
        Fp4 = "fp4" | "nvfp4",
    }
}

choices! {
    /// Order in which waiting requests are prefilled.
    SchedulingPolicy {
        /// In order of arrival.
        Fifo = "fifo" | "fcfs",
        /// Decode first, then the shortest prompt first, within fairness limits.
        Slai = "slai",
    }
}

choices! {
    /// Format of one half (keys or values) of the KV cache.
    KvDtype {
        /// What the checkpoint or the device does best.
        Auto = "auto",
        /// 32-bit float: the reference mode.
        F32 = "f32" | "float32",
        /// bfloat16.
        Bf16 = "bf16" | "bfloat16",
        /// FP8 E4M3 with a scale from the checkpoint or from calibration.
        Fp8 = "fp8" | "fp8_e4m3" | "e4m3",
        /// E2M1 with an E4M3 scale per 16 values.
        Nvfp4 = "nvfp4",
        /// Rotated 4-bit Lloyd–Max codes with an FP8 scale per 16 values.
        Turbo4 = "turbo4",
    }
}

/// Format of the KV cache: one dtype, or a dtype for keys and one for values written `K:V`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct KvCacheDtype {
    /// Format of keys.
    pub keys: KvDtype,
    /// Format of values.
    pub values: KvDtype,
}

impl KvCacheDtype {
    /// Chosen by checkpoint and device.
    pub const AUTO: Self = Self { keys: KvDtype::Auto, values: KvDtype::Auto };
}

impl FromStr for KvCacheDtype {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (keys, values) = text.split_once(':').unwrap_or((text, text));
        let pair = Self { keys: keys.parse()?, values: values.parse()? };
        if (pair.keys == KvDtype::Auto) != (pair.values == KvDtype::Auto) {
            return Err(format!(
                "`{}`: `auto` chooses keys and values together, it cannot be half of a pair",
                Shown(text)
            ));
        }
        Ok(pair)
    }
}

impl fmt::Display for KvCacheDtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.keys == self.values { write!(f, "{}", self.keys) } else { write!(f, "{}:{}", self.keys, self.values) }
    }
}

text_serde!(KvCacheDtype);

choices! {
    /// Precision of the output projection.
    LmHeadDtype {
        /// As the checkpoint has it.
        Default = "default" | "auto",
        /// bfloat16.
        Bf16 = "bf16" | "bfloat16",
        /// FP8 E4M3.
        Fp8 = "fp8",
        /// NVFP4.
        Nvfp4 = "nvfp4",
    }
}

choices! {
    /// Precision of the multi-token-prediction head's weights.
    MtpQuantization {
        /// As the checkpoint has it.
        Default = "default" | "auto",
        /// bfloat16.
        Bf16 = "bf16" | "bfloat16",
        /// FP8 E4M3.
        Fp8 = "fp8",
        /// NVFP4.
        Nvfp4 = "nvfp4",
    }
}

choices! {
    /// When speculation runs.
    SpeculationGate {
        /// While it delivers more tokens a second than plain decoding.
        Auto = "auto",
        /// Always.
        Force = "force",
    }
}

choices! {
    /// Which proposer drafts tokens.
    Speculative {
        /// The checkpoint's own multi-token-prediction head.
        Mtp = "mtp" | "true",
        /// A block drafter (DFlash, DFlash2), named by `draft_model`.
        Dflash = "dflash",
        /// A DSpark block drafter, named by `draft_model`.
        Dspark = "dspark",
        /// Prompt look-up: repeats what followed the same words earlier.
        Ngram = "ngram",
        /// No speculation.
        Off = "off" | "none" | "false",
    }
}

choices! {
    /// Format of the recurrent state of gated-delta-net and Mamba layers.
    SsmStateDtype {
        /// 32-bit float.
        F32 = "f32" | "float32",
        /// 16-bit float, rounded at every anchor.
        F16 = "f16" | "float16" | "f16-pool",
    }
}

choices! {
    /// Syntax in which a model writes tool calls.
    ToolCallParser {
        /// Chosen from the chat template.
        Auto = "auto",
        /// JSON in `<tool_call>` tags.
        Hermes = "hermes",
        /// `<function=…>` and `<parameter=…>` in `<tool_call>` tags.
        Qwen3Coder = "qwen3_coder" | "qwen3-coder" | "qwen3_xml",
        /// Gemma 4's call syntax.
        Gemma4 = "gemma4",
        /// A JSON list in `<TOOLCALL>` tags.
        NemotronJson = "nemotron_json",
        /// DeepSeek's DSML tags.
        DeepseekV4 = "deepseek_v4" | "dsml",
        /// GLM's `<arg_key>` and `<arg_value>` tags.
        Glm47 = "glm47" | "glm45" | "glm4",
        /// MiniMax M2's invoke tags.
        MinimaxM2 = "minimax_m2" | "minimax_xml",
        /// `[TOOL_CALLS]` of Mistral.
        Mistral = "mistral",
        /// A JSON object with nothing around it.
        BareJson = "bare_json",
        /// Tool calls stay text.
        None = "none",
    }
}

choices! {
    /// Syntax in which a model marks its reasoning.
    ReasoningParser {
        /// Chosen from the chat template.
        Auto = "auto",
        /// `<think>` tags.
        Think = "think" | "qwen3" | "deepseek_r1" | "nemotron" | "glm45" | "deepseek_v4",
        /// Gemma 4's thought channel.
        Gemma4 = "gemma4",
        /// `[THINK]` brackets of Mistral.
        Mistral = "mistral",
        /// `<mm:think>` tags of MiniMax M3.
        MinimaxM3 = "minimax_m3",
        /// Reasoning stays text.
        None = "none",
    }
}

/// How many layers at each end of the model keep their KV cache in bf16 when the rest is narrower.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum HighPrecisionLayers {
    /// Two at each end.
    Auto,
    /// All.
    Max,
    /// So many at each end.
    Count(u16),
}

impl FromStr for HighPrecisionLayers {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "max" => Ok(Self::Max),
            _ => text
                .parse()
                .map(Self::Count)
                .map_err(|_| format!("`{}` is not `auto`, `max` or a number of layers", Shown(text))),
        }
    }
}

impl fmt::Display for HighPrecisionLayers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Max => f.write_str("max"),
            Self::Count(count) => write!(f, "{count}"),
        }
    }
}

text_serde!(HighPrecisionLayers);

/// Why a placeholder is no secret.
pub(super) const PLACEHOLDER_READ: &str = "the secret was left out of this file when it was written; set it again";

/// A text that is never shown: `Debug`, `Display` and serialisation print a placeholder.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// What is printed instead.
    pub const PLACEHOLDER: &'static str = "<secret>";

    /// Wraps a text.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The text itself. Call it where the secret is compared or sent, nowhere else.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Self::PLACEHOLDER)
    }
}

impl Serialize for Secret {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(Self::PLACEHOLDER)
    }
}

impl<'de> Deserialize<'de> for Secret {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        // A printed secret read back must not become a key that everybody knows.
        if text == Self::PLACEHOLDER { Err(serde::de::Error::custom(PLACEHOLDER_READ)) } else { Ok(Self(text)) }
    }
}
