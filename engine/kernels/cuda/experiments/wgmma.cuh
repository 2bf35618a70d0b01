// Family (b): wgmma.m64nNk16, weights as A from registers (64 features a warpgroup), x as B from shared memory.
// One producer warp feeds the consumers by bulk copies that complete on mbarriers; sm_90a only.
#pragma once

#include "layout.cuh"
#include "wgmma_instruction.cuh"

__device__ inline uint32_t smem(const void* p) { return uint32_t(__cvta_generic_to_shared(p)); }

__device__ inline void barrier_init(uint64_t* b, int arrivals) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(smem(b)), "r"(arrivals) : "memory");
}
__device__ inline void barrier_arrive(uint64_t* b) {
    asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(smem(b)) : "memory");
}
__device__ inline void barrier_expect(uint64_t* b, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(smem(b)), "r"(bytes) : "memory");
}
__device__ inline void barrier_wait(uint64_t* b, int parity) {
    asm volatile(
        "{\n.reg .pred done;\nagain:\nmbarrier.try_wait.parity.shared.b64 done, [%0], %1;\n@!done bra again;\n}" ::"r"(smem(b)),
        "r"(parity) : "memory");
}
__device__ inline void copy_bulk(uint8_t* to, const uint8_t* from, int bytes, uint64_t* b) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(smem(to)),
                 "l"(from), "r"(bytes), "r"(smem(b)) : "memory");
}

/// Core matrices without swizzle: 128 bytes apart along K, `kGroupBytes` apart along the rows of x.
__device__ inline uint64_t x_descriptor(uint32_t at) {
    return uint64_t(kGroupBytes >> 4) << 32 | (at >> 4 | uint32_t(128 >> 4) << 16);
}

/// `Groups` consumer warpgroups of 64 features × N rows; `Depth` weight blocks of K in one of `Stages` stages.
template <Format F, int Groups, int N, int Depth, int Stages>
struct WgmmaTile {
    static constexpr int kFeatures = 64 * Groups, kRows = N, kThreads = 128 * (Groups + 1);
    static constexpr int kWeightBytes = Groups * Depth * kBlockBytes<F>;
    static constexpr int kStageBytes = kWeightBytes + Depth * N / 8 * kGroupBytes;
    static constexpr int kShared = kStageBytes * Stages;
    static constexpr int kDepth = Depth;
    static constexpr bool kMoveRegisters = N == 256;  // only there do the accumulators need more than an even share
};

template <Format F, int Groups, int N, int Depth, int Stages>
__global__ void __launch_bounds__(128 * (Groups + 1), 1) wgmma_linear(const Problem p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    using Tile = WgmmaTile<F, Groups, N, Depth, Stages>;
    extern __shared__ __align__(128) uint8_t shared[];
    __shared__ uint64_t full[Stages], empty[Stages];
    const int thread = threadIdx.x, group = thread / 128, warp = thread / 32 % 4, lane = thread % 32;
    const int blocks = p.k / kBlock, row0 = blockIdx.x * N, feature0 = blockIdx.y * Tile::kFeatures;
    const bool own_split = gridDim.z > 1 || p.splits == 1;
    const int split_stages = blocks / p.splits / Depth;
    const int first = own_split ? blockIdx.z * split_stages : 0;
    const int count = own_split ? split_stages : split_stages * p.splits;
    const Epilogue epilogue{p, own_split ? int(blockIdx.z) : -1};

    if (thread == 0) {
        for (int s = 0; s < Stages; s++) {
            barrier_init(full + s, 1);
            barrier_init(empty + s, Groups * 4);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();

    if (group == Groups) {
        if constexpr (Tile::kMoveRegisters) asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
        if (warp == 0 && lane == 0) {
            for (int stage = 0; stage < count; stage++) {
                const int slot = stage % Stages, kb = (first + stage) * Depth;
                uint8_t* to = shared + slot * Tile::kStageBytes;
                if (stage >= Stages) barrier_wait(empty + slot, (stage / Stages - 1) & 1);
                barrier_expect(full + slot, Tile::kStageBytes);
                for (int m = 0; m < Groups; m++)
                    copy_bulk(to + m * Depth * kBlockBytes<F>, p.w + (size_t(feature0 / 64 + m) * blocks + kb) * kBlockBytes<F>,
                              Depth * kBlockBytes<F>, full + slot);
                for (int d = 0; d < Depth; d++)
                    copy_bulk(to + Tile::kWeightBytes + d * N / 8 * kGroupBytes,
                              p.x + (size_t(kb + d) * p.groups + row0 / 8) * kGroupBytes, N / 8 * kGroupBytes, full + slot);
            }
        }
    } else {
        if constexpr (Tile::kMoveRegisters) asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
        float acc[N / 2] = {};
        uint32_t a[2][4][4];
        // Two blocks of 64 columns alternate: one's instructions run while the other's fragments are made.
        constexpr int round = Depth == 1 ? 2 : 1;  // stages
        int slot = 0, before = -1, parity = 0;
        for (int split = 0; split * split_stages < count; split++) {
            for (int stage = 0; stage < split_stages; stage += round) {
#pragma unroll
                for (int r = 0; r < round; r++) {
                    barrier_wait(full + slot, parity);
                    const uint8_t* base = shared + slot * Tile::kStageBytes;
                    const uint32_t x = smem(base + Tile::kWeightBytes);
#pragma unroll
                    for (int d = 0; d < Depth; d++) {
                        uint32_t(&now)[4][4] = a[(r * Depth + d) % 2];
                        Fragment<F> w;
                        w.load(base + (group * Depth + d) * kBlockBytes<F>, warp, lane);
#pragma unroll
                        for (int i = 0; i < 4; i++) w.step(i, now[i]);
                        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
                        for (int i = 0; i < 4; i++) wgmma<N>(acc, now[i], x_descriptor(x + d * (N / 8) * kGroupBytes + i * 256));
                        asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
                        asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
                        // One lane arrives for its warp. racecheck follows the order only if every lane arrives.
                        if (d == 0) __syncwarp();
                        if (d == 0 && before >= 0 && lane == 0) barrier_arrive(empty + before);
                    }
                    before = slot;
                    if (++slot == Stages) slot = 0, parity ^= 1;
                }
            }
            asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
            epilogue.put<N / 8>(acc, row0 + lane % 4 * 2, feature0 + group * 64 + warp * 16 + lane / 4, split);
        }
    }
    if constexpr (!Tile::kMoveRegisters)
        epilogue.finish(blockIdx.y * gridDim.x + blockIdx.x, row0, N, feature0, Tile::kFeatures, thread, Tile::kThreads);
#endif
}

/// Does A from shared memory give the same bits? One block a 64 × N tile, no pipeline: correctness only, K in one chain.
template <int N>
__global__ void __launch_bounds__(128) wgmma_shared_a(const Problem p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    __shared__ __align__(128) uint8_t a_tile[4][2048], x_tile[N / 8 * kGroupBytes];
    const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32, blocks = p.k / kBlock;
    const int row0 = blockIdx.x * N, feature0 = blockIdx.y * 64;
    float acc[N / 2] = {};
    for (int kb = 0; kb < blocks; kb++) {
        Fragment<Format::Bf16> w;
        w.load(p.w + (size_t(blockIdx.y) * blocks + kb) * kBlockBytes<Format::Bf16>, warp, lane);
        for (int i = 0; i < 4; i++) {
            uint32_t a[4];
            w.step(i, a);
            // Core matrices [8 groups of features][2 halves of k16] of 8 features × 16 bytes.
            for (int r = 0; r < 4; r++)
                *reinterpret_cast<uint32_t*>(&a_tile[i][((warp * 2 + (r & 1)) * 2 + (r >> 1)) * 128 + lane * 4]) = a[r];
        }
        const uint8_t* from = p.x + (size_t(kb) * p.groups + row0 / 8) * kGroupBytes;
        for (int at = thread * 16; at < N / 8 * kGroupBytes; at += 128 * 16)
            *reinterpret_cast<uint4*>(x_tile + at) = *reinterpret_cast<const uint4*>(from + at);
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        __syncthreads();
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
        for (int i = 0; i < 4; i++) {
            const uint64_t a = uint64_t(smem(a_tile[i]) >> 4 & 0x3FFF) | uint64_t(128 >> 4) << 16 | uint64_t(256 >> 4) << 32;
            wgmma_shared<N>(acc, a, x_descriptor(smem(x_tile) + i * 256));
        }
        asm volatile("wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;" ::: "memory");
        __syncthreads();
    }
    for (int c = 0; c < N / 2; c++) {
        const int row = row0 + c / 4 * 8 + lane % 4 * 2 + c % 2;
        if (row < p.rows)
            p.y[size_t(row) * p.n + feature0 + warp * 16 + lane / 4 + c / 2 % 2 * 8] = __fmul_rn(acc[c], p.scale);
    }
#endif
}
