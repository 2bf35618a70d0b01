//! Environment variables that other engines ask for, often in prose, and what they mean here.

use crate::suggest;

/// One variable of another engine.
#[derive(Debug, Clone, Copy)]
pub struct EnvironmentFact {
    /// Name.
    pub name: &'static str,
    /// What it means here.
    pub answer: EnvironmentAnswer,
}

/// What another engine's variable means here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EnvironmentAnswer {
    /// It is this option.
    Option(&'static str),
    /// It is not needed, because.
    NotNeeded(&'static str),
    /// It is a variable of Atlas itself.
    Ours,
}

use EnvironmentAnswer::{NotNeeded, Option as IsOption, Ours};

/// Every known variable with the prefix `ATLAS_`.
pub static ENVIRONMENT: &[EnvironmentFact] = &[
    fact("ATLAS_LOG", Ours),
    fact("ATLAS_PLE_FAULT_THREADS", IsOption("ple_fault_threads")),
    fact("ATLAS_PLE_CACHE_SLOTS", IsOption("ple_cache_slots")),
    fact("ATLAS_DFLASH_OPTION_B", NotNeeded("a block drafter's cache always grows once a committed token")),
    fact("ATLAS_NO_TOOL_INJECT", NotNeeded("tools reach the model through its chat template only")),
    fact("ATLAS_PREFILL_CODISPATCH", NotNeeded("prefill and decode rows always share a step")),
    fact("ATLAS_FP8_ROWWISE", NotNeeded("FP8 scales have the granularity of the checkpoint")),
    fact("ATLAS_MTP_DCUT_RATIO", NotNeeded("drafting adapts by what it delivers; see `mtp_gate`")),
    fact("ATLAS_MTP_K_LADDER", NotNeeded("`num_drafts` is the most that is drafted, and drafting adapts below it")),
    fact("ATLAS_MTP_POOL_FULL_WIDTH", NotNeeded("the draft head's rows are batched at any width")),
    fact("ATLAS_MTP_MAX_SEQS", NotNeeded("verification is batched up to `max_batch_size`")),
    fact("ATLAS_PLE_MAX_TOKENS", NotNeeded("rows of an n-gram table are read for each step's own tokens")),
    fact("ATLAS_PLE_WARM", NotNeeded("rows of an n-gram table are cached as they are used")),
    fact("ATLAS_PLE_VERIFY_SNAPSHOTS", NotNeeded("n-gram context is part of every state checkpoint")),
    fact("ATLAS_QSA_MAX_TOKENS", NotNeeded("sparse selection has no limit of its own")),
    fact("ATLAS_MAX_BODY_BYTES", NotNeeded("the limit is the option `max_body_mb`")),
    fact("ATLAS_STORE_DIR", NotNeeded("responses are not stored")),
    fact("ATLAS_CANONICAL_KEY_MIN_WIDTH", NotNeeded("graphs are captured by rows and context")),
    fact("ATLAS_EP_GRAPHS", NotNeeded("graphs are used where a device can replay them")),
    fact("ATLAS_MARCONI_EXACT", NotNeeded("every prefix hit is exact")),
    fact("ATLAS_FFN_NVFP4_MMQ", NotNeeded("kernels are chosen by operation, shape and device")),
    fact("ATLAS_GDN_REGRESIDENT", NotNeeded("kernels are chosen by operation, shape and device")),
    fact("ATLAS_GDN_FLASHINFER", NotNeeded("kernels are chosen by operation, shape and device")),
    fact("ATLAS_GDN_LIB", NotNeeded("no foreign kernel library is loaded")),
    fact("ATLAS_TARGET_HW", NotNeeded("kernels are chosen by operation, shape and device")),
    fact("ATLAS_TARGET_MODEL", NotNeeded("kernels are chosen by operation, shape and device")),
    fact("ATLAS_TARGET_QUANT", NotNeeded("kernels are chosen by operation, shape and device")),
    fact("ATLAS_SKIP_BUILD", NotNeeded("it concerns another engine's build")),
];

const fn fact(name: &'static str, answer: EnvironmentAnswer) -> EnvironmentFact {
    EnvironmentFact { name, answer }
}

/// The known variable with this name.
pub(super) fn find(name: &str) -> Option<&'static EnvironmentFact> {
    ENVIRONMENT.iter().find(|fact| fact.name == name)
}

/// The known variable nearest to an unknown name.
pub(super) fn nearest(name: &str) -> Option<&'static str> {
    suggest::nearest(name, ENVIRONMENT.iter().map(|fact| fact.name))
}

/// Whether a variable decides which code a process runs, and so has no place in a recipe.
pub(super) fn decides_code(name: &str) -> bool {
    const PREFIXES: [&str; 4] = ["LD_", "DYLD_", "PYTHON", "GIT_"];
    const NAMES: [&str; 7] = ["PATH", "IFS", "ENV", "BASH_ENV", "SHELL", "HOME", "NODE_OPTIONS"];
    PREFIXES.iter().any(|prefix| name.starts_with(prefix)) || NAMES.contains(&name)
}

/// Most variables in prose that are answered.
const MAX_MENTIONS: usize = 40;

/// Words of the form `ATLAS_NAME` in a text, with their byte offsets, each word once, the first [`MAX_MENTIONS`].
pub(super) fn mentions(text: &str) -> Vec<(usize, &str)> {
    let mut found: Vec<(usize, &str)> = Vec::new();
    for (offset, _) in text.match_indices("ATLAS_") {
        let preceded = text[..offset].chars().next_back().is_some_and(|c| c.is_ascii_alphanumeric() || c == '_');
        let rest = &text[offset..];
        let end =
            rest.find(|c: char| !(c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_')).unwrap_or(rest.len());
        let word = rest[..end].trim_end_matches('_');
        if found.len() == MAX_MENTIONS {
            break;
        }
        if !preceded && word.len() > "ATLAS_".len() && found.iter().all(|(_, known)| *known != word) {
            found.push((offset, word));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_that_variables_map_to_exist() {
        for fact in ENVIRONMENT {
            if let IsOption(key) = fact.answer {
                assert!(crate::serve_options::find(key).is_some(), "{}", fact.name);
            }
        }
    }

    #[test]
    fn finds_variables_in_prose_once() {
        let text =
            "needs ATLAS_DFLASH_OPTION_B=1, `ATLAS_PLE_WARM` and ATLAS_DFLASH_OPTION_B; not MY_ATLAS_X or ATLAS_.";
        let words: Vec<&str> = mentions(text).into_iter().map(|(_, word)| word).collect();
        assert_eq!(words, ["ATLAS_DFLASH_OPTION_B", "ATLAS_PLE_WARM"]);
    }
}
