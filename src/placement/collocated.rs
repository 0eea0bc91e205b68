//! Baseline: no worker computes prompts for another.
//!
//! With affinity a conversation stays where it was placed; without, each turn goes to the worker with most free blocks,
//! and what an earlier one left behind is computed again.

use super::rank::choose_decoder;
use super::{Decision, Observed, Policy, TurnView};
use crate::event::Reason;
use crate::units::WorkerId;

/// See the module.
#[derive(Debug, Clone, Copy)]
pub(super) struct Collocated {
    pub(super) affinity: bool,
}

impl Policy for Collocated {
    fn name(&self) -> &'static str {
        if self.affinity {
            "collocated"
        } else {
            "collocated-spread"
        }
    }

    fn is_sticky(&self) -> bool {
        self.affinity
    }

    fn place(&self, turn: &TurnView, fleet: &Observed) -> Decision {
        match choose_decoder(turn, fleet) {
            Ok(choice) if turn.home == Some(choice.decoder.id) => Decision::Stay,
            Ok(choice) => choice.alone(),
            Err(instead) => instead,
        }
    }

    fn next_prefiller(
        &self,
        _: &TurnView,
        _: &Observed,
        _: &[WorkerId],
    ) -> Option<(WorkerId, Reason)> {
        None
    }
}
