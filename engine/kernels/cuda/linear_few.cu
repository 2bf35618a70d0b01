// Linear layers of at most 8 rows: reading the weights is the whole cost.
//
// Teams of 8 warps, one a split of K, take unit after unit. Each warp streams its split's weights through a ring in
// shared memory that begins to fill before the previous kernel ends; a lane copies exactly the bytes that it will read,
// so warps never wait for each other. The eight sums of a unit meet in shared memory, where the team's warps take turns
// at adding and finishing them.
//
// In clusters of two a team has four warps in each thread block: a block reads half of every unit and keeps half of x,
// units are shared out twice as evenly, and sums cross over to the block whose turn it is.
#include "barrier.cuh"
#include "linear.cuh"

constexpr u32 kWarps = 16;

template <u32 C, u32 RingBytes>
struct Few {
    static constexpr u32 kTeamWarps = kSplits / C, kTeams = kWarps / kTeamWarps;
    static constexpr u32 kSumBytes = kTeams * kSplits * 512;

    const Linear& p;
    u8* shared;            // sums, x, rings
    u64 *full, *empty;     // of each team's sums: [team], [team][block]
    u32 rank, warp, lane;  // rank: of the thread block in its cluster
    u32 team, split;
    u32 pairs, blocks;     // of this warp's split; pairs of a whole unit are `unit_pairs`
    u32 first, unit_pairs;
    u32 x_at;              // shared address of the split's first block of x, for this lane
    u8* ring;              // this lane's part of the warp's ring
    u32 turn;              // units that the team has finished

    // ---- Weights ----

    template <u32 F>
    struct Stream {
        /// A stage is an NVFP4 pair or a BF16 block.
        static constexpr u32 kBytes = F == kNvfp4 ? pair_bytes(kNvfp4) : pair_bytes(kBf16) / 2;
        static constexpr u32 kStages = RingBytes / kBytes;
        const u8* next;   // this lane's bytes of the next stage to ask for
        u32 skip;         // from the end of the split in one unit to its beginning in the team's next unit
        u32 length;       // stages of the split in one unit
        u32 in_unit, left;
        u32 write, read;  // shared addresses, this lane's

        __device__ void start(const Few& f, const LinearPart& part, u32 unit, u32 units) {
            length = f.pairs * (pair_bytes(F) / kBytes);
            next = part.weight + (u64(unit) * f.unit_pairs + f.first) * pair_bytes(F) + f.lane * 16;
            skip = (f.unit_pairs * kTeams - f.pairs) * pair_bytes(F);
            in_unit = length;
            left = length * units;
            write = read = shared_address(f.ring);
#pragma unroll 1
            for (u32 s = 0; s + 1 < kStages; s++) ask(f);
        }
        __device__ u32 after(const Few& f, u32 at) const {
            at += kBytes;
            return at == shared_address(f.ring) + kStages * kBytes ? shared_address(f.ring) : at;
        }
        __device__ void ask(const Few& f) {
            if (left > 0) {
                left--;
#pragma unroll
                for (u32 i = 0; i < (F == kNvfp4 ? 2 : 4); i++) copy_async(write + i * 512, next + i * 512);
                if (F == kNvfp4) copy_word(write + 1024 - f.lane * 12, next + 1024 - f.lane * 12);
                next += kBytes;
                if (--in_unit == 0) in_unit = length, next += skip;
            }
            commit_copies();
            write = after(f, write);
        }
        static __device__ void copy_word(u32 to, const u8* from) {
            asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from) : "memory");
        }
    };

    static __device__ uint4 shared_load(u32 at) {
        uint4 v;
        asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(at) : "memory");
        return v;
    }
    static __device__ u32 shared_word(u32 at) {
        u32 v;
        asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(at) : "memory");
        return v;
    }

    // ---- One unit ----

    template <u32 F>
    __device__ void multiply(const Fragment<F>& fragment, u32 x, u32 x_half, float (&acc)[4]) const {
        u32 b[2][4];
        load_matrices(b[0], x);
        load_matrices(b[1], x + x_half);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            u32 a[4];
            fragment.step(i, a);
            mma_bf16(acc, a, b[i / 2][i % 2 * 2], b[i / 2][i % 2 * 2 + 1]);
        }
    }

    /// Sums of one unit over this warp's split. `x_half`: bytes of half a block of x.
    template <u32 F>
    __device__ void sum(Stream<F>& stream, u32 x_half, float (&acc)[4]) const {
        u32 x = x_at;
        const u32 stages = stream.length;
        for (u32 stage = 0; stage < stages; stage++) {
            wait_copies<Stream<F>::kStages - 2>();
            Fragment<F> fragment;
            if constexpr (F == kNvfp4) {
                const uint4 first = shared_load(stream.read), second = shared_load(stream.read + 512);
                const u32 scales = shared_word(stream.read + 1024 - lane * 12);
                stream.ask(*this);
                fragment.set(first, scales, 0);
                multiply<F>(fragment, x, x_half, acc);
                if (2 * stage + 1 < blocks) {
                    fragment.set(second, scales, 1);
                    multiply<F>(fragment, x + 2 * x_half, x_half, acc);
                }
                x += 4 * x_half;
            } else {
#pragma unroll
                for (int i = 0; i < 4; i++) fragment.words[i] = shared_load(stream.read + i * 512);
                stream.ask(*this);
                if (stage < blocks) multiply<F>(fragment, x, x_half, acc);
                x += 2 * x_half;
            }
            stream.read = stream.after(*this, stream.read);
        }
    }

    template <u32 F>
    __device__ void run(Stream<F>& stream, const LinearPart& part, u32 unit, u32 units, u32 x_half, u32 rows) {
        for (; units > 0; units--, unit += kTeams, turn++) {
            float acc[4] = {};
            sum<F>(stream, x_half, acc);
            const u32 finisher = turn % C, use = turn / C;
            float4* sums = reinterpret_cast<float4*>(shared) + team * kSplits * 32;
            if constexpr (C == 1) {
                barrier_wait(empty + team, use % 2 ^ 1);
                sums[split * 32 + lane] = make_float4(acc[0], acc[1], acc[2], acc[3]);
                barrier_arrive(full + team);
            } else {
#if __CUDA_ARCH__ >= 900
                cluster_wait(empty + team * C + finisher, use % 2 ^ 1);
                cluster_store(cluster_address(shared_address(sums + split * 32 + lane), finisher), acc[0], acc[1], acc[2], acc[3]);
                cluster_arrive(cluster_address(shared_address(full + team), finisher));
#endif
            }
            if (finisher == rank && use % kTeamWarps == warp % kTeamWarps) {
                float4 v[kSplits];
                if constexpr (C == 1) barrier_wait(full + team, use % 2);
#if __CUDA_ARCH__ >= 900
                else cluster_wait(full + team, use % 2);
#endif
#pragma unroll
                for (u32 s = 0; s < kSplits; s++) v[s] = sums[s * 32 + lane];
                if constexpr (C == 1) barrier_arrive(empty + team);
#if __CUDA_ARCH__ >= 900
                else
#pragma unroll
                    for (u32 r = 0; r < C; r++) cluster_arrive(cluster_address(shared_address(empty + team * C + finisher), r));
#endif
                float4 total = v[0];
#pragma unroll
                for (u32 s = 1; s < kSplits; s++)
                    total.x = total.x + v[s].x, total.y = total.y + v[s].y, total.z = total.z + v[s].z, total.w = total.w + v[s].w;
                Epilogue{p, part, unit, rows, lane}.put(total.x, total.y, total.z, total.w, 0);
            }
        }
    }

    /// This thread block's part of x, once a cluster's part of the splits.
    __device__ void load_x(u32 x_rows, u32 from, u32 to) const {
        const u32 count = (to - from) * 8 * x_rows, shift = 31 - __clz(int(x_rows));
        u8* out = shared + kSumBytes;
        for (u32 at = threadIdx.x; at < count; at += kWarps * kWarp * 4) {
            uint4 v[4];
#pragma unroll
            for (u32 j = 0; j < 4; j++) {
                const u32 i = at + j * kWarps * kWarp, row = i & (x_rows - 1), core = i >> shift;
                if (i < count)
                    v[j] = __ldcg(reinterpret_cast<const uint4*>(p.x + u64(from + core / 8) * p.groups * 1024 + core % 8 * 128 + row * 16));
            }
#pragma unroll
            for (u32 j = 0; j < 4; j++)
                if (at + j * kWarps * kWarp < count) *reinterpret_cast<uint4*>(out + (at + j * kWarps * kWarp) * 16) = v[j];
        }
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

template <u32 C, u32 RingBytes>
__device__ void linear_few(const Linear& p) {
    using Block = Few<C, RingBytes>;
    extern __shared__ __align__(128) u8 shared[];
    __shared__ u64 full[Block::kTeams], empty[Block::kTeams * C];
    allow_next();
    if (threadIdx.x < Block::kTeams) {
        barrier_init(full + threadIdx.x, kSplits * kWarp);
        for (u32 r = 0; r < C; r++) barrier_init(empty + threadIdx.x * C + r, kWarp);
    }
    const u32 warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, rank = blockIdx.x % C;
    const u32 split = rank * Block::kTeamWarps + warp % Block::kTeamWarps, pairs = pairs_of(p);
    const u32 x_rows = p.capacity == 1 ? 1 : p.capacity == 2 ? 2 : p.capacity <= 4 ? 4 : 8;
    const u32 x_from = 2 * split_begin(pairs, rank * Block::kTeamWarps);
    const u32 x_to = min(2 * split_begin(pairs, (rank + 1) * Block::kTeamWarps), p.blocks);
    const u32 first = split_begin(pairs, split), mine = split_begin(pairs, split + 1) - first;
    Block block{p, shared, full, empty, rank, warp, lane, warp / Block::kTeamWarps, split, mine, min(2 * mine, p.blocks - min(2 * first, p.blocks)), first, pairs, 0, nullptr, 0};
    const u32 x_bytes = (p.blocks + 2 * C) / C * 128 * x_rows;  // room for the larger half
    block.x_at = shared_address(shared) + Block::kSumBytes + (2 * first - x_from) * 128 * x_rows + (lane / 8 * x_rows + min(lane % 8, x_rows - 1)) * 16;
    block.ring = shared + Block::kSumBytes + x_bytes + warp * RingBytes + lane * 16;

    u32 total = 0, rows = 0;
    for (u32 i = 0; i < p.parts; i++)
        total += ((i + 1 < p.parts ? p.part[i + 1].first_unit : p.units) - p.part[i].first_unit) * pair_bytes(p.part[i].format);
    bool ready = false;
    // The first weights are on their way before the previous kernel ends; x is read after it.
    auto prepare = [&] {
        if (ready) return;
        ready = true;
        wait_for_previous();
        rows = min(*reinterpret_cast<const volatile u32*>(p.rows), p.capacity);
        block.load_x(x_rows, x_from, x_to);
        if constexpr (C == 1) __syncthreads();
#if __CUDA_ARCH__ >= 900
        else cluster_sync();
#endif
    };
    u32 before = 0;
    for (u32 i = 0; i < p.parts; i++) {
        const LinearPart& part = p.part[i];
        const u32 units = (i + 1 < p.parts ? p.part[i + 1].first_unit : p.units) - part.first_unit, bytes = pair_bytes(part.format);
        const u32 from = first_unit(bytes, before, units, total, blockIdx.x / C, gridDim.x / C) + block.team;
        const u32 to = first_unit(bytes, before, units, total, blockIdx.x / C + 1, gridDim.x / C);
        before += units * bytes;
        __syncwarp();  // the formats differ in whose bytes stand where in the ring
        const u32 mine = from < to ? (to - from + Block::kTeams - 1) / Block::kTeams : 0;
        if (part.format == kNvfp4) {
            typename Block::template Stream<kNvfp4> stream;
            stream.start(block, part, from, mine);
            prepare();
            block.run(stream, part, from, mine, 64 * x_rows, rows);
        } else {
            typename Block::template Stream<kBf16> stream;
            stream.start(block, part, from, mine);
            prepare();
            block.run(stream, part, from, mine, 64 * x_rows, rows);
        }
    }
    wait_copies<0>();
#if __CUDA_ARCH__ >= 900
    // No thread block leaves while another may write to it.
    if constexpr (C > 1) cluster_sync();
#endif
}

#define ATLAS_LINEAR_FEW(NAME, C, RING)                                                                              \
    extern "C" __global__ void __launch_bounds__(32 * kWarps, 2) NAME(const __grid_constant__ Linear p) {            \
        linear_few<C, RING>(p);                                                                                      \
    }

ATLAS_LINEAR_FEW(linear_few_large, 1, 9216)
ATLAS_LINEAR_FEW(linear_few_small, 1, 4608)
#if __CUDA_ARCH__ >= 900 || !defined(__CUDA_ARCH__)
ATLAS_LINEAR_FEW(linear_few_pair_large, 2, 9216)
ATLAS_LINEAR_FEW(linear_few_pair_small, 2, 4608)
#endif
