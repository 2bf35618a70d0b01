// silu(gate) · up, from row-major gate and up side by side to the packed layout. The fused epilogue of the up
// projection computes the same bits.

#include "rows.cuh"
#include "step.cuh"

struct SiluMulArgs {
    Step step;
    const u16* gate_up;  // row-major, [rows][2 · width]
    u16* out;            // packed
    u32 width;
    u32 groups;          // of `out`
};

/// A warp 8 rows × 64 columns: `gridDim.x` · warps covers the blocks of a row, `gridDim.y` the groups.
extern "C" __global__ void silu_mul(SiluMulArgs a) {
    allow_next();
    wait_for_previous();
    const u32 lane = threadIdx.x % kWarp, unit = (blockIdx.x * blockDim.x + threadIdx.x) / kWarp * 4 + lane % 4;
    const u32 row = blockIdx.y * kGroup + lane / 4;
    if (row >= a.step.counts->rows || unit / 4 * kBlock >= a.width) return;
    const u16* from = a.gate_up + u64(row) * 2 * a.width;
    const bool aligned = a.width % 8 == 0;
    const Unit gate = load_unit(from, unit * kUnit, a.width, aligned);
    const Unit up = load_unit(from + a.width, unit * kUnit, a.width, aligned);
    u32* to = packed_unit(a.out, row, unit, a.groups);
#pragma unroll
    for (u32 q = 0; q < 8; q++) {
        const float low = silu(low_bf16(gate.pairs[q])) * low_bf16(up.pairs[q]);
        const float high = silu(high_bf16(gate.pairs[q])) * high_bf16(up.pairs[q]);
        to[q * kPairStride] = to_bf16x2(low, high);
    }
}
