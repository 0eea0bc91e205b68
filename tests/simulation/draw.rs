//! Random numbers that depend on what they are for, not on what was drawn before.
//!
//! Promises: the same seed and key give the same numbers for ever, so a dropped conversation or fault shifts no other
//! draw, and a seed that failed once fails again. (A crate's generator may change its stream with a release.)

/// A stream of numbers for one purpose.
#[derive(Debug, Clone)]
pub struct Draw(u64);

impl Draw {
    /// The stream of `seed` for what `key` names.
    pub fn of(seed: u64, key: &[u64]) -> Self {
        let mixed = key.iter().fold(mix(seed ^ 0x5eed), |state, part| {
            mix(state ^ mix(part.wrapping_add(0x9e37_79b9_7f4a_7c15)))
        });
        Self(mixed)
    }

    /// The next 64 bits (`SplitMix64`; Steele, Lea, Flood 2014).
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// From `low` up to, not including, `high`.
    pub fn within(&mut self, low: u64, high: u64) -> u64 {
        low + self.bits() % (high - low)
    }

    /// True once in `100 / percent`.
    pub fn chance(&mut self, percent: u64) -> bool {
        self.bits() % 100 < percent
    }

    /// One of them.
    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[usize::try_from(self.bits() % from.len() as u64).expect("below a length")]
    }

    /// A time whose logarithm is even between the two: most are short, a few are long.
    pub fn span(&mut self, low: u64, high: u64) -> u64 {
        let octaves = 64 - (high / low).leading_zeros();
        let octave = self.within(0, u64::from(octaves));
        (low << octave)
            .saturating_add(self.within(0, low << octave))
            .min(high)
    }
}

fn mix(state: u64) -> u64 {
    let state = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let state = (state ^ (state >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    state ^ (state >> 31)
}
