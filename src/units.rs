//! Quantities and names that must not be mixed up, and the only conversions between them.
//!
//! Promises: a `Tokens` is never read as a `Blocks`; arithmetic saturates and never wraps.
//! Leaves to others: what a quantity means for a decision.

use std::fmt;
use std::num::NonZeroU32;
use std::time::Duration;

/// A number of tokens.
///
/// ```
/// use conserve::units::Tokens;
/// assert_eq!(Tokens(3) + Tokens(4), Tokens(7));
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tokens(pub u32);

impl std::ops::Add for Tokens {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl fmt::Display for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A number of KV blocks, at most [`Blocks::MAX`].
///
/// ```
/// use conserve::units::Blocks;
/// assert_eq!(Blocks::new(u64::MAX), Blocks::MAX, "saturates");
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Blocks(u32);

impl Blocks {
    /// The most that one conversation or one decoder can hold: 24 bits.
    pub const MAX: Self = Self((1 << 24) - 1);
    /// No block.
    pub const ZERO: Self = Self(0);

    /// That many blocks, saturating at [`Blocks::MAX`].
    #[must_use]
    pub const fn new(blocks: u64) -> Self {
        if blocks > Self::MAX.0 as u64 {
            Self::MAX
        } else {
            #[expect(clippy::cast_possible_truncation, reason = "just bounded to 24 bits")]
            Self(blocks as u32)
        }
    }

    /// The number.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0
    }

    /// `self - other`, or none if `other` is larger.
    #[must_use]
    pub const fn less(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }

    /// `self + other`, saturating at [`Blocks::MAX`].
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self::new(self.0 as u64 + other.0 as u64)
    }

    /// The share of `self` that a watermark in `0.0..=1.0` leaves usable, rounded down.
    #[must_use]
    pub fn share(self, watermark: f64) -> Self {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a float to integer cast saturates, and a share of 24 bits fits them"
        )]
        Self::new((f64::from(self.0) * watermark) as u64)
    }
}

impl fmt::Display for Blocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Tokens in one KV block of one worker.
///
/// ```
/// use conserve::units::{BlockSize, Blocks, Tokens};
/// let size = BlockSize::new(16).unwrap();
/// assert_eq!(size.blocks(Tokens(17)), Blocks::new(2), "a part of a block is a block");
/// assert_eq!(size.tokens(Blocks::new(2)), Tokens(32));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockSize(NonZeroU32);

impl BlockSize {
    /// vLLM's default.
    pub const DEFAULT: Self = Self(NonZeroU32::new(16).unwrap());

    /// A size in tokens; `None` for zero.
    #[must_use]
    pub const fn new(tokens: u32) -> Option<Self> {
        match NonZeroU32::new(tokens) {
            Some(tokens) => Some(Self(tokens)),
            None => None,
        }
    }

    /// The size in tokens.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0.get()
    }

    /// Blocks that `tokens` occupy: a part of a block is a block.
    #[must_use]
    pub const fn blocks(self, tokens: Tokens) -> Blocks {
        Blocks::new(tokens.0.div_ceil(self.0.get()) as u64)
    }

    /// Tokens that fit `blocks`, saturating.
    #[must_use]
    pub const fn tokens(self, blocks: Blocks) -> Tokens {
        Tokens(blocks.0.saturating_mul(self.0.get()))
    }
}

impl Default for BlockSize {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// A moment: nanoseconds since any fixed origin, never going back.
///
/// ```
/// use std::time::Duration;
/// use conserve::units::Timestamp;
/// let later = Timestamp(5) + Duration::from_nanos(7);
/// assert_eq!(later.since(Timestamp(5)), Duration::from_nanos(7));
/// assert_eq!(Timestamp(5).since(later), Duration::ZERO, "never negative");
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(pub u64);

impl Timestamp {
    /// The time from `earlier` to `self`; zero if `earlier` is later.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl std::ops::Add<Duration> for Timestamp {
    type Output = Self;

    fn add(self, span: Duration) -> Self {
        let nanos = u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
        Self(self.0.saturating_add(nanos))
    }
}

/// One worker of one fleet; never given to another worker (I4).
///
/// ```
/// use conserve::units::WorkerId;
/// assert_eq!(WorkerId::new(3).unwrap().to_string(), "w3");
/// assert_eq!(WorkerId::new(WorkerId::LIMIT), None);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkerId(u16);

impl WorkerId {
    /// One more than the largest id: 14 bits less the value that means "no worker".
    pub const LIMIT: u16 = (1 << 14) - 1;

    /// The id, or `None` at or above [`WorkerId::LIMIT`].
    #[must_use]
    pub const fn new(id: u16) -> Option<Self> {
        if id < Self::LIMIT {
            Some(Self(id))
        } else {
            None
        }
    }

    /// The number.
    #[must_use]
    pub const fn get(self) -> u16 {
        self.0
    }

    pub(crate) const fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for WorkerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "w{}", self.0)
    }
}

/// The name of one conversation of one tenant: a keyed hash, see [`Identity`](crate::identity::Identity).
///
/// ```
/// use conserve::units::ConversationKey;
/// assert_eq!(ConversationKey(255).to_string(), "000000000000000000000000000000ff");
/// assert_eq!("ff".parse::<ConversationKey>().unwrap(), ConversationKey(255));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConversationKey(pub u128);

impl ConversationKey {
    /// As it is written: twice for each turn, and so eight digits at once.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "a word is taken out of the number"
    )]
    pub(crate) fn digits(self) -> [u8; 32] {
        let mut text = [0; 32];
        let mut rest = self.0;
        for digits in text.as_chunks_mut::<8>().0.iter_mut().rev() {
            *digits = eight_digits(rest as u32);
            rest >>= 32;
        }
        text
    }

    /// Both halves of the key in one word.
    #[expect(clippy::cast_possible_truncation, reason = "any 64 bits of a hash do")]
    pub(crate) const fn folded(self) -> u64 {
        (self.0 ^ self.0 >> 64) as u64
    }
}

impl ConversationKey {
    /// The key as its tenant is told it, and back again: shown to another tenant it names nothing (I9).
    ///
    /// ```
    /// use conserve::units::{ConversationKey, TenantKey};
    /// let (key, (a, b)) = (ConversationKey(5), (TenantKey(1), TenantKey(2)));
    /// assert_eq!(key.seen_by(a).seen_by(a), key);
    /// assert_ne!(key.seen_by(a).seen_by(b), key);
    /// ```
    #[must_use]
    pub const fn seen_by(self, tenant: TenantKey) -> Self {
        Self(self.0 ^ tenant.0)
    }
}

/// A word as hexadecimal digits.
fn eight_digits(word: u32) -> [u8; 8] {
    const ONES: u64 = 0x0101_0101_0101_0101;
    // Each digit comes into a byte of its own.
    let word = u64::from(word);
    let word = (word << 16 | word) & 0x0000_ffff_0000_ffff;
    let word = (word << 8 | word) & 0x00ff_00ff_00ff_00ff;
    let word = (word << 4 | word) & 0x0f0f_0f0f_0f0f_0f0f;
    // 1 where the digit is a letter.
    let letters = (word + 6 * ONES) >> 4 & ONES;
    (word + u64::from(b'0') * ONES + letters * u64::from(b'a' - b'9' - 1)).to_be_bytes()
}

impl fmt::Display for ConversationKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(std::str::from_utf8(&self.digits()).expect("digits are ASCII"))
    }
}

impl std::str::FromStr for ConversationKey {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        u128::from_str_radix(text, 16).map(Self)
    }
}

/// The name of one caller: a keyed hash of the credential it presented (I9).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TenantKey(pub u128);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_written_as_its_digits() {
        let digits = 0x0123_4567_89ab_cdef_u128;
        for turn in 0..128 {
            let key = ConversationKey((digits << 64 | !digits).rotate_left(turn));
            assert_eq!(key.to_string(), format!("{:032x}", key.0));
            assert_eq!(key.to_string().parse(), Ok(key));
        }
    }

    #[test]
    fn blocks_round_up_and_saturate() {
        let size = BlockSize::DEFAULT;
        for (tokens, blocks) in [(0, 0), (1, 1), (16, 1), (17, 2)] {
            assert_eq!(size.blocks(Tokens(tokens)), Blocks::new(blocks));
        }
        let one = BlockSize::new(1).expect("one is not zero");
        assert_eq!(one.blocks(Tokens(u32::MAX)), Blocks::MAX);
        assert_eq!(Blocks::MAX.plus(Blocks::new(1)), Blocks::MAX);
        assert_eq!(Blocks::ZERO.less(Blocks::new(1)), Blocks::ZERO);
    }

    #[test]
    fn a_watermark_rounds_down() {
        assert_eq!(Blocks::new(9).share(0.8), Blocks::new(7), "0.8 * 9 = 7.2");
        assert_eq!(Blocks::MAX.share(1.0), Blocks::MAX);
    }

    #[test]
    fn a_key_reads_back() {
        let key = ConversationKey(u128::MAX - 1);
        assert_eq!(key.to_string().parse(), Ok(key));
    }
}
