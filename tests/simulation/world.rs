//! Virtual time: what is due, in order; the fleet, the watch over it, and the door's requests.
//!
//! The order of what is due at the same time is the order in which it was planned, so a run depends on its plan alone.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use conserve::config::Config;
use conserve::dispatch::{DispatchConfig, Dispatcher};
use conserve::event::LostReason;
use conserve::fleet::{Role, WorkerSpec};
use conserve::identity::{Identity, IdentityLimits};
use conserve::report::WorkerReport;
use conserve::router::Router;
use conserve::units::{Blocks, Timestamp, WorkerId};

use super::client::Agent;
use super::door::{Net, Request, Woken};
use super::draw::Draw;
use super::host::{Host, State};
use super::judge::Judge;
use super::plan::{FOR_PROBE, MS, Plan, SECOND, Trouble, Without};

/// What is due.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Due {
    /// A client sends the requests of a turn; the number counts its tries.
    Ask {
        talk: usize,
        turn: usize,
        attempt: u64,
    },
    Leave {
        request: usize,
    },
    Deadline {
        request: usize,
    },
    /// Something of a call to a worker; `call` tells whether it is still the request's.
    Net {
        request: usize,
        call: u64,
        what: Net,
    },
    Mishap {
        number: usize,
    },
    Back {
        host: usize,
    },
    /// The router's process goes on after a stop.
    Resume,
    Undrain {
        worker: WorkerId,
    },
    Probe {
        host: usize,
    },
}

impl Due {
    /// It happens in the router's process, so not while that is stopped.
    fn is_ours(&self) -> bool {
        match self {
            Self::Net { what, .. } => what.is_ours(),
            Self::Mishap { .. } | Self::Back { .. } | Self::Resume => false,
            Self::Ask { .. }
            | Self::Leave { .. }
            | Self::Deadline { .. }
            | Self::Undrain { .. }
            | Self::Probe { .. } => true,
        }
    }
}

/// What the watch knows of one host.
#[derive(Debug, Clone, Default)]
struct Watched {
    worker: Option<WorkerId>,
    life: u32,
    failures: u32,
    removed: bool,
}

pub struct World {
    pub plan: Arc<Plan>,
    pub without: Arc<Without>,
    pub router: Arc<Router>,
    pub dispatcher: Dispatcher,
    pub judge: Arc<Judge>,
    pub hosts: Vec<Host>,
    pub requests: Vec<Request>,
    pub agents: Vec<Agent>,
    pub woken: Woken,
    watched: Vec<Watched>,
    due: BinaryHeap<Reverse<(u64, u64)>>,
    what: HashMap<u64, Due>,
    planned: u64,
    pub at: u64,
    /// How far the router's clock is ahead.
    skew: u64,
    stopped_until: u64,
    /// What came while the router's process was stopped.
    held: VecDeque<Due>,
    /// Turns that clients will still ask for, and requests without an answer.
    pub pending: u64,
    pub history: Option<Vec<String>>,
}

const PROBE_EVERY: u64 = SECOND;
const PROBE_FAILURES: u32 = 3;

impl World {
    pub fn new(plan: Arc<Plan>, without: Arc<Without>, tell: bool) -> Self {
        let mut config = Config {
            queue_limit: plan.queue_limit,
            policy: plan.policy.into(),
            ..Config::default()
        };
        if !plan.default_gate {
            config.evict_idle = plan.evict_idle;
            config.tail_waits = true;
        }
        let dispatch = DispatchConfig {
            prefill_timeout: Duration::from_secs(20),
            first_byte_timeout: Duration::from_secs(50),
            answer_timeout: Duration::from_secs(60),
            idle_timeout: Duration::from_secs(10),
            ..DispatchConfig::default()
        };
        let judge = Arc::new(Judge::new(plan.policy, config.tail_waits));
        let identity = Arc::new(Identity::new([7; 16], IdentityLimits::default()));
        let router = Router::new(config)
            .expect("valid")
            .with_observer(identity.clone())
            .with_observer(judge.clone());
        let router = Arc::new(router);
        let dispatcher = Dispatcher::new(router.clone(), identity, dispatch).expect("valid");
        let name = |number| {
            if number < plan.prefillers {
                format!("p{number}")
            } else {
                format!("d{number}")
            }
        };
        let hosts: Vec<_> = (0..plan.prefillers + plan.decoders)
            .map(|number| Host::new(name(number), number < plan.prefillers))
            .collect();
        let mut world = Self {
            watched: vec![Watched::default(); hosts.len()],
            hosts,
            router,
            dispatcher,
            judge,
            requests: Vec::new(),
            agents: vec![Agent::default(); plan.talks.len()],
            woken: Woken::default(),
            due: BinaryHeap::new(),
            what: HashMap::new(),
            planned: 0,
            at: 0,
            skew: SECOND,
            stopped_until: 0,
            held: VecDeque::new(),
            pending: 0,
            history: tell.then(Vec::new),
            plan,
            without,
        };
        world.begin();
        world
    }

    fn begin(&mut self) {
        for host in 0..self.hosts.len() {
            self.plan_at(0, Due::Probe { host });
        }
        let plan = Arc::clone(&self.plan);
        for (talk, what) in plan.talks.iter().enumerate() {
            if !self.without.talks.contains(&talk) {
                self.pending += 1;
                self.plan_at(
                    what.starts,
                    Due::Ask {
                        talk,
                        turn: 0,
                        attempt: 0,
                    },
                );
            }
        }
        for (number, mishap) in plan.mishaps.iter().enumerate() {
            if !self.without.mishaps.contains(&number) {
                self.plan_at(mishap.at, Due::Mishap { number });
            }
        }
    }

    pub fn plan_at(&mut self, at: u64, what: Due) {
        self.planned += 1;
        self.due.push(Reverse((at.max(self.at), self.planned)));
        self.what.insert(self.planned, what);
    }

    pub fn plan_in(&mut self, span: u64, what: Due) {
        self.plan_at(self.at.saturating_add(span), what);
    }

    /// What the router's clock shows.
    pub fn now(&self) -> Timestamp {
        Timestamp(self.at + self.skew)
    }

    pub fn note(&mut self, text: impl FnOnce() -> String) {
        if let Some(history) = &mut self.history {
            let seconds = self.at as f64 / SECOND as f64;
            history.push(format!("{seconds:10.4} s  {}", text()));
        }
    }

    /// Lets everything happen.
    ///
    /// # Errors
    /// What was found wrong first.
    pub fn run(&mut self) -> Result<(), String> {
        while let Some(Reverse((at, number))) = self.due.pop() {
            let what = self.what.remove(&number).expect("planned once");
            self.at = self.at.max(at);
            if what.is_ours() && (self.at < self.stopped_until || !self.held.is_empty()) {
                if self.held.is_empty() {
                    self.plan_at(self.stopped_until, Due::Resume);
                }
                self.held.push_back(what);
            } else {
                self.happen_and_check(what)?;
            }
        }
        self.finish()
    }

    fn happen_and_check(&mut self, what: Due) -> Result<(), String> {
        self.happen(what)?;
        self.wake()?;
        self.router
            .check()
            .map_err(|wrong| format!("accounting identity: {wrong}"))?;
        self.router
            .check_progress()
            .map_err(|wrong| format!("nobody may wait for idle conversations: {wrong}"))?;
        self.judge.verdict()
    }

    /// What came while the process was stopped happens now, in the order in which it came.
    fn resume(&mut self) -> Result<(), String> {
        if self.at < self.stopped_until {
            self.plan_at(self.stopped_until, Due::Resume);
            return Ok(());
        }
        while let Some(what) = self.held.pop_front() {
            self.happen_and_check(what)?;
        }
        Ok(())
    }

    fn happen(&mut self, what: Due) -> Result<(), String> {
        match what {
            Due::Ask {
                talk,
                turn,
                attempt,
            } => self.ask(talk, turn, attempt),
            Due::Leave { request } => self.leave(request),
            Due::Deadline { request } => self.deadline(request),
            Due::Net {
                request,
                call,
                what,
            } => self.net(request, call, what),
            Due::Mishap { number } => {
                self.mishap(number);
                Ok(())
            }
            Due::Back { host } => {
                self.note(|| format!("host {host} is started again"));
                self.hosts[host].rise();
                Ok(())
            }
            Due::Undrain { worker } => {
                self.router.undrain(worker, self.now());
                Ok(())
            }
            Due::Probe { host } => {
                self.probe(host);
                Ok(())
            }
            Due::Resume => self.resume(),
        }
    }

    fn mishap(&mut self, number: usize) {
        let trouble = self.plan.mishaps[number].what.clone();
        self.note(|| format!("mishap {number}: {trouble:?}"));
        let now = self.now();
        match trouble {
            Trouble::Kill { host, vanish, back } => {
                if self.hosts[host].state == State::Up {
                    self.hosts[host].die(if vanish { State::Gone } else { State::Dead });
                    self.connections_break(host, vanish);
                    if let Some(back) = back {
                        self.plan_in(back, Due::Back { host });
                    }
                }
            }
            Trouble::Stall { host, lasts } => {
                let until = &mut self.hosts[host].stalled_until;
                *until = (*until).max(self.at + lasts);
            }
            Trouble::Deaf { host, lasts } => self.hosts[host].deaf_until = self.at + lasts,
            Trouble::Drain { host, lasts } => {
                if let Some(worker) = self.watched[host].worker {
                    self.router.drain(worker, now);
                    if let Some(lasts) = lasts {
                        self.plan_in(lasts, Due::Undrain { worker });
                    }
                }
            }
            Trouble::Remove { host } => {
                self.watched[host].removed = true;
                if let Some(worker) = self.watched[host].worker.take() {
                    self.router.lose(worker, LostReason::Asked, now);
                }
            }
            Trouble::Pause { lasts } => {
                self.stopped_until = self.stopped_until.max(self.at + lasts);
            }
            Trouble::Jump { by } => self.skew += by,
            Trouble::Sweep => drop(self.router.sweep(now)),
        }
    }

    /// As `python/conserve/proxy/watch.py` does it.
    fn probe(&mut self, host: usize) {
        if self.pending > 0 && !self.watched[host].removed {
            self.plan_in(PROBE_EVERY, Due::Probe { host });
        } else if self.watched[host].removed {
            return;
        }
        let now = self.now();
        self.router.tick(now);
        let Host {
            state,
            life,
            stalled_until,
            deaf_until,
            prefills,
            ..
        } = self.hosts[host];
        let answers = state == State::Up && self.at >= stalled_until && self.at >= deaf_until;
        if !answers {
            let Watched {
                worker, failures, ..
            } = &mut self.watched[host];
            *failures += 1;
            let Some(id) = *worker else { return };
            if state == State::Dead || *failures >= PROBE_FAILURES {
                *worker = None;
                let why = if state == State::Dead {
                    LostReason::Refused
                } else {
                    LostReason::Silent
                };
                self.router.lose(id, why, now);
                self.note(|| format!("watch: host {host} is lost"));
            } else {
                self.router.suspect(id, true, now);
            }
            return;
        }
        let live = |id: WorkerId| {
            let rows = self.router.snapshot(now).workers;
            rows.iter()
                .any(|row| row.worker.id == id && row.health != conserve::fleet::Health::Lost)
        };
        let known = self.watched[host].worker.filter(|id| live(*id));
        let worker = match known {
            Some(id) if self.watched[host].life == life => {
                self.router.suspect(id, false, now);
                id
            }
            other => {
                if let Some(id) = other {
                    self.router.lose(id, LostReason::Restarted, now);
                }
                let mut spec = WorkerSpec::new(
                    self.hosts[host].url(),
                    match (prefills, self.plan.both) {
                        (true, _) => Role::Prefiller,
                        (false, true) => Role::Both,
                        (false, false) => Role::Decoder,
                    },
                );
                spec.name = Some(self.hosts[host].name.clone());
                let id = self
                    .router
                    .join(spec, now)
                    .expect("its predecessor is lost");
                self.note(|| format!("watch: host {host} joins as {id}"));
                id
            }
        };
        self.watched[host] = Watched {
            worker: Some(worker),
            life,
            failures: 0,
            removed: false,
        };
        // Reports may be stale or say nothing, the first one excepted: without a capacity no decoder is used.
        let mut draw = Draw::of(self.plan.seed, &[FOR_PROBE, host as u64, self.at / MS]);
        if known.is_none() || draw.chance(70) {
            let report = WorkerReport {
                kv_blocks: Some(Blocks::new(self.plan.kv_blocks)),
                running: Some(draw.within(0, 9) as u32),
                kv_usage: Some(draw.within(0, 101) as f64 / 100.0),
                ..WorkerReport::default()
            };
            self.router.observe(worker, &report, now);
        }
    }

    fn finish(&mut self) -> Result<(), String> {
        if let Some(open) = self.requests.iter().position(|request| !request.is_over()) {
            return Err(format!(
                "request {open} never got an answer: {}",
                self.requests[open].describe()
            ));
        }
        self.judge.all_settled()?;
        let snapshot = self.router.snapshot(self.now());
        for row in &snapshot.workers {
            let left = (row.reserved.get(), row.running, row.queued.0);
            if left != (0, 0, 0) {
                return Err(format!(
                    "{} keeps (reserved, running, queued) = {left:?}",
                    row.worker.name
                ));
            }
        }
        if (snapshot.waiting, snapshot.waiting_tail) != (0, 0) {
            return Err("somebody still stands in the line".to_owned());
        }
        // Everything idle for long is swept; then nothing may be booked.
        self.skew += 2 * 3_600 * SECOND;
        self.router.sweep(self.now());
        let snapshot = self.router.snapshot(self.now());
        let booked: u64 = snapshot
            .workers
            .iter()
            .map(|row| u64::from(row.booked.get()))
            .sum();
        if booked != 0 || snapshot.conversations != 0 {
            return Err(format!(
                "{booked} blocks and {} conversations are left after a sweep",
                snapshot.conversations
            ));
        }
        self.judge.verdict()
    }
}
