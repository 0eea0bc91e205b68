//! What policies that weigh a turn's home against a prefiller have in common: two times, and what follows from them.
//!
//! Promises: the times are estimates of tokens that are there; whoever asks may change them before they decide.
//! Leaves to others: how they are estimated and which of them wins (one file for each policy).

use super::strict::Strict;
use super::times::Times;
use super::{Decision, Observed, Policy, TurnView, WorkerView, remote};
use crate::config::Remote;
use crate::event::Reason;
use crate::units::{Tokens, WorkerId};

/// What a turn is estimated to take, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Weights {
    /// To the first token, with the prompt computed where the turn runs.
    pub(crate) local: f64,
    /// To the first token, with the prompt computed on the prefiller.
    pub(crate) remote: f64,
    /// The longest gap that the prompt puts between two tokens of those that decode where the turn runs.
    pub(crate) gap: f64,
}

/// Changes the times of a turn with this prefiller before they decide.
pub(crate) type Change<'a> = &'a mut dyn FnMut(WorkerId, Weights) -> Weights;

/// A policy that decides by such times.
pub(crate) trait Weighing: Policy {
    /// How a prompt is computed on a prefiller.
    fn remote(&self) -> Remote;

    /// The times of a turn at home and with this prefiller.
    fn weigh(
        &self,
        turn: &TurnView,
        home: &WorkerView,
        prefiller: &WorkerView,
        times: &Times,
    ) -> Weights;

    /// Whether the prompt of a turn that brings `append` tokens is computed on the prefiller.
    fn goes(&self, append: Tokens, weights: &Weights) -> bool;

    /// Where a turn without a home runs.
    fn place_new(
        &self,
        turn: &TurnView,
        fleet: &Observed,
        _told: &TurnView,
        _change: Change<'_>,
    ) -> Decision {
        Strict.place(turn, fleet)
    }

    /// Where the turn runs, by the times of `told`, after `change`.
    fn place_by(
        &self,
        turn: &TurnView,
        fleet: &Observed,
        told: &TurnView,
        change: Change<'_>,
    ) -> Decision {
        if turn.home.is_none() {
            return self.place_new(turn, fleet, told, change);
        }
        let Some(home) = remote::home(turn, fleet) else {
            return Decision::Stay;
        };
        let Some(prefiller) = remote::first(turn, home, fleet, self.remote()) else {
            return Decision::Stay;
        };
        let weights = self.weigh(told, home, prefiller, &Times::of(fleet));
        let weights = change(prefiller.id, weights);
        if !self.goes(told.append(), &weights) {
            return Decision::Stay;
        }
        let reason = Reason::Cheaper {
            cost_ms: weights.remote,
            instead_of_ms: weights.local,
        };
        remote::by(prefiller, turn, home, self.remote(), reason)
    }
}
