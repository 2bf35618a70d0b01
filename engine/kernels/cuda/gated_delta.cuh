// The gated delta net on anchored blocks (NUMERICS N5): parameters, formulas and orders of sums that its kernels share.
//
// The matrix state S ([k_dim][v_dim] per value head) exists at positions that are multiples of 64. Between them a
// sequence keeps the rows of its open block: k, u and the cumulative log-decay G. For row t of a block:
//
//     u_t = beta_t (v_t - (e^G_t S'k_t + sum_{j<t} e^(G_t-G_j) (k_j.k_t) u_j))
//     o_t = e^G_t S'q_t + sum_{j<=t} e^(G_t-G_j) (k_j.q_t) u_j
//     S <- e^G_63 S + sum_j k_j (e^(G_63-G_j) u_j)'
//
// Orders, the same in every kernel: a product over d is cut into chains of kChain terms, each fmaf from 0 over
// ascending d, whose sums are added in ascending order; a sum over j is one fmaf chain in ascending j that begins with
// the term in S; squares are summed by a warp, lane l taking the pairs l, l + 32, ... in turn.
#pragma once

#include "step.cuh"

/// Rows of a block: anchors stand at its multiples.
constexpr u32 kBlockRows = 64;
/// Terms of a chain over d.
constexpr u32 kChain = 16;
/// The most taps, and those of the kernels for heads of 128.
constexpr int kMaxTaps = 8;
constexpr int kTaps = 4;
/// The widest head, and the pairs of its elements that a lane holds.
constexpr u32 kMaxDim = 256;
constexpr u32 kMaxPairs = kMaxDim / 64;
/// Added to the sum of squares in the L2 norm of q and k.
constexpr float kL2Epsilon = 1e-6f;

struct GatedDelta {
    Step step;
    const u16* projected;      // [rows][stride]: q, k, v by heads, then z, a and b at their offsets
    const float* conv_weight;  // [channels][taps]
    const float* a_log;        // [v_heads]
    const float* dt_bias;      // [v_heads]
    const float* norm_weight;  // [v_dim]
    u16* ring;                 // [slot][ring_rows][channels]: inputs of the open block, position p at p % ring_rows
    u16* history;              // [anchor][taps - 1][channels]: inputs before the anchor, ascending; slot 0 holds zeros
    float* anchors;            // [slot][v_heads][k_dim][v_dim]; slot 0 holds zeros
    float* open_k;             // [page][k_heads][64][k_dim]
    float* open_u;             // [page][v_heads][64][v_dim]
    float* open_g;             // [page][v_heads][64]
    u16* gated;                // packed [rows][v_heads * v_dim]
    // Between the kernels of tiles; the kernels that do everything at once write them if they are `observed`:
    u16* convolved;            // [rows][channels]
    u16* mixed;                // [rows][v_heads * v_dim]
    // Between the kernels of tiles only:
    float* inverse_norms;      // [rows][k_heads][q, k]
    float* dots;               // [rows][k_heads][q, k][64]: products with the keys of the row's block
    float* decays;             // [rows][v_heads]: G
    float* betas;              // [rows][v_heads]
    u32 stride;
    u32 z_offset;
    u32 a_offset;
    u32 b_offset;
    u32 k_heads;
    u32 v_heads;
    u32 k_dim;
    u32 v_dim;
    u32 channels;              // of the convolution: q, k and v
    u32 taps;
    u32 ring_rows;             // a power of two, at least taps - 1 + kFewRows
    u32 groups;                // of the packed output
    float norm_eps;
    u32 heads;                 // that a thread block of gated_delta_few takes: all of one key head
    u32 observed;
    u32 all_rows;              // kernels of tiles compute segments of few rows too
    u32 convolved_given;       // gated_delta_any: the input is `convolved`
    u32 norm_wanted;           // gated_delta_any: the gated norm follows
};

// ---- Elementary functions ----
//
// The hardware's own exponential, reciprocal and root: a few units of the last place, long below what bf16 keeps of the
// result; in e^(G_t-G_j) the error grows with the exponent, as the factor itself vanishes.

__device__ inline float fast_exp(float x) {
    float power;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x * 1.44269504f));
    return power;
}
__device__ inline float fast_sigmoid(float x) { return __fdividef(1.0f, 1.0f + fast_exp(-x)); }
__device__ inline float fast_silu(float x) { return __fdividef(x, 1.0f + fast_exp(-x)); }

// ---- Rows, blocks and pages ----

/// The rows of a segment in one of the blocks that it touches.
struct Piece {
    u32 first;  // row, counted from the segment's first
    u32 rows;
    u32 t;      // place of the first row in the block
};

__device__ inline u32 blocks_of(const Segment& s) { return (s.start % kBlockRows + s.rows + kBlockRows - 1) / kBlockRows; }

__device__ inline Piece piece_of(const Segment& s, u32 block) {
    const u32 before = s.start % kBlockRows;
    const u32 first = block == 0 ? 0 : block * kBlockRows - before, t = block == 0 ? before : 0;
    return {first, min(s.rows - first, kBlockRows - t), t};
}

/// Pages and states that a later block of the same segment overwrites need not be stored: nobody sees them.
__device__ inline bool keeps_page(const GatedDelta& p, const Segment& s, u32 block) {
    const u32* pages = p.step.tables + s.open_pages + block;
    return block + 1 == blocks_of(s) || pages[0] != pages[1];
}
__device__ inline bool keeps_state(const GatedDelta& p, const Segment& s, u32 block) {
    const u32* next = p.step.tables + s.anchors + block + 1;
    return block + 1 == (s.start % kBlockRows + s.rows) / kBlockRows || next[0] != next[1];
}

__device__ inline float* state_of(const GatedDelta& p, u32 slot, u32 head) {
    return p.anchors + u64(slot * p.v_heads + head) * (p.k_dim * p.v_dim);
}
__device__ inline float* keys_of(const GatedDelta& p, u32 page, u32 head) {
    return p.open_k + u64(page * p.k_heads + head) * (kBlockRows * p.k_dim);
}
__device__ inline float* updates_of(const GatedDelta& p, u32 page, u32 head) {
    return p.open_u + u64(page * p.v_heads + head) * (kBlockRows * p.v_dim);
}
__device__ inline float* decays_of(const GatedDelta& p, u32 page, u32 head) {
    return p.open_g + u64(page * p.v_heads + head) * kBlockRows;
}

/// Tile `n` of the step; false if there are fewer. With `all_rows` each segment of few rows is a tile, ahead of others.
__device__ inline bool nth_tile(const GatedDelta& p, u32 n, Tile& tile) {
    const u32 few = p.all_rows ? p.step.counts->few : 0;
    if (n < few) tile = {p.step.few[n], 0};
    else if (n - few < p.step.counts->tiles) tile = p.step.tiles[n - few];
    else return false;
    return true;
}

/// The `n`-th of the segments that have tiles, likewise. Called by whole warps.
__device__ inline bool nth_tiled_segment(const GatedDelta& p, u32 n, Segment& segment) {
    const u32 few = p.all_rows ? p.step.counts->few : 0, tiles = p.step.counts->tiles;
    if (n < few) {
        segment = p.step.segments[p.step.few[n]];
        return true;
    }
    n -= few;
    for (u32 base = 0; base < tiles; base += kWarp) {
        const u32 at = base + threadIdx.x % kWarp;
        u32 firsts = __ballot_sync(0xFFFFFFFFu, at < tiles && p.step.tiles[at].row == 0);
        const u32 count = __popc(firsts);
        if (n >= count) {
            n -= count;
            continue;
        }
        for (; n > 0; n--) firsts &= firsts - 1;
        segment = p.step.segments[p.step.tiles[base + __ffs(firsts) - 1].segment];
        return true;
    }
    return false;
}

// ---- Convolution ----

/// Where the ring keeps a row of the segment; rows before the segment count from -1 down.
__device__ inline u16* ring_row(const GatedDelta& p, const Segment& s, int row) {
    return p.ring + u64(s.ring * p.ring_rows + ((s.start + row) & (p.ring_rows - 1))) * p.channels;
}

/// Where the history of an anchor keeps the input that stands `before` rows before it.
__device__ inline u16* history_row(const GatedDelta& p, u32 slot, u32 before) {
    return p.history + u64(slot * (p.taps - 1) + p.taps - 1 - before) * p.channels;
}

/// Inputs before the segment: those of its open block are in the ring, those before it with the block's anchor.
__device__ inline const u16* earlier_row(const GatedDelta& p, const Segment& s, int row) {
    const int place = int(s.start % kBlockRows) + row;
    return place >= 0 ? ring_row(p, s, row) : history_row(p, p.step.tables[s.anchors], -place);
}

/// Inputs of channels `channel` and `channel + 1` (`channel` even) of a row, possibly before the segment.
__device__ inline u32 conv_input(const GatedDelta& p, const Segment& s, int row, u32 channel) {
    const u16* from = row >= 0 ? p.projected + u64(s.first_row + row) * p.stride : earlier_row(p, s, row);
    return *reinterpret_cast<const u32*>(from + channel);
}

/// Whether a row's inputs become the history of an anchor, and of which: it completes a block whose state is kept.
__device__ inline bool ends_block(const GatedDelta& p, const Segment& s, u32 row, u32& slot) {
    const u32 place = s.start % kBlockRows + row, block = place / kBlockRows;
    if (place % kBlockRows + 1 < kBlockRows || !keeps_state(p, s, block)) return false;
    slot = p.step.tables[s.anchors + block + 1];
    return true;
}

/// Inputs of a row's taps. `Taps`: kTaps, for exactly as many, or kMaxTaps, for any number.
template <int Taps>
struct ConvWindow {
    u32 x[Taps];
};

template <int Taps>
__device__ inline ConvWindow<Taps> load_window(const GatedDelta& p, const Segment& s, u32 row, u32 channel) {
    const int taps = Taps == kTaps ? kTaps : int(p.taps);
    ConvWindow<Taps> window;
#pragma unroll
    for (int j = 0; j < Taps; j++) {
        window.x[j] = j < taps ? conv_input(p, s, int(row) + 1 - taps + j, channel) : 0;
    }
    return window;
}

/// The chain of a channel pair over its taps, ascending from 0; then SiLU, rounded to bf16.
template <int Taps>
__device__ inline float2 convolve(const GatedDelta& p, const ConvWindow<Taps>& window, u32 channel) {
    float low[Taps], high[Taps];
    if constexpr (Taps == kTaps) {
        const float4* weight = reinterpret_cast<const float4*>(p.conv_weight) + channel;
        const float4 first = __ldg(weight), second = __ldg(weight + 1);
        low[0] = first.x, low[1] = first.y, low[2] = first.z, low[3] = first.w;
        high[0] = second.x, high[1] = second.y, high[2] = second.z, high[3] = second.w;
    } else {
        const float* weight = p.conv_weight + u64(channel) * p.taps;
#pragma unroll
        for (int j = 0; j < Taps; j++) {
            low[j] = j < int(p.taps) ? __ldg(weight + j) : 0.0f;
            high[j] = j < int(p.taps) ? __ldg(weight + p.taps + j) : 0.0f;
        }
    }
    float2 sum = {0.0f, 0.0f};
#pragma unroll
    for (int j = 0; j < Taps; j++) {
        if (Taps != kTaps && j >= int(p.taps)) break;
        sum.x = fmaf(low[j], low_bf16(window.x[j]), sum.x);
        sum.y = fmaf(high[j], high_bf16(window.x[j]), sum.y);
    }
    return {round_bf16(fast_silu(sum.x)), round_bf16(fast_silu(sum.y))};
}

/// Shows a channel pair of a step's row, and what the rule made of a value head's.
__device__ inline void show_convolved(const GatedDelta& p, u32 row, u32 channel, float2 x) {
    if (!p.observed) return;
    *reinterpret_cast<u32*>(p.convolved + u64(row) * p.channels + channel) = to_bf16x2(x.x, x.y);
}
__device__ inline void show_mixed(const GatedDelta& p, u32 row, u32 head, u32 column, float o) {
    if (p.observed) p.mixed[(u64(row) * p.v_heads + head) * p.v_dim + column] = to_bf16(o);
}

// ---- Norms ----

/// A warp's sum of squares; lane l holds pairs l, l + 32, ..., zeros beyond the width.
template <int Pairs>
__device__ inline float sum_squares(const float2 (&x)[Pairs]) {
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < Pairs; i++) sum = fmaf(x[i].y, x[i].y, fmaf(x[i].x, x[i].x, sum));
    return warp_sum(sum);
}

__device__ inline float inverse_l2(float squares) { return rsqrtf(squares + kL2Epsilon); }
/// q_hat = (q * inverse) * k_dim^-1/2; k_hat without the last factor.
__device__ inline float query_scale(u32 k_dim) { return 1.0f / sqrtf(float(k_dim)); }

/// The gated norm of a row of a head, stored to the packed output. `x` is rounded to bf16; pairs as in `sum_squares`.
/// `Dim`: the width of the head, or 0 for any. `weight`: the norm's, wherever it is.
template <u32 Dim, int Pairs>
__device__ inline void gated_norm_row(const GatedDelta& p, u32 row, u32 head, const float2 (&x)[Pairs],
                                      const u32 (&gate)[Pairs], const float* weight) {
    const u32 dim = Dim ? Dim : p.v_dim, lane = threadIdx.x % kWarp;
    const float inverse = rsqrtf(sum_squares(x) * (1.0f / float(dim)) + p.norm_eps);
#pragma unroll
    for (int i = 0; i < Pairs; i++) {
        const u32 at = 2 * (lane + kWarp * i);
        if (Dim == 0 && at >= dim) break;
        const float2 w = *reinterpret_cast<const float2*>(weight + at);
        const float first = x[i].x * inverse * w.x * fast_silu(low_bf16(gate[i]));
        const float second = x[i].y * inverse * w.y * fast_silu(high_bf16(gate[i]));
        if constexpr (Dim % kBlock == 0 && Dim > 0) {
            // As `store_packed`, for a lane's pair of a whole block.
            const u64 core = (u64(head * (Dim / kBlock) + i) * p.groups + row / kGroup) * 8 + lane / 2 % 4 * 2 + lane % 2;
            reinterpret_cast<u32*>(p.gated)[(core * 8 + row % kGroup) * 4 + lane / 8] = to_bf16x2(first, second);
        } else {
            store_packed(p.gated, row, head * dim + at, p.groups, first, second);
        }
    }
}

template <u32 Dim, int Pairs>
__device__ inline void load_gate(const GatedDelta& p, u32 row, u32 head, u32 (&gate)[Pairs]) {
    const u32 dim = Dim ? Dim : p.v_dim;
    const u16* from = p.projected + u64(row) * p.stride + p.z_offset + head * dim;
#pragma unroll
    for (int i = 0; i < Pairs; i++) {
        const u32 at = 2 * (threadIdx.x % kWarp + kWarp * i);
        gate[i] = at < dim ? *reinterpret_cast<const u32*>(from + at) : 0;
    }
}

// ---- Decays ----

/// ln(1 + e^x), and x itself above 20.
__device__ inline float softplus(float x) { return x > 20.0f ? x : fmaxf(x, 0.0f) + log1pf(expf(-fabsf(x))); }

/// What a row adds to G.
__device__ inline float decay_step(const GatedDelta& p, u32 row, u32 head) {
    const float a = from_bf16(p.projected[u64(row) * p.stride + p.a_offset + head]);
    return -expf(__ldg(p.a_log + head)) * softplus(a + __ldg(p.dt_bias + head));
}
__device__ inline float beta_of(const GatedDelta& p, u32 row, u32 head) {
    return fast_sigmoid(from_bf16(p.projected[u64(row) * p.stride + p.b_offset + head]));
}

// ---- Chains ----

__device__ inline float4 fma4(float a, float4 b, float4 c) {
    return {fmaf(a, b.x, c.x), fmaf(a, b.y, c.y), fmaf(a, b.z, c.z), fmaf(a, b.w, c.w)};
}
__device__ inline float4 scale4(float a, float4 b) { return {a * b.x, a * b.y, a * b.z, a * b.w}; }
__device__ inline float4 add4(float4 a, float4 b) { return {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w}; }
/// Four terms of a chain.
__device__ inline float chain4(float4 a, float4 b, float sum) {
    return fmaf(a.w, b.w, fmaf(a.z, b.z, fmaf(a.y, b.y, fmaf(a.x, b.x, sum))));
}
__device__ inline float4 load4(const float* at) { return *reinterpret_cast<const float4*>(at); }
__device__ inline void store4(float* at, float4 value) { *reinterpret_cast<float4*>(at) = value; }

// ---- Copies ----

/// Asks for a line that will be read soon.
__device__ inline void prefetch(const void* at) { asm volatile("prefetch.global.L2 [%0];" ::"l"(at)); }

/// 16 bytes from global to shared memory, past L1.
__device__ inline void copy_async(float* to, const float* from) {
    const u32 at = u32(__cvta_generic_to_shared(to));
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at), "l"(from) : "memory");
}
/// 4 bytes likewise.
__device__ inline void copy_word_async(float* to, const float* from) {
    const u32 at = u32(__cvta_generic_to_shared(to));
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(at), "l"(from) : "memory");
}
__device__ inline void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
/// All but the last `Pending` groups have landed (for this thread).
template <int Pending>
__device__ inline void wait_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(Pending) : "memory");
}
