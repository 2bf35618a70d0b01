// Decode rows and verify groups of the gated delta net with heads of 128 x 128: one thread block a value head and
// segment does everything from the projections to the packed input of the output projection: convolution, norms,
// decays, the rule, the fold into the next anchor, the gated norm.
//
// Warp w holds rows 16w .. 16w + 15 of the state in registers, four columns a lane, for the whole segment: a warp's
// product with q or k is one chain. The block's keys and updates stand in shared memory.
#include "gated_delta.cuh"

namespace {

constexpr u32 kDim = 128, kPitch = kDim + 4, kPairs = kDim / 64, kThreads = 256, kWarps = kThreads / kWarp;
static_assert(kWarps * kChain == kDim, "a warp's rows of the state are one chain");

struct Shared {
    float k[kBlockRows][kPitch];
    float u[kBlockRows][kDim];
    float q[kFewRows][kDim];
    float v[kFewRows][kDim];  // later o, rounded to bf16
    float sums[kFewRows][2][kDim];
    float coefficients[kFewRows][2][kBlockRows];
    float partial_sums[kWarps][2][kDim];
    float partial_dots[kWarps][2][kBlockRows];
    float g[kBlockRows];
    float beta[kFewRows];
};
static_assert(sizeof(Shared) == 99616, "as the host asks for");

/// What a thread block works on, and where its threads stand.
struct Place {
    Segment s;
    u32 head, key_head, warp, lane;
    bool first_of_group;  // writes what the value heads of a key head share
};

__device__ void load_state(const GatedDelta& p, const Place& at, float4 (&state)[kChain]) {
    const u32 slot = p.step.tables[at.s.anchors];
    const float* from = state_of(p, slot, at.head) + at.warp * kChain * kDim + 4 * at.lane;
#pragma unroll
    for (u32 d = 0; d < kChain; d++) state[d] = slot == 0 ? float4{} : load4(from + d * kDim);
}

__device__ void load_page(const GatedDelta& p, const Place& at, u32 page, u32 rows, Shared& m) {
    const float* keys = keys_of(p, page, at.key_head);
    const float* updates = updates_of(p, page, at.head);
    for (u32 i = threadIdx.x; i < rows * (kDim / 4); i += kThreads) {
        copy_async(&m.k[i / (kDim / 4)][i % (kDim / 4) * 4], keys + 4 * i);
    }
    commit_copies();
    for (u32 i = threadIdx.x; i < rows * (kDim / 4); i += kThreads) copy_async(&m.u[0][0] + 4 * i, updates + 4 * i);
    commit_copies();
}

/// A convolution task is a row of q, k or v: its first channel.
__device__ u32 conv_channel(const GatedDelta& p, const Place& at, u32 part) {
    return part == 2 ? 2 * p.k_heads * kDim + at.head * kDim : (part * p.k_heads + at.key_head) * kDim;
}

/// Convolves the row of a task, normalises q and k, stores k to the page and the inputs to the ring.
__device__ void conv_row(const GatedDelta& p, const Place& at, const Piece& piece, u32 page, u32 task,
                         const ConvWindow<kFewTaps> (&window)[kPairs], Shared& m) {
    const u32 part = task % 3, r = task / 3, channel = conv_channel(p, at, part);
    float2 x[kPairs];
#pragma unroll
    for (u32 i = 0; i < kPairs; i++) {
        const u32 c = channel + 2 * (at.lane + kWarp * i);
        x[i] = convolve(p, window[i], c);
        if (part == 2 || at.first_of_group) {
            store_ring(p, at.s, piece.first + r, c);
            show_convolved(p, at.s.first_row + piece.first + r, c, x[i]);
        }
    }
    float* to = part == 0 ? m.q[r] : part == 1 ? m.k[piece.t + r] : m.v[r];
    const float inverse = part == 2 ? 1.0f : inverse_l2(sum_squares(x));
    float* kept = keys_of(p, page, at.key_head) + (piece.t + r) * kDim;
#pragma unroll
    for (u32 i = 0; i < kPairs; i++) {
        const u32 c = 2 * (at.lane + kWarp * i);
        float2 value = x[i];
        if (part < 2) value = {value.x * inverse, value.y * inverse};
        if (part == 0) value = {value.x * query_scale(kDim), value.y * query_scale(kDim)};
        *reinterpret_cast<float2*>(to + c) = value;
        if (part == 1 && at.first_of_group) *reinterpret_cast<float2*>(kept + c) = value;
    }
}

/// G and beta of the piece's rows, and G of the rows before them; one warp.
__device__ void decay_rows(const GatedDelta& p, const Place& at, const Piece& piece, u32 page, Shared& m) {
    float* kept = decays_of(p, page, at.head);
    for (u32 j = at.lane; j < piece.t; j += kWarp) m.g[j] = kept[j];
    float total = piece.t == 0 ? 0.0f : kept[piece.t - 1], step = 0.0f;
    const u32 row = at.s.first_row + piece.first + at.lane;
    if (at.lane < piece.rows) {
        step = decay_step(p, row, at.head);
        m.beta[at.lane] = beta_of(p, row, at.head);
    }
    for (u32 r = 0; r < piece.rows; r++) {
        total = total + __shfl_sync(0xFFFFFFFFu, step, r);
        if (at.lane == r) {
            m.g[piece.t + r] = total;
            kept[piece.t + r] = total;
        }
    }
}

/// Products of the row at t with the state and the block's keys: a chain a warp, then their sums, decayed.
__device__ void products(const Place& at, const float4 (&state)[kChain], u32 r, u32 t, Shared& m) {
    float4 q[kChain / 4], k[kChain / 4];
#pragma unroll
    for (u32 i = 0; i < kChain / 4; i++) {
        q[i] = load4(&m.q[r][at.warp * kChain + 4 * i]);
        k[i] = load4(&m.k[t][at.warp * kChain + 4 * i]);
    }
    float4 sum_q{}, sum_k{};
#pragma unroll
    for (u32 i = 0; i < kChain / 4; i++) {
        sum_q = fma4(q[i].x, state[4 * i], sum_q);
        sum_k = fma4(k[i].x, state[4 * i], sum_k);
        sum_q = fma4(q[i].y, state[4 * i + 1], sum_q);
        sum_k = fma4(k[i].y, state[4 * i + 1], sum_k);
        sum_q = fma4(q[i].z, state[4 * i + 2], sum_q);
        sum_k = fma4(k[i].z, state[4 * i + 2], sum_k);
        sum_q = fma4(q[i].w, state[4 * i + 3], sum_q);
        sum_k = fma4(k[i].w, state[4 * i + 3], sum_k);
    }
    store4(&m.partial_sums[at.warp][0][4 * at.lane], sum_q);
    store4(&m.partial_sums[at.warp][1][4 * at.lane], sum_k);
    for (u32 j = at.lane; j <= t; j += kWarp) {
        float dot_q = 0.0f, dot_k = 0.0f;
#pragma unroll
        for (u32 i = 0; i < kChain / 4; i++) {
            const float4 key = load4(&m.k[j][at.warp * kChain + 4 * i]);
            dot_q = chain4(key, q[i], dot_q);
            dot_k = chain4(key, k[i], dot_k);
        }
        m.partial_dots[at.warp][0][j] = dot_q;
        m.partial_dots[at.warp][1][j] = dot_k;
    }
    __syncthreads();
    const u32 column = threadIdx.x % kDim, half = threadIdx.x / kDim;
    float total = m.partial_sums[0][half][column];
#pragma unroll
    for (u32 w = 1; w < kWarps; w++) total = total + m.partial_sums[w][half][column];
    m.sums[r][half][column] = expf(m.g[t]) * total;
    const u32 j = column;
    if (j <= t) {
        float dot = m.partial_dots[0][half][j];
#pragma unroll
        for (u32 w = 1; w < kWarps; w++) dot = dot + m.partial_dots[w][half][j];
        m.coefficients[r][half][j] = expf(m.g[t] - m.g[j]) * dot;
    }
    __syncthreads();
}

/// The chains over the rows before the piece; a half of the threads takes q's, the other k's.
__device__ void earlier_rows(const Piece& piece, Shared& m) {
    constexpr u32 kTogether = 4;
    const u32 column = threadIdx.x % kDim, half = threadIdx.x / kDim;
    for (u32 first = 0; first < piece.rows; first += kTogether) {
        const u32 rows = min(kTogether, piece.rows - first);
        float sum[kTogether];
#pragma unroll
        for (u32 i = 0; i < kTogether; i++) sum[i] = i < rows ? m.sums[first + i][half][column] : 0.0f;
        u32 j = 0;
#pragma unroll 2
        for (; j + 4 <= piece.t; j += 4) {
            const float4 u = {m.u[j][column], m.u[j + 1][column], m.u[j + 2][column], m.u[j + 3][column]};
#pragma unroll
            for (u32 i = 0; i < kTogether; i++) {
                if (i < rows) sum[i] = chain4(load4(&m.coefficients[first + i][half][j]), u, sum[i]);
            }
        }
        for (; j < piece.t; j++) {
#pragma unroll
            for (u32 i = 0; i < kTogether; i++) {
                if (i < rows) sum[i] = fmaf(m.coefficients[first + i][half][j], m.u[j][column], sum[i]);
            }
        }
#pragma unroll
        for (u32 i = 0; i < kTogether; i++) {
            if (i < rows) m.sums[first + i][half][column] = sum[i];
        }
    }
}

/// The piece's rows among themselves, a thread a column: u to the page, o in v's place.
__device__ void solve(const GatedDelta& p, const Place& at, const Piece& piece, u32 page, Shared& m) {
    const u32 column = threadIdx.x;
    float* kept = updates_of(p, page, at.head);
    for (u32 r = 0; r < piece.rows; r++) {
        const u32 t = piece.t + r;
        float expected = m.sums[r][1][column], o = m.sums[r][0][column];
        for (u32 j = piece.t; j < t; j++) {
            expected = fmaf(m.coefficients[r][1][j], m.u[j][column], expected);
            o = fmaf(m.coefficients[r][0][j], m.u[j][column], o);
        }
        const float u = m.beta[r] * (m.v[r][column] - expected);
        m.u[t][column] = u;
        kept[t * kDim + column] = u;
        o = round_bf16(fmaf(m.coefficients[r][0][t], u, o));
        m.v[r][column] = o;
        show_mixed(p, at.s.first_row + piece.first + r, at.head, column, o);
    }
}

/// The state after the block's last row, to registers and the next anchor.
__device__ void fold(const GatedDelta& p, const Place& at, u32 slot, float4 (&state)[kChain], Shared& m) {
    const float last = m.g[kBlockRows - 1], decay = expf(last);
    for (u32 i = threadIdx.x; i < kBlockRows * kDim; i += kThreads) {
        m.u[i / kDim][i % kDim] = expf(last - m.g[i / kDim]) * m.u[i / kDim][i % kDim];
    }
    __syncthreads();
#pragma unroll
    for (u32 d = 0; d < kChain; d++) state[d] = scale4(decay, state[d]);
#pragma unroll 2
    for (u32 j = 0; j < kBlockRows; j++) {
        const float4 u = load4(&m.u[j][4 * at.lane]);
#pragma unroll
        for (u32 i = 0; i < kChain / 4; i++) {
            const float4 k = load4(&m.k[j][at.warp * kChain + 4 * i]);
            state[4 * i] = fma4(k.x, u, state[4 * i]);
            state[4 * i + 1] = fma4(k.y, u, state[4 * i + 1]);
            state[4 * i + 2] = fma4(k.z, u, state[4 * i + 2]);
            state[4 * i + 3] = fma4(k.w, u, state[4 * i + 3]);
        }
    }
    float* to = state_of(p, slot, at.head) + at.warp * kChain * kDim + 4 * at.lane;
#pragma unroll
    for (u32 d = 0; d < kChain; d++) store4(to + d * kDim, state[d]);
    __syncthreads();
}

/// What the first rows will read besides the projections. It was all written by earlier steps, which are complete
/// before a step's first kernel starts; hence it may be read before `wait_for_previous`.
__device__ void prefetch_inputs(const GatedDelta& p, const Place& at) {
    // 128-byte lines: of a head's convolution weights; of its channels in a position of the ring.
    const u32 lines = kDim * p.taps / 32, channels = channels_of(p), i = threadIdx.x;
    if (i < 3 * lines) prefetch(p.conv_weight + conv_channel(p, at, i / lines) * p.taps + i % lines * 32);
    if (i < 6 * (p.taps - 1)) {
        const u32 position = at.s.start + p.ring_rows - 1 - i / 6;
        const u16* row = p.ring + (u64(at.s.ring) * p.ring_rows + position % p.ring_rows) * channels;
        prefetch(row + conv_channel(p, at, i / 2 % 3) + i % 2 * 64);
    }
    if (i < kDim / 32) prefetch(p.norm_weight + 32 * i);
    if (i == 0) {
        prefetch(p.a_log + at.head);
        prefetch(p.dt_bias + at.head);
    }
}

/// The rows of a segment in one block. `state` comes and goes in registers.
__device__ void piece_rows(const GatedDelta& p, const Place& at, u32 block, float4 (&state)[kChain], Shared& m) {
    const Piece piece = piece_of(at.s, block);
    const u32 page = p.step.tables[at.s.open_pages + block], tasks = 3 * piece.rows;
    const u32 own_row = at.s.first_row + piece.first + at.warp;
    ConvWindow<kFewTaps> window[kPairs];
    u32 gate[kPairs];
    auto load_task = [&](u32 task) {
#pragma unroll
        for (u32 i = 0; i < kPairs; i++) {
            const u32 channel = conv_channel(p, at, task % 3) + 2 * (at.lane + kWarp * i);
            window[i] = load_window<kFewTaps>(p, at.s, piece.first + task / 3, channel);
        }
    };
    if (at.warp < tasks) load_task(at.warp);
    if (at.warp < piece.rows) load_gate(p, own_row, at.head, gate);
    if (at.warp == kWarps - 1) decay_rows(p, at, piece, page, m);
    for (u32 task = at.warp; task < tasks; task += kWarps) {
        if (task != at.warp) load_task(task);
        conv_row(p, at, piece, page, task, window, m);
    }
    wait_copies<1>();
    __syncthreads();
    for (u32 r = 0; r < piece.rows; r++) products(at, state, r, piece.t + r, m);
    wait_copies<0>();
    __syncthreads();
    earlier_rows(piece, m);
    __syncthreads();
    if (threadIdx.x < kDim) solve(p, at, piece, page, m);
    __syncthreads();
    if (at.warp < piece.rows) {
        float2 x[kPairs];
#pragma unroll
        for (u32 i = 0; i < kPairs; i++) x[i] = *reinterpret_cast<float2*>(&m.v[at.warp][2 * (at.lane + kWarp * i)]);
        gated_norm_row(p, own_row, at.head, x, gate);
    }
    if (piece.t + piece.rows == kBlockRows) fold(p, at, p.step.tables[at.s.anchors + block + 1], state, m);
}

}  // namespace

/// Grid: (value heads, segments of at most kFewRows rows); at most kFewTaps taps.
extern "C" __global__ void __launch_bounds__(kThreads, 2) gated_delta_few(const __grid_constant__ GatedDelta p) {
    extern __shared__ float4 memory[];
    Shared& m = *reinterpret_cast<Shared*>(memory);
    allow_next();
    if (blockIdx.y >= p.step.counts->few) {
        wait_for_previous();
        return;
    }
    const u32 group = p.v_heads / p.k_heads, head = blockIdx.x;
    const Place at = {p.step.segments[p.step.few[blockIdx.y]], head, head / group, threadIdx.x / kWarp,
                      threadIdx.x % kWarp, head % group == 0};
    float4 state[kChain];
    load_state(p, at, state);
    load_page(p, at, p.step.tables[at.s.open_pages], at.s.start % kBlockRows, m);
    prefetch_inputs(p, at);
    wait_for_previous();
    for (u32 block = 0; block < blocks_of(at.s); block++) piece_rows(p, at, block, state, m);
}
