//! A conversation lives where its KV is; it leaves only where that is observed to be cheaper.
//!
//! A first prompt is computed elsewhere, with one handoff, if that saves a fifth and 20 ms; a turn that has lost most of its
//! KV is placed afresh if home is fuller or slower; a turn that finds its KV moves, with one handoff, only if home is
//! observed to be more than twice as slow. Nothing is predicted: costs are of prompt tokens that are there now.
//!
//! Not here: waiting of turns whose KV is gone while the fleet thrashes, and shortest-first order (the worker's queue).

use super::rank::{able_prefillers, choose_decoder};
use super::strict::Strict;
use super::{Decision, Observed, Policy, TurnView, WorkerView};
use crate::event::Reason;
use crate::units::WorkerId;

/// A prompt with fewer new tokens is computed where it lives: a handoff costs more than it saves.
const WORTH_A_HANDOFF: u32 = 512;
/// A prefiller must cost less than this share of the decoder itself, and `HANDOFF_SAVES_MS` less.
const HANDOFF_SHARE: f64 = 0.8;
const HANDOFF_SAVES_MS: f64 = 20.0;
/// A worker that also holds conversations computes for others only below this share of its blocks.
const HELPER_FILL: f64 = 0.9;
/// With so many new tokens, and no more than half of the prompt resident, a turn has nothing to lose.
const KV_GONE_FROM: u32 = 2_048;
/// Home is fuller by this share of its blocks, or costs more than 1 / 0.7 of the other.
const FULLER: f64 = 0.1;
const AFRESH_SHARE: f64 = 0.7;
/// A pin moves if the other costs less than half, and half a second less.
const MOVE_SHARE: f64 = 0.5;
const MOVE_SAVES_MS: f64 = 500.0;
/// Of a prompt token where no throughput was observed, and of one over a link: 114,688 bytes at 10 GB/s.
const UNKNOWN_MS_PER_TOKEN: f64 = 0.02;
const LINK_MS_PER_TOKEN: f64 = 0.0115;
const LINK_MS: f64 = 5.0;
/// Share of a prompt's time that it takes from each turn running there.
const STALL: f64 = 0.5;

/// See the module.
#[derive(Debug, Clone, Copy)]
pub(super) struct FollowKv;

impl Policy for FollowKv {
    fn name(&self) -> &'static str {
        "follow-kv"
    }

    fn is_sticky(&self) -> bool {
        false
    }

    fn place(&self, turn: &TurnView, fleet: &Observed) -> Decision {
        let costs = Costs::of(fleet);
        match turn
            .home
            .and_then(|home| fleet.workers.iter().find(|worker| worker.id == home))
        {
            Some(home) => on_turn(turn, home, fleet, &costs),
            None => on_arrival(turn, fleet, &costs),
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

/// What a prompt token costs where nothing was observed: as at the fastest worker that was.
struct Costs {
    unknown: f64,
}

impl Costs {
    fn of(fleet: &Observed) -> Self {
        let known = fleet
            .workers
            .iter()
            .filter_map(|worker| worker.tokens_per_s);
        let fastest = known.fold(0.0, f64::max);
        let unknown = if fastest > 0.0 {
            1_000.0 / fastest
        } else {
            UNKNOWN_MS_PER_TOKEN
        };
        Self { unknown }
    }

    /// Of `new` prompt tokens at a worker, in ms: its own wait, and the stall it puts on the turns there.
    fn at(&self, worker: &WorkerView, new: u32) -> f64 {
        let per_token = worker
            .tokens_per_s
            .filter(|rate| *rate > 0.0)
            .map_or(self.unknown, |rate| 1_000.0 / rate);
        let (queued, new) = (f64::from(worker.queued.0), f64::from(new));
        (queued + new + STALL * f64::from(worker.running) * new) * per_token
    }
}

fn link(tokens: u32) -> f64 {
    LINK_MS + f64::from(tokens) * LINK_MS_PER_TOKEN
}

fn fill(worker: &WorkerView) -> f64 {
    match worker.capacity {
        Some(capacity) if capacity.get() > 0 => {
            f64::from(worker.booked.get()) / f64::from(capacity.get())
        }
        _ => 1.0,
    }
}

/// A new conversation, or one whose home is gone.
fn on_arrival(turn: &TurnView, fleet: &Observed, costs: &Costs) -> Decision {
    let choice = match choose_decoder(turn, fleet) {
        Ok(choice) => choice,
        Err(instead) => return instead,
    };
    let new = turn.prompt.0;
    let here = costs.at(choice.decoder, new);
    let helps = |worker: &&WorkerView| {
        worker.id != choice.decoder.id && (!worker.role.decodes() || fill(worker) <= HELPER_FILL)
    };
    let cheapest = able_prefillers(turn, fleet, &[])
        .filter(helps)
        .map(|worker| (worker, costs.at(worker, new) + link(new)))
        .min_by(|a, b| (a.0.others_first.cmp(&b.0.others_first)).then_with(|| a.1.total_cmp(&b.1)));
    match cheapest {
        Some((worker, cost))
            if new >= WORTH_A_HANDOFF && cost < HANDOFF_SHARE * here - HANDOFF_SAVES_MS =>
        {
            choice.place(
                Some(worker.id),
                Reason::Cheaper {
                    cost_ms: cost,
                    instead_of_ms: here,
                },
            )
        }
        _ => choice.alone(),
    }
}

/// A conversation with a home.
fn on_turn(turn: &TurnView, home: &WorkerView, fleet: &Observed, costs: &Costs) -> Decision {
    let new = turn.prompt.0.saturating_sub(turn.resident.0);
    let here = costs.at(home, new);
    let elsewhere = || {
        let found = choose_decoder(turn, fleet).ok()?;
        (found.decoder.id != home.id).then_some(found)
    };
    if new >= KV_GONE_FROM && turn.resident.0 <= turn.prompt.0 / 2 {
        return match elsewhere() {
            Some(other)
                if fill(other.decoder) < fill(home) - FULLER
                    || costs.at(other.decoder, turn.prompt.0) < AFRESH_SHARE * here =>
            {
                on_arrival(turn, fleet, costs)
            }
            _ => Decision::Stay,
        };
    }
    // Only a worker that hands KV over can let a conversation go without computing it again.
    if !home.role.prefills() {
        return Decision::Stay;
    }
    match elsewhere() {
        Some(other) => {
            let cost = costs.at(other.decoder, new) + link(turn.resident.0);
            if cost < MOVE_SHARE * here - MOVE_SAVES_MS {
                other.place(
                    Some(home.id),
                    Reason::Cheaper {
                        cost_ms: cost,
                        instead_of_ms: here,
                    },
                )
            } else {
                Decision::Stay
            }
        }
        None => Decision::Stay,
    }
}
