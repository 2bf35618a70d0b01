// RopeStore: RMS norms of query and key heads, rotary positions, rounding to bf16 in place, then keys and values into
// the pages of their positions. A thread block is a row and four of its heads, a warp a head; the warp of a key head
// also stores its values.
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

constexpr int kHeads = 4;

/// Eight bf16 numbers.
__device__ inline void load_eight(const u16* from, float (&x)[8]) {
    const uint4 raw = *reinterpret_cast<const uint4*>(from);
    const u32 pairs[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
    for (int i = 0; i < 4; i++) x[2 * i] = low_bf16(pairs[i]), x[2 * i + 1] = high_bf16(pairs[i]);
}

/// The head's RMS norm; lanes without dims hold zeros.
__device__ inline void normalise(float (&x)[8], const float* weight, u32 lane, bool holds, const RopeStoreArgs& a) {
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < 8; i++) sum = fmaf(x[i], x[i], sum);
    const float inverse = 1.0f / sqrtf(warp_sum(sum) / float(a.head_dim) + a.eps);
    if (!holds) return;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const float w = weight[lane * 8 + i];
        x[i] = x[i] * inverse * (a.unit_offset ? 1.0f + w : w);
    }
}

extern "C" __global__ void __launch_bounds__(32 * kHeads) rope_store(const RopeStoreArgs a) {
    __shared__ float cosine[kMaxHeadDim / 2], sine[kMaxHeadDim / 2], heads[kHeads][kMaxHeadDim];
    const u32 row = blockIdx.x, warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
    const u32 head = blockIdx.y * kHeads + warp;
    allow_next();
    // The step's arrays stand before its first kernel.
    const bool real = row < a.step.counts->rows;
    const u32 position = real ? a.step.positions[row] : 0;
    for (u32 i = threadIdx.x; real && i < a.half; i += blockDim.x) {
        float s, c;
        sincosf(float(position) * a.inv_freq[i], &s, &c);
        cosine[i] = c * a.attention_scaling;
        sine[i] = s * a.attention_scaling;
    }
    wait_for_previous();
    __syncthreads();
    if (!real || head >= a.heads + a.kv_heads) return;

    const bool is_key = head >= a.heads, holds = lane * 8 < a.head_dim;
    const u32 kv_head = head - a.heads;
    u16* const from = a.qkv + u64(row) * a.width;
    u16* const at = from + (is_key ? a.k_offset + kv_head * a.head_dim : head * a.q_stride) + lane * 8;
    float x[8] = {};
    if (holds) load_eight(at, x);
    if (a.q_norm) normalise(x, is_key ? a.k_norm : a.q_norm, lane, holds, a);
#pragma unroll
    for (int i = 0; i < 8; i++) heads[warp][lane * 8 + i] = x[i];
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const u32 d = lane * 8 + i;
        if (d < a.half) {
            x[i] = fmaf(x[i], cosine[d], -(heads[warp][d + a.half] * sine[d]));
        } else if (d < 2 * a.half) {
            x[i] = fmaf(x[i], cosine[d - a.half], heads[warp][d - a.half] * sine[d - a.half]);
        }
    }
    u32 rotated[4];
#pragma unroll
    for (int i = 0; i < 4; i++) rotated[i] = to_bf16x2(x[2 * i], x[2 * i + 1]);
    if (holds) *reinterpret_cast<uint4*>(at) = make_uint4(rotated[0], rotated[1], rotated[2], rotated[3]);
    if (!is_key) return;

    const Segment& segment = a.step.segments[a.step.row_segment[row]];
    const u32 page = a.step.tables[segment.pages + position / kPageTokens], token = position % kPageTokens;
    const u32 blocks = (a.head_dim + kPageBlock - 1) / kPageBlock;
    uint4 raw = make_uint4(0, 0, 0, 0);
    if (holds) raw = *reinterpret_cast<const uint4*>(from + a.v_offset + kv_head * a.head_dim + lane * 8);
    const u32 values[4] = {raw.x, raw.y, raw.z, raw.w};
    if (a.fp8) {
        const u64 to = page_head<true>(page, a.kv_heads, kv_head, blocks);
        store_row<true>(a.k + to, a.v + to, token, lane, holds, rotated, values, a.k_scale, a.v_scale);
    } else {
        const u64 to = page_head<false>(page, a.kv_heads, kv_head, blocks);
        store_row<false>(a.k + to, a.v + to, token, lane, holds, rotated, values, 1.0f, 1.0f);
    }
}
