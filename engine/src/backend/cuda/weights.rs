//! Parameters on the device. Host memory holds the parts of one operation at a time.

use crate::config::WeightFormat;
use crate::config::spec::{ParamShape, ParamSpec};
use crate::errors::EngineError;
use crate::plan::{Op, ParamId, Part, Plan};
use crate::weights::{RawData, RawMatrix, RawParam};
use atlas_kernels::Dense;
use atlas_kernels::cuda::{Device, LinearFormat, LinearShape, Memory, PackedLinear, RawWeight, WeightLoader};
use std::collections::HashMap;

/// A matrix that is to be packed.
enum Source {
    Raw(RawMatrix),
    /// Made on the device.
    Random(LinearFormat, u64),
}

impl Source {
    fn format(&self) -> LinearFormat {
        match self {
            Self::Raw(RawMatrix { data: RawData::Nvfp4 { .. }, .. }) => LinearFormat::Nvfp4,
            Self::Raw(_) => LinearFormat::Bf16,
            Self::Random(format, _) => *format,
        }
    }
}

/// One packed weight of the plan: the parts of a linear operation, or a table.
struct Slot {
    parts: Vec<Part>,
    /// Whether it is a gate and an up projection whose product goes straight through `SiluMul`.
    gate_up: bool,
    waiting: Vec<Option<Source>>,
    weight: Option<PackedLinear>,
}

/// The parameters of a plan.
pub(super) struct Weights {
    device: Device,
    loader: Option<WeightLoader>,
    slots: Vec<Slot>,
    /// Slot of a linear operation, by its place in the plan.
    of_op: HashMap<usize, usize>,
    /// Slot of a table.
    of_table: HashMap<ParamId, usize>,
    /// Which parts of which slots a matrix is.
    uses: HashMap<ParamId, Vec<(usize, usize)>>,
    vectors: HashMap<ParamId, Memory>,
    /// Biases that came before their weights.
    biases: HashMap<ParamId, Vec<f32>>,
}

impl Weights {
    /// Finds out what the operations of `plan` need; `gate_up` tells which linear operations are fused with `SiluMul`.
    pub(super) fn new(device: &Device, plan: &Plan, gate_up: impl Fn(usize) -> bool) -> Result<Self, EngineError> {
        let mut this = Self {
            device: device.clone(),
            loader: Some(WeightLoader::new(device)?),
            slots: Vec::new(),
            of_op: HashMap::new(),
            of_table: HashMap::new(),
            uses: HashMap::new(),
            vectors: HashMap::new(),
            biases: HashMap::new(),
        };
        for (index, planned) in plan.ops.iter().enumerate() {
            match &planned.op {
                Op::Embed { table, out } => this.table(*table, plan, out.width),
                Op::Linear { parts, .. } => {
                    // An output projection that is tied to the embedding is its table.
                    let tied = parts.first().and_then(|part| this.of_table.get(&part.weight)).copied();
                    let slot = match tied {
                        Some(slot) if parts.len() == 1 && parts[0].bias.is_none() => slot,
                        _ => this.slot(parts.clone(), gate_up(index)),
                    };
                    this.of_op.insert(index, slot);
                }
                _ => {}
            }
        }
        Ok(this)
    }

    fn table(&mut self, table: ParamId, plan: &Plan, width: usize) {
        if !self.of_table.contains_key(&table) {
            let rows = match plan.params[table.0].shape {
                ParamShape::Table { rows, .. } => rows,
                shape => shape.dims()[0],
            };
            let part = Part { weight: table, bias: None, column: 0, n: rows, k: width };
            let slot = self.slot(vec![part], false);
            self.of_table.insert(table, slot);
        }
    }

    fn slot(&mut self, parts: Vec<Part>, gate_up: bool) -> usize {
        let slot = self.slots.len();
        for (index, part) in parts.iter().enumerate() {
            self.uses.entry(part.weight).or_default().push((slot, index));
        }
        let waiting = parts.iter().map(|_| None).collect();
        self.slots.push(Slot { parts, gate_up, waiting, weight: None });
        slot
    }

    /// Takes a parameter. One that no operation uses (a draft head) is dropped.
    pub(super) fn load(&mut self, id: ParamId, spec: &ParamSpec, param: RawParam) -> Result<(), EngineError> {
        match param {
            RawParam::Vector(values) => self.vector(id, values),
            RawParam::Matrix(matrix) => {
                if let RawData::Dense(dtype @ (Dense::F32 | Dense::F16), _) = matrix.data {
                    return Err(EngineError::Unsupported(format!(
                        "`{}` is {dtype:?}: CUDA computes with BF16 and NVFP4 weights (use device cpu)",
                        spec.name
                    )));
                }
                self.matrix(id, Source::Raw(matrix))
            }
        }
    }

    /// Makes a random matrix on the device, or takes a random vector.
    pub(super) fn load_random(&mut self, id: ParamId, spec: &ParamSpec, seed: u64) -> Result<(), EngineError> {
        let format = match (spec.shape, spec.format) {
            (ParamShape::Linear { .. }, WeightFormat::Nvfp4) => LinearFormat::Nvfp4,
            (ParamShape::Linear { .. } | ParamShape::Table { .. }, _) => LinearFormat::Bf16,
            (ParamShape::Vector { .. } | ParamShape::Conv { .. }, _) => {
                return self.load(id, spec, crate::weights::synthetic::param(spec, seed));
            }
        };
        self.matrix(id, Source::Random(format, seed))
    }

    fn vector(&mut self, id: ParamId, values: Vec<f32>) -> Result<(), EngineError> {
        self.vectors.insert(id, self.device.upload(&values)?);
        self.biases.insert(id, values);
        Ok(())
    }

    fn matrix(&mut self, id: ParamId, source: Source) -> Result<(), EngineError> {
        let uses = self.uses.get(&id).cloned().unwrap_or_default();
        let Some(((slot, part), others)) = uses.split_first() else { return Ok(()) };
        for (slot, part) in others {
            let copy = match &source {
                Source::Raw(matrix) => Source::Raw(matrix.clone()),
                Source::Random(format, seed) => Source::Random(*format, *seed),
            };
            self.put(*slot, *part, copy)?;
        }
        self.put(*slot, *part, source)
    }

    /// Packs a slot's parts when the last of them has come.
    fn put(&mut self, slot: usize, part: usize, source: Source) -> Result<(), EngineError> {
        let slot = &mut self.slots[slot];
        slot.waiting[part] = Some(source);
        let Some(loader) = &self.loader else { return Ok(()) };
        if slot.waiting.iter().any(Option::is_none) {
            return Ok(());
        }
        let sources: Vec<Source> = slot.waiting.drain(..).flatten().collect();
        let k = slot.parts[0].k;
        let mut weight = if slot.gate_up {
            let formats = [sources[0].format(), sources[1].format()];
            if formats[0] != formats[1] {
                return Err(EngineError::Unsupported("a gate and its up projection in different formats".into()));
            }
            PackedLinear::gate_up(&self.device, k, formats[0], slot.parts[0].n)?
        } else {
            let shape = |(source, part): (&Source, &Part)| LinearShape {
                format: source.format(),
                n: part.n,
                column: part.column,
            };
            PackedLinear::new(&self.device, k, &sources.iter().zip(&slot.parts).map(shape).collect::<Vec<_>>())?
        };
        for (index, source) in sources.iter().enumerate() {
            match source {
                Source::Random(_, seed) => loader.load_random(&mut weight, index, *seed as u32)?,
                Source::Raw(matrix) => {
                    let raw = match &matrix.data {
                        RawData::Dense(_, bytes) => RawWeight::Bf16(bytes),
                        RawData::Nvfp4 { packed, scales, global } => {
                            RawWeight::Nvfp4 { packed, scales, global: *global }
                        }
                    };
                    loader.load(&mut weight, index, raw)?;
                }
            }
        }
        slot.weight = Some(weight);
        Ok(())
    }

    /// Gives weights their biases and checks that everything is there.
    pub(super) fn finish(&mut self, plan: &Plan) -> Result<(), EngineError> {
        let missing = |id: ParamId| EngineError::Unsupported(format!("`{}` was not loaded", plan.params[id.0].name));
        for slot in &mut self.slots {
            let weight = slot.weight.as_mut().ok_or_else(|| missing(slot.parts[0].weight))?;
            for (index, part) in slot.parts.iter().enumerate() {
                if let Some(bias) = part.bias {
                    let values = self.biases.get(&bias).ok_or_else(|| missing(bias))?;
                    weight.set_bias(&self.device, index, values)?;
                }
            }
        }
        self.chain();
        self.biases.clear();
        self.loader = None;
        self.device.synchronize()?;
        Ok(())
    }

    /// Tells each weight which one is read after it: the last is followed by the next step's first.
    fn chain(&mut self) {
        let mut order: Vec<(usize, usize)> = self.of_op.iter().map(|(op, slot)| (*op, *slot)).collect();
        order.sort_unstable();
        let after = order.iter().skip(1).chain(order.first());
        for ((_, slot), (_, next)) in order.iter().zip(after) {
            if let Ok([slot, next]) = self.slots.get_disjoint_mut([*slot, *next])
                && let (Some(weight), Some(next)) = (&mut slot.weight, &next.weight)
            {
                weight.followed_by(next);
            }
        }
    }

    /// The weight of the linear operation at this place of the plan. Panics if there is none: both come from one plan.
    pub(super) fn linear(&self, op: usize) -> &PackedLinear {
        self.weight(self.of_op[&op])
    }

    /// A table, as a weight with a row an output.
    pub(super) fn embedding(&self, table: ParamId) -> &PackedLinear {
        self.weight(self.of_table[&table])
    }

    fn weight(&self, slot: usize) -> &PackedLinear {
        match &self.slots[slot].weight {
            Some(weight) => weight,
            None => panic!("weight {slot} is used before it was loaded"),
        }
    }

    /// A vector. Panics if it was not loaded: the plan and the weights come from one list.
    pub(super) fn vector_of(&self, id: ParamId) -> &Memory {
        &self.vectors[&id]
    }

    pub(super) fn bytes(&self) -> u64 {
        let matrices = self.slots.iter().filter_map(|slot| slot.weight.as_ref()).map(PackedLinear::bytes);
        let vectors = self.vectors.values().map(Memory::bytes);
        matrices.chain(vectors).map(|bytes| bytes as u64).sum()
    }
}
