//! The recipes of this repository, inside the binary: registry `@atlas`, which works offline.

/// A recipe in the binary.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Builtin {
    /// Name, as in `@atlas/NAME`.
    pub(crate) name: &'static str,
    /// Where it stands in the repository.
    pub(crate) path: &'static str,
    /// The file.
    pub(crate) text: &'static str,
}

macro_rules! builtin {
    ($($family:literal / $name:literal),+ $(,)?) => {
        /// Every recipe under `recipes/`, sorted by path.
        pub(crate) static BUILTIN: &[Builtin] = &[$(Builtin {
            name: $name,
            path: concat!("recipes/", $family, "/", $name, ".yaml"),
            text: include_str!(concat!("../../../recipes/", $family, "/", $name, ".yaml")),
        }),+];
    };
}

builtin! {
    "deepseek-v4" / "deepseek-v4-flash-nvfp4-ep2",
    "gemma4" / "gemma-4-26b-a4b-nvfp4",
    "glm-5.3" / "glm-5.3-flash-nvfp4-ep2",
    "nemotron" / "nemotron-3-nano-30b-a3b-nvfp4",
    "nemotron" / "nemotron-3-super-120b-a12b-nvfp4",
    "nemotron" / "nemotron-3.5-lightning-30b-a3b-nvfp4-dspark",
    "qwen3.5" / "qwen3.5-0.8b-bf16",
    "qwen3.6" / "qwen3.6-35b-a3b-fp8-mtp",
    "qwen3.8" / "qwen3.8-27b-nvfp4",
    "qwen3.8" / "qwen3.8-27b-nvfp4-latency",
    "qwen3.8" / "qwen3.8-27b-nvfp4-throughput",
    "qwen3.8-flash-next" / "qwen3.8-flash-next-nvfp4",
    "qwen3.8-flash-next" / "qwen3.8-flash-next-nvfp4-throughput",
    "smollm2" / "smollm2-135m-bf16",
    "tiny" / "tiny",
}

/// The recipe with this name.
pub(crate) fn find(name: &str) -> Option<&'static Builtin> {
    BUILTIN.iter().find(|recipe| recipe.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn the_list_is_the_folder() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let mut files = Vec::new();
        for family in std::fs::read_dir(root.join("recipes")).unwrap().map(|entry| entry.unwrap().path()) {
            for file in std::fs::read_dir(family).unwrap().map(|entry| entry.unwrap().path()) {
                let path = file.strip_prefix(&root).unwrap().to_str().unwrap().to_owned();
                if !path.ends_with(".lock.yaml") {
                    assert_eq!(std::fs::read_to_string(&file).unwrap(), find_path(&path).text, "{path}");
                    files.push(path);
                }
            }
        }
        assert_eq!(files.len(), BUILTIN.len());
    }

    fn find_path(path: &str) -> &'static Builtin {
        BUILTIN.iter().find(|recipe| recipe.path == path).unwrap_or_else(|| panic!("{path} is not in the binary"))
    }
}
