//! What a policy that weighs a turn's home against a prefiller has in common with others: the two times.
//!
//! Promises: the times are estimates of tokens that are there; whoever asks may change them before they decide.
//! Leaves to others: how they are estimated and what they decide (one file for each policy).

use super::{Decision, Observed, Policy, TurnView};
use crate::units::WorkerId;

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

/// A policy that decides by such times.
pub(crate) trait Weighing: Policy {
    /// Where the turn runs, by the times of `told`, after `change` of those with this prefiller.
    fn place_by(
        &self,
        turn: &TurnView,
        fleet: &Observed,
        told: &TurnView,
        change: &mut dyn FnMut(WorkerId, Weights) -> Weights,
    ) -> Decision;
}
