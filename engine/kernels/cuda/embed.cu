// Rows of the embedding table for the step's tokens, as the first residual stream. The table is packed as a linear
// layer's bf16 weight, which it also is when the output projection is tied to it.

#include "linear.cuh"
#include "step.cuh"

struct EmbedArgs {
    Step step;
    const u16* table;
    u16* out;  // row-major
    u32 width;
};

/// A thread block a row, a thread four columns: two pairs, which stand 8 bytes apart (linear.cuh).
extern "C" __global__ void embed(EmbedArgs a) {
    allow_next();
    wait_for_previous();
    const u32 row = blockIdx.x;
    if (row >= a.step.counts->rows) return;
    const u32 token = a.step.tokens[row], blocks = (a.width + kBlock - 1) / kBlock;
    u16* to = a.out + u64(row) * a.width;
    for (u32 column = threadIdx.x * 4; column < a.width; column += blockDim.x * 4) {
        const u8* from = reinterpret_cast<const u8*>(a.table) + packed_weight_at(token, column, blocks);
        const u32 pairs[2] = {*reinterpret_cast<const u32*>(from), *reinterpret_cast<const u32*>(from + 8)};
        if (a.width % 4 == 0) {
            *reinterpret_cast<uint2*>(to + column) = make_uint2(pairs[0], pairs[1]);
            continue;
        }
#pragma unroll
        for (u32 c = 0; c < 4; c++) {
            if (column + c < a.width) to[column + c] = u16(pairs[c / 2] >> 16 * (c % 2));
        }
    }
}
