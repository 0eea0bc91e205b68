//! Whether a turn waits although nothing stands in its way but what idle conversations hold.

use super::engine::Engine;
use crate::admission::{Queues, Waiter};
use crate::fleet::Worker;
use crate::units::WorkerId;

/// Turns wait for a decoder where nothing runs, although the first of them would fit.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{waiting} turns wait for room on {worker}, where nothing runs and the first of them would fit"
)]
pub struct Stalled {
    /// The decoder.
    pub worker: WorkerId,
    /// How many wait.
    pub waiting: usize,
}

impl Engine {
    pub(super) fn check_progress(&self) -> Result<(), Stalled> {
        // What engines keep they give away only when its time is up.
        if self.config.retention.is_some() {
            return Ok(());
        }
        self.line
            .with(|queues, _| {
                let growth = self.stalled_growth(queues);
                growth.or_else(|| self.stalled_newcomer(queues))
            })
            .map_or(Ok(()), Err)
    }

    /// One that waits to grow on a decoder where no turn runs.
    fn stalled_growth(&self, queues: &Queues) -> Option<Stalled> {
        if self.config.tail_waits && !self.config.evict_idle {
            return None;
        }
        queues.growth.keys().find_map(|(id, _)| {
            let decoder = self.fleet.worker(*id);
            let on = (*id, 0)..=(*id, u64::MAX);
            (!decoder.is_lost() && runs_nothing(decoder)).then(|| Stalled {
                worker: *id,
                waiting: queues.growth.range(on).count(),
            })
        })
    }

    /// The first newcomer, if nothing runs anywhere and some decoder could hold it.
    fn stalled_newcomer(&self, queues: &Queues) -> Option<Stalled> {
        let first: &Waiter = queues.newcomers.values().next()?;
        let (mut idle, mut able) = (self.config.evict_idle, None);
        self.fleet.for_each_live(|worker| {
            idle &= runs_nothing(worker);
            let holds = worker
                .prompt_limit()
                .is_some_and(|limit| first.prompt <= limit);
            if worker.role.decodes() && worker.is_open() && holds {
                able = Some(worker.id);
            }
        });
        able.filter(|_| idle).map(|worker| Stalled {
            worker,
            waiting: queues.newcomers.len(),
        })
    }
}

fn runs_nothing(worker: &Worker) -> bool {
    worker.occupancy.books().running == 0 && worker.backlog.queued().0 == 0
}
