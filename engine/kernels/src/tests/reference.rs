//! Scalar references: each operation's definition, one value at a time, without pages, tiles, lanes or threads.

use crate::math;
use crate::simd::{F32x16, LANES, Portable};

fn scalar(function: impl Fn(Portable) -> Portable, x: f32) -> f32 {
    let mut lanes = [0.0; LANES];
    // SAFETY: sixteen lanes into sixteen values.
    unsafe { function(Portable::splat(x)).store(lanes.as_mut_ptr()) };
    lanes[0]
}

pub(crate) fn exp(x: f32) -> f32 {
    scalar(math::exp, x)
}

pub(crate) fn sigmoid(x: f32) -> f32 {
    scalar(math::sigmoid, x)
}

pub(crate) fn silu(x: f32) -> f32 {
    scalar(math::silu, x)
}

pub(crate) fn softplus(x: f32) -> f32 {
    scalar(math::softplus, x)
}

pub(crate) fn tanh(x: f32) -> f32 {
    scalar(math::tanh, x)
}

/// Chain of fused multiply-adds from `start`.
pub(crate) fn chain(start: f32, terms: impl IntoIterator<Item = (f32, f32)>) -> f32 {
    terms.into_iter().fold(start, |sum, (a, b)| a.mul_add(b, sum))
}

/// Sum of sixteen lanes over the fixed tree.
fn tree(mut lanes: [f32; LANES]) -> f32 {
    for width in [8, 4, 2, 1] {
        for i in 0..width {
            lanes[i] += lanes[i + width];
        }
    }
    lanes[0]
}

/// Σx² in the order of the norms.
pub(crate) fn sum_squares(x: &[f32]) -> f32 {
    let mut sums = [[0.0_f32; LANES]; 4];
    for (i, &x) in x.iter().enumerate() {
        let sum = &mut sums[i / LANES % 4][i % LANES];
        *sum = x.mul_add(x, *sum);
    }
    // A short chunk's missing lanes are zeros and change nothing.
    let mut lanes = [0.0; LANES];
    for (i, lane) in lanes.iter_mut().enumerate() {
        *lane = (sums[0][i] + sums[1][i]) + (sums[2][i] + sums[3][i]);
    }
    tree(lanes)
}

pub(crate) fn rms_norm(x: &[f32], weight: Option<&[f32]>, unit_offset: bool, eps: f32) -> Vec<f32> {
    let scale = 1.0 / (sum_squares(x) / x.len() as f32 + eps).sqrt();
    let weigh = |i: usize, value: f32| match weight {
        Some(weight) if unit_offset => value * (1.0 + weight[i]),
        Some(weight) => value * weight[i],
        None => value,
    };
    x.iter().enumerate().map(|(i, x)| weigh(i, x * scale)).collect()
}

/// NVFP4: chains in blocks of 16, then a chain of scaled blocks, then the global scale.
pub(crate) fn nvfp4_dot(x: &[f32], codes: &[f32], scales: &[f32], global: f32) -> f32 {
    let mut sum = 0.0_f32;
    for ((x, codes), &scale) in x.chunks(16).zip(codes.chunks(16)).zip(scales) {
        let block = chain(0.0, codes.iter().copied().zip(x.iter().copied()));
        sum = scale.mul_add(block, sum);
    }
    sum * global
}

/// Unquantised weights: chains in blocks of 256, then a plain sum; an odd K is padded with a zero.
pub(crate) fn dense_dot(x: &[f32], w: &[f32]) -> f32 {
    let (mut x, mut w) = (x.to_vec(), w.to_vec());
    if x.len() % 2 == 1 {
        x.push(0.0);
        w.push(0.0);
    }
    let blocks = x.chunks(256).zip(w.chunks(256));
    blocks.fold(0.0, |sum, (x, w)| sum + chain(0.0, w.iter().copied().zip(x.iter().copied())))
}

/// Rotates one head in place.
pub(crate) fn rotate(head: &mut [f32], position: u32, inv_freq: &[f32], scaling: f32, interleaved: bool) {
    let half = inv_freq.len();
    for (i, &frequency) in inv_freq.iter().enumerate() {
        let (sin, cos) = math::sin_cos(f64::from(position as f32 * frequency));
        let (sin, cos) = (sin as f32 * scaling, cos as f32 * scaling);
        let (low, high) = if interleaved { (2 * i, 2 * i + 1) } else { (i, i + half) };
        let (a, b) = (head[low], head[high]);
        head[low] = a.mul_add(cos, 0.0 - b * sin);
        head[high] = b.mul_add(cos, a * sin);
    }
}

/// What one query sees: keys and values from position 0 to its own, `[position][dim]`.
pub(crate) struct History<'a> {
    pub(crate) keys: &'a [Vec<f32>],
    pub(crate) values: &'a [Vec<f32>],
}

/// Attention of one query and head.
pub(crate) fn attend(
    q: &[f32],
    history: &History,
    scale: f32,
    window: Option<usize>,
    softcap: Option<f32>,
    sink: Option<f32>,
) -> Vec<f32> {
    let end = history.keys.len();
    let begin = window.map_or(0, |window| end.saturating_sub(window));
    let score = |position: usize| {
        let key = &history.keys[position];
        let score = chain(0.0, q.iter().copied().zip(key.iter().copied())) * scale;
        softcap.map_or(score, |cap| tanh(score / cap) * cap)
    };
    let mut total: Option<(f32, f32, Vec<f32>)> = None;
    for split in begin / 512..end.div_ceil(512) {
        let (mut max, mut sum) = (f32::NEG_INFINITY, 0.0_f32);
        let mut acc = vec![0.0_f32; history.values[0].len()];
        for tile in (split * 512..(split + 1) * 512).step_by(64) {
            let (first, last) = (begin.max(tile), end.min(tile + 64));
            if first >= last {
                continue;
            }
            let scores: Vec<f32> = (first..last).map(score).collect();
            let new = scores.iter().copied().fold(max, |a, b| if b > a { b } else { a });
            let factor = exp(max - new);
            let mut p = [0.0_f32; 64];
            for (position, &score) in (first..last).zip(&scores) {
                p[position - tile] = exp(score - new);
            }
            let mut lanes = [0.0; LANES];
            for (i, lane) in lanes.iter_mut().enumerate() {
                *lane = (p[i] + p[i + 16]) + (p[i + 32] + p[i + 48]);
            }
            sum = sum.mul_add(factor, tree(lanes));
            for (d, acc) in acc.iter_mut().enumerate() {
                *acc = chain(*acc * factor, (first..last).map(|at| (p[at - tile], history.values[at][d])));
            }
            max = new;
        }
        total = Some(match total {
            None => (max, sum, acc),
            Some((max0, sum0, acc0)) => {
                let new = if max > max0 { max } else { max0 };
                let (c0, c1) = (exp(max0 - new), exp(max - new));
                let acc = acc0.iter().zip(&acc).map(|(a0, a1)| a0.mul_add(c0, a1 * c1)).collect();
                (new, sum0.mul_add(c0, sum * c1), acc)
            }
        });
    }
    let (max, mut sum, acc) = total.unwrap();
    let mut factor = 1.0;
    if let Some(sink) = sink {
        let new = if sink > max { sink } else { max };
        factor = exp(max - new);
        sum = sum.mul_add(factor, exp(sink - new));
    }
    acc.iter().map(|acc| acc * factor / sum).collect()
}

/// One channel of a causal convolution over a whole sequence.
pub(crate) fn conv(x: &[f32], weight: &[f32], bias: f32) -> Vec<f32> {
    let taps = weight.len();
    (0..x.len())
        .map(|at| {
            let input = |j: usize| if at + j + 1 >= taps { x[at + j + 1 - taps] } else { 0.0 };
            chain(bias, weight.iter().copied().enumerate().map(|(j, w)| (w, input(j))))
        })
        .collect()
}

/// Inputs of one token of a delta-rule head.
pub(crate) struct DeltaToken {
    pub(crate) q: Vec<f32>,
    pub(crate) k: Vec<f32>,
    pub(crate) v: Vec<f32>,
    pub(crate) a: f32,
    pub(crate) b: f32,
}

/// Parameters of a delta-rule head.
#[derive(Clone, Copy)]
pub(crate) struct DeltaHead {
    pub(crate) a_log: f32,
    pub(crate) dt_bias: f32,
    pub(crate) eps: f32,
}

impl DeltaHead {
    fn decay(&self, token: &DeltaToken) -> f32 {
        (0.0 - exp(self.a_log)) * softplus(token.a + self.dt_bias)
    }

    fn normalise(&self, x: &[f32], scale: Option<f32>) -> Vec<f32> {
        let inverse = 1.0 / (sum_squares(x) + self.eps).sqrt();
        x.iter().map(|x| scale.map_or(x * inverse, |scale| x * inverse * scale)).collect()
    }
}

/// The delta rule in anchored blocks, token by token.
pub(crate) fn delta(tokens: &[DeltaToken], head: DeltaHead) -> Vec<Vec<f32>> {
    let (k_dim, v_dim) = (tokens[0].k.len(), tokens[0].v.len());
    let dot = |a: &[f32], b: &[f32]| chain(0.0, a.iter().copied().zip(b.iter().copied()));
    let mut state = vec![vec![0.0_f32; v_dim]; k_dim];
    let mut out = Vec::new();
    for block in tokens.chunks(64) {
        let (mut ks, mut us, mut gs): (Vec<Vec<f32>>, Vec<Vec<f32>>, Vec<f32>) = Default::default();
        for token in block {
            let q = head.normalise(&token.q, Some(1.0 / (k_dim as f32).sqrt()));
            let k = head.normalise(&token.k, None);
            let g = gs.last().copied().unwrap_or(0.0) + head.decay(token);
            let beta = sigmoid(token.b);
            ks.push(k);
            gs.push(g);
            let t = gs.len() - 1;
            let read = |x: &[f32], v: usize| exp(g) * chain(0.0, x.iter().enumerate().map(|(d, &x)| (x, state[d][v])));
            let weight = |x: &[f32], j: usize| exp(g - gs[j]) * dot(x, &ks[j]);
            let error = |v: usize| token.v[v] - chain(read(&ks[t], v), (0..t).map(|j| (weight(&ks[t], j), us[j][v])));
            let u: Vec<f32> = (0..v_dim).map(|v| beta * error(v)).collect();
            us.push(u);
            out.push((0..v_dim).map(|v| chain(read(&q, v), (0..=t).map(|j| (weight(&q, j), us[j][v])))).collect());
        }
        if block.len() == 64 {
            let decay = exp(gs[63]);
            for (d, row) in state.iter_mut().enumerate() {
                for (v, value) in row.iter_mut().enumerate() {
                    *value = chain(*value * decay, (0..64).map(|j| (exp(gs[63] - gs[j]) * ks[j][d], us[j][v])));
                }
            }
        }
    }
    out
}

/// The plain recurrence in f64: S ← eᵍ S; S += k (β (v − Sᵀk))ᵀ; o = Sᵀq.
pub(crate) fn delta_recurrence(tokens: &[DeltaToken], head: DeltaHead) -> Vec<Vec<f64>> {
    let (k_dim, v_dim) = (tokens[0].k.len(), tokens[0].v.len());
    let unit = |x: &[f32]| {
        let squares: f64 = x.iter().map(|&x| f64::from(x).powi(2)).sum();
        x.iter().map(|&x| f64::from(x) / (squares + f64::from(head.eps)).sqrt()).collect::<Vec<f64>>()
    };
    let mut state = vec![vec![0.0_f64; v_dim]; k_dim];
    let mut out = Vec::new();
    for token in tokens {
        let (q, k) = (unit(&token.q), unit(&token.k));
        let decay = (-f64::from(head.a_log).exp() * (f64::from(token.a + head.dt_bias)).exp().ln_1p()).exp();
        let beta = 1.0 / (1.0 + (-f64::from(token.b)).exp());
        state.iter_mut().flatten().for_each(|value| *value *= decay);
        for v in 0..v_dim {
            let read: f64 = state.iter().zip(&k).map(|(row, k)| row[v] * k).sum();
            let delta = beta * (f64::from(token.v[v]) - read);
            state.iter_mut().zip(&k).for_each(|(row, k)| row[v] += k * delta);
        }
        let scale = 1.0 / (k_dim as f64).sqrt();
        out.push((0..v_dim).map(|v| (0..k_dim).map(|d| state[d][v] * q[d] * scale).sum()).collect());
    }
    out
}
