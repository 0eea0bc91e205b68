//! Baseline: adaptive routing of later turns between home and a prefiller, after AMPD (arXiv 2602.14516).
//!
//! A reconstruction: the published description gives no rule and no cost model, so each choice that it leaves open is an
//! option, and every variant is called by its options. First turns are placed as under `strict`; the pin never moves.

use super::strict::Strict;
use super::times::Times;
use super::weigh::{Weighing, Weights};
use super::{Decision, Observed, Policy, TurnView, WorkerView, remote};
use crate::config::{AmpdOptions, AmpdRule, PolicyChoice};
use crate::event::Reason;
use crate::units::{Tokens, WorkerId};

/// See the module.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ampd(pub(crate) AmpdOptions);

impl Ampd {
    fn weigh(
        &self,
        turn: &TurnView,
        home: &WorkerView,
        prefiller: &WorkerView,
        times: &Times,
    ) -> Weights {
        let options = &self.0;
        let queue = |worker| {
            if options.blind {
                0.0
            } else {
                times.queue(worker)
            }
        };
        let (append, step) = (turn.append(), Times::step(home));
        let fetched = if options.remote.fetch {
            Times::link(turn.resident)
        } else {
            0.0
        };
        let crosses = if options.counts_transfer {
            Times::link(options.remote.crosses(turn))
        } else {
            0.0
        };
        let pending = if options.blind {
            Tokens(0)
        } else {
            home.computing
        };
        let chunk = (pending + append).min(options.step_tokens);
        Weights {
            local: queue(home) + times.prompt(home, append) + step,
            remote: queue(prefiller)
                + fetched
                + times.prompt(prefiller, options.remote.computes(turn))
                + crosses
                + step,
            gap: step + times.prompt(home, chunk),
        }
    }

    /// Whether the turn's prompt is computed on the prefiller. Equal times keep it at home.
    fn goes(&self, append: Tokens, weights: &Weights) -> bool {
        let options = &self.0;
        let faster = weights.remote < weights.local;
        let at_home = weights.gap <= options.tbt_ms && weights.local <= options.ttft_ms;
        let away = weights.remote <= options.ttft_ms;
        match options.rule {
            AmpdRule::Slo if at_home == away => faster,
            AmpdRule::Slo => away,
            AmpdRule::RemoteFirst => away || (!at_home && faster),
            AmpdRule::Min => faster,
            AmpdRule::Static => append >= options.threshold,
        }
    }
}

impl Weighing for Ampd {
    fn place_by(
        &self,
        turn: &TurnView,
        fleet: &Observed,
        told: &TurnView,
        change: &mut dyn FnMut(WorkerId, Weights) -> Weights,
    ) -> Decision {
        if turn.home.is_none() {
            return Strict.place(turn, fleet);
        }
        let Some(home) = remote::home(turn, fleet) else {
            return Decision::Stay;
        };
        let Some(prefiller) = remote::first(turn, home, fleet, self.0.remote) else {
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
        remote::by(prefiller, turn, home, self.0.remote, reason)
    }
}

impl Policy for Ampd {
    fn name(&self) -> &'static str {
        "ampd"
    }

    fn variant(&self) -> String {
        PolicyChoice::Ampd(self.0).to_string()
    }

    fn is_sticky(&self) -> bool {
        false
    }

    fn place(&self, turn: &TurnView, fleet: &Observed) -> Decision {
        self.place_by(turn, fleet, turn, &mut |_, weights| weights)
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
