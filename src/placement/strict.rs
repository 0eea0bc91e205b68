//! The paper's rule: one placement, one handoff, pinned for life.
//!
//! A new conversation goes to the decoder with most free blocks; its prompt is computed by the
//! prefiller that would be done first. A pinned one never moves while its decoder lives.

use super::rank::{able_prefillers, choose_decoder, first_done};
use super::{Decision, Observed, Policy, Shortage, TurnView, WorkerView};
use crate::event::Reason;

/// See the module.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Strict;

impl Policy for Strict {
    fn name(&self) -> &'static str {
        "strict"
    }

    fn is_sticky(&self) -> bool {
        true
    }

    fn place(&self, turn: &TurnView, fleet: &Observed) -> Decision {
        if turn.home.is_some() {
            return Decision::Stay;
        }
        let able: Vec<_> = able_prefillers(turn, fleet, &[]).collect();
        let is_open = |worker: &&WorkerView| worker.queued < worker.backlog_limit;
        let choice = match choose_decoder(turn, fleet) {
            Ok(choice) => choice,
            // Room would not help yet.
            Err(Decision::Wait(Shortage::Blocks))
                if !able.is_empty() && !able.iter().any(is_open) =>
            {
                return Decision::Wait(Shortage::Prefill);
            }
            Err(instead) => return instead,
        };
        if able.is_empty() {
            return choice.alone();
        }
        let open = able.iter().copied().filter(is_open);
        let Some((prefiller, prefillers)) = first_done(turn, open, Some(choice.decoder.id)) else {
            return Decision::Wait(Shortage::Prefill);
        };
        if prefiller.id == choice.decoder.id {
            return choice.alone();
        }
        let (free, decoders) = (choice.ceiling.less(choice.decoder.booked), choice.compared);
        let (queued, tokens_per_s) = (prefiller.queued, prefiller.tokens_per_s);
        let reason = Reason::LeastWork {
            queued,
            tokens_per_s,
            prefillers,
            free,
            decoders,
        };
        choice.place(Some(prefiller.id), reason)
    }
}
