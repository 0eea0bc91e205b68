//! Prompt tokens computed lately, and how many of them had been computed before.
//!
//! Promises: adding is at most two atomic additions; a sum covers the last 110 to 120 seconds.
//! Leaves to others: what counts as computed before (`router`), what follows from it (`placement`).

use std::time::Duration;

use crate::sync::Counter;
use crate::units::{Timestamp, Tokens};

const SLOTS: usize = 12;
const SLOT: Duration = Duration::from_secs(10);

/// The tokens of one slot of time. The first to come in a new one empties it; a thread that adds in that very moment may
/// see its tokens go, which is a share of one turn in two minutes of them.
#[derive(Debug, Default)]
struct Slot {
    /// One more than the number of the slot of time.
    number: Counter,
    computed: Counter,
    again: Counter,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Recent([Slot; SLOTS]);

impl Recent {
    pub(crate) fn add(&self, computed: Tokens, again: Tokens, now: Timestamp) {
        let number = number(now);
        let slot = &self.0[place(number)];
        let before = slot.number.get();
        if before != number && slot.number.replace(before, number) {
            slot.computed.set(0);
            slot.again.set(0);
        }
        slot.computed.add(u64::from(computed.0));
        if again > Tokens(0) {
            slot.again.add(u64::from(again.0));
        }
    }

    /// The share of what was computed lately that had been computed before; `None` if nothing was.
    pub(crate) fn share_again(&self, now: Timestamp) -> Option<f64> {
        let latest = number(now);
        let lately = |slot: &&Slot| latest < slot.number.get() + SLOTS as u64;
        let (computed, again) = (self.0.iter().filter(lately)).fold((0, 0), |sum, slot| {
            (sum.0 + slot.computed.get(), sum.1 + slot.again.get())
        });
        #[expect(clippy::cast_precision_loss, reason = "far below 2^52 tokens")]
        (computed > 0).then(|| (again as f64 / computed as f64).min(1.0))
    }
}

fn number(now: Timestamp) -> u64 {
    now.0 / u64::try_from(SLOT.as_nanos()).unwrap_or(u64::MAX) + 1
}

fn place(number: u64) -> usize {
    usize::try_from(number % SLOTS as u64).unwrap_or(0)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const fn at(seconds: u64) -> Timestamp {
        Timestamp(seconds * 1_000_000_000)
    }

    #[test]
    fn the_share_is_of_the_last_two_minutes() {
        let recent = Recent::default();
        assert_eq!(recent.share_again(at(0)), None);
        recent.add(Tokens(300), Tokens(100), at(1));
        recent.add(Tokens(100), Tokens(0), at(19));
        assert_eq!(recent.share_again(at(19)), Some(0.25), "100 of 400");
        assert_eq!(recent.share_again(at(119)), Some(0.25));
        assert_eq!(
            recent.share_again(at(120)),
            Some(0.0),
            "the first slot is over"
        );
        assert_eq!(recent.share_again(at(130)), None);
        recent.add(Tokens(10), Tokens(5), at(121));
        assert_eq!(
            recent.share_again(at(121)),
            Some(5.0 / 110.0),
            "its slot began anew"
        );
    }
}
