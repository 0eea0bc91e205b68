//! Milliseconds between the tokens of a turn, as observed at one worker: how long its decode step takes.
//!
//! Promises: recording is one load and one store; a race loses one sample, never more.
//! Leaves to others: which gaps count (`router`), what follows from them (`placement`).

use std::time::Duration;

use crate::sync::Counter;

/// Bits of an `f64`; 0 while nothing was observed.
#[derive(Debug, Default)]
pub(crate) struct StepTime(Counter);

impl StepTime {
    const WEIGHT: f64 = 0.2;

    pub(crate) fn get(&self) -> Option<f64> {
        match self.0.get() {
            0 => None,
            bits => Some(f64::from_bits(bits)),
        }
    }

    /// A turn ended whose mean gap was this.
    pub(crate) fn observe(&self, gap: Duration) {
        let ms = gap.as_secs_f64() * 1e3;
        let mean = self
            .get()
            .map_or(ms, |mean| mean + Self::WEIGHT * (ms - mean));
        self.0.set(mean.to_bits());
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_first_gap_is_believed_and_later_ones_by_a_fifth() {
        let steps = StepTime::default();
        assert_eq!(steps.get(), None);
        steps.observe(Duration::from_millis(10));
        assert_eq!(steps.get(), Some(10.0));
        steps.observe(Duration::from_millis(20));
        assert_eq!(steps.get(), Some(12.0), "10 + 0.2 x 10");
    }
}
