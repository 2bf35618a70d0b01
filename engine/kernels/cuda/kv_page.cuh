// One layer's keys and values in pages of 16 tokens, bf16 or fp8 (E4M3), in the order of matrix fragments.
//
// A page holds for each KV head ceil(head_dim / 32) blocks of 32 dims; a block is 512 bytes (fp8) or 1,024 (bf16) and
// holds 16 bytes (twice 16, 512 apart) for each lane of a warp, which are that lane's operands B of
// mma.m16n8k16 (lane 4n + q: column n, elements 4q .. 4q+3 of k16, two a register):
// - keys (columns are keys, k16 runs over dims): words [step i][columns j], i, j < 2, of four elements: dims
//   8q + 4i .. 8q + 4i + 3 of the block, token 4 (n / 2) + 2j + n % 2 of the page. So lane q of a row of scores holds
//   tokens 4q .. 4q+3 of every page.
// - values (columns are dims, k16 runs over the page's tokens): words [columns i < 4]: tokens 4q .. 4q+3, dim
//   8 (n / 2) + 2i + n % 2 of the block. So lane q of a row of output holds dims 8q .. 8q+7 of every block.
// In a word of fp8 the elements 0, 1, 2, 3 are bytes 1, 3, 0, 2, which makes two bf16 pairs of them with few shifts.
//
// What attention relies on, and `store_row` (the only writer) and pages of zeros provide: values are finite always, so
// that a weight of zero hides them whatever they are; where a key or value of a token is not a number (or a value is
// infinite in bf16), element 0 of the token's key is NaN, so that every row that sees the token becomes NaN.
#pragma once

#include "common.cuh"

constexpr u32 kPageTokens = 16;
/// Dims of a block.
constexpr u32 kPageBlock = 32;
constexpr u32 kMaxHeadDim = 256;

template <bool Fp8>
constexpr u32 kPageBlockBytes = Fp8 ? 512 : 1024;

/// Byte offset of a head's blocks, keys or values.
template <bool Fp8>
__device__ inline u64 page_head(u32 page, u32 kv_heads, u32 head, u32 blocks) {
    return (u64(page) * kv_heads + head) * blocks * kPageBlockBytes<Fp8>;
}

// ---- E4M3 ----

/// To nearest, ties to even, saturating; NaN is 0x7F.
__device__ inline u32 to_e4m3(float value) {
    const u32 sign = __float_as_uint(value) >> 24 & 0x80;
    const float magnitude = fabsf(value);
    if (magnitude != magnitude) return 0x7F;
    if (magnitude < 0.015625f) return sign | u32(__float2int_rn(magnitude * 512.0f));
    const u32 bits = __float_as_uint(fminf(magnitude, 448.0f));
    return sign | (((bits + 0x7FFFF + (bits >> 20 & 1)) >> 20) - (120 << 3));
}

/// Four elements in a word, in the order stated above.
__device__ inline u32 to_e4m3x4(float e0, float e1, float e2, float e3) {
    return to_e4m3(e2) | to_e4m3(e0) << 8 | to_e4m3(e3) << 16 | to_e4m3(e1) << 24;
}

/// Exponent and mantissa of an E4M3 number, moved into a bf16, are the number times 2⁻¹²⁰ (subnormals too).
__device__ inline u32 scale_e4m3(u32 pair) {
    u32 scaled;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(scaled) : "r"(pair), "r"(0x7B807B80u), "r"(0x80008000u));
    return scaled;
}

/// The exact bf16 pairs (0, 1) and (2, 3) of a word. NaN is not kept: see `mark_nan`.
__device__ inline void from_e4m3x4(u32 word, u32& first, u32& second) {
    first = scale_e4m3((word & 0x80008000u) | (word >> 4 & 0x07F007F0u));
    second = scale_e4m3((word << 8 & 0x80008000u) | (word << 4 & 0x07F007F0u));
}

/// A NaN in element 0 of `word` (of a token's key) to the pair that it became.
__device__ inline void mark_nan(u32 word, u32& first) {
    if ((word & 0x7F00u) == 0x7F00u) first = 0x7FC07FC0u;
}

// ---- Writing ----

/// Stores a lane's eight dims 8·lane .. 8·lane + 7 of a token's key and value. All lanes of the warp call it; those
/// with `holds` have dims. `k` and `v` point to the head's blocks.
template <bool Fp8>
__device__ inline void store_row(u8* k, u8* v, u32 token, u32 lane, bool holds, const u32 (&keys)[4],
                                 const u32 (&values)[4], float k_scale, float v_scale) {
    float key[8], value[8];
    bool bad = false;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        key[2 * i] = low_bf16(keys[i]), key[2 * i + 1] = high_bf16(keys[i]);
        value[2 * i] = low_bf16(values[i]), value[2 * i + 1] = high_bf16(values[i]);
    }
#pragma unroll
    for (int i = 0; i < 8; i++) {
        if (Fp8) key[i] = key[i] / k_scale, value[i] = value[i] / v_scale;
        const float limit = Fp8 ? __uint_as_float(0x7F800000u) : __uint_as_float(0x7F7FFFFFu);
        const bool finite = fabsf(value[i]) <= limit;  // fp8 saturates infinity
        bad = bad || !finite || key[i] != key[i];
        if (!finite) value[i] = 0.0f;
    }
    bad = __any_sync(0xFFFFFFFFu, holds && bad);
    if (!holds) return;
    if (bad && lane == 0) key[0] = __uint_as_float(0x7FC00000u);
    const u32 block = lane / 4, q = lane % 4;
    const u32 key_lane = token / 4 * 8 + token % 2 * 4 + q, columns = token / 2 % 2;
    u8* to = k + block * kPageBlockBytes<Fp8>;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        if (Fp8) {
            *reinterpret_cast<u32*>(to + key_lane * 16 + i * 8 + columns * 4) =
                to_e4m3x4(key[4 * i], key[4 * i + 1], key[4 * i + 2], key[4 * i + 3]);
        } else {
            *reinterpret_cast<uint2*>(to + i * 512 + key_lane * 16 + columns * 8) =
                make_uint2(to_bf16x2(key[4 * i], key[4 * i + 1]), to_bf16x2(key[4 * i + 2], key[4 * i + 3]));
        }
    }
    to = v + block * kPageBlockBytes<Fp8>;
    const u32 e = token % 4;
#pragma unroll
    for (int i = 0; i < 4; i++) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const u32 value_lane = (2 * q + h) * 4 + token / 4;
            const float x = value[2 * i + h];
            if (Fp8) {
                to[value_lane * 16 + i * 4 + (e / 2 ^ 1) + e % 2 * 2] = u8(to_e4m3(x));
            } else {
                *reinterpret_cast<u16*>(to + i / 2 * 512 + value_lane * 16 + i % 2 * 8 + e * 2) = to_bf16(x);
            }
        }
    }
}
