//! Sixteen lanes in one AVX-512 register.

use std::arch::x86_64::*;

use super::{E2M1, F32x16, Kernel};

/// Runs a kernel with AVX-512.
///
/// # Safety
/// The CPU must have the features named here.
#[inline(never)]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
pub(super) unsafe fn run<K: Kernel>(kernel: K) {
    kernel.run::<Avx512>();
}

/// One 512-bit register. Values exist only under [`run`], whose caller vouches for the CPU; that is the safety of
/// every intrinsic below. Pointers are vouched for by the callers of the loads and stores.
#[derive(Clone, Copy)]
pub(crate) struct Avx512(__m512);

#[inline(always)]
fn mask(n: usize) -> __mmask16 {
    ((1_u32 << n) - 1) as __mmask16
}

impl F32x16 for Avx512 {
    type Words = __m512i;
    const WIDE: bool = true;

    #[inline(always)]
    fn call<K: Kernel>(kernel: K) {
        // SAFETY: see `Avx512`.
        unsafe { run(kernel) }
    }

    #[inline(always)]
    fn splat(value: f32) -> Self {
        // SAFETY: see `Avx512`.
        Self(unsafe { _mm512_set1_ps(value) })
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: see `Avx512`.
        Self(unsafe { _mm512_loadu_ps(from) })
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: see `Avx512`.
        unsafe { _mm512_storeu_ps(to, self.0) }
    }
    #[inline(always)]
    unsafe fn load_part(from: *const f32, n: usize) -> Self {
        // SAFETY: see `Avx512`; masked lanes are not read.
        Self(unsafe { _mm512_maskz_loadu_ps(mask(n), from) })
    }
    #[inline(always)]
    unsafe fn store_part(self, to: *mut f32, n: usize) {
        // SAFETY: see `Avx512`; masked lanes are not written.
        unsafe { _mm512_mask_storeu_ps(to, mask(n), self.0) }
    }
    #[inline(always)]
    fn add(self, other: Self) -> Self {
        // SAFETY: see `Avx512`.
        Self(unsafe { _mm512_add_ps(self.0, other.0) })
    }
    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        // SAFETY: see `Avx512`.
        Self(unsafe { _mm512_sub_ps(self.0, other.0) })
    }
    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        // SAFETY: see `Avx512`.
        Self(unsafe { _mm512_mul_ps(self.0, other.0) })
    }
    #[inline(always)]
    fn div(self, other: Self) -> Self {
        // SAFETY: see `Avx512`.
        Self(unsafe { _mm512_div_ps(self.0, other.0) })
    }
    #[inline(always)]
    fn fma(self, b: Self, c: Self) -> Self {
        // SAFETY: see `Avx512`.
        Self(unsafe { _mm512_fmadd_ps(self.0, b.0, c.0) })
    }
    #[inline(always)]
    fn abs(self) -> Self {
        // SAFETY: see `Avx512`.
        Self(unsafe { _mm512_abs_ps(self.0) })
    }
    #[inline(always)]
    fn min(self, other: Self) -> Self {
        // SAFETY: see `Avx512`.
        Self(unsafe { _mm512_min_ps(self.0, other.0) })
    }
    #[inline(always)]
    fn max(self, other: Self) -> Self {
        // SAFETY: see `Avx512`.
        Self(unsafe { _mm512_max_ps(self.0, other.0) })
    }
    #[inline(always)]
    fn select_lt(self, bound: Self, yes: Self, no: Self) -> Self {
        // SAFETY: see `Avx512`.
        Self(unsafe { _mm512_mask_blend_ps(_mm512_cmp_ps_mask::<_CMP_LT_OQ>(self.0, bound.0), no.0, yes.0) })
    }
    #[inline(always)]
    fn round(self) -> Self {
        // SAFETY: see `Avx512`.
        Self(unsafe { _mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(self.0) })
    }
    #[inline(always)]
    fn scale2(self, n: Self) -> Self {
        // SAFETY: see `Avx512`.
        Self(unsafe { _mm512_scalef_ps(self.0, n.0) })
    }
    #[inline(always)]
    fn copysign(self, sign: Self) -> Self {
        // SAFETY: see `Avx512`. 0xe4 is the truth table of `mask ? sign : magnitude`.
        Self(unsafe {
            let mask = _mm512_set1_epi32(i32::MIN);
            let (magnitude, sign) = (_mm512_castps_si512(self.0), _mm512_castps_si512(sign.0));
            _mm512_castsi512_ps(_mm512_or_si512(_mm512_andnot_si512(mask, magnitude), _mm512_and_si512(mask, sign)))
        })
    }
    #[inline(always)]
    fn round_bf16(self) -> Self {
        // SAFETY: see `Avx512`.
        Self(unsafe {
            let bits = _mm512_castps_si512(self.0);
            let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
            let raised = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
            let rounded = _mm512_and_si512(raised, _mm512_set1_epi32(0xffff_0000_u32 as i32));
            let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(self.0, self.0);
            _mm512_mask_blend_ps(nan, _mm512_castsi512_ps(rounded), self.0)
        })
    }
    #[inline(always)]
    unsafe fn load_bf16(from: *const u16) -> Self {
        // SAFETY: see `Avx512`.
        Self(unsafe {
            let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
        })
    }
    #[inline(always)]
    unsafe fn load_bf16_part(from: *const u16, n: usize) -> Self {
        // SAFETY: see `Avx512`; masked lanes are not read.
        Self(unsafe {
            let wide = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask(n), from.cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
        })
    }
    #[inline(always)]
    unsafe fn load_f16(from: *const u16) -> Self {
        // SAFETY: see `Avx512`.
        Self(unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(from.cast())) })
    }
    #[inline(always)]
    unsafe fn load_e4m3(from: *const u8) -> Self {
        // SAFETY: see `Avx512`.
        Self(unsafe {
            let wide = _mm512_slli_epi32::<20>(_mm512_cvtepi8_epi32(_mm_loadu_si128(from.cast())));
            let bits = _mm512_and_si512(wide, _mm512_set1_epi32(0x87f0_0000_u32 as i32));
            let bias = _mm512_castsi512_ps(_mm512_set1_epi32((127 + 120) << 23));
            _mm512_mul_ps(_mm512_castsi512_ps(bits), bias)
        })
    }
    #[inline(always)]
    unsafe fn load_words(from: *const u32) -> Self::Words {
        // SAFETY: see `Avx512`.
        unsafe { _mm512_loadu_si512(from.cast()) }
    }
    #[inline(always)]
    fn bf16_low(words: Self::Words) -> Self {
        // SAFETY: see `Avx512`.
        Self(unsafe { _mm512_castsi512_ps(_mm512_slli_epi32::<16>(words)) })
    }
    #[inline(always)]
    fn bf16_high(words: Self::Words) -> Self {
        // SAFETY: see `Avx512`.
        Self(unsafe { _mm512_castsi512_ps(_mm512_and_si512(words, _mm512_set1_epi32(0xffff_0000_u32 as i32))) })
    }
    #[inline(always)]
    fn e2m1<const J: u32>(words: Self::Words) -> Self {
        // SAFETY: see `Avx512`. The permutation reads the low four bits of each index.
        Self(unsafe {
            let table = _mm512_loadu_ps(E2M1.as_ptr());
            _mm512_permutexvar_ps(_mm512_srl_epi32(words, _mm_cvtsi32_si128(4 * J as i32)), table)
        })
    }
    #[inline(always)]
    fn sum(self) -> f32 {
        // SAFETY: see `Avx512`.
        unsafe {
            let eight = _mm256_add_ps(_mm512_castps512_ps256(self.0), _mm512_extractf32x8_ps::<1>(self.0));
            let four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
            let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
        }
    }
    #[inline(always)]
    fn max_lane(self) -> f32 {
        // SAFETY: see `Avx512`.
        unsafe { _mm512_reduce_max_ps(self.0) }
    }
}
