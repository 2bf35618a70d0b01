//! Compiling what requests ask for, bounded in number and time and away from the threads that serve connections.

use crate::error::ApiError;
use crate::model::ServedModel;
use atlas_engine::sampling::grammar::{CompiledGrammar, GrammarCompiler, OutputGrammar};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;

/// Grammars that are compiled at once. Their time is bounded in all but hostile cases, and then by this.
const AT_ONCE: usize = 2;
/// How long a request waits for its turn, and then for its grammar.
const PATIENCE: Duration = Duration::from_secs(10);

/// The grammars of one served model.
#[derive(Debug, Clone)]
pub(crate) struct Grammars {
    compiler: Arc<GrammarCompiler>,
    turns: Arc<Semaphore>,
}

impl Grammars {
    pub(crate) fn new(compiler: GrammarCompiler) -> Self {
        Self { compiler: Arc::new(compiler), turns: Arc::new(Semaphore::new(AT_ONCE)) }
    }
}

/// Compiles a grammar; an error names `field`.
pub(crate) async fn compile(
    model: &ServedModel,
    grammar: OutputGrammar,
    field: &str,
) -> Result<Arc<CompiledGrammar>, ApiError> {
    let Grammars { compiler, turns } = &model.grammars;
    let busy = || ApiError::busy("too many grammars are being compiled", Duration::from_secs(2));
    let turn = tokio::time::timeout(PATIENCE, turns.clone().acquire_owned()).await;
    let turn = turn.map_err(|_| busy())?.map_err(|_| busy())?;
    let compiler = compiler.clone();
    let work = tokio::task::spawn_blocking(move || {
        let compiled = compiler.compile(&grammar);
        // Given back when the work is done, even if nobody waits for it any more.
        drop(turn);
        compiled
    });
    let seconds = PATIENCE.as_secs();
    let slow = |_| ApiError::field(field, format!("takes more than {seconds} seconds to compile; simplify it"));
    let compiled = tokio::time::timeout(PATIENCE, work).await.map_err(slow)?;
    let compiled = compiled.map_err(|_| ApiError::internal("the grammar could not be compiled"))?;
    compiled.map_err(|error| ApiError::field(field, error))
}
