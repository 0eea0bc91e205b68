//! Which of the workers that do both only compute prompts while the others have room.
//!
//! Promises: chosen anew only when their number or the fleet changes, and then by what is seen there alone: the emptiest by
//! booked KV, so that few conversations live on them; among equally empty ones those whose addresses come first, in whatever
//! order they joined; those that are drained last.
//! Leaves to others: how many (an operator, or `roles`), what it means to be one (the policy).

use super::engine::Engine;
use crate::fleet::{Role, Worker};
use crate::sync::{Counter, Mutex};
use crate::units::Blocks;

/// See the module.
#[derive(Debug)]
pub(crate) struct Helpers {
    wanted: Counter,
    choosing: Mutex<()>,
}

impl Helpers {
    pub(crate) fn of(wanted: u16) -> Self {
        let helpers = Self {
            wanted: Counter::default(),
            choosing: Mutex::new(()),
        };
        helpers.set(wanted);
        helpers
    }

    /// So many are wanted, whether or not there are as many workers that do both.
    pub(crate) fn wanted(&self) -> u16 {
        u16::try_from(self.wanted.get()).unwrap_or(u16::MAX)
    }

    fn set(&self, wanted: u16) {
        self.wanted.set(u64::from(wanted));
    }
}

impl Engine {
    /// From now on so many; what lives on them stays.
    pub(super) fn set_helpers(&self, wanted: u16) {
        self.helpers.set(wanted);
        self.choose_helpers();
    }

    /// To be called when the fleet has changed.
    pub(super) fn choose_helpers(&self) {
        let choosing = self.helpers.choosing.lock();
        let mut able: Vec<(Precedence<'_>, &Worker)> = Vec::new();
        self.fleet.for_each_live(|worker| {
            if worker.role == Role::Both {
                able.push((precedence(worker), worker));
            }
        });
        able.sort_unstable_by_key(|(precedence, _)| *precedence);
        let wanted = usize::from(self.helpers.wanted());
        for (rank, (_, worker)) in able.into_iter().enumerate() {
            worker.helps.set(u64::from(rank < wanted));
        }
        drop(choosing);
    }
}

/// The least first.
type Precedence<'a> = (bool, Blocks, &'a str);

fn precedence(worker: &Worker) -> Precedence<'_> {
    let booked = worker.occupancy.books().booked;
    (worker.is_draining(), booked, &worker.url)
}
