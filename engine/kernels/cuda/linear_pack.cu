// Weights of linear layers on their way into the packed layout of linear.cuh: from the checkpoint's rows, or random.
//
// A warp writes one block of one unit by setting bits: the memory is zero before, gates and ups of a fused unit come in
// two calls, and rows and columns that do not exist stay zero.
#include "linear.cuh"

struct LinearPack {
    u8* weight;
    const u8* values;   // rows first_row.. of the checkpoint: bf16 [n][k], or pairs of e2m1 codes [n][k/2], low nibble first
    const u8* scales;   // E4M3 [n][k/16]
    u32 format;
    u32 role;           // 0: plain, 1: gates, 2: ups
    u32 n, k;
    u32 blocks;
    u32 first_row, rows;
    u32 seed;           // of random weights
};

/// A non-zero E4M3 magnitude with its exponent widened to five bits, subnormals made normal: one multiply-add then turns
/// it into a pair of bf16.
__device__ inline u32 widened_scale(u32 byte) {
    const u32 e = byte >> 3 & 15, m = byte & 7;
    if (e) return (e + 3) << 3 | m;  // 2^(e − 7) has code e − 7 + 10
    if (m == 0) return 0;
    const u32 up = m >= 4 ? 1 : m >= 2 ? 2 : 3;
    return (4 - up) << 3 | (m << up & 7);
}

/// The bits of a code at element h of pair p; see nvfp4_decode.
__device__ inline u32 nvfp4_bits(u32 code, u32 p, u32 h) {
    const u32 sign = code >> 3, rest = code & 7, at = 16 * h;
    if (p == 0) return (rest | sign << 9) << at;
    if (p == 1) return (rest << 4 | sign << 13) << at;
    if (p == 2) return rest << (10 + at) | sign << ((19 + at) % 32);
    return ((rest >> 1) << 7 | (rest & 1) << 14 | sign << 15) << at;
}

__device__ inline u32 hash(u32 a, u32 b, u32 seed) {
    u32 h = a * 0x9E3779B1u ^ b * 0x85EBCA77u ^ seed * 0xC2B2AE3Du;
    h ^= h >> 15, h *= 0x2C1B3C6Du, h ^= h >> 12, h *= 0x297A2D39u, h ^= h >> 15;
    return h;
}

struct Checkpoint {
    const LinearPack& p;
    __device__ u32 bf16(u32 feature, u32 column) const {
        return reinterpret_cast<const u16*>(p.values)[u64(feature - p.first_row) * p.k + column];
    }
    /// 8 codes of columns `column`.. (a multiple of 8, inside K).
    __device__ u32 codes(u32 feature, u32 column) const {
        const u8* from = p.values + (u64(feature - p.first_row) * p.k + column) / 2;
        return from[0] | from[1] << 8 | from[2] << 16 | u32(from[3]) << 24;
    }
    __device__ u32 scale(u32 feature, u32 column) const { return p.scales[(u64(feature - p.first_row) * p.k + column) / 16]; }
};

/// The statistics of the CPU's synthetic weights: random codes with scales of 1 to 1.875, bf16 uniform in ±k^(−1/2).
struct Random {
    const LinearPack& p;
    __device__ u32 bf16(u32 feature, u32 column) const {
        const float unit = float(hash(feature, column, p.seed) >> 8) * 0x1p-23f - 1.0f;
        return to_bf16(unit * rsqrtf(float(p.k)));
    }
    __device__ u32 codes(u32 feature, u32 column) const { return hash(feature, column / 8, p.seed); }
    __device__ u32 scale(u32 feature, u32 column) const { return 0x38 | (hash(feature, column / 16, ~p.seed) & 7); }
};

template <class Source>
__device__ void pack(const LinearPack& p) {
    wait_for_previous();
    const u32 lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4;
    const u32 first_unit = p.role == 0 ? p.first_row / kUnit : p.first_row / kBlock * 8;
    const u32 block = (blockIdx.x * blockDim.x + threadIdx.x) / kWarp, unit = first_unit + blockIdx.y;
    const Source source{p};
    const u32 column = block * kBlock + 16 * t;
    if (block >= p.blocks) return;
    u8* pair = p.weight + (u64(unit) * ((p.blocks + 1) / 2) + block / 2) * pair_bytes(p.format);
    u8* to = pair + block % 2 * (p.format == kNvfp4 ? 512 : 2048);
    for (u32 r = 0; r < 2; r++) {
        if (p.role != 0 && p.role != r + 1) continue;
        const u32 feature = p.role == 0 ? unit * kUnit + unit_feature(g + 8 * r) : silu_column(unit, g);
        if (feature < p.first_row || feature >= p.first_row + p.rows || feature >= p.n) continue;
        if (p.format == kNvfp4) {
            if (column >= p.k) continue;
            const u32 scale = source.scale(feature, column);
            u32 codes[2] = {source.codes(feature, column), source.codes(feature, column + 8)};
            if (scale & 0x80) codes[0] ^= 0x88888888u, codes[1] ^= 0x88888888u;
            if ((scale & 0x7F) == 0) codes[0] = codes[1] = 0;
            for (u32 i = 0; i < 4; i++) {
                u32 word = 0;
                for (u32 e = 0; e < 2; e++)
                    for (u32 h = 0; h < 2; h++) {
                        const u32 c = 4 * i + 2 * e + h;
                        word |= nvfp4_bits(codes[c / 8] >> (c % 8 * 4) & 15, r + 2 * e, h);
                    }
                *reinterpret_cast<u32*>(to + lane * 16 + i * 4) |= word;
            }
            pair[1024 + lane * 4 + block % 2 * 2 + r] = u8(widened_scale(scale & 0x7F));
        } else {
            for (u32 c = 0; c < 16; c++) {
                if (column + c >= p.k) break;
                const u32 i = c / 4, e = c / 2 % 2, h = c % 2;
                reinterpret_cast<u16*>(to + i * 512 + lane * 16 + (r + 2 * e) * 4)[h] = u16(source.bf16(feature, column + c));
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(128) linear_pack(const __grid_constant__ LinearPack p) { pack<Checkpoint>(p); }
extern "C" __global__ void __launch_bounds__(128) linear_random(const __grid_constant__ LinearPack p) { pack<Random>(p); }
