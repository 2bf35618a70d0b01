// bf16 activations as f32 rows: what observers of a step see.

#include "step.cuh"

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

struct PackArgs {
    const u16* x;  // row-major
    u16* out;      // packed
    u32 rows;
    u32 width;
    u32 groups;    // of `out`
};

/// A row-major activation into the packed layout, for a reader of another layout than its writer's.
extern "C" __global__ void pack_rows(PackArgs a) {
    allow_next();
    wait_for_previous();
    const u64 stride = u64(gridDim.x) * blockDim.x;
    const u32 padded = (a.width + kBlock - 1) / kBlock * kBlock;
    const u64 all = u64(a.rows) * padded;
    for (u64 at = u64(blockIdx.x) * blockDim.x + threadIdx.x; at < all; at += stride) {
        const u32 row = u32(at / padded), column = u32(at % padded);
        a.out[packed_at(row, column, a.groups)] = column < a.width ? a.x[u64(row) * a.width + column] : 0;
    }
}

/// And back.
extern "C" __global__ void unpack_rows(PackArgs a) {
    allow_next();
    wait_for_previous();
    const u64 stride = u64(gridDim.x) * blockDim.x, all = u64(a.rows) * a.width;
    u16* out = a.out;
    for (u64 at = u64(blockIdx.x) * blockDim.x + threadIdx.x; at < all; at += stride) {
        out[at] = a.x[packed_at(u32(at / a.width), u32(at % a.width), a.groups)];
    }
}

struct GatherArgs {
    Step step;
    const u16* x;  // row-major
    u16* out;      // row-major, the step's logit rows
    u32 width;
};

/// A thread block a logit row.
extern "C" __global__ void gather_rows(GatherArgs a) {
    allow_next();
    wait_for_previous();
    if (blockIdx.x >= a.step.counts->logit_rows) return;
    const u16* from = a.x + u64(a.step.logit_rows[blockIdx.x]) * a.width;
    u16* to = a.out + u64(blockIdx.x) * a.width;
    for (u32 at = threadIdx.x; at < a.width; at += blockDim.x) to[at] = from[at];
}
