#![allow(missing_docs, unused, clippy::all)]
pub mod pool {
    pub struct Pool;
    impl Pool {
        pub fn new(_: usize) -> Self {
            Pool
        }
        pub fn threads(&self) -> usize {
            1
        }
        pub fn run(&self, _: usize, _: &(dyn Fn(usize) + Sync)) {}
    }
}
pub mod linear {
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub enum Dense {
        F32,
        F16,
        Bf16,
    }
    #[derive(Debug)]
    pub struct PackedMatrix;
    impl PackedMatrix {
        pub fn from_dense(_: Dense, _: usize, _: usize, _: &[u8]) -> Self {
            todo!()
        }
        pub fn from_nvfp4(_: usize, _: usize, _: &[u8], _: &[u8], _: f32) -> Self {
            todo!()
        }
        pub fn n(&self) -> usize {
            0
        }
        pub fn k(&self) -> usize {
            0
        }
        pub fn bytes(&self) -> usize {
            0
        }
        pub fn row(&self, _: usize, _: &mut [f32]) {}
    }
    pub struct LinearPart<'a> {
        pub weight: &'a PackedMatrix,
        pub bias: Option<&'a [f32]>,
        pub column: usize,
    }
    pub fn linear(
        _: &crate::pool::Pool,
        x: &[f32],
        ldx: usize,
        rows: usize,
        parts: &[LinearPart],
        out: &mut [f32],
        ldo: usize,
        accumulate: bool,
        round: bool,
    ) {
    }
}
pub mod math {
    use crate::pool::Pool;
    pub struct GateLayout {
        pub offset: usize,
        pub head_stride: usize,
        pub head_dim: usize,
        pub heads: usize,
    }
    pub fn silu_mul(p: &Pool, g: &[f32], ld: usize, rows: usize, width: usize, out: &mut [f32], ldo: usize, r: bool) {}
    pub fn sigmoid_mul(
        p: &Pool,
        x: &mut [f32],
        ldx: usize,
        gate: &[f32],
        ldg: usize,
        l: &GateLayout,
        rows: usize,
        r: bool,
    ) {
    }
}
pub mod norm {
    use crate::pool::Pool;
    pub fn rms_norm(
        p: &Pool,
        x: &[f32],
        ldx: usize,
        rows: usize,
        width: usize,
        w: Option<&[f32]>,
        u: bool,
        eps: f32,
        out: &mut [f32],
        ldo: usize,
        r: bool,
    ) {
    }
    pub fn gated_rms_norm(
        p: &Pool,
        x: &[f32],
        gate: &[f32],
        ldg: usize,
        go: usize,
        rows: usize,
        heads: usize,
        dim: usize,
        w: &[f32],
        eps: f32,
        s: bool,
        out: &mut [f32],
        ldo: usize,
        r: bool,
    ) {
    }
}
pub mod rope {
    use crate::pool::Pool;
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub enum KvDtype {
        F32,
        Bf16,
    }
    impl KvDtype {
        pub fn element_bytes(self) -> f64 {
            4.0
        }
    }
    pub const PAGE: usize = 16;
    pub struct KvLayer;
    impl KvLayer {
        pub fn new(d: KvDtype, p: usize, k: usize, h: usize, v: usize) -> Self {
            KvLayer
        }
        pub fn bytes(&self) -> usize {
            0
        }
    }
    pub struct KvSegment<'a> {
        pub first_row: usize,
        pub rows: usize,
        pub start: usize,
        pub pages: &'a [u32],
    }
    pub struct RopeArgs<'a> {
        pub positions: &'a [u32],
        pub inv_freq: &'a [f32],
        pub attention_scaling: f32,
        pub interleaved: bool,
    }
    pub struct QkvLayout {
        pub heads: usize,
        pub kv_heads: usize,
        pub head_dim: usize,
        pub q_offset: usize,
        pub q_head_stride: usize,
        pub k_offset: usize,
        pub v_offset: usize,
        pub v_dim: usize,
    }
    pub struct QkNorm<'a> {
        pub q: &'a [f32],
        pub k: &'a [f32],
        pub eps: f32,
        pub unit_offset: bool,
    }
    pub fn rope_and_store(
        p: &Pool,
        qkv: &mut [f32],
        ld: usize,
        rows: usize,
        l: &QkvLayout,
        n: Option<QkNorm>,
        r: Option<&RopeArgs>,
        s: &[KvSegment],
        c: &mut KvLayer,
        b: bool,
    ) {
    }
}
pub mod attention {
    use crate::{pool::Pool, rope::*};
    pub struct AttentionArgs {
        pub scale: f32,
        pub window: Option<usize>,
        pub softcap: Option<f32>,
    }
    pub fn attention(
        p: &Pool,
        q: &[f32],
        ld: usize,
        l: &QkvLayout,
        s: &[KvSegment],
        c: &KvLayer,
        a: &AttentionArgs,
        sinks: Option<&[f32]>,
        out: &mut [f32],
        ldo: usize,
        b: bool,
    ) {
    }
}
pub mod conv {
    use crate::pool::Pool;
    pub struct ConvRing;
    impl ConvRing {
        pub fn new(a: usize, b: usize, c: usize) -> Self {
            ConvRing
        }
        pub fn bytes(&self) -> usize {
            0
        }
    }
    pub struct ConvSegment {
        pub first_row: usize,
        pub rows: usize,
        pub start: usize,
        pub slot: u32,
    }
    pub fn causal_conv(
        p: &Pool,
        x: &[f32],
        ldx: usize,
        off: usize,
        s: &[ConvSegment],
        ch: usize,
        w: &[f32],
        b: Option<&[f32]>,
        taps: usize,
        silu: bool,
        r: &mut ConvRing,
        out: &mut [f32],
        ldo: usize,
        rb: bool,
    ) {
    }
}
pub mod delta {
    use crate::pool::Pool;
    pub const BLOCK: usize = 64;
    pub struct DeltaState;
    impl DeltaState {
        pub fn new(a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> Self {
            DeltaState
        }
        pub fn bytes(&self) -> usize {
            0
        }
    }
    pub struct DeltaSegment<'a> {
        pub first_row: usize,
        pub rows: usize,
        pub start: usize,
        pub anchors: &'a [u32],
        pub pages: &'a [u32],
    }
    pub struct DeltaArgs<'a> {
        pub k_heads: usize,
        pub v_heads: usize,
        pub k_dim: usize,
        pub v_dim: usize,
        pub a_log: &'a [f32],
        pub dt_bias: &'a [f32],
        pub eps: f32,
    }
    pub fn gated_delta(
        p: &Pool,
        x: &[f32],
        ldx: usize,
        ab: &[f32],
        ldab: usize,
        ao: usize,
        bo: usize,
        s: &[DeltaSegment],
        a: &DeltaArgs,
        st: &mut DeltaState,
        out: &mut [f32],
        ldo: usize,
        rb: bool,
    ) {
    }
}
