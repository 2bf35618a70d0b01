// Linear layers, y = x·Wᵀ: what the kernels of every row count share. Packed weights, the NVFP4 decoder, the order of
// the sum and the epilogues.
//
// A weight is cut into units of 16 rows (the A operand of one m16 matrix instruction), a unit into blocks of 64 columns,
// stored one after the other along K, then along N. A lane of a block (g = lane / 4, t = lane % 4) owns columns
// 16t … 16t + 15 of rows g and g + 8, which is one NVFP4 scale block of each. Step i = 0..3 of a block is one k16
// instruction; its element at hardware position 2t + h + 8e is column 16t + 4i + 2e + h, the order that x is packed in.
//
// Two neighbouring blocks are a pair; K is padded with zero weights to whole pairs.
//
//     BF16   2 × [step 4][lane 32][16 bytes]                                          4096 bytes a pair
//     NVFP4  2 × [lane 32][step 4][4 bytes], [lane 32][block 2][scales of g and g + 8] 1152 bytes a pair
//
// The order of every sum (NUMERICS N1): K is cut into 8 contiguous splits of whole pairs, split s from pair pairs·s/8
// on. Inside a split one accumulator runs over the k16 steps in ascending order from 0; the sums of the splits are added
// in ascending order from −0, then multiplied by the part's scale. Eight splits are the eight warps that share a unit
// when there are few rows, and keep the sums precise.
#pragma once

#include "barrier.cuh"
#include "common.cuh"

enum Format : u32 { kBf16 = 0, kNvfp4 = 1 };

/// What happens to a finished sum.
enum Mode : u32 {
    kStore = 0,       // bf16, row-major
    kAccumulate = 1,  // added to a bf16 row-major output, then rounded
    kLogits = 2,      // f32, row-major
    kSiluMul = 3,     // units hold 8 gates and their 8 ups; silu(gate) * up goes out in the packed layout
};

constexpr u32 kUnit = 16;
constexpr u32 kQuad = 4;  // units that a warpgroup works on; parts are padded to whole quads
constexpr u32 kSplits = 8;
constexpr u32 kMaxParts = 6;

__host__ __device__ constexpr u32 pair_bytes(u32 format) { return format == kNvfp4 ? 1152 : 4096; }
/// NVFP4 is decoded to e2m1 · e4m3 · 2⁻⁷; the power of two goes back in with the part's scale.
constexpr float kNvfp4Bias = 128.0f;

/// One weight of the operation.
struct LinearPart {
    const u8* weight;
    const float* bias;     // or null; of the gates in mode kSiluMul
    const float* up_bias;  // of the ups
    float scale;           // of the finished sum; of the gates in mode kSiluMul
    float up_scale;
    u32 format;
    u32 first_unit;        // in the operation
    u32 n;                 // outputs
    u32 column;            // of the first output
};

struct Linear {
    const u8* x;           // packed
    void* out;
    const u32* rows;       // how many rows are real; the grid serves `capacity`
    const u8* next;        // weights that the next linear layer will read first, or null
    u64 next_stride;       // a thread block brings `next_bytes` of every so many into L2
    float* partial;        // see linear_wgmma.cu
    u32* arrived;
    u32 capacity;          // rows
    u32 groups;            // of x: rows of its buffer / 8
    u32 blocks;            // K / 64, rounded up
    u32 units;             // of all parts
    u32 mode;
    u32 ld;                // of a row-major output; groups of a packed one
    u32 vector;            // whether four neighbouring outputs may be stored at once
    u32 parts;
    u32 row_tiles;         // see linear_wgmma.cu
    u32 band;
    u32 cut_tiles;
    u32 stages;
    u32 stage_pairs;
    u32 next_bytes;
    LinearPart part[kMaxParts];
};

/// Byte offset of element (row, column) of a plain BF16 part: an embedding table that is also the output projection.
__device__ inline u64 packed_weight_at(u32 row, u32 column, u32 blocks) {
    const u32 f = row % kUnit, j = f / 4 * 2 + f / 2 % 2 * 8 + f % 2;  // the inverse of unit_feature
    const u32 c = column % kBlock, t = c / 16, i = c / 4 % 4, e = c / 2 % 2, h = c % 2;
    const u32 lane = j % 8 * 4 + t, pair = j / 8 + 2 * e;
    return (u64(row / kUnit) * ((blocks + 1) / 2 * 2) + column / kBlock) * (pair_bytes(kBf16) / 2) + i * 512 + lane * 16 + pair * 4 + h * 2;
}

__device__ inline u32 pairs_of(const Linear& p) { return (p.blocks + 1) / 2; }
/// The first pair of a split.
__device__ inline u32 split_begin(const Linear& p, u32 split) { return pairs_of(p) * split / kSplits; }

/// Asks for memory to come into L2; for one warp. Addresses and sizes are multiples of 16.
__device__ inline void prefetch(const u8* from, u32 bytes, u32 lane) {
#if __CUDA_ARCH__ >= 900
    if (lane == 0 && bytes > 0) asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
#else
    for (u32 at = lane * 128; at < bytes; at += kWarp * 128) asm volatile("prefetch.global.L2 [%0];" ::"l"(from + at));
#endif
}

/// Piece `piece` of `pieces` of this thread block's share of the next layer's first weights comes into L2: memory is busy
/// while this kernel ends and small ones run. For one warp.
__device__ inline void prefetch_next(const Linear& p, u32 piece, u32 pieces, u32 lane) {
    const u32 bytes = p.next_bytes / pieces;
    if (p.next != nullptr) prefetch(p.next + blockIdx.x * p.next_stride + piece * bytes, bytes, lane);
}

// ---- Fragments ----

__device__ inline u32 mul_bf16x2(u32 a, u32 b) {
    u32 d;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(0x80008000u));
    return d;
}

/// A widened scale (see linear_pack.cu) × 2¹¹⁹ in both halves: code 1 is 2⁻⁹, whose exponent field becomes 237.
__device__ inline u32 nvfp4_scale_pair(u32 widened) { return widened * 0x00100010u + (236u << 7 | 236u << 23); }

/// Four pairs of codes → four pairs of bf16, e2m1 · e4m3 · 2⁻⁷ exactly. The masked bits are e2m1 · 2⁻¹²⁶ as bf16: sign in
/// bit 15, exponent in 8 and 7, mantissa in 6. Pair 0 stands 6 bits lower, pair 1 two lower, pair 2 four higher (rotated),
/// pair 3 in place but for its mantissa, which is in bit 14.
__device__ inline void nvfp4_decode(u32 word, u32 low, u32 high, u32 a[4]) {
    constexpr u32 mask = 0x81C081C0u;
    a[0] = mul_bf16x2(word << 6 & mask, low);
    a[1] = mul_bf16x2(word << 2 & mask, high);
    a[2] = mul_bf16x2(__funnelshift_r(word, word, 4) & mask, low);
    a[3] = mul_bf16x2((word & 0x81808180u) | (word >> 8 & 0x00400040u), high);
}

/// The A fragments of one lane for block 0 or 1 of a pair: `load` once, `step` for each k16.
template <u32 F>
struct Fragment;

template <>
struct Fragment<kBf16> {
    uint4 words[4];
    __device__ void load(const u8* pair, u32 block, u32 lane) {
#pragma unroll
        for (int i = 0; i < 4; i++) words[i] = *reinterpret_cast<const uint4*>(pair + block * 2048 + i * 512 + lane * 16);
    }
    __device__ void step(int i, u32 a[4]) const { a[0] = words[i].x, a[1] = words[i].y, a[2] = words[i].z, a[3] = words[i].w; }
};

template <>
struct Fragment<kNvfp4> {
    uint4 words;
    u32 low, high;  // scales of rows g and g + 8
    __device__ void load(const u8* pair, u32 block, u32 lane) {
        set(*reinterpret_cast<const uint4*>(pair + block * 512 + lane * 16),
            *reinterpret_cast<const u32*>(pair + 1024 + lane * 4), block);
    }
    /// From a lane's codes and its scales of both blocks.
    __device__ void set(const uint4& codes, u32 scales, u32 block) {
        words = codes;
        low = nvfp4_scale_pair(scales >> (16 * block) & 0xFF);
        high = nvfp4_scale_pair(block == 0 ? scales >> 8 & 0xFF : scales >> 24);
    }
    __device__ void step(int i, u32 a[4]) const {
        nvfp4_decode(i == 0 ? words.x : i == 1 ? words.y : i == 2 ? words.z : words.w, low, high, a);
    }
};

__device__ inline void mma_bf16(float* d, const u32 a[4], u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ inline void load_matrices(u32 b[4], u32 from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3])
                 : "r"(from)
                 : "memory");
}

__device__ inline void copy_async(u32 to, const u8* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
__device__ inline void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int Pending>
__device__ inline void wait_copies() { asm volatile("cp.async.wait_group %0;" ::"n"(Pending) : "memory"); }

// ---- Epilogue ----
//
// An accumulator fragment is 16 rows of a unit × 8 rows of x; lane (g, t) holds unit rows g (c0, c1) and g + 8 (c2, c3) of
// x rows 2t and 2t + 1. Row j < 8 of a plain unit is feature 4(j/2) + j%2 and row j + 8 is two further: after one exchange
// between neighbours in g a lane holds four consecutive features of one row.

/// Row j of a plain unit → its feature.
__host__ __device__ inline u32 unit_feature(u32 j) { return 4 * (j % 8 / 2) + 2 * (j / 8) + j % 2; }

/// Unit of a fused gate and up, row j < 8 → the column of the pair: a unit is one step and half of 64 columns.
__host__ __device__ inline u32 silu_column(u32 unit, u32 j) {
    return unit / 8 * kBlock + 16 * (j / 2) + 2 * (unit % 8) + j % 2;
}

struct Epilogue {
    const Linear& p;
    const LinearPart& part;
    u32 unit;   // in the part
    u32 rows;   // real rows of the step
    u32 lane;
    u32 feature;    // the lane's first; its column in mode kSiluMul
    float bias[4];  // of the lane's features; of its gate and its up in mode kSiluMul

    __device__ Epilogue(const Linear& p, const LinearPart& part, u32 unit, u32 rows, u32 lane)
        : p(p), part(part), unit(unit), rows(rows), lane(lane) {
        const bool fused = p.mode == kSiluMul;
        feature = fused ? silu_column(unit, lane / 4) : unit * kUnit + lane / 8 * 4;
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            const float* from = fused && i == 1 ? part.up_bias : part.bias;
            const u32 at = fused ? feature : feature + i;
            bias[i] = from && at < part.n && !(fused && i > 1) ? from[at] : -0.0f;  // v + −0 is v
        }
    }

    /// Finishes the sums of J groups of 8 rows of x from `row0` on.
    template <u32 J>
    __device__ void put(const float (&c)[4 * J], u32 row0) const {
        constexpr u32 batch = J % 4 == 0 ? 4 : J;  // fragments whose loads are under way together
#pragma unroll
        for (u32 j0 = 0; j0 < J; j0 += batch) {
            uint2 before[batch];
#pragma unroll
            for (u32 j = 0; j < batch; j++) before[j] = load(row0 + (j0 + j) * kGroup);
#pragma unroll
            for (u32 j = 0; j < batch; j++) {
                const float* v = c + 4 * (j0 + j);
                put_group(v[0], v[1], v[2], v[3], row0 + (j0 + j) * kGroup, before[j]);
            }
        }
    }

    /// What an accumulated sum will be added to.
    __device__ uint2 load(u32 row0) const {
        const u32 row = row0 + lane % 4 * 2 + lane / 4 % 2;
        if (p.mode != kAccumulate || row >= rows || !whole()) return make_uint2(0, 0);
        return *reinterpret_cast<const uint2*>(static_cast<const u16*>(p.out) + u64(row) * p.ld + part.column + feature);
    }

    __device__ void put_group(float c0, float c1, float c2, float c3, u32 row0, uint2 before) const {
        if (p.mode == kSiluMul) put_silu(c0, c1, c2, c3, row0);
        else put_plain(c0, c1, c2, c3, row0, before);
    }

private:
    /// Whether the lane's four features exist and may be stored at once.
    __device__ bool whole() const { return p.vector && feature + 4 <= part.n; }

    __device__ void put_plain(float c0, float c1, float c2, float c3, u32 row0, uint2 before) const {
        const u32 odd = lane / 4 & 1;
        const float a = __shfl_xor_sync(0xFFFFFFFFu, odd ? c0 : c1, 4), b = __shfl_xor_sync(0xFFFFFFFFu, odd ? c2 : c3, 4);
        float v[4] = {odd ? a : c0, odd ? c1 : a, odd ? b : c2, odd ? c3 : b};
        const u32 row = row0 + lane % 4 * 2 + odd;
        if (row >= rows || feature >= part.n) return;
#pragma unroll
        for (u32 i = 0; i < 4; i++) v[i] = v[i] * part.scale + bias[i];
        const u64 at = u64(row) * p.ld + part.column + feature;
        if (p.mode == kLogits) {
            float* out = static_cast<float*>(p.out) + at;
            if (whole()) {
                *reinterpret_cast<float4*>(out) = make_float4(v[0], v[1], v[2], v[3]);
            } else {
#pragma unroll
                for (u32 i = 0; i < 4; i++)
                    if (feature + i < part.n) out[i] = v[i];
            }
            return;
        }
        u16* out = static_cast<u16*>(p.out) + at;
        if (whole()) {
            if (p.mode == kAccumulate) {
                v[0] = low_bf16(before.x) + v[0], v[1] = high_bf16(before.x) + v[1];
                v[2] = low_bf16(before.y) + v[2], v[3] = high_bf16(before.y) + v[3];
            }
            *reinterpret_cast<uint2*>(out) = make_uint2(to_bf16x2(v[0], v[1]), to_bf16x2(v[2], v[3]));
        } else {
#pragma unroll
            for (u32 i = 0; i < 4; i++)
                if (feature + i < part.n) out[i] = to_bf16(p.mode == kAccumulate ? from_bf16(out[i]) + v[i] : v[i]);
        }
    }

    /// Gates in c0, c1, ups in c2, c3. One transposed 8 × 8 matrix is one core matrix of the packed output.
    __device__ void put_silu(float c0, float c1, float c2, float c3, u32 row0) const {
        const float gate[2] = {c0 * part.scale + bias[0], c1 * part.scale + bias[0]};
        const float up[2] = {c2 * part.up_scale + bias[1], c3 * part.up_scale + bias[1]};
        u32 pair = to_bf16x2(silu(round_bf16(gate[0])) * round_bf16(up[0]), silu(round_bf16(gate[1])) * round_bf16(up[1]));
        asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %0;" : "+r"(pair));
        const u32 row = row0 + lane / 4;
        if (row >= rows || row / kGroup >= p.ld) return;
        static_cast<u32*>(p.out)[((u64(unit / 8) * p.ld + row0 / kGroup) * 8 + unit % 8) * 32 + lane] = pair;
    }
};
