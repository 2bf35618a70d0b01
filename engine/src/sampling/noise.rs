//! Counter-based Gumbel noise: a pure function of seed, position and token id.
//!
//! Philox4x32-10 is from Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011). The
//! logarithm is computed with additions, multiplications and divisions in f64 alone, so that every machine gets the
//! same bits.

const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];
const ROUNDS: usize = 10;

/// No noise is larger: the value for the largest 32-bit word, rounded up.
pub const MAX_GUMBEL: f32 = 22.9;

/// Philox4x32-10: four random words for a counter under a key.
pub fn philox(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    let mut words = counter;
    let mut key = key;
    for round in 0..ROUNDS {
        if round > 0 {
            key = [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])];
        }
        let (high0, low0) = wide_product(MULTIPLIERS[0], words[0]);
        let (high1, low1) = wide_product(MULTIPLIERS[1], words[2]);
        words = [high1 ^ words[1] ^ key[0], low1, high0 ^ words[3] ^ key[1], low0];
    }
    words
}

fn wide_product(a: u32, b: u32) -> (u32, u32) {
    let product = u64::from(a) * u64::from(b);
    ((product >> 32) as u32, product as u32)
}

/// The noise of one request: key = seed, counter = (id / 4, 0, position), word = id mod 4.
#[derive(Debug, Clone)]
pub struct Noise {
    key: [u32; 2],
    position: [u32; 2],
    block: u32,
    words: [u32; 4],
}

impl Noise {
    /// `position` counts tokens from the beginning of the sequence.
    pub fn new(seed: u64, position: u64) -> Self {
        let halves = |value: u64| [value as u32, (value >> 32) as u32];
        let (key, position) = (halves(seed), halves(position));
        Self { key, position, block: 0, words: philox([0, 0, position[0], position[1]], key) }
    }

    /// Gumbel noise of a token. Cheapest when ids of one group of four follow each other.
    pub fn gumbel(&mut self, id: u32) -> f32 {
        let block = id / 4;
        if block != self.block {
            self.block = block;
            self.words = philox([block, 0, self.position[0], self.position[1]], self.key);
        }
        gumbel_of_word(self.words[(id % 4) as usize])
    }
}

/// `-ln(-ln(u))` with `u` in the middle of the word's 2^-32-wide interval of (0, 1).
fn gumbel_of_word(word: u32) -> f32 {
    let uniform = (f64::from(word) + 0.5) / 4_294_967_296.0;
    -ln(-ln(uniform)) as f32
}

/// Natural logarithm of a positive normal number, to about 1e-15.
///
/// `x = m 2^e` with `m` in [√½, √2); `ln m = 2 artanh(s)`, `s = (m - 1) / (m + 1)`, as a series in `s²` (|s| < 0.172).
fn ln(x: f64) -> f64 {
    const FRACTION: u64 = (1 << 52) - 1;
    let bits = x.to_bits();
    let mut exponent = (bits >> 52) as i64 - 1023;
    let mut mantissa = f64::from_bits((bits & FRACTION) | (1023 << 52));
    if mantissa > std::f64::consts::SQRT_2 {
        mantissa *= 0.5;
        exponent += 1;
    }
    let s = (mantissa - 1.0) / (mantissa + 1.0);
    let square = s * s;
    let mut series = 0.0;
    for k in (0..12).rev() {
        series = series * square + 1.0 / f64::from(2 * k + 1);
    }
    exponent as f64 * std::f64::consts::LN_2 + 2.0 * s * series
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn philox_gives_the_published_words() {
        // Known answers of the authors' library (kat_vectors, philox4x32, 10 rounds).
        assert_eq!(philox([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(philox([u32::MAX; 4], [u32::MAX; 2]), [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]);
        assert_eq!(
            philox([0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344], [0xa409_3822, 0x299f_31d0]),
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
        );
    }

    #[test]
    fn the_logarithm_is_right() {
        for i in 1..20_000 {
            let x = f64::from(i) * 0.0037;
            assert!((ln(x) - x.ln()).abs() <= 4e-15 * x.ln().abs().max(0.1), "{x}");
        }
        for word in [0, 1, 0x7fff_ffff, u32::MAX] {
            let u = (f64::from(word) + 0.5) / 4_294_967_296.0;
            assert!((ln(u) - u.ln()).abs() <= 1e-14 * u.ln().abs(), "{u}");
        }
    }

    #[test]
    fn noise_depends_on_seed_position_and_id_alone() {
        let all: Vec<f32> = (0..64).map(|id| Noise::new(7, 3).gumbel(id)).collect();
        let mut backwards = Noise::new(7, 3);
        for id in (0..64).rev() {
            assert_eq!(backwards.gumbel(id), all[id as usize]);
        }
        for other in [Noise::new(8, 3), Noise::new(7, 4), Noise::new(7, 3 | 1 << 32), Noise::new(7 | 1 << 32, 3)] {
            let mut other = other;
            assert!((0..64).all(|id| other.gumbel(id) != all[id as usize]));
        }
        // Fixed for ever: a change here changes every seeded output.
        let mut noise = Noise::new(42, 5);
        let bits: Vec<u32> = [0, 1, 4095, 248_000].map(|id| noise.gumbel(id).to_bits()).to_vec();
        assert_eq!(bits, BITS);
    }

    const BITS: [u32; 4] = [1050801146, 1038462159, 3204938512, 1042839084];

    #[test]
    fn the_largest_word_gives_the_largest_noise() {
        assert!(gumbel_of_word(u32::MAX) < MAX_GUMBEL && gumbel_of_word(u32::MAX) > 22.8);
        assert!((gumbel_of_word(0) + 3.13).abs() < 0.01);
    }

    #[test]
    fn noise_has_the_moments_of_a_gumbel_distribution() {
        let n = 100_000u32;
        let mut noise = Noise::new(1, 0);
        let values: Vec<f64> = (0..n).map(|id| f64::from(noise.gumbel(id))).collect();
        let mean = values.iter().sum::<f64>() / f64::from(n);
        let variance = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / f64::from(n);
        assert!((mean - 0.577_215_66).abs() < 0.015, "{mean}");
        assert!((variance - std::f64::consts::PI.powi(2) / 6.0).abs() < 0.04, "{variance}");
    }
}
