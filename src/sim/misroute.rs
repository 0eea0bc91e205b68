//! Turns that are declared mispredicted and really executed remotely, whatever the policy would do.
//!
//! Promises: a turn that is not declared goes where the policy within sends it.
//! Leaves to others: which turns are declared (the workload), and when (`world`).

use std::collections::HashSet;
use std::sync::{Arc, Mutex};

use crate::config::{PolicyKind, Roles};
use crate::event::Reason;
use crate::placement::{Decision, Observed, Policy, TurnView};
use crate::units::{ConversationKey, WorkerId};

/// The conversations whose turn at hand is declared mispredicted.
#[derive(Debug, Clone, Default)]
pub(super) struct Declared(Arc<Mutex<HashSet<u64>>>);

impl Declared {
    fn with<T>(&self, does: impl FnOnce(&mut HashSet<u64>) -> T) -> T {
        does(&mut self.0.lock().expect("nobody panics while holding it"))
    }

    pub(super) fn declare(&self, key: ConversationKey) {
        self.with(|declared| declared.insert(key.folded()));
    }

    /// The turn was admitted or refused.
    pub(super) fn clear(&self, key: ConversationKey) {
        self.with(|declared| declared.remove(&key.folded()));
    }

    /// `within`, except for declared turns.
    pub(super) fn around(&self, within: Box<dyn Policy>) -> Box<dyn Policy> {
        Box::new(Misroute {
            declared: self.clone(),
            within,
            remote: crate::placement::policy(PolicyKind::Disaggregated),
        })
    }
}

struct Misroute {
    declared: Declared,
    within: Box<dyn Policy>,
    remote: Box<dyn Policy>,
}

impl Policy for Misroute {
    fn name(&self) -> &'static str {
        self.within.name()
    }

    fn variant(&self) -> String {
        self.within.variant()
    }

    fn is_sticky(&self) -> bool {
        false
    }

    fn helpers(&self) -> u16 {
        self.within.helpers()
    }

    fn roles(&self) -> Roles {
        self.within.roles()
    }

    fn spares_the_busy(&self, prefillers: bool) -> bool {
        self.within.spares_the_busy(prefillers)
    }

    fn place(&self, turn: &TurnView, fleet: &Observed) -> Decision {
        if turn.home.is_some() {
            if self.declared.with(|declared| declared.contains(&turn.tie)) {
                return self.remote.place(turn, fleet);
            }
            if self.within.is_sticky() {
                return Decision::Stay;
            }
        }
        self.within.place(turn, fleet)
    }

    fn next_prefiller(
        &self,
        turn: &TurnView,
        fleet: &Observed,
        avoid: &[WorkerId],
    ) -> Option<(WorkerId, Reason)> {
        self.within.next_prefiller(turn, fleet, avoid)
    }
}
