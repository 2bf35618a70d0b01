// RopeStore: RMS norms of query and key heads, rotary positions, rounding to bf16 in place, then keys and values into
// the pages of their positions. A thread block works on one row, a warp on one head at a time; the warp of a key head
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

}  // namespace

extern "C" __global__ void __launch_bounds__(32 * kWarps) rope_store(const RopeStoreArgs a) {
    __shared__ float cosine[kMaxHeadDim / 2], sine[kMaxHeadDim / 2], scratch[kWarps][kMaxHeadDim];
    const u32 row = blockIdx.x, warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
    const bool holds = lane * 8 < a.head_dim;
    allow_next();
    // The step's arrays stand before its first kernel: all that depends on the position alone is ready before the
    // rows are.
    if (row >= a.step.counts->rows) return wait_for_previous();
    const u32 position = a.step.positions[row], token = position % kPageTokens;
    const Segment& segment = a.step.segments[a.step.row_segment[row]];
    const u32 page = a.step.tables[segment.pages + position / kPageTokens];
    float q_weight[8], k_weight[8];
    if (a.q_norm) {
        load_weights(a.q_norm, lane, holds, a.unit_offset, q_weight);
        load_weights(a.k_norm, lane, holds, a.unit_offset, k_weight);
    }
    for (u32 i = threadIdx.x; i < a.half; i += 32 * kWarps) {
        float s, c;
        sincosf(float(position) * a.inv_freq[i], &s, &c);
        cosine[i] = c * a.attention_scaling;
        sine[i] = s * a.attention_scaling;
    }
    const float k_factor = 1.0f / a.k_scale, v_factor = 1.0f / a.v_scale;
    const u32 blocks = (a.head_dim + kPageBlock - 1) / kPageBlock;
    __syncthreads();
    wait_for_previous();

    u16* const from = a.qkv + u64(row) * a.width + lane * 8;
    for (u32 head = blockIdx.y * kWarps + warp; head < a.heads + a.kv_heads; head += gridDim.y * kWarps) {
        const bool is_key = head >= a.heads;
        const u32 kv_head = head - a.heads;
        u16* const at = from + (is_key ? a.k_offset + kv_head * a.head_dim : head * a.q_stride);
        const uint4 raw = load_eight(at, holds);
        const uint4 raw_value = load_eight(from + a.v_offset + kv_head * a.head_dim, holds && is_key);
        float x[8] = {low_bf16(raw.x), high_bf16(raw.x), low_bf16(raw.y), high_bf16(raw.y),
                      low_bf16(raw.z), high_bf16(raw.z), low_bf16(raw.w), high_bf16(raw.w)};
        if (a.q_norm) normalise(x, is_key ? k_weight : q_weight, a.head_dim, a.eps);
        rotate(x, lane, a.half, cosine, sine, scratch[warp]);
        u32 rotated[4];
#pragma unroll
        for (int i = 0; i < 4; i++) rotated[i] = to_bf16x2(x[2 * i], x[2 * i + 1]);
        if (holds) *reinterpret_cast<uint4*>(at) = make_uint4(rotated[0], rotated[1], rotated[2], rotated[3]);
        if (!is_key) continue;
        const u32 values[4] = {raw_value.x, raw_value.y, raw_value.z, raw_value.w};
        if (a.fp8) {
            const u64 to = page_head<true>(page, a.kv_heads, kv_head, blocks);
            store_row<true>(a.k + to, a.v + to, token, lane, holds, rotated, values, k_factor, v_factor);
        } else {
            const u64 to = page_head<false>(page, a.kv_heads, kv_head, blocks);
            store_row<false>(a.k + to, a.v + to, token, lane, holds, rotated, values, k_factor, v_factor);
        }
    }
}
