//! Blocks of one decoder that one stripe of threads has taken in advance.
//!
//! Two threads that book on the same decoder would send its books to and fro between their caches
//! at each turn. So each stripe keeps a small allowance, booked already, and spends and saves it
//! alone; it also counts what its turns reserve. A turn may begin on one stripe and end on another,
//! so these counts wrap, and only their sum over all stripes means something.
//!
//! Promises: a closed pocket holds nothing and takes nothing; each operation is one atomic step.
//! Leaves to others: where the allowance comes from and when pockets are closed (`occupancy`).

use crate::sync::{AtomicU64, Ordering, read_in_order};

const FIELD: u64 = (1 << 24) - 1;
const RESERVED: u32 = 24;
const RUNNING: u32 = 48;
pub(crate) const RUNNING_FIELD: u64 = (1 << 15) - 1;
const CLOSED: u64 = 1 << 63;

/// How a step changes what turns reserve, and how many run.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Flow {
    pub(crate) reserved: i64,
    pub(crate) running: i64,
}

/// 24 bits allowance, 24 reserved, 15 running, 1 closed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Contents {
    pub(crate) allowance: u64,
    pub(crate) reserved: u64,
    pub(crate) running: u64,
    closed: bool,
}

impl Contents {
    fn unpack(word: u64) -> Self {
        Self {
            allowance: word & FIELD,
            reserved: word >> RESERVED & FIELD,
            running: word >> RUNNING & RUNNING_FIELD,
            closed: word & CLOSED != 0,
        }
    }

    fn pack(self) -> u64 {
        let closed = if self.closed { CLOSED } else { 0 };
        self.allowance
            | (self.reserved & FIELD) << RESERVED
            | (self.running & RUNNING_FIELD) << RUNNING
            | closed
    }

    fn after(self, flow: Flow) -> Self {
        Self {
            reserved: self.reserved.wrapping_add_signed(flow.reserved),
            running: self.running.wrapping_add_signed(flow.running),
            ..self
        }
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Pocket(AtomicU64);

impl Pocket {
    pub(crate) fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    pub(crate) fn contents(&self) -> Contents {
        // Acquire: pairs with the Release in `step`.
        Contents::unpack(self.0.load(Ordering::Acquire))
    }

    fn step(&self, step: impl Fn(Contents) -> Option<Contents>) -> Option<Contents> {
        let mut word = self.0.load(Ordering::Acquire);
        loop {
            let before = Contents::unpack(word);
            let next = step(before)?.pack();
            // Acquire and Release: blocks that one turn saved are spent by another; who closes the pocket
            // sees what was saved before, and who comes after sees that it is closed. SeqCst: see `is_closed`.
            match self
                .0
                .compare_exchange_weak(word, next, Ordering::SeqCst, Ordering::Acquire)
            {
                Ok(_) => return Some(before),
                Err(now) => word = now,
            }
        }
    }

    /// Takes `blocks` out of the allowance, if it is that large.
    pub(crate) fn spend(&self, blocks: u64, flow: Flow) -> bool {
        let spent = self.step(|pocket| {
            let allowance = pocket.allowance.checked_sub(blocks)?;
            Some(Contents {
                allowance,
                ..pocket.after(flow)
            })
        });
        spent.is_some()
    }

    /// Puts `blocks` into the allowance. What passes `most` is returned, and so much more that half
    /// of it is left: the next ones fit again. A closed pocket returns all.
    pub(crate) fn save(&self, blocks: u64, most: u64, flow: Flow) -> u64 {
        let kept = |pocket: Contents| {
            let all = pocket.allowance + blocks;
            let most = if pocket.closed { 0 } else { most };
            if all <= most { all } else { all.min(most / 2) }
        };
        let before = self.step(|pocket| {
            let allowance = kept(pocket);
            Some(Contents {
                allowance,
                ..pocket.after(flow)
            })
        });
        before.map_or(0, |pocket| pocket.allowance + blocks - kept(pocket))
    }

    /// Changes the counts only.
    pub(crate) fn note(&self, flow: Flow) {
        self.step(|pocket| Some(pocket.after(flow)));
    }

    /// Takes the whole allowance; a pocket that is closed stays empty until it is opened.
    pub(crate) fn empty(&self, close: bool) -> u64 {
        let before = self.step(|pocket| {
            let closed = pocket.closed || close;
            let changes = closed != pocket.closed || pocket.allowance > 0;
            changes.then_some(Contents {
                allowance: 0,
                closed,
                ..pocket
            })
        });
        before.map_or(0, |pocket| pocket.allowance)
    }

    /// Whether it is closed. Who changed a word before asks this after, and who closed the pocket looks at the word after: all
    /// four are in the one order of `SeqCst` accesses, so one of the two sees what the other did.
    pub(crate) fn is_closed(&self) -> bool {
        read_in_order(&self.0) & CLOSED != 0
    }

    pub(crate) fn open(&self) {
        self.step(|pocket| {
            Some(Contents {
                closed: false,
                ..pocket
            })
        });
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const NONE: Flow = Flow {
        reserved: 0,
        running: 0,
    };

    #[test]
    fn a_pocket_saves_up_to_its_most_and_spends_what_it_has() {
        let pocket = Pocket::new();
        assert!(!pocket.spend(1, NONE), "empty");
        assert_eq!(pocket.save(4, 4, NONE), 0, "4 = 4");
        assert!(!pocket.spend(5, NONE), "5 > 4");
        assert_eq!(pocket.save(1, 4, NONE), 3, "4 + 1 > 4: half of 4 stays");
        assert!(pocket.spend(2, NONE), "2 = 2");
    }

    #[test]
    fn a_closed_pocket_takes_nothing_until_it_is_opened() {
        let pocket = Pocket::new();
        pocket.save(3, 4, NONE);
        assert_eq!(pocket.empty(true), 3);
        assert_eq!(pocket.save(3, 4, NONE), 3, "all of it is handed back");
        pocket.open();
        assert_eq!(pocket.save(3, 4, NONE), 0);
        assert_eq!(pocket.empty(false), 3);
        assert_eq!(pocket.save(3, 4, NONE), 0, "emptied, not closed");
    }

    #[test]
    fn counts_that_wrap_sum_up() {
        let (begins, ends) = (Pocket::new(), Pocket::new());
        begins.note(Flow {
            reserved: 7,
            running: 1,
        });
        ends.note(Flow {
            reserved: -5,
            running: -1,
        });
        let (a, b) = (begins.contents(), ends.contents());
        assert_eq!((a.reserved + b.reserved) & FIELD, 2);
        assert_eq!((a.running + b.running) & RUNNING_FIELD, 0);
        assert_eq!(b.allowance, 0, "no count borrows from its neighbour");
    }
}
