//! A conversation lives where its KV is; it leaves only where that is observed to be cheaper.
//!
//! A first prompt is computed elsewhere, with one handoff, if that saves enough; a turn that has lost most of its KV is
//! placed afresh if home is fuller or slower, or waits in line while the fleet computes again what it had computed; a turn
//! that finds its KV leaves it only if home is observed to be so slow that another computes the whole prompt sooner. Nothing is predicted: costs are of
//! prompt tokens that are there now, at measured speeds.
//!
//! Leaves to others: in which order a worker takes its prompts.

use std::borrow::Cow;

use super::rank::{DecoderChoice, Room, able_prefillers, choose_decoder_among, first_done, room};
use super::strict::Strict;
use super::times::{Link, Times};
use super::{Decision, Observed, Policy, TurnView, WorkerView};
use crate::config::{FollowKvOptions, Handoff, PolicyChoice, Roles};
use crate::event::{Estimate, Reason};
use crate::fleet::Role;
use crate::units::{Tokens, WorkerId};

/// See the module.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FollowKv(pub(crate) FollowKvOptions);

impl Policy for FollowKv {
    fn name(&self) -> &'static str {
        "follow-kv"
    }

    fn variant(&self) -> String {
        PolicyChoice::FollowKv(self.0).to_string()
    }

    fn is_sticky(&self) -> bool {
        false
    }

    fn may_leave(&self, prompt: Tokens, resident: Tokens) -> bool {
        self.0.move_share > 0.0 || self.has_lost(prompt, resident)
    }

    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a whole number from 0 on; more workers than there can be are all"
    )]
    fn helpers(&self) -> u16 {
        self.0.prefillers as u16
    }

    fn roles(&self) -> Roles {
        match self.0.handoff {
            // Nobody would compute for others.
            Handoff::Never => Roles::Advise,
            Handoff::Roles | Handoff::Cheaper | Handoff::Always => self.0.roles,
        }
    }

    fn spares_the_busy(&self, prefillers: bool) -> bool {
        match self.0.handoff {
            Handoff::Roles => !prefillers,
            Handoff::Never | Handoff::Cheaper => true,
            Handoff::Always => false,
        }
    }

    fn place(&self, turn: &TurnView, fleet: &Observed) -> Decision {
        let fleet = self.as_given(fleet);
        let rule = Rule::new(self.0, &fleet);
        match turn
            .home
            .and_then(|home| fleet.workers.iter().find(|worker| worker.id == home))
        {
            Some(home) => rule.on_turn(turn, home),
            None => rule.on_arrival(turn),
        }
    }

    fn next_prefiller(
        &self,
        turn: &TurnView,
        fleet: &Observed,
        avoid: &[WorkerId],
    ) -> Option<(WorkerId, Reason)> {
        Strict.next_prefiller(turn, &self.as_given(fleet), avoid)
    }
}

impl FollowKv {
    /// The fleet in which nobody hands over who was not put there for it: not every worker that does both can.
    fn as_given<'a>(&self, fleet: &'a Observed) -> Cow<'a, Observed> {
        let is_both = |worker: &WorkerView| worker.role == Role::Both;
        if self.0.handoff != Handoff::Roles || !fleet.workers.iter().any(is_both) {
            return Cow::Borrowed(fleet);
        }
        let mut fleet = fleet.clone();
        let others = |worker: &&mut WorkerView| is_both(worker) && !worker.helps;
        for worker in fleet.workers.iter_mut().filter(others) {
            worker.role = Role::Decoder;
        }
        Cow::Owned(fleet)
    }

    /// Whether a turn has lost most of its KV.
    fn has_lost(&self, prompt: Tokens, resident: Tokens) -> bool {
        let new = prompt.0.saturating_sub(resident.0);
        f64::from(new) >= self.0.afresh_from && resident.0 <= prompt.0 / 2
    }
}

/// The options, over what is observed now.
struct Rule<'a> {
    set: FollowKvOptions,
    fleet: &'a Observed,
    times: Times,
}

impl<'a> Rule<'a> {
    fn new(set: FollowKvOptions, fleet: &'a Observed) -> Self {
        let assumed = Link {
            ms: set.link_ms,
            ms_per_token: set.link_ms_per_token,
        };
        let times = Times::over(assumed, fleet);
        Self { set, fleet, times }
    }

    /// Of `new` prompt tokens at a worker.
    fn cost(&self, worker: &WorkerView, new: u32) -> Cost {
        let prompt = self.times.prompt(worker, Tokens(new));
        Cost {
            wait: self.times.queue(worker),
            prompt,
            stall: self.set.stall * f64::from(worker.running) * prompt,
        }
    }

    /// Of the same tokens if another worker, where they cost `there`, computes them for `decoder`, where they would cost
    /// `here`. Its own prompts come first there: a step of an engine has room for KV that came over only beside them.
    fn handed_over(
        &self,
        there: Cost,
        here: Cost,
        decoder: &WorkerView,
        new: u32,
    ) -> (f64, Reason) {
        let link = self.times.link(Tokens(new));
        let later = self.set.later * decoder.usual * self.times.token(decoder);
        let finish = (there.wait + there.prompt + link + later).max(here.wait);
        let reason = Reason::HandedOver {
            there: there.told(),
            link_ms: short(link),
            later_ms: short(later),
            here: here.told(),
        };
        (finish + there.stall, reason)
    }

    /// What a worker that never held the conversation computes: not the head that prompts share.
    fn unseen(&self, turn: &TurnView) -> Tokens {
        Tokens(turn.prompt.0.saturating_sub(self.fleet.shared_head.0))
    }

    fn has_helpers(&self) -> bool {
        self.fleet.workers.iter().any(|worker| worker.helps)
    }

    /// Where a conversation is to live: at the decoder with most free blocks, or at one with nearly as many that costs less.
    fn home_for(&self, turn: &TurnView) -> Result<Home<'a>, Decision> {
        let most = if turn.returns {
            self.fleet.low_watermark.max(self.set.thrash_fill)
        } else {
            self.fleet.low_watermark
        };
        let among = |allowed: &dyn Fn(&WorkerView) -> bool| {
            let emptiest = choose_decoder_among(turn, self.fleet, most, allowed)?;
            Ok(self.cheaper_home(turn, emptiest, most, allowed))
        };
        if !self.has_helpers() {
            return among(&|_| true);
        }
        among(&|worker| !worker.helps).or_else(|_| among(&|_| true))
    }

    fn cheaper_home(
        &self,
        turn: &TurnView,
        emptiest: DecoderChoice<'a>,
        most: f64,
        allowed: &dyn Fn(&WorkerView) -> bool,
    ) -> Home<'a> {
        let new = self.unseen(turn).0;
        let fullest = fill(emptiest.decoder, Tokens(0)) + self.set.home_fuller;
        let instead_of = self.cost(emptiest.decoder, new);
        let near = |worker: &&WorkerView| {
            worker.id != emptiest.decoder.id
                && worker.others_first == emptiest.decoder.others_first
                && allowed(worker)
                && fill(worker, Tokens(0)) < fullest
        };
        let cheapest = self
            .fleet
            .workers
            .iter()
            .filter(near)
            .filter_map(|worker| match room(turn, worker, most) {
                Room::Fits(choice) => Some((self.cost(worker, new), choice)),
                Room::Unfit | Room::TooSmall(_) | Room::Full => None,
            })
            .min_by(|a, b| a.0.total().total_cmp(&b.0.total()));
        match cheapest {
            Some((cost, choice)) if self.is_worth(cost.total(), instead_of.total()) => Home {
                choice,
                cheaper: Some((cost, instead_of)),
            },
            _ => Home {
                choice: emptiest,
                cheaper: None,
            },
        }
    }

    /// Whether that much less is beyond what the estimates are sure of.
    fn is_worth(&self, cost: f64, instead_of: f64) -> bool {
        cost < self.set.handoff_share * instead_of - self.set.handoff_saves_ms
    }

    /// A new conversation, or one that has no home any more.
    fn on_arrival(&self, turn: &TurnView) -> Decision {
        if self.always_hands_over() {
            return Strict.place(turn, self.fleet);
        }
        match self.home_for(turn) {
            Ok(mut home) => match self.helper(turn, &home.choice) {
                Some((helper, reason)) => {
                    home.choice.prompt = self.unseen(turn);
                    home.choice.place(Some(helper), reason)
                }
                None => home.alone(),
            },
            Err(instead) => instead,
        }
    }

    /// Whether first prompts go to prefillers whatever that costs.
    fn always_hands_over(&self) -> bool {
        let given = |worker: &WorkerView| worker.role == Role::Prefiller && worker.open;
        match self.set.handoff {
            Handoff::Always => true,
            Handoff::Roles => self.fleet.workers.iter().any(given),
            Handoff::Never | Handoff::Cheaper => false,
        }
    }

    /// The worker that computes the prompt for the chosen one, and why.
    fn helper(&self, turn: &TurnView, choice: &DecoderChoice<'_>) -> Option<(WorkerId, Reason)> {
        let new = self.unseen(turn).0;
        if self.set.handoff == Handoff::Never || f64::from(new) < self.set.handoff_from {
            return None;
        }
        let here = self.cost(choice.decoder, new);
        let has_helpers = self.has_helpers();
        // A newcomer would stand in line for it, and all others behind.
        let is_open =
            |worker: &WorkerView| turn.home.is_some() || worker.queued < worker.backlog_limit;
        let helps = |worker: &&WorkerView| {
            worker.id != choice.decoder.id
                && is_open(worker)
                && (!has_helpers || !worker.role.decodes() || worker.helps)
                && (!worker.role.decodes() || fill(worker, turn.prompt) <= self.set.helper_fill)
        };
        let (worker, (cost, reason)) = able_prefillers(turn, self.fleet, &[])
            .filter(helps)
            .map(|worker| {
                let there = self.cost(worker, new);
                (worker, self.handed_over(there, here, choice.decoder, new))
            })
            .min_by(|a, b| {
                (a.0.others_first.cmp(&b.0.others_first)).then_with(|| a.1.0.total_cmp(&b.1.0))
            })?;
        self.is_worth(cost, here.total())
            .then_some((worker.id, reason))
    }

    /// A conversation with a home.
    fn on_turn(&self, turn: &TurnView, home: &WorkerView) -> Decision {
        let new = turn.prompt.0.saturating_sub(turn.resident.0);
        if FollowKv(self.set).has_lost(turn.prompt, turn.resident) {
            self.without_kv(turn, home, new)
        } else {
            self.with_kv(turn, home, new)
        }
    }

    /// Most of its KV is gone: there is nothing to lose.
    fn without_kv(&self, turn: &TurnView, home: &WorkerView, new: u32) -> Decision {
        let thrashes = self
            .fleet
            .recomputed_share
            .is_some_and(|share| share > self.set.thrash);
        if thrashes && fill(home, Tokens(new)) > self.set.thrash_fill {
            return Decision::Queue;
        }
        let Ok(Home { choice: other, .. }) = self.home_for(turn) else {
            return Decision::Stay;
        };
        let empty = Tokens(0);
        let emptier = fill(other.decoder, empty) < fill(home, empty) - self.set.afresh_fuller;
        let cost = self.cost(other.decoder, self.unseen(turn).0).total();
        let cheaper = cost < self.set.afresh_share * self.cost(home, new).total();
        if other.decoder.id == home.id || !(emptier || cheaper) {
            return Decision::Stay;
        }
        let helper = if self.always_hands_over() {
            let able = able_prefillers(turn, self.fleet, &[]);
            first_done(turn, able, Some(other.decoder.id)).map(|(first, _)| first.id)
        } else {
            self.helper(turn, &other).map(|(helper, _)| helper)
        };
        let helper = helper.filter(|helper| *helper != other.decoder.id);
        let (resident, prompt) = (turn.resident, turn.prompt);
        other.place(helper, Reason::KvGone { resident, prompt })
    }

    /// Its KV is at home: it leaves only if home is observed to be much slower.
    fn with_kv(&self, turn: &TurnView, home: &WorkerView, new: u32) -> Decision {
        let here = self.cost(home, new).total();
        if self.set.move_share * here <= self.set.move_saves_ms {
            return Decision::Stay;
        }
        let low = self.fleet.low_watermark;
        let elsewhere = choose_decoder_among(turn, self.fleet, low, |worker| {
            worker.id != home.id && !worker.helps
        });
        let Ok(other) = elsewhere else {
            return Decision::Stay;
        };
        // Home would hand its KV over only once it has computed what is new, behind its queue. So the other computes all.
        let cost = self.cost(other.decoder, self.unseen(turn).0).total();
        if cost >= self.set.move_share * here - self.set.move_saves_ms {
            return Decision::Stay;
        }
        let reason = Reason::Moved {
            cost_ms: cost,
            instead_of_ms: here,
        };
        other.place(None, reason)
    }
}

/// What a prompt costs at a worker, in milliseconds.
#[derive(Clone, Copy)]
struct Cost {
    /// Until the prompts ahead of it are computed.
    wait: f64,
    prompt: f64,
    /// What it takes from the turns that run there.
    stall: f64,
}

impl Cost {
    fn total(self) -> f64 {
        self.wait + self.prompt + self.stall
    }

    fn told(self) -> Estimate {
        Estimate {
            wait_ms: short(self.wait),
            prompt_ms: short(self.prompt),
            stall_ms: short(self.stall),
        }
    }
}

/// To be told, not to be compared.
#[expect(
    clippy::cast_possible_truncation,
    reason = "whole milliseconds are read"
)]
fn short(ms: f64) -> f32 {
    ms as f32
}

/// A decoder with room, and why it is not the one with most.
struct Home<'a> {
    choice: DecoderChoice<'a>,
    cheaper: Option<(Cost, Cost)>,
}

impl Home<'_> {
    /// It computes the prompt itself.
    fn alone(&self) -> Decision {
        match self.cheaper {
            Some((here, emptiest)) => {
                let (here, emptiest) = (here.told(), emptiest.told());
                self.choice
                    .place(None, Reason::CheaperHome { here, emptiest })
            }
            None => self.choice.alone(),
        }
    }
}

/// Share of a worker's blocks that are booked, with `more` tokens.
fn fill(worker: &WorkerView, more: Tokens) -> f64 {
    match worker.capacity {
        Some(capacity) if capacity.get() > 0 => {
            let booked = worker.booked.plus(worker.block_size.blocks(more));
            f64::from(booked.get()) / f64::from(capacity.get())
        }
        _ => 1.0,
    }
}
