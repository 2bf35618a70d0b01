// The gated norm of the rows of prefill tiles: per-head RMS norm times weight times SiLU of the gate, packed for the
// output projection. A warp takes a head of a row.
#include "gated_delta.cuh"

namespace {

constexpr u32 kThreads = 256, kWarps = kThreads / kWarp;

/// `Dim`: the width of heads, or 0 for any up to kMaxDim.
template <u32 Dim>
__device__ void norm_rows(const GatedDelta& p) {
    constexpr u32 kPairs = (Dim ? Dim : kMaxDim) / 64;
    allow_next();
    wait_for_previous();
    Tile tile;
    if (!nth_tile(p, blockIdx.y, tile)) return;
    const Segment s = p.step.segments[tile.segment];
    const u32 lane = threadIdx.x % kWarp, dim = Dim ? Dim : p.v_dim, rows = min(s.rows - tile.row, kTileRows);
    // Neighbouring warps write neighbouring rows of the packed layout.
    for (u32 unit = blockIdx.x * kWarps + threadIdx.x / kWarp; unit < kTileRows * p.v_heads; unit += gridDim.x * kWarps) {
        const u32 row = s.first_row + tile.row + unit % kTileRows, head = unit / kTileRows;
        if (unit % kTileRows >= rows) continue;
        u32 gate[kPairs];
        load_gate(p, row, head, gate);
        float2 x[kPairs];
#pragma unroll
        for (u32 i = 0; i < kPairs; i++) {
            const u32 at = 2 * (lane + kWarp * i);
            const u16* from = p.mixed + (u64(row) * p.v_heads + head) * dim + at;
            const u32 pair = at < dim ? *reinterpret_cast<const u32*>(from) : 0;
            x[i] = {low_bf16(pair), high_bf16(pair)};
        }
        gated_norm_row<Dim>(p, row, head, x, gate);
    }
}

}  // namespace

/// Grid: (any, tiles); the thread blocks along x share the rows and heads of a tile. Heads of 128.
extern "C" __global__ void __launch_bounds__(kThreads) gated_norm_tiles(const __grid_constant__ GatedDelta p) {
    norm_rows<128>(p);
}

/// The same for heads of up to 256.
extern "C" __global__ void __launch_bounds__(kThreads) gated_norm_tiles_any(const __grid_constant__ GatedDelta p) {
    norm_rows<0>(p);
}
