//! Deterministic fault simulation: the real router and dispatcher, a simulated network, virtual time, one seed for all.
//!
//!     cargo test --test simulation -- --seeds 10000
//!     cargo test --test simulation -- --seed 4711        # one run, with its history
//!
//! A seed that fails is made small and printed; add it to `regressions.txt` together with the mend. See README.md.

#![expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    reason = "simulated counts and nanoseconds are far below 2^52"
)]
#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_macros,
    reason = "a program of its own: only the core does without arguments, clock and output"
)]

mod client;
mod door;
mod draw;
mod host;
mod judge;
mod plan;
mod shrink;
mod world;

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use plan::{Plan, Without};

const REGRESSIONS: &str = include_str!("regressions.txt");
const USAGE: &str = "usage: simulation [--seeds COUNT] [--first SEED] [--jobs COUNT] | --seed SEED";

struct Options {
    seeds: u64,
    first: u64,
    jobs: usize,
    only: Option<u64>,
}

fn options() -> Result<Options, String> {
    let jobs = std::thread::available_parallelism().map_or(1, usize::from);
    let mut options = Options {
        seeds: 200,
        first: 1,
        jobs,
        only: None,
    };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut number = || -> Result<u64, String> {
            let value = words.next().ok_or(format!("{word} needs a number"))?;
            value
                .parse()
                .map_err(|_| format!("{word} is {value:?}; it must be a whole number"))
        };
        match word.as_str() {
            "--seeds" => options.seeds = number()?,
            "--first" => options.first = number()?,
            "--jobs" => {
                options.jobs =
                    usize::try_from(number()?.max(1)).map_err(|_| "--jobs is too large")?;
            }
            "--seed" => options.only = Some(number()?),
            // What `cargo test` itself may pass to every test program.
            "--nocapture" | "--quiet" | "-q" | "--include-ignored" => {}
            _ => return Err(format!("{word:?} is not an option; {USAGE}")),
        }
    }
    Ok(options)
}

fn main() -> ExitCode {
    let options = match options() {
        Ok(options) => options,
        Err(problem) => {
            eprintln!("{problem}");
            return ExitCode::from(2);
        }
    };
    if let Some(seed) = options.only {
        return tell(seed);
    }
    let seeds: Vec<u64> = REGRESSIONS
        .lines()
        .filter_map(|line| line.split('#').next()?.trim().parse().ok())
        .chain(options.first..options.first.saturating_add(options.seeds))
        .collect();
    // A panic is a finding; its message is told with the seed.
    std::panic::set_hook(Box::new(|_| {}));
    let began = Instant::now();
    let failed = search(&seeds, options.jobs, began);
    drop(std::panic::take_hook());
    let took = began.elapsed().as_secs_f64();
    match failed {
        None => {
            println!(
                "{} seeds, every answer right or a named error, nothing left booked; {took:.1} s",
                seeds.len()
            );
            ExitCode::SUCCESS
        }
        Some(seed) => tell(seed),
    }
}

/// The first seed, in their order, that fails.
fn search(seeds: &[u64], jobs: usize, began: Instant) -> Option<u64> {
    let (next, done) = (AtomicU64::new(0), AtomicU64::new(0));
    let worst = AtomicU64::new(u64::MAX);
    std::thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= (seeds.len() as u64).min(worst.load(Ordering::Relaxed)) {
                        return;
                    }
                    if shrink::run(
                        &Arc::new(Plan::of(seeds[number as usize])),
                        &Arc::default(),
                        false,
                    )
                    .wrong
                    .is_some()
                    {
                        worst.fetch_min(number, Ordering::Relaxed);
                    }
                    let done = done.fetch_add(1, Ordering::Relaxed) + 1;
                    if done.is_multiple_of(2_000) {
                        let left = (seeds.len() as u64 - done) as f64 / done as f64
                            * began.elapsed().as_secs_f64();
                        eprintln!("{done} of {} seeds, about {left:.0} s left", seeds.len());
                    }
                }
            });
        }
    });
    seeds
        .get(usize::try_from(worst.into_inner()).ok()?)
        .copied()
}

/// Runs one seed; if it fails, as small as it can be made, with all that happened.
fn tell(seed: u64) -> ExitCode {
    let plan = Arc::new(Plan::of(seed));
    let fails = shrink::run(&plan, &Arc::default(), false).wrong.is_some();
    let without = Arc::new(if fails {
        shrink::smallest(&plan)
    } else {
        Without::default()
    });
    let ran = shrink::run(&plan, &without, true);
    println!(
        "seed {seed}: {}, {} prefillers, {} decoders of {} blocks, {} % of calls faulty, queue of {}",
        plan.policy.as_str(),
        plan.prefillers,
        plan.decoders,
        plan.kv_blocks,
        plan.faulty_percent,
        plan.queue_limit
    );
    for line in &ran.history {
        println!("{line}");
    }
    if let Some(wrong) = ran.wrong {
        println!(
            "seed {seed} fails: {wrong}\nagain: cargo test --test simulation -- --seed {seed}"
        );
        return ExitCode::FAILURE;
    }
    println!("seed {seed}: nothing wrong");
    ExitCode::SUCCESS
}
