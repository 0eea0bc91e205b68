//! Prompt tokens queued at one prefiller.
//!
//! Promises: whoever takes a prompt off learns from the same atomic step whether newcomers wait.
//! Leaves to others: which prefiller to ask (`placement`), how long a queue may be (`config`).

use crate::sync::{AtomicU64, Ordering};
use crate::units::Tokens;

/// The top bit: newcomers wait.
const WAITS: u64 = 1 << 63;

/// Prompt tokens queued at one prefiller; the top bit says that newcomers wait for them.
#[derive(Debug)]
pub(crate) struct Backlog(AtomicU64);

impl Backlog {
    pub(crate) fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    pub(crate) fn queued(&self) -> Tokens {
        // Acquire: pairs with the Release in `try_add` and `done`.
        let queued = self.0.load(Ordering::Acquire) & !WAITS;
        Tokens(u32::try_from(queued).unwrap_or(u32::MAX))
    }

    /// Queues a prompt while fewer than `limit` tokens are queued.
    pub(crate) fn try_add(&self, prompt: Tokens, limit: Tokens) -> bool {
        let mut word = self.0.load(Ordering::Acquire);
        loop {
            if word & !WAITS >= u64::from(limit.0) {
                return false;
            }
            let next = word + u64::from(prompt.0);
            // AcqRel: pairs with itself across threads, as in `Occupancy::update`.
            match self
                .0
                .compare_exchange_weak(word, next, Ordering::AcqRel, Ordering::Acquire)
            {
                Ok(_) => return true,
                Err(now) => word = now,
            }
        }
    }

    /// A prompt is computed or given up; says whether somebody waits.
    pub(crate) fn done(&self, prompt: Tokens) -> bool {
        // AcqRel: the flag tells of a waiter that was in the line before.
        self.0.fetch_sub(u64::from(prompt.0), Ordering::AcqRel) & WAITS != 0
    }

    pub(crate) fn flag(&self, waits: bool) {
        if waits {
            // AcqRel: as in `done`.
            self.0.fetch_or(WAITS, Ordering::AcqRel);
        } else {
            // AcqRel: as in `done`.
            self.0.fetch_and(!WAITS, Ordering::AcqRel);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_backlog_admits_until_its_limit_is_reached() {
        let prefiller = Backlog::new();
        assert!(
            prefiller.try_add(Tokens(100), Tokens(10)),
            "0 < 10: one prompt may pass the limit"
        );
        assert!(!prefiller.try_add(Tokens(1), Tokens(10)));
        prefiller.flag(true);
        assert!(prefiller.done(Tokens(100)), "somebody waits");
        assert_eq!(prefiller.queued(), Tokens(0));
    }
}
