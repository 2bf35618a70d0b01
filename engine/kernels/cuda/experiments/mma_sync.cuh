// Family (a): mma.sync.m16n8k16, weights as A (16 features), x as B (8 rows). cp.async pipeline; sm_80 and later.
#pragma once

#include "layout.cuh"

__device__ inline uint32_t shared_address(const void* p) { return uint32_t(__cvta_generic_to_shared(p)); }

__device__ inline void copy_async(uint8_t* to, const uint8_t* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to)), "l"(from) : "memory");
}

__device__ inline void mma_bf16(float* d, const uint32_t a[4], uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ inline void load_matrices(uint32_t b[4], const uint8_t* from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3])
                 : "r"(shared_address(from)));
}

/// WM × WN warps, each MT × 16 features and NT × 8 rows; `Depth` weight blocks of K in one of `Stages` stages.
template <Format F, int MT, int NT, int WM, int WN, int Depth, int Stages>
struct MmaTile {
    static constexpr int kFeatures = 16 * MT * WM, kRows = 8 * NT * WN, kThreads = 32 * WM * WN;
    static constexpr int kWeightBytes = kFeatures / 64 * Depth * kBlockBytes<F>;
    static constexpr int kStageBytes = kWeightBytes + Depth * kRows / 8 * kGroupBytes;
    static constexpr int kShared = kStageBytes * Stages;
    static constexpr int kDepth = Depth;
    static_assert(kFeatures % 64 == 0);
};

template <Format F, int MT, int NT, int WM, int WN, int Depth, int Stages>
__global__ void __launch_bounds__(32 * WM * WN) mma_linear(const Problem p) {
    using Tile = MmaTile<F, MT, NT, WM, WN, Depth, Stages>;
    extern __shared__ __align__(128) uint8_t shared[];
    const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
    const int wm = warp % WM, wn = warp / WM;
    const int blocks = p.k / kBlock, row0 = blockIdx.x * Tile::kRows, feature0 = blockIdx.y * Tile::kFeatures;
    const bool own_split = gridDim.z > 1 || p.splits == 1;
    const int split_stages = blocks / p.splits / Depth;
    const int first = own_split ? blockIdx.z * split_stages : 0;
    const int count = own_split ? split_stages : split_stages * p.splits;

    auto fetch = [&](int stage, int slot) {
        if (stage < count) {
            uint8_t* to = shared + slot * Tile::kStageBytes;
            const int kb = (first + stage) * Depth;
            constexpr int run = Depth * kBlockBytes<F>;
#pragma unroll
            for (int m = 0; m < Tile::kFeatures / 64; m++) {
                const uint8_t* from = p.w + (size_t(feature0 / 64 + m) * blocks + kb) * kBlockBytes<F>;
                for (int at = thread * 16; at < run; at += Tile::kThreads * 16) copy_async(to + m * run + at, from + at);
            }
            constexpr int x_run = Tile::kRows / 8 * kGroupBytes;
#pragma unroll
            for (int d = 0; d < Depth; d++) {
                const uint8_t* from = p.x + (size_t(kb + d) * p.groups + row0 / 8) * kGroupBytes;
                for (int at = thread * 16; at < x_run; at += Tile::kThreads * 16)
                    copy_async(to + Tile::kWeightBytes + d * x_run + at, from + at);
            }
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    };

    float acc[MT][4 * NT] = {};
    const Epilogue epilogue{p, own_split ? int(blockIdx.z) : -1};
    for (int s = 0; s < Stages - 1; s++) fetch(s, s);
    int slot = 0, free = Stages - 1, split = 0, left = split_stages;
    for (int stage = 0; stage < count; stage++) {
        asm volatile("cp.async.wait_group %0;" ::"n"(Stages - 2) : "memory");
        __syncthreads();
        fetch(stage + Stages - 1, free);
        const uint8_t* weights = shared + slot * Tile::kStageBytes;
        free = slot;
        if (++slot == Stages) slot = 0;
        const uint8_t* x = weights + Tile::kWeightBytes + wn * NT * kGroupBytes + lane * 16;
#pragma unroll
        for (int d = 0; d < Depth; d++) {
            Fragment<F> w[MT];
#pragma unroll
            for (int m = 0; m < MT; m++) {
                const int part = wm * MT + m;
                w[m].load(weights + (part / 4 * Depth + d) * kBlockBytes<F>, part % 4, lane);
            }
#pragma unroll
            for (int pair = 0; pair < 2; pair++) {
                uint32_t b[NT][4];
#pragma unroll
                for (int n = 0; n < NT; n++)
                    load_matrices(b[n], x + d * (Tile::kRows / 8) * kGroupBytes + n * kGroupBytes + pair * 512);
#pragma unroll
                for (int i = 0; i < 2; i++) {
#pragma unroll
                    for (int m = 0; m < MT; m++) {
                        uint32_t a[4];
                        w[m].step(2 * pair + i, a);
#pragma unroll
                        for (int n = 0; n < NT; n++) mma_bf16(&acc[m][4 * n], a, b[n][2 * i], b[n][2 * i + 1]);
                    }
                }
            }
        }
        if (--left == 0) {
#pragma unroll
            for (int m = 0; m < MT; m++)
                epilogue.put<NT>(acc[m], row0 + wn * NT * 8 + lane % 4 * 2, feature0 + (wm * MT + m) * 16 + lane / 4, split);
            split++;
            left = split_stages;
        }
    }
    epilogue.finish(blockIdx.y * gridDim.x + blockIdx.x, row0, Tile::kRows, feature0, Tile::kFeatures, thread, Tile::kThreads);
}
