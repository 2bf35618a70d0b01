// Linear layers of more than 8 rows on sm_90a: wgmma with the weights as A from registers and x as B from shared memory.
//
// A tile is 128 features (a quad of units for each of two consumer warpgroups) × N rows. One producer warp feeds a ring
// of stages with bulk copies. Thread blocks stay: with many row tiles they take whole tiles in turn; with few, the
// (tile, split) items are cut into equal runs (`cut_tiles`), and the sums of a tile that several thread blocks share meet
// in global memory, where the last to arrive adds them in the order of the splits.
#include "linear.cuh"
#include "wgmma.cuh"

constexpr u32 kQuads = 2;
constexpr u32 kTileUnits = kQuads * kQuad;
constexpr u32 kConsumers = 128 * kQuads;
constexpr u32 kThreads = kConsumers + 128;
constexpr u32 kMaxStages = 16;

__device__ inline void barrier_init(u64* b, u32 arrivals) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(b)), "r"(arrivals) : "memory");
}
__device__ inline void barrier_arrive(u64* b) {
    asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(shared_address(b)) : "memory");
}
__device__ inline void barrier_expect(u64* b, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(shared_address(b)), "r"(bytes) : "memory");
}
__device__ inline void barrier_wait(u64* b, u32 parity) {
    asm volatile(
        "{\n.reg .pred done;\nagain:\nmbarrier.try_wait.parity.shared.b64 done, [%0], %1;\n@!done bra again;\n}" ::"r"(
            shared_address(b)),
        "r"(parity)
        : "memory");
}
__device__ inline void copy_bulk(u32 to, const u8* from, u32 bytes, u64* b) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(shared_address(b))
                 : "memory");
}

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

    __device__ explicit Schedule(const Linear& p) : p(p) {
        tiles = (p.units + kTileUnits - 1) / kTileUnits * p.row_tiles;
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

template <int N>
struct Tile {
    const Linear& p;
    u8* ring;
    u64 *full, *empty;
    u32 x_bytes, unit_bytes, stage;  // of a stage: bytes of one block of x, bytes reserved for one unit, all

    __device__ Tile(const Linear& p, u8* ring, u64* full, u64* empty) : p(p), ring(ring), full(full), empty(empty) {
        u32 format = kNvfp4;
        for (u32 i = 0; i < p.parts; i++) format = p.part[i].format == kBf16 ? kBf16 : format;
        x_bytes = N * 128;
        unit_bytes = block_bytes(format) * p.stage_blocks;
        stage = x_bytes * p.stage_blocks + unit_bytes * kTileUnits;
    }

    // ---- Producer: one warp ----

    __device__ void weights(const Work& w, u32 block, u32 blocks, u32 slot, u32 lane) const {
        const u32 unit = w.features * kTileUnits + lane;
        if (lane >= kTileUnits || unit >= p.units) return;
        const LinearPart& part = part_of(p, unit);
        const u32 bytes = block_bytes(part.format);
        copy_bulk(shared_address(ring) + slot * stage + x_bytes * p.stage_blocks + lane * unit_bytes,
                  part.weight + (u64(unit - part.first_unit) * p.blocks + block) * bytes, blocks * bytes, full + slot);
    }
    __device__ void rows(const Work& w, u32 block, u32 blocks, u32 slot, u32 lane) const {
        const u32 group = w.row_tile * (N / 8);
        if (lane >= blocks) return;
        copy_bulk(shared_address(ring) + slot * stage + lane * x_bytes, p.x + (u64(block + lane) * p.groups + group) * 1024,
                  min(u32(N / 8), p.groups - group) * 1024, full + slot);
    }
    /// Bytes that `weights` and `rows` bring.
    __device__ u32 bytes(const Work& w, u32 blocks) const {
        u32 sum = min(u32(N / 8), p.groups - w.row_tile * (N / 8)) * 1024;
        for (u32 quad = 0; quad < kQuads; quad++) {
            const u32 unit = w.features * kTileUnits + quad * kQuad;
            if (unit < p.units) sum += kQuad * block_bytes(part_of(p, unit).format);
        }
        return sum * blocks;
    }

    __device__ void produce(u32 lane) const {
        // The first stages' weights are asked for before the previous kernel ends.
        Schedule schedule(p);
        Work w;
        u32 early = 0, slot = 0, parity = 1;
        if (schedule.take(w)) {
            const u32 last = split_begin(p.blocks, w.from + 1);
            for (u32 block = split_begin(p.blocks, w.from); block < last && early < p.stages; early++) {
                const u32 blocks = min(p.stage_blocks, last - block);
                if (lane == 0) barrier_expect(full + early, bytes(w, blocks));
                __syncwarp();
                weights(w, block, blocks, early, lane);
                block += blocks;
            }
        }
        wait_for_previous();
        Schedule again(p);
        for (u32 count = 0; again.take(w);)
            for (u32 split = w.from; split < w.to; split++) {
                const u32 last = split_begin(p.blocks, split + 1);
                for (u32 block = split_begin(p.blocks, split); block < last; count++) {
                    const u32 blocks = min(p.stage_blocks, last - block);
                    if (count >= early) {
                        barrier_wait(empty + slot, parity);
                        if (lane == 0) barrier_expect(full + slot, bytes(w, blocks));
                        __syncwarp();
                        weights(w, block, blocks, slot, lane);
                    }
                    rows(w, block, blocks, slot, lane);
                    block += blocks;
                    if (++slot == p.stages) slot = 0, parity ^= 1;
                }
            }
    }

    // ---- Consumers: two warpgroups ----

    struct Place {
        u32 slot, parity;
    };

    template <u32 F>
    __device__ void make(u32 (&a)[4][4], const u8* weights, u32 lane) const {
        Fragment<F> fragment;
        fragment.load(weights, lane);
#pragma unroll
        for (int i = 0; i < 4; i++) fragment.step(i, a[i]);
    }

    __device__ void issue(float (&acc)[N / 2], const u32 (&a)[4][4], u32 x) const {
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
        for (int i = 0; i < 4; i++) wgmma<N>(acc, a[i], x_descriptor(x + i * 256));
        asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    }

    /// One split: a block's fragments are made while the block before is multiplied.
    template <u32 F>
    __device__ void split(float (&acc)[N / 2], u32 blocks, Place& at, u32 unit, u32 lane) const {
        u32 a[2][4][4];
        u32 in_stage = 0;
        auto step = [&](u32 (&now)[4][4], u32 block) {
            if (in_stage == 0) barrier_wait(full + at.slot, at.parity);
            const u32 offset = at.slot * stage;
            make<F>(now, ring + offset + x_bytes * p.stage_blocks + unit * unit_bytes + in_stage * block_bytes(F), lane);
            issue(acc, now, shared_address(ring) + offset + in_stage * x_bytes);
            asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
            // The block before is done; so is its stage if this block begins one.
            if (in_stage == 0 && block > 0) barrier_arrive(empty + (at.slot == 0 ? p.stages : at.slot) - 1);
            if (++in_stage == p.stage_blocks && block + 1 < blocks) {
                in_stage = 0;
                if (++at.slot == p.stages) at.slot = 0, at.parity ^= 1;
            }
        };
        u32 block = 0;
        for (; block + 2 <= blocks; block += 2) {
            step(a[0], block);
            step(a[1], block + 1);
        }
        if (block < blocks) step(a[0], block);
        asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
        if (blocks > 0) {
            barrier_arrive(empty + at.slot);
            if (++at.slot == p.stages) at.slot = 0, at.parity ^= 1;
        }
    }

    __device__ void finish(const Work& w, const LinearPart& part, u32 unit, u32 rows, u32 lane, float (&total)[N / 2]) const {
        const Epilogue epilogue{p, part, unit - part.first_unit, rows, lane};
#pragma unroll
        for (int j = 0; j < N / 8; j++)
            epilogue.put(total[4 * j], total[4 * j + 1], total[4 * j + 2], total[4 * j + 3], w.row_tile * N + 8 * j);
    }

    __device__ void consume(u32 quad, u32 warp, u32 lane, u32* last) const {
        wait_for_previous();
        const u32 rows = min(*reinterpret_cast<const volatile u32*>(p.rows), p.capacity);
        Schedule schedule(p);
        Place at{0, 0};
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
                const u32 blocks = split_begin(p.blocks, s + 1) - split_begin(p.blocks, s);
                float acc[N / 2];
#pragma unroll
                for (int c = 0; c < N / 2; c++) acc[c] = 0;
                if (!mine) skip(blocks, at);
                else if (narrow) split<kNvfp4>(acc, blocks, at, quad * kQuad + warp, lane);
                else split<kBf16>(acc, blocks, at, quad * kQuad + warp, lane);
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
            finish(w, part, unit, rows, lane, total);
        }
    }

    /// A quad that does not exist: only keep the ring going.
    __device__ void skip(u32 blocks, Place& at) const {
        for (u32 block = 0; block < blocks; block += p.stage_blocks) {
            barrier_wait(full + at.slot, at.parity);
            barrier_arrive(empty + at.slot);
            if (++at.slot == p.stages) at.slot = 0, at.parity ^= 1;
        }
    }
};

template <int N>
__device__ void linear_wgmma(const Linear& p) {
    extern __shared__ __align__(128) u8 shared[];
    __shared__ u64 full[kMaxStages], empty[kMaxStages];
    __shared__ u32 last[kQuads];
    allow_next();
    if (threadIdx.x == 0) {
        for (u32 s = 0; s < p.stages; s++) {
            barrier_init(full + s, 1);
            barrier_init(empty + s, kConsumers);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    const Tile<N> tile(p, shared, full, empty);
    const u32 warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
    if (warp >= kConsumers / kWarp) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (warp == kConsumers / kWarp) tile.produce(lane);
        else wait_for_previous();
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        tile.consume(warp / 4, warp % 4, lane, last);
    }
}

#define ATLAS_LINEAR_WGMMA(N)                                                                                              \
    extern "C" __global__ void __launch_bounds__(kThreads, 1) linear_wgmma_##N(const __grid_constant__ Linear p) {         \
        linear_wgmma<N>(p);                                                                                                \
    }
#else
#define ATLAS_LINEAR_WGMMA(N)                                                                                              \
    extern "C" __global__ void __launch_bounds__(kThreads, 1) linear_wgmma_##N(const __grid_constant__ Linear p) {}
#endif

ATLAS_LINEAR_WGMMA(16)
ATLAS_LINEAR_WGMMA(32)
ATLAS_LINEAR_WGMMA(64)
ATLAS_LINEAR_WGMMA(128)
ATLAS_LINEAR_WGMMA(192)
