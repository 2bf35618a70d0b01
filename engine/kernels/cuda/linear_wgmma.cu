// Linear layers of more than 8 rows on sm_90a: wgmma with the weights as A from registers and x as B from shared memory.
//
// A tile is a quad of units (64 features) for each of Q consumer warpgroups × N rows. Four producer warps feed a
// ring of stages with bulk copies. Thread blocks stay: with many row tiles they take whole tiles in turn; with few, the
// (tile, split) items are cut into equal runs (`cut_tiles`), and the sums of a tile that several thread blocks share meet
// in global memory, where the last to arrive adds them in the order of the splits.
#include "barrier.cuh"
#include "linear.cuh"
#include "wgmma.cuh"


/// Core matrices without swizzle: 128 bytes apart along K, 1024 bytes apart along the rows of x.
__device__ inline u64 x_descriptor(u32 at) { return u64(1024 >> 4) << 32 | (at >> 4 | u32(128 >> 4) << 16); }

__device__ inline const LinearPart& part_of(const Linear& p, u32 unit) {
    u32 i = 0;
    while (i + 1 < p.parts && unit >= p.part[i + 1].first_unit) i++;
    return p.part[i];
}

/// What a thread block works on: splits `from`..`to` of a tile.
struct Work {
    u32 tile, from, to;
    u32 features, row_tile;  // the tile's place
};

struct Schedule {
    const Linear& p;
    u32 tiles, next, end;

    __device__ Schedule(const Linear& p, u32 tile_units) : p(p) {
        tiles = (p.units + tile_units - 1) / tile_units * p.row_tiles;
        next = p.cut_tiles ? begin_of(blockIdx.x) : blockIdx.x;
        end = p.cut_tiles ? begin_of(blockIdx.x + 1) : tiles;
    }
    __device__ u32 begin_of(u32 block) const { return u32(u64(tiles) * kSplits * block / gridDim.x); }

    __device__ bool take(Work& w) {
        if (next >= end) return false;
        if (p.cut_tiles) {
            w.tile = next / kSplits;
            w.from = next % kSplits;
            w.to = min(w.from + end - next, kSplits);
            next += w.to - w.from;
        } else {
            w.tile = next, w.from = 0, w.to = kSplits;
            next += gridDim.x;
        }
        // Bands of row tiles, so that what thread blocks read at one time stays in L2.
        const u32 features = tiles / p.row_tiles, band = w.tile / (p.band * features), in_band = w.tile % (p.band * features);
        const u32 height = min(p.band, p.row_tiles - band * p.band);
        w.features = in_band / height;
        w.row_tile = band * p.band + in_band % height;
        return true;
    }

    /// The thread block that has a tile's first split: its number is the tile's place in the workspace.
    __device__ u32 owner(u32 tile) const {
        const u32 item = tile * kSplits;
        u32 block = u32(u64(item) * gridDim.x / (u64(tiles) * kSplits));
        while (begin_of(block + 1) <= item) block++;
        while (begin_of(block) > item) block--;
        return block;
    }
};

#ifdef ATLAS_WGMMA

constexpr u32 kMaxStages = 16;

template <int N, u32 kQuads>
struct Tile {
    static constexpr u32 kTileUnits = kQuads * kQuad, kWarpUnits = kTileUnits / 4;
    static constexpr u32 kXBytes = N * 128;  // of one block

    const Linear& p;
    u8* ring;
    u64 *full, *empty;
    u32 unit_bytes, stage;  // of a stage of up to `stage_pairs` pairs: bytes reserved for one unit, all

    __device__ Tile(const Linear& p, u8* ring, u64* full, u64* empty) : p(p), ring(ring), full(full), empty(empty) {
        u32 format = kNvfp4;
        for (u32 i = 0; i < p.parts; i++) format = p.part[i].format == kBf16 ? kBf16 : format;
        unit_bytes = pair_bytes(format) * p.stage_pairs;
        stage = 2 * kXBytes * p.stage_pairs + unit_bytes * kTileUnits;
    }

    /// The stages of `pairs` pairs: pairs of all but the last. A bulk copy costs its thread the same at any size.
    __device__ u32 stage_length(u32 pairs) const {
        const u32 stages = (pairs + p.stage_pairs - 1) / p.stage_pairs;
        return stages == 0 ? 1 : (pairs + stages - 1) / stages;
    }

    // ---- Producer: four warps, each with a quarter of the units and of the blocks of x ----

    /// What a lane copies of each stage of a tile: the first lanes a unit each, the next a block of x each.
    struct Source {
        const u8* from;
        u64 step;               // to the next pair
        u32 to;                 // offset in a stage
        u32 bytes;              // of a pair of a unit, or of a block of x
        u32 weights, x_bytes;   // of all units, a pair; of a block of x
    };

    __device__ Source source(const Work& w, u32 warp, u32 lane) const {
        const u32 first = split_begin(p, w.from), group = w.row_tile * (N / 8);
        Source s{nullptr, 0, 0, 0, 0, min(u32(N / 8), p.groups - group) * 1024};
        for (u32 quad = 0; quad < kQuads; quad++) {
            const u32 unit = w.features * kTileUnits + quad * kQuad;
            if (unit < p.units) s.weights += kQuad * pair_bytes(part_of(p, unit).format);
        }
        const u32 unit = w.features * kTileUnits + kWarpUnits * warp + lane;
        if (lane < kWarpUnits && unit < p.units) {
            const LinearPart& part = part_of(p, unit);
            s.bytes = pair_bytes(part.format);
            s.step = s.bytes;
            s.from = part.weight + (u64(unit - part.first_unit) * pairs_of(p) + first) * s.bytes;
            s.to = 2 * kXBytes * p.stage_pairs + (kWarpUnits * warp + lane) * unit_bytes;
        } else if (lane >= kWarpUnits) {
            const u32 block = (lane - kWarpUnits) * 4 + warp;
            s.bytes = s.x_bytes;
            s.step = u64(2) * p.groups * 1024;
            s.from = p.x + (u64(2 * first + block) * p.groups + group) * 1024;
            s.to = block * kXBytes;
        }
        return s;
    }

    /// The copies of a stage: `weights` and `rows` say of what.
    __device__ void copy(const Source& s, u32 slot, u32 pairs, u32 blocks, bool weights, bool rows, u32 warp, u32 lane) const {
        const u32 to = shared_address(ring) + slot * stage + s.to;
        if (lane < kWarpUnits && weights && s.bytes > 0) copy_bulk(to, s.from, s.bytes * pairs, full + slot);
        if (lane >= kWarpUnits && rows && (lane - kWarpUnits) * 4 + warp < blocks) copy_bulk(to, s.from, s.bytes, full + slot);
    }

    __device__ void produce(u32 warp, u32 lane) const {
        Schedule schedule(p, kTileUnits);
        Work w;
        bool more = schedule.take(w);
        Source s{};
        // The first stages' weights are asked for before the previous kernel ends.
        u32 early = 0;
        if (more) {
            s = source(w, warp, lane);
            const u32 end = split_begin(p, w.from + 1), length = stage_length(end - split_begin(p, w.from));
            Source first = s;
            for (u32 pair = split_begin(p, w.from); pair < end && early < p.stages; early++) {
                const u32 pairs = min(length, end - pair), blocks = min(2 * pairs, p.blocks - 2 * pair);
                if (warp == 0 && lane == 0) barrier_expect(full + early, s.weights * pairs + s.x_bytes * blocks);
                copy(first, early, pairs, blocks, true, false, warp, lane);
                first.from += first.step * pairs;
                pair += pairs;
            }
        }
        wait_for_previous();
        u32 slot = 0, parity = 1;
        for (u32 count = 0; more;) {
            for (u32 split = w.from; split < w.to; split++) {
                const u32 end = split_begin(p, split + 1), length = stage_length(end - split_begin(p, split));
                for (u32 pair = split_begin(p, split); pair < end; count++) {
                    const u32 pairs = min(length, end - pair), blocks = min(2 * pairs, p.blocks - 2 * pair);
                    const bool late = count >= early;
                    if (late) {
                        barrier_wait(empty + slot, parity);
                        if (warp == 0 && lane == 0) barrier_expect(full + slot, s.weights * pairs + s.x_bytes * blocks);
                    }
                    copy(s, slot, pairs, blocks, late, true, warp, lane);
                    s.from += s.step * pairs;
                    pair += pairs;
                    if (++slot == p.stages) slot = 0, parity ^= 1;
                }
            }
            more = schedule.take(w);
            if (more) s = source(w, warp, lane);
        }
        prefetch_next(p, warp, 4, lane);
    }

    // ---- Consumers: two warpgroups ----

    /// Where a consumer is in the ring. The stage before is released when this one's first block is on its way; before
    /// the first there is a barrier that nobody waits for.
    struct Place {
        u32 slot, parity, before;
    };
    __device__ void release(Place& at) const {
        barrier_arrive(empty + at.before);
        at.before = at.slot;
    }
    __device__ void advance(Place& at) const {
        if (++at.slot == p.stages) at.slot = 0, at.parity ^= 1;
    }

    /// Steps `from`.. of a block, as many as `a` has room for.
    template <u32 F, u32 S>
    __device__ void make(u32 (&a)[S][4], const Fragment<F>& fragment, u32 from) const {
#pragma unroll
        for (u32 i = 0; i < S; i++) fragment.step(int(from + i), a[i]);
    }

    template <u32 S>
    __device__ void issue(float (&acc)[N / 2], const u32 (&a)[S][4], u32 x) const {
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
        for (u32 i = 0; i < S; i++) wgmma<N>(acc, a[i], x_descriptor(x + i * 256));
        asm volatile("wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 1;" ::: "memory");
    }

    /// One split. The fragments of a group of instructions are made while the group before is multiplied; at most one
    /// group is on its way. `odd`: the last pair has one block.
    template <u32 F>
    __device__ void split(float (&acc)[N / 2], u32 pairs, bool odd, Place& at, u32 unit, u32 lane) const {
        constexpr u32 steps = kQuads == 2 ? 4 : 2;  // of a group; fewer where registers are few
        u32 a[2][steps][4];
        const u32 length = stage_length(pairs), weights = 2 * kXBytes * p.stage_pairs + unit * unit_bytes;
        u32 in_stage = 0, base = 0;
        Fragment<F> fragment;
        auto begin = [&] {
            if (in_stage == 0) barrier_wait(full + at.slot, at.parity);
            base = at.slot * stage;
        };
        auto block = [&](u32 d) {
            fragment.load(ring + base + weights + in_stage * pair_bytes(F), d, lane);
            const u32 x = shared_address(ring) + base + (2 * in_stage + d) * kXBytes;
#pragma unroll
            for (u32 i = 0; i < 4 / steps; i++) {
                u32(&now)[steps][4] = a[(d * (4 / steps) + i) % 2];
                make<F>(now, fragment, i * steps);
                issue(acc, now, x + i * steps * 256);
                if (d == 0 && i == 0 && in_stage == 0) release(at);
            }
        };
        auto end = [&](bool last) {
            if (++in_stage == length || last) in_stage = 0, advance(at);
        };
        const u32 both = odd ? pairs - 1 : pairs;  // pairs of two blocks
#pragma unroll 1
        for (u32 i = 0; i < both; i++) {
            begin();
            block(0);
            block(1);
            end(i + 1 == pairs);
        }
        if (odd) {
            begin();
            block(0);
            end(true);
        }
        asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    }

    /// A quad that does not exist: only keep the ring going.
    __device__ void skip(u32 pairs, Place& at) const {
        for (u32 i = 0; i < pairs; i += stage_length(pairs)) {
            barrier_wait(full + at.slot, at.parity);
            release(at);
            advance(at);
        }
    }

    __device__ void consume(u32 quad, u32 warp, u32 lane, u32* last) const {
        wait_for_previous();
        const u32 rows = min(*reinterpret_cast<const volatile u32*>(p.rows), p.capacity);
        Schedule schedule(p, kTileUnits);
        Place at{0, 0, kMaxStages};
        for (Work w; schedule.take(w);) {
            const u32 unit = w.features * kTileUnits + quad * kQuad + warp;
            const bool mine = unit < p.units;
            const LinearPart& part = part_of(p, unit);
            const bool whole = w.to - w.from == kSplits, narrow = part.format == kNvfp4;
            float total[N / 2];
#pragma unroll
            for (int c = 0; c < N / 2; c++) total[c] = -0.0f;
            const u32 owner = whole ? 0 : schedule.owner(w.tile);
            float4* partial = reinterpret_cast<float4*>(p.partial) + u64(owner * kQuads + quad) * kSplits * (N / 8) * 128 + warp * kWarp + lane;
            for (u32 s = w.from; s < w.to; s++) {
                const u32 pairs = split_begin(p, s + 1) - split_begin(p, s);
                const bool odd = pairs > 0 && 2 * split_begin(p, s + 1) > p.blocks;  // the last pair is half
                float acc[N / 2];
#pragma unroll
                for (int c = 0; c < N / 2; c++) acc[c] = 0;
                if (!mine) skip(pairs, at);
                else if (narrow) split<kNvfp4>(acc, pairs, odd, at, quad * kQuad + warp, lane);
                else split<kBf16>(acc, pairs, odd, at, quad * kQuad + warp, lane);
                if (whole) {
#pragma unroll
                    for (int c = 0; c < N / 2; c++) total[c] = total[c] + acc[c];
                } else if (mine) {
#pragma unroll
                    for (int j = 0; j < N / 8; j++)
                        partial[(s * (N / 8) + j) * 128] = make_float4(acc[4 * j], acc[4 * j + 1], acc[4 * j + 2], acc[4 * j + 3]);
                }
            }
            if (!mine) continue;
            if (!whole) {
                u32* arrived = p.arrived + owner * kQuads + quad;
                __threadfence();
                asm volatile("bar.sync %0, 128;" ::"r"(quad + 1) : "memory");
                if (warp == 0 && lane == 0) last[quad] = atomicAdd(arrived, w.to - w.from) + w.to - w.from == kSplits;
                asm volatile("bar.sync %0, 128;" ::"r"(quad + 1) : "memory");
                if (!last[quad]) continue;
                __threadfence();
                if (warp == 0 && lane == 0) *arrived = 0;
#pragma unroll 1
                for (u32 s = 0; s < kSplits; s++) {
#pragma unroll
                    for (int j = 0; j < N / 8; j++) {
                        const float4 v = __ldcg(partial + (s * (N / 8) + j) * 128);
                        total[4 * j] = total[4 * j] + v.x, total[4 * j + 1] = total[4 * j + 1] + v.y;
                        total[4 * j + 2] = total[4 * j + 2] + v.z, total[4 * j + 3] = total[4 * j + 3] + v.w;
                    }
                }
            }
            Epilogue(p, part, unit - part.first_unit, rows, lane).put<N / 8>(total, w.row_tile * N);
        }
    }
};

template <int N, u32 kQuads>
__device__ void linear_wgmma(const Linear& p) {
    constexpr u32 kConsumers = 128 * kQuads;
    extern __shared__ __align__(128) u8 shared[];
    __shared__ u64 full[kMaxStages], empty[kMaxStages + 1];
    __shared__ u32 last[kQuads];
    allow_next();
    if (threadIdx.x == 0) {
        for (u32 s = 0; s < p.stages; s++) {
            barrier_init(full + s, 1);
            barrier_init(empty + s, kConsumers);
        }
        barrier_init(empty + kMaxStages, kConsumers);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    const Tile<N, kQuads> tile(p, shared, full, empty);
    const u32 warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
    if (warp >= kConsumers / kWarp) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kQuads == 2 ? 40 : 32));
        tile.produce(warp - kConsumers / kWarp, lane);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kQuads == 2 ? 232 : 112));
        tile.consume(warp / 4, warp % 4, lane, last);
    }
}

#define ATLAS_LINEAR_WGMMA(N, QUADS)                                                                                       \
    extern "C" __global__ void __launch_bounds__(128 * (QUADS + 1), 1) linear_wgmma_##N(const __grid_constant__ Linear p) { \
        linear_wgmma<N, QUADS>(p);                                                                                         \
    }
#else
#define ATLAS_LINEAR_WGMMA(N, QUADS)                                                                                       \
    extern "C" __global__ void __launch_bounds__(128 * (QUADS + 1), 1) linear_wgmma_##N(const __grid_constant__ Linear p) {}
#endif

ATLAS_LINEAR_WGMMA(16, 4)
ATLAS_LINEAR_WGMMA(32, 4)
ATLAS_LINEAR_WGMMA(64, 2)
ATLAS_LINEAR_WGMMA(128, 2)
