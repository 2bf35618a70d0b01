// Linear layers of more than 8 rows where there is no wgmma: mma.sync on tiles of 128 features × 64 rows, sm_80 and later.
#include "linear.cuh"

constexpr u32 kTileUnits = 8, kTileRows = 64, kThreads = 256, kStages = 2;
constexpr u32 kXBytes = kTileRows * 128;
constexpr u32 kUnits = 2, kGroups = 4;  // of a warp: 32 features × 32 rows

struct LinearTile {
    const Linear& p;
    u8* shared;
    const LinearPart* part;  // of the quad that this warp works on
    u32 unit_bytes, stage, unit0, group0;

    __device__ const LinearPart& part_of(u32 unit) const {
        u32 i = 0;
        while (i + 1 < p.parts && unit >= p.part[i + 1].first_unit) i++;
        return p.part[i];
    }

    __device__ void ask(u32 pair, u32 slot) const {
        if (pair < pairs_of(p)) {
            const u32 to = shared_address(shared) + slot * stage;
            const u32 unit = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
            if (unit0 + unit < p.units) {
                const LinearPart& of = part_of(unit0 + unit);
                const u32 bytes = pair_bytes(of.format);
                const u8* from = of.weight + (u64(unit0 + unit - of.first_unit) * pairs_of(p) + pair) * bytes;
                for (u32 at = lane * 16; at < bytes; at += kWarp * 16) copy_async(to + 2 * kXBytes + unit * unit_bytes + at, from + at);
            }
            const u32 x_bytes = min(kTileRows / kGroup, p.groups - group0) * 1024;
            for (u32 d = 0; d < 2 && 2 * pair + d < p.blocks; d++) {
                const u8* from = p.x + (u64(2 * pair + d) * p.groups + group0) * 1024;
                for (u32 at = threadIdx.x * 16; at < x_bytes; at += kThreads * 16) copy_async(to + d * kXBytes + at, from + at);
            }
        }
        commit_copies();
    }

    template <u32 F>
    __device__ void block(u32 slot, u32 d, u32 first_unit, u32 first_group, u32 lane, float (&acc)[kUnits][kGroups][4]) const {
        const u8* at = shared + slot * stage;
        const u32 x = shared_address(at) + d * kXBytes + first_group * 1024 + lane * 16;
        Fragment<F> w[kUnits];
#pragma unroll
        for (u32 m = 0; m < kUnits; m++) w[m].load(at + 2 * kXBytes + (first_unit + m) * unit_bytes, d, lane);
#pragma unroll
        for (u32 pair = 0; pair < 2; pair++) {
            u32 b[kGroups][4];
#pragma unroll
            for (u32 n = 0; n < kGroups; n++) load_matrices(b[n], x + n * 1024 + pair * 512);
#pragma unroll
            for (u32 i = 0; i < 2; i++)
#pragma unroll
                for (u32 m = 0; m < kUnits; m++) {
                    u32 a[4];
                    w[m].step(2 * pair + i, a);
#pragma unroll
                    for (u32 n = 0; n < kGroups; n++) mma_bf16(acc[m][n], a, b[n][2 * i], b[n][2 * i + 1]);
                }
        }
    }
};

extern "C" __global__ void __launch_bounds__(kThreads) linear_tile(const __grid_constant__ Linear p) {
    extern __shared__ __align__(128) u8 shared[];
    allow_next();
    wait_for_previous();
    const u32 rows = min(*reinterpret_cast<const volatile u32*>(p.rows), p.capacity);
    u32 format = kNvfp4;
    for (u32 i = 0; i < p.parts; i++) format = p.part[i].format == kBf16 ? kBf16 : format;
    const u32 unit_bytes = pair_bytes(format);
    const u32 unit0 = blockIdx.y * kTileUnits, row0 = blockIdx.x * kTileRows;
    if (row0 >= rows) return;
    const LinearTile tile{p, shared, nullptr, unit_bytes, 2 * kXBytes + kTileUnits * unit_bytes, unit0, row0 / kGroup};
    const u32 warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
    const u32 my_unit = warp % 4 * kUnits, my_group = warp / 4 * kGroups;
    const bool mine = unit0 + my_unit < p.units;
    const LinearPart& part = tile.part_of(unit0 + my_unit);

    float total[kUnits][kGroups * 4];
#pragma unroll
    for (u32 m = 0; m < kUnits; m++)
#pragma unroll
        for (u32 c = 0; c < kGroups * 4; c++) total[m][c] = -0.0f;
    for (u32 s = 0; s + 1 < kStages; s++) tile.ask(s, s);
    u32 slot = 0;
    for (u32 split = 0; split < kSplits; split++) {
        float acc[kUnits][kGroups][4] = {};
        for (u32 pair = split_begin(p, split); pair < split_begin(p, split + 1); pair++) {
            wait_copies<kStages - 2>();
            __syncthreads();
            tile.ask(pair + kStages - 1, slot == 0 ? kStages - 1 : slot - 1);
#pragma unroll 1
            for (u32 d = 0; d < 2 && 2 * pair + d < p.blocks; d++) {
                if (mine && part.format == kNvfp4) tile.block<kNvfp4>(slot, d, my_unit, my_group, lane, acc);
                if (mine && part.format == kBf16) tile.block<kBf16>(slot, d, my_unit, my_group, lane, acc);
            }
            if (++slot == kStages) slot = 0;
        }
#pragma unroll
        for (u32 m = 0; m < kUnits; m++)
#pragma unroll
            for (u32 c = 0; c < kGroups * 4; c++) total[m][c] = total[m][c] + acc[m][c / 4][c % 4];
    }
    wait_copies<0>();
    if (!mine) return;
#pragma unroll
    for (u32 m = 0; m < kUnits; m++)
        Epilogue(p, part, unit0 + my_unit + m - part.first_unit, rows, lane).put<kGroups>(total[m], row0 + my_group * kGroup);
}
