// Decode rows and verify groups of the gated delta net with heads of 128 x 128 and 4 taps, from the projections to the
// packed input of the output projection in one launch: convolution, norms, decays, the rule, the fold into the next
// anchor, the gated norm.
//
// A thread block takes one or all value heads of a key head of a segment (`heads`), up to kRows rows at a time. Warp w
// holds rows 16w .. 16w + 15 of a head's state in registers, four columns a lane: its product with q or k is one chain.
// While a head's rows are solved, the next head's state and updates are on their way.
#include "gated_delta.cuh"

namespace {

constexpr u32 kDim = 128, kPitch = kDim + 4, kPairs = kDim / 64, kThreads = 256, kWarps = kThreads / kWarp;
constexpr u32 kRows = 4, kHeads = 4;
static_assert(kWarps * kChain == kDim, "a warp's rows of the state are one chain");

struct Shared {
    float keys[kBlockRows][kPitch];    // of the open block; updates of odd heads once they are not needed any more
    float updates[kBlockRows][kDim];
    float q[kRows][kDim];
    float k[kRows][kDim];
    u16 v[kHeads][kRows][kDim];        // later o
    float sums[kRows][2][kDim];        // of q and k
    float dots[kRows][2][kBlockRows];  // with the block's keys
    float coefficients[kRows][2][kBlockRows];
    float partial_sums[kWarps][2][kDim];
    float partial_dots[kWarps][2][kBlockRows];
    float g[kHeads][kBlockRows];
    float beta[kHeads][kRows];
    float norm_weight[kDim];
};
static_assert(sizeof(Shared) == 96832, "as the host asks for");
typedef float Updates[kBlockRows][kDim];
static_assert(sizeof(Updates) <= kBlockRows * kPitch * sizeof(float), "updates fit in the place of keys");

/// What a thread block works on, and where its threads stand.
struct Place {
    Segment s;
    u32 first_head, key_head, warp, lane;
    bool first_of_group;  // writes what the value heads of a key head share
};

/// Some rows of the segment, all in one block.
struct Rows {
    u32 first;  // row, counted from the segment's first
    u32 count;
    u32 block;  // of the segment
    u32 t;      // place of the first row in the block
    u32 page;
    bool completes;  // the block
    bool last;       // of the segment
};

__device__ Rows rows_from(const GatedDelta& p, const Segment& s, u32 first) {
    const u32 at = s.start % kBlockRows + first, t = at % kBlockRows;
    const u32 count = min(min(kRows, s.rows - first), kBlockRows - t), block = at / kBlockRows;
    return {first, count, block, t, p.step.tables[s.open_pages + block], t + count == kBlockRows, first + count == s.rows};
}

// ---- Loads ----

__device__ void load_state(const GatedDelta& p, const Place& at, u32 slot, u32 head, float4 (&state)[kChain]) {
    const float* from = p.anchors + u64(slot * p.v_heads + head) * (kDim * kDim) + at.warp * kChain * kDim + 4 * at.lane;
#pragma unroll
    for (u32 d = 0; d < kChain; d++) state[d] = slot == 0 ? float4{} : load4(from + d * kDim);
}

__device__ void copy_keys(const GatedDelta& p, const Place& at, const Rows& rows, Shared& m) {
    const float* from = p.open_k + u64(rows.page * p.k_heads + at.key_head) * (kBlockRows * kDim) + 4 * at.lane;
    for (u32 j = at.warp; j < rows.t; j += kWarps) copy_async(&m.keys[j][4 * at.lane], from + j * kDim);
}
/// The updates of the rows before, a group of copies.
__device__ void copy_updates(const GatedDelta& p, const Rows& rows, u32 head, float* to) {
    const float* from = p.open_u + u64(rows.page * p.v_heads + head) * (kBlockRows * kDim);
    for (u32 i = 4 * threadIdx.x; i < rows.t * kDim; i += 4 * kThreads) copy_async(to + i, from + i);
    commit_copies();
}
__device__ void copy_decays(const GatedDelta& p, const Place& at, const Rows& rows, Shared& m) {
    const u32 i = threadIdx.x / kBlockRows, j = threadIdx.x % kBlockRows;
    if (i >= p.heads || j >= rows.t) return;
    copy_word_async(&m.g[i][j], p.open_g + u64(rows.page * p.v_heads + at.first_head + i) * kBlockRows + j);
}

/// Asks for the convolution weights of q, k and the value heads: 16 lines of 128 bytes each.
__device__ void prefetch_weights(const GatedDelta& p, const Place& at) {
    const u32 part = threadIdx.x / 16;
    if (part >= 2 + p.heads) return;
    const u32 head = part < 2 ? part * p.k_heads + at.key_head : 2 * p.k_heads + at.first_head + part - 2;
    prefetch(p.conv_weight + head * kDim * kTaps + threadIdx.x % 16 * 32);
}

// ---- Convolution, norms, decays ----

/// A row of q (part 0), k (part 1) or a value head that a warp convolves.
struct ConvTask {
    u32 part, r;
    u32 channel;  // of the lane's first pair; the second stands 64 further
    ConvWindow<kTaps> window[kPairs];
};

/// Task `n` of the rows, and those of its inputs that stand before the segment. They may be read before `wait_for_previous`.
__device__ ConvTask conv_task(const GatedDelta& p, const Place& at, const Rows& rows, u32 n) {
    ConvTask task{n, 0};
    for (; task.part >= 2 + p.heads; task.part -= 2 + p.heads) task.r++;
    const u32 head = task.part < 2 ? task.part * p.k_heads + at.key_head : 2 * p.k_heads + at.first_head + task.part - 2;
    task.channel = head * kDim + 2 * at.lane;
#pragma unroll
    for (int j = 0; j + 1 < kTaps; j++) {
        const int row = int(rows.first + task.r) + 1 - kTaps + j;
        if (row >= 0) break;
        const u32* from = reinterpret_cast<const u32*>(earlier_row(p, at.s, row) + task.channel);
#pragma unroll
        for (u32 i = 0; i < kPairs; i++) task.window[i].x[j] = from[32 * i];
    }
    return task;
}

/// The other inputs.
__device__ void load_inputs(const GatedDelta& p, const Place& at, const Rows& rows, ConvTask& task) {
#pragma unroll
    for (int j = kTaps - 1; j >= 0; j--) {
        const int row = int(rows.first + task.r) + 1 - kTaps + j;
        if (row < 0) break;
        const u32* from = reinterpret_cast<const u32*>(p.projected + u64(at.s.first_row + row) * p.stride + task.channel);
#pragma unroll
        for (u32 i = 0; i < kPairs; i++) task.window[i].x[j] = from[32 * i];
    }
}

/// Convolves the row, normalises q and k, stores k to the page and the inputs to the ring; one warp.
__device__ void convolve_row(const GatedDelta& p, const Place& at, const Rows& rows, const ConvTask& task, Shared& m) {
    const u32 part = task.part, r = task.r, row = rows.first + r, lane = task.channel;
    float2 x[kPairs];
#pragma unroll
    for (u32 i = 0; i < kPairs; i++) x[i] = convolve<kTaps>(p, task.window[i], lane + 64 * i);
    if (part >= 2 || at.first_of_group) {
        u16* kept = ring_row(p, at.s, row) + lane;
#pragma unroll
        for (u32 i = 0; i < kPairs; i++) {
            *reinterpret_cast<u32*>(kept + 64 * i) = task.window[i].x[kTaps - 1];
            show_convolved(p, at.s.first_row + row, lane + 64 * i, x[i]);
        }
        u32 slot;
        if (ends_block(p, at.s, row, slot)) {
#pragma unroll
            for (u32 j = 1; j < kTaps; j++) {
                u16* history = history_row(p, slot, kTaps - j) + lane;
#pragma unroll
                for (u32 i = 0; i < kPairs; i++) *reinterpret_cast<u32*>(history + 64 * i) = task.window[i].x[j];
            }
        }
    }
    if (part >= 2) {
#pragma unroll
        for (u32 i = 0; i < kPairs; i++) {
            *reinterpret_cast<u32*>(&m.v[part - 2][r][2 * at.lane + 64 * i]) = to_bf16x2(x[i].x, x[i].y);
        }
        return;
    }
    const float inverse = inverse_l2(sum_squares(x));
    float* to = (part == 0 ? m.q[r] : m.k[r]) + 2 * at.lane;
    float* kept = keys_of(p, rows.page, at.key_head) + (rows.t + r) * kDim + 2 * at.lane;
#pragma unroll
    for (u32 i = 0; i < kPairs; i++) {
        float2 value = {x[i].x * inverse, x[i].y * inverse};
        if (part == 0) value = {value.x * query_scale(kDim), value.y * query_scale(kDim)};
        *reinterpret_cast<float2*>(to + 64 * i) = value;
        if (part == 0) continue;
        *reinterpret_cast<float2*>(&m.keys[rows.t + r][2 * at.lane + 64 * i]) = value;
        if (at.first_of_group) *reinterpret_cast<float2*>(kept + 64 * i) = value;
    }
}

/// G and beta of the rows; one warp, a lane a head and row.
__device__ void decay_rows(const GatedDelta& p, const Place& at, const Rows& rows, Shared& m) {
    const u32 i = at.lane / kRows % kHeads, r = at.lane % kRows, head = at.first_head + i;
    const bool real = at.lane < kHeads * kRows && i < p.heads && r < rows.count;
    float* kept = decays_of(p, rows.page, head);
    float step = 0.0f, total = 0.0f;
    if (real) {
        // What this thread block wrote itself is in the page by now.
        if (rows.t > 0) total = kept[rows.t - 1];
        step = decay_step(p, at.s.first_row + rows.first + r, head);
        m.beta[i][r] = beta_of(p, at.s.first_row + rows.first + r, head);
    }
#pragma unroll
    for (u32 before = 0; before < kRows; before++) {
        const float other = __shfl_sync(0xFFFFFFFFu, step, i * kRows + before);
        if (before <= r) total = total + other;
    }
    if (real) m.g[i][rows.t + r] = kept[rows.t + r] = total;
}

// ---- The rule ----

/// This warp's chains of the products of row r with the block's keys.
__device__ void partial_dots(const Place& at, const Rows& rows, u32 r, Shared& m) {
    const u32 t = rows.t + r, d = at.warp * kChain;
    float4 q[kChain / 4], k[kChain / 4];
#pragma unroll
    for (u32 i = 0; i < kChain / 4; i++) q[i] = load4(&m.q[r][d + 4 * i]), k[i] = load4(&m.k[r][d + 4 * i]);
#pragma unroll 1
    for (u32 j = at.lane; j <= t; j += kWarp) {
        float dot_q = 0.0f, dot_k = 0.0f;
#pragma unroll
        for (u32 i = 0; i < kChain / 4; i++) {
            const float4 key = load4(&m.keys[j][d + 4 * i]);
            dot_q = chain4(key, q[i], dot_q);
            dot_k = chain4(key, k[i], dot_k);
        }
        m.partial_dots[at.warp][0][j] = dot_q;
        m.partial_dots[at.warp][1][j] = dot_k;
    }
}

/// This warp's chains of the products of row r with the state.
__device__ void partial_sums(const Place& at, const Rows& rows, u32 r, const float4 (&state)[kChain], Shared& m) {
    const u32 d = at.warp * kChain;
    float4 sum_q{}, sum_k{};
#pragma unroll
    for (u32 i = 0; i < kChain / 4; i++) {
        const float4 q = load4(&m.q[r][d + 4 * i]), k = load4(&m.k[r][d + 4 * i]);
        sum_q = fma4(q.x, state[4 * i], sum_q);
        sum_k = fma4(k.x, state[4 * i], sum_k);
        sum_q = fma4(q.y, state[4 * i + 1], sum_q);
        sum_k = fma4(k.y, state[4 * i + 1], sum_k);
        sum_q = fma4(q.z, state[4 * i + 2], sum_q);
        sum_k = fma4(k.z, state[4 * i + 2], sum_k);
        sum_q = fma4(q.w, state[4 * i + 3], sum_q);
        sum_k = fma4(k.w, state[4 * i + 3], sum_k);
    }
    store4(&m.partial_sums[at.warp][0][4 * at.lane], sum_q);
    store4(&m.partial_sums[at.warp][1][4 * at.lane], sum_k);
}

/// Adds the chains up: half of the threads the products of row r with the state of head i, decayed, a thread a column;
/// the other half its coefficients, a thread a key.
__device__ void finish_row(const Rows& rows, u32 r, u32 i, Shared& m) {
    const u32 t = rows.t + r;
    const float g = m.g[i][t];
    if (threadIdx.x < kDim) {
        const u32 column = threadIdx.x;
        const float decay = fast_exp(g);
#pragma unroll
        for (u32 part = 0; part < 2; part++) {
            float total = m.partial_sums[0][part][column];
#pragma unroll
            for (u32 w = 1; w < kWarps; w++) total = total + m.partial_sums[w][part][column];
            m.sums[r][part][column] = decay * total;
        }
        return;
    }
    const u32 part = threadIdx.x / kBlockRows % 2, j = threadIdx.x % kBlockRows;
    if (j > t) return;
    float dot;
    if (i == 0) {
        dot = m.partial_dots[0][part][j];
#pragma unroll
        for (u32 w = 1; w < kWarps; w++) dot = dot + m.partial_dots[w][part][j];
        m.dots[r][part][j] = dot;
    } else {
        dot = m.dots[r][part][j];
    }
    m.coefficients[r][part][j] = fast_exp(g - m.g[i][j]) * dot;
}

/// The chains of `Count` rows over the rows before them.
template <u32 Count>
__device__ inline void earlier_rows(const Rows& rows, const Updates& updates, float (&sum)[kRows][2], const Shared& m) {
    const u32 column = threadIdx.x;
    u32 j = 0;
#pragma unroll(Count == 1 ? 4 : 2)
    for (; j + 4 <= rows.t; j += 4) {
        const float4 u = {updates[j][column], updates[j + 1][column], updates[j + 2][column], updates[j + 3][column]};
#pragma unroll
        for (u32 r = 0; r < Count; r++) {
            sum[r][0] = chain4(load4(&m.coefficients[r][0][j]), u, sum[r][0]);
            sum[r][1] = chain4(load4(&m.coefficients[r][1][j]), u, sum[r][1]);
        }
    }
    for (; j < rows.t; j++) {
        const float u = updates[j][column];
#pragma unroll
        for (u32 r = 0; r < Count; r++) {
            sum[r][0] = fmaf(m.coefficients[r][0][j], u, sum[r][0]);
            sum[r][1] = fmaf(m.coefficients[r][1][j], u, sum[r][1]);
        }
    }
}

/// u and o of the rows in this thread's column of head i.
__device__ void solve(const GatedDelta& p, const Place& at, const Rows& rows, u32 i, Updates& updates, Shared& m) {
    const u32 column = threadIdx.x, head = at.first_head + i;
    float sum[kRows][2], u[kRows];
#pragma unroll
    for (u32 r = 0; r < kRows; r++) sum[r][0] = m.sums[r][0][column], sum[r][1] = m.sums[r][1][column];
    if (rows.count == 1) {
        earlier_rows<1>(rows, updates, sum, m);
    } else {
        earlier_rows<kRows>(rows, updates, sum, m);  // of rows that are not there nothing is kept
    }
    float* kept = updates_of(p, rows.page, head) + column;
#pragma unroll
    for (u32 r = 0; r < kRows; r++) {
        if (r >= rows.count) break;
        const u32 t = rows.t + r;
#pragma unroll
        for (u32 e = 0; e < r; e++) {
            sum[r][0] = fmaf(m.coefficients[r][0][rows.t + e], u[e], sum[r][0]);
            sum[r][1] = fmaf(m.coefficients[r][1][rows.t + e], u[e], sum[r][1]);
        }
        u[r] = m.beta[i][r] * (from_bf16(m.v[i][r][column]) - sum[r][1]);
        const float o = fmaf(m.coefficients[r][0][t], u[r], sum[r][0]);
        updates[t][column] = u[r];
        kept[t * kDim] = u[r];
        m.v[i][r][column] = to_bf16(o);
        show_mixed(p, at.s.first_row + rows.first + r, head, column, o);
    }
}

/// The state of head i after the block's last row, to the next anchor.
__device__ void fold(const GatedDelta& p, const Place& at, u32 slot, u32 i, float4 (&state)[kChain], Shared& m) {
    const float last = m.g[i][kBlockRows - 1], decay = fast_exp(last);
    for (u32 j = at.warp; j < kBlockRows; j += kWarps) {
        float* u = &m.updates[j][4 * at.lane];
        store4(u, scale4(fast_exp(last - m.g[i][j]), load4(u)));
    }
    __syncthreads();
#pragma unroll
    for (u32 d = 0; d < kChain; d++) state[d] = scale4(decay, state[d]);
#pragma unroll 2
    for (u32 j = 0; j < kBlockRows; j++) {
        const float4 u = load4(&m.updates[j][4 * at.lane]);
#pragma unroll
        for (u32 d = 0; d < kChain; d += 4) {
            const float4 k = load4(&m.keys[j][at.warp * kChain + d]);
            state[d] = fma4(k.x, u, state[d]);
            state[d + 1] = fma4(k.y, u, state[d + 1]);
            state[d + 2] = fma4(k.z, u, state[d + 2]);
            state[d + 3] = fma4(k.w, u, state[d + 3]);
        }
    }
    float* to = state_of(p, slot, at.first_head + i) + at.warp * kChain * kDim + 4 * at.lane;
#pragma unroll
    for (u32 d = 0; d < kChain; d++) store4(to + d * kDim, state[d]);
    __syncthreads();
}

/// All heads of some rows; the state of the first head is in registers, its updates are on their way.
__device__ void heads_of_rows(const GatedDelta& p, const Place& at, const Rows& rows, float4 (&state)[kChain], Shared& m) {
    const u32* anchors = p.step.tables + at.s.anchors + rows.block;
    // Keys that nobody needs any more make room for updates.
    const bool roomy = rows.last && !rows.completes;
    for (u32 i = 0; i < p.heads; i++) {
        const bool more = i + 1 < p.heads;
        for (u32 r = 0; r < rows.count; r++) {
            if (i == 0) partial_dots(at, rows, r, m);
            partial_sums(at, rows, r, state, m);
            if (more && !rows.completes && r + 1 == rows.count) load_state(p, at, anchors[0], at.first_head + i + 1, state);
            __syncthreads();
            finish_row(rows, r, i, m);
            if (r + 1 == rows.count) wait_copies<0>();
            __syncthreads();
        }
        Updates& room = *reinterpret_cast<Updates*>(roomy && i % 2 == 0 ? &m.keys[0][0] : &m.updates[0][0]);
        Updates& updates = *reinterpret_cast<Updates*>(roomy && i % 2 == 1 ? &m.keys[0][0] : &m.updates[0][0]);
        if (more && roomy) copy_updates(p, rows, at.first_head + i + 1, &room[0][0]);
        if (threadIdx.x < kDim) solve(p, at, rows, i, updates, m);
        if (roomy || !more && !rows.completes) continue;
        __syncthreads();
        if (rows.completes) {
            fold(p, at, anchors[1], i, state, m);
            if (more) load_state(p, at, anchors[0], at.first_head + i + 1, state);
        }
        if (more) copy_updates(p, rows, at.first_head + i + 1, &room[0][0]);
    }
}

/// What a thread block does: a segment, and all value heads of a key head or one. `Lone`: one head, and the
/// multiprocessor to itself.
template <bool Lone>
__device__ void few_rows(const GatedDelta& p) {
    extern __shared__ float4 memory[];
    Shared& m = *reinterpret_cast<Shared*>(memory);
    allow_next();
    if (blockIdx.y >= p.step.counts->few) {
        wait_for_previous();
        return;
    }
    const u32 group = p.v_heads / p.k_heads, heads = Lone ? 1 : p.heads, first_head = blockIdx.x * heads;
    const Place at = {p.step.segments[p.step.few[blockIdx.y]], first_head, first_head / group,
                      threadIdx.x / kWarp, threadIdx.x % kWarp, first_head % group == 0};
    Rows rows = rows_from(p, at.s, 0);
    float4 state[kChain];
    load_state(p, at, p.step.tables[at.s.anchors], first_head, state);
    copy_keys(p, at, rows, m);
    copy_decays(p, at, rows, m);
    if (threadIdx.x < kDim / 4) copy_async(&m.norm_weight[4 * threadIdx.x], p.norm_weight + 4 * threadIdx.x);
    commit_copies();
    copy_updates(p, rows, first_head, &m.updates[0][0]);
    prefetch_weights(p, at);
    // With other thread blocks on the multiprocessor, registers are worth more than a short wait.
    ConvTask task;
    if (Lone) task = conv_task(p, at, rows, at.warp);
    wait_for_previous();
    while (true) {
        // Heads and rows of the norm are tasks of a warp each, and so are rows of q, k and the heads' v.
        const u32 norms = heads * rows.count, convs = norms + 2 * rows.count, row = at.s.first_row + rows.first;
        u32 gate[kPairs];
        if (!Lone && at.warp < norms) load_gate<kDim>(p, row + at.warp / heads, first_head + at.warp % heads, gate);
        for (u32 n = at.warp; n < convs; n += kWarps) {
            if (!Lone || n >= kWarps) task = conv_task(p, at, rows, n);
            load_inputs(p, at, rows, task);
            convolve_row(p, at, rows, task, m);
        }
        if (at.warp == kWarps - 1) decay_rows(p, at, rows, m);
        if (Lone && at.warp < norms) load_gate<kDim>(p, row + at.warp, first_head, gate);
        wait_copies<1>();
        __syncthreads();
        heads_of_rows(p, at, rows, state, m);
        __syncthreads();
        for (u32 n = at.warp; n < norms; n += kWarps) {
            const u32 r = n / heads, i = n % heads;
            if (n >= kWarps) load_gate<kDim>(p, row + r, first_head + i, gate);
            float2 x[kPairs];
#pragma unroll
            for (u32 pair = 0; pair < kPairs; pair++) {
                const u32 o = *reinterpret_cast<u32*>(&m.v[i][r][2 * at.lane + 64 * pair]);
                x[pair] = {low_bf16(o), high_bf16(o)};
            }
            gated_norm_row<kDim>(p, row + r, first_head + i, x, gate, m.norm_weight);
        }
        if (rows.last) return;
        __syncthreads();
        rows = rows_from(p, at.s, rows.first + rows.count);
        load_state(p, at, p.step.tables[at.s.anchors + rows.block], first_head, state);
        copy_updates(p, rows, first_head, &m.updates[0][0]);
        if (Lone) task = conv_task(p, at, rows, at.warp);
    }
}

}  // namespace

// State, page, ring and tables are read before `wait_for_previous`: steps before this one wrote them, and a step's first
// kernel starts after all of those have ended.

/// Grid: (value heads / `heads`, segments of at most kFewRows rows).
extern "C" __global__ void __launch_bounds__(kThreads, 2) gated_delta_few(const __grid_constant__ GatedDelta p) {
    few_rows<false>(p);
}

/// Grid: (value heads, segments of at most kFewRows rows), for so few of them that they may have more registers.
extern "C" __global__ void __launch_bounds__(kThreads, 1) gated_delta_few_lone(const __grid_constant__ GatedDelta p) {
    few_rows<true>(p);
}
