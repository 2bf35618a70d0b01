// Depthwise causal convolution with SiLU of the rows of prefill tiles: a thread takes `Channels` neighbours of up to
// kRows rows. The thread block of a segment's first rows alone touches its ring: a thread reads the history of its
// channels before it overwrites it.
#include "gated_delta.cuh"

namespace {

constexpr u32 kThreads = 128, kRows = 16, kTogether = 4;

/// The inputs or outputs of a thread's channels at one row.
template <int Channels>
struct alignas(2 * Channels) Inputs {
    u32 pairs[Channels / 2];
};

/// The order of `convolve` in gated_delta.cuh.
template <int Taps, int Channels>
__device__ void convolve_rows(const GatedDelta& p) {
    allow_next();
    wait_for_previous();
    Tile tile;
    if (!nth_tile(p, blockIdx.y, tile)) return;
    const Segment s = p.step.segments[tile.segment];
    const u32 channels = p.channels, channel = (blockIdx.x * kThreads + threadIdx.x) * Channels;
    const u32 first = tile.row + blockIdx.z * kRows, end = min(s.rows, tile.row + kTileRows);
    if (channel >= channels || first >= end) return;
    const u16* projected = p.projected + u64(s.first_row) * p.stride + channel;
    auto input = [&](int row) {
        const u16* from = row >= 0 ? projected + u64(row) * p.stride : earlier_row(p, s, row) + channel;
        return *reinterpret_cast<const Inputs<Channels>*>(from);
    };
    // The last `taps` entries of a row's window are its inputs.
    const int absent = Taps - int(p.taps);
    float weight[Taps][Channels];
    Inputs<Channels> window[Taps - 1 + kTogether];
#pragma unroll
    for (int j = 0; j < Taps; j++) {
        if (j < absent) continue;
        if (j + 1 < Taps) window[j] = input(int(first) + j + 1 - Taps);
#pragma unroll
        for (int c = 0; c < Channels; c++) weight[j][c] = __ldg(p.conv_weight + u64(channel + c) * p.taps + j - absent);
    }
    const u32 last = min(end, first + kRows);
    for (u32 row = first; row < last; row += kTogether) {
#pragma unroll
        for (u32 i = 0; i < kTogether; i++) {
            const u16* from = projected + u64(min(row + i, last - 1)) * p.stride;
            window[Taps - 1 + i] = *reinterpret_cast<const Inputs<Channels>*>(from);
        }
#pragma unroll
        for (u32 i = 0; i < kTogether; i++) {
            Inputs<Channels> y;
#pragma unroll
            for (int c = 0; c < Channels / 2; c++) {
                float low = 0.0f, high = 0.0f;
#pragma unroll
                for (int j = 0; j < Taps; j++) {
                    if (j < absent) continue;
                    low = fmaf(weight[j][2 * c], low_bf16(window[i + j].pairs[c]), low);
                    high = fmaf(weight[j][2 * c + 1], high_bf16(window[i + j].pairs[c]), high);
                }
                y.pairs[c] = to_bf16x2(fast_silu(low), fast_silu(high));
            }
            u16* to = p.convolved + u64(s.first_row + row + i) * channels + channel;
            if (row + i >= last) continue;
            *reinterpret_cast<Inputs<Channels>*>(to) = y;
            u32 slot;
            if (!ends_block(p, s, row + i, slot)) continue;
#pragma unroll
            for (int j = 1; j < Taps; j++) {
                if (j <= absent) continue;
                *reinterpret_cast<Inputs<Channels>*>(history_row(p, slot, Taps - j) + channel) = window[i + j];
            }
        }
#pragma unroll
        for (int j = 0; j + 1 < Taps; j++) window[j] = window[j + kTogether];
    }
    if (first > 0) return;
    for (u32 row = s.rows - min(s.rows, p.ring_rows); row < s.rows; row++) {
        *reinterpret_cast<Inputs<Channels>*>(ring_row(p, s, row) + channel) = input(int(row));
    }
}

}  // namespace

/// Grid: (channels / 1024, tiles, 4); at most 4 taps, channels and the stride of the projections multiples of 8.
extern "C" __global__ void __launch_bounds__(kThreads) causal_conv_tiles(const __grid_constant__ GatedDelta p) {
    convolve_rows<kTaps, 8>(p);
}

/// Grid: (channels / 256, tiles, 4); even channels and stride.
extern "C" __global__ void __launch_bounds__(kThreads) causal_conv_tiles_any(const __grid_constant__ GatedDelta p) {
    convolve_rows<kMaxTaps, 2>(p);
}
