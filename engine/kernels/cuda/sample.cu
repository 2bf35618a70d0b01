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
__device__ u64 block_larger(u64 value, u64* shared) {
    value = warp_larger(value);
    if (threadIdx.x % kWarp == 0) shared[threadIdx.x / kWarp] = value;
    __syncthreads();
    value = shared[0];
#pragma unroll
    for (u32 warp = 1; warp < kWarps; warp++) value = larger(value, shared[warp]);
    __syncthreads();
    return value;
}

// ---- Sampling ----

/// The part's best score + noise, as a rank; 0 if no token of it can win.
__device__ u64 best_noisy(const SampleArgs& a, const Selection& s, u32 row, u32 part, float largest, u64* shared) {
    const u32 first_chunk = (part * kWarps + threadIdx.x / kWarp) * kLaneChunks;
    const auto first_id = [&](u32 i) { return (first_chunk + i) * kChunk + threadIdx.x % kWarp * kLaneIds; };
    const auto score = [&](float logit) { return (logit - largest) / s.temperature; };
    Lane lanes[kLaneChunks];
    Words words[kLaneChunks];
#pragma unroll
    for (u32 i = 0; i < kLaneChunks; i++) lanes[i] = load_lane(a, row, first_id(i));

    // Estimates first: the exact noise is computed only where it may be the part's best. The likeliest token has at
    // least `kMinGumbel`, so what is below cannot win, in any part.
    float estimates[kLaneChunks][kLaneIds];
    float least = kMinGumbel - kGumbelMargin;
#pragma unroll
    for (u32 i = 0; i < kLaneChunks; i++) {
        words[i] = philox(first_id(i) / kLaneIds, s.position, s.seed);
#pragma unroll
        for (u32 j = 0; j < kLaneIds; j++) {
            estimates[i][j] = score(lanes[i].logit[j]) + estimated_gumbel(words[i].word[j]);
            least = fmaxf(least, estimates[i][j]);
        }
    }
    least = from_ordered(key_of(block_larger(ranked(ordered(least), 0), shared))) - 2.0f * kGumbelMargin;
    u64 best = 0;
#pragma unroll
    for (u32 i = 0; i < kLaneChunks; i++) {
#pragma unroll
        for (u32 j = 0; j < kLaneIds; j++) {
            if (estimates[i][j] < least) continue;
            const float value = score(lanes[i].logit[j]) + exact_gumbel(words[i].word[j]);
            best = larger(best, ranked(ordered(value), first_id(i) + j));
        }
    }
    return block_larger(best, shared);
}

/// Publishes a part's result. In the block that arrives last it returns the best of all parts, elsewhere 0.
__device__ u64 last_of_parts(const SampleArgs& a, u32 row, u32 part, u64 result) {
    __shared__ u32 before;
    if (threadIdx.x == 0) {
        __stcg(&a.part_choice[u64(row) * a.parts + part], result);
        __threadfence();
        before = atomicAdd(&a.arrived[row], 1);
    }
    __syncthreads();
    if (before + 1 < a.parts) return 0;
    __threadfence();
    u64 best = 0;
    for (u32 at = threadIdx.x % kWarp; at < a.parts; at += kWarp) {
        best = larger(best, __ldcg(&a.part_choice[u64(row) * a.parts + at]));
    }
    if (threadIdx.x == 0) a.arrived[row] = 0;
    return warp_larger(best);
}

// ---- The k best ----

/// The k-th largest of distinct ranks that `for_each` visits (each rank by one thread), 0 if there are fewer: digit
/// by digit from the top. Every thread of the block takes part and gets it.
template <typename ForEach>
__device__ u64 kth_largest(u32 k, u32* bins, ForEach for_each) {
    __shared__ u32 found_digit, found_above;
    u64 prefix = 0;
    for (int shift = 56; shift >= 0; shift -= 8) {
        bins[threadIdx.x] = 0;
        __syncthreads();
        for_each([&](u64 rank) {
            if (shift == 56 || rank >> (shift + 8) == prefix) atomicAdd(&bins[u32(rank >> shift) & 255], 1);
        });
        __syncthreads();
        // Thread d counts the ranks whose digit is larger than d.
        u32 above = 0;
        for (u32 digit = threadIdx.x + 1; digit < 256; digit++) above += bins[digit];
        if (threadIdx.x == 0 && above + bins[0] < k) found_digit = 256;
        if (above < k && above + bins[threadIdx.x] >= k) {
            found_digit = threadIdx.x;
            found_above = above;
        }
        __syncthreads();
        if (found_digit == 256) return 0;
        prefix = prefix << 8 | found_digit;
        k -= found_above;
        const bool whole = bins[found_digit] == k;
        __syncthreads();
        // All ranks with this prefix are among the k: the smallest number with it bounds them from below.
        if (whole) return prefix << shift;
    }
    return prefix;
}

struct TopShared {
    u64 list[kListed];
    u32 chunks[kMaxTop];
    u32 bins[256];
    u32 chunk_count;
    u32 count;
};

/// Writes the row's k best tokens in order.
__device__ void write_top(const SampleArgs& a, u32 row, u32 k, TopShared& shared) {
    // At least k tokens reach the k-th best of the chunks' best, and none of them is in another chunk.
    const u64* chunk_best = a.chunk_best + u64(row) * a.chunks;
    const u64 bound = kth_largest(k, shared.bins, [&](auto visit) {
        for (u32 chunk = threadIdx.x; chunk < a.chunks; chunk += kThreads) visit(chunk_best[chunk]);
    });
    if (threadIdx.x == 0) shared.chunk_count = 0;
    __syncthreads();
    for (u32 chunk = threadIdx.x; chunk < a.chunks; chunk += kThreads) {
        if (chunk_best[chunk] >= bound) shared.chunks[atomicAdd(&shared.chunk_count, 1)] = chunk;
    }
    __syncthreads();
    const auto for_each_token = [&](auto visit) {
        for (u32 at = threadIdx.x / kWarp; at < shared.chunk_count; at += kWarps) {
            const u32 id = shared.chunks[at] * kChunk + threadIdx.x % kWarp * kLaneIds;
            const Lane lane = load_lane(a, row, id);
#pragma unroll
            for (u32 i = 0; i < kLaneIds; i++) {
                if (id + i < a.vocab) visit(ranked(logit_key(lane.logit[i]), id + i));
            }
        }
    };
    const auto list_from = [&](u64 least) {
        if (threadIdx.x == 0) shared.count = 0;
        __syncthreads();
        for_each_token([&](u64 rank) {
            if (rank < least) return;
            const u32 at = atomicAdd(&shared.count, 1);
            if (at < kListed) shared.list[at] = rank;
        });
        __syncthreads();
    };
    list_from(bound);
    if (shared.count > kListed) {
        const u64 exact = kth_largest(k, shared.bins, for_each_token);
        list_from(exact);
    }
    // Ranks are distinct: a token's place is the number of larger ones.
    const u32 count = shared.count;
    Candidate* out = a.candidates + u64(row) * kMaxTop;
    for (u32 at = threadIdx.x; at < count; at += kThreads) {
        const u64 rank = shared.list[at];
        u32 place = 0;
        for (u32 other = 0; other < count; other++) place += shared.list[other] > rank;
        if (place < k) out[place] = {id_of(rank), from_ordered(key_of(rank))};
    }
}

}  // namespace

/// The best of every chunk and part: `gridDim` = (parts, row capacity).
extern "C" __global__ void __launch_bounds__(kThreads) row_maxima(SampleArgs a) {
    __shared__ u64 shared[kWarps];
    allow_next();
    wait_for_previous();
    const u32 row = blockIdx.y, lane = threadIdx.x % kWarp;
    if (row >= a.step.counts->logit_rows || a.selections[row].kind == kLogits) return;
    const u32 first_chunk = (blockIdx.x * kWarps + threadIdx.x / kWarp) * kLaneChunks;
    Lane lanes[kLaneChunks];
#pragma unroll
    for (u32 i = 0; i < kLaneChunks; i++) lanes[i] = load_lane(a, row, (first_chunk + i) * kChunk + lane * kLaneIds);
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

/// What each row's request asks for: `gridDim` = (parts, row capacity).
extern "C" __global__ void __launch_bounds__(kThreads) choose(SampleArgs a) {
    __shared__ u64 reduced[kWarps];
    __shared__ TopShared top;
    allow_next();
    wait_for_previous();
    const u32 row = blockIdx.y;
    if (row >= a.step.counts->logit_rows) return;
    const Selection s = a.selections[row];
    if (s.kind == kLogits || (s.kind != kSample && blockIdx.x > 0)) return;

    const u64 best = best_of_list(a.part_best + u64(row) * a.parts, a.parts);
    Choice choice = {kChosen, id_of(best), 0, 0};
    if (key_of(best) == kUnusable) {
        choice.status = kNotANumber;
    } else if (key_of(best) == kMinusInfinity) {
        choice.status = kNothingAllowed;
    } else if (s.kind == kSample) {
        const u64 noisy = best_noisy(a, s, row, blockIdx.x, from_ordered(key_of(best)), reduced);
        const u64 chosen = last_of_parts(a, row, blockIdx.x, noisy);
        if (chosen != 0 && threadIdx.x == 0) a.choices[row] = {kChosen, id_of(chosen), 0, 0};
        return;
    } else if (s.kind == kTop) {
        choice.candidates = s.k < a.vocab ? s.k : a.vocab;
        write_top(a, row, choice.candidates, top);
    }
    if (blockIdx.x == 0 && threadIdx.x == 0) a.choices[row] = choice;
}
