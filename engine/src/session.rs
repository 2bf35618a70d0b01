//! One sequence computed directly, without the scheduler: evaluations, self-tests and benchmarks.

use crate::backend::{Observer, StepOutput};
use crate::cache::{Caches, Sequence};
use crate::errors::EngineError;
use crate::model::Model;
use crate::sampling::{Sampler, SamplingParams, Selection};
use crate::schedule::StepBatch;
use crate::schedule::batch::WantLogits;

/// One sequence on one model.
pub struct Session<'a> {
    model: &'a mut Model,
    caches: Caches,
    sequence: Sequence,
}

impl<'a> Session<'a> {
    /// An empty sequence. The model's caches must not be in use by anything else.
    pub fn new(model: &'a mut Model) -> Result<Self, EngineError> {
        let caches = Caches::new(&model.sizes, model.is_recurrent());
        let sequence = caches.sequence().map_err(|error| EngineError::Memory(error.to_string()))?;
        Ok(Self { model, caches, sequence })
    }

    /// Appends `tokens` and returns the logits of the rows asked for, `[rows, vocab]`.
    pub fn forward(
        &mut self,
        tokens: &[u32],
        want: WantLogits,
        observer: Option<&mut dyn Observer>,
    ) -> Result<Vec<f32>, EngineError> {
        self.compute(tokens, want, observer, |output| output.logits())
    }

    /// Appends `tokens` and reads what was wanted of them.
    fn compute<T>(
        &mut self,
        tokens: &[u32],
        want: WantLogits,
        observer: Option<&mut dyn Observer>,
        read: impl FnOnce(StepOutput<'_>) -> Result<T, EngineError>,
    ) -> Result<T, EngineError> {
        if self.sequence.len() + tokens.len() > self.model.context {
            return Err(EngineError::Unsupported(format!(
                "{} tokens do not fit the context of {}",
                self.sequence.len() + tokens.len(),
                self.model.context
            )));
        }
        let reservation = self.caches.reserve(&self.sequence, tokens.len());
        let reservation = reservation.map_err(|error| EngineError::Memory(error.to_string()))?;
        let mut batch = StepBatch::default();
        batch.push(&self.sequence, &reservation, tokens, want);
        let found = read(self.model.backend.execute(&batch, observer)?)?;
        self.sequence.commit(reservation, tokens.len());
        Ok(found)
    }

    /// Logits of every token of `tokens`, computed in chunks of `chunk` tokens.
    pub fn all_logits(&mut self, tokens: &[u32], chunk: usize) -> Result<Vec<f32>, EngineError> {
        let mut logits = Vec::new();
        for part in tokens.chunks(chunk.max(1)) {
            logits.extend(self.forward(part, WantLogits::All, None)?);
        }
        Ok(logits)
    }

    /// Greedy continuation of `prompt` by exactly `count` tokens; end-of-sequence ids do not end it.
    pub fn greedy(&mut self, prompt: &[u32], count: usize, chunk: usize) -> Result<Vec<u32>, EngineError> {
        let mut sampler = Sampler::new(&SamplingParams::default(), prompt, self.model.spec.vocab);
        let mut choose = |output: StepOutput<'_>| {
            let Some(row) = output.rows.last() else { return Ok(None) };
            sampler.choose_from(row, 0).map(Some).map_err(|error| EngineError::Unsupported(error.to_string()))
        };
        let want = WantLogits::Choice(Selection::Greedy);
        let mut next = None;
        let chunks = prompt.len().div_ceil(chunk.max(1));
        for (index, part) in prompt.chunks(chunk.max(1)).enumerate() {
            let want = if index + 1 == chunks { want } else { WantLogits::None };
            next = self.compute(part, want, None, &mut choose)?;
        }
        let mut tokens = Vec::with_capacity(count);
        while let Some(token) = next.filter(|_| tokens.len() < count) {
            tokens.push(token);
            if tokens.len() < count {
                next = self.compute(&[token], want, None, &mut choose)?;
            }
        }
        Ok(tokens)
    }
}
