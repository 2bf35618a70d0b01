// RopeStore: RMS norms of query and key heads, rotary positions, rounding to bf16 in place, then keys and values into
// the pages of their positions. Two kernels do it with the same bits, one for few rows and one for many.
#include "kv_page.cuh"
#include "step.cuh"

struct RopeStoreArgs {
    Step step;
    u16* qkv;                // [rows][width], bf16
    const float* q_norm;     // [head_dim], or null: no norms
    const float* k_norm;
    const float* inv_freq;   // [half]
    u8* k;
    u8* v;
    u32 width;
    u32 heads;
    u32 kv_heads;
    u32 head_dim;            // a multiple of 8, at most 256
    u32 q_stride;
    u32 k_offset;
    u32 v_offset;
    u32 half;                // pairs that rotate: 2·half ≤ head_dim
    u32 unit_offset;         // the norms' factor is 1 + weight
    u32 fp8;
    float eps;
    float attention_scaling;
    float k_scale;
    float v_scale;
};

namespace {

constexpr u32 kWarps = 4;

/// Eight neighbours of a row, or zeros.
__device__ inline uint4 load_eight(const u16* from, bool real) {
    return real ? *reinterpret_cast<const uint4*>(from) : make_uint4(0, 0, 0, 0);
}

/// A lane's factors of a norm.
__device__ inline void load_weights(const float* weight, u32 lane, bool holds, bool unit_offset, float (&w)[8]) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float4 x = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (holds) x = reinterpret_cast<const float4*>(weight)[lane * 2 + i];
        w[4 * i] = x.x, w[4 * i + 1] = x.y, w[4 * i + 2] = x.z, w[4 * i + 3] = x.w;
    }
#pragma unroll
    for (int i = 0; i < 8; i++) w[i] = unit_offset ? 1.0f + w[i] : w[i];
}

/// The head's RMS norm; lanes without dims hold zeros.
__device__ inline void normalise(float (&x)[8], const float (&weight)[8], u32 head_dim, float eps) {
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < 8; i++) sum = fmaf(x[i], x[i], sum);
    const float inverse = 1.0f / sqrtf(warp_sum(sum) / float(head_dim) + eps);
#pragma unroll
    for (int i = 0; i < 8; i++) x[i] = x[i] * inverse * weight[i];
}

/// Rotates a head's pairs (d, d + half); `scratch` holds a head's dims and belongs to the warp.
__device__ inline void rotate(float (&x)[8], u32 lane, u32 half, const float* cosine, const float* sine,
                              float* scratch) {
    const bool rotates = lane * 8 < 2 * half;
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 8; i++) {
        if (rotates) scratch[lane * 8 + i] = x[i];
    }
    __syncwarp();
    if (!rotates) return;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const u32 d = lane * 8 + i;
        if (d < half) {
            x[i] = fmaf(x[i], cosine[d], -(scratch[d + half] * sine[d]));
        } else if (d < 2 * half) {
            x[i] = fmaf(x[i], cosine[d - half], scratch[d - half] * sine[d - half]);
        }
    }
}

/// Where a row stands, and a warp's share of what its heads need.
struct Row {
    u32 position, token, page;
    float q_weight[8], k_weight[8];
    const float* cosine;
    const float* sine;
    float* scratch;

    /// Needs nothing of the kernels before: the step's arrays stand before its first kernel.
    __device__ inline Row(const RopeStoreArgs& a, u32 row, u32 lane, const float* cosine, const float* sine,
                          float* scratch)
        : cosine(cosine), sine(sine), scratch(scratch) {
        position = a.step.positions[row];
        token = position % kPageTokens;
        const Segment& segment = a.step.segments[a.step.row_segment[row]];
        page = a.step.tables[segment.pages + position / kPageTokens];
        if (!a.q_norm) return;
        load_weights(a.q_norm, lane, lane * 8 < a.head_dim, a.unit_offset, q_weight);
        load_weights(a.k_norm, lane, lane * 8 < a.head_dim, a.unit_offset, k_weight);
    }

    /// Norm, rotation and rounding of eight dims of a head.
    __device__ inline void head(const RopeStoreArgs& a, const uint4& raw, bool is_key, u32 lane, u32 (&out)[4]) const {
        float x[8] = {low_bf16(raw.x), high_bf16(raw.x), low_bf16(raw.y), high_bf16(raw.y),
                      low_bf16(raw.z), high_bf16(raw.z), low_bf16(raw.w), high_bf16(raw.w)};
        if (a.q_norm) normalise(x, is_key ? k_weight : q_weight, a.head_dim, a.eps);
        rotate(x, lane, a.half, cosine, sine, scratch);
#pragma unroll
        for (int i = 0; i < 4; i++) out[i] = to_bf16x2(x[2 * i], x[2 * i + 1]);
    }
};

/// Cosines and sines of a position, by `threads` threads.
__device__ inline void angles(const RopeStoreArgs& a, u32 position, u32 thread, u32 threads, float* cosine,
                              float* sine) {
    for (u32 i = thread; i < a.half; i += threads) {
        float s, c;
        sincosf(float(position) * a.inv_freq[i], &s, &c);
        cosine[i] = c * a.attention_scaling;
        sine[i] = s * a.attention_scaling;
    }
}

/// Stores a token's key and value of a head; `k` and `v` are where the head's blocks of its page stand.
__device__ inline void store(const RopeStoreArgs& a, u8* k, u8* v, u32 token, u32 lane, const u32 (&key)[4],
                             const uint4& value) {
    const u32 values[4] = {value.x, value.y, value.z, value.w};
    const float k_factor = 1.0f / a.k_scale, v_factor = 1.0f / a.v_scale;
    if (a.fp8) {
        store_row<true>(k, v, token, lane, lane * 8 < a.head_dim, key, values, k_factor, v_factor);
    } else {
        store_row<false>(k, v, token, lane, lane * 8 < a.head_dim, key, values, k_factor, v_factor);
    }
}

__device__ inline u64 head_at(const RopeStoreArgs& a, u32 page, u32 kv_head) {
    const u32 blocks = (a.head_dim + kPageBlock - 1) / kPageBlock;
    return a.fp8 ? page_head<true>(page, a.kv_heads, kv_head, blocks)
                 : page_head<false>(page, a.kv_heads, kv_head, blocks);
}

}  // namespace

/// Few rows: a thread block works on one row, a warp on one head at a time; the warp of a key head also stores its
/// values.
extern "C" __global__ void __launch_bounds__(32 * kWarps) rope_store(const RopeStoreArgs a) {
    __shared__ float cosine[kMaxHeadDim / 2], sine[kMaxHeadDim / 2], scratch[kWarps][kMaxHeadDim];
    const u32 row = blockIdx.x, warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
    const bool holds = lane * 8 < a.head_dim;
    allow_next();
    if (row >= a.step.counts->rows) return wait_for_previous();
    const Row here(a, row, lane, cosine, sine, scratch[warp]);
    angles(a, here.position, threadIdx.x, 32 * kWarps, cosine, sine);
    __syncthreads();
    wait_for_previous();

    u16* const from = a.qkv + u64(row) * a.width + lane * 8;
    for (u32 head = blockIdx.y * kWarps + warp; head < a.heads + a.kv_heads; head += gridDim.y * kWarps) {
        const bool is_key = head >= a.heads;
        const u32 kv_head = head - a.heads;
        u16* const at = from + (is_key ? a.k_offset + kv_head * a.head_dim : head * a.q_stride);
        const uint4 raw = load_eight(at, holds);
        const uint4 value = load_eight(from + a.v_offset + kv_head * a.head_dim, holds && is_key);
        u32 rotated[4];
        here.head(a, raw, is_key, lane, rotated);
        if (holds) *reinterpret_cast<uint4*>(at) = make_uint4(rotated[0], rotated[1], rotated[2], rotated[3]);
        if (!is_key) continue;
        const u64 to = head_at(a, here.page, kv_head);
        store(a, a.k + to, a.v + to, here.token, lane, rotated, value);
    }
}

/// Many rows: a thread block works on four rows, a warp on one of them. Rows that are four tokens of a page which stand
/// together there (4q .. 4q + 3) go to it in pieces of sixteen bytes; others are stored as in `rope_store`.
extern "C" __global__ void __launch_bounds__(32 * kWarps) rope_store_many(const RopeStoreArgs a) {
    constexpr u32 kHeadBytes = kMaxHeadDim / kPageBlock * kPageBlockBytes<false>;
    __shared__ float cosine[kWarps][kMaxHeadDim / 2], sine[kWarps][kMaxHeadDim / 2], scratch[kWarps][kMaxHeadDim];
    __shared__ __align__(16) u8 keys[kHeadBytes], values[kHeadBytes];
    const u32 warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, first = blockIdx.x * kWarps;
    const u32 rows = a.step.counts->rows, row = min(first + warp, rows - 1);
    const bool holds = lane * 8 < a.head_dim;
    allow_next();
    if (first >= rows) return wait_for_previous();
    const Row here(a, row, lane, cosine[warp], sine[warp], scratch[warp]);
    angles(a, here.position, lane, kWarp, cosine[warp], sine[warp]);
    // Blocks of heads that end inside them are zeros there.
    for (u32 i = threadIdx.x * 16; i < kHeadBytes; i += 32 * kWarps * 16) {
        *reinterpret_cast<uint4*>(keys + i) = *reinterpret_cast<uint4*>(values + i) = make_uint4(0, 0, 0, 0);
    }
    const u32 start = a.step.positions[first], segment = a.step.row_segment[first];
    const bool together = first + warp < rows && start % 4 == 0 && a.step.row_segment[row] == segment &&
                          here.position == start + warp;
    const bool quad = __syncthreads_and(together);
    wait_for_previous();

    const bool real = first + warp < rows;
    u16* const from = a.qkv + u64(row) * a.width + lane * 8;
    uint4 next = load_eight(from + blockIdx.y * a.q_stride, holds);
    for (u32 head = blockIdx.y; head < a.heads; head += gridDim.y) {
        u16* const at = from + head * a.q_stride;
        const uint4 raw = next;
        next = load_eight(at + gridDim.y * a.q_stride, holds && head + gridDim.y < a.heads);
        u32 rotated[4];
        here.head(a, raw, false, lane, rotated);
        if (holds && real) *reinterpret_cast<uint4*>(at) = make_uint4(rotated[0], rotated[1], rotated[2], rotated[3]);
    }
    for (u32 kv_head = blockIdx.y; kv_head < a.kv_heads; kv_head += gridDim.y) {
        u16* const at = from + a.k_offset + kv_head * a.head_dim;
        const uint4 raw = load_eight(at, holds);
        const uint4 value = load_eight(from + a.v_offset + kv_head * a.head_dim, holds);
        u32 rotated[4];
        here.head(a, raw, true, lane, rotated);
        if (holds && real) *reinterpret_cast<uint4*>(at) = make_uint4(rotated[0], rotated[1], rotated[2], rotated[3]);
        const u64 to = head_at(a, here.page, kv_head);
        if (!quad) {
            if (real) store(a, a.k + to, a.v + to, here.token, lane, rotated, value);
            continue;
        }
        store(a, keys, values, here.token, lane, rotated, value);
        __syncthreads();
        const u32 chunks = (a.head_dim + kPageBlock - 1) / kPageBlock * (a.fp8 ? 8 : 16), q = here.token / 4;
        for (u32 i = threadIdx.x; i < chunks; i += 32 * kWarps) {
            const u32 key = i / 8 * 512 + (q * 8 + i % 8) * 16, v = i / 8 * 512 + (i % 8 * 4 + q) * 16;
            *reinterpret_cast<uint4*>(a.k + to + key) = *reinterpret_cast<const uint4*>(keys + key);
            *reinterpret_cast<uint4*>(a.v + to + v) = *reinterpret_cast<const uint4*>(values + v);
        }
        __syncthreads();
    }
}
