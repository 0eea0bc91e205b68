//! Baseline: prompts are always computed on prefillers, also those of later turns; the decoder stays the same.
//!
//! With a threshold (PPD, arXiv 2603.13358, whose published engine uses 512 tokens) turns that bring less run at home.

use super::rank::{able_prefillers, first_done};
use super::strict::Strict;
use super::{Decision, Observed, Policy, TurnView};
use crate::event::Reason;
use crate::units::{Blocks, Tokens, WorkerId};

/// Turns that bring fewer tokens run at home, under PPD.
pub(super) const PPD_FROM: Tokens = Tokens(512);

/// See the module.
#[derive(Debug, Clone, Copy)]
pub(super) struct Disaggregated {
    pub(super) from: Tokens,
}

impl Policy for Disaggregated {
    fn name(&self) -> &'static str {
        if self.from == Tokens(0) {
            "disaggregated"
        } else {
            "ppd"
        }
    }

    fn is_sticky(&self) -> bool {
        false
    }

    fn place(&self, turn: &TurnView, fleet: &Observed) -> Decision {
        let Some(home) = turn.home else {
            return Strict.place(turn, fleet);
        };
        if turn.prompt.0.saturating_sub(turn.resident.0) < self.from.0 {
            return Decision::Stay;
        }
        let Some(home) = fleet.workers.iter().find(|worker| worker.id == home) else {
            return Decision::Stay;
        };
        match first_done(turn, able_prefillers(turn, fleet, &[home.id]), None) {
            None => Decision::Stay,
            Some((prefiller, _)) => {
                let capacity = home.capacity.unwrap_or(Blocks::ZERO);
                Decision::Place {
                    prefiller: Some(prefiller.id),
                    decoder: home.id,
                    ceiling: capacity,
                    alone: capacity,
                    reason: Reason::NextPrefiller {
                        queued: prefiller.queued,
                        tokens_per_s: prefiller.tokens_per_s,
                    },
                }
            }
        }
    }

    fn next_prefiller(
        &self,
        turn: &TurnView,
        fleet: &Observed,
        avoid: &[WorkerId],
    ) -> Option<(WorkerId, Reason)> {
        Strict.next_prefiller(turn, fleet, avoid)
    }
}
