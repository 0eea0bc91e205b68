//! A policy as the simulator runs it: under its full name, misled by errors, or told what really would happen.
//!
//! Promises: without errors and truth it decides as the policy alone; where a turn is sent it can be carried out.
//! Leaves to others: what is drawn (`errors`), what is true (`oracle`).

use std::sync::{Arc, Mutex};

use super::errors::Errors;
use super::oracle::Truth;
use crate::config::{Remote, Roles};
use crate::event::Reason;
use crate::placement::weigh::Weighing;
use crate::placement::{Decision, Observed, Policy, TurnView, remote};
use crate::sync::Counter;
use crate::units::WorkerId;

/// The policy below.
pub(super) enum Inner {
    Plain(Box<dyn Policy>),
    Weighs(Box<dyn Weighing>),
}

/// See the module.
pub(super) struct Misled {
    pub(super) inner: Inner,
    pub(super) name: String,
    pub(super) errors: Errors,
    /// How turns that errors send away are carried out.
    pub(super) remote: Remote,
    /// Virtual nanoseconds.
    pub(super) clock: Arc<Counter>,
    /// What takes the place of estimates.
    pub(super) truth: Option<Arc<Truth>>,
    /// The fleet as it was seen last, and when.
    pub(super) seen: Mutex<Option<(u64, Observed)>>,
}

impl Misled {
    fn inner(&self) -> &dyn Policy {
        match &self.inner {
            Inner::Plain(policy) => &**policy,
            Inner::Weighs(policy) => &**policy,
        }
    }

    fn decide(&self, turn: &TurnView, fleet: &Observed) -> Decision {
        let Inner::Weighs(policy) = &self.inner else {
            return self.inner().place(turn, fleet);
        };
        let told = self.errors.mistake(turn);
        policy.place_by(turn, fleet, &told, &mut |prefiller, weights| {
            let truth = self.truth.as_ref();
            let weights = truth
                .and_then(|truth| truth.of(turn, prefiller))
                .unwrap_or(weights);
            self.errors.blur(turn, weights)
        })
    }

    fn inverted(&self, turn: &TurnView, fleet: &Observed, decision: Decision) -> Decision {
        let Some(home) = remote::home(turn, fleet) else {
            return decision;
        };
        let stays = match decision {
            Decision::Stay => true,
            Decision::Place { decoder, .. } if decoder == home.id => false,
            Decision::Place { .. }
            | Decision::Queue
            | Decision::Wait(_)
            | Decision::TooLong { .. } => {
                return decision;
            }
        };
        if !self.errors.inverts(turn, stays) {
            return decision;
        }
        if !stays {
            return Decision::Stay;
        }
        match remote::first(turn, home, fleet, self.remote) {
            None => decision,
            Some(prefiller) => {
                let reason = Reason::NextPrefiller {
                    queued: prefiller.queued,
                    tokens_per_s: prefiller.tokens_per_s,
                };
                remote::by(prefiller, turn, home, self.remote, reason)
            }
        }
    }

    fn place_with(&self, turn: &TurnView, fleet: &Observed) -> Decision {
        let decision = self.decide(turn, fleet);
        if self.errors.bear_on_choice() {
            self.inverted(turn, fleet, decision)
        } else {
            decision
        }
    }
}

impl Policy for Misled {
    fn name(&self) -> &'static str {
        self.inner().name()
    }

    fn variant(&self) -> String {
        self.name.clone()
    }

    fn is_sticky(&self) -> bool {
        self.inner().is_sticky() && !self.errors.bear_on_choice()
    }

    fn helpers(&self) -> u16 {
        self.inner().helpers()
    }

    fn roles(&self) -> Roles {
        self.inner().roles()
    }

    fn spares_the_busy(&self, prefillers: bool) -> bool {
        self.inner().spares_the_busy(prefillers)
    }

    fn place(&self, turn: &TurnView, fleet: &Observed) -> Decision {
        if self.errors.stale_s == 0.0 {
            return self.place_with(turn, fleet);
        }
        let now = self.clock.get();
        let mut seen = self.seen.lock().expect("nobody panics while holding it");
        let fresh = |at: u64| (now.saturating_sub(at) as f64) < self.errors.stale_s * 1e9;
        if seen.as_ref().is_none_or(|(at, _)| !fresh(*at)) {
            *seen = Some((now, fleet.clone()));
        }
        let old = seen.as_ref().map_or(fleet, |(_, old)| old);
        self.place_with(turn, old)
    }

    fn next_prefiller(
        &self,
        turn: &TurnView,
        fleet: &Observed,
        avoid: &[WorkerId],
    ) -> Option<(WorkerId, Reason)> {
        self.inner().next_prefiller(turn, fleet, avoid)
    }
}
