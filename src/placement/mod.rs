//! Where a turn runs, and why: the interface that policies fit into.
//!
//! Promises: a policy is a pure function from what was observed to a decision; same inputs, same
//! placement, and the reason is part of the answer (I5). A policy cannot book anything: the router
//! does, and asks again if the books moved meanwhile.
//! Leaves to others: booking (`occupancy`), waiting (`admission`), the life of the pin (`conversation`).

pub(crate) mod ampd;
mod collocated;
pub(crate) mod deflect;
mod disaggregated;
mod follow_kv;
mod rank;
pub(crate) mod remote;
pub(crate) mod strict;
#[cfg(test)]
mod tests;
mod times;
pub(crate) mod weigh;

use crate::config::{PolicyChoice, Roles};
use crate::event::Reason;
use crate::fleet::Role;
use crate::units::{BlockSize, Blocks, Tokens, WorkerId};

/// One worker as it is observed now.
#[derive(Debug, Clone, Copy, PartialEq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "facts, each of which may hold without the others"
)]
pub struct WorkerView {
    /// Its id.
    pub id: WorkerId,
    /// What it is for.
    pub role: Role,
    /// It does both, but holds conversations only when no other has room, and computes prompts for the others.
    pub helps: bool,
    /// Takes new conversations: not lost, not suspect, not draining.
    pub open: bool,
    /// It failed a request lately: others are preferred.
    pub others_first: bool,
    /// KV blocks it holds; `None` while unknown.
    pub capacity: Option<Blocks>,
    /// Tokens in a block.
    pub block_size: BlockSize,
    /// Blocks booked, idle conversations and reservations included.
    pub booked: Blocks,
    /// Turns in flight.
    pub running: u32,
    /// Pinned turns wait to grow there: what it frees is theirs.
    pub growth_waits: bool,
    /// Prompt tokens queued at it for others.
    pub queued: Tokens,
    /// Prompt tokens that turns at home there wait for or compute. Not counted for a policy that never asks again.
    pub computing: Tokens,
    /// Tokens queued or computing that conversations found when they were placed, on average.
    pub usual: f64,
    /// It takes new conversations while fewer than this are queued.
    pub backlog_limit: Tokens,
    /// Prompt tokens per second observed; `None` before the first.
    pub tokens_per_s: Option<f64>,
    /// Milliseconds between two tokens of a turn observed; `None` before the first. Not counted for a policy that never
    /// asks again.
    pub step_ms: Option<f64>,
    /// Longest prompt plus answer.
    pub max_model_len: Option<Tokens>,
}

impl WorkerView {
    /// The largest prompt that this worker could ever hold; `None` while its capacity is unknown.
    #[must_use]
    pub fn prompt_limit(&self) -> Option<Tokens> {
        let fits = self.block_size.tokens(self.capacity?);
        Some(self.max_model_len.map_or(fits, |len| len.min(fits)))
    }
}

/// The fleet as it is observed now. Lost workers are not in it.
#[derive(Debug, Clone, PartialEq)]
pub struct Observed {
    /// In the order in which they joined.
    pub workers: Vec<WorkerView>,
    /// Share of a decoder's blocks that new conversations may fill.
    pub low_watermark: f64,
    /// Share of the prompt tokens computed in the last two minutes that had been computed before; `None` if none were.
    pub recomputed_share: Option<f64>,
    /// Milliseconds for each token of a handoff, as observed; `None` before the first.
    pub link_ms_per_token: Option<f64>,
    /// Tokens that first prompts find computed where they run, as observed.
    pub shared_head: Tokens,
}

/// The turn that wants a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TurnView {
    /// Breaks ties: a hash of the conversation.
    pub tie: u64,
    /// Tokens of the prompt.
    pub prompt: Tokens,
    /// The decoder that holds the conversation; `None` if it is new or its KV is gone.
    pub home: Option<WorkerId>,
    /// Tokens that its home holds of it.
    pub resident: Tokens,
    /// It had a place before, and lost it.
    pub returns: bool,
}

/// What new conversations lack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shortage {
    /// No decoder takes conversations.
    Decoders,
    /// No decoder has room under the low watermark.
    Blocks,
    /// Every prefiller has its fill of queued prompts.
    Prefill,
}

/// What a policy decides.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Decision {
    /// Run at home.
    Stay,
    /// Bring the conversation to `decoder`; its KV is handed over once if a prefiller is named.
    ///
    /// `decoder` may be the home of the conversation: with a prefiller that is a remote prefill
    /// for the same pin. Otherwise the pin moves.
    Place {
        /// Computes the prompt; `None`: the decoder does.
        prefiller: Option<WorkerId>,
        /// Holds the conversation from now on.
        decoder: WorkerId,
        /// Tokens of the prompt that the prefiller is expected to compute: they count as queued there.
        compute: Tokens,
        /// Blocks that the decoder may have booked afterwards.
        ceiling: Blocks,
        /// The same if nothing else is booked there.
        alone: Blocks,
        /// Why.
        reason: Reason,
    },
    /// Give the place up, and wait in line for another before all new conversations.
    Queue,
    /// Wait until this changes.
    Wait(Shortage),
    /// It fits nowhere, ever.
    TooLong {
        /// The largest prompt that would.
        limit: Tokens,
    },
}

/// A rule that places turns.
pub trait Policy: Send + Sync {
    /// As an operator writes it.
    fn name(&self) -> &'static str;

    /// The name with the options that it was given, where there are any.
    fn variant(&self) -> String {
        self.name().to_owned()
    }

    /// Whether a turn of a pinned conversation always runs at home: then it is not even asked.
    fn is_sticky(&self) -> bool;

    /// Whether a turn of a pinned conversation, so much of whose prompt lies at home, may run elsewhere. Not asked of a
    /// policy under which none does.
    fn may_leave(&self, _prompt: Tokens, _resident: Tokens) -> bool {
        true
    }

    /// Of the workers that do both, how many only compute prompts to begin with.
    fn helpers(&self) -> u16 {
        0
    }

    /// Who changes that number.
    fn roles(&self) -> Roles {
        Roles::Advise
    }

    /// Whether the home of a conversation computes its first prompt where those that would do it are busy. Told whether there
    /// are workers that can do nothing else.
    fn spares_the_busy(&self, _prefillers: bool) -> bool {
        false
    }

    /// Where the turn runs.
    fn place(&self, turn: &TurnView, fleet: &Observed) -> Decision;

    /// The next prefiller after those in `avoid` failed; `None`: the decoder computes the prompt. As it stands, the one
    /// that would be done first: the decoder is chosen and waits, so a long queue is no reason to give up the handoff.
    fn next_prefiller(
        &self,
        turn: &TurnView,
        fleet: &Observed,
        avoid: &[WorkerId],
    ) -> Option<(WorkerId, Reason)> {
        let able = rank::able_prefillers(turn, fleet, avoid);
        let (next, _) = rank::first_done(turn, able, None)?;
        let (queued, tokens_per_s) = (next.queued, next.tokens_per_s);
        let reason = Reason::NextPrefiller {
            queued,
            tokens_per_s,
        };
        Some((next.id, reason))
    }
}

pub(crate) fn policy(choice: impl Into<PolicyChoice>) -> Box<dyn Policy> {
    match choice.into() {
        PolicyChoice::Strict => Box::new(strict::Strict),
        PolicyChoice::FollowKv(options) => Box::new(follow_kv::FollowKv(options)),
        PolicyChoice::Collocated => Box::new(collocated::Collocated { affinity: true }),
        PolicyChoice::CollocatedSpread => Box::new(collocated::Collocated { affinity: false }),
        PolicyChoice::Disaggregated(remote) => Box::new(disaggregated::Disaggregated {
            remote,
            threshold: None,
        }),
        PolicyChoice::Ppd(options) => Box::new(disaggregated::Disaggregated {
            remote: options.remote,
            threshold: Some(options.threshold),
        }),
        PolicyChoice::Ampd(options) => Box::new(ampd::Ampd(options)),
        PolicyChoice::Deflect(options) => Box::new(deflect::Deflect(options)),
    }
}
