// Linear layers of at most 8 rows: reading the weights is the whole cost.
//
// A thread block takes a run of units; its 8 warps are the 8 splits of K. Each warp streams its part of the weights
// through a private ring in shared memory, filled before the previous kernel ends, and keeps its part of x beside it. The
// eight sums of a unit meet in shared memory, where one warp after the other adds and finishes them.
#include "linear.cuh"

constexpr u32 kWarps = kSplits;
/// Bytes of a stage: two NVFP4 blocks or one BF16 block.
__host__ __device__ constexpr u32 stage_bytes(u32 format) { return format == kNvfp4 ? 2 * block_bytes(kNvfp4) : block_bytes(kBf16); }
constexpr u32 kReduceBytes = 2 * kWarps * 512;

/// Shared memory: sums, x, rings. The host computes the same (linear.rs).
template <u32 RingBytes>
struct Few {
    const Linear& p;
    u8* shared;
    u32 warp, lane;
    u32 x_at;     // shared address of this warp's first block of x
    u32 ring;     // shared address of this warp's ring
    u8* ring_bytes;
    u32 first, count;  // blocks of this warp's split

    template <u32 F>
    struct Stream {
        static constexpr u32 kBlocks = F == kNvfp4 ? 2 : 1;
        static constexpr u32 kStages = RingBytes / stage_bytes(F);
        const u8* next;     // weight bytes of the next stage to ask for
        u64 skip;           // from the end of a unit's split to the next unit's
        u32 block, stages, slot;

        __device__ void start(const Few& f, const LinearPart& part, u32 unit, u32 units) {
            next = part.weight + (u64(unit) * f.p.blocks + f.first) * block_bytes(F);
            skip = u64(f.p.blocks - f.count) * block_bytes(F);
            block = 0;
            stages = units * ((f.count + kBlocks - 1) / kBlocks);
            slot = 0;
#pragma unroll 1
            for (u32 s = 0; s + 1 < kStages; s++) ask(f);
        }
        __device__ void ask(const Few& f) {
            if (stages > 0) {
                stages--;
                const u32 blocks = min(kBlocks, f.count - block), bytes = blocks * block_bytes(F);
                const u32 to = f.ring + slot * stage_bytes(F);
#pragma unroll
                for (u32 at = 0; at < stage_bytes(F); at += 512)
                    if (at + f.lane * 16 < bytes) copy_async(to + at + f.lane * 16, next + at + f.lane * 16);
                next += bytes;
                block += blocks;
                if (block == f.count) block = 0, next += skip;
            }
            if (++slot == kStages) slot = 0;
            commit_copies();
        }
    };

    /// Sums of one unit over this warp's split.
    template <u32 F>
    __device__ void unit(Stream<F>& stream, u32& slot, u32 x_rows, float (&acc)[4]) const {
        using S = Stream<F>;
        const u32 matrix = 16 * x_rows, x_lane = x_at + lane / 8 * matrix + min(lane % 8, x_rows - 1) * 16;
        u32 x = x_lane;
        for (u32 block = 0; block < count; block += S::kBlocks) {
            wait_copies<S::kStages - 2>();
            __syncwarp();
            stream.ask(*this);
            const u8* weights = ring_bytes + slot * stage_bytes(F);
            if (++slot == S::kStages) slot = 0;
#pragma unroll
            for (u32 d = 0; d < S::kBlocks; d++) {
                if (d > 0 && block + d >= count) break;
                Fragment<F> fragment;
                fragment.load(weights + d * block_bytes(F), lane);
                u32 b[2][4];
                load_matrices(b[0], x);
                load_matrices(b[1], x + 4 * matrix);
                x += 8 * matrix;
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    u32 a[4];
                    fragment.step(i, a);
                    mma_bf16(acc, a, b[i / 2][i % 2 * 2], b[i / 2][i % 2 * 2 + 1]);
                }
            }
        }
    }

    template <u32 F>
    __device__ void run(Stream<F>& stream, const LinearPart& part, u32 unit0, u32 units, u32 x_rows, u32 rows, u32& turn) const {
        u32 slot = 0;
        float4* sums = reinterpret_cast<float4*>(shared);
        for (u32 u = 0; u < units; u++, turn++) {
            float acc[4] = {};
            unit<F>(stream, slot, x_rows, acc);
            float4* mine = sums + turn % 2 * kWarps * 32;
            mine[warp * 32 + lane] = make_float4(acc[0], acc[1], acc[2], acc[3]);
            __syncthreads();
            if (turn % kWarps == warp) {
                float4 total = mine[lane];
#pragma unroll
                for (u32 s = 1; s < kSplits; s++) {
                    const float4 v = mine[s * 32 + lane];
                    total.x = total.x + v.x, total.y = total.y + v.y, total.z = total.z + v.z, total.w = total.w + v.w;
                }
                Epilogue{p, part, unit0 + u, rows, lane}.put(total.x, total.y, total.z, total.w, 0);
            }
        }
    }
};

/// Units of all parts before thread block `c` of `of`: a unit belongs to the block in whose share of the bytes its middle
/// falls. `before`: bytes of the parts before `part`, per block of K.
__device__ inline u32 first_unit(const Linear& p, const LinearPart& part, u64 before, u32 units, u64 total, u32 c, u32 of) {
    const u64 bytes = block_bytes(part.format);
    // u·bytes + bytes/2 + before < c·total/of  ⟺  u < (2c·total − 2of·before − of·bytes) / (2of·bytes), rounded up
    const long long over = (long long)(2 * c * total) - (long long)(of * (2 * before + bytes));
    if (over <= 0) return 0;
    const u64 step = 2 * of * bytes, first = (u64(over) + step - 1) / step;
    return first < units ? u32(first) : units;
}

template <u32 RingBytes>
__device__ void linear_few(const Linear& p) {
    extern __shared__ __align__(128) u8 shared[];
    allow_next();
    const u32 warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
    const u32 x_rows = p.capacity, x_block = 128 * x_rows;
    const u32 first = split_begin(p.blocks, warp), count = split_begin(p.blocks, warp + 1) - first;
    const u32 x_bytes = p.blocks * x_block, ring_at = kReduceBytes + x_bytes + warp * RingBytes;
    const u32 base = shared_address(shared);
    const Few<RingBytes> few{p, shared, warp, lane, base + kReduceBytes + first * x_block, base + ring_at, shared + ring_at, first, count};

    u64 total = 0;
    for (u32 i = 0; i < p.parts; i++) {
        const u32 units = (i + 1 < p.parts ? p.part[i + 1].first_unit : p.units) - p.part[i].first_unit;
        total += u64(units) * block_bytes(p.part[i].format);
    }
    bool ready = false;
    u32 rows = 0, turn = 0;
    // The first weights are on their way before the previous kernel ends; x is read after it.
    auto prepare = [&] {
        if (ready) return;
        ready = true;
        wait_for_previous();
        rows = min(*reinterpret_cast<const volatile u32*>(p.rows), x_rows);
        const u8* from = p.x + u64(first) * p.groups * 1024;
        u8* to = shared + kReduceBytes + first * x_block;
        // 16 bytes a lane: row fastest.
        for (u32 at = lane; at < count * 8 * x_rows; at += kWarp * 4) {
            uint4 v[4];
#pragma unroll
            for (u32 j = 0; j < 4; j++) {
                const u32 i = at + j * kWarp, row = i % x_rows, core = i / x_rows;
                if (i < count * 8 * x_rows)
                    v[j] = __ldcg(reinterpret_cast<const uint4*>(from + u64(core / 8) * p.groups * 1024 + core % 8 * 128 + row * 16));
            }
#pragma unroll
            for (u32 j = 0; j < 4; j++)
                if (at + j * kWarp < count * 8 * x_rows) *reinterpret_cast<uint4*>(to + (at + j * kWarp) * 16) = v[j];
        }
        __syncwarp();
    };
    u64 before = 0;
    for (u32 i = 0; i < p.parts; i++) {
        const LinearPart& part = p.part[i];
        const u32 units = (i + 1 < p.parts ? p.part[i + 1].first_unit : p.units) - part.first_unit;
        const u32 from = first_unit(p, part, before, units, total, blockIdx.x, gridDim.x);
        const u32 to = blockIdx.x + 1 == gridDim.x ? units : first_unit(p, part, before, units, total, blockIdx.x + 1, gridDim.x);
        before += u64(units) * block_bytes(part.format);
        if (from >= to) continue;
        if (part.format == kNvfp4) {
            typename Few<RingBytes>::template Stream<kNvfp4> stream;
            stream.start(few, part, from, to - from);
            prepare();
            few.run(stream, part, from, to - from, x_rows, rows, turn);
        } else {
            typename Few<RingBytes>::template Stream<kBf16> stream;
            stream.start(few, part, from, to - from);
            prepare();
            few.run(stream, part, from, to - from, x_rows, rows, turn);
        }
    }
    if (!ready) wait_for_previous();
    wait_copies<0>();
}

extern "C" __global__ void __launch_bounds__(32 * kWarps, 2) linear_few_large(const __grid_constant__ Linear p) { linear_few<9216>(p); }
extern "C" __global__ void __launch_bounds__(32 * kWarps, 2) linear_few_small(const __grid_constant__ Linear p) { linear_few<6144>(p); }
