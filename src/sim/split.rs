//! What the time to a conversation's first answer was spent on, part by part.
//!
//! Promises: the parts of a span add up to it, as each of its instants is counted once: a ledger only moves forward.

use std::ops::Add;

use super::record::ConversationRow;

/// What time can be spent on, in the order of [`ConversationRow::PARTS`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    /// The client is busy with a tool.
    Tool,
    /// On the way from the client.
    Network,
    /// Asleep as a flip, for the work that it stands for.
    Slept,
    /// The router's line.
    Line,
    /// The queue of the engine that computes the prompt; again after a preemption; host memory being read; the recorded
    /// backlog that a flip sleeps for.
    EngineQueue,
    /// From the first chunk of a prompt to its end, though others' work ran beside it or between its chunks; the context
    /// that a preemption lost too.
    Compute,
    /// For room on the decoder, and for the link to be free.
    HandoffWait,
    /// The link, as far as computing did not hide it; a fetch is all of it.
    Transfer,
    /// The KV is on the decoder, and it is in no step yet.
    DecoderQueue,
    /// Steps that gave tokens, the one of a first token after a handoff too.
    Decode,
}

/// Seconds by [`Part`].
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Split(pub(super) [f64; ConversationRow::PARTS.len()]);

impl Add for Split {
    type Output = Self;

    fn add(mut self, other: Self) -> Self {
        for (own, more) in self.0.iter_mut().zip(other.0) {
            *own += more;
        }
        self
    }
}

/// A split that grows with time.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Ledger {
    spent: Split,
    since: f64,
}

impl Ledger {
    pub(super) fn new(since: f64) -> Self {
        Self {
            spent: Split::default(),
            since,
        }
    }

    /// The time since the last entry, until `until`, went into `part`.
    pub(super) fn spend(&mut self, part: Part, until: f64) {
        self.spent.0[part as usize] += until - self.since;
        self.since = until;
    }

    /// The time since the last entry, until `until`, is what somebody else split.
    pub(super) fn take_over(&mut self, split: Split, until: f64) {
        debug_assert!(
            (split.0.iter().sum::<f64>() - (until - self.since)).abs() <= 1e-9 * until.max(1.0),
            "all of the time is split: {split:?} of {} s",
            until - self.since
        );
        self.spent = self.spent + split;
        self.since = until;
    }

    pub(super) fn spent(&self) -> Split {
        self.spent
    }
}
