//! Compiling grammars for one tokenizer, and remembering them.

use super::GrammarError;
use super::limits::{MAX_TABLE_BYTES, check_bytes, parser_limits};
use super::masks::{MaskThreads, mask_of};
use super::output::{OutputGrammar, Sources};
use super::vocabulary::environment;
use crate::text::tokenizer::Tokenizer;
use llguidance::api::TopLevelGrammar;
use llguidance::earley::SlicedBiasComputer;
use llguidance::{Matcher, ParserFactory};
use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use toktrie::{InferenceCapabilities, SimpleVob};

/// Grammars that are remembered, and bytes of their texts together.
const REMEMBERED: usize = 32;
const REMEMBERED_BYTES: usize = 4 << 20;
/// The library's parsers call themselves; their depth is bounded (see `limits`), and this is enough for it.
const STACK_BYTES: usize = 64 << 20;

/// The library's name for a dead end.
const NO_BEGINNING: &str = "NoExtensionBias";

/// Compiles grammars for one tokenizer and remembers the latest.
pub struct GrammarCompiler {
    tokenizer: Tokenizer,
    eos: Vec<u32>,
    /// Made for the first grammar: it takes a moment and some memory for a large vocabulary.
    tools: OnceLock<Result<Tools, GrammarError>>,
    cache: Mutex<Cache>,
}

struct Tools {
    factory: ParserFactory,
    threads: MaskThreads,
}

/// A grammar ready to be followed by any number of outputs.
pub struct CompiledGrammar {
    /// Before the first token, and the mask for that.
    initial: Matcher,
    first_mask: SimpleVob,
    threads: MaskThreads,
}

impl CompiledGrammar {
    /// A parser of its own for one output, with its own budget for lexer states.
    pub(super) fn matcher(&self) -> Matcher {
        self.initial.deep_clone()
    }

    pub(super) fn first_mask(&self) -> &SimpleVob {
        &self.first_mask
    }

    pub(super) fn threads(&self) -> &MaskThreads {
        &self.threads
    }
}

impl fmt::Debug for CompiledGrammar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CompiledGrammar")
    }
}

impl GrammarCompiler {
    /// For outputs in the tokens of `tokenizer` that end with one of `eos`.
    pub fn new(tokenizer: &Tokenizer, eos: &[u32]) -> Self {
        Self {
            tokenizer: tokenizer.clone(),
            eos: eos.to_vec(),
            tools: OnceLock::new(),
            cache: Mutex::new(Cache::default()),
        }
    }

    /// The tokenizer that grammars are compiled for.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// Compiles a grammar, or finds it again. This can take some hundred milliseconds, on a thread of its own; bound
    /// how many do it at once.
    ///
    /// # Errors
    /// When the grammar is not one, or is too large, too deep or too complex.
    pub fn compile(&self, grammar: &OutputGrammar) -> Result<Arc<CompiledGrammar>, GrammarError> {
        let source = grammar.source(&self.tokenizer)?;
        let key = serde_json::to_string(&source.top_level());
        let key = key.map_err(|error| GrammarError::Invalid(error.to_string()))?;
        check_bytes(key.len())?;
        if let Some(found) = self.cache().find(&key) {
            return Ok(found);
        }
        let build = || self.build(&source);
        let built = std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().name("atlas-grammar-compile".into()).stack_size(STACK_BYTES);
            match thread.spawn_scoped(scope, build) {
                Ok(thread) => thread.join().unwrap_or_else(|_| {
                    Err(GrammarError::Invalid("the grammar cannot be compiled: its compiler failed".into()))
                }),
                Err(error) => Err(GrammarError::Invalid(format!("no thread to compile the grammar: {error}"))),
            }
        })?;
        let compiled = Arc::new(built);
        self.cache().insert(key, compiled.clone());
        Ok(compiled)
    }

    fn cache(&self) -> std::sync::MutexGuard<'_, Cache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Compiles the parts before the whole: the whole may begin although one of its parts cannot.
    fn build(&self, source: &Sources) -> Result<CompiledGrammar, GrammarError> {
        let tools = self.tools.get_or_init(|| self.tools()).as_ref().map_err(Clone::clone)?;
        for (label, part) in &source.parts {
            let alone = TopLevelGrammar::from_grammar(part.clone());
            begun(&tools.factory, alone).map_err(|error| error.labelled(label))?;
        }
        let (initial, first_mask) = begun(&tools.factory, source.top_level())?;
        Ok(CompiledGrammar { initial, first_mask, threads: tools.threads.clone() })
    }

    fn tools(&self) -> Result<Tools, GrammarError> {
        let environment = environment(&self.tokenizer, &self.eos);
        let slices = SlicedBiasComputer::general_slices();
        let mut factory = ParserFactory::new(&environment, InferenceCapabilities::default(), &slices)
            .map_err(|error| GrammarError::Invalid(GrammarError::text(error)))?;
        factory.quiet();
        *factory.limits_mut() = parser_limits();
        Ok(Tools { factory, threads: MaskThreads::start()? })
    }
}

/// A parser before the first token, and its mask. What cannot even begin, or only with too much work or memory, is an error now and
/// not after the prompt.
fn begun(factory: &ParserFactory, source: TopLevelGrammar) -> Result<(Matcher, SimpleVob), GrammarError> {
    let mut parser = factory.create_parser(source).map_err(|error| GrammarError::Invalid(GrammarError::text(error)))?;
    parser.start_without_prompt();
    let mut matcher = Matcher::new(Ok(parser.clone()));
    let mask = match mask_of(&mut matcher) {
        Err(GrammarError::Stuck(error)) if error == NO_BEGINNING => {
            return Err(GrammarError::Invalid("no text fits the grammar".into()));
        }
        Err(GrammarError::Stuck(error) | GrammarError::Invalid(error)) => return Err(GrammarError::Invalid(error)),
        Ok(mask) => mask,
    };
    let bytes = parser.parser.lexer_stats().num_bytes;
    if bytes > MAX_TABLE_BYTES {
        let (needed, most) = (bytes >> 20, MAX_TABLE_BYTES >> 20);
        return Err(GrammarError::Invalid(format!("it needs {needed} MiB of tables; at most {most} are allowed")));
    }
    Ok((matcher, mask))
}

impl fmt::Debug for GrammarCompiler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GrammarCompiler").field("tokenizer", &self.tokenizer).finish_non_exhaustive()
    }
}

/// The grammars used last, latest first.
#[derive(Default)]
struct Cache {
    entries: VecDeque<(String, Arc<CompiledGrammar>)>,
    bytes: usize,
}

impl Cache {
    fn find(&mut self, key: &str) -> Option<Arc<CompiledGrammar>> {
        let at = self.entries.iter().position(|(known, _)| known == key)?;
        let entry = self.entries.remove(at)?;
        let found = entry.1.clone();
        self.entries.push_front(entry);
        Some(found)
    }

    fn insert(&mut self, key: String, compiled: Arc<CompiledGrammar>) {
        if self.entries.iter().any(|(known, _)| *known == key) {
            return;
        }
        self.bytes += key.len();
        self.entries.push_front((key, compiled));
        while self.entries.len() > REMEMBERED || self.bytes > REMEMBERED_BYTES {
            let Some((key, _)) = self.entries.pop_back() else { return };
            self.bytes -= key.len();
        }
    }
}
