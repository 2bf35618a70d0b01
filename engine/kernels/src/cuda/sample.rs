//! Choosing tokens where the logits are (`cuda/sample.cu`).

use super::device::{Device, Memory, Pinned, Plain};
use super::error::CudaError;
use super::launch::{Launch, Params};
use super::module::Kernel;
use super::step::StepArgs;

/// The most tokens that [`RowSelection::top`] gives.
pub const MAX_TOP: usize = 256;

/// Logits of a chunk and of a part, and threads of a block: constants of the kernels.
const CHUNK: usize = 128;
const PART: usize = 2048;
const THREADS: u32 = 256;
const BLOCKS_PER_MULTIPROCESSOR: u32 = 4;

/// What is asked of a row of logits.
#[derive(Debug, Clone, Copy, PartialEq)]
#[repr(C)]
pub struct RowSelection {
    kind: u32,
    k: u32,
    temperature: f32,
    reserved: u32,
    seed: u64,
    position: u64,
}

// SAFETY: numbers without padding.
unsafe impl Plain for RowSelection {}

impl RowSelection {
    const NOTHING: Self = Self { kind: 0, k: 0, temperature: 0.0, reserved: 0, seed: 0, position: 0 };

    /// Nothing: the host looks at the row itself.
    pub fn logits() -> Self {
        Self::NOTHING
    }

    /// The largest logit, ties to the lower id.
    pub fn greedy() -> Self {
        Self { kind: 1, ..Self::NOTHING }
    }

    /// The largest `(logit - largest) / temperature + noise`, ties to the lower id.
    ///
    /// # Panics
    /// Unless the temperature is positive.
    pub fn sample(temperature: f32, seed: u64, position: u64) -> Self {
        assert!(temperature > 0.0, "a temperature of {temperature}");
        Self { kind: 2, temperature, seed, position, ..Self::NOTHING }
    }

    /// The `k` largest logits, ties to the lower id.
    ///
    /// # Panics
    /// Unless `k` is 1 to [`MAX_TOP`].
    pub fn top(k: usize) -> Self {
        assert!((1..=MAX_TOP).contains(&k), "the {k} best tokens");
        Self { kind: 3, k: k as u32, ..Self::NOTHING }
    }
}

/// A token and its logit. Minus zero is given as zero, so that tokens of equal logits are in the order of ids.
#[derive(Debug, Clone, Copy, PartialEq)]
#[repr(C)]
pub struct Candidate {
    /// The token.
    pub id: u32,
    /// Its logit.
    pub logit: f32,
}

// SAFETY: numbers without padding.
unsafe impl Plain for Candidate {}

/// The answer to a [`RowSelection`] other than [`RowSelection::logits`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Choice<'a> {
    /// The chosen token.
    Token(u32),
    /// The best tokens, best first.
    Top(&'a [Candidate]),
    /// The first token whose logit is NaN or plus infinity.
    NotANumber(u32),
    /// All logits are minus infinity.
    NothingAllowed,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct DeviceChoice {
    status: u32,
    token: u32,
    candidates: u32,
    reserved: u32,
}

// SAFETY: numbers without padding.
unsafe impl Plain for DeviceChoice {}

#[derive(Clone, Copy)]
#[repr(C)]
struct SampleArgs {
    step: StepArgs,
    logits: u64,
    selections: u64,
    choices: u64,
    candidates: u64,
    chunk_best: u64,
    part_best: u64,
    part_choice: u64,
    arrived: u64,
    vocab: u32,
    chunks: u32,
    parts: u32,
    reserved: u32,
}

// SAFETY: mirrors `SampleArgs` of sample.cu.
unsafe impl Params for SampleArgs {}

/// The kernels and their memory, for steps of up to `max_rows` logit rows.
pub struct SampleKernels {
    device: Device,
    maxima: Kernel,
    choose: Kernel,
    selections: Memory,
    /// What `selections` holds, or will when the stream has passed.
    staged: Pinned,
    staged_rows: usize,
    chunk_best: Memory,
    part_best: Memory,
    part_choice: Memory,
    arrived: Memory,
    choices: Pinned,
    candidates: Pinned,
    max_rows: usize,
    vocab: usize,
}

impl SampleKernels {
    /// Finds the kernels and allocates.
    pub fn new(device: &Device, max_rows: usize, vocab: usize) -> Result<Self, CudaError> {
        let (chunks, parts) = (vocab.div_ceil(CHUNK), vocab.div_ceil(PART));
        if u32::try_from(vocab).is_err() || max_rows > 65_535 {
            return Err(CudaError::Unsupported(format!("{max_rows} rows of {vocab} logits")));
        }
        Ok(Self {
            device: device.clone(),
            maxima: device.kernel("sample", "row_maxima", 0)?,
            choose: device.kernel("sample", "choose", 0)?,
            selections: device.zeros(size_of::<RowSelection>() * max_rows)?,
            staged: device.pinned(size_of::<RowSelection>() * max_rows)?,
            staged_rows: 0,
            chunk_best: device.zeros(8 * max_rows * chunks)?,
            part_best: device.zeros(8 * max_rows * parts)?,
            part_choice: device.zeros(8 * max_rows * parts)?,
            arrived: device.zeros(4 * max_rows)?,
            choices: device.pinned(size_of::<DeviceChoice>() * max_rows)?,
            candidates: device.pinned(size_of::<Candidate>() * MAX_TOP * max_rows)?,
            max_rows,
            vocab,
        })
    }

    /// Logit rows of the largest step.
    pub fn max_rows(&self) -> usize {
        self.max_rows
    }

    /// Starts the copy of what is asked of the step's logit rows, if it is not there already. The step before must be
    /// done.
    ///
    /// # Panics
    /// If there are more than `max_rows`.
    pub fn upload(&mut self, selections: &[RowSelection]) -> Result<(), CudaError> {
        assert!(selections.len() <= self.max_rows, "{} logit rows of {}", selections.len(), self.max_rows);
        let staged = self.staged.as_mut_slice::<RowSelection>(selections.len());
        if self.staged_rows >= selections.len() && staged == selections {
            return Ok(());
        }
        staged.copy_from_slice(selections);
        self.staged_rows = selections.len();
        self.device.write_async(&self.selections, &self.staged, size_of_val(selections))
    }

    /// Chooses for the logit rows of `step`, of which there are at most `capacity`. The choices are there when the
    /// stream has passed.
    ///
    /// # Panics
    /// If there are not `capacity` rows of logits, or it is larger than `max_rows`.
    pub fn launch(&self, step: StepArgs, logits: &Memory, capacity: usize) -> Result<(), CudaError> {
        assert!(capacity <= self.max_rows, "{capacity} logit rows of {}", self.max_rows);
        assert!(logits.bytes() >= 4 * capacity * self.vocab, "{capacity} rows of logits in {} bytes", logits.bytes());
        let parts = self.vocab.div_ceil(PART) as u32;
        let args = SampleArgs {
            step,
            logits: logits.address(),
            selections: self.selections.address(),
            choices: self.choices.address(),
            candidates: self.candidates.address(),
            chunk_best: self.chunk_best.address(),
            part_best: self.part_best.address(),
            part_choice: self.part_choice.address(),
            arrived: self.arrived.address(),
            vocab: self.vocab as u32,
            chunks: self.vocab.div_ceil(CHUNK) as u32,
            parts,
            reserved: 0,
        };
        // As many thread blocks as run at once share the rows.
        let blocks = BLOCKS_PER_MULTIPROCESSOR * self.device.properties().multiprocessors;
        let shares = (blocks / capacity.max(1) as u32).clamp(1, parts.max(1));
        let shape = |blocks| Launch::new((blocks, capacity as u32, 1), THREADS);
        // SAFETY: all memory is this struct's, of the sizes that the kernels expect; logits were checked above.
        unsafe { self.maxima.launch(shape(parts), &args)? };
        // SAFETY: as above.
        unsafe { self.choose.launch(shape(shares), &args) }
    }

    /// The choice of a logit row of the last step, which must be done.
    ///
    /// # Panics
    /// If there is no such row.
    pub fn choice(&self, row: usize) -> Choice<'_> {
        let choice = self.choices.as_slice::<DeviceChoice>(self.max_rows)[row];
        match choice.status {
            1 => Choice::NotANumber(choice.token),
            2 => Choice::NothingAllowed,
            _ if choice.candidates == 0 => Choice::Token(choice.token),
            _ => {
                let all = self.candidates.as_slice::<Candidate>(MAX_TOP * self.max_rows);
                Choice::Top(&all[row * MAX_TOP..][..choice.candidates as usize])
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_have_the_sizes_of_the_kernels() {
        assert_eq!(size_of::<RowSelection>(), 32);
        assert_eq!(size_of::<DeviceChoice>(), 16);
        assert_eq!(size_of::<Candidate>(), 8);
        assert_eq!(size_of::<SampleArgs>(), size_of::<StepArgs>() + 8 * 8 + 4 * 4);
    }
}
