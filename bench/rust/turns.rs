//! What does turn n cost, on one thread and on two, beside the two obvious ways to write it?
//!
//! Rounds of all contestants alternate, so that noise of the machine meets all of them; each round
//! is a fixed time on one thread and then on two. `--test` runs one short round. On a busy machine
//! two threads rarely run at once: then only the one-thread figures mean something. On two threads
//! each has half of the conversations, once the older and the newer half, and once every other one
//! (`neighbours`): those lie side by side in memory, the worst case for the caches.

#![allow(
    missing_docs,
    clippy::disallowed_methods,
    clippy::disallowed_macros,
    reason = "a program"
)]
#![allow(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss
)]

mod common;

use std::sync::Arc;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use common::{Metered, OUTPUT, OneLock, Routed, Sharded, Turns, key, prompt, quantile};
use conserve::metrics::Metrics;

const CONVERSATIONS: u64 = 16_384;
const BATCH: u64 = 64;

struct Measured {
    pairs: u64,
    seconds: f64,
    /// Nanoseconds of a batch of turns, each batch of each thread.
    batches: Vec<u64>,
}

fn measure(turns: &dyn Turns, threads: u64, interleaved: bool, span: Duration) -> Measured {
    let barrier = Barrier::new(threads as usize);
    let results: Vec<(u64, f64, Vec<u64>)> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|thread| {
                let barrier = &barrier;
                scope.spawn(move || {
                    // The same number for each thread, however many run: the caches hold the same.
                    let own = CONVERSATIONS / 2;
                    let (mut step, mut batches) = (0_u64, Vec::with_capacity(1 << 20));
                    barrier.wait();
                    let start = Instant::now();
                    let mut before = start;
                    while before - start < span {
                        for _ in 0..BATCH {
                            // A stride through its own conversations: no order that caches like.
                            let own_pick = step.wrapping_mul(7_919) % own;
                            let pick = if interleaved {
                                own_pick * 2 + thread
                            } else {
                                own_pick + thread * own
                            };
                            turns.turn(key(pick), prompt(step / own + own_pick), OUTPUT, step + 2);
                            step += 1;
                        }
                        let after = Instant::now();
                        batches.push((after - before).as_nanos() as u64);
                        before = after;
                    }
                    (step, (before - start).as_secs_f64(), batches)
                })
            })
            .collect();
        workers
            .into_iter()
            .map(|worker| worker.join().expect("no panic"))
            .collect()
    });
    let pairs = results.iter().map(|(pairs, ..)| pairs).sum();
    let seconds = results
        .iter()
        .map(|(_, seconds, _)| *seconds)
        .fold(0.0, f64::max);
    Measured {
        pairs,
        seconds,
        batches: results.into_iter().flat_map(|(.., b)| b).collect(),
    }
}

fn main() {
    let test = std::env::args().any(|argument| argument == "--test");
    let number = |name: &str, otherwise: u64| {
        let mut arguments = std::env::args().skip_while(|argument| argument != name);
        arguments
            .nth(1)
            .map_or(otherwise, |value| value.parse().expect("a number"))
    };
    let rounds = number("--rounds", if test { 1 } else { 15 });
    let span = Duration::from_millis(number("--span-ms", if test { 10 } else { 250 }));
    let metered = common::router(common::DECODERS).with_observer(Arc::new(Metrics::new()));
    let contestants: Vec<Box<dyn Turns>> = vec![
        Box::new(common::router(common::DECODERS)),
        Box::new(Routed(common::router(common::DECODERS))),
        Box::new(Metered(metered)),
        Box::new(OneLock::default()),
        Box::new(Sharded::default()),
    ];
    let mut result = common::provenance("turns");
    for turns in &contestants {
        for pick in 0..CONVERSATIONS {
            turns.turn(key(pick), prompt(0), OUTPUT, 1);
        }
        measure(&**turns, 1, false, span / 4);
    }
    let mut medians = vec![(Vec::new(), Vec::new(), Vec::new()); contestants.len()];
    let mut all = vec![Vec::new(); contestants.len()];
    for _ in 0..rounds {
        for (index, turns) in contestants.iter().enumerate() {
            let mut one = measure(&**turns, 1, false, span);
            let two = measure(&**turns, 2, false, span);
            let mixed = measure(&**turns, 2, true, span);
            one.batches.sort_unstable();
            medians[index]
                .0
                .push(quantile(&one.batches, 0.5) as f64 / BATCH as f64);
            let rate = |measured: &Measured| measured.pairs as f64 / measured.seconds;
            medians[index].1.push(rate(&two) / rate(&one));
            medians[index].2.push(rate(&mixed) / rate(&one));
            all[index].extend(one.batches);
        }
    }
    for (index, turns) in contestants.iter().enumerate() {
        let (one, wall, mixed) = &mut medians[index];
        for values in [&mut *one, &mut *wall, &mut *mixed] {
            values.sort_by(f64::total_cmp);
        }
        all[index].sort_unstable();
        let spread = |values: &[f64]| {
            let round = |value: f64| (value * 100.0).round() / 100.0;
            let last = values.len() - 1;
            serde_json::json!({
                "min": round(values[0]), "median": round(values[last / 2]), "max": round(values[last]),
            })
        };
        let per_turn = |q| quantile(&all[index], q) as f64 / BATCH as f64;
        result.insert(
            turns.name().into(),
            serde_json::json!({
                "begin_finish_ns_one_thread": spread(one),
                "two_thread_speedup": spread(wall),
                "two_thread_speedup_neighbours": spread(mixed),
                "batch_mean_ns": { "p50": per_turn(0.5), "p99": per_turn(0.99), "batches": all[index].len() },
            }),
        );
    }
    result.insert("rounds".into(), rounds.into());
    result.insert("conversations".into(), CONVERSATIONS.into());
    result.insert("decoders".into(), common::DECODERS.into());
    if test {
        println!(
            "{}",
            serde_json::to_string_pretty(&result).expect("plain values")
        );
    } else {
        common::write_result("turns", &result);
    }
}
