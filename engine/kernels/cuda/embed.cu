// Rows of the embedding table for the step's tokens, as the first residual stream. The table is bf16, row-major, or a
// linear layer's packed bf16 weight when the output projection is tied to it.

#include "step.cuh"

struct EmbedArgs {
    Step step;
    const u16* table;
    u16* out;  // row-major
    u32 width;
};

/// A thread block a row.
extern "C" __global__ void embed(EmbedArgs a) {
    allow_next();
    wait_for_previous();
    const u32 row = blockIdx.x;
    if (row >= a.step.counts->rows) return;
    const u16* from = a.table + u64(a.step.tokens[row]) * a.width;
    u16* to = a.out + u64(row) * a.width;
    if (a.width % 8 == 0) {
        for (u32 at = threadIdx.x; at < a.width / 8; at += blockDim.x) {
            reinterpret_cast<uint4*>(to)[at] = reinterpret_cast<const uint4*>(from)[at];
        }
    } else {
        for (u32 at = threadIdx.x; at < a.width; at += blockDim.x) to[at] = from[at];
    }
}
