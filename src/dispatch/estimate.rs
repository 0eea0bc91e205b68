//! How many tokens a body will be, before anybody has counted them.
//!
//! Promises: a prompt given as token ids is counted exactly; text is measured in bytes times the ratio seen so far.
//! Leaves to others: the exact number, which comes with the first `usage`.

use std::sync::atomic::{AtomicU64, Ordering};

use super::peek::Size;
use crate::units::Tokens;

/// Tokens per byte before anything was seen: English text and code lie between 0.2 and 0.3.
const FIRST_RATIO: f64 = 0.25;

/// Tokens that an image or a sound counts for.
const MEDIA_TOKENS: usize = 1_024;

/// The weight of one observation.
const WEIGHT: f64 = 1.0 / 16.0;

/// The observed ratio of tokens to bytes.
#[derive(Debug)]
pub(crate) struct Ratio(AtomicU64);

impl Ratio {
    pub(crate) fn new() -> Self {
        Self(AtomicU64::new(FIRST_RATIO.to_bits()))
    }

    pub(crate) fn tokens(&self, size: Size) -> Tokens {
        match size {
            Size::Tokens(count) => narrow(count),
            Size::Text { bytes, media } => {
                #[expect(
                    clippy::cast_precision_loss,
                    clippy::cast_possible_truncation,
                    clippy::cast_sign_loss
                )]
                let text = (bytes as f64 * self.get()).ceil() as usize;
                narrow(
                    text.saturating_add(media.saturating_mul(MEDIA_TOKENS))
                        .max(1),
                )
            }
        }
    }

    /// Learns from a prompt whose tokens a worker has counted.
    pub(crate) fn observe(&self, size: Size, counted: u32) {
        let Size::Text { bytes, media: 0 } = size else {
            return;
        };
        if bytes == 0 || counted == 0 {
            return;
        }
        #[expect(clippy::cast_precision_loss)]
        let seen = f64::from(counted) / bytes as f64;
        let ratio = self.get() + WEIGHT * (seen.clamp(0.01, 1.0) - self.get());
        // Relaxed: a statistic; guards no memory. Of two observations at once one may be lost.
        self.0.store(ratio.to_bits(), Ordering::Relaxed);
    }

    fn get(&self) -> f64 {
        f64::from_bits(self.0.load(Ordering::Relaxed))
    }
}

/// Whether the size was counted and not estimated.
pub(crate) fn is_exact(size: Size) -> bool {
    matches!(size, Size::Tokens(_))
}

fn narrow(tokens: usize) -> Tokens {
    Tokens(u32::try_from(tokens).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_measured_and_the_ratio_learns() {
        let ratio = Ratio::new();
        let text = Size::Text {
            bytes: 4_000,
            media: 0,
        };
        assert_eq!(ratio.tokens(text), Tokens(1_000), "4,000 x 0.25");
        for _ in 0..100 {
            ratio.observe(text, 2_000);
        }
        let learnt = ratio.tokens(text).0;
        assert!(
            (1_990..=2_001).contains(&learnt),
            "{learnt} is near 4,000 x 0.5"
        );
        ratio.observe(
            Size::Text {
                bytes: 10,
                media: 1,
            },
            1_000_000,
        );
        assert_eq!(
            ratio.tokens(text).0,
            learnt,
            "media says nothing about text"
        );
    }

    #[test]
    fn token_ids_are_counted() {
        assert_eq!(Ratio::new().tokens(Size::Tokens(17)), Tokens(17));
        assert_eq!(
            Ratio::new().tokens(Size::Text { bytes: 0, media: 2 }),
            Tokens(2_048)
        );
    }
}
