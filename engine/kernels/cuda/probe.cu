// Yardsticks: how fast this device reads and copies memory.

#include "common.cuh"

struct ProbeArgs {
    const uint4* from;
    uint4* to;  // probe_read: written only if every word read is zero, so that the reads cannot be left out
    u64 count;  // of 16-byte words
};

constexpr u32 kProbeLoads = 8;

extern "C" __global__ void __launch_bounds__(512) probe_read(ProbeArgs a) {
    wait_for_previous();
    const u64 stride = u64(gridDim.x) * blockDim.x;
    u32 any = 0;
    u64 at = u64(blockIdx.x) * blockDim.x + threadIdx.x;
    for (; at + (kProbeLoads - 1) * stride < a.count; at += kProbeLoads * stride) {
        uint4 words[kProbeLoads];
#pragma unroll
        for (u32 i = 0; i < kProbeLoads; i++) words[i] = __ldcs(a.from + at + i * stride);
#pragma unroll
        for (u32 i = 0; i < kProbeLoads; i++) any |= words[i].x | words[i].y | words[i].z | words[i].w;
    }
    for (; at < a.count; at += stride) {
        const uint4 word = __ldcs(a.from + at);
        any |= word.x | word.y | word.z | word.w;
    }
    if (any == 0) a.to[0] = uint4{1, 1, 1, 1};
}

extern "C" __global__ void __launch_bounds__(512) probe_copy(ProbeArgs a) {
    wait_for_previous();
    const u64 stride = u64(gridDim.x) * blockDim.x;
    u64 at = u64(blockIdx.x) * blockDim.x + threadIdx.x;
    for (; at + (kProbeLoads - 1) * stride < a.count; at += kProbeLoads * stride) {
        uint4 words[kProbeLoads];
#pragma unroll
        for (u32 i = 0; i < kProbeLoads; i++) words[i] = __ldcs(a.from + at + i * stride);
#pragma unroll
        for (u32 i = 0; i < kProbeLoads; i++) __stcs(a.to + at + i * stride, words[i]);
    }
    for (; at < a.count; at += stride) __stcs(a.to + at, __ldcs(a.from + at));
}
