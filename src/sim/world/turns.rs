//! A turn from its client to an engine: the router's answer, the line, the work that it is.

use std::sync::{Arc, Mutex};
use std::task::{Wake, Waker};
use std::time::Duration;

use super::super::engine::Job;
use super::super::events::What;
use super::super::flight::Stage;
use super::super::flip;
use super::super::record::TurnRow;
use super::super::scenario::{KvReservation, PdCoupling};
use super::super::split::Part;
use super::super::workload::TurnSpec;
use super::World;
use crate::error::Rejected;
use crate::router::{Begin, Turn, TurnRequest};
use crate::units::{Tokens, WorkerId};

/// Rings when a turn that stands in the line has its answer.
#[derive(Debug)]
struct Bell {
    conversation: usize,
    rung: Arc<Mutex<Vec<usize>>>,
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        let mut rung = self.rung.lock().expect("nobody panics while holding it");
        rung.push(self.conversation);
    }
}

impl World<'_> {
    pub(super) fn spec(&self, conversation: usize) -> TurnSpec {
        let first = self.workload.conversations[conversation].first;
        self.workload.turns[first + self.flights[conversation].turn]
    }

    /// The client sends the turn at hand.
    pub(super) fn send(&mut self, conversation: usize) {
        let spec = self.spec(conversation);
        let flight = &mut self.flights[conversation];
        let mut row = TurnRow::new(conversation, flight.turn);
        row.ready_s = self.now;
        (row.prompt_tokens, row.visible) = (spec.prompt, spec.visible);
        flight.row = row;
        flight.stage = Stage::Gap;
        flight.emitted_at = None;
        self.events.push(
            self.now + self.scenario.round_trip_s,
            What::Ready(conversation),
        );
    }

    pub(super) fn reach_router(&mut self, conversation: usize) {
        let spec = self.spec(conversation);
        self.flights[conversation]
            .ledger
            .spend(Part::Network, self.now);
        if spec.resets {
            for engine in 0..self.engines.len() {
                let pool = self.engines[engine].books(self.now);
                // Retention may have kept these blocks from others.
                if pool.reset(conversation, spec.reuse, self.now) {
                    self.touch(engine);
                }
            }
        }
        if spec.flip && self.scenario.flip.is_some() {
            self.counters.flips += 1;
            if let Some(declared) = &self.declared {
                declared.declare(self.keys[conversation]);
                return self.begin(conversation);
            }
            let (wait, work) = self.flip(&spec);
            let (sleeps, flight) = (wait + work, &mut self.flights[conversation]);
            flight.row.slept_s = sleeps;
            flight.ledger.spend(Part::EngineQueue, self.now + wait);
            self.events
                .push(self.now + sleeps, What::Slept(conversation));
        } else {
            self.begin(conversation);
        }
    }

    /// How long the paper's method lets a mispredicted turn sleep: for the recorded backlog, and for its own work.
    fn flip(&mut self, spec: &TurnSpec) -> (f64, f64) {
        let Some(flip) = &self.scenario.flip else {
            return (0.0, 0.0);
        };
        let work = flip::work_s(spec);
        let wait = flip::wait_s(flip, &mut self.pushed_s, self.now, work.blocks_s);
        (wait, work.total_s)
    }

    /// What the router is told of prompt and answer.
    pub(in crate::sim) fn told(&self, conversation: usize) -> (Tokens, Tokens) {
        let spec = self.spec(conversation);
        match self.scenario.kv_reservation {
            KvReservation::Occupancy => (
                Tokens(spec.prompt),
                Tokens(self.flights[conversation].output),
            ),
            KvReservation::PerTurn => (Tokens(spec.prompt + spec.output), Tokens(0)),
            KvReservation::OraclePeak => (
                Tokens(self.workload.conversations[conversation].peak),
                Tokens(0),
            ),
        }
    }

    pub(super) fn begin(&mut self, conversation: usize) {
        if let Some(truth) = self.truth.clone() {
            self.foresee(&truth, conversation);
        }
        let (prompt_tokens, _) = self.told(conversation);
        let timeout = self.scenario.router.queue_timeout_s;
        let request = TurnRequest {
            key: self.keys[conversation],
            prompt_tokens,
            wait: Some(timeout.map_or(Duration::from_secs(1 << 32), Duration::from_secs_f64)),
        };
        match self.router.begin(&request, self.at) {
            Ok(Begin::Started(turn)) => self.admitted(conversation, turn),
            Ok(Begin::Waiting(ticket)) => {
                let bell = Arc::new(Bell {
                    conversation,
                    rung: Arc::clone(&self.rung),
                });
                ticket.set_waker(Waker::from(bell));
                if let Some(timeout) = timeout {
                    self.events.push(self.now + timeout, What::Deadline);
                }
                let flight = &mut self.flights[conversation];
                flight.stage = Stage::Line;
                flight.ticket = Some(ticket);
            }
            Err(rejected) => self.rejected(conversation, &rejected),
        }
    }

    pub(super) fn answered(&mut self, conversation: usize) {
        let Some(ticket) = self.flights[conversation].ticket.take() else {
            return;
        };
        match ticket.take(self.at) {
            Some(Ok(turn)) => self.admitted(conversation, turn),
            Some(Err(rejected)) => self.rejected(conversation, &rejected),
            None => self.flights[conversation].ticket = Some(ticket),
        }
    }

    /// Asks for those whose deadline may have come.
    pub(super) fn look_at_line(&mut self) {
        for conversation in 0..self.flights.len() {
            if self.flights[conversation].stage == Stage::Line {
                self.answered(conversation);
            }
        }
    }

    fn rejected(&mut self, conversation: usize, why: &Rejected) {
        self.refused += 1;
        self.undeclare(conversation);
        self.flights[conversation].conversation.status = why.code();
        self.end_conversation(conversation);
    }

    fn undeclare(&self, conversation: usize) {
        if let Some(declared) = &self.declared {
            declared.clear(self.keys[conversation]);
        }
    }

    fn admitted(&mut self, conversation: usize, turn: Turn) {
        self.undeclare(conversation);
        let route = turn.route();
        let engine_of = |id: WorkerId| usize::from(id.get());
        let decoder = engine_of(route.decoder.id);
        let prefiller = route.prefiller.as_ref().map(|worker| engine_of(worker.id));
        let prefiller = prefiller.filter(|prefiller| *prefiller != decoder);
        debug_assert_eq!(
            self.workers[decoder], route.decoder.id,
            "ids are given in order"
        );
        let (first, spec) = (
            self.flights[conversation].turn == 0,
            self.spec(conversation),
        );
        let flight = &mut self.flights[conversation];
        if first {
            flight.conversation.admitted_s = self.now;
        }
        flight.row.admitted_s = self.now;
        flight.ledger.spend(Part::Line, self.now);
        flight.row.line_s = self.now - flight.row.ready_s - flight.row.slept_s;
        flight.row.decoder = Some(decoder);
        flight.row.moved = flight.home.is_some_and(|home| home != decoder);
        flight.conversation.moves += u32::from(flight.row.moved);
        self.counters.moves += u64::from(flight.row.moved);
        flight.decoder = decoder;
        let room = self.limits[decoder].saturating_sub(spec.prompt);
        flight.output = spec.output.min(room.max(1));
        flight.running = Some(turn);
        if first && self.scenario.pd_coupling == PdCoupling::Replayed {
            flight.stage = Stage::MoveIn { prefiller: None };
            self.incoming[decoder].push_back(conversation);
            self.touch(decoder);
            return;
        }
        if let Some(prefiller) = prefiller {
            self.start_remote(conversation, prefiller);
        } else {
            flight.stage = Stage::Run;
            let job = self.job(conversation);
            self.submit(decoder, job);
        }
    }

    /// The turn at hand as work for an engine.
    pub(in crate::sim) fn job(&self, conversation: usize) -> Job {
        let spec = self.spec(conversation);
        let flight = &self.flights[conversation];
        Job {
            conversation,
            prompt: spec.prompt,
            output: flight.output,
            valid: spec.reuse,
            known: spec.reuse.min(flight.history),
            // A prompt after a reset may be shorter than the head of the first one.
            prefix: self.workload.conversations[conversation]
                .prefix
                .filter(|(_, length)| *length < spec.prompt),
            received: None,
            emitted_at: None,
        }
    }

    pub(in crate::sim) fn submit(&mut self, engine: usize, job: Job) {
        self.engines[engine].submit(job, self.now);
        if let Some(load_s) = self.engines[engine].load_s(self.now) {
            let conversation = job.conversation;
            let what = What::Loaded {
                engine,
                conversation,
            };
            self.events.push(self.now + load_s, what);
        }
        self.touch(engine);
    }
}
