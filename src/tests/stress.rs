//! Real threads, real contention: nothing is lost, nothing is counted twice, nobody is forgotten.

#![expect(
    clippy::disallowed_methods,
    reason = "the threads and the clock are what is tested"
)]

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::task::{Wake, Waker};
use std::time::{Duration, Instant};

use super::support::{at, fleet, key};
use crate::config::Config;
use crate::error::Rejected;
use crate::metrics::Metrics;
use crate::router::{Begin, FailReason, LostReason, Router, Ticket, Turn, TurnRequest, Usage};
use crate::units::{Blocks, Timestamp, Tokens};

const THREADS: u64 = 4;
const STEPS: u64 = 4_000;

/// Sleeps until it is called; a bell that never rings fails the test.
#[derive(Default)]
struct Bell(Mutex<bool>, Condvar);

impl Bell {
    fn wait(&self) {
        let rung = self.0.lock().expect("no panic while locked");
        let limit = Duration::from_secs(20);
        let (mut rung, timeout) = self
            .1
            .wait_timeout_while(rung, limit, |rung| !*rung)
            .expect("no panic while locked");
        assert!(!timeout.timed_out(), "a wake-up was lost");
        *rung = false;
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        *self.0.lock().expect("no panic while locked") = true;
        self.1.notify_one();
    }
}

fn wait_for(ticket: &Ticket, bell: &Arc<Bell>, now: Timestamp) -> Result<Turn, Rejected> {
    ticket.set_waker(Waker::from(Arc::clone(bell)));
    loop {
        if let Some(answer) = ticket.take(now) {
            return answer;
        }
        bell.wait();
    }
}

/// A cheap sequence that differs for each thread.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }
}

/// Ends a turn in one of the ways in which turns end.
fn end(mut turn: Turn, dice: &mut Dice, now: Timestamp) {
    let prompt = u32::try_from(dice.roll(400)).expect("small");
    match dice.roll(8) {
        0 => drop(turn),
        1 => turn.fail(FailReason::ClientGone, now),
        2 => turn.fail(FailReason::DecoderLost, now),
        3 => {
            turn.prefilled(Tokens(prompt), now);
            turn.fail(FailReason::DecoderError, now);
        }
        _ => {
            turn.prefilled(Tokens(prompt), now);
            turn.handed_over(now);
            turn.finish(
                Usage {
                    output: Some(Tokens(prompt / 4)),
                    ..Usage::default()
                },
                now,
            );
        }
    }
}

fn hammer(router: &Router, thread: u64, settled: &AtomicU64) {
    let (mut dice, bell) = (Dice(thread + 1), Arc::new(Bell::default()));
    for step in 0..STEPS {
        let now = Timestamp(step + 1);
        let name = u128::from(dice.roll(12));
        let wait = (dice.roll(4) > 0).then(|| Duration::from_secs(3600));
        let prompt_tokens = Tokens(u32::try_from(dice.roll(400)).expect("small"));
        match router.begin(
            &TurnRequest {
                key: key(name),
                prompt_tokens,
                wait,
            },
            now,
        ) {
            Ok(Begin::Started(turn)) => end(turn, &mut dice, now),
            Ok(Begin::Waiting(ticket)) if dice.roll(6) == 0 => drop(ticket),
            Ok(Begin::Waiting(ticket)) => {
                // Somebody must free something: this thread holds nothing while it waits.
                if let Ok(turn) = wait_for(&ticket, &bell, now) {
                    end(turn, &mut dice, now);
                }
            }
            Err(_) => {}
        }
        settled.fetch_add(1, Ordering::Relaxed);
        match dice.roll(40) {
            0 => drop(router.close(key(name), now)),
            1 => drop(router.relocate(key(name), now)),
            2 => router.tick(now),
            3 => drop(router.sweep(now)),
            _ => {}
        }
    }
}

#[test]
fn threads_leave_nothing_behind_and_wake_each_other() {
    let began = Instant::now();
    for (evict_idle, tail_waits) in [(true, false), (true, true), (false, true)] {
        // Room for any one prompt, so whoever waits is served once conversations are closed.
        let config = Config {
            evict_idle,
            tail_waits,
            low_watermark: 0.9,
            ..Config::default()
        };
        let metrics = Arc::new(Metrics::new());
        let router = fleet(config, 2, &[60, 50, 40]).with_observer(metrics.clone());
        let (settled, done) = (AtomicU64::new(0), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let (router, settled, done) = (&router, &settled, &done);
                scope.spawn(move || {
                    hammer(router, thread, settled);
                    done.fetch_add(1, Ordering::Relaxed);
                });
            }
            // The operator: closes idle conversations, so that nobody waits for ever.
            while done.load(Ordering::Relaxed) < THREADS && !std::thread::panicking() {
                for name in 0..12 {
                    router.close(key(name), Timestamp(STEPS));
                }
                for row in router.snapshot(at(0)).workers {
                    assert!(
                        row.booked <= row.capacity.unwrap_or(Blocks::MAX),
                        "above capacity"
                    );
                }
                std::thread::yield_now();
                assert!(began.elapsed() < Duration::from_secs(100), "stuck");
            }
        });
        assert_eq!(settled.load(Ordering::Relaxed), THREADS * STEPS);
        quiet(&router);
        let snapshot = router.snapshot(at(0));
        assert!(snapshot.totals.finished > 0 && snapshot.totals.failed > 0);
        let ended = snapshot.totals.finished + snapshot.totals.failed;
        assert_eq!(snapshot.totals.started, ended, "each turn was settled once");
        assert_eq!(
            snapshot.totals.opened, snapshot.totals.closed,
            "each conversation ended once"
        );
        assert!(
            metrics
                .render(&snapshot)
                .contains("conserve_waiting_turns{queue=\"tail\"} 0\n")
        );
    }
}

/// Nothing runs: the books agree, and when everything is closed they are empty.
fn quiet(router: &Router) {
    router.check().expect("the accounting identity");
    for name in 0..12 {
        router.close(key(name), at(9));
    }
    let snapshot = router.snapshot(at(9));
    assert_eq!(
        (
            snapshot.waiting,
            snapshot.waiting_tail,
            snapshot.conversations
        ),
        (0, 0, 0)
    );
    for row in snapshot.workers {
        assert_eq!(
            (row.booked, row.reserved, row.running),
            (Blocks::ZERO, Blocks::ZERO, 0)
        );
        assert_eq!(
            (row.queued, row.conversations),
            (Tokens(0), 0),
            "{}",
            row.worker.name
        );
    }
}

#[test]
fn a_decoder_lost_under_load_takes_nothing_with_it() {
    let router = fleet(
        Config {
            low_watermark: 0.9,
            ..Config::default()
        },
        1,
        &[90, 90],
    );
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let router = &router;
            scope.spawn(move || {
                let mut dice = Dice(thread + 77);
                for step in 0..STEPS {
                    let request = TurnRequest {
                        key: key(u128::from(dice.roll(6))),
                        prompt_tokens: Tokens(100),
                        wait: None,
                    };
                    if let Ok(Begin::Started(turn)) = router.begin(&request, Timestamp(step)) {
                        end(turn, &mut dice, Timestamp(step));
                    }
                }
            });
        }
        for round in 0..20_u64 {
            let first = router
                .snapshot(at(0))
                .workers
                .iter()
                .find(|row| row.role.decodes())
                .cloned();
            let lost = first.expect("there is always one").worker.id;
            let url = format!("http://again{round}");
            super::support::join(&router, &url, crate::fleet::Role::Decoder, Some(90));
            router.lose(lost, LostReason::Silent, at(0));
            std::thread::yield_now();
        }
    });
    quiet(&router);
}
