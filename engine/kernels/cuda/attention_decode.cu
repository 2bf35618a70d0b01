// Attention of segments with few rows. A thread block is sixteen pairs of one segment under one KV head and a chunk of
// the context; its warps share a tile's keys by pages and its values by dims. It writes the states of whole splits, or
// of single tiles where a context is too short for the splits to fill the device; `attention_merge` merges them.
//
// Keys and values go through shared memory in rings that belong to single lanes: a lane reads what it copied, so that
// copies need no barrier. Positions before the segment's first are older than the step, and are fetched while earlier
// kernels still run.
#include "attention.cuh"

namespace {

constexpr u32 kWarps = 4;

/// A segment's context in units whose states are written: tiles or splits. Unit u is slot u − first.
struct Units {
    bool splits;
    u32 first_tile, end_tile;
    u32 first, count, per_chunk;

    __device__ inline Units(const AttentionArgs& a, const Segment& segment) {
        first_tile = visible(segment.start, a.window).begin / kTileTokens;
        end_tile = (segment.start + segment.rows - 1) / kTileTokens + 1;
        const u32 first_split = first_tile / kSplitTiles, end_split = (end_tile + kSplitTiles - 1) / kSplitTiles;
        splits = 2 * (end_split - first_split) >= a.chunks;
        first = splits ? first_split : first_tile;
        count = splits ? end_split - first_split : end_tile - first_tile;
        per_chunk = (count + a.chunks - 1) / a.chunks;
    }
};

__device__ inline u64 state_at(const AttentionArgs& a, u32 few, u32 kv_head, u32 slot, u32 pair) {
    return ((u64(few) * a.kv_heads + kv_head) * a.slots + slot) * a.pairs + pair;
}

/// Blocks: of 32 dims, those of the head or more.
template <u32 Blocks, bool Fp8>
struct Decode {
    /// Blocks of a warp's values.
    static constexpr u32 kOwn = (Blocks + kWarps - 1) / kWarps;
    static constexpr u32 kParts = Fp8 ? 1 : 2;
    /// Sixteen bytes a lane and slot.
    static constexpr u32 kChunks = (Blocks > kOwn * kTilePages ? Blocks : kOwn * kTilePages) * kParts;
    static constexpr u32 kRing = ring_slots(kChunks * 512 * kWarps);

    const AttentionArgs& a;
    const Segment& segment;
    u32 kv_head, blocks, warp, lane;
    u8* stages;

    __device__ inline u8* stage(u32 slot, u32 chunk) const {
        return stages + ((slot * kWarps + warp) * kChunks + chunk) * 512;
    }

    /// The head's blocks of a page, none if it lies behind the context.
    __device__ inline const u8* page(const u8* pages, u32 index, u32& bytes) const {
        const bool real = index * kPageTokens < segment.start + segment.rows;
        const u32 id = real ? a.step.tables[segment.pages + index] : 0;
        bytes = real ? blocks * kPageBlockBytes<Fp8> : 0;
        return pages + page_head<Fp8>(id, a.kv_heads, kv_head, blocks);
    }

    __device__ inline void fetch_keys(u32 slot, u32 tile) const {
        u32 bytes;
        const u8* from = page(a.k, tile * kTilePages + warp, bytes);
        copy_chunks<Blocks * kParts>(stage(slot, 0), from, bytes, lane);
    }

    __device__ inline void fetch_values(u32 slot, u32 tile) const {
        constexpr u32 kOwnBytes = kOwn * kPageBlockBytes<Fp8>;
#pragma unroll
        for (u32 p = 0; p < kTilePages; p++) {
            u32 bytes;
            const u8* from = page(a.v, tile * kTilePages + p, bytes);
            const u32 skipped = min(bytes, warp * kOwnBytes);
            copy_chunks<kOwn * kParts>(stage(slot, p * kOwn * kParts), from + skipped, bytes - skipped, lane);
        }
    }

    /// Item 2t is the keys of tile first + t, item 2t + 1 its values.
    __device__ inline void fetch(u32 slot, u32 item, u32 items, u32 first) const {
        if (item < items) {
            if (item % 2 == 0) {
                fetch_keys(slot, first + item / 2);
            } else {
                fetch_values(slot, first + item / 2);
            }
        }
        commit_copies();
    }
};

/// Operand A of a query: rows `lane / 4` and 8 further of sixteen pairs, [block][step].
template <u32 Blocks, bool Fp8>
__device__ inline void load_queries(const AttentionArgs& a, const Segment& segment, u32 kv_head, u32 first_pair,
                                    u32 lane, u32 (&q)[Blocks][2][4]) {
    const u32 group = a.heads / a.kv_heads;
#pragma unroll
    for (u32 half = 0; half < 2; half++) {
        const u32 pair = first_pair + lane / 4 + 8 * half, row = pair / group;
        const u16* from =
            a.qkv + u64(segment.first_row + row) * a.width + (kv_head * group + pair % group) * a.q_stride;
#pragma unroll
        for (u32 b = 0; b < Blocks; b++) {
            const u32 dim = b * kPageBlock + lane % 4 * 8;
            uint4 x = make_uint4(0, 0, 0, 0);
            if (row < segment.rows && dim < a.head_dim) x = *reinterpret_cast<const uint4*>(from + dim);
            q[b][0][half] = query_pair<Fp8>(x.x), q[b][0][2 + half] = query_pair<Fp8>(x.y);
            q[b][1][half] = query_pair<Fp8>(x.z), q[b][1][2 + half] = query_pair<Fp8>(x.w);
        }
    }
}

template <u32 Blocks, bool Fp8>
__device__ inline void attend(const AttentionArgs& a) {
    using Kernel = Decode<Blocks, Fp8>;
    extern __shared__ __align__(128) u8 shared[];
    __shared__ float page_max[2][kWarps][16];
    __shared__ uint4 page_weights[2][kWarps][kWarp];
    const u32 warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
    const u32 kv_head = blockIdx.y, parts = (a.pairs + 15) / 16;
    const u32 few = blockIdx.z / parts, first_pair = blockIdx.z % parts * 16;
    allow_next();
    if (few >= a.step.counts->few) return wait_for_previous();
    const Segment& segment = a.step.segments[a.step.few[few]];
    const u32 group = a.heads / a.kv_heads, pairs = segment.rows * group;
    const Units units(a, segment);
    u32 unit = units.first + blockIdx.x * units.per_chunk;
    const u32 unit_end = min(unit + units.per_chunk, units.first + units.count);
    if (unit >= unit_end || first_pair >= pairs) return wait_for_previous();

    const u32 unit_tiles = units.splits ? kSplitTiles : 1;
    const u32 first = max(unit * unit_tiles, units.first_tile), end = min(unit_end * unit_tiles, units.end_tile);
    const u32 blocks = (a.head_dim + kPageBlock - 1) / kPageBlock, items = 2 * (end - first);
    const Kernel kernel{a, segment, kv_head, blocks, warp, lane, shared};
    constexpr u32 kRing = Kernel::kRing;
    bool waited = false;
    for (u32 item = 0; item < kRing; item++) {
        if (!waited && (first + item / 2 + 1) * kTileTokens > segment.start) {
            wait_for_previous();
            waited = true;
        }
        kernel.fetch(item, item, items, first);
    }
    if (!waited) wait_for_previous();

    u32 q[Blocks][2][4];
    load_queries<Blocks, Fp8>(a, segment, kv_head, first_pair, lane, q);
    Visible rows[2];
#pragma unroll
    for (u32 half = 0; half < 2; half++) {
        const u32 pair = first_pair + lane / 4 + 8 * half;
        rows[half] = visible(pair < pairs ? segment.start + pair / group : kNowhere, a.window);
    }
    float max_[2] = {minus_infinity(), minus_infinity()}, sum[2] = {}, acc[Kernel::kOwn][4][4] = {};
    u32 slot = 0;
    for (u32 tile = first; tile < end; tile++) {
        const u32 item = 2 * (tile - first), buffer = tile % 2;
        wait_copies<kRing - 1>();
        float scores[2][4] = {};
#pragma unroll
        for (u32 b = 0; b < Blocks; b++) {
            Fragment<Fp8> keys;
            keys.load(kernel.stage(slot, b * Kernel::kParts) + lane * 16);
#pragma unroll
            for (u32 i = 0; i < 4; i++) mma<Fp8>(scores[i % 2], q[b][i / 2], keys.b[i][0], keys.b[i][1]);
        }
        kernel.fetch(slot, item + kRing, items, first);
        slot = slot + 1 == kRing ? 0 : slot + 1;
        hide(scores, tile * kTileTokens + warp * kPageTokens + lane % 4 * 4, rows);
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
            const float here = fmaxf(fmaxf(scores[0][2 * half], scores[0][2 * half + 1]),
                                     fmaxf(scores[1][2 * half], scores[1][2 * half + 1]));
            const float highest = quad_max(here);
            if (lane % 4 == 0) page_max[buffer][warp][lane / 4 + 8 * half] = highest;
        }
        __syncthreads();
        float tile_max[2], base[2];
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
            float highest = minus_infinity();
#pragma unroll
            for (u32 w = 0; w < kWarps; w++) highest = fmaxf(highest, page_max[buffer][w][lane / 4 + 8 * half]);
            tile_max[half] = highest * a.score_scale;
            base[half] = highest == minus_infinity() ? 0.0f : tile_max[half];
        }
        u32 p[kTilePages][4];
        weights<Fp8>(scores, base, a.score_scale, p[0]);
        page_weights[buffer][warp][lane] = make_uint4(p[0][0], p[0][1], p[0][2], p[0][3]);
        __syncthreads();
#pragma unroll
        for (u32 i = 0; i < kTilePages; i++) {
            const uint4 x = page_weights[buffer][i][lane];
            p[i][0] = x.x, p[i][1] = x.y, p[i][2] = x.z, p[i][3] = x.w;
        }
        wait_copies<kRing - 1>();
        float tile_sum[4] = {}, tile_acc[Kernel::kOwn][4][4] = {};
#pragma unroll
        for (u32 i = 0; i < kTilePages; i++) {
            mma<Fp8>(tile_sum, p[i], kOnes<Fp8>, kOnes<Fp8>);
#pragma unroll
            for (u32 b = 0; b < Kernel::kOwn; b++) {
                Fragment<Fp8> values;
                values.load(kernel.stage(slot, (i * Kernel::kOwn + b) * Kernel::kParts) + lane * 16);
#pragma unroll
                for (u32 n = 0; n < 4; n++) mma<Fp8>(tile_acc[b][n], p[i], values.b[n][0], values.b[n][1]);
            }
        }
        kernel.fetch(slot, item + 1 + kRing, items, first);
        slot = slot + 1 == kRing ? 0 : slot + 1;
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
            float mine, later;
            merge_factors(max_[half], tile_max[half], mine, later);
            sum[half] = merged(sum[half], mine, tile_sum[2 * half], later);
#pragma unroll
            for (u32 b = 0; b < Kernel::kOwn; b++) {
#pragma unroll
                for (u32 n = 0; n < 4; n++) {
#pragma unroll
                    for (u32 h = 0; h < 2; h++) {
                        float& x = acc[b][n][2 * half + h];
                        x = merged(x, mine, tile_acc[b][n][2 * half + h], later);
                    }
                }
            }
        }
        if (tile + 1 < end && (tile + 1) % unit_tiles != 0) continue;
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
            const u32 pair = first_pair + lane / 4 + 8 * half;
            const u64 at = state_at(a, few, kv_head, tile / unit_tiles - units.first, pair);
            if (pair < pairs && warp == 0 && lane % 4 == 0) a.sums[at] = make_float2(max_[half], sum[half]);
#pragma unroll
            for (u32 b = 0; b < Kernel::kOwn; b++) {
                const u32 block = warp * Kernel::kOwn + b;
                float4* to = reinterpret_cast<float4*>(a.states + (at * blocks + block) * kPageBlock) + lane % 4 * 2;
                if (pair < pairs && block < blocks) {
                    const float(&x)[4][4] = acc[b];
                    to[0] = make_float4(x[0][2 * half], x[0][2 * half + 1], x[1][2 * half], x[1][2 * half + 1]);
                    to[1] = make_float4(x[2][2 * half], x[2][2 * half + 1], x[3][2 * half], x[3][2 * half + 1]);
                }
#pragma unroll
                for (u32 n = 0; n < 4; n++) acc[b][n][2 * half] = acc[b][n][2 * half + 1] = 0.0f;
            }
            max_[half] = minus_infinity(), sum[half] = 0.0f;
        }
    }
}

/// Four dims of a pair's state; empty at first.
struct Quarter {
    float max = minus_infinity(), sum = 0.0f;
    float4 acc = make_float4(0.0f, 0.0f, 0.0f, 0.0f);

    /// An empty state takes no part.
    __device__ inline void merge(const Quarter& later) {
        float mine, other;
        merge_factors(max, later.max, mine, other);
        sum = merged(sum, mine, later.sum, other);
        acc.x = merged(acc.x, mine, later.acc.x, other);
        acc.y = merged(acc.y, mine, later.acc.y, other);
        acc.z = merged(acc.z, mine, later.acc.z, other);
        acc.w = merged(acc.w, mine, later.acc.w, other);
    }
};

}  // namespace

/// Threads of `attention_merge`: four dims each.
constexpr u32 kMergeThreads = kMaxHeadDim / 4;

/// Merges the states of a pair's units and stores the attended row. A thread block is a head of a row.
extern "C" __global__ void __launch_bounds__(kMergeThreads) attention_merge(const AttentionArgs a) {
    constexpr u32 kAhead = kSplitTiles;
    const u32 head = blockIdx.x, row = blockIdx.y, few = blockIdx.z, dim = threadIdx.x * 4;
    allow_next();
    if (few >= a.step.counts->few) return wait_for_previous();
    const Segment& segment = a.step.segments[a.step.few[few]];
    if (row >= segment.rows || dim >= a.head_dim) return wait_for_previous();
    const Units units(a, segment);
    const u32 group = a.heads / a.kv_heads, blocks = (a.head_dim + kPageBlock - 1) / kPageBlock;
    const u64 at = state_at(a, few, head / group, 0, row * group + head % group);
    const u32 end = units.first + units.count, to = segment.first_row + row;
    const auto load = [&](u32 step, Quarter(&states)[kAhead]) {
#pragma unroll
        for (u32 i = 0; i < kAhead; i++) {
            const u32 unit = step + i;
            states[i] = Quarter();
            if (unit < units.first || unit >= end) continue;
            const u64 state = at + u64(unit - units.first) * a.pairs;
            states[i].acc = *reinterpret_cast<const float4*>(a.states + state * blocks * kPageBlock + dim);
            const float2 sums = a.sums[state];
            states[i].max = sums.x, states[i].sum = sums.y;
        }
    };
    wait_for_previous();

    // A step is a split's tiles, or as many splits; what lies outside the context is empty.
    u32 step = units.first / kSplitTiles * kSplitTiles;
    Quarter total, next[kAhead];
    load(step, next);
    uint2 gates = make_uint2(0, 0);
    if (a.gated) gates = *reinterpret_cast<const uint2*>(gates_at(a, to, head, dim));
    do {
        Quarter states[kAhead];
#pragma unroll
        for (u32 i = 0; i < kAhead; i++) states[i] = next[i];
        step += kAhead;
        if (step < end) load(step, next);
        if (units.splits) {
#pragma unroll
            for (u32 i = 0; i < kAhead; i++) total.merge(states[i]);
        } else {
#pragma unroll
            for (u32 i = 1; i < kAhead; i++) states[0].merge(states[i]);
            total.merge(states[0]);
        }
    } while (step < end);
    const float factor = a.v_scale / total.sum;
    store_attended(a, to, head, dim, attended(total.acc.x, total.acc.y, factor), gates.x);
    store_attended(a, to, head, dim + 2, attended(total.acc.z, total.acc.w, factor), gates.y);
}

// The blocks that a kernel is made for; heads with fewer run with blocks of zeros.
#define ATLAS_ATTENTION_DECODE(BLOCKS, NAME, FP8)                                              \
    extern "C" __global__ void __launch_bounds__(32 * kWarps, 2) NAME(const AttentionArgs a) { \
        attend<BLOCKS, FP8>(a);                                                                \
    }

ATLAS_ATTENTION_DECODE(2, attention_decode_64_bf16, false)
ATLAS_ATTENTION_DECODE(4, attention_decode_128_bf16, false)
ATLAS_ATTENTION_DECODE(8, attention_decode_256_bf16, false)
ATLAS_ATTENTION_DECODE(2, attention_decode_64_fp8, true)
ATLAS_ATTENTION_DECODE(4, attention_decode_128_fp8, true)
ATLAS_ATTENTION_DECODE(8, attention_decode_256_fp8, true)
