//! What one running turn holds. A value without behaviour, so that the line can keep it for a
//! ticket; only [`Turn`](super::Turn) settles it.

use std::sync::Arc;

use crate::conversation::Conversation;
use crate::event::{Reason, TurnKind};
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
    /// Tokens that still count as queued at the prefiller.
    pub(crate) queued: Option<Queued>,
    /// Blocks booked for this turn.
    pub(crate) reserved: Blocks,
    pub(crate) prompt: Tokens,
    pub(crate) turn: u32,
    pub(crate) kind: TurnKind,
    pub(crate) reason: Reason,
    pub(crate) arrived: Timestamp,
    pub(crate) started: Timestamp,
    /// Nothing is left to hand over: the turn did, or its conversation was there already.
    pub(crate) handed_over: bool,
    /// Where the conversation was before, if this turn moves it.
    pub(crate) from: Option<WorkerId>,
}
