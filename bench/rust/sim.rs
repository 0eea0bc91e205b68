//! How long does a simulated run take, with runs of equal steps advanced at once and step by step?
//!
//! Two workloads of the size that the project promises: 256 conversations of 5 turns at saturation (the
//! paper's shape: 16,000 tokens first, then 67 at a time), and 537 long agent sessions of 65 turns. Five runs
//! each, the shortest and the longest are shown. `--test` runs each once.

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

use std::time::Instant;

use conserve::sim::{Scenario, Workload, WorkloadColumns, simulate};

/// splitmix64 in 0..1.
fn unit(state: &mut u64) -> f64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut mixed = *state;
    mixed = (mixed ^ mixed >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^= mixed >> 31;
    (mixed >> 11) as f64 / (1_u64 << 53) as f64
}

struct Shape {
    conversations: u32,
    turns: u32,
    rate_per_s: f64,
    first: f64,
    append: f64,
    output: f64,
    gap_s: f64,
}

/// Exponential around each mean.
fn workload(shape: &Shape) -> Workload {
    let (mut state, mut at) = (7, 0.0);
    let mut draw = |mean: f64| -(1.0 - unit(&mut state)).ln() * mean;
    let mut columns = WorkloadColumns::default();
    for _ in 0..shape.conversations {
        at += draw(1.0 / shape.rate_per_s);
        columns.arrival_s.push(at);
        columns.turns.push(shape.turns);
        for turn in 0..shape.turns {
            let append = if turn == 0 {
                shape.first
            } else {
                draw(shape.append)
            };
            columns.append.push(1 + append as u32);
            columns.output.push(1 + draw(shape.output) as u32);
            columns.gap_s.push(draw(shape.gap_s));
        }
    }
    Workload::new(&columns).expect("drawn within the ranges")
}

fn main() {
    let once = std::env::args().any(|argument| argument == "--test");
    let paper = Shape {
        conversations: 256,
        turns: 5,
        rate_per_s: 1.634,
        first: 16_000.0,
        append: 67.0,
        output: 60.0,
        gap_s: 0.0,
    };
    let sessions = Shape {
        conversations: 537,
        turns: 65,
        rate_per_s: 0.05,
        first: 24_800.0,
        append: 900.0,
        output: 218.0,
        gap_s: 7.0,
    };
    let roles = [
        ("1P3D", ["prefiller", "decoder", "decoder", "decoder"]),
        ("4D", ["decoder"; 4]),
    ];
    for (name, shape) in [("256 x 5 turns", paper), ("537 x 65 turns", sessions)] {
        let workload = workload(&shape);
        for (fleet, roles) in roles {
            for fast in [true, false] {
                let engines =
                    roles.map(|role| format!(r#"{{"role": "{role}", "kv_tokens": 1000000}}"#));
                let text = format!(
                    r#"{{"engines": [{}], "fast_forward": {fast}, "router": {{"evict_idle": true}}}}"#,
                    engines.join(", ")
                );
                let scenario = Scenario::from_json(&text).expect("valid");
                let mut spans = Vec::new();
                let mut events = 0;
                for _ in 0..if once { 1 } else { 5 } {
                    let begun = Instant::now();
                    let result = simulate(&scenario, &workload, 1).expect("it runs");
                    spans.push(begun.elapsed().as_secs_f64());
                    events = result.counters.events;
                    assert_eq!(result.diagnosis.unfinished, 0);
                }
                let least = spans.iter().copied().fold(f64::INFINITY, f64::min);
                let most = spans.iter().copied().fold(0.0, f64::max);
                let how = if fast { "at once" } else { "step by step" };
                println!(
                    "{name:>15}  {fleet}  {how:>12}  {least:8.3} to {most:.3} s  {events:>9} events"
                );
            }
        }
    }
}
