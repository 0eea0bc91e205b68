//! splitmix64: a number that follows from another and looks drawn.

/// What splitmix64 adds to its state for each number.
pub(super) const STEP: u64 = 0x9E37_79B9_7F4A_7C15;

/// The number that follows from `state`.
pub(super) const fn mixed(state: u64) -> u64 {
    let mixed = state.wrapping_add(STEP);
    let mixed = (mixed ^ mixed >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ mixed >> 31
}

/// The same as a share of the whole, from 0 to below 1.
#[expect(clippy::cast_precision_loss, reason = "53 bits fit")]
pub(super) const fn unit(mixed: u64) -> f64 {
    (mixed >> 11) as f64 / (1_u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_are_those_of_the_algorithm() {
        // The first two that the reference implementation gives for the seed 1234567.
        let second = 1_234_567_u64.wrapping_add(STEP);
        assert_eq!(mixed(1_234_567), 6_457_827_717_110_365_317);
        assert_eq!(mixed(second), 3_203_168_211_198_807_973);
        assert!(unit(u64::MAX) < 1.0);
    }
}
