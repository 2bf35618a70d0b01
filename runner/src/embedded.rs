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
