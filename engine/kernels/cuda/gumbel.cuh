// Counter-based Gumbel noise with the bits of the host's sampler: Philox4x32-10 (Salmon et al., SC 2011) and a
// logarithm of f64 additions, multiplications and divisions in one order.
#pragma once

#include "common.cuh"

struct Words {
    u32 word[4];
};

/// The four random words of tokens 4·block .. 4·block + 3.
__device__ inline Words philox(u32 block, u64 position, u64 seed) {
    u32 w0 = block, w1 = 0, w2 = u32(position), w3 = u32(position >> 32);
    u32 key0 = u32(seed), key1 = u32(seed >> 32);
#pragma unroll
    for (int round = 0; round < 10; round++) {
        const u64 first = u64(0xD2511F53u) * w0, second = u64(0xCD9E8D57u) * w2;
        const u32 next0 = u32(second >> 32) ^ w1 ^ key0, next2 = u32(first >> 32) ^ w3 ^ key1;
        w1 = u32(second);
        w3 = u32(first);
        w0 = next0;
        w2 = next2;
        key0 += 0x9E3779B9u;
        key1 += 0xBB67AE85u;
    }
    return {w0, w1, w2, w3};
}

/// Natural logarithm of a positive normal number: x = m·2^e with m in [√½, √2), ln m = 2 artanh((m − 1) / (m + 1)).
__device__ inline double exact_ln(double x) {
    const u64 bits = u64(__double_as_longlong(x));
    int exponent = int(bits >> 52) - 1023;
    double mantissa = __longlong_as_double((long long)((bits & 0xFFFFFFFFFFFFFull) | 0x3FF0000000000000ull));
    if (mantissa > 1.41421356237309504880) {
        mantissa = __dmul_rn(mantissa, 0.5);
        exponent += 1;
    }
    const double s = __ddiv_rn(__dadd_rn(mantissa, -1.0), __dadd_rn(mantissa, 1.0));
    const double square = __dmul_rn(s, s);
    double series = 0.0;
#pragma unroll
    for (int k = 11; k >= 0; k--) series = __dadd_rn(__dmul_rn(series, square), 1.0 / double(2 * k + 1));
    const double tail = __dmul_rn(__dmul_rn(2.0, s), series);
    return __dadd_rn(__dmul_rn(double(exponent), 0.693147180559945309417), tail);
}

/// −ln(−ln u), u in the middle of the word's 2⁻³²-wide interval of (0, 1).
__device__ inline float exact_gumbel(u32 word) {
    const double uniform = __dmul_rn(__dadd_rn(double(word), 0.5), 1.0 / 4294967296.0);
    return __double2float_rn(-exact_ln(-exact_ln(uniform)));
}

/// No noise is further from its estimate.
constexpr float kGumbelMargin = 1e-3f;
/// No noise is smaller: the value for word 0, rounded down.
constexpr float kMinGumbel = -3.14f;

/// The noise to within `kGumbelMargin`, in f32: near u = 1, −ln u is a series in 1 − u.
__device__ inline float estimated_gumbel(u32 word) {
    const float rest = (float(~word) + 0.5f) * 0x1p-32f;
    const float series = rest * fmaf(rest, fmaf(rest, 1.0f / 3.0f, 0.5f), 1.0f);
    const float minus_ln = rest < 0x1p-6f ? series : -__logf((float(word) + 0.5f) * 0x1p-32f);
    return -__logf(minus_ln);
}
