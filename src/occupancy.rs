//! KV blocks booked on one decoder, and the prompt tokens queued at one prefiller.
//!
//! Promises: `booked` never passes the ceiling asked for, and each booking is returned once (I3).
//! Whoever gives something back learns from the same atomic step whether somebody waits for it, so
//! no wake-up is lost and nobody pays for a line that is empty.
//! Leaves to others: which decoder to ask (`placement`), how far to fill it (`admission`).

use crate::sync::{AtomicU64, Ordering};
use crate::units::{Blocks, Tokens};

/// Who asks for blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rank {
    /// A turn that just arrived: those that wait to grow on this decoder go first.
    Arriving,
    /// The line serves its first.
    FromLine,
}

/// How far a decoder may be filled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ceiling {
    /// Blocks booked afterwards, at most.
    pub(crate) shared: Blocks,
    /// The same if nothing is booked at all: what alone fits is admitted alone.
    pub(crate) alone: Blocks,
}

impl Ceiling {
    pub(crate) const fn capacity(capacity: Blocks) -> Self {
        Self {
            shared: capacity,
            alone: capacity,
        }
    }
}

/// The books of one decoder at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Books {
    /// All blocks booked: held by conversations plus reserved.
    pub(crate) booked: Blocks,
    /// Of these, reserved by turns in flight.
    pub(crate) reserved: Blocks,
    /// Turns in flight.
    pub(crate) running: u32,
    /// Some pinned turn waits to grow here.
    pub(crate) growth_waits: bool,
}

const FIELD: u64 = (1 << 24) - 1;
const RESERVED: u32 = 24;
const RUNNING: u32 = 48;
const MAX_RUNNING: u64 = (1 << 14) - 1;
/// New conversations wait in the line.
pub(crate) const NEWCOMERS_WAIT: u64 = 1 << 62;
/// Pinned turns wait to grow on this decoder.
pub(crate) const GROWTH_WAITS: u64 = 1 << 63;

/// 24 bits booked, 24 reserved, 14 turns in flight, 2 flags: who waits.
#[derive(Debug)]
pub(crate) struct Occupancy(AtomicU64);

fn fields(word: u64) -> (u64, u64, u64) {
    (
        word & FIELD,
        word >> RESERVED & FIELD,
        word >> RUNNING & MAX_RUNNING,
    )
}

fn pack(booked: u64, reserved: u64, running: u64, flags: u64) -> u64 {
    booked | reserved << RESERVED | running << RUNNING | flags
}

fn flags(word: u64) -> u64 {
    word & (NEWCOMERS_WAIT | GROWTH_WAITS)
}

impl Occupancy {
    pub(crate) fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    pub(crate) fn books(&self) -> Books {
        // Acquire: pairs with the Release in `update`.
        let word = self.0.load(Ordering::Acquire);
        let (booked, reserved, running) = fields(word);
        Books {
            booked: Blocks::new(booked),
            reserved: Blocks::new(reserved),
            running: u32::try_from(running).unwrap_or(u32::MAX),
            growth_waits: word & GROWTH_WAITS != 0,
        }
    }

    fn update(&self, step: impl Fn(u64) -> Option<u64>) -> Option<u64> {
        let mut word = self.0.load(Ordering::Acquire);
        loop {
            let next = step(word)?;
            // AcqRel: what is given back by one thread is taken by another; the flags tell the
            // giver of a waiter that was in the line before.
            match self
                .0
                .compare_exchange_weak(word, next, Ordering::AcqRel, Ordering::Acquire)
            {
                Ok(before) => return Some(before),
                Err(now) => word = now,
            }
        }
    }

    /// Books `blocks` for one more turn, if they fit under `ceiling`.
    pub(crate) fn try_reserve(
        &self,
        blocks: Blocks,
        ceiling: Ceiling,
        rank: Rank,
    ) -> Option<Reservation<'_>> {
        let asked = u64::from(blocks.get());
        self.update(|word| {
            let (booked, reserved, running) = fields(word);
            let overtakes = rank == Rank::Arriving && word & GROWTH_WAITS != 0;
            let most = if booked == 0 {
                ceiling.alone
            } else {
                ceiling.shared
            };
            let fits = booked + asked <= u64::from(most.get()) && !overtakes;
            if running == MAX_RUNNING || !(fits || asked == 0) {
                return None;
            }
            Some(pack(
                booked + asked,
                reserved + asked,
                running + 1,
                flags(word),
            ))
        })
        .map(|_| Reservation {
            occupancy: self,
            blocks,
        })
    }

    /// Changes a reservation to `wanted` as far as `capacity` allows; also says who waits.
    pub(crate) fn resize(
        &self,
        reserved: Blocks,
        wanted: Blocks,
        capacity: Blocks,
    ) -> (Blocks, bool) {
        let (old, wanted) = (u64::from(reserved.get()), u64::from(wanted.get()));
        let grant = |booked: u64| {
            let room = u64::from(capacity.get()).saturating_sub(booked);
            wanted.min(old + room)
        };
        let before = self
            .update(|word| {
                let (booked, all, running) = fields(word);
                let new = grant(booked);
                Some(pack(
                    booked + new - old,
                    all + new - old,
                    running,
                    flags(word),
                ))
            })
            .expect("a resize always finds a value");
        let new = grant(before & FIELD);
        (Blocks::new(new), new < old && flags(before) != 0)
    }

    /// A turn ends: its reservation goes and `keep` blocks stay booked for its conversation (below
    /// zero: the conversation holds that many less than before). `keep` above the reservation is
    /// granted as far as `capacity` allows. Returns what was kept, and whether somebody waits for
    /// what was given back.
    pub(crate) fn settle(&self, reserved: Blocks, keep: i64, capacity: Blocks) -> (i64, bool) {
        let held = i64::from(reserved.get());
        let grant = |booked: u64| {
            let room = u64::from(capacity.get()).saturating_sub(booked);
            keep.min(held + i64::try_from(room).unwrap_or(i64::MAX))
        };
        let before = self
            .update(|word| {
                let (booked, all, running) = fields(word);
                let booked = booked.saturating_add_signed(grant(booked) - held);
                let all = all.saturating_sub(u64::from(reserved.get()));
                Some(pack(booked, all, running.saturating_sub(1), flags(word)))
            })
            .expect("a settlement always finds a value");
        let kept = grant(before & FIELD);
        (kept, kept < held && flags(before) != 0)
    }

    /// A turn's reservation becomes its conversation's while the turn still runs.
    pub(crate) fn keep(&self, reserved: Blocks) {
        self.update(|word| {
            let (booked, all, running) = fields(word);
            let all = all.saturating_sub(u64::from(reserved.get()));
            Some(pack(booked, all, running, flags(word)))
        });
    }

    /// Books `blocks` more without a turn, as far as `capacity` allows.
    pub(crate) fn grow(&self, blocks: Blocks, capacity: Blocks) -> Blocks {
        let asked = u64::from(blocks.get());
        let grant = |booked: u64| asked.min(u64::from(capacity.get()).saturating_sub(booked));
        let before = self
            .update(|word| {
                let (booked, reserved, running) = fields(word);
                Some(pack(booked + grant(booked), reserved, running, flags(word)))
            })
            .expect("growing always finds a value");
        Blocks::new(grant(before & FIELD))
    }

    /// A conversation gives `blocks` back; says whether somebody waits for them.
    pub(crate) fn release(&self, blocks: Blocks) -> bool {
        if blocks == Blocks::ZERO {
            return false;
        }
        let before = self
            .update(|word| {
                let (booked, reserved, running) = fields(word);
                let booked = booked.saturating_sub(u64::from(blocks.get()));
                Some(pack(booked, reserved, running, flags(word)))
            })
            .expect("a release always finds a value");
        flags(before) != 0
    }

    /// Whether somebody waits. For whoever changed something else that a waiter looks at: a waiter
    /// that is not seen here looks after this, and so sees the change.
    pub(crate) fn somebody_waits(&self) -> bool {
        // AcqRel, and a write: it takes its place among the waiters' writes of the flag.
        flags(self.0.fetch_or(0, Ordering::AcqRel)) != 0
    }

    /// Tells those who give back that somebody waits, or no longer.
    pub(crate) fn flag(&self, flag: u64, waits: bool) {
        self.update(|word| {
            let next = if waits { word | flag } else { word & !flag };
            (next != word).then_some(next)
        });
    }
}

/// Blocks booked for one turn; given back when dropped.
#[derive(Debug)]
pub(crate) struct Reservation<'a> {
    occupancy: &'a Occupancy,
    blocks: Blocks,
}

impl Reservation<'_> {
    /// The turn takes over: its own settlement gives the blocks back.
    pub(crate) fn hand_to_turn(self) -> Blocks {
        let blocks = self.blocks;
        std::mem::forget(self);
        blocks
    }

    /// Gives the blocks back now and says whether somebody waits for them.
    pub(crate) fn cancel(self) -> bool {
        let (occupancy, blocks) = (self.occupancy, self.hand_to_turn());
        occupancy.settle(blocks, 0, Blocks::ZERO).1
    }
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        self.occupancy.settle(self.blocks, 0, Blocks::ZERO);
    }
}

/// Prompt tokens queued at one prefiller; the top bit says that newcomers wait for them.
#[derive(Debug)]
pub(crate) struct Backlog(AtomicU64);

impl Backlog {
    pub(crate) fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    pub(crate) fn queued(&self) -> Tokens {
        // Acquire: pairs with the Release in `try_add` and `done`.
        let queued = self.0.load(Ordering::Acquire) & !GROWTH_WAITS;
        Tokens(u32::try_from(queued).unwrap_or(u32::MAX))
    }

    /// Queues a prompt while fewer than `limit` tokens are queued.
    pub(crate) fn try_add(&self, prompt: Tokens, limit: Tokens) -> bool {
        let mut word = self.0.load(Ordering::Acquire);
        loop {
            if word & !GROWTH_WAITS >= u64::from(limit.0) {
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
        self.0.fetch_sub(u64::from(prompt.0), Ordering::AcqRel) & GROWTH_WAITS != 0
    }

    pub(crate) fn flag(&self, waits: bool) {
        if waits {
            // AcqRel: as in `done`.
            self.0.fetch_or(GROWTH_WAITS, Ordering::AcqRel);
        } else {
            // AcqRel: as in `done`.
            self.0.fetch_and(!GROWTH_WAITS, Ordering::AcqRel);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn blocks(n: u64) -> Blocks {
        Blocks::new(n)
    }

    fn reserve(decoder: &Occupancy, n: u64, ceiling: u64) -> Option<Blocks> {
        let ceiling = Ceiling::capacity(blocks(ceiling));
        decoder
            .try_reserve(blocks(n), ceiling, Rank::Arriving)
            .map(Reservation::hand_to_turn)
    }

    #[test]
    fn a_booking_equal_to_the_ceiling_fits_and_one_above_does_not() {
        let decoder = Occupancy::new();
        assert!(reserve(&decoder, 11, 10).is_none(), "11 > 10");
        assert!(reserve(&decoder, 10, 10).is_some(), "10 = 10");
        assert!(reserve(&decoder, 1, 10).is_none(), "full");
        assert!(
            reserve(&decoder, 0, 10).is_some(),
            "a turn that needs nothing always runs"
        );
    }

    #[test]
    fn a_dropped_reservation_leaves_nothing() {
        let decoder = Occupancy::new();
        let ceiling = Ceiling::capacity(blocks(10));
        drop(
            decoder
                .try_reserve(blocks(6), ceiling, Rank::Arriving)
                .expect("empty"),
        );
        assert_eq!(decoder.books(), Books::default());
    }

    #[test]
    fn settling_keeps_less_the_same_or_more_up_to_capacity() {
        for (keep, kept, booked) in [(-1, -1, 1), (0, 0, 2), (3, 3, 5), (4, 4, 6), (20, 8, 10)] {
            let decoder = Occupancy::new();
            decoder.grow(blocks(2), blocks(10));
            let held = reserve(&decoder, 4, 10).expect("2 + 4 <= 10");
            assert_eq!(
                decoder.settle(held, keep, blocks(10)).0,
                kept,
                "keep {keep}"
            );
            let books = Books {
                booked: blocks(booked),
                ..Books::default()
            };
            assert_eq!(decoder.books(), books, "keep {keep}");
        }
    }

    #[test]
    fn the_giver_is_told_that_somebody_waits() {
        let decoder = Occupancy::new();
        decoder.grow(blocks(5), blocks(10));
        assert!(!decoder.release(blocks(1)));
        decoder.flag(NEWCOMERS_WAIT, true);
        assert!(decoder.release(blocks(1)));
        assert!(
            reserve(&decoder, 1, 10).is_some(),
            "newcomers in the line do not stop a pinned turn"
        );
        decoder.flag(GROWTH_WAITS, true);
        assert!(
            reserve(&decoder, 1, 10).is_none(),
            "those who wait to grow go first"
        );
        decoder.flag(GROWTH_WAITS, false);
        assert!(reserve(&decoder, 1, 10).is_some());
    }

    #[test]
    fn a_reservation_is_resized_within_capacity() {
        let decoder = Occupancy::new();
        let held = reserve(&decoder, 4, 10).expect("empty");
        assert_eq!(decoder.resize(held, blocks(20), blocks(10)).0, blocks(10));
        assert_eq!(
            decoder.resize(blocks(10), blocks(1), blocks(10)).0,
            blocks(1)
        );
        assert_eq!(decoder.books().booked, blocks(1));
    }

    #[test]
    fn what_fits_only_alone_is_admitted_alone() {
        let decoder = Occupancy::new();
        let ceiling = Ceiling {
            shared: blocks(8),
            alone: blocks(10),
        };
        let alone = decoder.try_reserve(blocks(9), ceiling, Rank::Arriving);
        assert!(alone.is_some(), "empty: 9 <= 10");
        assert!(
            decoder
                .try_reserve(blocks(1), ceiling, Rank::Arriving)
                .is_none(),
            "9 + 1 > 8"
        );
    }

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
