// x · sigmoid(gate) in place on packed rows; gates follow each query head in the row-major fused projection. The
// attention kernels' epilogue computes the same bits.

#include "rows.cuh"
#include "step.cuh"

struct GateOutputArgs {
    Step step;
    u16* x;            // packed, width heads · head_dim
    const u16* gate;   // row-major, [rows][gate_width]
    u32 gate_width;
    u32 gate_offset;   // first gate of head 0
    u32 head_stride;   // from one head's gates to the next's
    u32 head_dim;
    u32 heads;
    u32 groups;        // of `x`
};

/// A warp 8 rows × 64 columns: `gridDim.x` · warps covers the blocks of a row, `gridDim.y` the groups.
extern "C" __global__ void gate_output(GateOutputArgs a) {
    allow_next();
    wait_for_previous();
    const u32 width = a.heads * a.head_dim;
    const u32 lane = threadIdx.x % kWarp, unit = (blockIdx.x * blockDim.x + threadIdx.x) / kWarp * 4 + lane % 4;
    const u32 row = blockIdx.y * kGroup + lane / 4;
    if (row >= a.step.counts->rows || unit * kUnit >= width) return;
    u32* x = packed_unit(a.x, row, unit, a.groups);
    Unit values;
#pragma unroll
    for (u32 q = 0; q < 8; q++) values.pairs[q] = x[q * kPairStride];
    const u16* gates = a.gate + u64(row) * a.gate_width + a.gate_offset;
    Unit gate;
    if (a.head_dim % kUnit == 0) {
        const bool aligned = a.gate_width % 8 == 0 && a.gate_offset % 8 == 0 && a.head_stride % 8 == 0;
        const u32 head = unit * kUnit / a.head_dim;
        const u32 column = head * a.head_stride + unit * kUnit % a.head_dim;
        gate = load_unit(gates, column, column + kUnit, aligned);
    } else {
        const auto at = [&](u32 column) {
            return column < width ? u32(gates[column / a.head_dim * a.head_stride + column % a.head_dim]) : 0;
        };
#pragma unroll
        for (u32 q = 0; q < 8; q++) {
            const u32 column = unit * kUnit + 2 * q;
            gate.pairs[q] = at(column) | at(column + 1) << 16;
        }
    }
#pragma unroll
    for (u32 q = 0; q < 8; q++) {
        const float low = low_bf16(values.pairs[q]) * sigmoid(low_bf16(gate.pairs[q]));
        const float high = high_bf16(values.pairs[q]) * sigmoid(high_bf16(gate.pairs[q]));
        x[q * kPairStride] = to_bf16x2(low, high);
    }
}
