//! Sixteen lanes as an array: the definition of every operation, and the path of CPUs without AVX2.

use half::{bf16, f16};

use super::{E2M1, F32x16, Kernel, LANES};

/// Portable vector.
#[derive(Clone, Copy)]
pub(crate) struct Portable([f32; LANES]);

#[inline(never)]
fn run<K: Kernel>(kernel: K) {
    kernel.run::<Portable>();
}

impl Portable {
    #[inline(always)]
    fn map(self, f: impl Fn(f32) -> f32) -> Self {
        Self(self.0.map(f))
    }

    #[inline(always)]
    fn zip(self, other: Self, f: impl Fn(f32, f32) -> f32) -> Self {
        let mut out = self.0;
        for (a, b) in out.iter_mut().zip(other.0) {
            *a = f(*a, b);
        }
        Self(out)
    }
}

/// E4M3 (no infinities, NaN = 0x7f) by moving the bits into an f32 and correcting the exponent bias.
#[inline(always)]
pub(crate) fn e4m3(byte: u8) -> f32 {
    let magnitude = f32::from_bits(u32::from(byte & 0x7f) << 20) * f32::from_bits((127 + 120) << 23);
    let magnitude = if byte & 0x7f == 0x7f { f32::NAN } else { magnitude };
    if byte & 0x80 != 0 { -magnitude } else { magnitude }
}

/// Nearest BF16 as f32, ties to even; NaN stays NaN.
#[inline(always)]
pub(crate) fn round_bf16(value: f32) -> f32 {
    if value.is_nan() {
        return value;
    }
    let bits = value.to_bits();
    f32::from_bits((bits + 0x7fff + ((bits >> 16) & 1)) & 0xffff_0000)
}

impl F32x16 for Portable {
    type Words = [u32; LANES];
    const WIDE: bool = false;

    #[inline(always)]
    fn call<K: Kernel>(kernel: K) {
        run(kernel);
    }

    #[inline(always)]
    fn splat(value: f32) -> Self {
        Self([value; LANES])
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: the caller gives sixteen readable values.
        Self(unsafe { from.cast::<[f32; LANES]>().read_unaligned() })
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: the caller gives sixteen writable values.
        unsafe { to.cast::<[f32; LANES]>().write_unaligned(self.0) }
    }
    #[inline(always)]
    unsafe fn load_part(from: *const f32, n: usize) -> Self {
        let mut lanes = [0.0; LANES];
        // SAFETY: the caller gives `n ≤ 16` readable values.
        unsafe { std::ptr::copy_nonoverlapping(from, lanes.as_mut_ptr(), n) };
        Self(lanes)
    }
    #[inline(always)]
    unsafe fn store_part(self, to: *mut f32, n: usize) {
        // SAFETY: the caller gives `n ≤ 16` writable values.
        unsafe { std::ptr::copy_nonoverlapping(self.0.as_ptr(), to, n) }
    }
    #[inline(always)]
    fn add(self, other: Self) -> Self {
        self.zip(other, |a, b| a + b)
    }
    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        self.zip(other, |a, b| a - b)
    }
    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        self.zip(other, |a, b| a * b)
    }
    #[inline(always)]
    fn div(self, other: Self) -> Self {
        self.zip(other, |a, b| a / b)
    }
    // Without the instruction this is sixteen calls of the C library, which are better kept in one place.
    #[cfg_attr(all(target_arch = "x86_64", not(target_feature = "fma")), inline(never))]
    #[cfg_attr(not(all(target_arch = "x86_64", not(target_feature = "fma"))), inline(always))]
    fn fma(self, b: Self, c: Self) -> Self {
        let mut out = self.0;
        for ((a, b), c) in out.iter_mut().zip(b.0).zip(c.0) {
            *a = a.mul_add(b, c);
        }
        Self(out)
    }
    #[inline(always)]
    fn abs(self) -> Self {
        self.map(f32::abs)
    }
    #[inline(always)]
    fn min(self, other: Self) -> Self {
        self.zip(other, |a, b| if a < b { a } else { b })
    }
    #[inline(always)]
    fn max(self, other: Self) -> Self {
        self.zip(other, |a, b| if a > b { a } else { b })
    }
    #[inline(always)]
    fn select_lt(self, bound: Self, yes: Self, no: Self) -> Self {
        let mut out = no.0;
        for (i, lane) in out.iter_mut().enumerate() {
            if self.0[i] < bound.0[i] {
                *lane = yes.0[i];
            }
        }
        Self(out)
    }
    #[inline(always)]
    fn round(self) -> Self {
        self.map(f32::round_ties_even)
    }
    #[inline(always)]
    fn scale2(self, n: Self) -> Self {
        self.zip(n, |a, n| {
            let n = n as i32;
            let power = |n: i32| f32::from_bits(((n + 127) as u32) << 23);
            let half = n >> 1;
            a * power(half) * power(n - half)
        })
    }
    #[inline(always)]
    fn copysign(self, sign: Self) -> Self {
        self.zip(sign, f32::copysign)
    }
    #[inline(always)]
    fn round_bf16(self) -> Self {
        self.map(round_bf16)
    }
    #[inline(always)]
    unsafe fn load_bf16(from: *const u16) -> Self {
        // SAFETY: the caller gives sixteen readable values.
        let halves = unsafe { from.cast::<[u16; LANES]>().read_unaligned() };
        Self(halves.map(|bits| bf16::from_bits(bits).to_f32()))
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
        // SAFETY: the caller gives sixteen readable values.
        let halves = unsafe { from.cast::<[u16; LANES]>().read_unaligned() };
        Self(halves.map(|bits| f16::from_bits(bits).to_f32()))
    }
    #[inline(always)]
    unsafe fn load_e4m3(from: *const u8) -> Self {
        // SAFETY: the caller gives sixteen readable bytes.
        Self(unsafe { from.cast::<[u8; LANES]>().read_unaligned() }.map(e4m3))
    }
    #[inline(always)]
    unsafe fn load_words(from: *const u32) -> Self::Words {
        // SAFETY: the caller gives sixteen readable words.
        unsafe { from.cast::<[u32; LANES]>().read_unaligned() }
    }
    #[inline(always)]
    fn bf16_low(words: Self::Words) -> Self {
        Self(words.map(|word| f32::from_bits(word << 16)))
    }
    #[inline(always)]
    fn bf16_high(words: Self::Words) -> Self {
        Self(words.map(|word| f32::from_bits(word & 0xffff_0000)))
    }
    #[inline(always)]
    fn e2m1<const J: u32>(words: Self::Words) -> Self {
        Self(words.map(|word| E2M1[(word >> (4 * J)) as usize & 15]))
    }
    #[inline(always)]
    fn sum(self) -> f32 {
        let mut lanes = self.0;
        for width in [8, 4, 2, 1] {
            for i in 0..width {
                lanes[i] += lanes[i + width];
            }
        }
        lanes[0]
    }
    #[inline(always)]
    fn max_lane(self) -> f32 {
        self.0.into_iter().fold(f32::NEG_INFINITY, |a, b| if b > a { b } else { a })
    }
}
