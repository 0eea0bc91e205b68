//! KV blocks booked on one decoder.
//!
//! Promises: `booked` never passes the ceiling asked for, and each booking is returned once (I3).
//! Whoever gives something back learns from the same atomic step whether somebody waits for it, so
//! no wake-up is lost and nobody pays for a line that is empty.
//! Leaves to others: which decoder to ask (`placement`), how far to fill it (`admission`).

use std::array;

use crate::pocket::{Flow, Pocket, RUNNING_FIELD};
use crate::sync::{AtomicU64, Ordering, POCKETS, Padded, stripe};
use crate::units::Blocks;

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
/// New conversations wait in the line.
pub(crate) const NEWCOMERS_WAIT: u64 = 1 << 62;
/// Pinned turns wait to grow on this decoder.
pub(crate) const GROWTH_WAITS: u64 = 1 << 63;
const FLAGS: u64 = NEWCOMERS_WAIT | GROWTH_WAITS;

/// The books of one decoder: a ledger of all blocks booked, with two flags for who waits, and the
/// pockets of those who book. While anybody waits the pockets are closed, and whoever gives back
/// writes to the ledger and sees the flag.
#[derive(Debug)]
pub(crate) struct Occupancy {
    ledger: Padded<AtomicU64>,
    pockets: [Padded<Pocket>; POCKETS],
}

/// What an asker gets, and whether somebody waits for what moved while it was looked for.
pub(crate) struct Asked<'a> {
    pub(crate) reservation: Option<Reservation<'a>>,
    pub(crate) somebody_waits: bool,
}

/// Blocks that a pocket takes in advance. Small decoders have none to spare.
fn batch(capacity: Blocks) -> u64 {
    let share = if cfg!(test) { 8 } else { 256 };
    u64::from(capacity.get() / share).min(256)
}

/// The most that a pocket keeps of what turns give back.
fn most(capacity: Blocks) -> u64 {
    4 * batch(capacity)
}

fn wide(blocks: Blocks) -> u64 {
    u64::from(blocks.get())
}

impl Occupancy {
    pub(crate) fn new() -> Self {
        Self {
            ledger: Padded(AtomicU64::new(0)),
            pockets: array::from_fn(|_| Padded(Pocket::new())),
        }
    }

    fn pocket(&self) -> &Pocket {
        &self.pockets[stripe() % POCKETS]
    }

    pub(crate) fn books(&self) -> Books {
        // Acquire: pairs with the Release in `update`.
        let ledger = self.ledger.load(Ordering::Acquire);
        let (mut allowance, mut reserved, mut running) = (0, 0, 0);
        for pocket in &self.pockets {
            let contents = pocket.contents();
            allowance += contents.allowance;
            reserved += contents.reserved;
            running += contents.running;
        }
        Books {
            booked: Blocks::new((ledger & FIELD).saturating_sub(allowance)),
            reserved: Blocks::new(reserved & FIELD),
            running: u32::try_from(running & RUNNING_FIELD).unwrap_or(u32::MAX),
            growth_waits: ledger & GROWTH_WAITS != 0,
        }
    }

    /// Changes the blocks in the ledger; the word before.
    fn update(&self, step: impl Fn(u64, u64) -> Option<u64>) -> Option<u64> {
        let mut word = self.ledger.load(Ordering::Acquire);
        loop {
            let next = step(word & FIELD, word & FLAGS)? | word & FLAGS;
            // AcqRel: what is given back by one thread is taken by another; the flags tell the
            // giver of a waiter that was in the line before.
            match self
                .ledger
                .compare_exchange_weak(word, next, Ordering::AcqRel, Ordering::Acquire)
            {
                Ok(before) => return Some(before),
                Err(now) => word = now,
            }
        }
    }

    /// Gives `blocks` back to the ledger; whether somebody waits for them.
    fn restore(&self, blocks: u64) -> bool {
        if blocks == 0 {
            return false;
        }
        let before = self.update(|booked, _| Some(booked.saturating_sub(blocks)));
        before.is_some_and(|word| word & FLAGS != 0)
    }

    /// Brings every allowance back to the ledger; how much that was, and whether somebody waits.
    fn collect(&self, close: bool) -> (u64, bool) {
        let found = self.pockets.iter().map(|pocket| pocket.empty(close)).sum();
        (found, self.restore(found))
    }

    /// Takes an allowance in advance, if nobody waits and there is room; whether somebody waits for
    /// what had to be put back at once.
    fn fund(&self, capacity: Blocks) -> bool {
        let (batch, room) = (batch(capacity), wide(capacity));
        let step = |booked, flags| (flags == 0 && booked + batch <= room).then_some(booked + batch);
        if batch == 0 || self.update(step).is_none() {
            return false;
        }
        let rest = self.pocket().save(batch, most(capacity), Flow::default());
        self.restore(rest)
    }

    /// Books `blocks` in the ledger under `ceiling`.
    fn book(&self, blocks: u64, ceiling: Ceiling, rank: Rank) -> bool {
        let booked = self.update(|booked, flags| {
            let overtakes = rank == Rank::Arriving && flags & GROWTH_WAITS != 0;
            let most = if booked == 0 {
                ceiling.alone
            } else {
                ceiling.shared
            };
            (booked + blocks <= wide(most) && !overtakes).then_some(booked + blocks)
        });
        booked.is_some()
    }

    /// Books up to `blocks` in the ledger, as far as `capacity` allows; whether somebody waits.
    fn book_some(&self, blocks: u64, capacity: Blocks) -> (u64, bool) {
        let room = |booked: u64| wide(capacity).saturating_sub(booked);
        let take = |blocks: u64| {
            let before = self.update(|booked, _| Some(booked + blocks.min(room(booked))));
            before.map_or(0, |word| blocks.min(room(word & FIELD)))
        };
        let taken = take(blocks);
        if taken == blocks {
            return (taken, false);
        }
        match self.collect(false) {
            (0, _) => (taken, false),
            (_, somebody_waits) => (taken + take(blocks - taken), somebody_waits),
        }
    }

    /// Books `blocks` for one more turn, if they fit under `ceiling`.
    pub(crate) fn try_reserve(&self, blocks: Blocks, ceiling: Ceiling, rank: Rank) -> Asked<'_> {
        let asked = wide(blocks);
        let flow = Flow {
            reserved: i64::from(blocks.get()),
            running: 1,
        };
        let granted = |somebody_waits| {
            let reservation = Some(Reservation {
                occupancy: self,
                blocks,
            });
            Asked {
                reservation,
                somebody_waits,
            }
        };
        if asked == 0 {
            self.pocket().note(flow);
            return granted(false);
        }
        // An allowance may be spent up to the capacity, so only by those who may go that far.
        let to_the_top = ceiling.shared == ceiling.alone;
        if to_the_top && self.pocket().spend(asked, flow) {
            return granted(false);
        }
        let mut somebody_waits = false;
        if !self.book(asked, ceiling, rank) {
            let (found, waits) = self.collect(false);
            somebody_waits = waits;
            if found == 0 || !self.book(asked, ceiling, rank) {
                return Asked {
                    reservation: None,
                    somebody_waits,
                };
            }
        }
        if to_the_top {
            somebody_waits |= self.fund(ceiling.shared);
        }
        self.pocket().note(flow);
        granted(somebody_waits)
    }

    /// Changes a reservation to `wanted` as far as `capacity` allows; also says who waits.
    pub(crate) fn resize(
        &self,
        reserved: Blocks,
        wanted: Blocks,
        capacity: Blocks,
    ) -> (Blocks, bool) {
        let keep = i64::from(wanted.get());
        let (kept, somebody_waits) = self.change(reserved, keep, capacity, |kept| Flow {
            reserved: kept - i64::from(reserved.get()),
            running: 0,
        });
        (
            Blocks::new(u64::try_from(kept).unwrap_or(0)),
            somebody_waits,
        )
    }

    /// A turn ends: its reservation goes and `keep` blocks stay booked for its conversation (below
    /// zero: the conversation holds that many less than before). `keep` above the reservation is
    /// granted as far as `capacity` allows. Returns what was kept, and whether somebody waits for
    /// what was given back.
    pub(crate) fn settle(&self, reserved: Blocks, keep: i64, capacity: Blocks) -> (i64, bool) {
        let flow = Flow {
            reserved: -i64::from(reserved.get()),
            running: -1,
        };
        self.change(reserved, keep, capacity, |_| flow)
    }

    /// Moves from `held` blocks to `wanted` or as near as `capacity` allows; `flow` tells how that
    /// changes the counts.
    fn change(
        &self,
        held: Blocks,
        wanted: i64,
        capacity: Blocks,
        flow: impl Fn(i64) -> Flow,
    ) -> (i64, bool) {
        let held = i64::from(held.get());
        let (more, less) = (wanted - held, held - wanted);
        let Ok(more) = u64::try_from(more) else {
            let less = u64::try_from(less).unwrap_or(0);
            let rest = self.pocket().save(less, most(capacity), flow(wanted));
            return (wanted, self.restore(rest));
        };
        if self.pocket().spend(more, flow(wanted)) {
            return (wanted, false);
        }
        let (taken, mut somebody_waits) = self.book_some(more, capacity);
        if taken == more {
            somebody_waits |= self.fund(capacity);
        }
        let kept = held + i64::try_from(taken).unwrap_or(0);
        self.pocket().note(flow(kept));
        (kept, somebody_waits)
    }

    /// A turn's reservation becomes its conversation's while the turn still runs.
    pub(crate) fn keep(&self, reserved: Blocks) {
        self.pocket().note(Flow {
            reserved: -i64::from(reserved.get()),
            running: 0,
        });
    }

    /// What a conversation holds becomes the reservation of its turn until that hands over.
    pub(crate) fn lend(&self, held: Blocks) {
        self.pocket().note(Flow {
            reserved: i64::from(held.get()),
            running: 0,
        });
    }

    /// Books `blocks` more without a turn, as far as `capacity` allows; also says who waits.
    pub(crate) fn grow(&self, blocks: Blocks, capacity: Blocks) -> (Blocks, bool) {
        let (taken, somebody_waits) = self.book_some(wide(blocks), capacity);
        (Blocks::new(taken), somebody_waits)
    }

    /// A conversation gives `blocks` back; says whether somebody waits for them.
    pub(crate) fn release(&self, blocks: Blocks) -> bool {
        self.restore(wide(blocks))
    }

    /// Whether somebody waits. For whoever changed something else that a waiter looks at: a waiter
    /// that is not seen here looks after this, and so sees the change.
    pub(crate) fn somebody_waits(&self) -> bool {
        // The pocket is this thread's own and tells it first: no turn writes to the ledger to learn that nobody waits.
        // AcqRel, and a write: it takes its place among the waiters' writes of the flag.
        self.pocket().is_closed() && self.ledger.fetch_or(0, Ordering::AcqRel) & FLAGS != 0
    }

    /// Tells those who give back that somebody waits, or no longer. Called with the line locked.
    pub(crate) fn flag(&self, flag: u64, waits: bool) {
        if waits {
            // AcqRel: before the pockets are closed, so who finds one closed sees the flag.
            self.ledger.fetch_or(flag, Ordering::AcqRel);
            self.collect(true);
        } else {
            // AcqRel: as above.
            let before = self.ledger.fetch_and(!flag, Ordering::AcqRel);
            if before & FLAGS & !flag == 0 {
                self.pockets.iter().for_each(|pocket| pocket.open());
            }
        }
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

    /// As much of `wanted` as fits under `capacity`; also says who waits.
    pub(crate) fn resized(mut self, wanted: Blocks, capacity: Blocks) -> (Self, bool) {
        let (kept, somebody_waits) = self.occupancy.resize(self.blocks, wanted, capacity);
        self.blocks = kept;
        (self, somebody_waits)
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
            .reservation
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
                .reservation
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
        assert!(alone.reservation.is_some(), "empty: 9 <= 10");
        assert!(
            decoder
                .try_reserve(blocks(1), ceiling, Rank::Arriving)
                .reservation
                .is_none(),
            "9 + 1 > 8"
        );
    }

    #[test]
    fn an_allowance_is_booked_in_the_ledger_and_found_again_when_room_is_short() {
        let decoder = Occupancy::new();
        let held = reserve(&decoder, 4, 80).expect("empty");
        let ledger = decoder.ledger.load(Ordering::Acquire) & FIELD;
        assert_eq!(ledger, 14, "4, and 80 / 8 in advance");
        assert_eq!(
            decoder.books().booked,
            blocks(4),
            "an allowance is not used"
        );
        assert!(
            reserve(&decoder, 76, 80).is_some(),
            "4 + 76 = 80: the allowance is collected"
        );
        assert_eq!(decoder.settle(held, 0, blocks(80)), (0, false));
        assert_eq!(decoder.books().booked, blocks(76));
    }

    #[test]
    fn while_somebody_waits_nothing_hides_in_a_pocket() {
        let decoder = Occupancy::new();
        let held = reserve(&decoder, 4, 80).expect("empty");
        decoder.flag(NEWCOMERS_WAIT, true);
        assert_eq!(
            decoder.ledger.load(Ordering::Acquire) & FIELD,
            4,
            "the allowance is back"
        );
        assert_eq!(
            decoder.settle(held, 0, blocks(80)),
            (0, true),
            "the giver is told"
        );
        decoder.flag(GROWTH_WAITS, true);
        decoder.flag(NEWCOMERS_WAIT, false);
        assert!(
            reserve(&decoder, 1, 80).is_none(),
            "still closed: growth goes first"
        );
        decoder.flag(GROWTH_WAITS, false);
        assert!(reserve(&decoder, 1, 80).is_some());
    }
}
