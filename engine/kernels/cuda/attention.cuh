// Causal attention over the paged cache (NUMERICS N4): what the kernels for few and for many rows share, so that a row
// has the same bits in both.
//
// The one order, for every row: context is cut into tiles of 64 absolute positions and splits of 8 tiles. In a tile,
// scores are chains of m16n8k16 over ascending dims; with m the highest visible score, p = 2^(s − m) is rounded, and
// p·v and Σp are chains of m16n8k16 over ascending tokens from zero. Operands are bf16 where the cache is; over fp8 they
// are f16, which holds every E4M3, and queries times 2⁻⁴ (what f16 cannot hold of a query is below 2⁻²¹). States are
// merged in ascending order, tiles inside a split, then splits: M = max, cᵢ = 2^(mᵢ − M), x = fma(x₁, c₁, x₂·c₂). A tile
// in which a row sees no key leaves the row's state as it is, so it does not matter which tiles a kernel walks beyond
// those that a row sees, nor where it hands a state to another one.
//
// Rows are (row, query head of the group) pairs: pair e of a segment is row e / group, head e % group.
#pragma once

#include "kv_page.cuh"
#include "step.cuh"

/// Positions of a tile, tiles of a split.
constexpr u32 kTileTokens = 64;
constexpr u32 kTilePages = kTileTokens / kPageTokens;
constexpr u32 kSplitTiles = 8;

struct AttentionArgs {
    Step step;
    const u16* qkv;      // [rows][width], bf16: queries, each followed by its gate if `gated`
    const u8* k;
    const u8* v;
    u16* out;            // packed, [rows][heads · head_dim]
    float* states;       // few rows: [few][kv head][slot][pair][blocks · 32]; many: a split's state a thread block
    float2* sums;        // few rows: (m, Σp) [few][kv head][slot][pair]
    u32 width;
    u32 heads;
    u32 kv_heads;
    u32 head_dim;        // a multiple of 8, at most 256
    u32 q_stride;
    u32 gated;
    u32 window;          // positions that a row sees, itself included; 0: all
    u32 groups;          // of the packed output
    u32 chunks;          // few rows: thread blocks that share a segment's context
    u32 slots;           // few rows: at least 4 · chunks and the splits of the longest context
    u32 pairs;           // few rows: room for the pairs of a segment under one KV head
    float score_scale;   // > 0: scale · k_scale · log2(e), over fp8 times 2⁴
    float v_scale;
};

/// The score of a hidden key, the maximum of none.
__device__ inline float minus_infinity() { return __uint_as_float(0xFF800000u); }

__device__ inline float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/// d += a · b in f16 over fp8, else in bf16.
template <bool Fp8>
__device__ inline void mma(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    if (Fp8) {
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    } else {
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    }
}

__device__ inline u32 to_f16x2(float low, float high) {
    u32 pair;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

/// Two queries as an operand.
template <bool Fp8>
__device__ inline u32 query_pair(u32 pair) {
    return Fp8 ? to_f16x2(low_bf16(pair) * 0.0625f, high_bf16(pair) * 0.0625f) : pair;
}

// ---- Copies ----

/// Slots of a ring, each a tile's keys or values: 64 KiB of shared memory where heads are wide.
constexpr u32 ring_slots(u32 slot_bytes) { return 65536 / slot_bytes < 8 ? 65536 / slot_bytes : 8; }

__device__ inline void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

/// Waits until at most `Pending` groups of this thread's copies are under way.
template <u32 Pending>
__device__ inline void wait_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(Pending) : "memory");
}

/// Copies `Chunks` times 512 bytes into shared memory, asynchronously, sixteen of each by this lane; from `bytes` on
/// zeros.
template <u32 Chunks>
__device__ inline void copy_chunks(u8* to, const u8* from, u32 bytes, u32 lane) {
    const u32 address = u32(__cvta_generic_to_shared(to)) + lane * 16;
    from += lane * 16;
    if (bytes >= Chunks * 512) {
#pragma unroll
        for (u32 i = 0; i < Chunks; i++) {
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address + i * 512), "l"(from + i * 512)
                         : "memory");
        }
    } else {
#pragma unroll
        for (u32 i = 0; i < Chunks; i++) {
            const bool real = i * 512 < bytes;
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address + i * 512),
                         "l"(real ? from + i * 512 : from), "r"(real ? 16 : 0)
                         : "memory");
        }
    }
}

// ---- Fragments ----

/// Operands B that a lane holds of one page and one block of 32 dims: eight pairs of registers. Of keys
/// [step][columns], of values [columns].
template <bool Fp8>
struct Fragment {
    u32 b[4][2];

    /// `stage` is where this lane's 16 bytes stand; the second 16 of bf16 stand 512 bytes further.
    __device__ inline void load(const u8* stage) {
        const uint4 x = *reinterpret_cast<const uint4*>(stage);
        if (Fp8) {
            from_e4m3x4(x.x, b[0][0], b[0][1]);
            from_e4m3x4(x.y, b[1][0], b[1][1]);
            from_e4m3x4(x.z, b[2][0], b[2][1]);
            from_e4m3x4(x.w, b[3][0], b[3][1]);
        } else {
            const uint4 y = *reinterpret_cast<const uint4*>(stage + 512);
            b[0][0] = x.x, b[0][1] = x.y, b[1][0] = x.z, b[1][1] = x.w;
            b[2][0] = y.x, b[2][1] = y.y, b[3][0] = y.z, b[3][1] = y.w;
        }
    }
};

// ---- Rows and what they see ----

/// Positions `begin .. end`.
struct Visible {
    u32 begin, end;
    __device__ inline bool has(u32 position, u32 count = 1) const {
        return position >= begin && position + count <= end;
    }
};

/// Position of a row that does not exist: it sees nothing.
constexpr u32 kNowhere = 0xFFFFFFFF;

__device__ inline Visible visible(u32 position, u32 window) {
    return {window != 0 && position >= window ? position + 1 - window : 0, position + 1};
}

/// Hides the scores of keys that a lane's two rows do not see. `scores` are those of one page's two column tiles.
__device__ inline void hide(float (&scores)[2][4], u32 first, const Visible (&rows)[2]) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const u32 position = first + i;
        float* s = &scores[i / 2][i % 2];
        if (!rows[0].has(position)) s[0] = minus_infinity();
        if (!rows[1].has(position)) s[2] = minus_infinity();
    }
}

// ---- Soft-max states ----

/// Factors of a state and of a later one in their merge; `max` becomes that of both.
__device__ inline void merge_factors(float& max, float later_max, float& mine, float& later) {
    const float both = fmaxf(max, later_max), base = both == minus_infinity() ? 0.0f : both;
    mine = exp2_fast(max - base);
    later = exp2_fast(later_max - base);
    max = both;
}

__device__ inline float merged(float x, float mine, float next, float later) { return fmaf(x, mine, next * later); }

/// The highest of a row's scores in a lane and its three neighbours.
__device__ inline float quad_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(0xFFFFFFFFu, x, 1));
    return fmaxf(x, __shfl_xor_sync(0xFFFFFFFFu, x, 2));
}

/// p of one page as operand A. `max` are the rows' highest scores, scaled, or zero if they see nothing.
template <bool Fp8>
__device__ inline void weights(const float (&scores)[2][4], const float (&max)[2], float scale, u32 (&p)[4]) {
#pragma unroll
    for (int j = 0; j < 2; j++) {
#pragma unroll
        for (int row = 0; row < 2; row++) {
            const float first = exp2_fast(fmaf(scores[j][2 * row], scale, -max[row]));
            const float second = exp2_fast(fmaf(scores[j][2 * row + 1], scale, -max[row]));
            p[2 * j + row] = Fp8 ? to_f16x2(first, second) : to_bf16x2(first, second);
        }
    }
}

/// Two ones: Σp is a column of p·v where v is one.
template <bool Fp8>
constexpr u32 kOnes = Fp8 ? 0x3C003C00u : 0x3F803F80u;

// ---- Output ----

/// Two attended values, rounded to bf16. Adding zero makes every zero positive: its sign would depend on the tiles
/// walked.
__device__ inline u32 attended(float first, float second, float factor) {
    return to_bf16x2(first * factor + 0.0f, second * factor + 0.0f);
}

/// The gates of a row's head from dim `dim` on.
__device__ inline const u32* gates_at(const AttentionArgs& a, u32 row, u32 head, u32 dim) {
    return reinterpret_cast<const u32*>(a.qkv + u64(row) * a.width + head * a.q_stride + a.head_dim + dim);
}

/// Stores the attended pair of dims `dim`, `dim + 1` of a row's head, packed; if there is a gate, gated and rounded
/// again.
__device__ inline void store_attended(const AttentionArgs& a, u32 row, u32 head, u32 dim, u32 pair, u32 gates) {
    float first = low_bf16(pair), second = high_bf16(pair);
    if (a.gated) {
        first = first * sigmoid(low_bf16(gates));
        second = second * sigmoid(high_bf16(gates));
    }
    store_packed(a.out, row, head * a.head_dim + dim, a.groups, first, second);
}
