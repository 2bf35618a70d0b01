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

/// C: thread blocks of a cluster; a warp's ring has `kBursts` bursts.
template <u32 kWarps, u32 C, u32 kBursts, u32 BurstBytes>
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
    bool looked = false;

    /// Once, when this warp has asked for its last weights.
    __device__ void look_ahead() {
        if (!looked) prefetch_next(p, warp, kWarps, lane);
        looked = true;
    }

    // ---- Weights ----
    //
    // A split of a unit is asked for in bursts of a few KB: memory is slow at reading scattered small pieces.

    template <u32 F>
    struct Stream {
        static constexpr u32 kPair = pair_bytes(F);
        static constexpr u32 kMost = BurstBytes / kPair;  // pairs of a burst
        const u8* next;      // this lane's bytes of the next burst to ask for
        u32 bursts;          // of the split in one unit
        u32 asked, left;     // bursts of this unit that were asked for; units left
        u32 write, read;     // shared addresses, this lane's

        __device__ void start(const Few& f, const LinearPart& part, u32 unit, u32 units) {
            next = part.weight + (u64(unit) * f.unit_pairs + f.first) * kPair + f.lane * 16;
            bursts = (f.pairs + kMost - 1) / kMost;
            asked = 0;
            left = f.pairs > 0 ? units : 0;
            write = read = shared_address(f.ring);
            for (u32 s = 0; s < kBursts; s++) ask(f);
        }
        /// Pairs of a burst: all nearly equal.
        __device__ u32 length(const Few& f, u32 burst) const { return f.pairs * (burst + 1) / bursts - f.pairs * burst / bursts; }
        __device__ u32 after(const Few& f, u32 at) const {
            at += BurstBytes;
            return at == shared_address(f.ring) + kBursts * BurstBytes ? shared_address(f.ring) : at;
        }
        __device__ void ask(const Few& f) {
            if (left > 0) {
                const u32 pairs = length(f, asked);
                u32 to = write;
#pragma unroll 1
                for (u32 i = 0; i < pairs; i++, to += kPair, next += kPair) {
#pragma unroll
                    for (u32 j = 0; j < (F == kNvfp4 ? 2 : 8); j++) copy_async(to + j * 512, next + j * 512);
                    if (F == kNvfp4) copy_word(to + 1024 - f.lane * 12, next + 1024 - f.lane * 12);
                }
                if (++asked == bursts) asked = 0, left--, next += u64(f.unit_pairs * kTeams - f.pairs) * kPair;
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
        u32 x = x_at, left = blocks;
        for (u32 burst = 0; burst < stream.bursts; burst++) {
            wait_copies<kBursts - 1>();
            u32 at = stream.read;
#pragma unroll 1
            for (u32 i = stream.length(*this, burst); i > 0; i--, at += Stream<F>::kPair, x += 4 * x_half, left -= 2) {
                Fragment<F> fragment;
                if constexpr (F == kNvfp4) {
                    const uint4 first = shared_load(at), second = shared_load(at + 512);
                    const u32 scales = shared_word(at + 1024 - lane * 12);
                    fragment.set(first, scales, 0);
                    multiply<F>(fragment, x, x_half, acc);
                    if (left == 1) break;
                    fragment.set(second, scales, 1);
                } else {
#pragma unroll
                    for (int j = 0; j < 4; j++) fragment.words[j] = shared_load(at + j * 512);
                    multiply<F>(fragment, x, x_half, acc);
                    if (left == 1) break;
#pragma unroll
                    for (int j = 0; j < 4; j++) fragment.words[j] = shared_load(at + 2048 + j * 512);
                }
                multiply<F>(fragment, x + 2 * x_half, x_half, acc);
            }
            stream.ask(*this);
            stream.read = stream.after(*this, stream.read);
        }
    }

    template <u32 F>
    __device__ void run(Stream<F>& stream, const LinearPart& part, u32 unit, u32 units, u32 x_half, u32 rows, bool last) {
        for (; units > 0; units--, unit += kTeams, turn++) {
            if (units == 1 && last) look_ahead();
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
                cluster_store(cluster_address(shared_address(sums + split * 32 + lane), finisher), acc[0], acc[1], acc[2], acc[3],
                              cluster_address(shared_address(full + team), finisher));
#endif
            }
            if (finisher == rank && use % kTeamWarps == warp % kTeamWarps) {
                const Epilogue epilogue(p, part, unit, rows, lane);
                const uint2 before = epilogue.load(0);
                float4 v[kSplits];
                if constexpr (C == 1) barrier_wait(full + team, use % 2);
#if __CUDA_ARCH__ >= 900
                else {
                    if (lane == 0) barrier_expect(full + team, kSplits * 512);
                    cluster_wait(full + team, use % 2);
                }
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
                epilogue.put_group(total.x, total.y, total.z, total.w, 0, before);
            }
        }
    }

    /// The split's x: its warps, one of each team, load it together and then wait for each other only.
    __device__ void load_x(u8* out, u32 x_rows) const {
        constexpr u32 threads = kTeams * kWarp, batch = 4;
        const u32 count = blocks * 8 * x_rows, shift = 31 - __clz(int(x_rows));
        for (u32 at = team * kWarp + lane; at < count; at += threads * batch) {
            uint4 v[batch];
#pragma unroll
            for (u32 j = 0; j < batch; j++) {
                const u32 i = at + j * threads, row = i & (x_rows - 1), core = i >> shift;
                if (i < count)
                    v[j] = __ldcg(reinterpret_cast<const uint4*>(p.x + u64(2 * first + core / 8) * p.groups * 1024 + core % 8 * 128 + row * 16));
            }
#pragma unroll
            for (u32 j = 0; j < batch; j++)
                if (at + j * threads < count) *reinterpret_cast<uint4*>(out + (at + j * threads) * 16) = v[j];
        }
        asm volatile("bar.sync %0, %1;" ::"r"(1 + split % kTeamWarps), "n"(threads) : "memory");
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

template <u32 kWarps, u32 C, u32 kBursts, u32 BurstBytes>
__device__ void linear_few(const Linear& p) {
    using Block = Few<kWarps, C, kBursts, BurstBytes>;
    extern __shared__ __align__(128) u8 shared[];
    __shared__ u64 full[Block::kTeams], empty[Block::kTeams * C];
    allow_next();
    if (threadIdx.x < Block::kTeams) {
        barrier_init(full + threadIdx.x, C == 1 ? kSplits * kWarp : 1);
        for (u32 r = 0; r < C; r++) barrier_init(empty + threadIdx.x * C + r, kWarp);
    }
    const u32 warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, rank = blockIdx.x % C;
    const u32 split = rank * Block::kTeamWarps + warp % Block::kTeamWarps, pairs = pairs_of(p);
    const u32 x_rows = p.capacity == 1 ? 1 : p.capacity == 2 ? 2 : p.capacity <= 4 ? 4 : 8;
    const u32 x_from = 2 * split_begin(pairs, rank * Block::kTeamWarps);
    const u32 first = split_begin(pairs, split), mine = split_begin(pairs, split + 1) - first;
    Block block{p, shared, full, empty, rank, warp, lane, warp / Block::kTeamWarps, split, mine, min(2 * mine, p.blocks - min(2 * first, p.blocks)), first, pairs, 0, nullptr, 0};
    const u32 x_bytes = (p.blocks + 2 * C) / C * 128 * x_rows;  // room for the larger half
    block.x_at = shared_address(shared) + Block::kSumBytes + (2 * first - x_from) * 128 * x_rows + (lane / 8 * x_rows + min(lane % 8, x_rows - 1)) * 16;
    block.ring = shared + Block::kSumBytes + x_bytes + warp * kBursts * BurstBytes + lane * 16;

    u32 total = 0, rows = 0;
    for (u32 i = 0; i < p.parts; i++)
        total += ((i + 1 < p.parts ? p.part[i + 1].first_unit : p.units) - p.part[i].first_unit) * pair_bytes(p.part[i].format);
    bool ready = false;
    // The first weights are on their way before the previous kernel ends; x is read after it.
    auto prepare = [&] {
        if (ready) return;
        ready = true;
        if constexpr (C == 1) __syncthreads();  // the barriers are there
#if __CUDA_ARCH__ >= 900
        else cluster_sync();
#endif
        wait_for_previous();
        rows = min(*reinterpret_cast<const volatile u32*>(p.rows), p.capacity);
        block.load_x(shared + Block::kSumBytes + (2 * first - x_from) * 128 * x_rows, x_rows);
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
            block.run(stream, part, from, mine, 64 * x_rows, rows, i + 1 == p.parts);
        } else {
            typename Block::template Stream<kBf16> stream;
            stream.start(block, part, from, mine);
            prepare();
            block.run(stream, part, from, mine, 64 * x_rows, rows, i + 1 == p.parts);
        }
    }
    block.look_ahead();
    wait_copies<0>();
#if __CUDA_ARCH__ >= 900
    // No thread block leaves while another may write to it.
    if constexpr (C > 1) cluster_sync();
#endif
}

#define ATLAS_LINEAR_FEW(NAME, WARPS, C, BURSTS, BYTES)                                                              \
    extern "C" __global__ void __launch_bounds__(32 * WARPS, 2) NAME(const __grid_constant__ Linear p) {             \
        linear_few<WARPS, C, BURSTS, BYTES>(p);                                                                      \
    }

ATLAS_LINEAR_FEW(linear_few_large, 16, 1, 2, 4608)
ATLAS_LINEAR_FEW(linear_few_small, 8, 1, 2, 4608)
#if __CUDA_ARCH__ >= 900 || !defined(__CUDA_ARCH__)
ATLAS_LINEAR_FEW(linear_few_pair, 16, 2, 2, 4608)
#endif
