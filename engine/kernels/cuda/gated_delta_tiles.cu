// Prefill of the gated delta net with heads of 128 x 128, between the convolution and the gated norm. `keys` works on
// all blocks at once: inverse norms, decays, products of q and k with the block's keys. `values` walks the blocks of a
// segment in turn, a thread block for kColumns columns of a value head.
#include "gated_delta.cuh"

namespace {

constexpr u32 kDim = 128, kPitch = kDim + 4, kPairs = kDim / 64;

/// q and k rows of a block: q at row t, k at row 64 + t.
typedef float Rows[2 * kBlockRows][kPitch];

/// The state of a tile of products: 8 rows (r0 + 16 i) times 4 columns.
struct Sums {
    float at[8][4];
};

/// A chain a 16 columns of the rows' dims, ascending; then their sums. `other(d, b)` loads the other operand at four
/// dims, b[dim][column]. `Causal`: column c stands for 16 keys from 16 c on, and later ones are left out.
template <bool Causal, class Load>
__device__ inline Sums chained_products(const Rows& rows, u32 first_row, Load other) {
    Sums total;
    for (u32 chain = 0; chain < kDim; chain += kChain) {
        Sums sum{};
#pragma unroll
        for (u32 d = chain; d < chain + kChain; d += 4) {
            float b[4][4];
            other(d, b);
#pragma unroll
            for (u32 i = 0; i < 8; i++) {
                const float4 a = load4(&rows[first_row + 16 * i][d]);
#pragma unroll
                for (u32 c = 0; c < 4; c++) {
                    if (Causal && c > i % 4) continue;
                    sum.at[i][c] = fmaf(a.x, b[0][c], sum.at[i][c]);
                    sum.at[i][c] = fmaf(a.y, b[1][c], sum.at[i][c]);
                    sum.at[i][c] = fmaf(a.z, b[2][c], sum.at[i][c]);
                    sum.at[i][c] = fmaf(a.w, b[3][c], sum.at[i][c]);
                }
            }
        }
#pragma unroll
        for (u32 i = 0; i < 8; i++) {
#pragma unroll
            for (u32 c = 0; c < 4; c++) total.at[i][c] = chain == 0 ? sum.at[i][c] : total.at[i][c] + sum.at[i][c];
        }
    }
    return total;
}

// ---- Keys ----

constexpr u32 kKeysThreads = 256, kKeysWarps = kKeysThreads / kWarp;

/// Normalises the piece's rows into shared memory, with zeros around them and the page's keys before them.
__device__ void normalise(const GatedDelta& p, const Segment& s, const Piece& piece, const float* page, float* keep,
                          Rows& rows) {
    const u32 warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, head = blockIdx.x;
    for (u32 at = warp; at < 2 * kBlockRows; at += kKeysWarps) {
        const u32 t = at % kBlockRows, part = at / kBlockRows;
        float2 x[kPairs] = {};
        if (t >= piece.t && t < piece.t + piece.rows) {
            const u32 row = s.first_row + piece.first + t - piece.t;
            const u16* from = p.convolved + u64(row) * p.channels + (part * p.k_heads + head) * kDim;
#pragma unroll
            for (u32 i = 0; i < kPairs; i++) {
                const u32 pair = *reinterpret_cast<const u32*>(from + 2 * (lane + kWarp * i));
                x[i] = {low_bf16(pair), high_bf16(pair)};
            }
            const float inverse = inverse_l2(sum_squares(x));
            if (lane == 0) p.inverse_norms[(u64(row) * p.k_heads + head) * 2 + part] = inverse;
#pragma unroll
            for (u32 i = 0; i < kPairs; i++) {
                x[i] = {x[i].x * inverse, x[i].y * inverse};
                if (part == 0) x[i] = {x[i].x * query_scale(kDim), x[i].y * query_scale(kDim)};
            }
        }
#pragma unroll
        for (u32 i = 0; i < kPairs; i++) {
            const u32 d = 2 * (lane + kWarp * i);
            if (part == 1 && t < piece.t) x[i] = *reinterpret_cast<const float2*>(page + t * kDim + d);
            *reinterpret_cast<float2*>(&rows[at][d]) = x[i];
            if (part == 1 && keep && t >= piece.t && t < piece.t + piece.rows) {
                *reinterpret_cast<float2*>(keep + t * kDim + d) = x[i];
            }
        }
    }
}

/// G and beta of the piece's rows, a warp a value head.
__device__ void decay_rows(const GatedDelta& p, const Segment& s, const Piece& piece, u32 page, bool keep) {
    const u32 lane = threadIdx.x % kWarp, group = p.v_heads / p.k_heads;
    for (u32 i = threadIdx.x / kWarp; i < group; i += kKeysWarps) {
        const u32 head = blockIdx.x * group + i;
        float* kept = decays_of(p, page, head);
        float total = piece.t == 0 ? 0.0f : kept[piece.t - 1];
        for (u32 first = 0; first < piece.rows; first += kWarp) {
            const u32 r = first + lane, row = s.first_row + piece.first + r;
            float step = r < piece.rows ? decay_step(p, row, head) : 0.0f, mine = 0.0f;
            for (u32 j = 0; j < kWarp; j++) {
                total = total + __shfl_sync(0xFFFFFFFFu, step, j);
                if (lane == j) mine = total;
            }
            if (r < piece.rows) {
                p.decays[u64(row) * p.v_heads + head] = mine;
                p.betas[u64(row) * p.v_heads + head] = beta_of(p, row, head);
                if (keep) kept[piece.t + r] = mine;
            }
        }
    }
}

__device__ void keys_of_block(const GatedDelta& p, const Segment& s, u32 block, Rows& rows) {
    const Piece piece = piece_of(s, block);
    const u32 page = p.step.tables[s.open_pages + block], head = blockIdx.x;
    float* keys = keys_of(p, page, head);
    const bool keep = keeps_page(p, s, block);
    normalise(p, s, piece, keys, keep ? keys : nullptr, rows);
    decay_rows(p, s, piece, page, keep);
    __syncthreads();
    // Thread (r, c) of 16 x 16 takes rows r + 16 i of q and k and keys 4 c .. 4 c + 3 (in bank order c + 16 i).
    const u32 warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
    const u32 r = warp % 2 * 8 + lane / 4, c = warp / 2 * 4 + lane % 4;
    const Sums sums = chained_products<true>(rows, r, [&](u32 d, float (&b)[4][4]) {
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            const float4 k = load4(&rows[kBlockRows + c + 16 * i][d]);
            b[0][i] = k.x, b[1][i] = k.y, b[2][i] = k.z, b[3][i] = k.w;
        }
    });
#pragma unroll
    for (u32 i = 0; i < 8; i++) {
        const u32 t = (r + 16 * i) % kBlockRows, part = (r + 16 * i) / kBlockRows;
        if (t < piece.t || t >= piece.t + piece.rows) continue;
        const u32 row = s.first_row + piece.first + t - piece.t;
        float* to = p.dots + ((u64(row) * p.k_heads + head) * 2 + part) * kBlockRows;
#pragma unroll
        for (u32 j = 0; j < 4; j++) {
            if (j <= i % 4) to[c + 16 * j] = sums.at[i][j];
        }
    }
    __syncthreads();
}

// ---- Values ----

constexpr u32 kColumns = 32, kSolve = 16, kValuesThreads = 128, kValuesWarps = kValuesThreads / kWarp;
static_assert(kColumns == kWarp && kValuesThreads == 2 * kBlockRows, "a lane a column, a thread a row of q or k");

struct Shared {
    Rows rows;                      // q's part later holds the coefficients
    float state[kDim][kColumns];
    float u[kBlockRows][kColumns];  // first the sums of k
    float o[kBlockRows][kColumns];  // first the sums of q
    float inverse[2 * kBlockRows];
    float g[kBlockRows];
    float beta[kBlockRows];
};
static_assert(sizeof(Shared) == 101376, "as the host asks for");

/// [q, k][j][t], where `coefficient_at` puts four t.
typedef float Coefficients[2][kBlockRows][kBlockRows];
static_assert(sizeof(Coefficients) <= kBlockRows * kPitch * sizeof(float), "q's rows make room for the coefficients");

/// Where the coefficients of t = 4 quad .. 4 quad + 3 with key j stand: neighbouring groups of j in other banks.
__device__ inline u32 coefficient_at(u32 j, u32 quad) { return 4 * (quad ^ (j / 4)); }

struct Place {
    Segment s;
    u32 head, key_head, column;  // first column of the value head
};

/// What a thread keeps of a block that is about to be worked on.
struct Fetched {
    uint4 x[kDim / 8];  // eight dims of rows threadIdx / 16 + 8 i of q and k, as convolved
    float inverse;      // of row threadIdx of q and k
    float g, beta;      // of row threadIdx
};

__device__ Fetched fetch(const GatedDelta& p, const Place& at, const Piece& piece, u32 page) {
    const u32 first = at.s.first_row + piece.first - piece.t;  // row of place 0, if there were one
    auto real = [&](u32 t) { return t >= piece.t && t < piece.t + piece.rows; };
    Fetched f;
#pragma unroll
    for (u32 i = 0; i < kDim / 8; i++) {
        const u32 at_row = threadIdx.x / 16 + 8 * i, d = threadIdx.x % 16 * 8;
        const u32 t = at_row % kBlockRows, part = at_row / kBlockRows;
        const u16* from = p.convolved + u64(first + t) * p.channels + (part * p.k_heads + at.key_head) * kDim + d;
        f.x[i] = real(t) ? *reinterpret_cast<const uint4*>(from) : uint4{};
    }
    const u32 t = threadIdx.x % kBlockRows, part = threadIdx.x / kBlockRows;
    const u64 row = first + t;
    f.inverse = real(t) ? p.inverse_norms[(row * p.k_heads + at.key_head) * 2 + part] : 0.0f;
    f.g = real(t) ? p.decays[row * p.v_heads + at.head] : t < piece.t ? decays_of(p, page, at.head)[t] : 0.0f;
    f.beta = real(t) ? p.betas[row * p.v_heads + at.head] : 0.0f;
    return f;
}

/// Normalises what was fetched into shared memory, after the rows of the open page.
__device__ void place_rows(const GatedDelta& p, const Place& at, const Piece& piece, u32 page, const Fetched& f, Shared& m) {
    m.inverse[threadIdx.x] = f.inverse;
    if (threadIdx.x < kBlockRows) {
        m.g[threadIdx.x] = f.g;
        m.beta[threadIdx.x] = f.beta;
    }
    __syncthreads();
#pragma unroll
    for (u32 i = 0; i < kDim / 8; i++) {
        const u32 at_row = threadIdx.x / 16 + 8 * i, d = threadIdx.x % 16 * 8;
        const uint4 x = f.x[i];
        const float inverse = m.inverse[at_row];
        float4 low = scale4(inverse, {low_bf16(x.x), high_bf16(x.x), low_bf16(x.y), high_bf16(x.y)});
        float4 high = scale4(inverse, {low_bf16(x.z), high_bf16(x.z), low_bf16(x.w), high_bf16(x.w)});
        if (at_row < kBlockRows) low = scale4(query_scale(kDim), low), high = scale4(query_scale(kDim), high);
        if (at_row >= kBlockRows && at_row - kBlockRows < piece.t) continue;
        store4(&m.rows[at_row][d], low);
        store4(&m.rows[at_row][d + 4], high);
    }
    const float* keys = keys_of(p, page, at.key_head);
    const float* updates = updates_of(p, page, at.head) + at.column;
    for (u32 i = threadIdx.x; i < piece.t * (kDim / 4); i += kValuesThreads) {
        store4(&m.rows[kBlockRows + i / (kDim / 4)][i % (kDim / 4) * 4], load4(keys + 4 * i));
    }
    for (u32 i = threadIdx.x; i < piece.t * kColumns; i += kValuesThreads) {
        m.u[i / kColumns][i % kColumns] = updates[i / kColumns * kDim + i % kColumns];
    }
}

/// e^G_t S'q_t and e^G_t S'k_t.
__device__ void read_state(const Piece& piece, Shared& m) {
    const u32 warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
    const u32 r = warp % 2 * 8 + lane / 4, c = 4 * (warp / 2 * 4 + lane % 4);
    const Sums sums = chained_products<false>(m.rows, r, [&](u32 d, float (&b)[4][4]) {
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            const float4 row = load4(&m.state[d + i][c]);
            b[i][0] = row.x, b[i][1] = row.y, b[i][2] = row.z, b[i][3] = row.w;
        }
    });
#pragma unroll
    for (u32 i = 0; i < 8; i++) {
        const u32 t = (r + 16 * i) % kBlockRows;
        if (t < piece.t) continue;
        const float4 sum = {sums.at[i][0], sums.at[i][1], sums.at[i][2], sums.at[i][3]};
        store4(r + 16 * i < kBlockRows ? &m.o[t][c] : &m.u[t][c], scale4(fast_exp(m.g[t]), sum));
    }
}

/// Products of row threadIdx / 16 + 8 i with keys 4 (threadIdx % 16) ..
struct Dots {
    float4 q[8], k[8];
};

__device__ Dots fetch_dots(const GatedDelta& p, const Place& at, const Piece& piece) {
    Dots dots;
#pragma unroll
    for (u32 i = 0; i < 8; i++) {
        const u32 t = threadIdx.x / 16 + 8 * i, j = threadIdx.x % 16 * 4;
        if (t < piece.t || t >= piece.t + piece.rows || j > t) continue;
        const u64 row = at.s.first_row + piece.first + t - piece.t;
        const float* from = p.dots + (row * p.k_heads + at.key_head) * 2 * kBlockRows + j;
        dots.q[i] = load4(from);
        dots.k[i] = load4(from + kBlockRows);
    }
    return dots;
}

/// e^(G_t-G_j) (k_j.q_t) and e^(G_t-G_j) (k_j.k_t) for j <= t; other entries hold anything.
__device__ void coefficients(const Piece& piece, const Dots& dots, const Shared& m, Coefficients& c) {
#pragma unroll
    for (u32 i = 0; i < 8; i++) {
        const u32 t = threadIdx.x / 16 + 8 * i, j = threadIdx.x % 16 * 4;
        if (t < piece.t || t >= piece.t + piece.rows || j > t) continue;
        const float4 g = load4(&m.g[j]);
        const float4 factor = {fast_exp(m.g[t] - g.x), fast_exp(m.g[t] - g.y), fast_exp(m.g[t] - g.z), fast_exp(m.g[t] - g.w)};
        const u32 to = coefficient_at(j, t / 4) + t % 4;
        c[0][j][to] = factor.x * dots.q[i].x, c[1][j][to] = factor.x * dots.k[i].x;
        c[0][j + 1][to] = factor.y * dots.q[i].y, c[1][j + 1][to] = factor.y * dots.k[i].y;
        c[0][j + 2][to] = factor.z * dots.q[i].z, c[1][j + 2][to] = factor.z * dots.k[i].z;
        c[0][j + 3][to] = factor.w * dots.q[i].w, c[1][j + 3][to] = factor.w * dots.k[i].w;
    }
}

/// v of kSolve rows in this lane's column.
struct Values {
    float at[kSolve];
};

__device__ Values fetch_values(const GatedDelta& p, const Place& at, const Piece& piece, u32 begin) {
    const u16* from = p.convolved + 2 * p.k_heads * kDim + at.head * kDim + at.column + threadIdx.x % kWarp;
    Values v;
#pragma unroll
    for (u32 i = 0; i < kSolve; i++) {
        const u32 t = begin + i;
        const u64 row = at.s.first_row + piece.first + t - piece.t;
        const bool real = t >= piece.t && t < piece.t + piece.rows;
        v.at[i] = real ? from_bf16(from[row * p.channels]) : 0.0f;
    }
    return v;
}

/// u of kSolve rows, a lane a column; rows before the piece hold theirs.
__device__ void solve(const Piece& piece, u32 begin, const Values& v, Shared& m, const Coefficients& c) {
    const u32 lane = threadIdx.x % kWarp;
    float sum[kSolve];
#pragma unroll
    for (u32 i = 0; i < kSolve; i++) sum[i] = m.u[begin + i][lane];
#pragma unroll
    for (u32 i = 0; i < kSolve; i++) {
        const u32 t = begin + i;
        if (t >= piece.t) sum[i] = m.beta[t] * (v.at[i] - sum[i]);
        m.u[t][lane] = sum[i];
#pragma unroll
        for (u32 quad = i / 4; quad < kSolve / 4; quad++) {
            const float4 part = load4(&c[1][t][coefficient_at(t, begin / 4 + quad)]);
            const float of[4] = {part.x, part.y, part.z, part.w};
#pragma unroll
            for (u32 r = 0; r < 4; r++) {
                const u32 later = 4 * quad + r;
                if (later > i && begin + later >= piece.t) sum[later] = fmaf(of[r], sum[i], sum[later]);
            }
        }
    }
}

/// Adds the rows begin .. begin + 15 to the sums of four rows from 4 quad on, in two columns.
template <bool Causal>
__device__ inline void add_to_quad(const Piece& piece, u32 begin, u32 quad, const float2 (&u)[kSolve], u32 column,
                                   float (&sums)[kBlockRows][kColumns], const float (&c)[kBlockRows][kBlockRows]) {
    float2 sum[4];
#pragma unroll
    for (u32 r = 0; r < 4; r++) sum[r] = *reinterpret_cast<const float2*>(&sums[4 * quad + r][column]);
#pragma unroll
    for (u32 i = 0; i < kSolve; i++) {
        const float4 part = load4(&c[begin + i][coefficient_at(begin + i, quad)]);
        const float of[4] = {part.x, part.y, part.z, part.w};
#pragma unroll
        for (u32 r = 0; r < 4; r++) {
            if (Causal && begin + i > 4 * quad + r) continue;
            sum[r] = {fmaf(of[r], u[i].x, sum[r].x), fmaf(of[r], u[i].y, sum[r].y)};
        }
    }
#pragma unroll
    for (u32 r = 0; r < 4; r++) {
        if (4 * quad + r >= piece.t) *reinterpret_cast<float2*>(&sums[4 * quad + r][column]) = sum[r];
    }
}

/// What the rows begin .. begin + 15 add to the sums of q from there on and of k after them; half a warp four rows.
__device__ void add_rows(const Piece& piece, u32 begin, Shared& m, const Coefficients& c) {
    const u32 half = threadIdx.x / 16, column = threadIdx.x % 16 * 2, end = (piece.t + piece.rows + 3) / 4;
    const u32 later = begin / 4 + kSolve / 4, count = end > later ? end - later : 0;
    float2 u[kSolve];
#pragma unroll
    for (u32 i = 0; i < kSolve; i++) u[i] = *reinterpret_cast<const float2*>(&m.u[begin + i][column]);
    for (u32 unit = half; unit < 2 * count; unit += 2 * kValuesWarps) {
        if (unit < count) {
            add_to_quad<false>(piece, begin, later + unit, u, column, m.u, c[1]);
        } else {
            add_to_quad<false>(piece, begin, later + unit - count, u, column, m.o, c[0]);
        }
    }
    // The last half warps, which have least to do above.
    const u32 own = 2 * kValuesWarps - 1 - half;
    if (own < kSolve / 4) add_to_quad<true>(piece, begin, begin / 4 + own, u, column, m.o, c[0]);
}

__device__ void store_rows(const GatedDelta& p, const Place& at, const Piece& piece, u32 page, bool keep, Shared& m) {
    float* updates = updates_of(p, page, at.head) + at.column;
    for (u32 i = threadIdx.x; i < piece.rows * (kColumns / 2); i += kValuesThreads) {
        const u32 r = i / (kColumns / 2), t = piece.t + r, column = i % (kColumns / 2) * 2;
        const u64 row = at.s.first_row + piece.first + r;
        u16* to = p.mixed + (row * p.v_heads + at.head) * kDim + at.column + column;
        *reinterpret_cast<u32*>(to) = to_bf16x2(m.o[t][column], m.o[t][column + 1]);
        if (keep) *reinterpret_cast<float2*>(updates + t * kDim + column) = {m.u[t][column], m.u[t][column + 1]};
    }
}

/// The state after the block's last row.
__device__ void fold(Shared& m) {
    const float last = m.g[kBlockRows - 1], decay = fast_exp(last);
    for (u32 i = threadIdx.x; i < kBlockRows * kColumns; i += kValuesThreads) {
        m.u[i / kColumns][i % kColumns] = fast_exp(last - m.g[i / kColumns]) * m.u[i / kColumns][i % kColumns];
    }
    __syncthreads();
    // Eight rows of the state, 4 d .. and 64 + 4 d .., times four columns.
    const u32 warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
    const u32 d = 4 * (warp % 2 * 8 + lane / 4), c = 4 * (warp / 2 * 4 + lane % 4);
    float4 sum[8];
#pragma unroll
    for (u32 i = 0; i < 8; i++) sum[i] = scale4(decay, load4(&m.state[d + i % 4 + i / 4 * 64][c]));
#pragma unroll 2
    for (u32 j = 0; j < kBlockRows; j++) {
        const float4 u = load4(&m.u[j][c]);
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
            const float4 k = load4(&m.rows[kBlockRows + j][d + 64 * half]);
            sum[4 * half] = fma4(k.x, u, sum[4 * half]);
            sum[4 * half + 1] = fma4(k.y, u, sum[4 * half + 1]);
            sum[4 * half + 2] = fma4(k.z, u, sum[4 * half + 2]);
            sum[4 * half + 3] = fma4(k.w, u, sum[4 * half + 3]);
        }
    }
#pragma unroll
    for (u32 i = 0; i < 8; i++) store4(&m.state[d + i % 4 + i / 4 * 64][c], sum[i]);
}

/// The columns of a state, to or from its anchor.
__device__ void load_state(const GatedDelta& p, const Place& at, u32 slot, Shared& m) {
    const float* from = state_of(p, slot, at.head) + at.column;
    for (u32 i = threadIdx.x; i < kDim * (kColumns / 4); i += kValuesThreads) {
        const u32 d = i / (kColumns / 4), c = i % (kColumns / 4) * 4;
        store4(&m.state[d][c], slot == 0 ? float4{} : load4(from + d * kDim + c));
    }
}
__device__ void store_state(const GatedDelta& p, const Place& at, u32 slot, const Shared& m) {
    float* to = state_of(p, slot, at.head) + at.column;
    for (u32 i = threadIdx.x; i < kDim * (kColumns / 4); i += kValuesThreads) {
        const u32 d = i / (kColumns / 4), c = i % (kColumns / 4) * 4;
        store4(to + d * kDim + c, load4(&m.state[d][c]));
    }
}

/// The blocks of a segment in turn; what a block needs from memory is asked for while the one before is worked on.
__device__ void values_of_segment(const GatedDelta& p, const Place& at, Shared& m) {
    Coefficients& c = *reinterpret_cast<Coefficients*>(m.rows);
    const u32* anchors = p.step.tables + at.s.anchors;
    const u32* pages = p.step.tables + at.s.open_pages;
    const u32 blocks = blocks_of(at.s);
    const bool solver = threadIdx.x < kWarp;
    load_state(p, at, anchors[0], m);
    Fetched fetched = fetch(p, at, piece_of(at.s, 0), pages[0]);
    for (u32 block = 0; block < blocks; block++) {
        const Piece piece = piece_of(at.s, block);
        place_rows(p, at, piece, pages[block], fetched, m);
        __syncthreads();
        const Dots dots = fetch_dots(p, at, piece);
        u32 begin = piece.t / kSolve * kSolve;
        Values values;
        if (solver) values = fetch_values(p, at, piece, begin);
        read_state(piece, m);
        __syncthreads();
        coefficients(piece, dots, m, c);
        if (block + 1 < blocks) fetched = fetch(p, at, piece_of(at.s, block + 1), pages[block + 1]);
        __syncthreads();
        for (u32 before = 0; before < begin; before += kSolve) {
            add_rows(piece, before, m, c);
            __syncthreads();
        }
        for (; begin < piece.t + piece.rows; begin += kSolve) {
            if (solver) {
                const Values next = fetch_values(p, at, piece, begin + kSolve);
                solve(piece, begin, values, m, c);
                values = next;
            }
            __syncthreads();
            add_rows(piece, begin, m, c);
            __syncthreads();
        }
        store_rows(p, at, piece, pages[block], keeps_page(p, at.s, block), m);
        if (piece.t + piece.rows == kBlockRows) {
            __syncthreads();
            fold(m);
            __syncthreads();
            if (keeps_state(p, at.s, block)) store_state(p, at, anchors[block + 1], m);
        }
        __syncthreads();
    }
}

}  // namespace

/// Grid: (key heads, tiles). Tile i of a segment takes its block i, the last tile one more if there is one.
extern "C" __global__ void __launch_bounds__(kKeysThreads, 2) gated_delta_keys(const __grid_constant__ GatedDelta p) {
    extern __shared__ float4 memory[];
    Rows& rows = *reinterpret_cast<Rows*>(memory);
    allow_next();
    wait_for_previous();
    Tile tile;
    if (!nth_tile(p, blockIdx.y, tile)) return;
    const Segment s = p.step.segments[tile.segment];
    const u32 block = tile.row / kTileRows;
    keys_of_block(p, s, block, rows);
    if (tile.row + kTileRows >= s.rows && block + 1 < blocks_of(s)) keys_of_block(p, s, block + 1, rows);
}

/// Grid: (128 / kColumns, value heads, any): the thread blocks along z share the segments that have tiles.
extern "C" __global__ void __launch_bounds__(kValuesThreads, 2) gated_delta_values(const __grid_constant__ GatedDelta p) {
    extern __shared__ float4 memory[];
    Shared& m = *reinterpret_cast<Shared*>(memory);
    allow_next();
    wait_for_previous();
    Place at;
    at.head = blockIdx.y, at.key_head = at.head / (p.v_heads / p.k_heads), at.column = blockIdx.x * kColumns;
    for (u32 n = blockIdx.z; nth_tiled_segment(p, n, at.s); n += gridDim.z) values_of_segment(p, at, m);
}
