//! What a turn would really take at home and on each prefiller: engines, queues, links and lengths as they are.
//!
//! Promises: only the simulator can make it, and only the policy named `oracle` is told. As of the turn's arrival, if nobody
//! else came after it.
//! Leaves to others: the rule by which the times decide (`placement::ampd`).

use std::collections::BTreeMap;
use std::sync::Mutex;

use super::world::World;
use crate::placement::TurnView;
use crate::placement::weigh::Weights;
use crate::units::WorkerId;

/// The true times of turns that are about to ask, by the hash that their views carry.
#[derive(Debug, Default)]
pub(super) struct Truth(Mutex<BTreeMap<u64, Vec<(WorkerId, Weights)>>>);

impl Truth {
    pub(super) fn of(&self, turn: &TurnView, prefiller: WorkerId) -> Option<Weights> {
        let told = self.0.lock().expect("nobody panics while holding it");
        let all = told.get(&turn.tie).filter(|_| turn.home.is_some())?;
        let found = all.iter().find(|(id, _)| *id == prefiller);
        found.map(|(_, weights)| *weights)
    }

    /// What was told about each turn's conversation last.
    #[cfg(test)]
    pub(super) fn told(&self) -> Vec<(WorkerId, Weights)> {
        let told = self.0.lock().expect("nobody panics while holding it");
        told.values().flatten().copied().collect()
    }

    fn tell(&self, turn: u64, weights: Vec<(WorkerId, Weights)>) {
        let mut told = self.0.lock().expect("nobody panics while holding it");
        told.insert(turn, weights);
    }
}

impl World<'_> {
    /// Tells the truth about the turn that is about to ask.
    pub(super) fn foresee(&mut self, truth: &Truth, conversation: usize) {
        let Some(home) = self.flights[conversation].home else {
            return;
        };
        // What steps under way have evicted by now is gone.
        for engine in &mut self.engines {
            engine.books(self.now);
        }
        let (job, now) = (self.job(conversation), self.now);
        let size = |engine: usize| self.scenario.engines[engine].block_size;
        let found = |engine: usize| {
            let tokens = self.engines[engine].pool().tokens(conversation);
            tokens.min(job.valid).min(job.prompt - 1) / size(engine) * size(engine)
        };
        let at_home = found(home);
        let local = self.engines[home].ahead(job.prompt - at_home, at_home, now);
        let step_s = self.engines[home].decode_step_s(job.prompt - 1, now);
        let weights = |prefiller: usize| {
            let (mut there, mut fetch_s) = (found(prefiller), 0.0);
            if self.scenario.remote.fetch && at_home > there {
                let bytes = f64::from(at_home - there) * self.kv_bytes[home];
                fetch_s = self.links.backlog(home, prefiller, now) + self.links.alone(bytes);
                there = at_home;
            }
            let remote = self.engines[prefiller].ahead(job.prompt - there, there, now);
            let computed_s = remote.ends + fetch_s;
            let crosses = if self.scenario.remote.delta {
                job.prompt - at_home
            } else {
                job.prompt
            };
            let bytes = f64::from(crosses) * self.kv_bytes[prefiller];
            let hidden_s = remote.ends - remote.begins;
            let queued_s = self.links.backlog(prefiller, home, now + computed_s);
            let remote_s = computed_s + queued_s + self.links.exposed(bytes, hidden_s) + step_s;
            Weights {
                local: local.ends * 1e3,
                remote: remote_s * 1e3,
                gap: local.gap * 1e3,
            }
        };
        let others = (0..self.engines.len()).filter(|engine| *engine != home);
        let all = others.map(|engine| (self.workers[engine], weights(engine)));
        truth.tell(self.keys[conversation].folded(), all.collect());
    }
}
