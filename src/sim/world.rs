//! The run: virtual time, the real router, engines and links in place of workers.
//!
//! Everything that the router is told, a real door would tell it: begin, prefilled, handed over, first
//! token, finish, close, and what workers report about themselves.

mod ends;
mod hears;
mod outcome;
mod start;
mod turns;

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use self::hears::Scribe;
use super::diagnosis::Outcome as Ending;
use super::engine::Engine;
use super::events::{Events, What, nanosecond};
use super::flight::Flight;
use super::link::Links;
use super::misroute::Declared;
use super::oracle::Truth;
use super::record::{Counters, EventRow, SimResult, TurnRow};
use super::scenario::{Scenario, ScenarioError};
use super::split::{Ledger, Part};
use super::workload::Workload;
use crate::router::Router;
use crate::sync::Counter;
use crate::units::{Blocks, ConversationKey, Timestamp, WorkerId};

/// Virtual seconds without any progress after which a run is stuck: longer than any memory of a policy.
const PATIENCE_S: f64 = 600.0;

/// See the module.
#[derive(Debug)]
pub(super) struct World<'a> {
    pub(super) scenario: &'a Scenario,
    pub(super) workload: &'a Workload,
    router: Router,
    scribe: Option<Arc<Scribe>>,
    policy: String,
    /// Virtual nanoseconds, for policies that see the past.
    clock: Arc<Counter>,
    truth: Option<Arc<Truth>>,
    /// Engine by engine, as they joined: the router's ids in the order of the scenario.
    pub(super) workers: Vec<WorkerId>,
    pub(super) engines: Vec<Engine>,
    pub(super) kv_bytes: Vec<f64>,
    /// The longest context of each, tokens.
    limits: Vec<u32>,
    pub(super) links: Links,
    pub(super) events: Events,
    pub(super) now: f64,
    /// The same, as the router is told.
    pub(super) at: Timestamp,
    pub(super) flights: Vec<Flight>,
    pub(super) fetched: Vec<u32>,
    pub(super) keys: Vec<ConversationKey>,
    /// Handoffs that wait for room on each engine.
    pub(super) incoming: Vec<VecDeque<usize>>,
    touched: Vec<bool>,
    rung: Arc<Mutex<Vec<usize>>>,
    rows: Vec<TurnRow>,
    log: Vec<EventRow>,
    pub(super) counters: Counters,
    ended: usize,
    refused: usize,
    next_arrival: usize,
    last_progress: f64,
    window: [Vec<f64>; 2],
    /// How much later the recorded prompts of a flip end because of earlier flips.
    pushed_s: Vec<f64>,
    /// Flips that are executed instead.
    declared: Option<Declared>,
    /// What engines evicted and the router has not heard yet, oldest first.
    news: VecDeque<(WorkerId, Vec<(ConversationKey, Blocks)>)>,
}

impl World<'_> {
    pub(super) fn run(mut self) -> Result<SimResult, ScenarioError> {
        self.schedule();
        let ending = loop {
            if self.ended + self.refused == self.workload.len() {
                break Ending::Finished;
            }
            if !self.events.is_stuck() {
                self.last_progress = self.now;
            } else if self.now - self.last_progress > PATIENCE_S {
                break Ending::Deadlocked;
            }
            let Some((at, what)) = self.events.pop() else {
                break Ending::Deadlocked;
            };
            debug_assert!(at >= self.now - 1e-9, "time does not go back");
            self.now = at.max(self.now);
            self.at = Timestamp(nanosecond(self.now));
            self.clock.set(self.at.0);
            self.counters.events += 1;
            if what == What::Horizon {
                break Ending::Horizon;
            }
            self.happen(what);
            self.settle();
            if self.scenario.checks {
                self.check()?;
            }
        };
        Ok(self.report(ending))
    }

    fn arrive_next(&mut self) {
        if self.next_arrival < self.workload.len() {
            self.events.push(self.now, What::Arrive(self.next_arrival));
            self.next_arrival += 1;
        }
    }

    fn happen(&mut self, what: What) {
        match what {
            What::Arrive(at) => {
                let flight = &mut self.flights[at];
                if flight.conversation.arrival_s.is_nan() {
                    flight.conversation.arrival_s = self.now;
                    flight.ledger = Ledger::new(self.now);
                }
                flight.ledger.spend(Part::Tool, self.now);
                self.send(at);
            }
            What::Ready(at) => self.reach_router(at),
            What::Slept(at) => {
                self.flights[at].ledger.spend(Part::Slept, self.now);
                self.begin(at);
            }
            What::StepEnd { engine, epoch } => {
                if self.engines[engine].epoch == epoch {
                    self.step_ended(engine);
                }
            }
            What::TransferEnd(at) => self.transfer_ended(at),
            What::FetchEnd(at) => self.fetch_ended(at),
            What::GiveUp {
                conversation,
                attempt,
            } => self.give_up(conversation, attempt),
            What::Loaded {
                engine,
                conversation,
            } => {
                self.engines[engine].loaded(conversation, self.now);
                self.touch(engine);
            }
            What::Expiry(engine) => self.touch(engine),
            What::Report => self.report_workers(),
            What::Heard => self.hear(),
            What::Deadline => {
                self.router.tick(self.at);
                self.look_at_line();
            }
            What::Window(edge) => {
                let by = |engine: &Engine| engine.joules_by(self.now);
                self.window[edge] = self.engines.iter().map(by).collect();
            }
            What::Horizon => {}
        }
    }

    /// Answers those whose bell rang, and plans every engine that something happened to.
    fn settle(&mut self) {
        loop {
            let rung =
                std::mem::take(&mut *self.rung.lock().expect("nobody panics while holding it"));
            if rung.is_empty() {
                break;
            }
            for conversation in rung {
                self.answered(conversation);
            }
        }
        for engine in 0..self.engines.len() {
            if std::mem::take(&mut self.touched[engine]) {
                self.admit_incoming(engine);
                self.touched[engine] = false;
                let end = if self.engines[engine].is_busy() {
                    self.engines[engine].interrupt(self.now)
                } else {
                    self.plan(engine)
                };
                let of = &self.engines[engine];
                if let Some(end) = end {
                    let epoch = of.epoch;
                    self.events.push(end, What::StepEnd { engine, epoch });
                }
                let waits = !of.is_busy() && of.waiting() > 0;
                if (waits || !self.incoming[engine].is_empty())
                    && let Some(at) = of.pool().next_expiry(self.now)
                {
                    self.events.push(at, What::Expiry(engine));
                }
            }
        }
        self.spread_news();
        self.keep_log();
    }

    /// Plans an engine's next steps; when they end.
    fn plan(&mut self, engine: usize) -> Option<f64> {
        let preempted = self.engines[engine].tally.preemptions;
        let end = self.engines[engine].plan(self.now);
        let of = &mut self.engines[engine];
        if of.tally.preemptions > preempted && !self.incoming[engine].is_empty() {
            // Blocks came free that handoffs wait for: they are looked at after one step.
            return of.interrupt(self.now).or(end);
        }
        end
    }

    pub(super) fn touch(&mut self, engine: usize) {
        self.touched[engine] = true;
    }

    /// Conservation: the engines' blocks and the router's.
    fn check(&self) -> Result<(), ScenarioError> {
        for (at, engine) in self.engines.iter().enumerate() {
            let broken = |problem| ScenarioError::new(format!("engines[{at}], a defect"), problem);
            engine.check(self.now).map_err(broken)?;
        }
        let broken = |error: crate::router::Discrepancy| {
            ScenarioError::new("router, a defect", error.to_string())
        };
        self.router.check().map_err(broken)
    }
}
