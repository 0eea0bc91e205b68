//! Baseline: load-aware deflection (after arXiv 2607.02043).
//!
//! A prompt is meant for the prefiller that is done first. It is deflected to a decoder that computes it sooner in the
//! largest chunks that keep the gaps of those that decode there under the target. A new conversation may be deflected to any
//! decoder with room, a later turn only to its home.
//!
//! The measured time of a prompt token at a decoder contains the decode steps that it shared, so deflecting is estimated
//! on the cautious side.

use super::rank::choose_decoder;
use super::strict::Strict;
use super::times::Times;
use super::weigh::{Change, Weighing, Weights};
use super::{Decision, Observed, Policy, Shortage, TurnView, WorkerView};
use crate::config::{DeflectOptions, PolicyChoice, Remote};
use crate::units::{Blocks, Tokens, WorkerId};

/// In smaller chunks a prompt never ends.
const SMALLEST_CHUNK: f64 = 16.0;

/// See the module.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Deflect(pub(crate) DeflectOptions);

impl Deflect {
    /// Milliseconds until the decoder has computed `new` tokens after those that are there, and the longest gap meanwhile;
    /// `None` if no chunk keeps the gaps under the target.
    fn scheduled(&self, decoder: &WorkerView, new: Tokens, times: &Times) -> Option<(f64, f64)> {
        let (step, token) = (Times::step(decoder), times.prompt(decoder, Tokens(1)));
        let largest = f64::from(self.0.step_tokens.0);
        let chunk = if decoder.running == 0 {
            largest
        } else {
            ((self.0.tbt_ms - step) / token).floor().min(largest)
        };
        if chunk < SMALLEST_CHUNK.min(largest) {
            return None;
        }
        let tokens = f64::from(decoder.computing.0) + f64::from(new.0);
        let steps = (tokens / chunk).ceil().max(1.0);
        Some((
            steps * step + tokens * token,
            step + chunk.min(tokens) * token,
        ))
    }
}

impl Weighing for Deflect {
    fn remote(&self) -> Remote {
        self.0.remote
    }

    fn place_new(
        &self,
        turn: &TurnView,
        fleet: &Observed,
        told: &TurnView,
        change: Change<'_>,
    ) -> Decision {
        let times = Times::of(fleet);
        let usual = Strict.place(turn, fleet);
        let by_id = |id: WorkerId| fleet.workers.iter().find(|worker| worker.id == id);
        let meant = match usual {
            Decision::Place {
                prefiller: Some(prefiller),
                decoder,
                ..
            } => by_id(prefiller).zip(by_id(decoder)),
            Decision::Wait(Shortage::Prefill) => None,
            instead => return instead,
        };
        let decoders = fleet.workers.iter().filter_map(|worker| {
            let alone = Observed {
                workers: vec![*worker],
                ..*fleet
            };
            let place = choose_decoder(turn, &alone).ok()?.alone();
            let (local, gap) = self.scheduled(worker, told.prompt, &times)?;
            Some((place, local, gap, worker.booked))
        });
        let sooner = |a: &(_, f64, _, Blocks), b: &(_, f64, _, Blocks)| {
            a.1.total_cmp(&b.1).then(a.3.cmp(&b.3))
        };
        let Some((place, local, gap, _)) = decoders.min_by(sooner) else {
            return usual;
        };
        let Some((prefiller, decoder)) = meant else {
            return place;
        };
        let remote = times.queue(prefiller)
            + times.prompt(prefiller, told.prompt)
            + times.link(told.prompt)
            + Times::step(decoder);
        let weights = change(prefiller.id, Weights { local, remote, gap });
        if weights.local < weights.remote {
            place
        } else {
            usual
        }
    }

    fn weigh(
        &self,
        turn: &TurnView,
        home: &WorkerView,
        prefiller: &WorkerView,
        times: &Times,
    ) -> Weights {
        let remote = self.0.remote;
        let scheduled = self.scheduled(home, turn.append(), times);
        let (local, gap) = scheduled.unwrap_or((f64::INFINITY, f64::INFINITY));
        let remote = times.queue(prefiller)
            + times.prompt(prefiller, remote.computes(turn))
            + times.link(remote.crosses(turn))
            + Times::step(home);
        Weights { local, remote, gap }
    }

    fn goes(&self, _: Tokens, weights: &Weights) -> bool {
        weights.remote < weights.local
    }
}

impl Policy for Deflect {
    fn name(&self) -> &'static str {
        "deflect"
    }

    fn variant(&self) -> String {
        PolicyChoice::Deflect(self.0).to_string()
    }

    fn is_sticky(&self) -> bool {
        false
    }

    fn place(&self, turn: &TurnView, fleet: &Observed) -> Decision {
        self.place_by(turn, fleet, turn, &mut |_, weights| weights)
    }
}
