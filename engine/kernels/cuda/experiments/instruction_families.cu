// Which instruction family can serve every row count of y = x·Wᵀ with the same bits in every row, and at what cost?
//
//     instruction_families RESULTS.json          both shapes, checked and timed
//     instruction_families RESULTS.json N K      one shape, checked only (N a multiple of 128, K of 1024)
//
// First every kernel is checked against a double-precision sum on the CPU, then for equal bits across row counts, tiles,
// positions in the tile, what fills unused rows, repetitions and families; then it is timed. Any failed correctness
// check ends the program with status 1; whether bits are equal is a result.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "fma.cuh"
#include "mma_sync.cuh"
#include "wgmma.cuh"

#define CHECK(call)                                                                                      \
    do {                                                                                                 \
        cudaError_t status_ = (call);                                                                    \
        if (status_ != cudaSuccess) {                                                                    \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorString(status_)); \
            exit(1);                                                                                     \
        }                                                                                                \
    } while (0)

constexpr int kMaxRows = 2048, kPadTo = 256;
constexpr int kSplits[] = {1, 2, 4};

// ---- Kernels as a table ----

enum class Family { MmaSync, Wgmma, Fma };
const char* family_name(Family f) { return f == Family::MmaSync ? "mma.sync" : f == Family::Wgmma ? "wgmma" : "fma"; }

struct Variant {
    Family family;
    int rows, features;  // of a tile
    int depth;           // blocks of K that a stage holds
    void (*launch)(const Problem&, cudaStream_t);
};

/// Small row tiles have a thread block a split, so that few rows still fill the device; large ones walk the splits.
constexpr bool splits_in_grid(int tile_rows) { return tile_rows <= 64; }

template <class Tile, void (*Kernel)(const Problem)>
void launch(const Problem& p, cudaStream_t stream) {
    static bool ready = false;
    if (!ready) CHECK(cudaFuncSetAttribute(Kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Tile::kShared));
    ready = true;
    dim3 grid((p.rows + Tile::kRows - 1) / Tile::kRows, p.n / Tile::kFeatures, splits_in_grid(Tile::kRows) ? p.splits : 1);
    Kernel<<<grid, Tile::kThreads, Tile::kShared, stream>>>(p);
}

template <Format F, int R>
void launch_fma(const Problem& p, cudaStream_t stream) {
    fma_linear<F, R><<<dim3((p.rows + R - 1) / R, p.n / 64, p.splits), 32 * kFmaWarps, 0, stream>>>(p);
}

template <Format F, int MT, int NT, int WM, int WN, int Depth, int Stages>
Variant mma() {
    using Tile = MmaTile<F, MT, NT, WM, WN, Depth, Stages>;
    return {Family::MmaSync, Tile::kRows, Tile::kFeatures, Depth, launch<Tile, mma_linear<F, MT, NT, WM, WN, Depth, Stages>>};
}
template <Format F, int Groups, int N, int Depth, int Stages>
Variant wgmma() {
    return {Family::Wgmma, N, 64 * Groups, Depth, launch<WgmmaTile<F, Groups, N, Depth, Stages>, wgmma_linear<F, Groups, N, Depth, Stages>>};
}
template <Format F, int R>
Variant fma() { return {Family::Fma, R, 64, 4, launch_fma<F, R>}; }

template <Format F>
std::vector<Variant> variants() {
    constexpr bool narrow = F == Format::Nvfp4;  // weights of a quarter of the bytes: more columns a stage
    return {
        mma<F, 1, 1, 4, 1, narrow ? 4 : 2, narrow ? 4 : 5>(),
        mma<F, 1, 2, 4, 1, narrow ? 4 : 2, narrow ? 4 : 5>(),
        mma<F, 2, 4, 4, 2, narrow ? 2 : 1, 4>(),
        mma<F, 4, 8, 2, 2, 1, narrow ? 4 : 3>(),
        mma<F, 4, 8, 2, 4, 1, narrow ? 5 : 4>(),
        wgmma<F, 1, 8, narrow ? 4 : 2, narrow ? 4 : 5>(),
        wgmma<F, 1, 16, narrow ? 4 : 2, narrow ? 4 : 5>(),
        wgmma<F, 2, 8, narrow ? 4 : 2, 4>(),
        wgmma<F, 1, 64, narrow ? 2 : 1, narrow ? 4 : 6>(),
        wgmma<F, 2, 64, narrow ? 2 : 1, 4>(),
        wgmma<F, 2, 128, 1, narrow ? 5 : 6>(),
        wgmma<F, 2, 256, 1, narrow ? 5 : 4>(),
        fma<F, 1>(), fma<F, 4>(), fma<F, 16>(),
    };
}

// ---- Small device helpers ----

__global__ void count_differences(const float* a, const float* b, size_t count, unsigned long long* differing, unsigned* worst) {
    for (size_t at = size_t(blockIdx.x) * blockDim.x + threadIdx.x; at < count; at += size_t(gridDim.x) * blockDim.x) {
        int x = __float_as_int(a[at]), y = __float_as_int(b[at]);
        if (x == y) continue;
        atomicAdd(differing, 1ull);
        // Distance on the line of floats, where −0 and +0 are neighbours.
        long long u = x < 0 ? -1ll - (x & 0x7FFFFFFF) : x, v = y < 0 ? -1ll - (y & 0x7FFFFFFF) : y;
        atomicMax(worst, unsigned(min(u > v ? u - v : v - u, 0x7FFFFFFFll)));
    }
}

__global__ void decode_all(uint16_t* out) {  // [127 scales][16 codes][8 positions]
    const uint32_t byte = blockIdx.x, code = byte == 0 ? 0 : threadIdx.x;
    uint32_t codes[4][2], a[4];
    for (auto& pair : codes) pair[0] = pair[1] = code;
    const uint32_t pair = nvfp4_scale_pair(widened_scale(byte)), scale[2] = {pair, pair};
    nvfp4_decode(nvfp4_word(codes), scale, a);
    for (int i = 0; i < 8; i++) out[(byte * 16 + threadIdx.x) * 8 + i] = uint16_t(a[i / 2] >> (16 * (i % 2)));
}

__global__ void nothing() {}

__global__ void __launch_bounds__(512) read_all(const uint4* in, size_t count, uint32_t* out) {
    constexpr int unroll = 8;
    uint32_t sum = 0;
    for (size_t at = size_t(blockIdx.x) * blockDim.x * unroll + threadIdx.x; at < count; at += size_t(gridDim.x) * blockDim.x * unroll) {
        uint4 v[unroll];
#pragma unroll
        for (int i = 0; i < unroll; i++) v[i] = at + i * blockDim.x < count ? __ldcs(in + at + i * blockDim.x) : uint4{};
#pragma unroll
        for (int i = 0; i < unroll; i++) sum ^= v[i].x ^ v[i].y ^ v[i].z ^ v[i].w;
    }
    if (sum == 0x12345678u) *out = sum;
}

template <class T>
T* device_array(size_t count) {
    T* at;
    CHECK(cudaMalloc(&at, count * sizeof(T)));
    return at;
}

double median(std::vector<double> v) {
    std::sort(v.begin(), v.end());
    return v.size() % 2 ? v[v.size() / 2] : (v[v.size() / 2 - 1] + v[v.size() / 2]) / 2;
}

constexpr int kRuns = 15;

/// Median seconds of `work` on the stream, over `kRuns` timed runs after two warm-ups.
template <class Work>
double time_stream(cudaStream_t stream, Work work) {
    cudaEvent_t from, to;
    CHECK(cudaEventCreate(&from));
    CHECK(cudaEventCreate(&to));
    std::vector<double> seconds;
    for (int run = -2; run < kRuns; run++) {
        CHECK(cudaEventRecord(from, stream));
        work();
        CHECK(cudaEventRecord(to, stream));
        CHECK(cudaEventSynchronize(to));
        float ms;
        CHECK(cudaEventElapsedTime(&ms, from, to));
        if (run >= 0) seconds.push_back(ms * 1e-3);
    }
    CHECK(cudaEventDestroy(from));
    CHECK(cudaEventDestroy(to));
    return median(seconds);
}

// ---- The experiment ----

struct Difference { unsigned long long count; unsigned worst; };

/// Buffers of one weight shape and format, and what is done with them.
template <Format F>
struct Case {
    const char* format = F == Format::Bf16 ? "bf16" : "nvfp4";
    int n, k;
    FILE* json;
    cudaStream_t stream;
    size_t weight_bytes;
    int copies;  // of the weight, used in turn so that no run finds it in a cache
    uint8_t* w;
    uint16_t *x_rows, *x;
    float *y, *baseline, *partial;
    uint32_t* arrived;
    unsigned long long* differing;
    unsigned* worst;
    bool sound = true;
    std::vector<Variant> all = variants<F>();

    Case(int n, int k, FILE* json, cudaStream_t stream) : n(n), k(k), json(json), stream(stream) {
        weight_bytes = size_t(n / 64) * (k / kBlock) * kBlockBytes<F>;
        copies = int((size_t(600) << 20) / weight_bytes) + 1;
        w = device_array<uint8_t>(weight_bytes * copies);
        x_rows = device_array<uint16_t>(size_t(kMaxRows + 64) * k);
        x = device_array<uint16_t>(size_t(kMaxRows + kPadTo) * k);
        y = device_array<float>(size_t(kMaxRows) * n);
        baseline = device_array<float>(size_t(kMaxRows) * n);
        partial = device_array<float>(size_t(kMaxRows) * n * 4);
        arrived = device_array<uint32_t>(size_t(kMaxRows) * n / 64);
        differing = device_array<unsigned long long>(1);
        worst = device_array<unsigned>(1);
        CHECK(cudaMemset(arrived, 0, size_t(kMaxRows) * n / 64 * 4));
        make_data(false);
    }
    ~Case() {
        for (void* at : {(void*)w, (void*)x_rows, (void*)x, (void*)y, (void*)baseline, (void*)partial,
                         (void*)arrived, (void*)differing, (void*)worst})
            cudaFree(at);
    }

    void make_data(bool wild) {
        for (int c = 0; c < copies; c++)
            pack_weights<F><<<n / 16 * (k / kBlock) / 4, 128, 0, stream>>>(w + weight_bytes * c, n, k, wild);
        make_x<<<unsigned((size_t(kMaxRows + 64) * k + 255) / 256), 256, 0, stream>>>(x_rows, kMaxRows + 64, k, wild);
        CHECK(cudaGetLastError());
    }

    /// Packs rows first..first + rows; the rows of the last tile beyond them hold `pad`.
    Problem problem(int first, int rows, int splits, uint16_t pad = 0) {
        const int groups = (rows + kPadTo - 1) / kPadTo * kPadTo / 8;
        const size_t threads = size_t(k / kBlock) * groups * 64;
        const uint16_t* from = x_rows + size_t(first) * k;
        pack_x<<<unsigned((threads + 255) / 256), 256, 0, stream>>>(x, from, rows, k, groups, pad);
        CHECK(cudaGetLastError());
        return {w, reinterpret_cast<uint8_t*>(x), from, y, partial, arrived, n, k, rows, groups, splits,
                F == Format::Bf16 ? 1.0f : kNvfp4Global * kNvfp4Bias};
    }

    void run(const Variant& v, const Problem& p) {
        CHECK(cudaMemsetAsync(p.y, 0xFF, size_t(p.rows) * n * 4, stream));  // NaN: an unwritten element is seen
        v.launch(p, stream);
        CHECK(cudaGetLastError());
        CHECK(cudaStreamSynchronize(stream));
    }

    Difference compare(const float* a, const float* b, size_t count) {
        CHECK(cudaMemsetAsync(differing, 0, 8, stream));
        CHECK(cudaMemsetAsync(worst, 0, 4, stream));
        count_differences<<<1024, 256, 0, stream>>>(a, b, count, differing, worst);
        Difference d;
        CHECK(cudaMemcpy(&d.count, differing, 8, cudaMemcpyDeviceToHost));
        CHECK(cudaMemcpy(&d.worst, worst, 4, cudaMemcpyDeviceToHost));
        return d;
    }

    double weight(int feature, int at) const {
        if (F == Format::Bf16) return bf16_to_double(w_value(feature, at, false));
        return e2m1_to_double(nvfp4_code(feature, at)) * e4m3_to_double(nvfp4_scale(feature, at / 16)) * double(kNvfp4Global);
    }

    void emit(const char* kind, const Variant& v, const std::string& fields) {
        fprintf(json, ",\n{\"kind\":\"%s\",\"format\":\"%s\",\"n\":%d,\"k\":%d,\"family\":\"%s\",\"tile_rows\":%d,\"tile_features\":%d,%s}",
                kind, format, n, k, family_name(v.family), v.rows, v.features, fields.c_str());
        fflush(json);
    }

    /// Every kernel and split against the CPU in double precision, on sampled elements of 129 rows.
    void check_against_cpu() {
        constexpr int rows = 129, samples = 768;
        std::vector<int> row(samples), feature(samples);
        std::vector<double> exact(samples), size(samples);
        for (int s = 0; s < samples; s++) {
            row[s] = s < 8 ? (s & 1 ? rows - 1 : 0) : s % rows;
            feature[s] = s < 8 ? (s & 2 ? n - 1 : 0) : int(hash(s, 7, 9) % n);
            for (int at = 0; at < k; at++) {
                double product = bf16_to_double(x_value(row[s], at, false)) * weight(feature[s], at);
                exact[s] += product;
                size[s] += std::fabs(product);
            }
        }
        std::vector<float> got(size_t(rows) * n);
        for (const Variant& v : all)
            for (int splits : kSplits) {
                run(v, problem(0, rows, splits));
                CHECK(cudaMemcpy(got.data(), y, got.size() * 4, cudaMemcpyDeviceToHost));
                double error = 0, norm = 0, worst_sum = 0;
                bool complete = true;
                for (float f : got) complete &= std::isfinite(f);
                for (int s = 0; s < samples; s++) {
                    double e = got[size_t(row[s]) * n + feature[s]] - exact[s];
                    error += e * e;
                    norm += exact[s] * exact[s];
                    worst_sum = std::max(worst_sum, std::fabs(e) / size[s]);
                }
                double relative = std::sqrt(error / norm);
                // An f32 chain that truncates loses at most 2⁻²³ of the running sum a step; 1e-4 leaves room, a wrong
                // operand does not come near it.
                bool good = complete && relative < 1e-4;
                sound &= good;
                char fields[256];
                snprintf(fields, sizeof fields, "\"splits\":%d,\"rows\":%d,\"relative_error\":%.3e,\"worst_error_of_absolute_sum\":%.3e,\"good\":%s",
                         splits, rows, relative, worst_sum, good ? "true" : "false");
                emit("cpu_check", v, fields);
            }
    }

    void emit_equal(const Variant& v, int splits, const char* what, size_t rows, Difference d) {
        char fields[256];
        snprintf(fields, sizeof fields, "\"splits\":%d,\"what\":\"%s\",\"elements\":%zu,\"differing\":%llu,\"worst_ulp\":%u",
                 splits, what, rows * n, d.count, d.worst);
        emit("bits", v, fields);
    }

    /// Bits of every tile and row count against lone rows in the family's smallest tile.
    void check_bits(Family family, int splits) {
        std::vector<Variant> tiles;
        for (const Variant& v : all)
            if (v.family == family) tiles.push_back(v);
        const Variant& smallest = tiles[0];
        // Runs rows first..first + rows and adds the difference from the baseline's same rows.
        auto against_baseline = [&](const Variant& v, Difference& sum, int first, int rows, uint16_t pad = 0) {
            run(v, problem(first, rows, splits, pad));
            const Difference d = compare(y, baseline + size_t(first) * n, size_t(rows) * n);
            sum = {sum.count + d.count, std::max(sum.worst, d.worst)};
        };
        // The baseline: 2048 rows in the smallest tile; first shown to be what lone rows give.
        run(smallest, problem(0, kMaxRows, splits));
        CHECK(cudaMemcpyAsync(baseline, y, size_t(kMaxRows) * n * 4, cudaMemcpyDeviceToDevice, stream));
        Difference lone{};
        for (int row = 0; row < kMaxRows; row += 61) against_baseline(smallest, lone, row, 1);
        emit_equal(smallest, splits, "34 lone rows", 34, lone);
        for (const Variant& v : tiles) {
            Difference count{}, position{}, unused{}, repetition{};
            for (int rows : {1, 3, 4, 16, 64, 129, 2048}) against_baseline(v, count, 0, rows);
            emit_equal(v, splits, "1, 3, 4, 16, 64, 129 and 2048 rows", 1 + 3 + 4 + 16 + 64 + 129 + 2048, count);
            for (int rows : {1, 3, 4, 16, 64, 129}) against_baseline(v, position, 5, rows);
            emit_equal(v, splits, "the same rows at other places in the tile", 1 + 3 + 4 + 16 + 64 + 129, position);
            for (uint16_t pad : {0x7FC0, 0x7F80, 0x4321, 0x0001}) {
                against_baseline(v, unused, 0, 3, pad);
                against_baseline(v, unused, 0, 129, pad);
            }
            emit_equal(v, splits, "NaN, infinity, 161 and a subnormal in unused rows", 4 * 132, unused);
            for (int again = 0; again < 20; again++) against_baseline(v, repetition, 0, 129);
            emit_equal(v, splits, "20 repetitions", 20 * 129, repetition);
        }
    }

    /// Every wgmma tile against the smallest mma.sync tile, wgmma's two places for A, and FMA for comparison; on the
    /// usual data and on wild data, where a product can be 2¹²⁶ times another.
    void check_across_families() {
        for (bool wild : {false, true}) {
            make_data(wild);
            for (int splits : kSplits) {
                run(all[0], problem(0, kMaxRows, splits));
                CHECK(cudaMemcpyAsync(baseline, y, size_t(kMaxRows) * n * 4, cudaMemcpyDeviceToDevice, stream));
                for (const Variant& v : all) {
                    if (v.family == Family::Fma && v.rows != 16) continue;
                    run(v, problem(0, kMaxRows, splits));
                    emit_equal(v, splits, wild ? "against mma.sync, wild data" : "against mma.sync", kMaxRows,
                               compare(y, baseline, size_t(kMaxRows) * n));
                }
                if (F == Format::Nvfp4 || splits > 1) continue;
                Problem p = problem(0, kMaxRows, splits);
                CHECK(cudaMemsetAsync(y, 0xFF, size_t(kMaxRows) * n * 4, stream));
                wgmma_shared_a<64><<<dim3(kMaxRows / 64, n / 64), 128, 0, stream>>>(p);
                CHECK(cudaGetLastError());
                emit_equal({Family::Wgmma, 64, 64, 1, nullptr}, 1, wild ? "A in shared memory, wild data" : "A in shared memory",
                           kMaxRows, compare(y, baseline, size_t(kMaxRows) * n));
            }
        }
        make_data(false);
    }

    void time_all() {
        for (const Variant& v : all)
            for (int splits : kSplits)
                for (int rows : {1, 4, 8, 16, 64, 2048}) {
                    // Tiles that a dispatcher could choose: not mostly empty, not many passes over the weights.
                    bool matrix = v.family != Family::Fma;
                    if (v.rows > std::max(8, 4 * rows)) continue;
                    if (matrix && rows > 4 * v.rows && rows <= 64) continue;
                    if (rows == 2048 && v.rows < (matrix ? 64 : 16)) continue;
                    Problem p = problem(0, rows, splits);
                    const int uses = rows == 2048 ? 2 : copies;
                    cudaGraph_t graph;
                    cudaGraphExec_t exec;
                    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
                    for (int c = 0; c < uses; c++) {
                        p.w = w + weight_bytes * (c % copies);
                        v.launch(p, stream);
                    }
                    CHECK(cudaStreamEndCapture(stream, &graph));
                    CHECK(cudaGraphInstantiate(&exec, graph, 0));
                    double seconds = time_stream(stream, [&] { CHECK(cudaGraphLaunch(exec, stream)); }) / uses;
                    CHECK(cudaGraphExecDestroy(exec));
                    CHECK(cudaGraphDestroy(graph));
                    char fields[256];
                    snprintf(fields, sizeof fields, "\"splits\":%d,\"rows\":%d,\"us\":%.3f,\"weight_gb_per_s\":%.1f,\"tflop_per_s\":%.2f",
                             splits, rows, seconds * 1e6, weight_bytes / seconds * 1e-9, 2.0 * n * k * rows / seconds * 1e-12);
                    emit("time", v, fields);
                }
        const int groups = kMaxRows / 8;
        double seconds = time_stream(stream, [&] {
            pack_x<<<unsigned(size_t(k / kBlock) * groups * 64 / 256), 256, 0, stream>>>(x, x_rows, kMaxRows, k, groups, 0);
        });
        fprintf(json, ",\n{\"kind\":\"pack_x\",\"k\":%d,\"rows\":%d,\"us\":%.3f}", k, kMaxRows, seconds * 1e6);
    }

    bool all_of_it(bool timed) {
        check_against_cpu();
        for (int splits : kSplits)
            for (Family f : {Family::MmaSync, Family::Wgmma, Family::Fma}) check_bits(f, splits);
        check_across_families();
        if (timed) time_all();
        fprintf(stderr, "%s N=%d K=%d: %s\n", format, n, k, sound ? "kernels agree with the CPU" : "A KERNEL IS WRONG");
        return sound;
    }
};

/// Every e2m1 × e4m3 product is a bf16 (host), and the decoder yields exactly it (device).
bool check_decoder(FILE* json) {
    uint16_t* out = device_array<uint16_t>(127 * 16 * 8);
    decode_all<<<127, 16>>>(out);
    CHECK(cudaGetLastError());
    std::vector<uint16_t> got(127 * 16 * 8);
    CHECK(cudaMemcpy(got.data(), out, got.size() * 2, cudaMemcpyDeviceToHost));
    CHECK(cudaFree(out));
    int inexact = 0, wrong = 0;
    for (uint32_t byte = 0; byte < 127; byte++)
        for (uint32_t code = 0; code < 16; code++) {
            double exact = e2m1_to_double(code) * e4m3_to_double(byte);
            union { float f; uint32_t u; } v{float(exact)};
            inexact += double(v.f) != exact || (v.u & 0xFFFF) != 0;
            for (int i = 0; i < 8; i++)
                wrong += bf16_to_double(got[(byte * 16 + code) * 8 + i]) * kNvfp4Bias != exact;
        }
    fprintf(json, ",\n{\"kind\":\"nvfp4_decoder\",\"products\":%d,\"not_a_bf16\":%d,\"decoded\":%d,\"decoded_wrong\":%d}",
            127 * 16, inexact, 127 * 16 * 8, wrong);
    return inexact == 0 && wrong == 0;
}

void probes(FILE* json, cudaStream_t stream, int sms) {
    const size_t bytes = size_t(4) << 30;
    uint8_t *from = device_array<uint8_t>(bytes), *to = device_array<uint8_t>(bytes);
    CHECK(cudaMemset(from, 0x5A, bytes));
    double best = 1e9;
    for (int per_sm : {1, 2, 4, 8})
        best = std::min(best, time_stream(stream, [&] {
            read_all<<<sms * per_sm, 512, 0, stream>>>(reinterpret_cast<const uint4*>(from), bytes / 16, reinterpret_cast<uint32_t*>(to));
        }));
    CHECK(cudaGetLastError());
    double copy = time_stream(stream, [&] { CHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream)); });
    fprintf(json, ",\n{\"kind\":\"probe\",\"bytes\":%zu,\"read_gb_per_s\":%.1f,\"copy_gb_per_s_both_ways\":%.1f}", bytes,
            bytes / best * 1e-9, 2.0 * bytes / copy * 1e-9);
    CHECK(cudaFree(from));
    CHECK(cudaFree(to));
    constexpr int launches = 64;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    for (int i = 0; i < launches; i++) nothing<<<sms, 256, 0, stream>>>();
    CHECK(cudaStreamEndCapture(stream, &graph));
    CHECK(cudaGraphInstantiate(&exec, graph, 0));
    double empty = time_stream(stream, [&] { CHECK(cudaGraphLaunch(exec, stream)); }) / launches;
    CHECK(cudaGraphExecDestroy(exec));
    CHECK(cudaGraphDestroy(graph));
    fprintf(json, ",\n{\"kind\":\"empty_kernel_in_graph\",\"us\":%.3f}", empty * 1e6);
}

int main(int argc, char** argv) {
    std::vector<std::pair<int, int>> shapes{{17408, 5120}, {5120, 17408}};
    const bool timed = argc == 2;
    if (argc == 4) shapes = {{atoi(argv[2]), atoi(argv[3])}};
    if ((argc != 2 && argc != 4) || shapes[0].first <= 0 || shapes[0].first % 128 || shapes[0].second <= 0 || shapes[0].second % 1024) {
        fprintf(stderr, "usage: instruction_families RESULTS.json [N K]   (N a multiple of 128, K of 1024)\n");
        return 2;
    }
    cudaDeviceProp device;
    CHECK(cudaGetDeviceProperties(&device, 0));
    if (device.major != 9) {
        fprintf(stderr, "this comparison needs a device of compute capability 9.0 (wgmma), not %d.%d\n", device.major, device.minor);
        return 1;
    }
    FILE* json = fopen(argv[1], "w");
    if (!json) {
        perror(argv[1]);
        return 1;
    }
    int driver, clock, memory_clock;
    CHECK(cudaDriverGetVersion(&driver));
    CHECK(cudaDeviceGetAttribute(&clock, cudaDevAttrClockRate, 0));
    CHECK(cudaDeviceGetAttribute(&memory_clock, cudaDevAttrMemoryClockRate, 0));
    fprintf(json, "[{\"kind\":\"device\",\"name\":\"%s\",\"sms\":%d,\"l2_bytes\":%d,\"max_clock_khz\":%d,\"memory_clock_khz\":%d,\"cuda_driver\":%d,\"runs\":%d}",
            device.name, device.multiProcessorCount, device.l2CacheSize, clock, memory_clock, driver, kRuns);
    cudaStream_t stream;
    CHECK(cudaStreamCreate(&stream));
    bool good = check_decoder(json);
    if (timed) probes(json, stream, device.multiProcessorCount);
    for (auto [n, k] : shapes) {
        good &= Case<Format::Bf16>(n, k, json, stream).all_of_it(timed);
        good &= Case<Format::Nvfp4>(n, k, json, stream).all_of_it(timed);
    }
    if (timed) probes(json, stream, device.multiProcessorCount);
    fprintf(json, "]\n");
    if (fclose(json) != 0) return 1;
    return good ? 0 : 1;
}
