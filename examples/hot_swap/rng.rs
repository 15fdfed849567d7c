//! A seedable random source of a few lines (SplitMix64), so that a run's choices can be repeated.
//!
//! Repeated choices are not repeated schedules: the operating system still decides how the threads interleave.

const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

/// Spreads every input bit over the whole word.
pub(crate) const fn mix(word: u64) -> u64 {
    let word = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    word ^ (word >> 31)
}

#[derive(Debug)]
pub(crate) struct Rng(u64);

impl Rng {
    /// The `stream`-th of the independent sequences that belong to `seed`.
    pub(crate) const fn new(seed: u64, stream: u64) -> Self {
        Self(mix(seed) ^ mix(stream.wrapping_mul(GOLDEN)))
    }

    pub(crate) const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(GOLDEN);
        mix(self.0)
    }

    /// A value in `0..limit`; `limit` must not be 0.
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        ((u128::from(self.next()) * limit as u128) >> 64) as usize
    }

    /// True once in `n` calls on average.
    pub(crate) fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }
}
