//! Sixteen lanes in two AVX2 registers.

use std::arch::x86_64::*;

use super::{E2M1, F32x16, Kernel, LANES};

/// Runs a kernel with AVX2, FMA and F16C.
///
/// # Safety
/// The CPU must have the features named here.
#[inline(never)]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn run<K: Kernel>(kernel: K) {
    kernel.run::<Avx2>();
}

/// Two 256-bit registers: lanes 0..8 and 8..16. Values exist only under [`run`], whose caller vouches for the CPU;
/// that is the safety of every intrinsic below. Pointers are vouched for by the callers of the loads and stores.
#[derive(Clone, Copy)]
pub(crate) struct Avx2(__m256, __m256);

/// Both halves through one binary intrinsic.
macro_rules! both {
    ($intrinsic:ident, $a:expr, $b:expr) => {
        // SAFETY: see `Avx2`.
        unsafe { Avx2($intrinsic($a.0, $b.0), $intrinsic($a.1, $b.1)) }
    };
}

/// # Safety
/// Only under [`run`].
#[inline(always)]
unsafe fn scale2(value: __m256, n: __m256) -> __m256 {
    // SAFETY: the caller is under `run`.
    unsafe {
        let n = _mm256_cvtps_epi32(n);
        let first = _mm256_srai_epi32::<1>(n);
        let bias = _mm256_set1_epi32(127);
        let rest = _mm256_sub_epi32(n, first);
        let first = _mm256_castsi256_ps(_mm256_slli_epi32::<23>(_mm256_add_epi32(first, bias)));
        let rest = _mm256_castsi256_ps(_mm256_slli_epi32::<23>(_mm256_add_epi32(rest, bias)));
        _mm256_mul_ps(_mm256_mul_ps(value, first), rest)
    }
}

/// # Safety
/// Only under [`run`].
#[inline(always)]
unsafe fn round_bf16(value: __m256) -> __m256 {
    // SAFETY: the caller is under `run`.
    unsafe {
        let bits = _mm256_castps_si256(value);
        let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
        let raised = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
        let rounded = _mm256_and_si256(raised, _mm256_set1_epi32(0xffff_0000_u32 as i32));
        _mm256_blendv_ps(_mm256_castsi256_ps(rounded), value, _mm256_cmp_ps::<_CMP_UNORD_Q>(value, value))
    }
}

/// # Safety
/// Only under [`run`].
#[inline(always)]
unsafe fn bf16(halves: __m128i) -> __m256 {
    // SAFETY: the caller is under `run`.
    unsafe { _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(halves))) }
}

/// # Safety
/// Only under [`run`].
#[inline(always)]
unsafe fn e4m3(wide: __m256i) -> __m256 {
    // SAFETY: the caller is under `run`.
    unsafe {
        let bits = _mm256_and_si256(_mm256_slli_epi32::<20>(wide), _mm256_set1_epi32(0x87f0_0000_u32 as i32));
        let bias = _mm256_castsi256_ps(_mm256_set1_epi32((127 + 120) << 23));
        _mm256_mul_ps(_mm256_castsi256_ps(bits), bias)
    }
}

/// # Safety
/// Only under [`run`].
#[inline(always)]
unsafe fn e2m1<const J: u32>(words: __m256i) -> __m256 {
    // SAFETY: the caller is under `run`. The permutation reads the low three bits of each index: the magnitude.
    unsafe {
        let code = _mm256_srl_epi32(words, _mm_cvtsi32_si128(4 * J as i32));
        let magnitude = _mm256_permutevar8x32_ps(_mm256_loadu_ps(E2M1.as_ptr()), code);
        let sign = _mm256_and_si256(_mm256_slli_epi32::<28>(code), _mm256_set1_epi32(i32::MIN));
        _mm256_or_ps(magnitude, _mm256_castsi256_ps(sign))
    }
}

impl F32x16 for Avx2 {
    type Words = (__m256i, __m256i);
    const WIDE: bool = false;

    #[inline(always)]
    fn call<K: Kernel>(kernel: K) {
        // SAFETY: see `Avx2`.
        unsafe { run(kernel) }
    }

    #[inline(always)]
    fn splat(value: f32) -> Self {
        // SAFETY: see `Avx2`.
        let half = unsafe { _mm256_set1_ps(value) };
        Self(half, half)
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: see `Avx2`.
        unsafe { Self(_mm256_loadu_ps(from), _mm256_loadu_ps(from.add(8))) }
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: see `Avx2`.
        unsafe {
            _mm256_storeu_ps(to, self.0);
            _mm256_storeu_ps(to.add(8), self.1);
        }
    }
    #[inline(always)]
    unsafe fn load_part(from: *const f32, n: usize) -> Self {
        if n == LANES {
            // SAFETY: all sixteen values are readable.
            return unsafe { Self::load(from) };
        }
        let mut lanes = [0.0_f32; LANES];
        // SAFETY: the caller gives `n ≤ 16` readable values; the copy has sixteen.
        unsafe {
            std::ptr::copy_nonoverlapping(from, lanes.as_mut_ptr(), n);
            Self::load(lanes.as_ptr())
        }
    }
    #[inline(always)]
    unsafe fn store_part(self, to: *mut f32, n: usize) {
        if n == LANES {
            // SAFETY: all sixteen values are writable.
            return unsafe { self.store(to) };
        }
        let mut lanes = [0.0_f32; LANES];
        // SAFETY: the caller gives `n ≤ 16` writable values; the copy has sixteen.
        unsafe {
            self.store(lanes.as_mut_ptr());
            std::ptr::copy_nonoverlapping(lanes.as_ptr(), to, n);
        }
    }
    #[inline(always)]
    fn add(self, other: Self) -> Self {
        both!(_mm256_add_ps, self, other)
    }
    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        both!(_mm256_sub_ps, self, other)
    }
    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        both!(_mm256_mul_ps, self, other)
    }
    #[inline(always)]
    fn div(self, other: Self) -> Self {
        both!(_mm256_div_ps, self, other)
    }
    #[inline(always)]
    fn fma(self, b: Self, c: Self) -> Self {
        // SAFETY: see `Avx2`.
        unsafe { Self(_mm256_fmadd_ps(self.0, b.0, c.0), _mm256_fmadd_ps(self.1, b.1, c.1)) }
    }
    #[inline(always)]
    fn abs(self) -> Self {
        both!(_mm256_andnot_ps, Self::splat(-0.0), self)
    }
    #[inline(always)]
    fn min(self, other: Self) -> Self {
        both!(_mm256_min_ps, self, other)
    }
    #[inline(always)]
    fn max(self, other: Self) -> Self {
        both!(_mm256_max_ps, self, other)
    }
    #[inline(always)]
    fn select_lt(self, bound: Self, yes: Self, no: Self) -> Self {
        // SAFETY: see `Avx2`.
        unsafe {
            Self(
                _mm256_blendv_ps(no.0, yes.0, _mm256_cmp_ps::<_CMP_LT_OQ>(self.0, bound.0)),
                _mm256_blendv_ps(no.1, yes.1, _mm256_cmp_ps::<_CMP_LT_OQ>(self.1, bound.1)),
            )
        }
    }
    #[inline(always)]
    fn round(self) -> Self {
        // SAFETY: see `Avx2`.
        unsafe {
            Self(
                _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(self.0),
                _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(self.1),
            )
        }
    }
    #[inline(always)]
    fn scale2(self, n: Self) -> Self {
        both!(scale2, self, n)
    }
    #[inline(always)]
    fn copysign(self, sign: Self) -> Self {
        let mask = Self::splat(-0.0);
        let sign = both!(_mm256_and_ps, mask, sign);
        let magnitude = self.abs();
        both!(_mm256_or_ps, magnitude, sign)
    }
    #[inline(always)]
    fn round_bf16(self) -> Self {
        // SAFETY: see `Avx2`.
        unsafe { Self(round_bf16(self.0), round_bf16(self.1)) }
    }
    #[inline(always)]
    unsafe fn load_bf16(from: *const u16) -> Self {
        // SAFETY: see `Avx2`.
        unsafe { Self(bf16(_mm_loadu_si128(from.cast())), bf16(_mm_loadu_si128(from.add(8).cast()))) }
    }
    #[inline(always)]
    unsafe fn load_bf16_part(from: *const u16, n: usize) -> Self {
        let mut halves = [0_u16; LANES];
        // SAFETY: the caller gives `n ≤ 16` readable values; the copy has sixteen.
        unsafe {
            std::ptr::copy_nonoverlapping(from, halves.as_mut_ptr(), n);
            Self::load_bf16(halves.as_ptr())
        }
    }
    #[inline(always)]
    unsafe fn load_f16(from: *const u16) -> Self {
        // SAFETY: see `Avx2`.
        unsafe {
            Self(_mm256_cvtph_ps(_mm_loadu_si128(from.cast())), _mm256_cvtph_ps(_mm_loadu_si128(from.add(8).cast())))
        }
    }
    #[inline(always)]
    unsafe fn load_e4m3(from: *const u8) -> Self {
        // SAFETY: see `Avx2`.
        unsafe {
            let bytes = _mm_loadu_si128(from.cast());
            Self(e4m3(_mm256_cvtepi8_epi32(bytes)), e4m3(_mm256_cvtepi8_epi32(_mm_srli_si128::<8>(bytes))))
        }
    }
    #[inline(always)]
    unsafe fn load_words(from: *const u32) -> Self::Words {
        // SAFETY: see `Avx2`.
        unsafe { (_mm256_loadu_si256(from.cast()), _mm256_loadu_si256(from.add(8).cast())) }
    }
    #[inline(always)]
    fn bf16_low(words: Self::Words) -> Self {
        // SAFETY: see `Avx2`.
        unsafe {
            Self(
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(words.0)),
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(words.1)),
            )
        }
    }
    #[inline(always)]
    fn bf16_high(words: Self::Words) -> Self {
        // SAFETY: see `Avx2`.
        unsafe {
            let mask = _mm256_set1_epi32(0xffff_0000_u32 as i32);
            Self(
                _mm256_castsi256_ps(_mm256_and_si256(words.0, mask)),
                _mm256_castsi256_ps(_mm256_and_si256(words.1, mask)),
            )
        }
    }
    #[inline(always)]
    fn e2m1<const J: u32>(words: Self::Words) -> Self {
        // SAFETY: see `Avx2`.
        unsafe { Self(e2m1::<J>(words.0), e2m1::<J>(words.1)) }
    }
    #[inline(always)]
    fn sum(self) -> f32 {
        // SAFETY: see `Avx2`.
        unsafe {
            let eight = _mm256_add_ps(self.0, self.1);
            let four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
            let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
        }
    }
    #[inline(always)]
    fn max_lane(self) -> f32 {
        // SAFETY: see `Avx2`.
        unsafe {
            let eight = _mm256_max_ps(self.0, self.1);
            let four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
            let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)))
        }
    }
}
