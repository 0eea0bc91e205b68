//! What one running turn holds. A value without behaviour, so that the line can keep it for a
//! ticket; only [`Turn`](super::Turn) settles it.

use std::sync::Arc;

use crate::activity::Task;
use crate::conversation::Conversation;
use crate::event::{Pace, Reason, TurnKind, Usage};
use crate::units::{Blocks, ConversationKey, Timestamp, Tokens, WorkerId};

/// The prefill of one turn while it is queued at a prefiller.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Queued {
    pub(crate) prefiller: WorkerId,
    pub(crate) tokens: Tokens,
    pub(crate) since: Timestamp,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Grant {
    pub(crate) key: ConversationKey,
    pub(crate) conversation: Arc<Conversation>,
    pub(crate) decoder: WorkerId,
    pub(crate) prefiller: Option<WorkerId>,
    /// What it does now and where.
    pub(crate) task: Option<Task>,
    /// Tokens that still count as queued at the prefiller.
    pub(crate) queued: Option<Queued>,
    /// Tokens that count as computed at the decoder for itself.
    pub(crate) computing: Tokens,
    /// Blocks booked for this turn.
    pub(crate) reserved: Blocks,
    /// Of these, blocks that its conversation holds there already and lent to a prompt that is computed elsewhere.
    pub(crate) lent: Blocks,
    pub(crate) prompt: Tokens,
    /// Tokens that its conversation had when it began; those of its last finished turn.
    pub(crate) context: Tokens,
    pub(crate) turn: u32,
    pub(crate) kind: TurnKind,
    pub(crate) reason: Reason,
    pub(crate) arrived: Timestamp,
    pub(crate) started: Timestamp,
    /// When its first token came.
    pub(crate) first_token: Option<Timestamp>,
    /// When its latest one came.
    pub(crate) last_token: Option<Timestamp>,
    /// Generated tokens that were counted as they came.
    pub(crate) counted: Tokens,
    /// Nothing is left to hand over: the turn did, or its conversation was there already.
    pub(crate) handed_over: bool,
    /// When its prefiller was done with the prompt.
    pub(crate) prefilled: Option<Timestamp>,
    /// Where the conversation was before, if this turn moves it.
    pub(crate) from: Option<WorkerId>,
}

impl Grant {
    /// How fast the turn was, at its end. Where nobody told of single tokens, the last one comes with the end.
    pub(crate) fn pace(&self, usage: Usage, now: Timestamp) -> Pace {
        let ttft = self.first_token.map(|first| first.since(self.arrived));
        let gaps = usage.output.map_or(0, |output| output.0.saturating_sub(1));
        let tbt = self.first_token.filter(|_| gaps > 0).and_then(|first| {
            let span = self.last_token.unwrap_or(now).since(first);
            span.checked_div(gaps)
        });
        Pace { ttft, tbt }
    }
}
