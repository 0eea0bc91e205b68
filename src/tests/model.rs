//! Random lives of a small fleet, step by step beside the naive router of `naive.rs`.
//!
//! After every step: the same answers, the same conversations, the same books, the accounting
//! identity, and no decoder above its capacity. The naive router serves its line after every step
//! whether or not anything was freed, so a lost wake-up shows as a difference.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use proptest::prelude::*;

use super::naive::{Answer, BLOCK, Naive, No, Queue, Settings};
use super::support::{at, key};
use crate::config::{Config, PolicyKind};
use crate::conversation::ConversationPhase;
use crate::error::Rejected;
use crate::event::{Event, Observer};
use crate::fleet::{Role, WorkerSpec};
use crate::router::{Begin, FailReason, LostReason, Router, Ticket, Turn, TurnRequest, Usage};
use crate::units::{BlockSize, Blocks, ConversationKey, Tokens, WorkerId};

#[derive(Debug, Clone)]
enum Step {
    Begin {
        key: u8,
        prompt: u32,
        wait: Option<u64>,
    },
    Prefilled {
        turn: usize,
        prompt: u32,
    },
    HandOver {
        turn: usize,
    },
    Finish {
        turn: usize,
        output: u32,
    },
    Fail {
        turn: usize,
        lost: bool,
    },
    Take {
        ticket: usize,
    },
    Cancel {
        ticket: usize,
    },
    Close {
        key: u8,
    },
    Relocate {
        key: u8,
    },
    Lose {
        decoder: usize,
    },
    Drain {
        decoder: usize,
        draining: bool,
    },
    Join {
        capacity: u32,
    },
    Pass {
        seconds: u64,
    },
    Sweep,
}

fn step() -> impl Strategy<Value = Step> {
    let key = 0..6_u8;
    let prompt = 0..70_u32;
    let wait = prop_oneof![Just(None), (1..6_u64).prop_map(Some)];
    prop_oneof![
        12 => (key.clone(), prompt.clone(), wait)
            .prop_map(|(key, prompt, wait)| Step::Begin { key, prompt, wait }),
        3 => (any::<usize>(), prompt).prop_map(|(turn, prompt)| Step::Prefilled { turn, prompt }),
        4 => any::<usize>().prop_map(|turn| Step::HandOver { turn }),
        6 => (any::<usize>(), 0..20_u32).prop_map(|(turn, output)| Step::Finish { turn, output }),
        3 => (any::<usize>(), any::<bool>()).prop_map(|(turn, lost)| Step::Fail { turn, lost }),
        4 => any::<usize>().prop_map(|ticket| Step::Take { ticket }),
        2 => any::<usize>().prop_map(|ticket| Step::Cancel { ticket }),
        2 => key.clone().prop_map(|key| Step::Close { key }),
        1 => key.prop_map(|key| Step::Relocate { key }),
        1 => (0..3_usize).prop_map(|decoder| Step::Lose { decoder }),
        1 => (0..3_usize, any::<bool>())
            .prop_map(|(decoder, draining)| Step::Drain { decoder, draining }),
        1 => (5..25_u32).prop_map(|capacity| Step::Join { capacity }),
        2 => (1..4_u64).prop_map(|seconds| Step::Pass { seconds }),
        1 => Just(Step::Sweep),
    ]
}

fn settings() -> impl Strategy<Value = Settings> {
    (
        proptest::option::of(20..90_u32),
        0..5_usize,
        gate(),
        2..9_u64,
    )
        .prop_map(
            |(prefill_limit, queue_limit, (evict_idle, tail_waits, evict_idle_below), idle_s)| {
                Settings {
                    prefill_limit,
                    queue_limit,
                    evict_idle,
                    tail_waits,
                    evict_idle_below,
                    idle_s,
                }
            },
        )
}

/// `evict_idle`, `tail_waits` and `evict_idle_below`: mostly as they are by default.
fn gate() -> impl Strategy<Value = (bool, bool, f64)> {
    let set = Config::default();
    prop_oneof![
        Just((set.evict_idle, set.tail_waits, set.evict_idle_below)),
        (
            any::<bool>(),
            any::<bool>(),
            prop_oneof![Just(0.0), Just(0.3), Just(1.0)]
        ),
    ]
}

/// Where the router placed conversations, in order, for the naive one to follow.
#[derive(Default)]
struct Placements(Mutex<VecDeque<(ConversationKey, WorkerId)>>);

impl Observer for Placements {
    fn on(&self, event: &Event) {
        if let Event::Placed { key, decoder, .. } = event {
            self.0
                .lock()
                .expect("no test panics in here")
                .push_back((*key, *decoder));
        }
    }
}

/// The router and the naive one, side by side.
struct Pair {
    router: Router,
    placements: Arc<Placements>,
    naive: Naive,
    /// The id of each decoder of the naive router.
    decoders: Vec<WorkerId>,
    turns: BTreeMap<usize, Turn>,
    tickets: BTreeMap<usize, Ticket>,
}

impl Pair {
    fn new(settings: Settings, capacities: &[u32]) -> Self {
        let config = Config {
            queue_limit: settings.queue_limit,
            evict_idle: settings.evict_idle,
            tail_waits: settings.tail_waits,
            evict_idle_below: settings.evict_idle_below,
            idle_timeout: Some(Duration::from_secs(settings.idle_s)),
            prefill_backlog_tokens: Tokens(settings.prefill_limit.unwrap_or(1)),
            block_size: BlockSize::new(BLOCK).expect("not zero"),
            policy: PolicyKind::Strict.into(),
            ..Config::default()
        };
        let placements = Arc::new(Placements::default());
        let router = Router::new(config)
            .expect("a valid configuration")
            .with_observer(Arc::clone(&placements) as Arc<dyn Observer>);
        if settings.prefill_limit.is_some() {
            let spec = WorkerSpec::new("http://p0", Role::Prefiller);
            router.join(spec, at(0)).expect("a valid worker");
        }
        let mut pair = Self {
            router,
            placements,
            naive: Naive::new(settings, capacities),
            decoders: Vec::new(),
            turns: BTreeMap::new(),
            tickets: BTreeMap::new(),
        };
        for capacity in capacities {
            pair.join(*capacity);
        }
        pair
    }

    fn join(&mut self, capacity: u32) {
        let url = format!("http://d{}", self.decoders.len());
        let spec = WorkerSpec::new(url, Role::Decoder).with_kv_blocks(Blocks::new(capacity.into()));
        let id = self
            .router
            .join(spec, at(self.naive.now))
            .expect("a valid worker");
        self.decoders.push(id);
    }

    fn again(&self) -> f64 {
        let snapshot = self.router.snapshot(at(self.naive.now));
        snapshot.recomputed_share.unwrap_or(0.0)
    }

    fn turn(&self, pick: usize) -> Option<usize> {
        self.turns
            .keys()
            .nth(pick % self.turns.len().max(1))
            .copied()
    }

    fn ticket(&self, pick: usize) -> Option<usize> {
        self.tickets
            .keys()
            .nth(pick % self.tickets.len().max(1))
            .copied()
    }

    #[expect(clippy::too_many_lines, reason = "one arm for each step")]
    fn run(&mut self, step: &Step) {
        let now = at(self.naive.now);
        self.naive.again = self.again();
        match *step {
            Step::Begin {
                key: name,
                prompt,
                wait,
            } => self.begin(name, prompt, wait),
            Step::Prefilled { turn, prompt } => {
                let Some(id) = self.turn(turn) else { return };
                self.turns
                    .get_mut(&id)
                    .expect("picked")
                    .prefilled(Tokens(prompt), now);
                let again = self.again();
                self.naively(|naive, oracle| naive.prefilled(id, prompt, again, oracle));
            }
            Step::HandOver { turn } => {
                let Some(id) = self.turn(turn) else { return };
                self.turns.get_mut(&id).expect("picked").handed_over(now);
                self.naively(|naive, oracle| naive.hand_over(id, oracle));
            }
            Step::Finish { turn, output } => {
                let Some(id) = self.turn(turn) else { return };
                let usage = Usage {
                    output: Some(Tokens(output)),
                    ..Usage::default()
                };
                self.turns.remove(&id).expect("picked").finish(usage, now);
                let again = self.again();
                self.naively(|naive, oracle| naive.finish(id, output, again, oracle));
            }
            Step::Fail { turn, lost } => {
                let Some(id) = self.turn(turn) else { return };
                let turn = self.turns.remove(&id).expect("picked");
                if lost {
                    turn.fail(FailReason::DecoderLost, now);
                } else {
                    drop(turn);
                }
                self.naively(|naive, oracle| naive.fail(id, lost, oracle));
            }
            Step::Take { ticket } => {
                let Some(id) = self.ticket(ticket) else {
                    return;
                };
                self.take(id);
            }
            Step::Cancel { ticket } => {
                let Some(id) = self.ticket(ticket) else {
                    return;
                };
                drop(self.tickets.remove(&id));
                self.naively(|naive, oracle| match naive.answered.remove(&id) {
                    Some(Answer::Run(turn)) => naive.fail(turn, false, oracle),
                    Some(Answer::No(_)) => {}
                    Some(Answer::Wait(_)) | None => naive.cancel(id, oracle),
                });
            }
            Step::Close { key: name } => {
                let closed = self.router.close(key(name.into()), now);
                assert_eq!(
                    closed,
                    self.naively(|naive, oracle| naive.close(name, oracle))
                );
            }
            Step::Relocate { key: name } => {
                let moved = self.router.relocate(key(name.into()), now);
                assert_eq!(
                    moved,
                    self.naively(|naive, oracle| naive.relocate(name, oracle))
                );
            }
            Step::Lose { decoder } => {
                let decoder = decoder % self.decoders.len();
                self.router
                    .lose(self.decoders[decoder], LostReason::Asked, now);
                self.naive.decoders[decoder].lost = true;
                self.naively(Naive::pump);
            }
            Step::Drain { decoder, draining } => {
                let decoder = decoder % self.decoders.len();
                let id = self.decoders[decoder];
                if draining {
                    self.router.drain(id, now);
                } else {
                    self.router.undrain(id, now);
                }
                self.naive.decoders[decoder].draining = draining;
                self.naively(Naive::pump);
            }
            Step::Join { capacity } => {
                if self.decoders.len() < 5 {
                    let lost = super::naive::Decoder {
                        capacity,
                        draining: false,
                        lost: false,
                    };
                    self.naive.decoders.push(lost);
                    self.join(capacity);
                    self.naively(Naive::pump);
                }
            }
            Step::Pass { seconds } => {
                self.naive.now += seconds;
                self.naive.again = self.again();
                self.router.tick(at(self.naive.now));
                self.naively(Naive::tick);
            }
            Step::Sweep => {
                let swept = self.router.sweep(now).conversations;
                assert_eq!(swept, self.naively(Naive::sweep));
            }
        }
    }

    /// Runs the naive router; among equals it follows the real one, in the same order.
    fn naively<R>(&mut self, work: impl FnOnce(&mut Naive, super::naive::Oracle) -> R) -> R {
        let (placements, decoders) = (&self.placements, &self.decoders);
        let oracle = |name: u8| {
            let next = placements
                .0
                .lock()
                .expect("no test panics in here")
                .pop_front();
            let (placed, decoder) = next?;
            assert_eq!(placed, key(name.into()), "the order of placements");
            decoders.iter().position(|id| *id == decoder)
        };
        work(&mut self.naive, &oracle)
    }

    fn begin(&mut self, name: u8, prompt: u32, wait: Option<u64>) {
        let wait_for = wait.map(Duration::from_secs);
        let request = TurnRequest {
            key: key(name.into()),
            prompt_tokens: Tokens(prompt),
            wait: wait_for,
        };
        let real = self.router.begin(&request, at(self.naive.now));
        let naive = self.naively(|naive, oracle| naive.begin(name, prompt, wait, oracle));
        match (real, naive) {
            (Ok(Begin::Started(turn)), Answer::Run(id)) => self.started(id, turn),
            (Ok(Begin::Waiting(ticket)), Answer::Wait(id)) => {
                self.tickets.insert(id, ticket);
            }
            (Err(rejected), Answer::No(no)) => same_refusal(&rejected, no),
            (real, naive) => panic!("the router says {real:?}, the naive one {naive:?}"),
        }
    }

    fn started(&mut self, id: usize, turn: Turn) {
        let expected = &self.naive.turns[&id];
        let route = turn.route();
        assert_eq!(
            route.decoder.id, self.decoders[expected.decoder],
            "the decoder of the turn"
        );
        let handoff = expected.places && self.naive.settings.prefill_limit.is_some();
        assert_eq!(
            route.handoff, handoff,
            "a handoff for each placement and no other turn"
        );
        self.turns.insert(id, turn);
    }

    fn take(&mut self, id: usize) {
        let real = self.tickets[&id].take(at(self.naive.now));
        match (real, self.naive.answered.remove(&id)) {
            (None, None) => {}
            (Some(Ok(turn)), Some(Answer::Run(turn_id))) => {
                self.tickets.remove(&id);
                self.started(turn_id, turn);
            }
            (Some(Err(rejected)), Some(Answer::No(no))) => {
                self.tickets.remove(&id);
                same_refusal(&rejected, no);
            }
            (real, naive) => panic!("the ticket holds {real:?}, the naive one {naive:?}"),
        }
    }

    fn compare(&self) {
        let placements = self.placements.0.lock().expect("no test panics in here");
        assert!(
            placements.is_empty(),
            "placements that the naive router did not make"
        );
        self.router.check().expect("the accounting identity");
        let progress = self.router.check_progress();
        progress.expect("nobody waits for what idle conversations hold");
        let snapshot = self.router.snapshot(at(self.naive.now));
        let newcomers = self.naive.waiting(|queue| queue == Queue::Newcomers).len();
        assert_eq!(snapshot.waiting, newcomers, "newcomers in the line");
        let tail = self.naive.waiters.len() - newcomers;
        assert_eq!(snapshot.waiting_tail, tail, "others that wait");
        for (index, id) in self.decoders.iter().enumerate() {
            let row = snapshot
                .workers
                .iter()
                .find(|row| row.worker.id == *id)
                .expect("shown");
            let naive = (self.naive.booked(index), self.naive.reserved(index));
            assert_eq!(
                (row.booked.get(), row.reserved.get()),
                naive,
                "books of {id}"
            );
            assert!(
                row.booked <= row.capacity.expect("known"),
                "{id} is above its capacity"
            );
            let here = self
                .naive
                .turns
                .values()
                .filter(|turn| turn.decoder == index)
                .count();
            assert_eq!(row.running as usize, here, "turns on {id}");
            let names = |c: &&super::naive::Conversation| c.decoder == Some(index);
            let conversations = self.naive.conversations.iter().filter(names).count();
            assert_eq!(
                usize::try_from(row.conversations),
                Ok(conversations),
                "pins of {id}"
            );
        }
        if self.naive.settings.prefill_limit.is_some() {
            assert_eq!(
                snapshot.workers[0].queued.0,
                self.naive.queued(),
                "queued prompts"
            );
        }
        for name in 0..6_u8 {
            let real = self.router.conversation(key(name.into()));
            let naive = self.naive.find(name);
            assert_eq!(real.is_some(), naive.is_some(), "conversation {name}");
            let (Some(real), Some(c)) = (real, naive) else {
                continue;
            };
            let it = &self.naive.conversations[c];
            assert_ne!(real.phase, ConversationPhase::Closed);
            assert_eq!(real.phase, it.phase, "phase of {name}");
            let decoder = it.decoder.map(|decoder| self.decoders[decoder]);
            assert_eq!(
                real.decoder.map(|worker| worker.id),
                decoder,
                "decoder of {name}"
            );
            let real = (real.turn, real.in_flight as usize, real.blocks.get());
            assert_eq!(
                real,
                (it.turn, self.naive.in_flight(c), it.blocks),
                "word of {name}"
            );
        }
    }
}

fn same_refusal(rejected: &Rejected, no: No) {
    let same = match rejected {
        Rejected::Overloaded { .. } => No::Overloaded,
        Rejected::TimedOut { .. } => No::TimedOut,
        Rejected::PromptTooLong { .. } => No::TooLong,
        Rejected::Draining => No::Draining,
        Rejected::NoWorkers => No::Workers,
        Rejected::Closed => No::Closed,
    };
    assert_eq!(same, no, "{rejected}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases.max(400), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn router_agrees_with_the_naive_one(
        settings in settings(),
        capacities in proptest::collection::vec(5..25_u32, 1..4),
        steps in proptest::collection::vec(step(), 1..80),
    ) {
        let mut pair = Pair::new(settings, &capacities);
        for step in &steps {
            pair.run(step);
            pair.compare();
        }
        // Everything is given up: nothing stays but what pinned conversations hold.
        pair.tickets.clear();
        pair.turns.clear();
        pair.router.check().expect("the accounting identity");
        for row in pair.router.snapshot(at(pair.naive.now)).workers {
            prop_assert_eq!((row.reserved, row.running, row.queued), (Blocks::ZERO, 0, Tokens(0)));
        }
    }
}
