//! What every operation should write, in f64, from what was observed to go into it.
//!
//! Each element comes with a `slack`: how far f32 arithmetic may be from the exact value before the result is rounded
//! to the activation format. With u = 2⁻²⁴:
//!
//! - a sum of n products in f32 in any order: `n · u · Σ|terms|` (matrix instructions that truncate sixteen products
//!   at a time stay below it);
//! - elementary functions: `2⁻²⁰` of the result, which leaves room for their fast forms;
//! - a score that is wrong by δ changes a weight of soft-max by `2δ` of itself;
//! - GPUs multiply values with weights of soft-max in bf16: 2⁻⁸ of each.

use super::case::Case;
use super::formats::{self, cached};
use super::scenario::Trace;
use atlas_engine::plan::{Op, ParamId, Part, QkvSpec, View};
use atlas_kernels::KvDtype;

/// Half of the distance between 1 and the next f32.
const U: f64 = 1.0 / (1u64 << 24) as f64;
/// Relative error of elementary functions.
const ELEMENTARY: f64 = 1.0 / (1u64 << 20) as f64;

/// An exact value, and how far f32 arithmetic may be from it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Expected {
    pub(crate) value: f64,
    pub(crate) slack: f64,
}

fn exactly(value: f32) -> Expected {
    Expected { value: f64::from(value), slack: 0.0 }
}

/// One run of a case, as the references read it.
pub(crate) struct Observed<'a> {
    pub(crate) case: &'a Case,
    pub(crate) trace: &'a Trace,
    pub(crate) tokens: &'a [Vec<u32>],
    pub(crate) kv: KvDtype,
    /// Whether the device rounds the weights of soft-max to bf16.
    pub(crate) bf16_weights: bool,
}

impl Observed<'_> {
    /// The operation that wrote `view` last before operation `index`.
    fn writer(&self, index: usize, view: View) -> usize {
        let writes = |index: &usize| self.case.plan.ops[*index].op.out().buffer == view.buffer;
        (0..index).rev().find(writes).unwrap()
    }

    /// What operation `index` read. A copied row may be seen at its source only.
    fn find(&self, index: usize, view: View, sequence: usize, position: usize) -> Option<&[f32]> {
        let writer = self.writer(index, view);
        match (self.trace.row(writer, sequence, position), &self.case.plan.ops[writer].op) {
            (Some(row), _) => Some(&row[..view.width]),
            (None, Op::GatherLogitRows { x, .. }) => self.find(writer, *x, sequence, position),
            (None, _) => None,
        }
    }

    fn input(&self, index: usize, view: View, sequence: usize, position: usize) -> &[f32] {
        let found = self.find(index, view, sequence, position);
        found.unwrap_or_else(|| panic!("the input of {} was not observed", self.case.plan.ops[index].name))
    }

    /// Whether everything that operation `index` reads was observed.
    pub(crate) fn is_known(&self, index: usize, sequence: usize) -> bool {
        let reads = reads(&self.case.plan.ops[index].op);
        reads.iter().all(|view| self.find(index, *view, sequence, 0).is_some())
    }

    fn vector(&self, id: ParamId) -> &[f32] {
        formats::vector(&self.case.params[id.0])
    }

    /// What operation `index` should write for these positions of a sequence, ascending.
    pub(crate) fn expect(&self, index: usize, sequence: usize, positions: &[usize]) -> Vec<Vec<Expected>> {
        let each = |row: &dyn Fn(usize) -> Vec<Expected>| positions.iter().map(|position| row(*position)).collect();
        let input = |view: View, position: usize| self.input(index, view, sequence, position);
        match &self.case.plan.ops[index].op {
            Op::Embed { table, out } => {
                let table = formats::elements(&self.case.params[table.0]);
                each(&|position| {
                    let row = &table[self.tokens[sequence][position] as usize * out.width..][..out.width];
                    row.iter().map(|value| exactly(*value as f32)).collect()
                })
            }
            Op::GatherLogitRows { x, .. } => {
                each(&|position| input(*x, position).iter().copied().map(exactly).collect())
            }
            Op::RmsNorm { x, weight, eps, unit_offset, .. } => {
                each(&|position| norm(input(*x, position), self.vector(*weight), *eps, *unit_offset))
            }
            Op::Linear { x, parts, out, accumulate } => {
                let weights: Vec<Vec<f64>> =
                    parts.iter().map(|part| formats::elements(&self.case.params[part.weight.0])).collect();
                each(&|position| {
                    let before = accumulate.then(|| input(*out, position));
                    self.linear(input(*x, position), parts, &weights, out.width, before)
                })
            }
            Op::RopeStore { qkv, layout, norms, rope, .. } => {
                let norms = norms.map(|(q, k, eps, offset)| (self.vector(q), self.vector(k), eps, offset));
                each(&|position| self.rope(input(*qkv, position), layout, norms, *rope, position))
            }
            Op::Attention { qkv, layout, layer, scale, window, .. } => {
                let scales = self.case.plan.kv_layers[*layer].scales;
                let stored = |position| {
                    let row = input(*qkv, position).iter().enumerate().skip(layout.k_offset);
                    let scale = |column| if column < layout.v_offset { scales.k } else { scales.v };
                    row.map(|(column, value)| cached(self.kv, *value, scale(column))).collect()
                };
                let last = positions.last().copied().unwrap_or(0);
                let cache: Vec<Vec<f64>> = (0..=last).map(stored).collect();
                let attention = Attention { layout, scale: f64::from(*scale), bf16_weights: self.bf16_weights };
                each(&|position| {
                    let first = window.map_or(0, |window| (position + 1).saturating_sub(window));
                    attention.row(input(*qkv, position), &cache[first..=position])
                })
            }
            Op::GateOutput { x, gate, layout } => each(&|position| {
                let gates = input(*gate, position);
                let gate = |column: usize| {
                    let (head, dim) = (column / layout.head_dim, column % layout.head_dim);
                    sigmoid(f64::from(gates[head * layout.q_stride + layout.head_dim + dim]))
                };
                let x = input(*x, position).iter().enumerate();
                x.map(|(column, x)| elementary(f64::from(*x) * gate(column))).collect()
            }),
            Op::SiluMul { gate_up, out } => each(&|position| {
                let (gate, up) = input(*gate_up, position).split_at(out.width);
                gate.iter().zip(up).map(|(gate, up)| elementary(silu(f64::from(*gate)) * f64::from(*up))).collect()
            }),
            Op::CausalConv { x, channels, weight, taps, .. } => each(&|position| {
                let first = (position + 1).saturating_sub(*taps);
                let rows: Vec<&[f32]> = (first..=position).map(|position| input(*x, position)).collect();
                convolution(&rows, self.vector(*weight), *channels, *taps)
            }),
            Op::GatedDelta { qkv, ab, a_offset, b_offset, a_log, dt_bias, layer, .. } => {
                let rows: Vec<DeltaRow<'_>> = (0..=positions.last().copied().unwrap_or(0))
                    .map(|position| DeltaRow {
                        qkv: input(*qkv, position),
                        a: &input(*ab, position)[*a_offset..],
                        b: &input(*ab, position)[*b_offset..],
                    })
                    .collect();
                let dims = self.case.plan.state_layers[*layer];
                let delta = Delta { dims, a_log: self.vector(*a_log), dt_bias: self.vector(*dt_bias) };
                let mut all = delta.recurrence(&rows);
                positions.iter().map(|position| std::mem::take(&mut all[*position])).collect()
            }
            Op::GatedNorm { x, gate, gate_offset, heads, weight, eps, .. } => each(&|position| {
                let gates = &input(*gate, position)[*gate_offset..];
                let heads = input(*x, position).chunks_exact(x.width / heads);
                let normed = heads.flat_map(|head| norm(head, self.vector(*weight), *eps, false));
                normed.zip(gates).map(|(normed, gate)| times(normed, silu(f64::from(*gate)))).collect()
            }),
        }
    }

    fn linear(
        &self,
        x: &[f32],
        parts: &[Part],
        weights: &[Vec<f64>],
        width: usize,
        before: Option<&[f32]>,
    ) -> Vec<Expected> {
        let mut out = vec![Expected { value: f64::NAN, slack: 0.0 }; width];
        for (part, weight) in parts.iter().zip(weights) {
            let bias = part.bias.map(|bias| self.vector(bias));
            for n in 0..part.n {
                let row = &weight[n * part.k..(n + 1) * part.k];
                let terms = row.iter().zip(x).map(|(weight, x)| weight * f64::from(*x));
                let (mut value, mut size) = terms.fold((0.0, 0.0), |(sum, size), term| (sum + term, size + term.abs()));
                let column = part.column + n;
                for more in [bias.map(|bias| bias[n]), before.map(|before| before[column])].into_iter().flatten() {
                    value += f64::from(more);
                    size += f64::from(more.abs());
                }
                out[column] = Expected { value, slack: (part.k + 8) as f64 * U * size };
            }
        }
        out
    }

    fn rope(
        &self,
        row: &[f32],
        layout: &QkvSpec,
        norms: Option<(&[f32], &[f32], f32, bool)>,
        rope: usize,
        position: usize,
    ) -> Vec<Expected> {
        let rope = &self.case.plan.ropes[rope];
        let mut out: Vec<Expected> = row.iter().copied().map(exactly).collect();
        let queries = (0..layout.heads).map(|head| (head * layout.q_stride, true));
        let keys = (0..layout.kv_heads).map(|head| (layout.k_offset + head * layout.head_dim, false));
        for (first, query) in queries.chain(keys) {
            let head = &mut out[first..first + layout.head_dim];
            if let Some((q, k, eps, unit_offset)) = norms {
                let normed = norm(&row[first..first + layout.head_dim], if query { q } else { k }, eps, unit_offset);
                head.copy_from_slice(&normed);
            }
            let half = rope.inv_freq.len();
            for (pair, frequency) in rope.inv_freq.iter().enumerate() {
                // The angle itself is defined in f32.
                let (sin, cos) = f64::from(position as f32 * frequency).sin_cos();
                let scaling = f64::from(rope.attention_scaling);
                let (sin, cos, a, b) = (sin * scaling, cos * scaling, head[pair], head[pair + half]);
                let rotated = |value: f64, a: f64, b: f64| {
                    let size = (a * cos).abs() + (b * sin).abs() + (a * sin).abs() + (b * cos).abs();
                    Expected { value, slack: ELEMENTARY * size + (head_slack(head, pair, half)) * scaling }
                };
                let low = rotated(a.value * cos - b.value * sin, a.value, b.value);
                let high = rotated(b.value * cos + a.value * sin, a.value, b.value);
                (head[pair], head[pair + half]) = (low, high);
            }
        }
        out
    }
}

/// What an operation reads.
fn reads(op: &Op) -> Vec<View> {
    match op {
        Op::Embed { .. } => vec![],
        Op::GatherLogitRows { x, .. } | Op::RmsNorm { x, .. } | Op::CausalConv { x, .. } => vec![*x],
        Op::Linear { x, out, accumulate, .. } => {
            if *accumulate {
                vec![*x, *out]
            } else {
                vec![*x]
            }
        }
        Op::RopeStore { qkv, .. } | Op::Attention { qkv, .. } => vec![*qkv],
        Op::GateOutput { x, gate, .. } | Op::GatedNorm { x, gate, .. } => vec![*x, *gate],
        Op::SiluMul { gate_up, .. } => vec![*gate_up],
        Op::GatedDelta { qkv, ab, .. } => vec![*qkv, *ab],
    }
}

fn head_slack(head: &[Expected], pair: usize, half: usize) -> f64 {
    head[pair].slack + head[pair + half].slack
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

fn silu(x: f64) -> f64 {
    x * sigmoid(x)
}

/// A result of a few elementary functions; far below the smallest normal f32 nothing is asked for.
fn elementary(value: f64) -> Expected {
    Expected { value, slack: ELEMENTARY * value.abs() + 1e-36 }
}

fn times(left: Expected, right: f64) -> Expected {
    let product = elementary(left.value * right);
    Expected { slack: product.slack + left.slack * right.abs(), ..product }
}

/// The sum of squares has `len / 32` terms a lane at most.
fn norm(x: &[f32], weight: &[f32], eps: f32, unit_offset: bool) -> Vec<Expected> {
    let squares: f64 = x.iter().map(|x| f64::from(*x).powi(2)).sum();
    let scale = 1.0 / (squares / x.len() as f64 + f64::from(eps)).sqrt();
    let weight = weight.iter().map(|weight| f64::from(*weight) + if unit_offset { 1.0 } else { 0.0 });
    let relative = (x.len() as f64 / 32.0 + 16.0) * U;
    x.iter()
        .zip(weight)
        .map(|(x, weight)| f64::from(*x) * scale * weight)
        .map(|value| Expected { value, slack: relative * value.abs() })
        .collect()
}

struct Attention<'a> {
    layout: &'a QkvSpec,
    scale: f64,
    bf16_weights: bool,
}

impl Attention<'_> {
    /// `cache` holds what the row sees: keys, then values.
    fn row(&self, row: &[f32], cache: &[Vec<f64>]) -> Vec<Expected> {
        let (layout, dim) = (self.layout, self.layout.head_dim);
        let mut out = Vec::with_capacity(layout.heads * dim);
        for head in 0..layout.heads {
            let kv_head = head / (layout.heads / layout.kv_heads);
            let (k, v) = (kv_head * dim, layout.v_offset - layout.k_offset + kv_head * dim);
            let query = &row[head * layout.q_stride..][..dim];
            let score = |row: &Vec<f64>| {
                let terms = query.iter().zip(&row[k..]).map(|(q, k)| f64::from(*q) * k * self.scale);
                terms.fold((0.0, 0.0), |(sum, size), term| (sum + term, size + term.abs()))
            };
            let scores: Vec<(f64, f64)> = cache.iter().map(score).collect();
            let most = scores.iter().map(|(score, _)| *score).fold(f64::NEG_INFINITY, f64::max);
            let delta = scores.iter().map(|(_, size)| size * (dim + 8) as f64 * U).fold(0.0, f64::max);
            let weights: Vec<f64> = scores.iter().map(|(score, _)| (score - most).exp()).collect();
            let total: f64 = weights.iter().sum();
            let relative = 2.0 * delta + ELEMENTARY + (cache.len() + 8) as f64 * U;
            for d in v..v + dim {
                let terms = || weights.iter().zip(cache).map(|(weight, row)| (weight / total, row[d]));
                let value: f64 = terms().map(|(weight, value)| weight * value).sum();
                let size: f64 = terms().map(|(weight, value)| weight * value.abs()).sum();
                // Weights are divided by the sum of the rounded ones: what they share cancels.
                let spread: f64 = terms().map(|(weight, v)| weight * (v - value).abs()).sum();
                let rounding = if self.bf16_weights { spread / 256.0 } else { 0.0 };
                out.push(Expected { value, slack: relative * size + rounding });
            }
        }
        out
    }
}

/// `rows` end with the row itself; what lies before the sequence is zero.
fn convolution(rows: &[&[f32]], weight: &[f32], channels: usize, taps: usize) -> Vec<Expected> {
    let channel = |channel: usize| {
        let weights = &weight[channel * taps + taps - rows.len()..(channel + 1) * taps];
        let terms = rows.iter().zip(weights).map(|(row, weight)| f64::from(row[channel]) * f64::from(*weight));
        let (sum, size) = terms.fold((0.0, 0.0), |(sum, size), term| (sum + term, size + term.abs()));
        // The slope of silu is at most 1.1.
        let activated = elementary(silu(sum));
        Expected { slack: activated.slack + 1.1 * (taps + 1) as f64 * U * size, ..activated }
    };
    (0..channels).map(channel).collect()
}

struct DeltaRow<'a> {
    qkv: &'a [f32],
    a: &'a [f32],
    b: &'a [f32],
}

struct Delta<'a> {
    dims: atlas_engine::plan::StateLayerSpec,
    a_log: &'a [f32],
    dt_bias: &'a [f32],
}

impl Delta<'_> {
    /// The plain recurrence, one token after the other: `S ← eᵍ S; S ← S + k (β (v − Sᵀk))ᵀ; o = Sᵀq`.
    ///
    /// An update contracts the state (k has length one), so errors of earlier steps add up but do not grow: the slack
    /// is that of a dot product of a head's width, an open block and the tokens so far, for the largest terms seen.
    fn recurrence(&self, rows: &[DeltaRow<'_>]) -> Vec<Vec<Expected>> {
        let dims = self.dims;
        let (k_dim, v_dim) = (dims.key_dim, dims.value_dim);
        let mut out: Vec<Vec<Expected>> = rows.iter().map(|_| Vec::with_capacity(dims.value_heads * v_dim)).collect();
        for head in 0..dims.value_heads {
            let key_head = head / (dims.value_heads / dims.key_heads);
            let mut state = vec![vec![0.0; v_dim]; k_dim];
            let mut largest = vec![0.0_f64; v_dim];
            for (position, row) in rows.iter().enumerate() {
                let (queries, rest) = row.qkv.split_at(dims.key_heads * k_dim);
                let (keys, values) = rest.split_at(dims.key_heads * k_dim);
                let scale = 1.0 / (k_dim as f64).sqrt();
                let query: Vec<f64> = unit(&queries[key_head * k_dim..][..k_dim]).iter().map(|q| q * scale).collect();
                let key = unit(&keys[key_head * k_dim..][..k_dim]);
                let value = &values[head * v_dim..][..v_dim];
                let step = f64::from(row.a[head]) + f64::from(self.dt_bias[head]);
                let decay = (-f64::from(self.a_log[head]).exp() * softplus(step)).exp();
                let beta = sigmoid(f64::from(row.b[head]));
                state.iter_mut().flatten().for_each(|s| *s *= decay);
                for v in 0..v_dim {
                    let read: f64 = state.iter().zip(&key).map(|(s, k)| s[v] * k).sum();
                    let update = beta * (f64::from(value[v]) - read);
                    state.iter_mut().zip(&key).for_each(|(s, k)| s[v] += k * update);
                    let terms = state.iter().zip(&query).map(|(s, q)| s[v] * q);
                    let (sum, size) = terms.fold((0.0, 0.0), |(sum, size), term: f64| (sum + term, size + term.abs()));
                    largest[v] = largest[v].max(size + scale * update.abs());
                    let slack = (k_dim + 64 + position) as f64 * U * largest[v] + ELEMENTARY * largest[v];
                    out[position].push(Expected { value: sum, slack });
                }
            }
        }
        out
    }
}

fn softplus(x: f64) -> f64 {
    if x > 30.0 { x } else { x.exp().ln_1p() }
}

fn unit(x: &[f32]) -> Vec<f64> {
    let squares: f64 = x.iter().map(|x| f64::from(*x).powi(2)).sum();
    let length = (squares + f64::from(1e-6_f32)).sqrt();
    x.iter().map(|x| f64::from(*x) / length).collect()
}
