// RMS norm of the residual stream, into the packed layout: x · 1/√(Σx²/width + eps) · w.
//
// Σx² has one order for every width. A unit of 16 columns is four chains of fused multiply-adds from 0, of four columns
// each, added in pairs; unit u belongs to lane u mod 32, which adds its units in ascending order from 0; `warp_sum` adds
// the lanes. Two kernels share it: a thread block a row, whose latency is short, and a thread block a group of 8 rows,
// whose stores are whole core matrices.

#include "rows.cuh"
#include "step.cuh"

struct RmsNormArgs {
    Step step;
    const u16* x;         // row-major
    const float* weight;  // [width]
    u16* out;             // packed
    u32 width;
    u32 groups;           // of `out`
    u32 which;            // rows of `out`: 0 the step's, 1 its logit rows out of all, 2 logit rows that stand together
    u32 unit_offset;      // the weight is an offset from one
    float eps;
};

constexpr u32 kGroupThreads = 256;
/// Units that a lane keeps between its two passes over a row: all of them up to a width of 5,120.
constexpr u32 kHeld = 10;
/// Sums that a lane of `rms_norm_row` loads before it adds the first.
constexpr u32 kAhead = 12;

namespace {

__device__ u32 out_rows(const RmsNormArgs& a) {
    return a.which ? a.step.counts->logit_rows : a.step.counts->rows;
}

/// Where output row `row` comes from, if it is one of `rows`. Unless rows are gathered, the address does not depend on them.
__device__ const u16* source(const RmsNormArgs& a, u32 row, u32 rows) {
    if (a.which == 1) row = row < rows ? a.step.logit_rows[row] : 0;
    return a.x + u64(row) * a.width;
}

__device__ float sum_squares(const Unit& unit) {
    float chains[4] = {};
#pragma unroll
    for (u32 q = 0; q < 8; q++) {
        const float low = low_bf16(unit.pairs[q]), high = high_bf16(unit.pairs[q]);
        chains[q / 2] = fmaf(high, high, fmaf(low, low, chains[q / 2]));
    }
    return (chains[0] + chains[1]) + (chains[2] + chains[3]);
}

__device__ float inverse_rms(const RmsNormArgs& a, float sum, float inverse_width) {
    return rsqrtf(sum * inverse_width + a.eps);
}

__device__ void store_normalised(const RmsNormArgs& a, u32 row, u32 unit, const Unit& x, float scale,
                                 const float* weight) {
    u32* to = packed_unit(a.out, row, unit, a.groups);
#pragma unroll
    for (u32 q = 0; q < 8; q++) {
        const float low = low_bf16(x.pairs[q]) * scale, high = high_bf16(x.pairs[q]) * scale;
        const float first = a.unit_offset ? 1.0f + weight[2 * q] : weight[2 * q];
        const float second = a.unit_offset ? 1.0f + weight[2 * q + 1] : weight[2 * q + 1];
        to[q * kPairStride] = to_bf16x2(low * first, high * second);
    }
}

}  // namespace

/// A thread block a row, a thread a unit: `blockDim.x` is the width in units, rounded up to whole warps (so the width
/// is at most 16,384).
extern "C" __global__ void __launch_bounds__(1024) rms_norm_row(RmsNormArgs a) {
    __shared__ float unit_sums[1024];
    const u32 unit = threadIdx.x, row = blockIdx.x;
    float weight[kUnit];
    load_vector(weight, a.weight, unit * kUnit, a.width);
    const float inverse_width = 1.0f / float(a.width);
    allow_next();
    wait_for_previous();
    // Loaded before it is known whether the row exists: the buffer has room for it.
    const u32 rows = out_rows(a);
    const Unit x = load_unit(source(a, row, rows), unit * kUnit, a.width, a.width % 8 == 0);
    if (row >= rows) return;

    unit_sums[unit] = sum_squares(x);
    __syncthreads();
    float sum = 0.0f;
    for (u32 first = threadIdx.x % kWarp; first < blockDim.x; first += kAhead * kWarp) {
        float sums[kAhead];
#pragma unroll
        for (u32 i = 0; i < kAhead; i++) {
            const u32 at = first + i * kWarp;
            sums[i] = at < blockDim.x ? unit_sums[at] : 0.0f;
        }
#pragma unroll
        for (u32 i = 0; i < kAhead; i++) sum = sum + sums[i];
    }
    const float scale = inverse_rms(a, warp_sum(sum), inverse_width);
    // Whole blocks of 64 columns are written: zeros follow a width that is not a multiple.
    if (unit / 4 * kBlock < a.width) store_normalised(a, row, unit, x, scale, weight);
}

/// A thread block a group of 8 rows. Warp w has the units 4w + t of every 32.
extern "C" __global__ void __launch_bounds__(kGroupThreads) rms_norm_group(RmsNormArgs a) {
    __shared__ float lane_sums[kWarp][kGroup + 1];
    const u32 r = threadIdx.x % kWarp / 4, first = threadIdx.x / kWarp * 4 + threadIdx.x % 4;
    const u32 row = blockIdx.x * kGroup + r;
    const float inverse_width = 1.0f / float(a.width);
    allow_next();
    wait_for_previous();
    const u32 rows = out_rows(a);
    if (blockIdx.x * kGroup >= rows) return;

    // Rows of the group that do not exist are computed from its first row and may hold anything.
    const u16* from = source(a, row < rows ? row : blockIdx.x * kGroup, rows);
    const bool aligned = a.width % 8 == 0;
    const u32 units = (a.width + kBlock - 1) / kBlock * 4;
    Unit held[kHeld];
#pragma unroll
    for (u32 j = 0; j < kHeld; j++) {
        const u32 unit = first + j * kWarp;
        if (unit < units) held[j] = load_unit(from, unit * kUnit, a.width, aligned);
    }
    float sum = 0.0f;
#pragma unroll
    for (u32 j = 0; j < kHeld; j++) {
        if (first + j * kWarp < units) sum = sum + sum_squares(held[j]);
    }
    for (u32 unit = first + kHeld * kWarp; unit < units; unit += kWarp) {
        sum = sum + sum_squares(load_unit(from, unit * kUnit, a.width, aligned));
    }
    lane_sums[first][r] = sum;
    __syncthreads();
    // Warp w adds row w as `rms_norm_row` does, then every lane takes its row's.
    const float total = warp_sum(lane_sums[threadIdx.x % kWarp][threadIdx.x / kWarp]);
    __syncthreads();
    if (threadIdx.x % kWarp == 0) lane_sums[0][threadIdx.x / kWarp] = inverse_rms(a, total, inverse_width);
    __syncthreads();
    const float scale = lane_sums[0][r];

    float weight[kUnit];
#pragma unroll
    for (u32 j = 0; j < kHeld; j++) {
        const u32 unit = first + j * kWarp;
        if (unit >= units) break;
        load_vector(weight, a.weight, unit * kUnit, a.width);
        store_normalised(a, row, unit, held[j], scale, weight);
    }
    for (u32 unit = first + kHeld * kWarp; unit < units; unit += kWarp) {
        load_vector(weight, a.weight, unit * kUnit, a.width);
        store_normalised(a, row, unit, load_unit(from, unit * kUnit, a.width, aligned), scale, weight);
    }
}
