// Attention of segments with many rows. A thread block takes 64 pairs of a tile of rows under one KV head after the
// other, those with the longest context first; a warp has sixteen pairs. Keys and values go through a ring in shared
// memory.
#include "attention.cuh"

namespace {

constexpr u32 kWarps = 4;
constexpr u32 kPairs = 16 * kWarps;

/// Running state of a lane's two rows: highest score, Σp, and p·v of dims 8·(lane % 4) .. of every block.
template <u32 Blocks>
struct State {
    float max[2], sum[2], acc[Blocks][4][4];

    __device__ inline void clear() {
#pragma unroll
        for (u32 half = 0; half < 2; half++) max[half] = minus_infinity(), sum[half] = 0.0f;
#pragma unroll
        for (u32 b = 0; b < Blocks; b++) {
#pragma unroll
            for (u32 i = 0; i < 16; i++) acc[b][i / 4][i % 4] = 0.0f;
        }
    }

    /// To and from memory that belongs to this thread: four floats at a time, a thread block's side by side.
    __device__ inline void save(float4* to) const {
        to[0] = make_float4(max[0], max[1], sum[0], sum[1]);
#pragma unroll
        for (u32 b = 0; b < Blocks; b++) {
#pragma unroll
            for (u32 n = 0; n < 4; n++) {
                const float(&x)[4] = acc[b][n];
                to[(1 + b * 4 + n) * kWarps * kWarp] = make_float4(x[0], x[1], x[2], x[3]);
            }
        }
    }

    /// Becomes the merge of the state in memory with this, the later one.
    __device__ inline void merge_after(const float4* earlier) {
        const float4 head = earlier[0];
        float mine[2], later[2], both[2] = {head.x, head.y};
        const float sums[2] = {head.z, head.w};
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
            merge_factors(both[half], max[half], mine[half], later[half]);
            max[half] = both[half];
            sum[half] = merged(sums[half], mine[half], sum[half], later[half]);
        }
#pragma unroll
        for (u32 b = 0; b < Blocks; b++) {
#pragma unroll
            for (u32 n = 0; n < 4; n++) {
                const float4 x = earlier[(1 + b * 4 + n) * kWarps * kWarp];
                acc[b][n][0] = merged(x.x, mine[0], acc[b][n][0], later[0]);
                acc[b][n][1] = merged(x.y, mine[0], acc[b][n][1], later[0]);
                acc[b][n][2] = merged(x.z, mine[1], acc[b][n][2], later[1]);
                acc[b][n][3] = merged(x.w, mine[1], acc[b][n][3], later[1]);
            }
        }
    }
};

/// Stores a warp's sixteen pairs through `rows`, 1,024 bytes a block of the warp's own.
template <u32 Blocks>
__device__ inline void store(const AttentionArgs& a, const State<Blocks>& state, u8* rows, u32 lane, u32 row,
                             u32 kv_head, u32 first_pair, u32 pairs) {
    // [pair][unit of 8 dims], units swizzled against bank conflicts.
    const auto unit = [&](u32 pair, u32 index) {
        return rows + (pair * Blocks * 4 + (index ^ (pair % 2 * 4 + pair / 2 % 4))) * 16;
    };
    __syncwarp();
#pragma unroll
    for (u32 half = 0; half < 2; half++) {
        const float factor = a.v_scale / state.sum[half];
#pragma unroll
        for (u32 b = 0; b < Blocks; b++) {
            u32 x[4];
#pragma unroll
            for (u32 n = 0; n < 4; n++) {
                x[n] = attended(state.acc[b][n][2 * half], state.acc[b][n][2 * half + 1], factor);
            }
            *reinterpret_cast<uint4*>(unit(lane / 4 + 8 * half, b * 4 + lane % 4)) = make_uint4(x[0], x[1], x[2], x[3]);
        }
    }
    __syncwarp();
    // Four lanes store sixteen bytes of the packed layout.
    const u32 group = a.heads / a.kv_heads, my_dim = lane % 4 * 16 + lane / 4 % 4 * 4 + lane / 16 * 2;
#pragma unroll 1
    for (u32 i = 0; i < 16 && first_pair + i < pairs; i++) {
        const u32 pair = first_pair + i, head = kv_head * group + pair % group;
#pragma unroll
        for (u32 dim = my_dim; dim < Blocks * kPageBlock; dim += kBlock) {
            const u32 x = *reinterpret_cast<const u32*>(unit(i, dim / 8) + dim % 8 * 2);
            if (dim >= a.head_dim) break;
            const u32 gates = a.gated ? *gates_at(a, row + pair / group, head, dim) : 0;
            store_attended(a, row + pair / group, head, dim, x, gates);
        }
    }
}

/// Blocks: of 32 dims, those of the head or more.
template <u32 Blocks, bool Fp8>
struct Prefill {
    static constexpr u32 kHeadBytes = Blocks * kPageBlockBytes<Fp8>;
    static constexpr u32 kSlotBytes = kTilePages * kHeadBytes;
    static constexpr u32 kQueryBytes = kWarps * Blocks * 2 * 512;
    static constexpr u32 kRing = ring_slots(kSlotBytes);

    const AttentionArgs& a;
    u8* queries;  // operand A: [warp][block][step][lane] of 16 bytes
    u8* stages;   // [slot][page][block]
    u32 blocks, thread;

    /// Item 2t is the keys of tile first + t, item 2t + 1 its values; pages from `end` tokens on are zeros. A warp
    /// copies a page.
    __device__ inline void fetch(u32 item, u32 items, u32 first, const Segment& segment, u32 kv_head, u32 end) const {
        static_assert(kWarps == kTilePages, "a warp a page");
        if (item < items) {
            const u32 warp = thread / kWarp, index = (first + item / 2) * kTilePages + warp;
            const bool real = index * kPageTokens < end;
            const u32 id = real ? a.step.tables[segment.pages + index] : 0;
            const u8* from = (item % 2 == 0 ? a.k : a.v) + page_head<Fp8>(id, a.kv_heads, kv_head, blocks);
            u8* to = stages + item % kRing * kSlotBytes + warp * kHeadBytes;
            copy_chunks<kHeadBytes / 512>(to, from, real ? blocks * kPageBlockBytes<Fp8> : 0, thread % kWarp);
        }
        commit_copies();
    }

    /// Queries of pairs `first_pair` .. + 63 of the rows from `row` on, as operands A.
    __device__ inline void load_queries(u32 row, u32 rows, u32 kv_head, u32 first_pair) const {
        const u32 group = a.heads / a.kv_heads;
        for (u32 i = thread; i < kPairs * Blocks * 4; i += kWarps * kWarp) {
            const u32 e = i / (Blocks * 4), b = i / 4 % Blocks, quad = i % 4, dim = b * kPageBlock + quad * 8;
            const u32 pair = first_pair + e, r = pair / group;
            uint4 x = make_uint4(0, 0, 0, 0);
            if (r < rows && dim < a.head_dim) {
                const u16* from = a.qkv + u64(row + r) * a.width + (kv_head * group + pair % group) * a.q_stride;
                x = *reinterpret_cast<const uint4*>(from + dim);
            }
            const u32 half = e / 8 % 2;
            u32* to = reinterpret_cast<u32*>(queries + (e / 16 * Blocks + b) * 1024 + (e % 8 * 4 + quad) * 16);
            to[half] = query_pair<Fp8>(x.x), to[2 + half] = query_pair<Fp8>(x.y);
            to[128 + half] = query_pair<Fp8>(x.z), to[130 + half] = query_pair<Fp8>(x.w);
        }
    }
};

template <u32 Blocks, bool Fp8>
__device__ inline void attend(const AttentionArgs& a) {
    using Kernel = Prefill<Blocks, Fp8>;
    extern __shared__ __align__(128) u8 shared[];
    const u32 thread = threadIdx.x, warp = thread / kWarp, lane = thread % kWarp;
    constexpr u32 kRing = Kernel::kRing;
    const u32 group = a.heads / a.kv_heads, blocks = (a.head_dim + kPageBlock - 1) / kPageBlock;
    const Kernel kernel{a, shared, shared + Kernel::kQueryBytes, blocks, thread};
    const u8* my_queries = kernel.queries + warp * Blocks * 1024 + lane * 16;
    constexpr u32 kStateWords = (1 + Blocks * 4) * kWarps * kWarp;
    float4* const saved = reinterpret_cast<float4*>(a.states) + u64(blockIdx.x) * kStateWords + thread;
    allow_next();
    wait_for_previous();

    // A tile of rows has `group` parts of 64 pairs under each KV head.
    const u32 tiles = a.step.counts->tiles, work = tiles * a.heads;
    for (u32 round = 0; round * gridDim.x < work; round++) {
        // There and back, so that all thread blocks get as much.
        const u32 item_of_work = round * gridDim.x + (round % 2 ? gridDim.x - 1 - blockIdx.x : blockIdx.x);
        if (item_of_work >= work) continue;
        const Tile row_tile = a.step.tiles[tiles - 1 - item_of_work / a.heads];
        const u32 kv_head = item_of_work % a.heads / group, first_pair = item_of_work % group * kPairs;
        const Segment& segment = a.step.segments[row_tile.segment];
        const u32 rows = min(kTileRows, segment.rows - row_tile.row), pairs = rows * group;
        if (first_pair >= pairs) continue;
        const u32 row = segment.first_row + row_tile.row, start = segment.start + row_tile.row;
        const u32 last = start + min(first_pair + kPairs - 1, pairs - 1) / group;
        const u32 first = visible(start + first_pair / group, a.window).begin / kTileTokens;
        const u32 end = last / kTileTokens + 1, items = 2 * (end - first);

        __syncthreads();  // the previous item is done with shared memory
        for (u32 item = 0; item + 1 < kRing; item++) kernel.fetch(item, items, first, segment, kv_head, last + 1);
        kernel.load_queries(row, rows, kv_head, first_pair);

        u32 positions[2];
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
            const u32 pair = first_pair + warp * 16 + lane / 4 + 8 * half;
            positions[half] = pair < pairs ? start + pair / group : kNowhere;
        }
        State<Blocks> state;
        state.clear();
        bool earlier = false;
        for (u32 tile = first; tile < end; tile++) {
            const u32 item = 2 * (tile - first);
            wait_copies<kRing - 2>();
            __syncthreads();
            kernel.fetch(item + kRing - 1, items, first, segment, kv_head, last + 1);
            const u8* stage = kernel.stages + item % kRing * Kernel::kSlotBytes + lane * 16;
            float scores[kTilePages][2][4] = {};
#pragma unroll
            for (u32 b = 0; b < Blocks; b++) {
                u32 q[2][4];
#pragma unroll
                for (u32 i = 0; i < 2; i++) {
                    const uint4 x = *reinterpret_cast<const uint4*>(my_queries + b * 1024 + i * 512);
                    q[i][0] = x.x, q[i][1] = x.y, q[i][2] = x.z, q[i][3] = x.w;
                }
#pragma unroll
                for (u32 page = 0; page < kTilePages; page++) {
                    Fragment<Fp8> keys;
                    const u8* from = stage + page * Kernel::kHeadBytes + b * kPageBlockBytes<Fp8>;
                    keys.load(from);
#pragma unroll
                    for (u32 i = 0; i < 4; i++) mma<Fp8>(scores[page][i % 2], q[i / 2], keys.b[i][0], keys.b[i][1]);
                }
            }
            float tile_max[2], base[2];
            const u32 position = tile * kTileTokens;
            const Visible sees[2] = {visible(positions[0], a.window), visible(positions[1], a.window)};
            const bool whole = sees[0].has(position, kTileTokens) && sees[1].has(position, kTileTokens);
            if (!__all_sync(0xFFFFFFFFu, whole)) {
#pragma unroll
                for (u32 page = 0; page < kTilePages; page++) {
                    hide(scores[page], position + page * kPageTokens + lane % 4 * 4, sees);
                }
            }
#pragma unroll
            for (u32 half = 0; half < 2; half++) {
                float highest = minus_infinity();
#pragma unroll
                for (u32 i = 0; i < 4 * kTilePages; i++) {
                    highest = fmaxf(highest, scores[i / 4][i / 2 % 2][2 * half + i % 2]);
                }
                highest = quad_max(highest);
                tile_max[half] = highest * a.score_scale;
                base[half] = highest == minus_infinity() ? 0.0f : tile_max[half];
            }
            u32 p[kTilePages][4];
            float tile_sum[4] = {};
#pragma unroll
            for (u32 page = 0; page < kTilePages; page++) {
                weights<Fp8>(scores[page], base, a.score_scale, p[page]);
                mma<Fp8>(tile_sum, p[page], kOnes<Fp8>, kOnes<Fp8>);
            }
            float mine[2], later[2];
#pragma unroll
            for (u32 half = 0; half < 2; half++) {
                merge_factors(state.max[half], tile_max[half], mine[half], later[half]);
                state.sum[half] = merged(state.sum[half], mine[half], tile_sum[2 * half], later[half]);
            }

            wait_copies<kRing - 2>();
            __syncthreads();
            kernel.fetch(item + kRing, items, first, segment, kv_head, last + 1);
            stage = kernel.stages + (item + 1) % kRing * Kernel::kSlotBytes + lane * 16;
#pragma unroll
            for (u32 b = 0; b < Blocks; b++) {
                float tile_acc[4][4] = {};
#pragma unroll
                for (u32 page = 0; page < kTilePages; page++) {
                    Fragment<Fp8> values;
                    values.load(stage + page * Kernel::kHeadBytes + b * kPageBlockBytes<Fp8>);
#pragma unroll
                    for (u32 n = 0; n < 4; n++) mma<Fp8>(tile_acc[n], p[page], values.b[n][0], values.b[n][1]);
                }
#pragma unroll
                for (u32 i = 0; i < 16; i++) {
                    float& x = state.acc[b][i / 4][i % 4];
                    x = merged(x, mine[i / 2 % 2], tile_acc[i / 4][i % 4], later[i / 2 % 2]);
                }
            }
            const bool split_ends = (tile + 1) % kSplitTiles == 0;
            if (!split_ends && tile + 1 < end) continue;
            if (earlier) state.merge_after(saved);
            earlier = true;
            if (tile + 1 == end) break;
            state.save(saved);
            state.clear();
        }
        const u32 my_pair = first_pair + warp * 16;
        store<Blocks>(a, state, shared + warp * Blocks * 1024, lane, row, kv_head, my_pair, pairs);
    }
}

}  // namespace

// The blocks that a kernel is made for; heads with fewer run with blocks of zeros.
#define ATLAS_ATTENTION_PREFILL(BLOCKS, NAME, FP8)                                             \
    extern "C" __global__ void __launch_bounds__(32 * kWarps, 2) NAME(const AttentionArgs a) { \
        attend<BLOCKS, FP8>(a);                                                                \
    }

ATLAS_ATTENTION_PREFILL(2, attention_prefill_64_bf16, false)
ATLAS_ATTENTION_PREFILL(4, attention_prefill_128_bf16, false)
ATLAS_ATTENTION_PREFILL(8, attention_prefill_256_bf16, false)
ATLAS_ATTENTION_PREFILL(2, attention_prefill_64_fp8, true)
ATLAS_ATTENTION_PREFILL(4, attention_prefill_128_fp8, true)
ATLAS_ATTENTION_PREFILL(8, attention_prefill_256_fp8, true)
