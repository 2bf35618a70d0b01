// Rows of the embedding table for the step's tokens, as the first residual stream. The table is bf16, row-major, or a
// linear layer's packed bf16 weight when the output projection is tied to it.

#include "step.cuh"

struct EmbedArgs {
    Step step;
    const u16* table;
    u16* out;  // row-major
    u32 width;
};

/// A thread block a row. The table's packing (linear.cuh): units of 16 rows, blocks of 64 columns, [step 4][lane 32][16
/// bytes]. Lane 4g + t has columns 16t.. of two rows, at step i columns 4i.. of them: of each, halves e = 0, 1 of two
/// columns. A thread takes one row's four columns of a lane and step.
extern "C" __global__ void embed(EmbedArgs a) {
    allow_next();
    wait_for_previous();
    const u32 row = blockIdx.x;
    if (row >= a.step.counts->rows) return;
    const u32 token = a.step.tokens[row], feature = token % 16;
    const u32 g = feature / 4 * 2 + feature % 2, r = feature / 2 % 2;
    const u32 blocks = (a.width + kBlock - 1) / kBlock;
    // In pairs of columns.
    const u32* unit = reinterpret_cast<const u32*>(a.table) + u64(token / 16) * blocks * 512;
    u16* to = a.out + u64(row) * a.width;
    for (u32 at = threadIdx.x; at < blocks * 16; at += blockDim.x) {
        const u32 block = at / 16, t = at / 4 % 4, i = at % 4, column = at * 4;
        const u32* lane = unit + block * 512 + i * 128 + (4 * g + t) * 4;
        const u32 pairs[2] = {lane[r], lane[r + 2]};
        if (a.width % 4 == 0) {
            if (column < a.width) *reinterpret_cast<uint2*>(to + column) = uint2{pairs[0], pairs[1]};
            continue;
        }
#pragma unroll
        for (u32 c = 0; c < 4; c++) {
            if (column + c < a.width) to[column + c] = u16(pairs[c / 2] >> 16 * (c % 2));
        }
    }
}
