//! The run: virtual time, the real router, engines and links in place of workers.
//!
//! Everything that the router is told, a real door would tell it: begin, prefilled, handed over, first
//! token, finish, close, and what workers report about themselves.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::task::{Wake, Waker};
use std::time::Duration;

use super::diagnosis::{Diagnosis, Outcome as Ending, backlog};
use super::engine::{Engine, Job, Outcome, Work};
use super::events::{Events, What, nanosecond};
use super::flight::{Flight, Stage};
use super::gaps::GapStats;
use super::link::Links;
use super::misroute::Declared;
use super::oracle::Truth;
use super::policy::Made;
use super::pool::Pool;
use super::record::{Counters, EngineRow, EventRow, SimResult, TurnRow};
use super::scenario::{
    EngineRole, FlipWait, Gate, KvReservation, PdCoupling, Retention, Scenario, ScenarioError,
};
use super::workload::{TurnSpec, Workload};
use crate::config::Config;
use crate::error::Rejected;
use crate::event::{Event, Observer, Usage};
use crate::fleet::{Role, WorkerSpec};
use crate::placement::Policy;
use crate::report::WorkerReport;
use crate::router::{Begin, Router, Turn, TurnRequest};
use crate::sync::Counter;
use crate::units::{BlockSize, Blocks, ConversationKey, Timestamp, Tokens, WorkerId};

/// Virtual seconds without any progress after which a run is stuck: longer than any memory of a policy.
const PATIENCE_S: f64 = 600.0;

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

/// Writes the router's events down.
#[derive(Debug, Default)]
struct Scribe(Mutex<Vec<String>>);

impl Observer for Scribe {
    fn on(&self, event: &Event) {
        let mut lines = self.0.lock().expect("nobody panics while holding it");
        lines.push(format!("{event:?}"));
    }
}

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

/// The seed decides how the router breaks ties, and nothing else.
fn key(seed: u64, conversation: usize) -> ConversationKey {
    let mut mixed = (seed ^ 0x51_7CC1_B727_220A)
        .wrapping_mul(0x9E37_79B9_7F4A_7C15)
        .wrapping_add(conversation as u64);
    mixed = (mixed ^ mixed >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^= mixed >> 31;
    ConversationKey(u128::from(conversation as u64) << 64 | u128::from(mixed))
}

fn router(scenario: &Scenario, policy: Box<dyn Policy>) -> Result<Router, ScenarioError> {
    let spec = &scenario.router;
    let config = Config {
        low_watermark: spec.low_watermark,
        prefill_backlog_tokens: Tokens(spec.prefill_backlog_tokens),
        evict_idle: spec.evict_idle,
        tail_waits: spec.tail_waits,
        evict_idle_below: spec.evict_idle_below,
        queue_limit: 1_000_000,
        idle_timeout: None,
        ..Config::default()
    };
    Router::with_policy(config, policy).map_err(|error| {
        let problem = format!("{} is out of range: {}", error.value, error.range);
        ScenarioError::new(format!("router.{}", error.key), problem)
    })
}

impl<'a> World<'a> {
    pub(super) fn new(
        scenario: &'a Scenario,
        workload: &'a Workload,
        made: Made,
        seed: u64,
    ) -> Result<Self, ScenarioError> {
        let scribe = scenario.events.then(Arc::<Scribe>::default);
        let executes = |flip: &super::scenario::FlipSpec| flip.wait == FlipWait::Execute;
        let declared = (scenario.flip.as_ref().is_some_and(executes)).then(Declared::default);
        let policy = match &declared {
            Some(declared) => declared.around(made.policy),
            None => made.policy,
        };
        let mut router = router(scenario, policy)?;
        if let Some(scribe) = &scribe {
            router = router.with_observer(Arc::clone(scribe) as Arc<dyn Observer>);
        }
        let conversations = workload.len();
        let (mut workers, mut engines) = (Vec::new(), Vec::new());
        let (mut kv_bytes, mut limits) = (Vec::new(), Vec::new());
        for (at, spec) in scenario.engines.iter().enumerate() {
            let tokens = spec.kv_tokens.unwrap_or(spec.preset.constants().kv_tokens);
            let blocks = Blocks::new(tokens / u64::from(spec.block_size));
            let role = match spec.role {
                EngineRole::Prefiller => Role::Prefiller,
                EngineRole::Decoder => Role::Decoder,
                EngineRole::Both => Role::Both,
            };
            let told = match scenario.router.gate {
                Gate::On => blocks,
                Gate::Off => Blocks::MAX,
            };
            // An engine serves no context that its blocks could not hold.
            let holds = blocks.get().saturating_mul(spec.block_size);
            let limit = spec.max_model_len.map_or(holds, |len| len.min(holds));
            let worker = WorkerSpec {
                name: spec.name.clone(),
                block_size: BlockSize::new(spec.block_size),
                max_model_len: Some(Tokens(limit)),
                ..WorkerSpec::new(format!("http://engine-{at}"), role).with_kv_blocks(told)
            };
            let id = router
                .join(worker, Timestamp(0))
                .map_err(|error| ScenarioError::new(format!("engines[{at}]"), error.to_string()))?;
            let pool = Pool::new(
                blocks.get(),
                spec.block_size,
                conversations,
                workload.prefixes,
                spec.retention,
                spec.host_offload_bytes_per_s.is_some(),
            );
            workers.push(id);
            limits.push(limit);
            kv_bytes.push(super::cost::kv_bytes(spec));
            engines.push(Engine::new(
                spec,
                super::cost::of(spec),
                pool,
                scenario.fast_forward,
            ));
        }
        let count = engines.len();
        Ok(Self {
            scenario,
            workload,
            policy: router.snapshot(Timestamp(0)).policy,
            clock: made.clock,
            truth: made.truth,
            router,
            scribe,
            workers,
            engines,
            kv_bytes,
            limits,
            links: Links::new(scenario.link.clone(), count),
            events: Events::default(),
            now: 0.0,
            at: Timestamp(0),
            flights: (0..conversations).map(Flight::new).collect(),
            fetched: vec![0; conversations],
            keys: (0..conversations).map(|at| key(seed, at)).collect(),
            incoming: vec![VecDeque::new(); count],
            touched: vec![false; count],
            rung: Arc::default(),
            rows: Vec::with_capacity(workload.turns()),
            log: Vec::new(),
            counters: Counters::default(),
            ended: 0,
            refused: 0,
            next_arrival: 0,
            last_progress: 0.0,
            window: [Vec::new(), Vec::new()],
            pushed_s: scenario
                .flip
                .as_ref()
                .map_or_else(Vec::new, |flip| vec![0.0; flip.started_s.len()]),
            declared,
            news: VecDeque::new(),
        })
    }

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

    fn schedule(&mut self) {
        if self.scenario.closed_loop.is_none() {
            for at in 0..self.workload.len() {
                let when = self.workload.conversations[at].arrival_s;
                self.events.push(when, What::Arrive(at));
            }
            self.next_arrival = self.workload.len();
        }
        for _ in 0..self.scenario.closed_loop.unwrap_or(0) {
            self.arrive_next();
        }
        if let Some((from, to)) = self.scenario.energy_window_s {
            self.events.push(from, What::Window(0));
            self.events.push(to, What::Window(1));
        }
        if let Some(horizon) = self.scenario.horizon_s {
            self.events.push(horizon, What::Horizon);
        }
        self.events.push(0.0, What::Report);
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
                let flight = &mut self.flights[at].conversation;
                if flight.arrival_s.is_nan() {
                    flight.arrival_s = self.now;
                }
                self.send(at);
            }
            What::Ready(at) => self.reach_router(at),
            What::Slept(at) => self.begin(at),
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

    /// What engines evicted is on its way to the router.
    fn spread_news(&mut self) {
        for (engine, worker) in self.engines.iter_mut().zip(&self.workers) {
            let lost = engine.take_lost();
            if !lost.is_empty() && self.scenario.router.kv_events {
                let named = |(conversation, blocks): (usize, u32)| {
                    (self.keys[conversation], Blocks::new(u64::from(blocks)))
                };
                let lost = lost.into_iter().map(named).collect();
                self.news.push_back((*worker, lost));
                let heard = self.now + self.scenario.router.report_delay_s;
                self.events.push(heard, What::Heard);
            }
        }
    }

    fn hear(&mut self) {
        if let Some((worker, lost)) = self.news.pop_front() {
            self.router.hear_evictions(worker, lost, self.at);
        }
    }

    pub(super) fn touch(&mut self, engine: usize) {
        self.touched[engine] = true;
    }

    fn keep_log(&mut self) {
        if let Some(scribe) = &self.scribe {
            let mut lines = scribe.0.lock().expect("nobody panics while holding it");
            let at_s = self.now;
            self.log
                .extend(lines.drain(..).map(|what| EventRow { at_s, what }));
        }
    }

    fn spec(&self, conversation: usize) -> TurnSpec {
        let first = self.workload.conversations[conversation].first;
        self.workload.turns[first + self.flights[conversation].turn]
    }

    /// The client sends the turn at hand.
    fn send(&mut self, conversation: usize) {
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

    fn reach_router(&mut self, conversation: usize) {
        let spec = self.spec(conversation);
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
            let sleeps = self.flip(&spec);
            self.flights[conversation].row.slept_s = sleeps;
            self.events
                .push(self.now + sleeps, What::Slept(conversation));
        } else {
            self.begin(conversation);
        }
    }

    /// How long the paper's method lets a mispredicted turn sleep.
    fn flip(&mut self, spec: &TurnSpec) -> f64 {
        let Some(flip) = &self.scenario.flip else {
            return 0.0;
        };
        let work = super::flip::work_s(spec);
        let wait = super::flip::wait_s(flip, &mut self.pushed_s, self.now, work.blocks_s);
        wait + work.total_s
    }

    /// What the router is told of prompt and answer.
    pub(super) fn told(&self, conversation: usize) -> (Tokens, Tokens) {
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

    fn begin(&mut self, conversation: usize) {
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

    fn answered(&mut self, conversation: usize) {
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
    fn look_at_line(&mut self) {
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
    pub(super) fn job(&self, conversation: usize) -> Job {
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

    pub(super) fn submit(&mut self, engine: usize, job: Job) {
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

    fn step_ended(&mut self, engine: usize) {
        let mut outcomes = Vec::new();
        self.engines[engine].finish(self.now, &mut outcomes);
        for outcome in outcomes {
            match outcome {
                Outcome::FirstToken { conversation } => self.first_token(conversation),
                Outcome::Prefilled { conversation, work } => {
                    self.note_work(conversation, &work);
                    self.prefilled(conversation, &work);
                }
                Outcome::Finished {
                    conversation,
                    work,
                    gaps,
                } => {
                    self.note_work(conversation, &work);
                    self.turn_ended(conversation, self.now, gaps);
                }
            }
        }
        self.touch(engine);
    }

    fn first_token(&mut self, conversation: usize) {
        let flight = &mut self.flights[conversation];
        flight.row.first_token_s = self.now;
        let Some(turn) = flight.running.as_mut() else {
            return;
        };
        turn.handed_over(self.at);
        turn.first_token(self.at);
    }

    /// What an engine did for the turn at hand.
    fn note_work(&mut self, conversation: usize, work: &Work) {
        let row = &mut self.flights[conversation].row;
        if row.prefill_start_s.is_nan() {
            let queued_since = row.admitted_s;
            row.prefill_start_s = work.started_s;
            row.engine_queue_s = (work.started_s - queued_since - row.transfer_s).max(0.0);
            row.cached_tokens = work.cached;
        }
        if row.prefill_end_s.is_nan() {
            row.prefill_end_s = row.first_token_s;
            if !row.first_token_s.is_nan() {
                row.compute_s += row.first_token_s - work.started_s;
            }
        }
        row.prefilled_tokens += work.computed;
        row.recomputed_tokens += work.recomputed;
        row.preemptions += work.preemptions;
    }

    /// The last token of the turn at hand came at `at`.
    pub(super) fn turn_ended(&mut self, conversation: usize, at: f64, gaps: GapStats) {
        let spec = self.spec(conversation);
        let (prompt, output) = self.told(conversation);
        let flight = &mut self.flights[conversation];
        let mut row = std::mem::replace(&mut flight.row, TurnRow::new(conversation, flight.turn));
        row.last_token_s = at;
        row.output_tokens = flight.output;
        row.set_gaps(gaps);
        let first = Timestamp(nanosecond(row.first_token_s));
        if let Some(mut turn) = flight.running.take() {
            turn.handed_over(self.at);
            if spec.visible {
                turn.effective(first, self.at);
            }
            let usage = Usage {
                prompt: Some(prompt),
                output: Some(output),
                cached: Some(Tokens(row.cached_tokens)),
            };
            turn.finish(usage, self.at);
        }
        if spec.visible && flight.conversation.ttfet_s.is_nan() {
            flight.conversation.ttfet_s = row.first_token_s - flight.conversation.arrival_s;
        }
        flight.home = Some(flight.decoder);
        flight.history = spec.prompt + flight.output - 1;
        flight.conversation.turns_done += 1;
        flight.turn += 1;
        self.rows.push(row);
        if self.flights[conversation].turn == self.workload.conversations[conversation].turns {
            self.ended += 1;
            self.flights[conversation].conversation.status = "finished";
            return self.end_conversation(conversation);
        }
        let tool_s = self.spec(conversation).gap_s;
        let flight = &mut self.flights[conversation];
        if flight.conversation.ttfet_s.is_nan() {
            flight.conversation.tool_s += tool_s;
        }
        flight.stage = Stage::Gap;
        // The turn is sent when its tool is done.
        self.events
            .push(self.now + tool_s, What::Arrive(conversation));
    }

    fn end_conversation(&mut self, conversation: usize) {
        self.flights[conversation].conversation.done_s = self.now;
        self.flights[conversation].stage = Stage::Done;
        self.router.close(self.keys[conversation], self.at);
        for engine in 0..self.engines.len() {
            if self.scenario.engines[engine].retention == Retention::Pin {
                self.engines[engine]
                    .books(self.now)
                    .forget(conversation, self.now);
                self.touch(engine);
            }
        }
        if self.scenario.closed_loop.is_some() {
            self.arrive_next();
        }
    }

    fn report_workers(&mut self) {
        for (engine, id) in self.engines.iter_mut().zip(&self.workers) {
            let pool = engine.books(self.now);
            let (active, capacity) = (pool.active(), pool.capacity());
            let report = WorkerReport {
                running: Some(engine.running()),
                waiting: Some(engine.waiting()),
                kv_usage: Some(f64::from(active) / f64::from(capacity.max(1))),
                ..WorkerReport::default()
            };
            self.router.observe(*id, &report, self.at);
        }
        self.router.tick(self.at);
        let next = self.now + self.scenario.router.report_interval_s;
        self.events.push(next, What::Report);
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

    fn report(mut self, ending: Ending) -> SimResult {
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
