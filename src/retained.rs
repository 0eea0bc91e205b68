//! KV blocks that an engine keeps after their turn, and until when; and those that no conversation has a use for any more.
//!
//! An engine that pins finished turns frees their blocks when a time has passed, whatever became of the conversation.
//! Promises: what is kept is given back once, never before its time and at most a second after it. Whether anything is kept is
//! told without looking at conversations.
//! Leaves to others: what is kept and until when (`router`), the booking itself (`occupancy`), when to look (`tick`).

use std::collections::BTreeMap;

use crate::sync::{Counter, Mutex};
use crate::units::{Blocks, Timestamp};

const SECOND: u64 = 1_000_000_000;

/// What one engine keeps.
#[derive(Debug)]
pub(crate) struct Retained {
    /// Blocks by the second in which they come free: as many entries as the time has seconds, however many turns.
    by_second: Mutex<BTreeMap<u64, u64>>,
    /// Their sum; 0 spares whoever looks the lock.
    blocks: Counter,
    /// Until when the blocks are kept that conversations hold, of those that were used last.
    held_until: Counter,
}

impl Retained {
    pub(crate) fn new() -> Self {
        Self {
            by_second: Mutex::new(BTreeMap::new()),
            blocks: Counter::default(),
            held_until: Counter::default(),
        }
    }

    /// Keeps booked blocks until then.
    pub(crate) fn add(&self, blocks: Blocks, until: Timestamp) {
        if blocks > Blocks::ZERO {
            let count = u64::from(blocks.get());
            *self
                .by_second
                .lock()
                .entry(until.0.div_ceil(SECOND))
                .or_default() += count;
            self.blocks.add(count);
        }
    }

    /// The blocks whose time has come; they are the caller's to give back.
    pub(crate) fn expire(&self, now: Timestamp) -> Blocks {
        if self.blocks.get() == 0 {
            return Blocks::ZERO;
        }
        let mut kept = self.by_second.lock();
        let later = kept.split_off(&(now.0 / SECOND + 1));
        let expired = std::mem::replace(&mut *kept, later).values().sum();
        self.blocks.sub(expired);
        Blocks::new(expired)
    }

    /// A conversation holds blocks that are kept until then.
    pub(crate) fn held(&self, until: Timestamp) {
        self.held_until.raise(until.0);
    }

    /// Whether any are kept, held by a conversation or not.
    pub(crate) fn any(&self, now: Timestamp) -> bool {
        self.held_until.get() > now.0 || self.blocks.get() > 0
    }

    /// How many are kept that no conversation holds.
    pub(crate) fn blocks(&self) -> Blocks {
        Blocks::new(self.blocks.get())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_given_back_once_and_not_before_their_time() {
        let at = |millis: u64| Timestamp(millis * 1_000_000);
        let kept = Retained::new();
        kept.add(Blocks::new(3), at(5_000));
        kept.add(Blocks::new(4), at(5_001));
        kept.add(Blocks::ZERO, at(1));
        assert_eq!(kept.expire(at(4_999)), Blocks::ZERO);
        assert_eq!(kept.expire(at(5_000)), Blocks::new(3), "equal to its time");
        assert_eq!(kept.blocks(), Blocks::new(4));
        assert_eq!(kept.expire(at(5_999)), Blocks::ZERO, "in whole seconds");
        assert_eq!(kept.expire(at(60_000)), Blocks::new(4));
        assert_eq!(kept.expire(at(60_000)), Blocks::ZERO, "once");
        assert_eq!(kept.blocks(), Blocks::ZERO);
    }
}
