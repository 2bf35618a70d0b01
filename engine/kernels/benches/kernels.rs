//! Speed of the kernels as fractions of what this machine can do.
//!
//! `cargo bench -p atlas-kernels [-- THREADS [FILTER]]` measures streaming reads and peak fused multiply-adds first and
//! prints every operation beside them: GEMV and attention decode as a part of the bandwidth, GEMM and prefill as a part
//! of the peak.

#![expect(unsafe_code, reason = "the machine's peak is measured with vector instructions")]

use std::hint::black_box;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use atlas_kernels::{
    AttentionArgs, DeltaArgs, DeltaSegment, DeltaState, Dense, KvDtype, KvLayer, KvSegment, LinearPart, PackedMatrix,
    Pool, QkvLayout, attention, gated_delta, linear, rms_norm, rope_and_store, silu_mul,
};

/// Seconds on the clock of `threads` threads at work.
///
/// One thread is timed by its own CPU time where the system has that, so that others on the machine matter less; with
/// more, wall time counts and the machine should be idle.
fn clock(threads: usize) -> f64 {
    #[cfg(all(target_os = "linux", target_pointer_width = "64"))]
    if threads == 1 {
        unsafe extern "C" {
            fn clock_gettime(clock: i32, time: *mut [i64; 2]) -> i32;
        }
        const THREAD_CPU: i32 = 3;
        let mut time = [0; 2];
        // SAFETY: on 64-bit Linux a timespec is two 64-bit integers.
        if unsafe { clock_gettime(THREAD_CPU, &mut time) } == 0 {
            return time[0] as f64 + time[1] as f64 * 1e-9;
        }
    }
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_secs_f64()
}

/// Shortest of several runs, in seconds. Short work is repeated within a run.
fn time(pool: &Pool, mut work: impl FnMut()) -> f64 {
    let timed = |work: &mut dyn FnMut(), times: usize| {
        let start = clock(pool.threads());
        (0..times).for_each(|_| work());
        (clock(pool.threads()) - start) / times as f64
    };
    let once = timed(&mut work, 2);
    let times = ((1e-3 / once.max(1e-7)) as usize).max(1);
    let begin = Instant::now();
    let mut best = f64::MAX;
    let mut runs = 0;
    while runs < 3 || (begin.elapsed() < Duration::from_millis(300) && runs < 100) {
        best = best.min(timed(&mut work, times));
        runs += 1;
    }
    best
}

/// Bytes a second of reading memory larger than the caches.
fn stream(pool: &Pool) -> f64 {
    let mut data: Vec<u64> = Vec::with_capacity(32 << 20);
    prefer_huge_pages(&data);
    data.extend(0..32 << 20);
    let chunk = 1 << 16;
    let seconds = time(pool, || {
        pool.run(data.len() / chunk, &|i| {
            black_box(sum(&data[i * chunk..(i + 1) * chunk]));
        });
    });
    (data.len() * 8) as f64 / seconds
}

/// The kernels' own memory has huge pages where Linux gives them; so has the memory that they are compared with.
fn prefer_huge_pages(data: &Vec<u64>) {
    #[cfg(target_os = "linux")]
    {
        unsafe extern "C" {
            fn madvise(address: *const u64, bytes: usize, advice: i32) -> i32;
        }
        let skip = data.as_ptr().align_offset(64 << 10);
        // SAFETY: advice on whole pages inside the allocation changes no content.
        unsafe { madvise(data.as_ptr().add(skip), ((data.capacity() - skip) * 8) & !0xffff, 14) };
    }
    #[cfg(not(target_os = "linux"))]
    let _ = data;
}

/// Reads all of `data`, in four streams.
fn sum(data: &[u64]) -> u64 {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") {
        use std::arch::x86_64::*;
        #[target_feature(enable = "avx2")]
        fn wide(data: &[u64]) -> u64 {
            let mut sums = [_mm256_setzero_si256(); 4];
            let quarter = data.len() / 4;
            for at in (0..quarter).step_by(8) {
                for (i, sum) in sums.iter_mut().enumerate() {
                    let line = &data[i * quarter + at..][..8];
                    // SAFETY: two vectors of four values from a line of eight.
                    unsafe {
                        *sum = _mm256_xor_si256(*sum, _mm256_loadu_si256(line.as_ptr().cast()));
                        *sum = _mm256_xor_si256(*sum, _mm256_loadu_si256(line[4..].as_ptr().cast()));
                    }
                }
            }
            let all = _mm256_xor_si256(_mm256_xor_si256(sums[0], sums[1]), _mm256_xor_si256(sums[2], sums[3]));
            _mm256_extract_epi64::<0>(all) as u64
        }
        // SAFETY: the CPU has AVX2.
        return unsafe { wide(data) };
    }
    data.iter().fold(0, |sum, value| sum ^ value)
}

/// Multiply-adds a second of all threads, from registers.
fn peak(pool: &Pool) -> f64 {
    const TURNS: usize = 200_000;
    let tasks = 4 * pool.threads();
    let seconds = time(pool, || pool.run(tasks, &|_| chains(TURNS)));
    (tasks * TURNS * 12 * 16) as f64 / seconds
}

/// Twelve chains of `turns` multiply-adds of sixteen lanes.
fn chains(turns: usize) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::*;
        #[target_feature(enable = "avx512f")]
        fn avx512(turns: usize) {
            let (a, b) = black_box((_mm512_set1_ps(0.999), _mm512_set1_ps(0.001)));
            let mut sums = [a; 12];
            for _ in 0..turns {
                for sum in &mut sums {
                    *sum = _mm512_fmadd_ps(*sum, a, b);
                }
            }
            black_box(sums);
        }
        #[target_feature(enable = "avx2,fma")]
        fn avx2(turns: usize) {
            let (a, b) = black_box((_mm256_set1_ps(0.999), _mm256_set1_ps(0.001)));
            let mut sums = [a; 12];
            for _ in 0..2 * turns {
                for sum in &mut sums {
                    *sum = _mm256_fmadd_ps(*sum, a, b);
                }
            }
            black_box(sums);
        }
        if is_x86_feature_detected!("avx512f") {
            // SAFETY: the CPU has AVX-512.
            return unsafe { avx512(turns) };
        }
        if is_x86_feature_detected!("fma") && is_x86_feature_detected!("avx2") {
            // SAFETY: the CPU has AVX2 and FMA.
            return unsafe { avx2(turns) };
        }
    }
    let mut sums = black_box([[1.0_f32; 16]; 12]);
    let (a, b) = black_box((0.999_f32, 0.001_f32));
    for _ in 0..turns {
        sums = sums.map(|lanes| lanes.map(|lane| lane.mul_add(a, b)));
    }
    black_box(sums);
}

fn values(len: usize) -> Vec<f32> {
    (0..len).map(|i| (i as u32).wrapping_mul(2_654_435_761) as f32 / 4e9 - 0.5).collect()
}

struct Bench {
    pool: Pool,
    bandwidth: f64,
    peak: f64,
    filter: String,
}

impl Bench {
    fn report(&self, name: &str, seconds: f64, bytes: f64, multiply_adds: f64) {
        println!(
            "{name:<44} {:>10.1} us  {:>6.1} GB/s {:>4.0} % of reads  {:>7.1} GFLOP/s {:>4.0} % of peak",
            seconds * 1e6,
            bytes / seconds / 1e9,
            100.0 * bytes / seconds / self.bandwidth,
            2.0 * multiply_adds / seconds / 1e9,
            100.0 * multiply_adds / seconds / self.peak,
        );
    }

    fn wants(&self, name: &str) -> bool {
        name.contains(&self.filter)
    }

    fn linear(&self) {
        let (n, k) = (5120, 5120);
        let bytes: Vec<u8> = (0..n * k * 4).map(|i: usize| (i.wrapping_mul(40_503) >> 7) as u8 & 0x3f).collect();
        // Several matrices in turn, so that weights come from memory and not from the cache.
        let formats: [(&str, usize, &dyn Fn() -> PackedMatrix); 4] = [
            ("nvfp4", 4, &|| PackedMatrix::from_nvfp4(n, k, &bytes[..n * k / 2], &bytes[..n * k / 16], 0.01)),
            ("bf16", 2, &|| PackedMatrix::from_dense(Dense::Bf16, n, k, &bytes[..n * k * 2])),
            ("f16", 2, &|| PackedMatrix::from_dense(Dense::F16, n, k, &bytes[..n * k * 2])),
            ("f32", 2, &|| PackedMatrix::from_dense(Dense::F32, n, k, &bytes)),
        ];
        for (format, copies, make) in formats {
            if !self.wants(&format!("linear {format}")) {
                continue;
            }
            let weights: Vec<_> = (0..copies).map(|_| make()).collect();
            for rows in [1, 2, 3, 4, 6, 8, 12, 48, 128, 512] {
                let x = values(rows * k);
                let mut out = vec![0.0; rows * n];
                let mut turn = 0;
                let seconds = time(&self.pool, || {
                    let part = LinearPart { weight: &weights[turn % copies], bias: None, column: 0 };
                    linear(&self.pool, &x, k, rows, &[part], &mut out, n, false, false);
                    turn += 1;
                });
                let name = format!("linear {format} {n} x {k}, {rows} rows");
                self.report(&name, seconds, weights[0].bytes() as f64, (rows * n * k) as f64);
            }
        }
    }

    fn attention(&self) {
        let (heads, kv_heads, dim) = (24, 4, 256);
        let layout = QkvLayout {
            heads,
            kv_heads,
            head_dim: dim,
            q_offset: 0,
            q_head_stride: dim,
            k_offset: heads * dim,
            v_offset: (heads + kv_heads) * dim,
            v_dim: dim,
        };
        let ld = (heads + 2 * kv_heads) * dim;
        for dtype in [KvDtype::F32, KvDtype::Bf16] {
            for (context, rows) in [(1024, 1), (8192, 1), (8192, 4), (512, 512), (4096, 512)] {
                if !self.wants("attention") {
                    continue;
                }
                let pages: Vec<u32> = (0..context as u32 / 16).collect();
                let mut cache = KvLayer::new(dtype, pages.len(), kv_heads, dim, dim);
                let mut qkv = values(context.min(512) * ld);
                for start in (0..context).step_by(512) {
                    let segment = KvSegment { first_row: 0, rows: 512, start, pages: &pages };
                    rope_and_store(&self.pool, &mut qkv, ld, 512, &layout, None, None, &[segment], &mut cache, false);
                }
                let args = AttentionArgs { scale: 0.06, window: None, softcap: None };
                let mut out = vec![0.0; rows * heads * dim];
                let segment = KvSegment { first_row: 0, rows, start: context - rows, pages: &pages };
                let seconds = time(&self.pool, || {
                    attention(
                        &self.pool,
                        &qkv,
                        ld,
                        &layout,
                        &[segment],
                        &cache,
                        &args,
                        None,
                        &mut out,
                        heads * dim,
                        false,
                    );
                });
                let seen: usize = (context - rows + 1..=context).sum();
                let name = format!("attention {dtype:?}, context {context}, {rows} rows");
                self.report(&name, seconds, cache.bytes() as f64, (2 * seen * heads * dim) as f64);
            }
        }
    }

    fn delta(&self) {
        let (k_heads, v_heads, dim) = (16, 48, 128);
        let (a_log, dt_bias) = (values(v_heads), values(v_heads));
        let args = DeltaArgs { k_heads, v_heads, k_dim: dim, v_dim: dim, a_log: &a_log, dt_bias: &dt_bias, eps: 1e-6 };
        let (ldx, width) = ((2 * k_heads + v_heads) * dim, v_heads * dim);
        for (start, rows) in [(64, 1), (95, 1), (126, 1), (96, 4), (64, 64), (64, 512)] {
            if !self.wants("delta") {
                continue;
            }
            let mut state = DeltaState::new(3, 2, k_heads, v_heads, dim, dim);
            let (x, ab) = (values((64 + rows) * ldx), values((64 + rows) * 2 * v_heads));
            let mut out = vec![0.0; (64 + rows) * width];
            let mut run = |start: usize, rows: usize, anchors: &[u32]| {
                let segment = DeltaSegment { first_row: 0, rows, start, anchors, pages: &[1; 9] };
                gated_delta(
                    &self.pool,
                    &x,
                    ldx,
                    &ab,
                    2 * v_heads,
                    0,
                    v_heads,
                    &[segment],
                    &args,
                    &mut state,
                    &mut out,
                    width,
                    false,
                );
            };
            run(0, 64, &[0, 1]);
            if start > 64 {
                run(64, start - 64, &[1]);
            }
            let seconds = time(&self.pool, || run(start, rows, &[1, 2, 2, 2, 2, 2, 2, 2, 2]));
            let bytes = v_heads * dim * dim * 4;
            let open = if rows < 64 { start % 64 + rows / 2 } else { 32 };
            let per_row = v_heads * (2 * dim * dim + 2 * open * dim) + k_heads * 2 * dim * open.next_multiple_of(16);
            let folds = (start % 64 + rows) / 64 * v_heads * dim * dim * 64;
            let name = format!("delta, start {start}, {rows} rows");
            self.report(&name, seconds, bytes as f64, (rows * per_row + folds) as f64);
        }
    }

    fn small(&self) {
        for rows in [1, 512] {
            if !self.wants("small") {
                continue;
            }
            let (width, inner) = (5120, 17_408);
            let x = values(rows * 2 * inner);
            let mut out = vec![0.0; rows * inner];
            let weight = values(width);
            let seconds = time(&self.pool, || {
                rms_norm(&self.pool, &x, width, rows, width, Some(&weight), true, 1e-6, &mut out, width, false);
            });
            self.report(&format!("small: rms_norm {width}, {rows} rows"), seconds, (rows * width * 4) as f64, 0.0);
            let seconds = time(&self.pool, || silu_mul(&self.pool, &x, 2 * inner, rows, inner, &mut out, inner, false));
            self.report(&format!("small: silu_mul {inner}, {rows} rows"), seconds, (rows * inner * 8) as f64, 0.0);
        }
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with("--")).collect();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = arguments.first().and_then(|first| first.parse().ok()).unwrap_or(cores);
    let pool = Pool::new(threads);
    let (bandwidth, peak) = (stream(&pool), peak(&pool));
    println!("{threads} threads: reads {:.1} GB/s, peak {:.1} GFLOP/s", bandwidth / 1e9, 2.0 * peak / 1e9);
    let bench = Bench { pool, bandwidth, peak, filter: arguments.get(1).cloned().unwrap_or_default() };
    bench.linear();
    bench.attention();
    bench.delta();
    bench.small();
}
