// What every kernel shares: types, bf16, the packed layout of activations, dependent launches, fixed-order reductions.
//
// The files of this folder compile with nvcc and with NVRTC alike: no standard headers. They are compiled with
// -fmad=false, so that a formula has the same bits in every kernel; a fused multiply-add is written as fmaf().
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define ATLAS_WGMMA 1
#endif

constexpr int kWarp = 32;
/// Rows of x that stand together in the packed layout.
constexpr int kGroup = 8;
/// Columns of a block of the packed layout, and of a packed weight.
constexpr int kBlock = 64;

// ---- Dependent launches ----

/// Waits until everything before this kernel is complete and visible. Every thread of every kernel calls it, on every
/// path: a kernel that never waits breaks the chain. Before it a kernel may read only what no kernel of the same step
/// writes: weights, the step's arrays (copied before its first kernel), and cached rows of earlier steps.
__device__ inline void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/// Allows the next kernel of the stream to start its own preparation; its `wait_for_previous` still waits for our end.
__device__ inline void allow_next() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// ---- bf16 ----

__device__ inline float from_bf16(u32 bits) { return __uint_as_float(bits << 16); }
/// The low and high element of a pair.
__device__ inline float low_bf16(u32 pair) { return __uint_as_float(pair << 16); }
__device__ inline float high_bf16(u32 pair) { return __uint_as_float(pair & 0xFFFF0000u); }

/// To nearest, ties to even; `low` stands first in memory.
__device__ inline u32 to_bf16x2(float low, float high) {
    u32 pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}
__device__ inline u16 to_bf16(float value) { return u16(to_bf16x2(value, 0.0f)); }
__device__ inline float round_bf16(float value) { return low_bf16(to_bf16x2(value, 0.0f)); }

// ---- The packed layout of activations ----
//
// An activation that a linear layer reads is bf16 [K/64][groups][step 4][half 2][8 rows][8 elements]: 128-byte core
// matrices as `ldmatrix` and `wgmma` read them. `groups` = rows of the buffer / 8, rounded up. Inside a block of 64
// columns, column 16t + 4i + 2e + h stands at step i, half e, element 2t + h. Columns from K up to the next multiple
// of 64 hold zeros; rows that do not exist may hold anything.

/// Element offset of (row, column).
__device__ inline u64 packed_at(u32 row, u32 column, u32 groups) {
    const u32 c = column % kBlock, t = c / 16, i = c / 4 % 4, e = c / 2 % 2, h = c % 2;
    const u64 core = (u64(column / kBlock) * groups + row / kGroup) * 8 + i * 2 + e;
    return (core * 8 + row % kGroup) * 8 + 2 * t + h;
}

/// Stores columns `column` and `column + 1` (`column` even): two neighbours in memory.
__device__ inline void store_packed(u16* x, u32 row, u32 column, u32 groups, float first, float second) {
    *reinterpret_cast<u32*>(x + packed_at(row, column, groups)) = to_bf16x2(first, second);
}

// ---- Reductions in a fixed order ----

/// The sum of a warp's values in every lane, by halving: the order does not depend on the lane.
__device__ inline float warp_sum(float value) {
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) value = value + __shfl_xor_sync(0xFFFFFFFFu, value, offset);
    return value;
}

__device__ inline float warp_max(float value) {
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) value = fmaxf(value, __shfl_xor_sync(0xFFFFFFFFu, value, offset));
    return value;
}

// ---- Functions that several operations use ----
//
// Through e^(−|x|), which never overflows: small results stay right.

__device__ inline float sigmoid(float x) {
    const float e = expf(-fabsf(x));
    return (x < 0.0f ? e : 1.0f) / (1.0f + e);
}

__device__ inline float silu(float x) {
    const float e = expf(-fabsf(x));
    return (x < 0.0f ? x * e : x) / (1.0f + e);
}
