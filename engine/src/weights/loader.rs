//! Reading exactly the parameters that a model needs, one after the other.
//!
//! Quantised weights stay quantised. A missing, unused, mis-shaped or wrongly typed tensor is an error that
//! names the file and the tensor.

use super::raw::{RawData, RawMatrix, RawParam};
use super::safetensors::{TensorInfo, Tensors};
use crate::config::quant::WeightFormat;
use crate::config::spec::{ModelSpec, ParamShape, ParamSpec};
use crate::errors::EngineError;
use crate::plan::Plan;
use ::safetensors::Dtype;
use atlas_kernels::{Dense, KvScales};
use std::collections::BTreeSet;

/// Reconciles what the configuration declares with what the checkpoint holds: a multi-token-prediction head that is
/// declared but absent altogether (many quantised releases leave it out) is dropped, visibly.
pub fn reconcile(spec: &mut ModelSpec, tensors: &Tensors) {
    if let Some(mtp) = &spec.mtp {
        let root = mtp.fusion.split('.').next().unwrap_or_default();
        if !tensors.iter().any(|(name, _)| name.split('.').next() == Some(root)) {
            spec.warnings.push(format!("the configuration declares a `{root}` head, but the checkpoint holds none"));
            spec.mtp = None;
        }
    }
    for (prefix, what) in &spec.skipped {
        let count = tensors.iter().filter(|(name, _)| name.starts_with(prefix.as_str())).count();
        if count > 0 {
            spec.warnings.push(format!("{count} tensors of {what} are not used"));
        }
    }
}

/// Reads `params` from `tensors` and gives each to `put` with its index; `progress` is told the bytes read so far.
/// Returns the bytes of tensor data that were read.
pub fn load(
    spec: &ModelSpec,
    params: &[ParamSpec],
    tensors: &Tensors,
    mut put: impl FnMut(usize, RawParam) -> Result<(), EngineError>,
    mut progress: impl FnMut(u64),
) -> Result<u64, EngineError> {
    let mut reader = Reader { tensors, used: BTreeSet::new(), bytes_read: 0 };
    for (index, param) in params.iter().enumerate() {
        put(index, reader.param(param)?)?;
        progress(reader.bytes_read);
    }
    reader.reject_unused(spec)?;
    Ok(reader.bytes_read)
}

/// Scales of an FP8 cache, beside the weights of keys and values.
const KV_SCALES: [&str; 2] = ["k_scale", "v_scale"];

/// Gives the plan's layers the scales of keys and values that the checkpoint has: what is stored is the key or value
/// over its scale.
///
/// # Errors
/// If one is damaged or no normal positive number.
pub fn kv_scales(plan: &mut Plan, tensors: &Tensors) -> Result<(), EngineError> {
    let mut reader = Reader { tensors, used: BTreeSet::new(), bytes_read: 0 };
    for layer in &mut plan.kv_layers {
        let Some((k, v)) = layer.weights else { continue };
        let (k, v) = (plan.params[k.0].name.as_str(), plan.params[v.0].name.as_str());
        let ([k_scale], [v_scale]) =
            (reader.optional_scalars(k, &["k_scale"])?, reader.optional_scalars(v, &["v_scale"])?);
        layer.scales = KvScales { k: k_scale.unwrap_or(1.0), v: v_scale.unwrap_or(1.0) };
        if !layer.scales.is_valid() {
            let KvScales { k: k_scale, v: v_scale } = layer.scales;
            return Err(reader.error(k, format!("and `{v}` have scales {k_scale} and {v_scale} of the KV cache")));
        }
    }
    Ok(())
}

/// The module that a weight belongs to.
fn module(weight: &str) -> &str {
    weight.strip_suffix(".weight").unwrap_or(weight)
}

struct Reader<'a> {
    tensors: &'a Tensors,
    used: BTreeSet<String>,
    bytes_read: u64,
}

impl Reader<'_> {
    fn error(&self, name: &str, message: impl std::fmt::Display) -> EngineError {
        EngineError::Weights { path: self.tensors.file_of(name), message: format!("`{name}` {message}") }
    }

    fn find(&mut self, name: &str) -> Result<TensorInfo, EngineError> {
        let info = self.tensors.get(name).cloned().ok_or_else(|| self.error(name, "is missing"))?;
        self.used.insert(name.to_owned());
        Ok(info)
    }

    fn bytes(&mut self, name: &str, dtype: Dtype, shape: &[usize]) -> Result<Vec<u8>, EngineError> {
        let info = self.find(name)?;
        if info.dtype != dtype {
            return Err(self.error(name, format!("has dtype {:?}; expected {dtype:?}", info.dtype)));
        }
        self.check_shape(name, &info, shape)?;
        self.read(name, &info)
    }

    fn read(&mut self, name: &str, info: &TensorInfo) -> Result<Vec<u8>, EngineError> {
        self.bytes_read += info.bytes;
        self.tensors.read(name, info)
    }

    fn check_shape(&self, name: &str, info: &TensorInfo, shape: &[usize]) -> Result<(), EngineError> {
        if info.shape != shape {
            return Err(self.error(name, format!("has shape {:?}; the configuration asks for {shape:?}", info.shape)));
        }
        Ok(())
    }

    fn param(&mut self, param: &ParamSpec) -> Result<RawParam, EngineError> {
        let name = param.name.as_str();
        match param.shape {
            ParamShape::Linear { n, k } => self.linear(name, n, k),
            ParamShape::Table { rows, width } => {
                let (dtype, bytes) = self.dense(name, &[rows, width])?;
                Ok(RawParam::Matrix(RawMatrix { n: rows, k: width, data: RawData::Dense(dtype, bytes) }))
            }
            ParamShape::Vector { .. } | ParamShape::Conv { .. } => {
                let (dtype, bytes) = self.dense(name, &param.shape.dims())?;
                Ok(RawParam::Vector(widen(dtype, &bytes)))
            }
        }
    }

    fn dense(&mut self, name: &str, shape: &[usize]) -> Result<(Dense, Vec<u8>), EngineError> {
        let info = self.find(name)?;
        let dtype = match info.dtype {
            Dtype::F32 => Dense::F32,
            Dtype::F16 => Dense::F16,
            Dtype::BF16 => Dense::Bf16,
            other => return Err(self.error(name, format!("has dtype {other:?}; expected BF16, F16 or F32"))),
        };
        self.check_shape(name, &info, shape)?;
        let bytes = self.read(name, &info)?;
        match first_not_finite(dtype, &bytes) {
            Some(at) => Err(self.error(name, format!("holds NaN or infinity at element {at}: the file is damaged"))),
            None => Ok((dtype, bytes)),
        }
    }

    fn linear(&mut self, name: &str, n: usize, k: usize) -> Result<RawParam, EngineError> {
        let scale_name = format!("{name}_scale");
        let info = self.find(name)?;
        if info.dtype != Dtype::U8 {
            if self.tensors.get(&scale_name).is_some() {
                let message =
                    format!("has dtype {:?} and a scale; this build reads NVFP4 (U8) and BF16, F16, F32", info.dtype);
                return Err(self.error(name, message));
            }
            let (dtype, bytes) = self.dense(name, &[n, k])?;
            self.optional_scalars(name, &KV_SCALES)?;
            return Ok(RawParam::Matrix(RawMatrix { n, k, data: RawData::Dense(dtype, bytes) }));
        }
        if !k.is_multiple_of(16) {
            return Err(self.error(name, format!("is NVFP4 with {k} inputs, which is no multiple of 16")));
        }
        let packed = self.bytes(name, Dtype::U8, &[n, k / 2])?;
        let scales = self.bytes(&scale_name, Dtype::F8_E4M3, &[n, k / 16])?;
        let global = self.scalar(&format!("{name}_scale_2"))?;
        if let Some(at) = scales.iter().position(|scale| scale & 0x7f == 0x7f) {
            return Err(self.error(&scale_name, format!("holds NaN at element {at}")));
        }
        if !global.is_finite() {
            return Err(self.error(&format!("{name}_scale_2"), format!("is {global}")));
        }
        // Scales of activations do not enter weight-only arithmetic, and those of the KV cache belong to the plan's
        // layers ([`kv_scales`]); they are read so that a damaged one is found and none counts as unused.
        self.optional_scalars(name, &["input_scale"])?;
        self.optional_scalars(name, &KV_SCALES)?;
        Ok(RawParam::Matrix(RawMatrix { n, k, data: RawData::Nvfp4 { packed, scales, global } }))
    }

    /// The scalars of a weight's module that the checkpoint has.
    fn optional_scalars<const N: usize>(
        &mut self,
        weight: &str,
        names: &[&str; N],
    ) -> Result<[Option<f32>; N], EngineError> {
        let mut values = [None; N];
        for (value, name) in values.iter_mut().zip(names) {
            let name = format!("{}.{name}", module(weight));
            if self.tensors.get(&name).is_some() {
                *value = Some(self.scalar(&name)?);
            }
        }
        Ok(values)
    }

    fn scalar(&mut self, name: &str) -> Result<f32, EngineError> {
        let info = self.find(name)?;
        if info.shape.iter().product::<usize>() != 1 || info.dtype != Dtype::F32 {
            return Err(self.error(name, format!("is {:?} {:?}; expected one F32", info.dtype, info.shape)));
        }
        let bytes = self.read(name, &info)?;
        let bytes: [u8; 4] = bytes.try_into().map_err(|_| self.error(name, "does not hold four bytes"))?;
        Ok(f32::from_le_bytes(bytes))
    }

    fn reject_unused(&self, spec: &ModelSpec) -> Result<(), EngineError> {
        let skipped = |name: &str| spec.skipped.iter().any(|(prefix, _)| name.starts_with(prefix.as_str()));
        let mut unused = Vec::new();
        for (name, info) in self.tensors.iter() {
            if !self.used.contains(name) && !skipped(name) && !self.is_redundant(spec, name, info)? {
                unused.push(name);
            }
        }
        let Some(first) = unused.first() else { return Ok(()) };
        let more = if unused.len() > 1 { format!(" (and {} more)", unused.len() - 1) } else { String::new() };
        Err(self.error(first, format!("is not used by this {} model{more}; nothing is dropped silently", spec.family)))
    }

    /// Whether a tensor only repeats what is known: a tied output projection that equals the embedding, or rotary
    /// frequencies that old exporters stored beside the configuration they follow from.
    fn is_redundant(&self, spec: &ModelSpec, name: &str, info: &TensorInfo) -> Result<bool, EngineError> {
        if name.ends_with(".rotary_emb.inv_freq") {
            return Ok(true);
        }
        let embedding = format!("{}.weight", spec.embed);
        let Some(tied) = self.tensors.get(&embedding).filter(|_| spec.head.tied && name == "lm_head.weight") else {
            return Ok(false);
        };
        let same = tied.dtype == info.dtype && tied.shape == info.shape;
        Ok(same && self.tensors.read(&embedding, tied)? == self.tensors.read(name, info)?)
    }
}

/// Index of the first element whose exponent is all ones.
fn first_not_finite(dtype: Dense, bytes: &[u8]) -> Option<usize> {
    let of_two = |mask: u16| bytes.chunks_exact(2).position(move |b| u16::from_le_bytes([b[0], b[1]]) & mask == mask);
    match dtype {
        Dense::F32 => widen(dtype, bytes).iter().position(|value| !value.is_finite()),
        Dense::F16 => of_two(0x7c00),
        Dense::Bf16 => of_two(0x7f80),
    }
}

/// Bytes of little-endian elements as f32.
pub fn widen(dtype: Dense, bytes: &[u8]) -> Vec<f32> {
    match dtype {
        Dense::F32 => bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect(),
        Dense::F16 => bytes.chunks_exact(2).map(|b| half::f16::from_le_bytes([b[0], b[1]]).to_f32()).collect(),
        Dense::Bf16 => bytes.chunks_exact(2).map(|b| half::bf16::from_le_bytes([b[0], b[1]]).to_f32()).collect(),
    }
}

/// The format a checkpoint really holds for a parameter, and its bytes with all scales.
pub fn stored(param: &ParamSpec, tensors: &Tensors) -> Option<(WeightFormat, u64)> {
    let info = tensors.get(&param.name)?;
    let format = match info.dtype {
        Dtype::F32 => WeightFormat::F32,
        Dtype::F16 => WeightFormat::F16,
        Dtype::BF16 => WeightFormat::Bf16,
        Dtype::U8 => WeightFormat::Nvfp4,
        _ => return None,
    };
    let of_weight: &[&str] =
        if format == WeightFormat::Nvfp4 { &["weight_scale", "weight_scale_2", "input_scale"] } else { &[] };
    let scales = of_weight.iter().chain(&KV_SCALES).map(|scale| format!("{}.{scale}", module(&param.name)));
    let extra: u64 = scales.filter_map(|scale| tensors.get(&scale)).map(|info| info.bytes).sum();
    Some((format, info.bytes + extra))
}
