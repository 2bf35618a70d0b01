//! One launch of a step after the other: the plan's operations on the device's kernels.

use super::buffers::Buffers;
use super::schedule::{Launch, Layout, Schedule, written};
use super::weights::Weights;
use crate::backend::qkv_layout;
use crate::cache::CacheSizes;
use crate::errors::EngineError;
use crate::plan::{Op, ParamId, Plan, Rows, StateLayerSpec, View};
use atlas_kernels::KvDtype;
use atlas_kernels::cuda::{
    AttentionKernels, AttentionOp, AttentionRoom, DeltaBuffers, DeltaCaches, DeltaColumns, DeltaKernels, DeltaParams,
    DeltaRates, DeltaRoom, DeltaScratch, DeltaShape, Device, GatedNorm, GatedNormKernels, Gates, HeadNorms, KvPages,
    LinearKernels, LinearOut, LinearRows, Memory, Norm, NormRows, PackedRows, Rope, RopeKernel, RowKernels, StepRoom,
};
use std::collections::HashMap;
use std::collections::hash_map::Entry;

/// Everything that the launches of a step use.
pub(super) struct Launches {
    pub(super) plan: Plan,
    pub(super) schedule: Schedule,
    pub(super) buffers: Buffers,
    pub(super) weights: Weights,
    rows: RowKernels,
    linear: LinearKernels,
    rope: RopeKernel,
    /// By width of a head.
    attention: HashMap<usize, AttentionKernels>,
    delta: HashMap<DeltaShape, DeltaKernels>,
    gated_norm: GatedNormKernels,
    kv: Vec<KvPages>,
    states: Vec<DeltaCaches>,
    frequencies: Vec<Memory>,
    scratch: Scratch,
}

/// Memory that kernels use between themselves, shared by all layers.
struct Scratch {
    device: Device,
    attention: Memory,
    delta: HashMap<DeltaShape, DeltaScratch>,
    delta_rows: usize,
}

/// The step of a launch, with the room that it makes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Room {
    pub(super) rows: StepRoom,
    pub(super) few: usize,
    pub(super) few_rows: usize,
    pub(super) tiles: usize,
    pub(super) context: usize,
    /// Whether operations that kernels fuse are wanted one by one where that can be had.
    pub(super) observed: bool,
}

impl Room {
    fn attention(&self) -> AttentionRoom {
        AttentionRoom {
            step: self.rows.step,
            rows: self.rows.rows,
            few: self.few,
            few_rows: self.few_rows,
            tiles: self.tiles,
            context: self.context,
        }
    }

    fn delta(&self) -> DeltaRoom {
        DeltaRoom { step: self.rows.step, rows: self.rows.rows, few: self.few, tiles: self.tiles }
    }

    /// Rows that a launch into buffers of this kind makes room for.
    pub(super) fn of(&self, rows: Rows) -> usize {
        if rows == Rows::Step { self.rows.rows } else { self.rows.logit_rows }
    }
}

impl Launches {
    /// Resolves every kernel that the plan needs and allocates the caches.
    pub(super) fn new(device: &Device, plan: Plan, kv_dtype: KvDtype, sizes: &CacheSizes) -> Result<Self, EngineError> {
        let schedule = Schedule::new(&plan)?;
        let (mut attention, mut delta) = (HashMap::new(), HashMap::new());
        for layer in &plan.kv_layers {
            if let Entry::Vacant(entry) = attention.entry(layer.head_dim) {
                entry.insert(AttentionKernels::new(device, layer.head_dim, kv_dtype)?);
            }
        }
        for layer in &plan.state_layers {
            if let Entry::Vacant(entry) = delta.entry(delta_shape(layer)) {
                let shape = *entry.key();
                entry.insert(DeltaKernels::new(device, shape)?);
            }
        }
        let fused: Vec<usize> = (schedule.launches.iter())
            .filter_map(|launch| if let Launch::LinearSilu(op) = launch { Some(*op) } else { None })
            .collect();
        let weights = Weights::new(device, &plan, |op| fused.contains(&op))?;
        let kv = (plan.kv_layers.iter())
            .map(|l| KvPages::new(device, kv_dtype, l.scales, sizes.pages, l.kv_heads, l.head_dim))
            .collect::<Result<_, _>>()?;
        let states = (plan.state_layers.iter())
            .map(|layer| {
                let (anchors, rings) = (sizes.anchors + 1, sizes.rings);
                DeltaCaches::new(device, delta_shape(layer), anchors, sizes.open_pages, rings, sizes.ring_rows)
            })
            .collect::<Result<_, _>>()?;
        let frequencies = plan.ropes.iter().map(|rope| device.upload(&rope.inv_freq)).collect::<Result<_, _>>()?;
        Ok(Self {
            buffers: Buffers::new(device, &plan, &schedule),
            rows: RowKernels::new(device)?,
            linear: LinearKernels::new(device)?,
            rope: RopeKernel::new(device)?,
            scratch: Scratch {
                device: device.clone(),
                attention: device.alloc(0)?,
                delta: HashMap::new(),
                delta_rows: 0,
            },
            plan,
            schedule,
            weights,
            attention,
            delta,
            gated_norm: GatedNormKernels::new(device)?,
            kv,
            states,
            frequencies,
        })
    }

    pub(super) fn cache_bytes(&self) -> u64 {
        let kv = self.kv.iter().map(KvPages::bytes);
        kv.chain(self.states.iter().map(DeltaCaches::bytes)).map(|bytes| bytes as u64).sum()
    }

    /// Makes room for a step. True if memory moved: graphs that remember its addresses are stale.
    pub(super) fn reserve(&mut self, room: &Room) -> Result<bool, EngineError> {
        let mut moved = self.buffers.reserve(room.rows.rows, room.rows.logit_rows)?;
        let attention = room.attention();
        let needed = (self.plan.ops.iter())
            .filter_map(|planned| match &planned.op {
                Op::Attention { layout, .. } => {
                    Some(self.attention[&layout.head_dim].scratch_bytes(&attention, &qkv_layout(layout)))
                }
                _ => None,
            })
            .max()
            .unwrap_or(0);
        let scratch = &mut self.scratch;
        if needed > scratch.attention.bytes() {
            scratch.device.synchronize()?;
            scratch.attention = scratch.device.alloc(needed.next_multiple_of(1 << 20))?;
            moved = true;
        }
        let rule_alone = |launch: &Launch| match launch {
            Launch::Single(op) => matches!(self.plan.ops[*op].op, Op::GatedDelta { .. }),
            _ => false,
        };
        let rows = if room.tiles > 0 || self.schedule.launches.iter().any(rule_alone) { room.rows.rows } else { 0 };
        if scratch.delta.is_empty() || rows > scratch.delta_rows {
            scratch.device.synchronize()?;
            scratch.delta.clear();
            for shape in self.delta.keys() {
                scratch.delta.insert(*shape, DeltaScratch::new(&scratch.device, *shape, rows)?);
            }
            scratch.delta_rows = rows;
            moved |= !self.delta.is_empty();
        }
        Ok(moved)
    }

    /// Queues a launch.
    pub(super) fn run(&self, launch: Launch, room: &Room) -> Result<(), EngineError> {
        let op = |offset: usize| &self.plan.ops[launch.ops().start + offset].op;
        match launch {
            Launch::Convert { view, to } => self.convert(view, to, room),
            Launch::Single(index) => self.single(index, &self.plan.ops[index].op, room),
            Launch::GatherNorm(_) => match (op(0), op(1)) {
                (Op::GatherLogitRows { x, .. }, Op::RmsNorm { weight, eps, unit_offset, out, .. }) => {
                    self.norm(*x, *weight, (*eps, *unit_offset), *out, true, room)
                }
                _ => unreachable_launch(launch),
            },
            Launch::LinearSilu(index) => match (op(0), op(1)) {
                (Op::Linear { x, .. }, Op::SiluMul { out, .. }) => {
                    let rows = room.of(self.plan.buffers[out.buffer.0].rows);
                    let target = LinearOut::SiluMul(self.packed(*out), rows.div_ceil(8));
                    self.project(index, *x, target, room)
                }
                _ => unreachable_launch(launch),
            },
            Launch::GatedAttention(_) => self.attend(op(0), true, room),
            Launch::DeltaNet(_) => match (op(0), op(1), op(2)) {
                (
                    Op::CausalConv { x, weight: conv, out: convolved, .. },
                    Op::GatedDelta { a_offset, b_offset, a_log, dt_bias, layer, out: mixed, .. },
                    Op::GatedNorm { gate_offset, weight: norm, eps, out, .. },
                ) => {
                    let shape = delta_shape(&self.plan.state_layers[*layer]);
                    let columns = DeltaColumns { width: x.width, z: *gate_offset, a: *a_offset, b: *b_offset };
                    let vector = |id: &ParamId| self.weights.vector_of(*id);
                    let params = DeltaParams {
                        conv: vector(conv),
                        rates: DeltaRates { a_log: vector(a_log), dt_bias: vector(dt_bias) },
                        norm: vector(norm),
                        norm_eps: *eps,
                    };
                    let buffers = DeltaBuffers {
                        projected: self.row_major(*x),
                        gated: self.packed(*out),
                        convolved: self.row_major(*convolved),
                        mixed: self.row_major(*mixed),
                        observed: room.observed,
                    };
                    let scratch = &self.scratch.delta[&shape];
                    let kernels = &self.delta[&shape];
                    Ok(kernels.launch(&room.delta(), &columns, &params, &self.states[*layer], scratch, &buffers)?)
                }
                _ => unreachable_launch(launch),
            },
        }
    }

    fn single(&self, index: usize, op: &Op, room: &Room) -> Result<(), EngineError> {
        match op {
            Op::Embed { table, out } => {
                let table = self.weights.embedding(*table);
                Ok(self.rows.embed(&room.rows, table, self.row_major(*out), out.width)?)
            }
            Op::GatherLogitRows { x, out } => {
                Ok(self.rows.gather(&room.rows, self.row_major(*x), self.row_major(*out), out.width)?)
            }
            Op::RmsNorm { x, weight, eps, unit_offset, out } => {
                self.norm(*x, *weight, (*eps, *unit_offset), *out, false, room)
            }
            Op::Linear { x, out, accumulate, .. } => {
                let memory = self.row_major(*out);
                let target = match accumulate {
                    _ if out.buffer == self.plan.logits.buffer => LinearOut::Logits(memory, out.width),
                    true => LinearOut::Accumulate(memory, out.width),
                    false => LinearOut::Store(memory, out.width),
                };
                self.project(index, *x, target, room)
            }
            Op::RopeStore { qkv, layout, norms, rope, layer } => {
                let spec = &self.plan.ropes[*rope];
                let norms = norms.map(|(q, k, eps, unit_offset)| HeadNorms {
                    q: self.weights.vector_of(q),
                    k: self.weights.vector_of(k),
                    norm: Norm { eps, unit_offset },
                });
                let rope = Rope {
                    inv_freq: &self.frequencies[*rope],
                    half: spec.inv_freq.len(),
                    attention_scaling: spec.attention_scaling,
                };
                let (qkv_rows, layout) = (self.row_major(*qkv), qkv_layout(layout));
                Ok(self.rope.rope_store(&room.rows, qkv_rows, qkv.width, &layout, norms, rope, &self.kv[*layer])?)
            }
            Op::Attention { .. } => self.attend(op, false, room),
            Op::GateOutput { x, gate, layout } => {
                let gates = Gates {
                    width: gate.width,
                    offset: layout.head_dim,
                    head_stride: layout.q_stride,
                    head_dim: layout.head_dim,
                    heads: layout.heads,
                };
                Ok(self.rows.gate_output(&room.rows, self.packed(*x), self.row_major(*gate), &gates)?)
            }
            Op::SiluMul { gate_up, out } => {
                Ok(self.rows.silu_mul(&room.rows, self.row_major(*gate_up), self.packed(*out), out.width)?)
            }
            Op::CausalConv { x, weight, layer, out, .. } => {
                let (kernels, caches) =
                    (&self.delta[&delta_shape(&self.plan.state_layers[*layer])], &self.states[*layer]);
                let (weight, target) = (self.weights.vector_of(*weight), self.row_major(*out));
                Ok(kernels.convolve(&room.delta(), self.row_major(*x), x.width, weight, caches, target)?)
            }
            Op::GatedDelta { qkv, ab, a_offset, b_offset, a_log, dt_bias, layer, out } => {
                let shape = delta_shape(&self.plan.state_layers[*layer]);
                let rates =
                    DeltaRates { a_log: self.weights.vector_of(*a_log), dt_bias: self.weights.vector_of(*dt_bias) };
                Ok(self.delta[&shape].mix(
                    &room.delta(),
                    self.row_major(*qkv),
                    self.row_major(*ab),
                    &DeltaColumns { width: ab.width, z: 0, a: *a_offset, b: *b_offset },
                    rates,
                    &self.states[*layer],
                    &self.scratch.delta[&shape],
                    self.row_major(*out),
                )?)
            }
            Op::GatedNorm { x, gate, gate_offset, heads, weight, eps, out } => {
                let norm = GatedNorm {
                    x: self.row_major(*x),
                    gate: self.row_major(*gate),
                    gate_columns: (gate.width, *gate_offset),
                    heads: *heads,
                    dim: x.width / heads,
                    weight: self.weights.vector_of(*weight),
                    eps: *eps,
                    out: self.packed(*out),
                };
                Ok(self.gated_norm.launch(&room.delta(), &norm)?)
            }
        }
    }

    fn norm(
        &self,
        x: View,
        weight: ParamId,
        (eps, unit_offset): (f32, bool),
        out: View,
        gather: bool,
        room: &Room,
    ) -> Result<(), EngineError> {
        let which = match self.plan.buffers[x.buffer.0].rows {
            _ if gather => NormRows::Gather,
            Rows::Step => NormRows::Step,
            Rows::Logits => NormRows::Logits,
        };
        let (x, weight, target) = (self.row_major(x), self.weights.vector_of(weight), self.packed(out));
        Ok(self.rows.rms_norm(&room.rows, x, weight, target, out.width, Norm { eps, unit_offset }, which)?)
    }

    fn project(&self, index: usize, x: View, out: LinearOut<'_>, room: &Room) -> Result<(), EngineError> {
        let rows = self.plan.buffers[x.buffer.0].rows;
        let capacity = room.of(rows);
        let counted = if rows == Rows::Step { LinearRows::Step } else { LinearRows::Logits };
        let x = PackedRows { memory: self.packed(x), groups: capacity.div_ceil(8) };
        Ok(self.linear.run(self.weights.linear(index), x, out, &room.rows.step, counted, capacity)?)
    }

    fn attend(&self, op: &Op, gated: bool, room: &Room) -> Result<(), EngineError> {
        let Op::Attention { qkv, layout, layer, scale, window, out } = op else { return Ok(()) };
        let kernels = &self.attention[&layout.head_dim];
        let op = AttentionOp { scale: *scale, window: *window, gated };
        Ok(kernels.attention(
            &room.attention(),
            self.row_major(*qkv),
            qkv.width,
            &qkv_layout(layout),
            &op,
            &self.kv[*layer],
            &self.scratch.attention,
            self.packed(*out),
        )?)
    }

    fn convert(&self, view: View, to: Layout, room: &Room) -> Result<(), EngineError> {
        let rows = room.of(self.plan.buffers[view.buffer.0].rows);
        let (row_major, packed) = (self.row_major(view), self.packed(view));
        match to {
            Layout::Packed => Ok(self.rows.pack(row_major, packed, rows, view.width)?),
            Layout::Rows => Ok(self.rows.unpack(packed, row_major, rows, view.width)?),
        }
    }

    /// The output of an operation as f32 rows, for an observer.
    pub(super) fn observe(&self, op: usize, rows: usize, room: &Room) -> Result<Vec<f32>, EngineError> {
        let out = self.plan.ops[op].op.out();
        let (layout, device) = (written(&self.plan.ops[op].op), &self.scratch.device);
        let memory = self.buffers.get(out.buffer, layout);
        let mut values = vec![0.0; rows * out.width];
        if out.buffer == self.plan.logits.buffer {
            device.read(memory, 0, &mut values)?;
            return Ok(values);
        }
        let wide = device.alloc(4 * values.len())?;
        let capacity = room.of(self.plan.buffers[out.buffer.0].rows);
        self.rows.to_f32(memory, layout == Layout::Packed, &wide, rows, out.width, capacity)?;
        device.read(&wide, 0, &mut values)?;
        Ok(values)
    }

    fn row_major(&self, view: View) -> &Memory {
        self.buffers.get(view.buffer, Layout::Rows)
    }

    fn packed(&self, view: View) -> &Memory {
        self.buffers.get(view.buffer, Layout::Packed)
    }
}

fn unreachable_launch(launch: Launch) -> Result<(), EngineError> {
    unreachable!("{launch:?} does not cover the operations that it was made for")
}

fn delta_shape(layer: &StateLayerSpec) -> DeltaShape {
    DeltaShape {
        k_heads: layer.key_heads,
        v_heads: layer.value_heads,
        k_dim: layer.key_dim,
        v_dim: layer.value_dim,
        channels: layer.conv_channels,
        taps: layer.conv_taps,
    }
}
