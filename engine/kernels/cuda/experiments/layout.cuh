// What the three families share: test data as pure functions, the packed operand layouts, and the NVFP4 decoder.
//
// A weight is cut into blocks of 64 features × 64 columns, stored one after the other along K, then along N. Inside a
// block four consecutive lanes of a warp (t = 0..3) own 16 consecutive columns each, which is one NVFP4 scale block.
// Step i = 0..3 of a block is one k16 matrix instruction; its element at hardware position c = 2t + h + 8e (h, e in 0..1)
// is column 16t + 4i + 2e + h. Both formats and all tiles use this order, so it is a function of K alone.
#pragma once

#include <cstdint>
#include <cuda_runtime.h>

enum class Format { Bf16, Nvfp4 };

constexpr int kBlock = 64;
constexpr int kMaxSplits = 4;
constexpr int kGroupBytes = 1024;  // 8 rows of x × 64 columns, bf16

template <Format F>
constexpr int kBlockBytes = F == Format::Bf16 ? 8192 : 2304;  // 64 × 64 weights (and their scales)

/// One y = x·Wᵀ. `x` is packed (mma.sync, wgmma); `x_rows` is row-major (FMA).
struct Problem {
    const uint8_t* w;
    const uint8_t* x;
    const uint16_t* x_rows;
    float* y;          // rows × n
    float* partial;    // splits × rows × n, where a split is a thread block of its own
    uint32_t* arrived; // one counter an output tile, zero between launches
    int n, k, rows;
    int groups;        // groups of 8 rows in the packed x
    int splits;        // contiguous, equal parts of K whose sums are added in ascending order
    float scale;       // multiplies the finished sum
};

// ---- Test data: every value is a function of its indices, so the host needs no copy. ----

__host__ __device__ inline uint32_t hash(uint32_t a, uint32_t b, uint32_t seed) {
    uint32_t h = a * 0x9E3779B1u ^ b * 0x85EBCA77u ^ seed * 0xC2B2AE3Du;
    h ^= h >> 15; h *= 0x2C1B3C6Du; h ^= h >> 12; h *= 0x297A2D39u; h ^= h >> 15;
    return h;
}

/// A bf16 with a random sign and mantissa. Without `wild` its exponent is at most `top` and halves in frequency as it
/// falls; with it the exponent is uniform over 64 powers of two.
__host__ __device__ inline uint16_t random_bf16(uint32_t h, int top, bool wild) {
    int fall = 0;
    while (fall < 9 && (h >> (16 + fall) & 1)) fall++;
    const int exponent = wild ? 127 - 32 + int(h >> 24 & 63) : 127 + top - fall;
    return uint16_t((h & 0x8000) | uint32_t(exponent) << 7 | (h & 0x7F));
}

__host__ __device__ inline uint16_t x_value(int row, int k, bool wild) { return random_bf16(hash(row, k, 1), 2, wild); }
__host__ __device__ inline uint16_t w_value(int n, int k, bool wild) { return random_bf16(hash(n, k, 2), -4, wild); }
__host__ __device__ inline uint32_t nvfp4_code(int n, int k) { return hash(n, k, 3) >> 9 & 15; }
/// E4M3 block scales around one; a sixteenth of them is subnormal.
__host__ __device__ inline uint32_t nvfp4_scale(int n, int block) {
    uint32_t h = hash(n, block, 4);
    return (h & 0xF0) == 0 ? (h & 7) : (5 + (h >> 8 & 3)) << 3 | (h & 7);
}
constexpr float kNvfp4Global = 0.37f;
/// The decoder yields e2m1 × e4m3 × 2⁻⁷; the power of two goes back in with the global scale.
constexpr float kNvfp4Bias = 128.0f;

__host__ inline double bf16_to_double(uint16_t bits) {
    union { uint32_t u; float f; } v{uint32_t(bits) << 16};
    return v.f;
}
__host__ inline double e2m1_to_double(uint32_t code) {
    static const double magnitude[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
    return code & 8 ? -magnitude[code & 7] : magnitude[code & 7];
}
__host__ inline double e4m3_to_double(uint32_t byte) {
    int e = byte >> 3 & 15, m = byte & 7;
    double v = e ? double(8 + m) / 8 * double(1 << e) / 128 : double(m) / 512;
    return byte & 0x80 ? -v : v;
}

// ---- Packing ----

/// A non-zero E4M3 scale with its exponent widened to five bits, subnormals made normal: one multiply-add then turns it
/// into a pair of bf16. A zero scale becomes zero codes instead.
__host__ __device__ inline uint32_t widened_scale(uint32_t byte) {
    uint32_t e = byte >> 3 & 15, m = byte & 7;
    if (e) return (e + 3) << 3 | m;  // 2^(e − 7) has code e − 7 + 10
    if (m == 0) return 0;
    int up = m >= 4 ? 1 : m >= 2 ? 2 : 3;
    return uint32_t(4 - up) << 3 | ((m << up) & 7);
}

/// Column of the block at lane part t, step i, half e, element h.
__host__ __device__ inline int column(int t, int i, int e, int h) { return 16 * t + 4 * i + 2 * e + h; }

/// Eight nibbles become one word that the decoder takes apart with one shift and one mask for three pairs of four.
/// `code[p][h]`: register p of the A fragment, element h.
__host__ __device__ inline uint32_t nvfp4_word(const uint32_t (*code)[2]) {
    uint32_t word = 0;
    for (int h = 0; h < 2; h++) {
        uint32_t half = 0;
        for (int p = 0; p < 3; p++) half |= (code[p][h] >> 3) << (15 - 3 * p) | (code[p][h] & 7) << (6 - 3 * p);
        uint32_t last = code[3][h];
        half |= (last >> 1 & 3) << 13 | (last & 1) << 11 | (last >> 3) << 10;
        word |= half << (16 * h);
    }
    return word;
}

/// One warp a 16 × 64 part of a weight block. Register p of a fragment: row g + 8(p & 1), half p >> 1.
template <Format F>
__global__ void pack_weights(uint8_t* out, int n, int k, bool wild) {
    int warp = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    int blocks = k / kBlock;
    if (warp >= n / 16 * blocks) return;
    int part = warp % 4, kb = warp / 4 % blocks, nb = warp / 4 / blocks;
    int row = nb * 64 + part * 16 + g;
    uint8_t* block = out + (size_t(nb) * blocks + kb) * kBlockBytes<F>;
    for (int i = 0; i < 4; i++) {
        if constexpr (F == Format::Bf16) {
            uint32_t words[4];
            for (int p = 0; p < 4; p++) {
                int at = kb * kBlock + column(t, i, p >> 1, 0);
                words[p] = w_value(row + 8 * (p & 1), at, wild) | uint32_t(w_value(row + 8 * (p & 1), at + 1, wild)) << 16;
            }
            *reinterpret_cast<uint4*>(block + part * 2048 + i * 512 + lane * 16) = {words[0], words[1], words[2], words[3]};
        } else {
            uint32_t code[4][2];
            for (int p = 0; p < 4; p++)
                for (int h = 0; h < 2; h++)
                    code[p][h] = nvfp4_scale(row + 8 * (p & 1), kb * 4 + t) == 0
                                     ? 0 : nvfp4_code(row + 8 * (p & 1), kb * kBlock + column(t, i, p >> 1, h));
            *reinterpret_cast<uint32_t*>(block + part * 512 + lane * 16 + i * 4) = nvfp4_word(code);
        }
    }
    if constexpr (F == Format::Nvfp4) {
        for (int r = 0; r < 2; r++)
            block[2048 + part * 64 + lane * 2 + r] = uint8_t(widened_scale(nvfp4_scale(row + 8 * r, kb * 4 + t)));
    }
}

/// The test x, row-major.
__global__ void make_x(uint16_t* out, int rows, int k, bool wild) {
    size_t at = size_t(blockIdx.x) * blockDim.x + threadIdx.x;
    if (at < size_t(rows) * k) out[at] = x_value(int(at / k), int(at % k), wild);
}

/// x as [K/64][groups][step][half][8 rows][8 elements]: 128-byte core matrices, as `ldmatrix` and `wgmma` read them.
/// Rows from `rows` on are filled with `pad`.
__global__ void pack_x(uint16_t* out, const uint16_t* x, int rows, int k, int groups, uint16_t pad) {
    size_t at = size_t(blockIdx.x) * blockDim.x + threadIdx.x;  // one 16-byte row of a core matrix
    if (at >= size_t(k / kBlock) * groups * 64) return;
    int r = at % 8, e = at / 8 % 2, i = at / 16 % 4, group = at / 64 % groups, kb = at / 64 / groups;
    int row = group * 8 + r;
    for (int t = 0; t < 4; t++)
        for (int h = 0; h < 2; h++)
            out[at * 8 + 2 * t + h] = row < rows ? x[size_t(row) * k + kb * kBlock + column(t, i, e, h)] : pad;
}

// ---- Fragments ----

__device__ inline uint32_t mul_bf16x2(uint32_t a, uint32_t b) {
    uint32_t d;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(0x80008000u));
    return d;
}

/// A widened scale × 2¹¹⁹ in both halves: code 1 is 2⁻⁹, whose exponent field becomes −9 + 119 + 127 = 237.
__device__ inline uint32_t nvfp4_scale_pair(uint32_t widened) {
    return widened * 0x00100010u + (236u << 7 | 236u << 23);
}

/// A packed word and the scales of rows g and g + 8 → four bf16 pairs, e2m1 × e4m3 × 2⁻⁷, exactly.
__device__ inline void nvfp4_decode(uint32_t word, const uint32_t scale[2], uint32_t a[4]) {
    constexpr uint32_t mask = 0x81C081C0u;
    a[0] = mul_bf16x2(word & mask, scale[0]);
    a[1] = mul_bf16x2(word << 3 & mask, scale[1]);
    a[2] = mul_bf16x2(word << 6 & mask, scale[0]);
    a[3] = mul_bf16x2((word >> 6 & 0x01800180u) | (word >> 5 & 0x00400040u) | (word << 5 & 0x80008000u), scale[1]);
}

/// The A fragments of one lane for a 16 × 64 part of a weight block: `load` once, `step` for each k16.
template <Format F>
struct Fragment;

template <>
struct Fragment<Format::Bf16> {
    uint4 words[4];
    __device__ void load(const uint8_t* block, int part, int lane) {
#pragma unroll
        for (int i = 0; i < 4; i++) words[i] = *reinterpret_cast<const uint4*>(block + part * 2048 + i * 512 + lane * 16);
    }
    __device__ void step(int i, uint32_t a[4]) const {
        a[0] = words[i].x; a[1] = words[i].y; a[2] = words[i].z; a[3] = words[i].w;
    }
};

template <>
struct Fragment<Format::Nvfp4> {
    uint4 words;
    uint32_t scales;
    __device__ void load(const uint8_t* block, int part, int lane) {
        words = *reinterpret_cast<const uint4*>(block + part * 512 + lane * 16);
        scales = *reinterpret_cast<const uint16_t*>(block + 2048 + part * 64 + lane * 2);
    }
    __device__ void step(int i, uint32_t a[4]) const {
        const uint32_t scale[2] = {nvfp4_scale_pair(scales & 0xFF), nvfp4_scale_pair(scales >> 8)};
        nvfp4_decode(i == 0 ? words.x : i == 1 ? words.y : i == 2 ? words.z : words.w, scale, a);
    }
};

// ---- The end of a sum ----

/// Where a thread block's sums go: the partial sums of one split, or y after all splits in turn.
struct Epilogue {
    const Problem& p;
    int split;     // this thread block's split, or −1 if it walks all of them

    /// Called at the end of split `done`: a lane's `J` accumulator fragments of 16 features × 8 rows, whose first value
    /// belongs to `row` and `feature`. Leaves zeros.
    template <int J>
    __device__ void put(float (&acc)[4 * J], int row, int feature, int done) const {
        const bool partial = split >= 0 && p.splits > 1;
        const bool add = split < 0 && done > 0;
        const float scale = !partial && (split >= 0 || done == p.splits - 1) ? p.scale : 1.0f;
        asm volatile("" : "+r"(row));  // addresses are made here, not kept in registers through the main loop
        float* to = (partial ? p.partial + size_t(split) * p.rows * p.n : p.y) + size_t(row) * p.n + feature;
        constexpr int batch = J < 4 ? J : 4;  // fragments whose loads are under way together
#pragma unroll
        for (int j0 = 0; j0 < J; j0 += batch) {
            float before[batch][4];
#pragma unroll
            for (int j = 0; j < batch; j++)
#pragma unroll
                for (int c = 0; c < 4; c++) {
                    const bool read = add && row + (j0 + j) * 8 + c % 2 < p.rows;
                    before[j][c] = read ? to[size_t(j * 8 + c % 2) * p.n + c / 2 * 8] : 0.0f;
                }
#pragma unroll
            for (int j = 0; j < batch; j++)
#pragma unroll
                for (int c = 0; c < 4; c++) {
                    float& value = acc[(j0 + j) * 4 + c];
                    const float total = add ? __fadd_rn(before[j][c], value) : value;
                    if (row + (j0 + j) * 8 + c % 2 < p.rows)
                        to[size_t(j * 8 + c % 2) * p.n + c / 2 * 8] = __fmul_rn(total, scale);
                    value = 0;
                }
            to += size_t(batch) * 8 * p.n;
        }
    }

    /// One value of a thread block that has a split of its own.
    __device__ void put_one(int row, int feature, float value) const {
        if (row >= p.rows) return;
        const size_t at = size_t(row) * p.n + feature;
        if (p.splits == 1) p.y[at] = __fmul_rn(value, p.scale);
        else p.partial[size_t(split) * p.rows * p.n + at] = value;
    }

    /// After every `put`: the last of a tile's thread blocks adds the partial sums in ascending order.
    __device__ void finish(int tile, int row0, int tile_rows, int feature0, int tile_features, int thread, int threads) const {
        if (split < 0 || p.splits == 1) return;
        __shared__ bool last;
        __threadfence();
        __syncthreads();
        if (thread == 0) last = atomicAdd(p.arrived + tile, 1) == uint32_t(p.splits - 1);
        __syncthreads();
        if (!last) return;
        __threadfence();
        const size_t stride = size_t(p.rows) * p.n;
#pragma unroll 2
        for (int at = thread * 4; at < tile_rows * tile_features; at += threads * 4) {
            const int row = row0 + at / tile_features;
            if (row >= p.rows) break;
            const size_t to = size_t(row) * p.n + feature0 + at % tile_features;
            float4 part[kMaxSplits];  // all loads are under way before the first sum
#pragma unroll
            for (int s = 0; s < kMaxSplits; s++)
                if (s < p.splits) part[s] = __ldcg(reinterpret_cast<const float4*>(p.partial + s * stride + to));
            float4 total = part[0];
#pragma unroll
            for (int s = 1; s < kMaxSplits; s++)
                if (s < p.splits)
                    total = {__fadd_rn(total.x, part[s].x), __fadd_rn(total.y, part[s].y),
                             __fadd_rn(total.z, part[s].z), __fadd_rn(total.w, part[s].w)};
            *reinterpret_cast<float4*>(p.y + to) = {__fmul_rn(total.x, p.scale), __fmul_rn(total.y, p.scale),
                                                    __fmul_rn(total.z, p.scale), __fmul_rn(total.w, p.scale)};
        }
        if (thread == 0) p.arrived[tile] = 0;
    }
};
