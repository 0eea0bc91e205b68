//! Baseline: prompts are always computed on prefillers, also those of later turns; the decoder stays the same.
//!
//! With a threshold (PPD, arXiv 2603.13358, whose published engine uses 512 tokens) turns that bring less run at home.

use super::strict::Strict;
use super::{Decision, Observed, Policy, TurnView, remote};
use crate::config::{PolicyChoice, PpdOptions, Remote};
use crate::event::Reason;
use crate::units::Tokens;

/// See the module.
#[derive(Debug, Clone, Copy)]
pub(super) struct Disaggregated {
    pub(super) remote: Remote,
    /// Turns that bring fewer tokens run at home.
    pub(super) threshold: Option<Tokens>,
}

impl Policy for Disaggregated {
    fn name(&self) -> &'static str {
        match self.threshold {
            None => "disaggregated",
            Some(_) => "ppd",
        }
    }

    fn variant(&self) -> String {
        let remote = self.remote;
        let choice = match self.threshold {
            None => PolicyChoice::Disaggregated(remote),
            Some(threshold) => PolicyChoice::Ppd(PpdOptions { threshold, remote }),
        };
        choice.to_string()
    }

    fn is_sticky(&self) -> bool {
        false
    }

    fn place(&self, turn: &TurnView, fleet: &Observed) -> Decision {
        if turn.home.is_none() {
            return Strict.place(turn, fleet);
        }
        if self.threshold.is_some_and(|from| turn.append() < from) {
            return Decision::Stay;
        }
        let Some(home) = remote::home(turn, fleet) else {
            return Decision::Stay;
        };
        let Some(prefiller) = remote::first(turn, home, fleet, self.remote) else {
            return Decision::Stay;
        };
        let (queued, tokens_per_s) = (prefiller.queued, prefiller.tokens_per_s);
        let reason = Reason::NextPrefiller {
            queued,
            tokens_per_s,
        };
        remote::by(prefiller, turn, home, self.remote, reason)
    }
}
