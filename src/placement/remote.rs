//! A later turn whose prompt a prefiller computes for the conversation's home.
//!
//! Promises: the pin does not move; what the prefiller is expected to compute is what is queued there.
//! Leaves to others: which turns (one file for each policy).

use super::rank::{able_prefillers, first_done};
use super::{Decision, Observed, TurnView, WorkerView};
use crate::config::Remote;
use crate::event::Reason;
use crate::units::{Blocks, Tokens};

impl TurnView {
    /// Tokens of the prompt that its home lacks.
    pub(crate) fn append(&self) -> Tokens {
        Tokens(self.prompt.0.saturating_sub(self.resident.0))
    }
}

impl Remote {
    /// What a prefiller is expected to compute of the prompt.
    pub(crate) fn computes(self, turn: &TurnView) -> Tokens {
        if self.prefix_cache || self.fetch {
            turn.append()
        } else {
            turn.prompt
        }
    }

    /// What is expected to cross to the home of the turn.
    pub(crate) fn crosses(self, turn: &TurnView) -> Tokens {
        if self.delta {
            turn.append()
        } else {
            turn.prompt
        }
    }
}

/// The home of the turn; `None` if it has none that is known.
pub(crate) fn home<'a>(turn: &TurnView, fleet: &'a Observed) -> Option<&'a WorkerView> {
    let id = turn.home?;
    fleet.workers.iter().find(|worker| worker.id == id)
}

/// The prefiller that would be done first.
pub(crate) fn first<'a>(
    turn: &TurnView,
    home: &WorkerView,
    fleet: &'a Observed,
    remote: Remote,
) -> Option<&'a WorkerView> {
    let work = TurnView {
        prompt: remote.computes(turn),
        ..*turn
    };
    let (prefiller, _) = first_done(&work, able_prefillers(turn, fleet, &[home.id]), None)?;
    Some(prefiller)
}

/// The turn runs at home after `prefiller` computed its prompt.
pub(crate) fn by(
    prefiller: &WorkerView,
    turn: &TurnView,
    home: &WorkerView,
    remote: Remote,
    reason: Reason,
) -> Decision {
    let capacity = home.capacity.unwrap_or(Blocks::ZERO);
    Decision::Place {
        prefiller: Some(prefiller.id),
        decoder: home.id,
        compute: remote.computes(turn),
        ceiling: capacity,
        alone: capacity,
        reason,
    }
}
