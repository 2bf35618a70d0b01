// Prefill of the gated delta net with heads of 128 x 128, between the convolution and the gated norm. `keys` works on
// all blocks at once: inverse norms, decays, products of q and k with the block's keys. `values` walks the blocks of a
// segment in turn, a thread block for some columns of a value head.
#include "gated_delta.cuh"

namespace {

constexpr u32 kDim = 128, kPitch = kDim + 4, kPairs = kDim / 64;

/// q and k rows of a block: q at row t, k at row 64 + t.
typedef float Rows[2 * kBlockRows][kPitch];

/// A thread's tile of products: rows r + 16 i, and some columns.
template <u32 Columns>
struct Sums {
    float at[8][Columns];
};

/// The last column of a thread that rows 16 i .. 16 i + 15 of a block need, if its columns are keys c + 64 / Columns * j.
template <u32 Columns>
__device__ constexpr u32 causal_columns(u32 i) { return (i % 4 + 1) * (Columns / 4) - 1; }

/// A chain a 16 columns of the rows' dims, ascending; then their sums. `other(d, b)` loads the other operand at four
/// dims, b[dim][column]. `Causal`: columns are keys, those that are later than all rows 16 i .. are left out.
template <bool Causal, u32 Columns, class Load>
__device__ inline Sums<Columns> chained_products(const Rows& rows, u32 first_row, Load other) {
    Sums<Columns> total;
#pragma unroll 1
    for (u32 chain = 0; chain < kDim; chain += kChain) {
        Sums<Columns> sum{};
#pragma unroll
        for (u32 d = chain; d < chain + kChain; d += 4) {
            float b[4][Columns];
            other(d, b);
#pragma unroll
            for (u32 i = 0; i < 8; i++) {
                const float4 a = load4(&rows[first_row + 16 * i][d]);
#pragma unroll
                for (u32 c = 0; c < Columns; c++) {
                    if (Causal && c > causal_columns<Columns>(i)) continue;
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
            for (u32 c = 0; c < Columns; c++) total.at[i][c] = chain == 0 ? sum.at[i][c] : total.at[i][c] + sum.at[i][c];
        }
    }
    return total;
}

// ---- Keys ----

constexpr u32 kKeysThreads = 128, kKeysWarps = kKeysThreads / kWarp, kKeysColumns = 8;
static_assert(sizeof(Rows) == 67584, "as the host asks for");

/// Normalises the piece's rows into shared memory and keeps k in `keep`, if that is not null. Absent rows hold anything.
__device__ void normalise(const GatedDelta& p, const Segment& s, const Piece& piece, float* keep, Rows& rows) {
    constexpr u32 kTogether = 4, kRowsOfWarp = 2 * kBlockRows / kKeysWarps;
    const u32 warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, head = blockIdx.x, part = warp / (kKeysWarps / 2);
    const u16* from = p.convolved + (part * p.k_heads + head) * kDim + 2 * lane;
    for (u32 i = 0; i < kRowsOfWarp; i += kTogether) {
        const u32 t = (warp * kRowsOfWarp + i) % kBlockRows, end = piece.t + piece.rows;
        if (t >= end || t + kTogether <= piece.t) continue;
        float2 x[kTogether][kPairs];
#pragma unroll
        for (u32 r = 0; r < kTogether; r++) {
            const u64 row = s.first_row + piece.first + min(max(t + r, piece.t), end - 1) - piece.t;
#pragma unroll
            for (u32 pair = 0; pair < kPairs; pair++) {
                const u32 both = *reinterpret_cast<const u32*>(from + row * p.channels + 64 * pair);
                x[r][pair] = {low_bf16(both), high_bf16(both)};
            }
        }
#pragma unroll
        for (u32 r = 0; r < kTogether; r++) {
            const float inverse = inverse_l2(sum_squares(x[r]));
            if (t + r < piece.t || t + r >= end) continue;
            const u64 row = s.first_row + piece.first + t + r - piece.t;
            if (lane == 0) p.inverse_norms[(row * p.k_heads + head) * 2 + part] = inverse;
#pragma unroll
            for (u32 pair = 0; pair < kPairs; pair++) {
                float2 value = {x[r][pair].x * inverse, x[r][pair].y * inverse};
                if (part == 0) value = {value.x * query_scale(kDim), value.y * query_scale(kDim)};
                const u32 d = 2 * lane + 64 * pair;
                *reinterpret_cast<float2*>(&rows[part * kBlockRows + t + r][d]) = value;
                if (part == 1 && keep) *reinterpret_cast<float2*>(keep + (t + r) * kDim + d) = value;
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
    normalise(p, s, piece, keep ? keys : nullptr, rows);
    for (u32 i = threadIdx.x; i < piece.t * (kDim / 4); i += kKeysThreads) {
        store4(&rows[kBlockRows + i / (kDim / 4)][i % (kDim / 4) * 4], load4(keys + 4 * i));
    }
    decay_rows(p, s, piece, page, keep);
    __syncthreads();
    // Thread (r, c) of 16 x 8 takes rows r + 16 i of q and k and keys c + 8 j.
    const u32 warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
    const u32 r = warp % 2 * 8 + lane / 4, c = warp / 2 * 4 + lane % 4;
    const auto sums = chained_products<true, kKeysColumns>(rows, r, [&](u32 d, float (&b)[4][kKeysColumns]) {
#pragma unroll
        for (u32 j = 0; j < kKeysColumns; j++) {
            const float4 k = load4(&rows[kBlockRows + c + 8 * j][d]);
            b[0][j] = k.x, b[1][j] = k.y, b[2][j] = k.z, b[3][j] = k.w;
        }
    });
#pragma unroll
    for (u32 i = 0; i < 8; i++) {
        const u32 t = (r + 16 * i) % kBlockRows, part = i / 4;
        if (t < piece.t || t >= piece.t + piece.rows) continue;
        const u64 row = s.first_row + piece.first + t - piece.t;
        float* to = p.dots + ((row * p.k_heads + head) * 2 + part) * kBlockRows + c;
#pragma unroll
        for (u32 j = 0; j < kKeysColumns; j++) {
            if (j <= causal_columns<kKeysColumns>(i)) to[8 * j] = sums.at[i][j];
        }
    }
    __syncthreads();
}

// ---- Values ----

constexpr u32 kColumns = 32, kValuesThreads = 128, kOctet = 8, kOctets = kBlockRows / kOctet;
static_assert(kValuesThreads == 2 * kBlockRows, "a thread a row of q or k");

struct Shared {
    Rows rows;                     // q's part later holds the coefficients
    float state[kDim][kColumns];
    float u[kBlockRows][kColumns];  // first the sums of k
    float o[kBlockRows][kColumns];  // first the sums of q
    float inverse[2 * kBlockRows];
    float g[kBlockRows];
    float beta[kBlockRows];
};
static_assert(sizeof(Shared) == 101376, "as the host asks for");

/// [q, k][j][t], the rows t = 8 i + g of group g side by side, where `coefficient_at` puts them.
typedef float Coefficients[2][kBlockRows][kBlockRows];
static_assert(sizeof(Coefficients) <= kBlockRows * kPitch * sizeof(float), "q's rows make room for the coefficients");

/// Where the coefficients of rows 8 i + g, i from 4 half on, with keys 4 quad .. stand: other banks for other keys.
__device__ inline u32 coefficient_at(u32 quad, u32 g, u32 half) { return 4 * ((2 * g + half) ^ quad); }

struct Place {
    Segment s;
    u32 head, key_head, column;  // first column of the value head
};

/// The row of the step at place t of the block, or the nearest that there is: what absent rows hold is of no account.
__device__ inline u64 row_at(const Place& at, const Piece& piece, u32 t) {
    return at.s.first_row + piece.first + min(max(t, piece.t), piece.t + piece.rows - 1) - piece.t;
}

/// `Count` neighbours in memory.
template <u32 Count>
struct alignas(4 * Count) Floats {
    float at[Count];
};
template <u32 Count>
struct alignas(2 * Count) Halves {
    u32 pairs[Count / 2];
};

/// What a thread keeps of a block that is about to be worked on.
struct Fetched {
    uint4 x[kDim / 8];  // eight dims of rows threadIdx / 16 + 8 i of q and k, as convolved
    float inverse;      // of row threadIdx of q and k
    float g, beta;      // of row threadIdx
};

__device__ Fetched fetch(const GatedDelta& p, const Place& at, const Piece& piece, u32 page) {
    Fetched f;
    const u16* from = p.convolved + at.key_head * kDim + threadIdx.x % 16 * 8;
#pragma unroll
    for (u32 i = 0; i < kOctets; i++) {
        const u16* row = from + row_at(at, piece, threadIdx.x / 16 + kOctet * i) * p.channels;
        f.x[i] = *reinterpret_cast<const uint4*>(row);
        f.x[kOctets + i] = *reinterpret_cast<const uint4*>(row + p.k_heads * kDim);
    }
    const u32 t = threadIdx.x % kBlockRows, part = threadIdx.x / kBlockRows;
    const u64 row = row_at(at, piece, t);
    f.inverse = p.inverse_norms[(row * p.k_heads + at.key_head) * 2 + part];
    f.g = t < piece.t ? decays_of(p, page, at.head)[t] : p.decays[row * p.v_heads + at.head];
    f.beta = p.betas[row * p.v_heads + at.head];
    return f;
}

/// Normalises what was fetched into shared memory, after the rows of the open page.
__device__ void place_rows(const GatedDelta& p, const Place& at, const Piece& piece, u32 page, const Fetched& f,
                           Shared& m) {
    m.inverse[threadIdx.x] = f.inverse;
    if (threadIdx.x < kBlockRows) {
        m.g[threadIdx.x] = f.g;
        m.beta[threadIdx.x] = f.beta;
    }
    __syncthreads();
#pragma unroll
    for (u32 i = 0; i < 2 * kOctets; i++) {
        const u32 row = threadIdx.x / 16 + kOctet * i, d = threadIdx.x % 16 * 8;
        if (i >= kOctets && row - kBlockRows < piece.t) continue;
        const uint4 x = f.x[i];
        const float inverse = m.inverse[row];
        float4 low = scale4(inverse, {low_bf16(x.x), high_bf16(x.x), low_bf16(x.y), high_bf16(x.y)});
        float4 high = scale4(inverse, {low_bf16(x.z), high_bf16(x.z), low_bf16(x.w), high_bf16(x.w)});
        if (i < kOctets) low = scale4(query_scale(kDim), low), high = scale4(query_scale(kDim), high);
        store4(&m.rows[row][d], low);
        store4(&m.rows[row][d + 4], high);
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

/// Rows r .. and columns c .. of the tile of 8 x kColumns / 8 that a thread has in a product: of 16 x 8 threads.
__device__ inline u32 tile_row() { return threadIdx.x / kWarp % 2 * 8 + threadIdx.x % kWarp / 4; }
__device__ inline u32 tile_column() { return 4 * (threadIdx.x / kWarp / 2 * 4 + threadIdx.x % 4); }

/// e^G_t S'q_t and e^G_t S'k_t.
__device__ void read_state(const Piece& piece, Shared& m) {
    constexpr u32 kMine = kColumns / 8;
    const u32 r = tile_row(), c = tile_column();
    const Sums<kMine> sums = chained_products<false, kMine>(m.rows, r, [&](u32 d, float (&b)[4][kMine]) {
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
#pragma unroll
            for (u32 part = 0; part < kMine; part += 4) {
                const float4 row = load4(&m.state[d + i][c + 8 * part]);
                b[i][part] = row.x, b[i][part + 1] = row.y, b[i][part + 2] = row.z, b[i][part + 3] = row.w;
            }
        }
    });
#pragma unroll
    for (u32 i = 0; i < 8; i++) {
        const u32 t = (r + 16 * i) % kBlockRows;
        if (t < piece.t) continue;
        const float decay = fast_exp(m.g[t]);
        float* to = i < 4 ? m.o[t] : m.u[t];
#pragma unroll
        for (u32 part = 0; part < kMine; part += 4) {
            const float* sum = &sums.at[i][part];
            store4(to + c + 8 * part, scale4(decay, {sum[0], sum[1], sum[2], sum[3]}));
        }
    }
}

/// e^(G_t-G_j) (k_j.q_t) and e^(G_t-G_j) (k_j.k_t) for j <= t; other entries hold anything. A thread takes a quad of keys
/// and the rows of a group.
__device__ void coefficients(const GatedDelta& p, const Place& at, const Piece& piece, const Shared& m,
                             Coefficients& c) {
    const u32 quad = threadIdx.x % 16, group = threadIdx.x / 16;
    const float4 g = load4(&m.g[4 * quad]);
    const float* from = p.dots + at.key_head * 2 * kBlockRows + 4 * quad;
#pragma unroll
    for (u32 part = 0; part < 2; part++) {
        float4 dots[kOctets];
#pragma unroll
        for (u32 i = 0; i < kOctets; i++) {
            const u64 row = row_at(at, piece, group + kOctet * i) * p.k_heads * 2 + part;
            dots[i] = 4 * quad <= group + kOctet * i ? load4(from + row * kBlockRows) : float4{};
        }
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
            float4 f[4];
#pragma unroll
            for (u32 i = 0; i < 4; i++) {
                const float decay = m.g[group + kOctet * (4 * half + i)];
                const float4 dot = dots[4 * half + i];
                f[i] = {fast_exp(decay - g.x) * dot.x, fast_exp(decay - g.y) * dot.y, fast_exp(decay - g.z) * dot.z,
                        fast_exp(decay - g.w) * dot.w};
            }
            const u32 to = coefficient_at(quad, group, half);
            store4(&c[part][4 * quad][to], {f[0].x, f[1].x, f[2].x, f[3].x});
            store4(&c[part][4 * quad + 1][to], {f[0].y, f[1].y, f[2].y, f[3].y});
            store4(&c[part][4 * quad + 2][to], {f[0].z, f[1].z, f[2].z, f[3].z});
            store4(&c[part][4 * quad + 3][to], {f[0].w, f[1].w, f[2].w, f[3].w});
        }
    }
}

/// v of the rows 8 i + g of this lane's columns in `solve`.
struct Values {
    Halves<kColumns / 16> at[kOctets];
};

/// The first of a lane's columns in `solve`: a warp has a quarter of the columns, four lanes share it.
__device__ inline u32 solve_column() {
    return threadIdx.x / kWarp * (kColumns / 4) + threadIdx.x % 4 * (kColumns / 16);
}

__device__ Values fetch_values(const GatedDelta& p, const Place& at, const Piece& piece) {
    const u16* from = p.convolved + 2 * p.k_heads * kDim + at.head * kDim + at.column + solve_column();
    Values v;
#pragma unroll
    for (u32 i = 0; i < kOctets; i++) {
        const u64 row = row_at(at, piece, kOctet * i + threadIdx.x % kWarp / 4);
        v.at[i] = *reinterpret_cast<const Halves<kColumns / 16>*>(from + row * p.channels);
    }
    return v;
}

/// u and o of the block's rows. A warp solves its columns by itself: lane 4 g + c has rows 8 i + g of a few of them in
/// registers, and every u goes to all groups as soon as it is known. Leaves e^(G_63-G_t) u_t in shared memory.
__device__ void solve(const GatedDelta& p, const Place& at, const Piece& piece, u32 page, const Values& values,
                      Shared& m, const Coefficients& c) {
    constexpr u32 kMine = kColumns / 16;
    const u32 g = threadIdx.x % kWarp / 4, column = solve_column(), end = piece.t + piece.rows;
    const bool keep = keeps_page(p, at.s, (at.s.start % kBlockRows + piece.first) / kBlockRows);
    float* updates = updates_of(p, page, at.head) + at.column + column;
    u16* mixed = p.mixed + at.head * kDim + at.column + column;
    Floats<kMine> q[kOctets], k[kOctets];
#pragma unroll
    for (u32 i = 0; i < kOctets; i++) {
        q[i] = *reinterpret_cast<const Floats<kMine>*>(&m.o[kOctet * i + g][column]);
        k[i] = *reinterpret_cast<const Floats<kMine>*>(&m.u[kOctet * i + g][column]);
    }
#pragma unroll
    for (u32 own = 0; own < kOctets; own++) {
        if (kOctet * own >= end) break;
        const u32 t = kOctet * own + g;
        const bool known = t < piece.t;  // then it is what the page held, in k's place
        const float beta = m.beta[t];
        const Floats<kMine> page_u = *reinterpret_cast<const Floats<kMine>*>(&m.u[t][column]);
        Floats<kMine> mine;
#pragma unroll 1
        for (u32 j = 0; j < kOctet; j++) {
            const u32 key = kOctet * own + j;
            float u[kMine];
#pragma unroll
            for (u32 l = 0; l < kMine; l++) {
                const u32 pair = values.at[own].pairs[l / 2];
                const float v = l % 2 == 0 ? low_bf16(pair) : high_bf16(pair);
                mine.at[l] = known ? page_u.at[l] : beta * (v - k[own].at[l]);
                u[l] = __shfl_sync(0xFFFFFFFFu, mine.at[l], 4 * j + threadIdx.x % 4);
            }
#pragma unroll
            for (u32 half = own / 4; half < 2; half++) {
                const u32 from = coefficient_at(key / 4, g, half);
                const float4 of_q = load4(&c[0][key][from]), of_k = load4(&c[1][key][from]);
                const float cq[4] = {of_q.x, of_q.y, of_q.z, of_q.w}, ck[4] = {of_k.x, of_k.y, of_k.z, of_k.w};
#pragma unroll
                for (u32 i = 0; i < 4; i++) {
                    const u32 row = 4 * half + i;
                    if (row < own) continue;
#pragma unroll
                    for (u32 l = 0; l < kMine; l++) {
                        if (row > own || g > j) k[row].at[l] = fmaf(ck[i], u[l], k[row].at[l]);
                        if (row > own || g >= j) q[row].at[l] = fmaf(cq[i], u[l], q[row].at[l]);
                    }
                }
            }
        }
        // Nothing was added to k of this lane's row since its own turn, so `mine` is its u.
        const float factor = fast_exp(m.g[kBlockRows - 1] - m.g[t]);
        Floats<kMine> weighted;
#pragma unroll
        for (u32 l = 0; l < kMine; l++) weighted.at[l] = factor * mine.at[l];
        *reinterpret_cast<Floats<kMine>*>(&m.u[t][column]) = weighted;
        if (known || t >= end) continue;
        Halves<kMine> o;
#pragma unroll
        for (u32 l = 0; l < kMine; l += 2) o.pairs[l / 2] = to_bf16x2(q[own].at[l], q[own].at[l + 1]);
        *reinterpret_cast<Halves<kMine>*>(mixed + row_at(at, piece, t) * p.v_heads * kDim) = o;
        if (keep) *reinterpret_cast<Floats<kMine>*>(updates + t * kDim) = mine;
    }
}

/// The state after the block's last row, from weighted u.
__device__ void fold(Shared& m) {
    constexpr u32 kParts = kColumns / 32;
    const float decay = fast_exp(m.g[kBlockRows - 1]);
    // Eight rows of the state, d .. d + 3 and d + 64 .. d + 67.
    const u32 d = 4 * tile_row(), c = tile_column();
    float4 sum[8][kParts];
#pragma unroll
    for (u32 i = 0; i < 8; i++) {
#pragma unroll
        for (u32 part = 0; part < kParts; part++) {
            sum[i][part] = scale4(decay, load4(&m.state[d + i % 4 + i / 4 * 64][c + 32 * part]));
        }
    }
#pragma unroll 2
    for (u32 j = 0; j < kBlockRows; j++) {
        float4 u[kParts];
#pragma unroll
        for (u32 part = 0; part < kParts; part++) u[part] = load4(&m.u[j][c + 32 * part]);
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
            const float4 k = load4(&m.rows[kBlockRows + j][d + 64 * half]);
#pragma unroll
            for (u32 part = 0; part < kParts; part++) {
                sum[4 * half][part] = fma4(k.x, u[part], sum[4 * half][part]);
                sum[4 * half + 1][part] = fma4(k.y, u[part], sum[4 * half + 1][part]);
                sum[4 * half + 2][part] = fma4(k.z, u[part], sum[4 * half + 2][part]);
                sum[4 * half + 3][part] = fma4(k.w, u[part], sum[4 * half + 3][part]);
            }
        }
    }
#pragma unroll
    for (u32 i = 0; i < 8; i++) {
#pragma unroll
        for (u32 part = 0; part < kParts; part++) store4(&m.state[d + i % 4 + i / 4 * 64][c + 32 * part], sum[i][part]);
    }
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

/// The blocks of a segment in turn; a block's rows are asked for while the one before is worked on.
__device__ void values_of_segment(const GatedDelta& p, const Place& at, Shared& m) {
    Coefficients& c = *reinterpret_cast<Coefficients*>(m.rows);
    const u32* anchors = p.step.tables + at.s.anchors;
    const u32* pages = p.step.tables + at.s.open_pages;
    const u32 blocks = blocks_of(at.s);
    load_state(p, at, anchors[0], m);
    Fetched fetched = fetch(p, at, piece_of(at.s, 0), pages[0]);
    for (u32 block = 0; block < blocks; block++) {
        const Piece piece = piece_of(at.s, block);
        place_rows(p, at, piece, pages[block], fetched, m);
        __syncthreads();
        read_state(piece, m);
        const Values values = fetch_values(p, at, piece);
        __syncthreads();
        coefficients(p, at, piece, m, c);
        if (block + 1 < blocks) fetched = fetch(p, at, piece_of(at.s, block + 1), pages[block + 1]);
        __syncthreads();
        solve(p, at, piece, pages[block], values, m, c);
        __syncthreads();
        if (piece.t + piece.rows < kBlockRows) continue;
        fold(m);
        __syncthreads();
        if (keeps_state(p, at.s, block)) store_state(p, at, anchors[block + 1], m);
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
    for (u32 n = blockIdx.z; nth_tiled_segment(p, n, at.s); n += gridDim.z) {
        values_of_segment(p, at, m);
        __syncthreads();
    }
}
