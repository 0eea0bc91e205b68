//! Milliseconds between the tokens of a turn, as observed at one worker: how long its decode step takes.
//!
//! Promises: recording is one load, one store and two additions; a race loses one sample of the mean, never more.
//! Leaves to others: which gaps count (`router`), what follows from them (`placement`).

use std::time::Duration;

use crate::sync::Counter;
use crate::units::Tokens;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct StepTime {
    /// Of the last turns, bits of an `f64`; 0 while nothing was observed.
    mean_ms: Counter,
    sum_ns: Counter,
    gaps: Counter,
}

/// Gaps between tokens of turns that have ended, all added up.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Gaps {
    /// How long they were together.
    pub sum: Duration,
    /// How many.
    pub count: u64,
}

impl Gaps {
    /// The mean of those that came since, in milliseconds; `None` if there are none.
    #[expect(clippy::cast_precision_loss, reason = "counts far below 2^52")]
    pub(crate) fn mean_ms_since(self, before: Self) -> Option<f64> {
        let count = self.count.saturating_sub(before.count);
        let ms = self.sum.saturating_sub(before.sum).as_secs_f64() * 1e3;
        (count > 0).then(|| ms / count as f64)
    }
}

impl StepTime {
    const WEIGHT: f64 = 0.2;

    pub(crate) fn get(&self) -> Option<f64> {
        match self.mean_ms.get() {
            0 => None,
            bits => Some(f64::from_bits(bits)),
        }
    }

    pub(crate) fn gaps(&self) -> Gaps {
        Gaps {
            sum: Duration::from_nanos(self.sum_ns.get()),
            count: self.gaps.get(),
        }
    }

    /// A turn ended that had so many gaps, of this length on average.
    pub(crate) fn observe(&self, gap: Duration, gaps: u32) {
        let all = u64::try_from(gap.as_nanos()).unwrap_or(u64::MAX);
        self.sum_ns.add(all.saturating_mul(u64::from(gaps)));
        self.gaps.add(u64::from(gaps));
        let ms = gap.as_secs_f64() * 1e3;
        let mean = self
            .get()
            .map_or(ms, |mean| mean + Self::WEIGHT * (ms - mean));
        self.mean_ms.set(mean.to_bits());
    }
}

/// Tokens that new conversations find computed: the head that their first prompts share.
#[derive(Debug, Default)]
pub(crate) struct SharedHead(Counter);

impl SharedHead {
    const WEIGHT: f64 = 0.1;

    pub(crate) fn get(&self) -> Tokens {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a mean of token counts"
        )]
        Tokens(f64::from_bits(self.0.get()) as u32)
    }

    /// A first prompt found so many.
    pub(crate) fn observe(&self, cached: Tokens) {
        let mean = f64::from_bits(self.0.get());
        let mean = mean + Self::WEIGHT * (f64::from(cached.0) - mean);
        self.0.set(mean.to_bits());
    }
}

/// Prompt tokens that wait or run at one worker when a conversation is placed anywhere: what one that comes later will find.
#[derive(Debug, Default)]
pub(crate) struct UsualWork(Counter);

impl UsualWork {
    const WEIGHT: f64 = 0.05;

    pub(crate) fn get(&self) -> f64 {
        f64::from_bits(self.0.get())
    }

    pub(crate) fn observe(&self, tokens: Tokens) {
        let mean = self.get();
        let mean = mean + Self::WEIGHT * (f64::from(tokens.0) - mean);
        self.0.set(mean.to_bits());
    }
}

/// Milliseconds for each token of a handoff, over all links. A short one tells about fixed costs.
#[derive(Debug, Default)]
pub(crate) struct LinkTime(Counter);

impl LinkTime {
    const TELLING: Tokens = Tokens(2_048);
    /// What a handoff takes before its first token.
    const FIXED_MS: f64 = 5.0;
    const WEIGHT: f64 = 0.1;

    pub(crate) fn ms_per_token(&self) -> Option<f64> {
        match self.0.get() {
            0 => None,
            bits => Some(f64::from_bits(bits)),
        }
    }

    /// The KV of so many tokens was on its way for that long, to a decoder that computed no prompts of its own.
    pub(crate) fn observe(&self, tokens: Tokens, took: Duration) {
        if tokens < Self::TELLING {
            return;
        }
        let ms = (took.as_secs_f64() * 1e3 - Self::FIXED_MS).max(0.0) / f64::from(tokens.0);
        let mean = self
            .ms_per_token()
            .map_or(ms, |mean| mean + Self::WEIGHT * (ms - mean));
        // The smallest number above 0 tells that something was observed.
        self.0.set(mean.max(f64::MIN_POSITIVE).to_bits());
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_first_gap_is_believed_and_later_ones_by_a_fifth() {
        let steps = StepTime::default();
        assert_eq!(steps.get(), None);
        steps.observe(Duration::from_millis(10), 9);
        assert_eq!(steps.get(), Some(10.0));
        let before = steps.gaps();
        assert_eq!(before.mean_ms_since(before), None);
        steps.observe(Duration::from_millis(20), 3);
        assert_eq!(steps.get(), Some(12.0), "10 + 0.2 x 10");
        assert_eq!(steps.gaps().mean_ms_since(before), Some(20.0));
        let all = steps.gaps().mean_ms_since(Gaps::default());
        assert_eq!(all, Some(12.5), "nine of 10, three of 20");
    }

    #[test]
    fn usual_work_is_a_mean_that_begins_with_none() {
        let usual = UsualWork::default();
        let is = |mean: f64| (usual.get() - mean).abs() < 1e-9;
        assert!(is(0.0));
        usual.observe(Tokens(2_000));
        assert!(is(100.0), "0.05 x 2000");
        usual.observe(Tokens(0));
        assert!(is(95.0));
    }

    #[test]
    fn a_handoff_tells_what_a_token_takes_if_it_is_long_enough() {
        let link = LinkTime::default();
        link.observe(Tokens(2_047), Duration::from_secs(1));
        assert_eq!(link.ms_per_token(), None, "2047 < 2048 tokens tell nothing");
        link.observe(Tokens(2_500), Duration::from_millis(55));
        assert_eq!(link.ms_per_token(), Some(0.02), "(55 - 5) / 2500");
        link.observe(Tokens(2_500), Duration::from_millis(5));
        let later = link.ms_per_token().expect("observed");
        assert!((later - 0.018).abs() < 1e-12, "0.02 - 0.1 x 0.02");
    }
}
