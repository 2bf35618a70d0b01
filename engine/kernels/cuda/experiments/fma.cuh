// Family (c): plain FMA. A warp owns 16 features × R rows; a lane's chain runs down its 16 columns of every block in
// ascending order, the four lanes of a row are added as (0 + 1) + (2 + 3). Any CUDA device.
#pragma once

#include "layout.cuh"

__device__ inline float low(uint32_t pair) { return __uint_as_float(pair << 16); }
__device__ inline float high(uint32_t pair) { return __uint_as_float(pair & 0xFFFF0000u); }

constexpr int kFmaWarps = 4;

template <Format F, int R>
__global__ void __launch_bounds__(32 * kFmaWarps) fma_linear(const Problem p) {
    const int thread = threadIdx.x, part = thread / 32, lane = thread % 32, t = lane % 4;
    const int blocks = p.k / kBlock, row0 = blockIdx.x * R, feature0 = blockIdx.y * 64;
    const int count = blocks / p.splits, first = blockIdx.z * count;
    const uint8_t* w = p.w + (size_t(blockIdx.y) * blocks + first) * kBlockBytes<F>;

    float acc[2][R] = {};
    constexpr int ahead = F == Format::Bf16 ? 2 : 4;  // blocks on their way while one is at work
    Fragment<F> ring[ahead];
#pragma unroll
    for (int s = 0; s < ahead; s++) ring[s].load(w + size_t(s) * kBlockBytes<F>, part, lane);
    for (int kb0 = 0; kb0 < count; kb0 += ahead)
#pragma unroll
    for (int slot = 0; slot < ahead; slot++) {
        const int kb = kb0 + slot;
        const Fragment<F> now = ring[slot];
        if (kb + ahead < count) ring[slot].load(w + size_t(kb + ahead) * kBlockBytes<F>, part, lane);
#pragma unroll
        for (int pair = 0; pair < 2; pair++) {
            float weights[2][8];  // features g, g + 8; 8 consecutive columns
#pragma unroll
            for (int i = 0; i < 2; i++) {
                uint32_t a[4];
                now.step(2 * pair + i, a);
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    weights[e & 1][4 * i + 2 * (e >> 1)] = low(a[e]);
                    weights[e & 1][4 * i + 2 * (e >> 1) + 1] = high(a[e]);
                }
            }
#pragma unroll
            for (int r = 0; r < R; r++) {
                const int row = min(row0 + r, p.rows - 1);
                const uint4 x = __ldg(reinterpret_cast<const uint4*>(
                    p.x_rows + size_t(row) * p.k + (first + kb) * kBlock + 16 * t + 8 * pair));
                const uint32_t words[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
                for (int c = 0; c < 8; c++) {
                    const float v = c % 2 ? high(words[c / 2]) : low(words[c / 2]);
                    acc[0][r] = __fmaf_rn(weights[0][c], v, acc[0][r]);
                    acc[1][r] = __fmaf_rn(weights[1][c], v, acc[1][r]);
                }
            }
        }
    }
    const Epilogue epilogue{p, int(blockIdx.z)};
#pragma unroll
    for (int r = 0; r < R; r++)
#pragma unroll
        for (int f = 0; f < 2; f++) {
            float sum = acc[f][r];
            sum = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, 1));
            sum = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, 2));
            if (t == 0) epilogue.put_one(row0 + r, feature0 + part * 16 + lane / 4 + 8 * f, sum);
        }
    epilogue.finish(blockIdx.y * gridDim.x + blockIdx.x, row0, R, feature0, 64, thread, 32 * kFmaWarps);
}
