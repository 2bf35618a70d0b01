//! Sixteen f32 lanes with the same bits on every instruction set.
//!
//! Kernels are written once over [`F32x16`]; [`dispatch`] compiles them for AVX-512, for AVX2 + FMA and portably
//! (where NEON vectorises by itself), and picks one at run time. Every lane operation is a single correctly rounded
//! IEEE operation (or an exact bit operation), and horizontal sums use one fixed tree, so results cannot depend on
//! the choice.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod portable;

pub(crate) use portable::{Portable, e4m3};

/// Lanes of a vector.
pub(crate) const LANES: usize = 16;

/// The sixteen values of an E2M1 nibble (sign bit 3, magnitude bits 0..3).
pub(crate) const E2M1: [f32; 16] =
    [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];

/// A vector of sixteen f32.
///
/// # Safety
/// Loads and stores touch exactly the elements that their name says; the `part` forms touch the first `n ≤ 16`.
/// Implementations may use instructions that the CPU must have: values are made only inside [`dispatch`].
pub(crate) trait F32x16: Copy {
    /// Sixteen 32-bit words, read as two BF16 or eight nibbles each.
    type Words: Copy;
    /// There are registers for a tile of more than four vectors of sums.
    const WIDE: bool;

    /// Runs a kernel as a function of its own instead of inlined: registers and compile time stay in bounds.
    fn call<K: Kernel>(kernel: K);

    fn splat(value: f32) -> Self;
    unsafe fn load(from: *const f32) -> Self;
    unsafe fn store(self, to: *mut f32);
    /// Loads `n` lanes; the others are +0.
    unsafe fn load_part(from: *const f32, n: usize) -> Self;
    unsafe fn store_part(self, to: *mut f32, n: usize);

    fn add(self, other: Self) -> Self;
    fn sub(self, other: Self) -> Self;
    fn mul(self, other: Self) -> Self;
    fn div(self, other: Self) -> Self;
    /// `self · b + c`, rounded once.
    fn fma(self, b: Self, c: Self) -> Self;
    fn abs(self) -> Self;
    /// `self < other ? self : other`: a NaN on either side gives `other`.
    fn min(self, other: Self) -> Self;
    /// `self > other ? self : other`: a NaN on either side gives `other`.
    fn max(self, other: Self) -> Self;
    /// `self < bound ? yes : no`.
    fn select_lt(self, bound: Self, yes: Self, no: Self) -> Self;
    /// To the nearest integer, ties to even.
    fn round(self) -> Self;
    /// `self · 2^n` for integral `n` in −252..=254 and normal `self`, rounded once.
    fn scale2(self, n: Self) -> Self;
    /// Magnitude of `self` with the sign of `sign`.
    fn copysign(self, sign: Self) -> Self;
    /// Rounded to the nearest BF16, ties to even; NaN stays NaN.
    fn round_bf16(self) -> Self;

    /// Sixteen BF16.
    unsafe fn load_bf16(from: *const u16) -> Self;
    unsafe fn load_bf16_part(from: *const u16, n: usize) -> Self;
    /// Sixteen IEEE half floats.
    unsafe fn load_f16(from: *const u16) -> Self;
    /// Sixteen E4M3 bytes, none of them NaN.
    unsafe fn load_e4m3(from: *const u8) -> Self;
    unsafe fn load_words(from: *const u32) -> Self::Words;
    /// The BF16 in the low half of each word.
    fn bf16_low(words: Self::Words) -> Self;
    /// The BF16 in the high half of each word.
    fn bf16_high(words: Self::Words) -> Self;
    /// The E2M1 in bits `4·J .. 4·J + 4` of each word.
    fn e2m1<const J: u32>(words: Self::Words) -> Self;

    /// Sum of the lanes: i with i+8, then i+4, i+2, i+1.
    fn sum(self) -> f32;
    /// Largest lane (lanes must not be NaN).
    fn max_lane(self) -> f32;
}

/// Asks for the cache line at `at` in the second-level cache; any address will do.
#[inline(always)]
pub(crate) fn prefetch<T>(at: *const T) {
    // SAFETY: a prefetch never faults and SSE is part of x86-64.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T1 }>(at.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// Work written once over vectors. `run` and all it calls must be `#[inline(always)]`, else the vector instructions
/// of its caller are not available to it.
pub(crate) trait Kernel {
    fn run<V: F32x16>(self);
}

/// An instruction family that this CPU has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Isa {
    Portable,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

impl Isa {
    /// All families that this CPU has, the best last.
    pub(crate) fn available() -> Vec<Isa> {
        [&[Isa::Portable], detected()].concat()
    }

    /// The family to use for a call that starts on this thread.
    pub(crate) fn best() -> Isa {
        #[cfg(test)]
        if let Some(forced) = FORCED.get() {
            return forced;
        }
        static BEST: std::sync::OnceLock<Isa> = std::sync::OnceLock::new();
        *BEST.get_or_init(|| Isa::available().last().copied().unwrap_or(Isa::Portable))
    }
}

/// Vector families beyond the portable one.
#[cfg(target_arch = "x86_64")]
fn detected() -> &'static [Isa] {
    let avx2 = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c");
    let avx512 = is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl");
    match (avx2, avx512) {
        (true, true) => &[Isa::Avx2, Isa::Avx512],
        (true, false) => &[Isa::Avx2],
        _ => &[],
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn detected() -> &'static [Isa] {
    &[]
}

#[cfg(test)]
thread_local! {
    static FORCED: std::cell::Cell<Option<Isa>> = const { std::cell::Cell::new(None) };
}

/// Runs `work` with operations that start on this thread bound to `isa`.
#[cfg(test)]
pub(crate) fn with_isa<T>(isa: Isa, work: impl FnOnce() -> T) -> T {
    let before = FORCED.replace(Some(isa));
    let result = work();
    FORCED.set(before);
    result
}

/// Runs a kernel compiled for `isa`, which must come from [`Isa::best`] or [`Isa::available`].
pub(crate) fn dispatch<K: Kernel>(isa: Isa, kernel: K) {
    match isa {
        Isa::Portable => Portable::call(kernel),
        // SAFETY: an `Isa` other than `Portable` is made only after the CPU was asked for these features.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => unsafe { avx2::run(kernel) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => unsafe { avx512::run(kernel) },
    }
}
