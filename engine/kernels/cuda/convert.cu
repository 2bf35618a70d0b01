// bf16 activations as f32 rows: what observers of a step see.

#include "common.cuh"

struct ConvertArgs {
    const u16* x;  // packed or row-major
    float* out;    // row-major
    u32 rows;
    u32 width;
    u32 groups;    // of a packed `x`; 0: row-major
};

extern "C" __global__ void bf16_rows_to_f32(ConvertArgs a) {
    wait_for_previous();
    const u64 stride = u64(gridDim.x) * blockDim.x, all = u64(a.rows) * a.width;
    for (u64 at = u64(blockIdx.x) * blockDim.x + threadIdx.x; at < all; at += stride) {
        const u32 row = u32(at / a.width), column = u32(at % a.width);
        a.out[at] = from_bf16(a.x[a.groups ? packed_at(row, column, a.groups) : at]);
    }
}
