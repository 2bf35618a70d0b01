// From rows of logits to tokens, with the result of the host's sampler on the same logits.
//
// Two launches. `row_maxima` finds the best token of every chunk of 128 logits and of every part of 2,048; `choose`
// then knows each row's largest logit and does what the row's request asks for: the best token, the best
// (logit − largest) / temperature + noise, or the k best tokens. Every comparison is of 64-bit keys that order all
// tokens (ties go to the lower id), so that neither threads nor parts can change a result.

#include "gumbel.cuh"
#include "step.cuh"

enum Kind : u32 {
    kLogits = 0,  // the host looks at the row itself
    kGreedy = 1,
    kSample = 2,
    kTop = 3,
};

/// What is asked of a row.
struct Selection {
    u32 kind;
    u32 k;              // kTop: at most kMaxTop
    float temperature;  // kSample: positive
    u32 reserved;
    u64 seed;
    u64 position;
};

enum Status : u32 {
    kChosen = 0,
    kNotANumber = 1,      // `token` is the first whose logit is NaN or infinite
    kNothingAllowed = 2,  // every logit is minus infinity
};

struct Choice {
    u32 status;
    u32 token;
    u32 candidates;  // kTop: how many
    u32 reserved;
};

struct Candidate {
    u32 id;
    float logit;
};

struct SampleArgs {
    Step step;
    const float* logits;          // [rows][vocab]
    const Selection* selections;  // [rows]
    Choice* choices;              // [rows], in host memory
    Candidate* candidates;        // [rows][kMaxTop], in host memory
    u64* chunk_best;              // [rows][chunks]
    u64* part_best;               // [rows][parts]
    u64* part_choice;             // [rows][parts]
    u32* arrived;                 // [rows], zero between launches
    u32 vocab;
    u32 chunks;                   // of 128, a row
    u32 parts;                    // of 2,048, a row
    u32 reserved;
};

constexpr u32 kThreads = 256;
constexpr u32 kWarps = kThreads / kWarp;
constexpr u32 kChunk = 128;
constexpr u32 kPart = 2048;
constexpr u32 kLaneIds = 4;  // consecutive ids of a chunk that a lane has, and those of a Philox block
constexpr u32 kLaneChunks = kPart / kChunk / kWarps;
constexpr u32 kMaxTop = 256;
/// Keys that `choose` can rank in shared memory.
constexpr u32 kListed = 1024;

namespace {

// ---- Keys ----

constexpr u32 kUnusable = 0xFFFFFFFFu;
constexpr u32 kMinusInfinity = 0x007FFFFFu;

/// Ascends with the number, not a NaN; both zeros are one.
__device__ u32 ordered(float value) {
    const u32 bits = __float_as_uint(value + 0.0f);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
__device__ float from_ordered(u32 key) {
    return __uint_as_float(key & 0x80000000u ? key & 0x7FFFFFFFu : ~key);
}
/// A logit that is NaN or plus infinity ranks above all: the best key of a row tells whether it can be used.
__device__ u32 logit_key(float logit) { return logit < __uint_as_float(0x7F800000u) ? ordered(logit) : kUnusable; }

/// Ranks the larger value first, then the lower id. No key of a token is 0.
__device__ u64 ranked(u32 key, u32 id) { return u64(key) << 32 | ~id; }
__device__ u32 key_of(u64 rank) { return u32(rank >> 32); }
__device__ u32 id_of(u64 rank) { return ~u32(rank); }

__device__ u64 larger(u64 a, u64 b) { return a > b ? a : b; }

__device__ u64 warp_larger(u64 value) {
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) value = larger(value, __shfl_xor_sync(0xFFFFFFFFu, value, offset));
    return value;
}

// ---- Reading logits ----

/// A lane's logits of a chunk; ids beyond the vocabulary are minus infinity.
struct alignas(16) Lane {
    float logit[kLaneIds];
};

__device__ Lane load_lane(const SampleArgs& a, u32 row, u32 first_id) {
    const float* from = a.logits + u64(row) * a.vocab + first_id;
    Lane lane;
    if (a.vocab % kLaneIds == 0) {
        if (first_id < a.vocab) {
            *reinterpret_cast<float4*>(lane.logit) = *reinterpret_cast<const float4*>(from);
            return lane;
        }
    }
#pragma unroll
    for (u32 i = 0; i < kLaneIds; i++) {
        lane.logit[i] = first_id + i < a.vocab ? from[i] : __uint_as_float(0xFF800000u);
    }
    return lane;
}

__device__ u64 best_of_list(const u64* list, u32 count) {
    u64 best = 0;
    for (u32 at = threadIdx.x % kWarp; at < count; at += kWarp) best = larger(best, list[at]);
    return warp_larger(best);
}

/// The largest of the block's values, in every thread.
__device__ u32 block_larger(u32 value, u32* shared) {
    value = __reduce_max_sync(0xFFFFFFFFu, value);
    if (threadIdx.x % kWarp == 0) shared[threadIdx.x / kWarp] = value;
    __syncthreads();
#pragma unroll
    for (u32 warp = 0; warp < kWarps; warp++) value = max(value, shared[warp]);
    __syncthreads();
    return value;
}
__device__ u64 block_larger(u64 value, u64* shared) {
    value = warp_larger(value);
    if (threadIdx.x % kWarp == 0) shared[threadIdx.x / kWarp] = value;
    __syncthreads();
#pragma unroll
    for (u32 warp = 0; warp < kWarps; warp++) value = larger(value, shared[warp]);
    __syncthreads();
    return value;
}

// ---- Sampling ----

struct NoiseShared {
    u32 reduced[kWarps];
    u64 ranks[kWarps];
    u32 survivors[kPart];
    u32 count;
};

/// The best score + noise of every `gridDim.x`-th part, as a rank; 0 if no token of them can win.
__device__ u64 best_noisy(const SampleArgs& a, const Selection& s, u32 row, float largest, NoiseShared& shared) {
    const auto score = [&](float logit) { return (logit - largest) / s.temperature; };
    // Estimates first: the exact noise is computed only where it may be the best. The likeliest token has at least
    // `kMinGumbel`, so what is below cannot win.
    float floor = kMinGumbel - kGumbelMargin;
    u64 best = 0;
    for (u32 part = blockIdx.x; part < a.parts; part += gridDim.x) {
        const auto first_id = [&](u32 i) { return part * kPart + (i * kThreads + threadIdx.x) * kLaneIds; };
        Lane lanes[kLaneChunks];
#pragma unroll
        for (u32 i = 0; i < kLaneChunks; i++) lanes[i] = load_lane(a, row, first_id(i));
        float estimates[kLaneChunks][kLaneIds];
        float most = floor;
#pragma unroll
        for (u32 i = 0; i < kLaneChunks; i++) {
            const Words words = philox(first_id(i) / kLaneIds, s.position, s.seed);
#pragma unroll
            for (u32 j = 0; j < kLaneIds; j++) {
                estimates[i][j] = score(lanes[i].logit[j]) + estimated_gumbel(words.word[j]);
                most = fmaxf(most, estimates[i][j]);
            }
        }
        if (threadIdx.x == 0) shared.count = 0;
        floor = from_ordered(block_larger(ordered(most), shared.reduced));
#pragma unroll
        for (u32 i = 0; i < kLaneChunks; i++) {
#pragma unroll
            for (u32 j = 0; j < kLaneIds; j++) {
                // Both may be off by the margin.
                if (estimates[i][j] < floor - 2.0f * kGumbelMargin) continue;
                shared.survivors[atomicAdd(&shared.count, 1)] = first_id(i) + j;
            }
        }
        __syncthreads();
        for (u32 at = threadIdx.x; at < shared.count; at += kThreads) {
            const u32 id = shared.survivors[at], lane = id % kLaneIds;
            const Words words = philox(id / kLaneIds, s.position, s.seed);
            const u32 low = lane & 1 ? words.word[1] : words.word[0], high = lane & 1 ? words.word[3] : words.word[2];
            const float value = score(a.logits[u64(row) * a.vocab + id]) + exact_gumbel(lane & 2 ? high : low);
            best = larger(best, ranked(ordered(value), id));
        }
        __syncthreads();
    }
    return block_larger(best, shared.ranks);
}

/// Publishes a block's result. In the block of the row that arrives last it returns the best of all, elsewhere 0.
__device__ u64 last_of_row(const SampleArgs& a, u32 row, u64 result) {
    __shared__ u32 before;
    u64* results = a.part_choice + u64(row) * a.parts;
    if (threadIdx.x == 0) {
        __stcg(&results[blockIdx.x], result);
        __threadfence();
        before = atomicAdd(&a.arrived[row], 1);
    }
    __syncthreads();
    if (before + 1 < gridDim.x) return 0;
    __threadfence();
    u64 best = 0;
    for (u32 at = threadIdx.x % kWarp; at < gridDim.x; at += kWarp) best = larger(best, __ldcg(&results[at]));
    if (threadIdx.x == 0) a.arrived[row] = 0;
    return warp_larger(best);
}

// ---- The k best ----

constexpr u32 kBins = 256;
static_assert(kBins == kThreads, "a thread a bin");

struct TopShared {
    u64 list[kListed];
    u64 sorted[kMaxTop];
    u32 chunks[kMaxTop];
    u32 bins[kBins];
    u32 warp_totals[kWarps];
    u32 chunk_count;
    u32 count;
    u32 digit;
    u32 above;
};

/// Chunks and tokens of which a thread loads several before it looks at the first.
constexpr u32 kAhead = 4;

/// One row whose best tokens are looked for by all threads of a block.
struct Top {
    const SampleArgs& a;
    u32 row;
    TopShared& shared;

    /// Visits the best of every chunk, each in one thread.
    template <typename Visit>
    __device__ void each_chunk(Visit visit) const {
        for (u32 chunk = threadIdx.x; chunk < a.chunks; chunk += kAhead * kThreads) {
            u64 ranks[kAhead];
#pragma unroll
            for (u32 i = 0; i < kAhead; i++) {
                const u32 at = chunk + i * kThreads;
                ranks[i] = at < a.chunks ? a.chunk_best[u64(row) * a.chunks + at] : 0;
            }
#pragma unroll
            for (u32 i = 0; i < kAhead; i++) {
                if (ranks[i] != 0) visit(ranks[i], chunk + i * kThreads);
            }
        }
    }

    /// Visits every token of the chosen chunks, each in one thread.
    template <typename Visit>
    __device__ void each_token(Visit visit) const {
        for (u32 at = threadIdx.x / kWarp * kAhead; at < shared.chunk_count; at += kAhead * kWarps) {
            u32 ids[kAhead];
            Lane lanes[kAhead];
#pragma unroll
            for (u32 i = 0; i < kAhead; i++) {
                const u32 chunk = at + i < shared.chunk_count ? shared.chunks[at + i] : a.chunks;
                ids[i] = chunk * kChunk + threadIdx.x % kWarp * kLaneIds;
                lanes[i] = load_lane(a, row, ids[i]);
            }
#pragma unroll
            for (u32 i = 0; i < kAhead; i++) {
#pragma unroll
                for (u32 j = 0; j < kLaneIds; j++) {
                    if (ids[i] + j < a.vocab) visit(ranked(logit_key(lanes[i].logit[j]), ids[i] + j));
                }
            }
        }
    }

    /// The k-th largest of the chunks' best or of the chosen chunks' tokens, or a bound between it and the next
    /// smaller; 0 if there are fewer. Digit by digit from the top.
    template <bool kTokens>
    __device__ u64 kth_largest(u32 k) const {
        const u32 warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
        u64 prefix = 0;
        for (int shift = 56; shift >= 0; shift -= 8) {
            shared.bins[threadIdx.x] = 0;
            if (threadIdx.x == 0) shared.digit = kBins;
            __syncthreads();
            const auto count = [&](u64 rank) {
                if (shift != 56 && rank >> (shift + 8) != prefix) return;
                atomicAdd(&shared.bins[u32(rank >> shift) % kBins], 1);
            };
            if constexpr (kTokens) {
                each_token(count);
            } else {
                each_chunk([&](u64 rank, u32) { count(rank); });
            }
            __syncthreads();
            // Ranks with this thread's digit or a larger one.
            const u32 own = shared.bins[threadIdx.x];
            u32 reached = own;
#pragma unroll
            for (u32 offset = 1; offset < kWarp; offset *= 2) {
                const u32 other = __shfl_down_sync(0xFFFFFFFFu, reached, offset);
                if (lane + offset < kWarp) reached += other;
            }
            if (lane == 0) shared.warp_totals[warp] = reached;
            __syncthreads();
            for (u32 later = warp + 1; later < kWarps; later++) reached += shared.warp_totals[later];
            if (reached >= k && reached - own < k) {
                shared.digit = threadIdx.x;
                shared.above = reached - own;
            }
            __syncthreads();
            if (shared.digit == kBins) return 0;
            prefix = prefix << 8 | shared.digit;
            k -= shared.above;
            const bool whole = shared.bins[shared.digit] == k;
            __syncthreads();
            // Everything with this prefix is among the k.
            if (whole) return prefix << shift;
        }
        return prefix;
    }

    /// Lists the tokens from `least` on and returns their number; more than `kListed` are not all listed.
    __device__ u32 list_from(u64 least) const {
        if (threadIdx.x == 0) shared.count = 0;
        __syncthreads();
        each_token([&](u64 rank) {
            if (rank < least) return;
            const u32 at = atomicAdd(&shared.count, 1);
            if (at < kListed) shared.list[at] = rank;
        });
        __syncthreads();
        return shared.count;
    }

    /// Writes the k best tokens in order.
    __device__ void write(u32 k) const {
        // At least k tokens reach the k-th best of the chunks' best, and none of them is in another chunk.
        const u64 bound = kth_largest<false>(k);
        if (threadIdx.x == 0) shared.chunk_count = 0;
        __syncthreads();
        each_chunk([&](u64 rank, u32 chunk) {
            if (rank >= bound) shared.chunks[atomicAdd(&shared.chunk_count, 1)] = chunk;
        });
        __syncthreads();
        u32 count = list_from(bound);
        if (count > kListed) {
            const u64 exact = kth_largest<true>(k);
            count = list_from(exact);
        }
        // Ranks are distinct: a token's place is the number of larger ones.
        for (u32 at = threadIdx.x; at < count; at += kThreads) {
            const u64 rank = shared.list[at];
            u32 place = 0;
#pragma unroll 8
            for (u32 other = 0; other < count; other++) place += shared.list[other] > rank;
            if (place < k) shared.sorted[place] = rank;
        }
        __syncthreads();
        for (u32 at = threadIdx.x; at < k; at += kThreads) {
            const u64 rank = shared.sorted[at];
            a.candidates[u64(row) * kMaxTop + at] = {id_of(rank), from_ordered(key_of(rank))};
        }
    }
};

}  // namespace

/// The best of every chunk and part: `gridDim` = (parts, row capacity).
extern "C" __global__ void __launch_bounds__(kThreads) row_maxima(SampleArgs a) {
    __shared__ u64 shared[kWarps];
    allow_next();
    wait_for_previous();
    const u32 row = blockIdx.y, lane = threadIdx.x % kWarp;
    const u32 first_chunk = (blockIdx.x * kWarps + threadIdx.x / kWarp) * kLaneChunks;
    // Loaded before it is known whether the row exists: the buffer has room for it.
    Lane lanes[kLaneChunks];
#pragma unroll
    for (u32 i = 0; i < kLaneChunks; i++) lanes[i] = load_lane(a, row, (first_chunk + i) * kChunk + lane * kLaneIds);
    const u32 rows = a.step.counts->logit_rows, kind = a.selections[row].kind;
    if (row >= rows || kind == kLogits) return;
    u64 part_best = 0;
#pragma unroll
    for (u32 i = 0; i < kLaneChunks; i++) {
        u32 key = 0, at = 0;
#pragma unroll
        for (u32 j = 0; j < kLaneIds; j++) {
            const u32 other = logit_key(lanes[i].logit[j]);
            if (other > key) key = other, at = j;
        }
        // Lower lanes have lower ids.
        const u32 best = __reduce_max_sync(0xFFFFFFFFu, key);
        const u32 winner = __ffs(__ballot_sync(0xFFFFFFFFu, key == best)) - 1;
        const u32 chunk = first_chunk + i;
        const u64 rank = ranked(best, chunk * kChunk + winner * kLaneIds + __shfl_sync(0xFFFFFFFFu, at, winner));
        if (chunk < a.chunks) {
            if (lane == 0) a.chunk_best[u64(row) * a.chunks + chunk] = rank;
            part_best = larger(part_best, rank);
        }
    }
    const u64 best = block_larger(part_best, shared);
    if (threadIdx.x == 0) a.part_best[u64(row) * a.parts + blockIdx.x] = best;
}

/// What each row's request asks for: `gridDim` = (blocks that share a row, at most `parts`; row capacity).
extern "C" __global__ void __launch_bounds__(kThreads) choose(SampleArgs a) {
    __shared__ union {
        NoiseShared noise;
        TopShared top;
    } shared;
    allow_next();
    wait_for_previous();
    const u32 row = blockIdx.y, rows = a.step.counts->logit_rows;
    const Selection s = a.selections[row];
    if (row >= rows || s.kind == kLogits || (s.kind != kSample && blockIdx.x > 0)) return;

    const u64 best = best_of_list(a.part_best + u64(row) * a.parts, a.parts);
    Choice choice = {kChosen, id_of(best), 0, 0};
    if (key_of(best) == kUnusable) {
        choice.status = kNotANumber;
    } else if (key_of(best) == kMinusInfinity) {
        choice.status = kNothingAllowed;
    } else if (s.kind == kSample) {
        const u64 chosen = last_of_row(a, row, best_noisy(a, s, row, from_ordered(key_of(best)), shared.noise));
        if (chosen == 0) return;
        choice.token = id_of(chosen);
    } else if (s.kind == kTop) {
        choice.candidates = s.k < a.vocab ? s.k : a.vocab;
        Top{a, row, shared.top}.write(choice.candidates);
    }
    // All blocks that come here have the same choice.
    if (threadIdx.x == 0) a.choices[row] = choice;
}
