// Rows in units of 16 columns: what the small operations have in common. A unit is what one lane holds of a block of
// 64 columns; lanes 4r + t of a warp hold unit t of a block for 8 rows r, and then a warp's stores into the packed
// layout are whole 128-byte core matrices.
#pragma once

#include "common.cuh"

constexpr u32 kUnit = 16;

/// Columns 2q and 2q + 1 of a unit are pair q.
struct alignas(16) Unit {
    u32 pairs[8];
};

__device__ inline float unit_value(const Unit& unit, u32 column) {
    return column % 2 == 0 ? low_bf16(unit.pairs[column / 2]) : high_bf16(unit.pairs[column / 2]);
}

/// Columns `column`.. of a row-major row that ends at column `end`; zeros beyond. `aligned`: the row begins at a
/// multiple of 16 bytes and `column` is a multiple of 8.
__device__ inline Unit load_unit(const u16* row, u32 column, u32 end, bool aligned) {
    Unit unit;
    if (aligned && column + kUnit <= end) {
        const uint4* from = reinterpret_cast<const uint4*>(row + column);
        *reinterpret_cast<uint4*>(&unit.pairs[0]) = from[0];
        *reinterpret_cast<uint4*>(&unit.pairs[4]) = from[1];
        return unit;
    }
#pragma unroll
    for (u32 q = 0; q < 8; q++) {
        const u32 at = column + 2 * q;
        unit.pairs[q] = (at < end ? row[at] : 0) | (at + 1 < end ? u32(row[at + 1]) : 0) << 16;
    }
    return unit;
}

/// 16 elements of a weight from `column` on, zeros from `end` on. Weights never change: stores need not be waited for.
__device__ inline void load_vector(float* values, const float* vector, u32 column, u32 end) {
    if (column + kUnit <= end) {
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            const float4 four = __ldg(reinterpret_cast<const float4*>(vector + column) + i);
            values[4 * i] = four.x, values[4 * i + 1] = four.y, values[4 * i + 2] = four.z, values[4 * i + 3] = four.w;
        }
        return;
    }
#pragma unroll
    for (u32 i = 0; i < kUnit; i++) values[i] = column + i < end ? __ldg(vector + column + i) : 0.0f;
}

/// Where pair 0 of a row's unit stands in the packed layout; pair q stands 32·q further.
__device__ inline u32* packed_unit(u16* x, u32 row, u32 unit, u32 groups) {
    return reinterpret_cast<u32*>(x + packed_at(row, unit * kUnit, groups));
}
constexpr u32 kPairStride = 32;
