//! What happens next: a heap ordered by time, then by who was scheduled first.
//!
//! What lies within the same nanosecond happens at the same time: rounding must not decide who is first. Steps end after
//! everything else then, so whoever comes just as a step ends is in the next one.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

/// Something that happens at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum What {
    /// A conversation arrives, or its tool is done: the client sends the next turn.
    Arrive(usize),
    /// A turn reaches the router.
    Ready(usize),
    /// A flipped turn has slept.
    Slept(usize),
    /// The steps that an engine planned end; stale if the epoch is another one.
    StepEnd { engine: usize, epoch: u64 },
    /// KV arrived.
    TransferEnd(usize),
    /// KV was fetched to the prefiller.
    FetchEnd(usize),
    /// A handoff has waited for room too long; stale if the attempt is another one.
    GiveUp { conversation: usize, attempt: u64 },
    /// KV was read back from host memory.
    Loaded { engine: usize, conversation: usize },
    /// Retention lets go of idle KV that somebody waits for.
    Expiry(usize),
    /// Workers tell the router about themselves.
    Report,
    /// The oldest news of evictions reaches the router.
    Heard,
    /// A turn's time in the line is up.
    Deadline,
    /// The edge of the energy window: start, then end.
    Window(usize),
    /// The run is cut.
    Horizon,
}

impl What {
    /// Happens by itself for ever, or only looks: cannot bring a stuck run forward.
    pub(super) const fn is_idle_talk(self) -> bool {
        match self {
            Self::Report | Self::Heard | Self::Window(_) | Self::Horizon => true,
            Self::Arrive(_)
            | Self::Ready(_)
            | Self::Slept(_)
            | Self::StepEnd { .. }
            | Self::TransferEnd(_)
            | Self::FetchEnd(_)
            | Self::GiveUp { .. }
            | Self::Loaded { .. }
            | Self::Expiry(_)
            | Self::Deadline => false,
        }
    }
}

/// The nanosecond in which something happens.
pub(super) fn nanosecond(at: f64) -> u64 {
    (at * 1e9).round() as u64
}

#[derive(Debug)]
struct Entry {
    at: f64,
    number: u64,
    what: What,
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Entry {}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry {
    /// Reversed: the heap gives the largest.
    fn cmp(&self, other: &Self) -> Ordering {
        let place = |entry: &Self| {
            let engine = match entry.what {
                What::StepEnd { engine, .. } => Some(engine),
                _ => None,
            };
            (nanosecond(entry.at), engine, entry.number)
        };
        place(other).cmp(&place(self))
    }
}

/// The heap.
#[derive(Debug, Default)]
pub(super) struct Events {
    heap: BinaryHeap<Entry>,
    next: u64,
    /// Entries that can bring the run forward.
    working: usize,
}

impl Events {
    pub(super) fn push(&mut self, at: f64, what: What) {
        self.next += 1;
        self.working += usize::from(!what.is_idle_talk());
        self.heap.push(Entry {
            at,
            number: self.next,
            what,
        });
    }

    pub(super) fn pop(&mut self) -> Option<(f64, What)> {
        let Entry { at, what, .. } = self.heap.pop()?;
        self.working -= usize::from(!what.is_idle_talk());
        Some((at, what))
    }

    /// Whether nothing is left that could bring the run forward.
    pub(super) fn is_stuck(&self) -> bool {
        self.working == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_end_after_everything_else_of_the_same_nanosecond() {
        let end = What::StepEnd {
            engine: 0,
            epoch: 1,
        };
        let mut events = Events::default();
        events.push(0.3, end);
        // Later by a rounding error, and by a nanosecond that counts.
        events.push(0.1 + 0.2, What::TransferEnd(1));
        events.push(0.3 + 2e-9, What::TransferEnd(2));
        assert!(
            std::hint::black_box(0.1) + 0.2 > 0.3,
            "or the test shows nothing"
        );
        let order: Vec<_> = std::iter::from_fn(|| events.pop())
            .map(|(_, what)| what)
            .collect();
        assert_eq!(order, [What::TransferEnd(1), end, What::TransferEnd(2)]);
    }
}
