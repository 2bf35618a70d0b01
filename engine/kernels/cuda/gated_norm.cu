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
    constexpr u32 kTogether = 2;
    const u32 step = gridDim.x * kWarps;
    for (u32 unit = blockIdx.x * kWarps + threadIdx.x / kWarp; unit < kTileRows * p.v_heads; unit += kTogether * step) {
        u32 gate[kTogether][kPairs], pairs[kTogether][kPairs];
#pragma unroll
        for (u32 n = 0; n < kTogether; n++) {
            const u32 r = (unit + n * step) % kTileRows, head = (unit + n * step) / kTileRows;
            if (r >= rows || head >= p.v_heads) continue;
            const u32 row = s.first_row + tile.row + r;
            load_gate<Dim>(p, row, head, gate[n]);
            const u16* from = p.mixed + (u64(row) * p.v_heads + head) * dim;
#pragma unroll
            for (u32 i = 0; i < kPairs; i++) {
                const u32 at = 2 * (lane + kWarp * i);
                pairs[n][i] = at < dim ? *reinterpret_cast<const u32*>(from + at) : 0;
            }
        }
#pragma unroll
        for (u32 n = 0; n < kTogether; n++) {
            const u32 r = (unit + n * step) % kTileRows, head = (unit + n * step) / kTileRows;
            if (r >= rows || head >= p.v_heads) continue;
            float2 x[kPairs];
#pragma unroll
            for (u32 i = 0; i < kPairs; i++) x[i] = {low_bf16(pairs[n][i]), high_bf16(pairs[n][i])};
            gated_norm_row<Dim>(p, s.first_row + tile.row + r, head, x, gate[n], p.norm_weight);
        }
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
