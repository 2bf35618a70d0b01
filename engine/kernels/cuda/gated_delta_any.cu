// The gated delta net for heads of any width up to 256 that is a multiple of 8: one thread block a key head and segment does everything
// for the key head and its value heads, eight rows at a time, from the projections to the packed input of the output
// projection. It serves every row count; the orders of sums are those of the kernels for heads of 128.
#include "gated_delta.cuh"

namespace {

constexpr u32 kThreads = 256, kWarps = kThreads / kWarp, kRows = 8;
static_assert(kThreads >= kMaxDim && kWarps >= kRows, "a thread a column, a warp a row");

struct Shared {
    float q[kRows][kMaxDim];
    float k[kRows][kMaxDim];
    float v[kRows][kMaxDim];  // later o, rounded to bf16
    float dots[kRows][2][kBlockRows];
    float coefficients[kRows][2][kBlockRows];
    float g[kBlockRows];
    float beta[kRows];
};
static_assert(sizeof(Shared) == 33056, "as the host asks for");

/// Up to kRows rows of a segment in one block.
struct Rows {
    u32 first;  // row, counted from the segment's first
    u32 count;
    u32 t;
    u32 page;
    u32 anchor;
};

/// A row of a head that begins at `channel`, convolved; lane l has the pairs l, l + 32, ...
__device__ void convolve_head(const GatedDelta& p, const Segment& s, u32 row, u32 channel, u32 dim,
                              float2 (&x)[kMaxPairs]) {
#pragma unroll
    for (u32 i = 0; i < kMaxPairs; i++) {
        const u32 c = 2 * (threadIdx.x % kWarp + kWarp * i);
        x[i] = float2{};
        if (c >= dim) continue;
        if (p.convolved_given) {
            const u64 at = u64(s.first_row + row) * p.channels + channel + c;
            const u32 pair = *reinterpret_cast<const u32*>(p.convolved + at);
            x[i] = {low_bf16(pair), high_bf16(pair)};
        } else {
            x[i] = convolve(p, load_window<kMaxTaps>(p, s, row, channel + c), channel + c);
            show_convolved(p, s.first_row + row, channel + c, x[i]);
        }
    }
}

__device__ void store_head(float* to, const float2 (&x)[kMaxPairs], u32 dim) {
#pragma unroll
    for (u32 i = 0; i < kMaxPairs; i++) {
        const u32 c = 2 * (threadIdx.x % kWarp + kWarp * i);
        if (c < dim) *reinterpret_cast<float2*>(to + c) = x[i];
    }
}

/// q and k of the rows, k also to the page.
__device__ void queries_and_keys(const GatedDelta& p, const Segment& s, const Rows& rows, u32 key_head, Shared& m) {
    for (u32 task = threadIdx.x / kWarp; task < 2 * rows.count; task += kWarps) {
        const u32 part = task % 2, r = task / 2;
        float2 x[kMaxPairs];
        convolve_head(p, s, rows.first + r, (part * p.k_heads + key_head) * p.k_dim, p.k_dim, x);
        const float inverse = inverse_l2(sum_squares(x));
#pragma unroll
        for (u32 i = 0; i < kMaxPairs; i++) {
            x[i] = {x[i].x * inverse, x[i].y * inverse};
            if (part == 0) x[i] = {x[i].x * query_scale(p.k_dim), x[i].y * query_scale(p.k_dim)};
        }
        store_head(part == 0 ? m.q[r] : m.k[r], x, p.k_dim);
        if (part == 1) store_head(keys_of(p, rows.page, key_head) + (rows.t + r) * p.k_dim, x, p.k_dim);
    }
}

/// Products of q and k with the block's keys.
__device__ void products_with_keys(const GatedDelta& p, const Rows& rows, u32 key_head, Shared& m) {
    const float* keys = keys_of(p, rows.page, key_head);
    for (u32 task = threadIdx.x; task < rows.count * 2 * kBlockRows; task += kThreads) {
        const u32 j = task % kBlockRows, part = task / kBlockRows % 2, r = task / kBlockRows / 2;
        if (j > rows.t + r) continue;
        const float* x = part == 0 ? m.q[r] : m.k[r];
        const float* key = keys + j * p.k_dim;
        float total = 0.0f;
        for (u32 chain = 0; chain < p.k_dim; chain += kChain) {
            float sum = 0.0f;
            for (u32 d = chain; d < min(chain + kChain, p.k_dim); d++) sum = fmaf(key[d], x[d], sum);
            total = chain == 0 ? sum : total + sum;
        }
        m.dots[r][part][j] = total;
    }
}

/// v, G and beta of the rows.
__device__ void values_and_decays(const GatedDelta& p, const Segment& s, const Rows& rows, u32 head, Shared& m) {
    const u32 warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, value_channel = 2 * p.k_heads * p.k_dim;
    if (warp < rows.count) {
        float2 x[kMaxPairs];
        convolve_head(p, s, rows.first + warp, value_channel + head * p.v_dim, p.v_dim, x);
        store_head(m.v[warp], x, p.v_dim);
    }
    if (warp != kWarps - 1) return;
    float* kept = decays_of(p, rows.page, head);
    for (u32 j = lane; j < rows.t; j += kWarp) m.g[j] = kept[j];
    float total = rows.t == 0 ? 0.0f : kept[rows.t - 1], step = 0.0f;
    const u32 row = s.first_row + rows.first + lane;
    if (lane < rows.count) {
        step = decay_step(p, row, head);
        m.beta[lane] = beta_of(p, row, head);
    }
    for (u32 r = 0; r < rows.count; r++) {
        total = total + __shfl_sync(0xFFFFFFFFu, step, r);
        if (lane == r) m.g[rows.t + r] = kept[rows.t + r] = total;
    }
}

/// u and o of the rows (`first_row` on in the step) in this thread's column of the value head.
__device__ void column_of_rows(const GatedDelta& p, const Rows& rows, u32 first_row, u32 head, Shared& m) {
    const u32 column = threadIdx.x;
    const float* state = state_of(p, rows.anchor, head) + column;
    float* updates = updates_of(p, rows.page, head) + column;
    float total[kRows][2] = {};
    for (u32 chain = 0; chain < p.k_dim; chain += kChain) {
        float sum[kRows][2] = {};
        for (u32 d = chain; d < min(chain + kChain, p.k_dim); d++) {
            const float s = state[d * p.v_dim];
#pragma unroll
            for (u32 r = 0; r < kRows; r++) {
                if (r >= rows.count) break;
                sum[r][0] = fmaf(m.q[r][d], s, sum[r][0]);
                sum[r][1] = fmaf(m.k[r][d], s, sum[r][1]);
            }
        }
#pragma unroll
        for (u32 r = 0; r < kRows; r++) {
            total[r][0] = chain == 0 ? sum[r][0] : total[r][0] + sum[r][0];
            total[r][1] = chain == 0 ? sum[r][1] : total[r][1] + sum[r][1];
        }
    }
#pragma unroll
    for (u32 r = 0; r < kRows; r++) {
        if (r >= rows.count) break;
        const u32 t = rows.t + r;
        const float decay = fast_exp(m.g[t]);
        float o = decay * total[r][0], expected = decay * total[r][1];
        for (u32 j = 0; j < t; j++) {
            const float u = updates[j * p.v_dim];
            o = fmaf(m.coefficients[r][0][j], u, o);
            expected = fmaf(m.coefficients[r][1][j], u, expected);
        }
        const float u = m.beta[r] * (m.v[r][column] - expected);
        updates[t * p.v_dim] = u;
        o = round_bf16(fmaf(m.coefficients[r][0][t], u, o));
        m.v[r][column] = o;
        show_mixed(p, first_row + r, head, column, o);
    }
}

/// The state after the block's last row in this thread's column; `factor` holds e^(G_63-G_j).
__device__ void fold_column(const GatedDelta& p, const Rows& rows, u32 key_head, u32 head, u32 slot, float decay,
                            const float* factor) {
    constexpr u32 kTogether = 8;
    const float* keys = keys_of(p, rows.page, key_head);
    const float* updates = updates_of(p, rows.page, head) + threadIdx.x;
    const float* from = state_of(p, rows.anchor, head) + threadIdx.x;
    float* to = state_of(p, slot, head) + threadIdx.x;
    for (u32 d = 0; d < p.k_dim; d += kTogether) {
        float sum[kTogether];
#pragma unroll
        for (u32 i = 0; i < kTogether; i++) sum[i] = decay * from[(d + i) * p.v_dim];
        for (u32 j = 0; j < kBlockRows; j++) {
            const float u = factor[j] * updates[j * p.v_dim];
#pragma unroll
            for (u32 i = 0; i < kTogether; i++) sum[i] = fmaf(keys[j * p.k_dim + d + i], u, sum[i]);
        }
#pragma unroll
        for (u32 i = 0; i < kTogether; i++) to[(d + i) * p.v_dim] = sum[i];
    }
}

/// Everything of a value head for the rows, whose q, k and dots are in shared memory.
__device__ void value_head(const GatedDelta& p, const Segment& s, const Rows& rows, u32 key_head, u32 head, u32 next,
                           Shared& m) {
    const u32 warp = threadIdx.x / kWarp;
    values_and_decays(p, s, rows, head, m);
    __syncthreads();
    for (u32 task = threadIdx.x; task < rows.count * 2 * kBlockRows; task += kThreads) {
        const u32 j = task % kBlockRows, part = task / kBlockRows % 2, r = task / kBlockRows / 2, t = rows.t + r;
        if (j <= t) m.coefficients[r][part][j] = fast_exp(m.g[t] - m.g[j]) * m.dots[r][part][j];
    }
    __syncthreads();
    if (threadIdx.x < p.v_dim) column_of_rows(p, rows, s.first_row + rows.first, head, m);
    __syncthreads();
    if (p.norm_wanted && warp < rows.count) {
        const u32 row = s.first_row + rows.first + warp;
        u32 gate[kMaxPairs];
        load_gate<0>(p, row, head, gate);
        float2 x[kMaxPairs];
#pragma unroll
        for (u32 i = 0; i < kMaxPairs; i++) {
            const u32 c = 2 * (threadIdx.x % kWarp + kWarp * i);
            x[i] = c < p.v_dim ? *reinterpret_cast<float2*>(&m.v[warp][c]) : float2{};
        }
        gated_norm_row<0>(p, row, head, x, gate, p.norm_weight);
    }
    if (rows.t + rows.count < kBlockRows) return;
    const float last = m.g[kBlockRows - 1];
    float* factor = m.coefficients[0][0];
    if (threadIdx.x < kBlockRows) factor[threadIdx.x] = fast_exp(last - m.g[threadIdx.x]);
    __syncthreads();
    if (threadIdx.x < p.v_dim) fold_column(p, rows, key_head, head, next, fast_exp(last), factor);
}

/// Keeps the segment's last inputs of a head's channels in the ring, and those before new anchors with them.
__device__ void store_inputs(const GatedDelta& p, const Segment& s, u32 channel, u32 dim) {
    const u32 rows = min(s.rows, p.ring_rows), pairs = dim / 2;
    // The histories first: they may need what the ring still holds.
    for (u32 block = 0; block < (s.start % kBlockRows + s.rows) / kBlockRows; block++) {
        const int end = int((block + 1) * kBlockRows) - int(s.start % kBlockRows);
        if (!keeps_state(p, s, block)) continue;
        const u32 slot = p.step.tables[s.anchors + block + 1];
        for (u32 i = threadIdx.x; i < (p.taps - 1) * pairs; i += kThreads) {
            const u32 before = 1 + i / pairs, c = channel + i % pairs * 2;
            *reinterpret_cast<u32*>(history_row(p, slot, before) + c) = conv_input(p, s, end - int(before), c);
        }
    }
    __syncthreads();
    for (u32 i = threadIdx.x; i < rows * pairs; i += kThreads) {
        const u32 row = s.rows - rows + i / pairs, c = channel + i % pairs * 2;
        *reinterpret_cast<u32*>(ring_row(p, s, row) + c) = conv_input(p, s, row, c);
    }
}

__device__ void segment_of_key_head(const GatedDelta& p, const Segment& s, u32 key_head, Shared& m) {
    const u32 group = p.v_heads / p.k_heads;
    const u32* tables = p.step.tables;
    for (u32 block = 0; block < blocks_of(s); block++) {
        const Piece piece = piece_of(s, block);
        for (u32 done = 0; done < piece.rows; done += kRows) {
            const Rows rows = {piece.first + done, min(kRows, piece.rows - done), piece.t + done,
                               tables[s.open_pages + block], tables[s.anchors + block]};
            const bool completes = rows.t + rows.count == kBlockRows;
            const u32 next = completes ? tables[s.anchors + block + 1] : 0;
            queries_and_keys(p, s, rows, key_head, m);
            __syncthreads();
            products_with_keys(p, rows, key_head, m);
            for (u32 head = key_head * group; head < (key_head + 1) * group; head++) {
                value_head(p, s, rows, key_head, head, next, m);
                __syncthreads();
            }
        }
    }
    if (p.convolved_given) return;
    const u32 values = 2 * p.k_heads * p.k_dim;
    store_inputs(p, s, key_head * p.k_dim, p.k_dim);
    store_inputs(p, s, (p.k_heads + key_head) * p.k_dim, p.k_dim);
    store_inputs(p, s, values + key_head * group * p.v_dim, group * p.v_dim);
}

}  // namespace

/// Grid: (key heads, segments of at most kFewRows rows).
extern "C" __global__ void __launch_bounds__(kThreads, 1) gated_delta_any_few(const __grid_constant__ GatedDelta p) {
    extern __shared__ float4 memory[];
    allow_next();
    wait_for_previous();
    if (blockIdx.y >= p.step.counts->few) return;
    const Segment s = p.step.segments[p.step.few[blockIdx.y]];
    segment_of_key_head(p, s, blockIdx.x, *reinterpret_cast<Shared*>(memory));
}

/// Grid: (key heads, any): the thread blocks along y share the segments that have tiles.
extern "C" __global__ void __launch_bounds__(kThreads, 1) gated_delta_any_tiles(const __grid_constant__ GatedDelta p) {
    extern __shared__ float4 memory[];
    allow_next();
    wait_for_previous();
    Segment s;
    for (u32 n = blockIdx.y; nth_tiled_segment(p, n, s); n += gridDim.y) {
        segment_of_key_head(p, s, blockIdx.x, *reinterpret_cast<Shared*>(memory));
        __syncthreads();
    }
}
