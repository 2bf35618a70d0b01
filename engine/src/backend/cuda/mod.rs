//! The CUDA backend: bf16 activations, BF16 and NVFP4 weights, bf16 and fp8 keys and values.
//!
//! A step's arrays are copied to fixed addresses; then its launches are queued without the host in between. Steps of
//! decode rows and verify groups come in few shapes, whose launches are captured as graphs. The host waits once, for
//! the chosen tokens.

mod buffers;
mod launches;
mod profile;
mod rows;
mod schedule;
mod selections;
mod weights;

use super::{ActivationDtype, Backend, BackendOptions, Observer, Prepare, RowOutput, StepOutput};
use crate::cache::PAGE;
use crate::config::spec::ParamSpec;
use crate::errors::EngineError;
use crate::plan::{ParamId, Plan, Rows};
use crate::sampling::Selection;
use crate::schedule::StepBatch;
use crate::weights::RawParam;
use atlas_kernels::cuda::{
    Device, FEW_ROWS, Graph, SampleKernels, StepArena, StepRoom, StepRows, device_count, probe_memory,
};
use launches::{Launches, Room};
use profile::Profile;
use rows::Shape;
use schedule::{Launch, Layout};
use std::collections::HashMap;

/// Bytes that [`memory_rates`] reads: far more than any cache holds.
const PROBE_BYTES: usize = 1 << 30;
/// Graphs that are kept; a rare shape beyond them is launched operation by operation.
const MAX_GRAPHS: usize = 64;
/// Set (to anything) to launch every step operation by operation: for comparison with graphs.
const NO_GRAPHS: &str = "ATLAS_CUDA_NO_GRAPHS";

/// Whether a CUDA device can be used on this machine; the error says why not.
pub fn available() -> Result<(), EngineError> {
    Ok(device_count().map(drop)?)
}

/// Free and total bytes of a device's memory.
pub fn memory(ordinal: usize) -> Result<(usize, usize), EngineError> {
    Ok(Device::open(ordinal)?.memory()?)
}

/// Bytes a second that streaming reads of a device's memory reach, and a copy (read and written bytes counted).
pub fn memory_rates(ordinal: usize) -> Result<(f64, f64), EngineError> {
    Ok(probe_memory(&Device::open(ordinal)?, PROBE_BYTES)?)
}

/// One model on one CUDA device.
pub struct CudaBackend {
    device: Device,
    launches: Launches,
    arena: StepArena,
    rows: StepRows,
    sampling: SampleKernels,
    /// Graphs by shape; `None` for a shape that was seen once.
    graphs: HashMap<Shape, Option<Graph>>,
    /// Whether steps may be captured.
    capture: bool,
    profile: Option<Profile>,
    options: BackendOptions,
    /// Rows of logits that were asked for whole, of the last step.
    logits: Vec<f32>,
}

impl CudaBackend {
    /// Resolves every operation of `plan` on the device and allocates caches and buffers.
    ///
    /// # Errors
    /// If there is no such device, it lacks an operation or a format, or has no room.
    pub fn new(plan: Plan, ordinal: usize, options: &BackendOptions) -> Result<Self, EngineError> {
        if options.activations != ActivationDtype::Bf16 {
            return Err(EngineError::Unsupported("activation_dtype: CUDA computes with bf16 activations only".into()));
        }
        let profile = Profile::from_env()?;
        let device = Device::open(ordinal)?;
        let vocab = plan.logits.width;
        let launches = Launches::new(&device, plan, options.kv_dtype, &options.sizes)?;
        let mut this = Self {
            arena: arena(&device, options, options.step_rows)?,
            sampling: SampleKernels::new(&device, FEW_ROWS, vocab)?,
            device,
            launches,
            rows: StepRows::default(),
            graphs: HashMap::new(),
            capture: std::env::var_os(NO_GRAPHS).is_none() && profile.is_none(),
            profile,
            options: *options,
            logits: Vec::new(),
        };
        let shape = Shape {
            rows: options.step_rows.next_multiple_of(8),
            logit_rows: FEW_ROWS,
            few: FEW_ROWS,
            few_rows: 1,
            tiles: options.step_rows.div_ceil(64),
            context: options.sizes.pages * PAGE,
        };
        this.reserve(shape)?;
        Ok(this)
    }

    /// Makes room for steps of this shape.
    fn reserve(&mut self, shape: Shape) -> Result<Room, EngineError> {
        if shape.rows > self.arena.max_rows() {
            self.device.synchronize()?;
            self.arena = arena(&self.device, &self.options, shape.rows)?;
            self.graphs.clear();
        }
        if shape.logit_rows > self.sampling.max_rows() {
            self.device.synchronize()?;
            self.sampling = SampleKernels::new(&self.device, shape.logit_rows, self.launches.plan.logits.width)?;
            self.graphs.clear();
        }
        let room = self.room(shape);
        if self.launches.reserve(&room)? {
            self.graphs.clear();
        }
        Ok(room)
    }

    fn room(&self, shape: Shape) -> Room {
        Room {
            rows: StepRoom { step: self.arena.args(shape.rows), rows: shape.rows, logit_rows: shape.logit_rows },
            few: shape.few,
            few_rows: shape.few_rows,
            tiles: shape.tiles,
            context: shape.context,
            observed: false,
        }
    }

    /// Queues all launches of a step, then the choice of its tokens.
    fn queue(&self, room: &Room) -> Result<(), EngineError> {
        for launch in &self.launches.schedule.launches {
            if !self.is_empty(*launch, room) {
                self.launches.run(*launch, room)?;
            }
        }
        self.choose(room)
    }

    fn choose(&self, room: &Room) -> Result<(), EngineError> {
        if room.rows.logit_rows == 0 {
            return Ok(());
        }
        let logits = self.launches.buffers.get(self.launches.plan.logits.buffer, Layout::Rows);
        Ok(self.sampling.launch(room.rows.step, logits, room.rows.logit_rows)?)
    }

    /// Whether a launch has no rows: nobody wants logits of this step.
    fn is_empty(&self, launch: Launch, room: &Room) -> bool {
        let plan = &self.launches.plan;
        let buffer = match launch {
            Launch::Convert { view, .. } => view.buffer,
            _ => plan.ops[launch.ops().end - 1].op.out().buffer,
        };
        room.of(plan.buffers[buffer.0].rows) == 0
    }

    /// Computes the step as a graph if its shape has one, or now gets one.
    fn replay(&mut self, shape: Shape, room: &Room) -> Result<(), EngineError> {
        if !self.capture || !shape.is_decode() {
            return self.queue(room);
        }
        match self.graphs.get(&shape) {
            Some(Some(graph)) => Ok(graph.launch()?),
            // The first time loads kernels, which a capture must not, and a shape may never come again.
            None if self.graphs.len() < MAX_GRAPHS => {
                self.graphs.insert(shape, None);
                self.queue(room)
            }
            None => self.queue(room),
            Some(None) => {
                let graph = self.device.capture(|| self.queue(room))?;
                graph.launch()?;
                self.graphs.insert(shape, Some(graph));
                Ok(())
            }
        }
    }

    /// Runs the step launch by launch and shows its outputs.
    fn observe(&self, batch: &StepBatch, room: &Room, observer: &mut dyn Observer) -> Result<(), EngineError> {
        let plan = &self.launches.plan;
        for launch in &self.launches.schedule.launches {
            if self.is_empty(*launch, room) {
                continue;
            }
            self.launches.run(*launch, room)?;
            let ops = launch.ops();
            // What a kernel keeps to itself has no output; of a gated delta net all three are written.
            let seen =
                if let Launch::DeltaNet(_) = launch { ops } else { ops.end.saturating_sub(1).max(ops.start)..ops.end };
            for op in seen {
                let out = plan.ops[op].op.out();
                let rows = match plan.buffers[out.buffer.0].rows {
                    Rows::Step => batch.rows(),
                    Rows::Logits => batch.logit_rows.len(),
                };
                if rows > 0 {
                    let values = self.launches.observe(op, rows, room)?;
                    observer.after(op, &plan.ops[op], &values, rows, out.width);
                }
            }
        }
        self.choose(room)
    }

    /// What was asked of each logit row, when the stream has passed.
    fn collect(&mut self, batch: &StepBatch) -> Result<StepOutput<'_>, EngineError> {
        let vocab = self.launches.plan.logits.width;
        let buffer = self.launches.buffers.get(self.launches.plan.logits.buffer, Layout::Rows);
        let asked = || batch.selections.iter().enumerate();
        let whole = asked().filter(|(_, selection)| **selection == Selection::Logits);
        self.logits.resize(whole.clone().count() * vocab, 0.0);
        for ((row, _), target) in whole.zip(self.logits.chunks_exact_mut(vocab)) {
            self.device.read(buffer, 4 * row * vocab, target)?;
        }
        let mut whole = self.logits.chunks_exact(vocab);
        let output = |(row, selection): (usize, &Selection)| match selection {
            Selection::Logits => RowOutput::Logits(whole.next().unwrap_or_default()),
            _ => selections::answer(&self.sampling, row),
        };
        Ok(StepOutput { rows: asked().map(output).collect() })
    }
}

fn arena(device: &Device, options: &BackendOptions, rows: usize) -> Result<StepArena, EngineError> {
    let sizes = &options.sizes;
    // Sequences share pages, so any of them may name all; and for each segment its slots: a block is touched for every
    // 64 rows.
    let tables = sizes.pages * sizes.rings.max(1) + 2 * (3 * rows + rows / 64);
    Ok(StepArena::new(device, rows.next_multiple_of(64).max(64), tables)?)
}

impl Prepare for CudaBackend {
    fn load(&mut self, index: usize, param: RawParam) -> Result<(), EngineError> {
        let spec = &self.launches.plan.params[index];
        self.launches.weights.load(ParamId(index), spec, param)
    }

    fn load_random(&mut self, index: usize, spec: &ParamSpec, seed: u64) -> Result<(), EngineError> {
        self.launches.weights.load_random(ParamId(index), spec, seed)
    }

    fn finish(mut self: Box<Self>) -> Result<Box<dyn Backend>, EngineError> {
        self.launches.weights.finish(&self.launches.plan)?;
        Ok(self)
    }
}

impl Backend for CudaBackend {
    fn plan(&self) -> &Plan {
        &self.launches.plan
    }

    fn execute(
        &mut self,
        batch: &StepBatch,
        observer: Option<&mut dyn Observer>,
    ) -> Result<StepOutput<'_>, EngineError> {
        let vocab = self.launches.plan.logits.width as u32;
        if let Some(token) = batch.tokens.iter().find(|token| **token >= vocab) {
            return Err(EngineError::Unsupported(format!("token {token} is outside the vocabulary of {vocab}")));
        }
        let shape = Shape::of(batch);
        let room = Room { observed: observer.is_some(), ..self.reserve(shape)? };
        rows::fill(&mut self.rows, batch);
        self.arena.upload(&self.rows, shape.rows)?;
        self.sampling.upload(&batch.selections.iter().map(selections::asked).collect::<Vec<_>>())?;
        let profiled = self.profile.as_mut().is_some_and(|profile| profile.wants(batch.rows()));
        if profiled {
            self.device.set_profiling(true)?;
        }
        match observer {
            Some(observer) => self.observe(batch, &room, observer)?,
            None => self.replay(shape, &room)?,
        }
        self.device.synchronize()?;
        if profiled {
            self.device.set_profiling(false)?;
        }
        self.collect(batch)
    }

    fn resumes_at_anchors(&self) -> bool {
        true
    }

    fn weight_bytes(&self) -> u64 {
        self.launches.weights.bytes()
    }

    fn cache_bytes(&self) -> u64 {
        self.launches.cache_bytes()
    }
}
