//! Where one conversation is in the simulation.

use super::record::{ConversationRow, TurnRow};
use super::split::{Ledger, Split};
use crate::router::{Ticket, Turn};

/// What its turn waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// It has not arrived.
    Away,
    /// The client is busy with a tool, or the request is on its way.
    Gap,
    /// The router's line.
    Line,
    /// Its conversation's KV to reach the prefiller.
    Fetch { prefiller: usize, from: usize },
    /// A prefiller.
    Prefill { prefiller: usize },
    /// Room on its decoder.
    MoveIn { prefiller: Option<usize> },
    /// The link.
    Moving { prefiller: usize },
    /// Its decoder.
    Run,
    /// It ended.
    Done,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Flight {
    /// The turn at hand, from 0.
    pub(super) turn: usize,
    pub(super) stage: Stage,
    pub(super) running: Option<Turn>,
    pub(super) ticket: Option<Ticket>,
    pub(super) row: TurnRow,
    pub(super) conversation: ConversationRow,
    /// The decoder of the turn before.
    pub(super) home: Option<usize>,
    pub(super) decoder: usize,
    /// Tokens that the turn generates: its own, or as many as its decoder can still hold.
    pub(super) output: u32,
    /// Counts handoffs that wait for room, so that a stale alarm is known.
    pub(super) attempt: u64,
    /// When the prompt at hand began to be computed, and when it was done.
    pub(super) computing_since: f64,
    pub(super) emitted_at: Option<f64>,
    /// Tokens of the history that were computed somewhere.
    pub(super) history: u32,
    /// What the time since its arrival was spent on, and what it was up to the first token of the turn at hand.
    pub(super) ledger: Ledger,
    pub(super) until_first: Split,
}

impl Flight {
    pub(super) fn new(conversation: usize) -> Self {
        let none = f64::NAN;
        Self {
            turn: 0,
            stage: Stage::Away,
            running: None,
            ticket: None,
            row: TurnRow::new(conversation, 0),
            conversation: ConversationRow {
                arrival_s: none,
                admitted_s: none,
                done_s: none,
                ttfet_s: none,
                tool_s: 0.0,
                ttfet_parts_s: [none; ConversationRow::PARTS.len()],
                status: "unfinished",
                turns_done: 0,
                handoffs: 0,
                moves: 0,
            },
            home: None,
            decoder: 0,
            output: 0,
            attempt: 0,
            computing_since: none,
            emitted_at: None,
            history: 0,
            ledger: Ledger::default(),
            until_first: Split::default(),
        }
    }
}
