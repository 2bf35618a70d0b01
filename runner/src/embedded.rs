//! The model that is compiled into the binary: Atlas Tiny in NVFP4.

use atlas_engine::weights::ModelFiles;
use atlas_engine::weights::files::EmbeddedFile;

/// The name that selects it on the command line and in recipes.
pub(crate) const NAME: &str = "embedded";

macro_rules! files {
    ($($name:literal),+ $(,)?) => {
        &[$(($name, include_bytes!(concat!("../embedded/atlas-tiny-nvfp4/", $name)))),+]
    };
}

static FILES: &[EmbeddedFile] = files![
    "config.json",
    "generation_config.json",
    "hf_quant_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "model.safetensors",
];

/// Its files.
pub(crate) fn files() -> ModelFiles {
    ModelFiles::Embedded(FILES)
}

/// A prompt ("Explain dinosaurs to a child." as a chat) and the greedy tokens that follow it, in f32 arithmetic.
pub(crate) const KNOWN_PROMPT: &[u32] = &[4088, 339, 198, 872, 3597, 301, 258, 1563, 13, 4089, 198, 4088, 347, 198];
/// See [`KNOWN_PROMPT`].
pub(crate) const KNOWN_TOKENS: &[u32] = &[
    35, 264, 571, 376, 647, 1168, 11, 1526, 892, 353, 1003, 316, 273, 593, 266, 78, 89, 78, 323, 553, 450, 13, 462,
    561, 1714, 82, 296, 923, 788, 82, 296, 3597, 11, 647, 2105, 300, 547, 1064, 13, 767, 1810, 82, 354, 374, 696, 885,
    1180, 273, 653, 0, 4089,
];
