//! What a run gives once it has stopped.

use super::super::diagnosis::{Diagnosis, Outcome as Ending, backlog};
use super::super::flight::{Flight, Stage};
use super::super::record::{Counters, EngineRow, SimResult};
use super::super::scenario::EngineRole;
use super::World;

impl World<'_> {
    pub(super) fn report(mut self, ending: Ending) -> SimResult {
        let end_s = self.now;
        for engine in &mut self.engines {
            engine.stop(end_s);
        }
        let stuck = if ending == Ending::Deadlocked {
            self.describe_stuck()
        } else {
            Vec::new()
        };
        let unfinished = self.workload.len() - self.ended - self.refused;
        for flight in &mut self.flights {
            flight.ticket = None;
            flight.running = None;
        }
        let open =
            |flight: &&Flight| !matches!(flight.stage, Stage::Away | Stage::Done | Stage::Gap);
        let mut turns = std::mem::take(&mut self.rows);
        turns.extend(
            self.flights
                .iter()
                .filter(open)
                .map(|flight| flight.row.clone()),
        );
        let conversations: Vec<_> = self
            .flights
            .iter()
            .map(|flight| flight.conversation.clone())
            .collect();
        let (backlog_slope_per_s, backlog_mean, unstable) = backlog(&conversations, end_s);
        let totals = self.router.snapshot(self.at).totals;
        self.counters = Counters {
            placed_local: totals.placed_local,
            placed_handoff: totals.placed_handoff,
            placed_afresh: totals.placed_afresh,
            placed_moved: totals.placed_moved,
            waits_room: totals.waits_room,
            waits_thrash: totals.waits_thrash,
            waits_growth: totals.waits_growth,
            ..self.counters
        };
        self.counters.transferred_bytes = self.links.bytes;
        self.counters.link_busy_s = self.links.busy_s;
        let engines = (0..self.engines.len())
            .map(|at| self.engine_row(at))
            .collect();
        SimResult {
            turns,
            conversations,
            engines,
            counters: self.counters,
            diagnosis: Diagnosis {
                outcome: ending,
                finished: self.ended,
                refused: self.refused,
                unfinished,
                unstable: unstable || ending != Ending::Finished,
                backlog_slope_per_s,
                backlog_mean,
                stuck,
            },
            events: self.log,
            policy: self.policy,
            end_s,
        }
    }

    fn describe_stuck(&self) -> Vec<String> {
        let engines = self.engines.iter().enumerate();
        let mut lines: Vec<_> = engines
            .map(|(at, engine)| format!("engine {at}: {}", engine.describe()))
            .collect();
        let stuck = self
            .flights
            .iter()
            .enumerate()
            .filter(|(_, flight)| !matches!(flight.stage, Stage::Away | Stage::Done));
        lines.extend(stuck.take(20).map(|(at, flight)| {
            format!(
                "conversation {at}, turn {}: {:?}",
                flight.turn, flight.stage
            )
        }));
        lines
    }

    fn engine_row(&self, at: usize) -> EngineRow {
        let (engine, spec) = (&self.engines[at], &self.scenario.engines[at]);
        let tally = &engine.tally;
        let edge = |edge: &Vec<f64>| {
            let late = self.scenario.energy_window_s.map(|_| engine.total_joules());
            edge.get(at).copied().or(late).unwrap_or(f64::NAN)
        };
        EngineRow {
            name: spec.name.clone().unwrap_or_else(|| format!("engine-{at}")),
            role: match spec.role {
                EngineRole::Prefiller => "prefiller",
                EngineRole::Decoder => "decoder",
                EngineRole::Both => "both",
            },
            joules: tally.joules,
            seconds: tally.seconds,
            // A window that ends after the run ends with the run.
            window_joules: edge(&self.window[1]) - edge(&self.window[0]),
            steps: tally.steps,
            prefill_tokens: tally.prefill_tokens,
            generated_tokens: tally.generated_tokens,
            recomputed_tokens: tally.recomputed_tokens,
            evicted_tokens: engine.pool().evicted_tokens,
            loaded_tokens: tally.loaded_tokens,
            preemptions: tally.preemptions,
            queue_peak: tally.queue_peak,
            kv_blocks: engine.pool().capacity(),
        }
    }
}
