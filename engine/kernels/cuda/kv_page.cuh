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
    return (u64(page) * kv_heads + head) * (blocks * kPageBlockBytes<Fp8>);
}

// ---- E4M3: by instructions where there are any (sm_89 and later), else with the same results by integers ----

/// The nearest E4M3, ties to even, magnitudes above 448 as 448, NaN as 0x7F; `low` in the low byte.
__device__ inline u32 to_e4m3x2(float low, float high) {
#if __CUDA_ARCH__ >= 890
    u16 pair;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
    return pair;
#else
    u32 codes = 0;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const float value = i ? high : low, magnitude = fabsf(value);
        const u32 sign = __float_as_uint(value) >> 24 & 0x80;
        // Below 2⁻⁶ numbers are multiples of 2⁻⁹; eight of them are the code of 2⁻⁶ itself.
        const u32 small = u32(__float2int_rn(magnitude * 512.0f));
        const u32 bits = __float_as_uint(fminf(magnitude, 448.0f));
        const u32 large = ((bits + 0x7FFFF + (bits >> 20 & 1)) >> 20) - (120 << 3);
        const u32 code = sign | (magnitude < 0.015625f ? small : large);
        codes |= (magnitude == magnitude ? code : 0x7F) << 8 * i;
    }
    return codes;
#endif
}

/// The f16 pairs (0, 1) and (2, 3) of four E4M3, byte by byte; exact.
__device__ inline void from_e4m3x4(u32 word, u32& first, u32& second) {
#if __CUDA_ARCH__ >= 890
    asm("{ .reg .b16 low, high; mov.b32 {low, high}, %2;"
        "  cvt.rn.f16x2.e4m3x2 %0, low; cvt.rn.f16x2.e4m3x2 %1, high; }"
        : "=r"(first), "=r"(second)
        : "r"(word));
#else
    const u32 spread[2] = {__byte_perm(word, 0, 0x1404), __byte_perm(word, 0, 0x3424)};
    u32 pairs[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        // Exponent and mantissa moved into an f16 are the number times 2⁻⁸, subnormals too.
        const u32 scaled = (spread[i] & 0x80008000u) | (spread[i] >> 1 & 0x3F803F80u);
        asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(pairs[i]) : "r"(scaled), "r"(0x5C005C00u));
        if ((spread[i] & 0x7F00u) == 0x7F00u) pairs[i] |= 0x7FFFu;
        if ((spread[i] & 0x7F000000u) == 0x7F000000u) pairs[i] |= 0x7FFF0000u;
    }
    first = pairs[0], second = pairs[1];
#endif
}

// ---- Writing ----

/// Stores a lane's eight dims 8·lane .. 8·lane + 7 of a token's key and value. All lanes of the warp call it; those
/// with `holds` have dims. `k` and `v` point to the head's blocks; the factors are one over the scales.
template <bool Fp8>
__device__ inline void store_row(u8* k, u8* v, u32 token, u32 lane, bool holds, const u32 (&keys)[4],
                                 const u32 (&values)[4], float k_factor, float v_factor) {
    float key[8], value[8];
    bool bad = false;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        key[2 * i] = low_bf16(keys[i]), key[2 * i + 1] = high_bf16(keys[i]);
        value[2 * i] = low_bf16(values[i]), value[2 * i + 1] = high_bf16(values[i]);
    }
#pragma unroll
    for (int i = 0; i < 8; i++) {
        if (Fp8) key[i] = key[i] * k_factor, value[i] = value[i] * v_factor;
        // fp8 saturates infinity.
        const bool finite = fabsf(value[i]) <= __uint_as_float(Fp8 ? 0x7F800000u : 0x7F7FFFFFu);
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
        const float* x = key + 4 * i;
        if (Fp8) {
            const u32 word = to_e4m3x2(x[0], x[1]) | to_e4m3x2(x[2], x[3]) << 16;
            *reinterpret_cast<u32*>(to + key_lane * 16 + i * 8 + columns * 4) = word;
        } else {
            const uint2 words = make_uint2(to_bf16x2(x[0], x[1]), to_bf16x2(x[2], x[3]));
            *reinterpret_cast<uint2*>(to + i * 512 + key_lane * 16 + columns * 8) = words;
        }
    }
    to = v + block * kPageBlockBytes<Fp8> + (8 * q + token / 4) * 16;
    const u32 e = token % 4;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        if (Fp8) {
            const u32 pair = to_e4m3x2(value[2 * i], value[2 * i + 1]);
            to[i * 4 + e] = u8(pair);
            to[64 + i * 4 + e] = u8(pair >> 8);
        } else {
            u16* at = reinterpret_cast<u16*>(to + i / 2 * 512 + i % 2 * 8 + e * 2);
            at[0] = to_bf16(value[2 * i]);
            at[32] = to_bf16(value[2 * i + 1]);
        }
    }
}
