//! Baseline: adaptive routing of later turns between home and a prefiller, after AMPD (arXiv 2602.14516).
//!
//! A reconstruction: the published description gives no rule and no cost model, so each choice that it leaves open is an
//! option, and every variant is called by its options. First turns are placed as under `strict`; the pin never moves.

use super::times::Times;
use super::weigh::{Weighing, Weights};
use super::{Decision, Observed, Policy, TurnView, WorkerView};
use crate::config::{AmpdOptions, AmpdRule, PolicyChoice, Remote};
use crate::units::Tokens;

/// See the module.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ampd(pub(crate) AmpdOptions);

impl Weighing for Ampd {
    fn remote(&self) -> Remote {
        self.0.remote
    }

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
            times.link(turn.resident)
        } else {
            0.0
        };
        let crosses = if options.counts_transfer {
            times.link(options.remote.crosses(turn))
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

    /// Equal times keep it at home.
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
}
