// Linear layers of at most 8 rows: reading the weights is the whole cost.
//
// One thread block a multiprocessor, 32 warps: many warps with little on its way each hide latency best. Teams of 8
// warps, one a split of K, take unit after unit. Weights go straight from memory to registers, the first of them before
// the previous kernel ends; x stands in shared memory. A unit's eight sums meet in shared memory, where the team's warps
// take turns at adding and finishing them.
//
// In clusters of two a team has four warps in each thread block: a block keeps half of x, and sums cross over to the
// block whose turn it is. That is for an x that does not fit otherwise.
#include "barrier.cuh"
#include "linear.cuh"

constexpr u32 kWarps = 32;

__device__ inline uint4 load_weights(const u8* from) {
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(from));
    return v;
}
__device__ inline u32 load_scales(const u8* from) {
    u32 v;
    asm volatile("ld.global.nc.L1::no_allocate.u32 %0, [%1];" : "=r"(v) : "l"(from));
    return v;
}
/// x does not change once it is there: unlike `load_matrices` this may move.
__device__ inline void load_x_matrices(u32 b[4], u32 from) {
    asm("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3]) : "r"(from));
}
__device__ inline void named_barrier(u32 id, u32 threads) { asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory"); }

/// Weights on their way: an NVFP4 pair or half a BF16 block. A warp asks for `kDepth` of them ahead.
template <u32 F>
struct Stage;

template <>
struct Stage<kNvfp4> {
    static constexpr u32 kBytes = pair_bytes(kNvfp4), kDepth = 2, kHalves = 4;  // half blocks of x
    uint4 first, second;
    u32 scales;
    __device__ void load(const u8* from, u32 lane) {
        first = load_weights(from);
        second = load_weights(from + 512);
        scales = load_scales(from + 1024 - lane * 12);
    }
    /// `x`: this lane's place in the stage's part of x, `half`: bytes of half a block of x. `odd`: no second block.
    __device__ void multiply(u32 x, u32 half, bool odd, float (&acc)[4]) const {
        block(first, 0, x, half, acc);
        if (!odd) block(second, 1, x + 2 * half, half, acc);
    }
    __device__ void block(const uint4& codes, u32 which, u32 x, u32 half, float (&acc)[4]) const {
        Fragment<kNvfp4> fragment;
        fragment.set(codes, scales, which);
        u32 b[2][4];
        load_x_matrices(b[0], x);
        load_x_matrices(b[1], x + half);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            u32 a[4];
            fragment.step(i, a);
            mma_bf16(acc, a, b[i / 2][i % 2 * 2], b[i / 2][i % 2 * 2 + 1]);
        }
    }
};

template <>
struct Stage<kBf16> {
    static constexpr u32 kBytes = pair_bytes(kBf16) / 4, kDepth = 2, kHalves = 1;
    uint4 words[2];
    __device__ void load(const u8* from, u32) {
        words[0] = load_weights(from);
        words[1] = load_weights(from + 512);
    }
    __device__ void multiply(u32 x, u32, bool, float (&acc)[4]) const {
        u32 b[4];
        load_x_matrices(b, x);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const u32 a[4] = {words[i].x, words[i].y, words[i].z, words[i].w};
            mma_bf16(acc, a, b[2 * i], b[2 * i + 1]);
        }
    }
};

/// Adds and finishes the sums of a unit, with few registers: weights are on their way in the others.
__device__ inline void finish_unit(const Linear& p, u32 part, u32 unit, const float4* sums) {
    const u32 lane = threadIdx.x % kWarp, rows = min(*reinterpret_cast<const volatile u32*>(p.rows), p.capacity);
    float4 total = sums[lane];
#pragma unroll 1
    for (u32 s = 1; s < kSplits; s++) {
        const float4 v = sums[s * kWarp + lane];
        total.x = total.x + v.x, total.y = total.y + v.y, total.z = total.z + v.z, total.w = total.w + v.w;
    }
    asm volatile("" : "+f"(total.x), "+f"(total.y), "+f"(total.z), "+f"(total.w)::"memory");
    const Epilogue epilogue(p, p.part[part], unit, rows, lane);
    const uint2 before = epilogue.load(0);
    epilogue.put_group(total.x, total.y, total.z, total.w, 0, before);
}

/// The thread's number, read anew wherever it is needed: registers are scarce here.
__device__ inline u32 thread() {
    u32 t;
    asm volatile("mov.u32 %0, %tid.x;" : "=r"(t));
    return t;
}

extern __shared__ __align__(128) u8 shared[];  // sums, x

/// C: thread blocks of a cluster.
template <u32 C>
struct Few {
    static constexpr u32 kTeamWarps = kSplits / C, kTeams = kWarps / kTeamWarps;
    static constexpr u32 kBuffers = C == 1 ? 2 : 1;  // for a team's sums
    static constexpr u32 kSumBytes = kTeams * kBuffers * kSplits * 512;

    const Linear& p;
    u64 *full, *empty;  // clusters: of each team's sums: [team], [team][block]
    u32 x_at;           // shared address of the split's first block of x, for this lane
    u32 half;           // bytes of half a block of x

    static __device__ u32 lane() { return thread() % kWarp; }
    static __device__ u32 team() { return thread() / kWarp / kTeamWarps; }
    static __device__ u32 rank() { return C == 1 ? 0 : blockIdx.x % C; }
    static __device__ u32 split() { return rank() * kTeamWarps + thread() / kWarp % kTeamWarps; }

    /// Hands over the sums of `unit`, the team's number `turn`. The warp whose turn it is finishes them.
    __device__ void deliver(u32 part, u32 unit, u32 turn, const float (&acc)[4]) const {
        const u32 finisher = turn % C, use = turn / C;
        const bool finishes = finisher == rank() && use % kTeamWarps == split() % kTeamWarps;
        float4* sums = reinterpret_cast<float4*>(shared) + (team() * kBuffers + use % kBuffers) * kSplits * kWarp;
        float4* mine = sums + split() * kWarp + lane();
        if constexpr (C == 1) {
            // A buffer is written again after the next unit's barrier, which its finisher reaches when it has read it.
            *mine = make_float4(acc[0], acc[1], acc[2], acc[3]);
            named_barrier(1 + team(), kTeamWarps * kWarp);
            if (finishes) finish_unit(p, part, unit, sums);
        } else {
#if __CUDA_ARCH__ >= 900
            cluster_wait(empty + team() * C + finisher, use % 2 ^ 1);
            cluster_store(cluster_address(shared_address(mine), finisher), acc[0], acc[1], acc[2], acc[3],
                          cluster_address(shared_address(full + team()), finisher));
            if (!finishes) return;
            if (lane() == 0) barrier_expect(full + team(), kSplits * 512);
            cluster_wait(full + team(), use % 2);
            finish_unit(p, part, unit, sums);
#pragma unroll
            for (u32 r = 0; r < C; r++) cluster_arrive(cluster_address(shared_address(empty + team() * C + finisher), r));
#endif
        }
    }

    /// `units` units of a part, from `unit` on. `prepare` brings x; it runs when the first weights are on their way.
    template <u32 F, class Prepare>
    __device__ void work(u32 part, u32 unit, u32 units, u32& turn, Prepare prepare) {
        using S = Stage<F>;
        constexpr u32 depth = S::kDepth;
        const u32 first = split_begin(p, split()), end = split_begin(p, split() + 1);
        // Stages of the split in a unit. A pair that is half beyond K counts, a block beyond K does not.
        const u32 length = F == kNvfp4 ? end - first : 2 * (min(2 * end, p.blocks) - min(2 * first, p.blocks));
        const u8* next = p.part[part].weight + (u64(unit) * pairs_of(p) + first) * pair_bytes(F) + lane() * 16;
        u32 left = length * units, asked = 0;  // stages; of the unit
        S ahead[depth] = {};  // defined on every path: else the registers of both formats live throughout
        auto ask = [&](S& stage) {
            stage.load(next, lane());
            next += S::kBytes;
            if (++asked == length) asked = 0, next += pairs_of(p) * kTeams * pair_bytes(F) - length * S::kBytes;
        };
#pragma unroll
        for (u32 d = 0; d < depth; d++)
            if (d < left) ask(ahead[d]);
        prepare();
        float acc[4] = {};
        if (length == 0)
#pragma unroll 1
            for (; units > 0; units--, unit += kTeams) deliver(part, unit, turn++, acc);
        u32 x = x_at, done = 0;  // stages of the unit
#pragma unroll 1
        while (left > 0) {
#pragma unroll
            for (u32 d = 0; d < depth; d++) {
                if (left > 0) {
                    const bool odd = F == kNvfp4 && p.blocks % 2 == 1 && done + 1 == length && split() + 1 == kSplits;
                    ahead[d].multiply(x, half, odd, acc);
                    x += S::kHalves * half;
                    if (left > depth) ask(ahead[d]);
                    left--;
                    if (++done == length) {
                        deliver(part, unit, turn++, acc);
                        unit += kTeams;
                        x = x_at, done = 0;
                        acc[0] = acc[1] = acc[2] = acc[3] = 0;
                    }
                }
            }
        }
    }

    /// The split's x: its warps, one of each team, load it together and then wait for each other only.
    __device__ void load_x(u32 x_rows) {
        constexpr u32 threads = kTeams * kWarp, batch = 2;
        const u32 first = 2 * split_begin(p, split()), blocks = min(2 * split_begin(p, split() + 1), p.blocks) - min(first, p.blocks);
        const u32 count = blocks * 8 * x_rows, shift = 31 - __clz(int(x_rows));
        const u8* from = p.x + u64(first) * p.groups * 1024;
        u8* out = shared + kSumBytes + (first - 2 * split_begin(p, rank() * kTeamWarps)) * 128 * x_rows;
        for (u32 at = team() * kWarp + lane(); at < count; at += threads * batch) {
            uint4 v[batch];
#pragma unroll
            for (u32 j = 0; j < batch; j++) {
                const u32 i = at + j * threads, row = i & (x_rows - 1), core = i >> shift;
                if (i < count) v[j] = __ldcg(reinterpret_cast<const uint4*>(from + u64(core / 8) * p.groups * 1024 + core % 8 * 128 + row * 16));
            }
#pragma unroll
            for (u32 j = 0; j < batch; j++)
                if (at + j * threads < count) *reinterpret_cast<uint4*>(out + (at + j * threads) * 16) = v[j];
        }
        named_barrier(5 + split() % kTeamWarps, threads);
        half = 64 * x_rows;
        x_at = shared_address(out) + (lane() / 8 * x_rows + min(lane() % 8, x_rows - 1)) * 16;
        asm volatile("" : "+r"(x_at)::"memory");  // no x before here
    }
};

/// Units of a part before share `c` of `of`: a unit belongs to the share of the bytes in which its middle falls.
/// `before`: bytes of the parts before, per pair of K; `total`: of all parts.
__device__ inline u32 first_unit(u32 bytes, u32 before, u32 units, u32 total, u32 c, u32 of) {
    if (before == 0 && units * bytes == total) return units * c / of;
    if (c >= of) return units;
    // u·bytes + bytes/2 + before < c·total/of  ⟺  u < (2c·total − 2of·before − of·bytes) / (2of·bytes), rounded up
    const long long over = (long long)(2 * u64(c) * total) - (long long)(u64(of) * (2 * before + bytes));
    if (over <= 0) return 0;
    const u64 step = 2 * u64(of) * bytes, first = (u64(over) + step - 1) / step;
    return first < units ? u32(first) : units;
}

/// Mixed: whether parts may be BF16.
template <u32 C, bool Mixed>
__device__ void linear_few(const Linear& p) {
    using Block = Few<C>;
    __shared__ u64 full[Block::kTeams], empty[Block::kTeams * C];
    allow_next();
    if (C > 1 && threadIdx.x < Block::kTeams) {
        barrier_init(full + threadIdx.x, 1);
        for (u32 r = 0; r < C; r++) barrier_init(empty + threadIdx.x * C + r, kWarp);
    }
    Block block{p, full, empty, 0, 0};
    u32 total = 0, before = 0, turn = 0;
    for (u32 i = 0; i < p.parts; i++)
        total += ((i + 1 < p.parts ? p.part[i + 1].first_unit : p.units) - p.part[i].first_unit) * pair_bytes(p.part[i].format);
#pragma unroll 1
    for (u32 i = 0; i < p.parts; i++) {
        const u32 units = (i + 1 < p.parts ? p.part[i + 1].first_unit : p.units) - p.part[i].first_unit, bytes = pair_bytes(p.part[i].format);
        const u32 from = first_unit(bytes, before, units, total, blockIdx.x / C, gridDim.x / C) + Block::team();
        const u32 to = first_unit(bytes, before, units, total, blockIdx.x / C + 1, gridDim.x / C);
        const u32 count = from < to ? (to - from + Block::kTeams - 1) / Block::kTeams : 0;
        before += units * bytes;
        auto prepare = [&] {
            if (i > 0) return;
#if __CUDA_ARCH__ >= 900
            if constexpr (C > 1) cluster_sync();  // the barriers are there
#endif
            wait_for_previous();
            block.load_x(p.capacity == 1 ? 1 : p.capacity == 2 ? 2 : p.capacity <= 4 ? 4 : 8);
        };
        if (!Mixed || p.part[i].format == kNvfp4) block.template work<kNvfp4>(i, from, count, turn, prepare);
        else if constexpr (Mixed) block.template work<kBf16>(i, from, count, turn, prepare);
    }
    prefetch_next(p, threadIdx.x / kWarp, kWarps, threadIdx.x % kWarp);
#if __CUDA_ARCH__ >= 900
    // No thread block leaves while another may write to it.
    if constexpr (C > 1) cluster_sync();
#endif
}

#define ATLAS_LINEAR_FEW(NAME, C, MIXED)                                                                             \
    extern "C" __global__ void __launch_bounds__(32 * kWarps, 1) NAME(const __grid_constant__ Linear p) {            \
        linear_few<C, MIXED>(p);                                                                                     \
    }

ATLAS_LINEAR_FEW(linear_few, 1, false)
ATLAS_LINEAR_FEW(linear_few_mixed, 1, true)
#if __CUDA_ARCH__ >= 900 || !defined(__CUDA_ARCH__)
ATLAS_LINEAR_FEW(linear_few_pair, 2, false)
ATLAS_LINEAR_FEW(linear_few_pair_mixed, 2, true)
#endif
