// The gated norm of the rows of prefill tiles: per-head RMS norm times weight times SiLU of the gate, packed for the
// output projection. A warp takes a head of a row.
#include "gated_delta.cuh"

/// Grid: (any, tiles); the thread blocks of a tile share its rows and heads. Heads of at most 128.
extern "C" __global__ void __launch_bounds__(256) gated_norm_tiles(const __grid_constant__ GatedDelta p) {
    constexpr u32 kWarps = 8, kPairs = 2;
    allow_next();
    wait_for_previous();
    if (blockIdx.y >= p.step.counts->tiles) return;
    const Tile tile = p.step.tiles[blockIdx.y];
    const Segment s = p.step.segments[tile.segment];
    const u32 lane = threadIdx.x % kWarp, rows = min(s.rows - tile.row, kTileRows);
    for (u32 unit = blockIdx.x * kWarps + threadIdx.x / kWarp; unit < rows * p.v_heads; unit += gridDim.x * kWarps) {
        // Neighbouring warps write neighbouring rows of the packed layout.
        const u32 row = s.first_row + tile.row + unit % rows, head = unit / rows;
        u32 gate[kPairs];
        load_gate(p, row, head, gate);
        float2 x[kPairs];
#pragma unroll
        for (u32 i = 0; i < kPairs; i++) {
            const u32 at = 2 * (lane + kWarp * i);
            const u16* from = p.mixed + (u64(row) * p.v_heads + head) * p.v_dim + at;
            const u32 pair = at < p.v_dim ? *reinterpret_cast<const u32*>(from) : 0;
            x[i] = {low_bf16(pair), high_bf16(pair)};
        }
        gated_norm_row(p, row, head, x, gate);
    }
}
