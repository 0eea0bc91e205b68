//! Power by hand, and what a cap does.

use super::super::{SimResult, WorkloadColumns};
use super::support::{close, run};

fn with(power: &str, columns: &WorkloadColumns) -> SimResult {
    run(
        &format!(r#"{{"engines": [{{"role": "both", "power": {{{power}}}}}]}}"#),
        columns,
    )
}

fn mean_w(result: &SimResult, phase: usize) -> f64 {
    result.engines[0].joules[phase] / result.engines[0].seconds[phase]
}

#[test]
fn a_step_draws_what_its_parts_draw() {
    let watts = r#""idle_w": 75, "compute_w": 225, "memory_w": 130, "overhead_w": 40"#;
    let result = with(watts, &WorkloadColumns::single(&[(2_000, 2)]));
    let row = &result.engines[0];
    // Prefill: 22 ms + 3.5 ns * 2000 * 1000 = 7 ms of compute, 5 ms of host.
    close(
        row.joules[0],
        75.0 * 0.034 + 225.0 * 0.029 + 40.0 * 0.005,
        1e-9,
        "prefill",
    );
    // One decode: weights and 2,000 tokens of context from memory.
    let memory = 1.19e9 / 500e9 + 2_000.0 * 114_688.0 / 500e9;
    close(
        row.joules[2],
        75.0 * (memory + 0.005) + 130.0 * memory + 40.0 * 0.005,
        1e-9,
        "decode",
    );
}

#[test]
fn a_cap_holds_on_average_and_slows_prompts_more_than_decodes() {
    let columns = WorkloadColumns::single(&[(200_000, 2_000)]);
    let slow = |cap: f64| {
        let capped = with(&format!(r#""memory_w": 200, "cap_w": {cap}"#), &columns);
        (
            capped.engines[0].seconds,
            mean_w(&capped, 0),
            mean_w(&capped, 2),
        )
    };
    let (free, ..) = slow(1_000.0);
    let (capped, prefill_w, decode_w) = slow(200.0);
    // The first window runs at full clock; over 50 s that is nothing.
    assert!(
        prefill_w < 202.0 && decode_w < 202.0,
        "{prefill_w} and {decode_w} W"
    );
    assert!(
        prefill_w > 195.0,
        "the clock is not lower than it must be: {prefill_w} W"
    );
    let (prompts, decodes) = (capped[0] / free[0], capped[2] / free[2]);
    assert!(
        prompts > 1.3 && decodes < 1.1,
        "{prompts} and {decodes} times as long"
    );
}

#[test]
fn a_cap_for_decodes_leaves_prompts_alone() {
    let columns = WorkloadColumns::single(&[(50_000, 3_000)]);
    let free = with(r#""memory_w": 225"#, &columns);
    let capped = with(r#""memory_w": 225, "decode_cap_w": 200"#, &columns);
    let seconds = |result: &SimResult, phase: usize| result.engines[0].seconds[phase];
    close(seconds(&capped, 0), seconds(&free, 0), 1e-9, "prefill");
    assert!(mean_w(&free, 2) > 250.0 && mean_w(&capped, 2) < 205.0);
    assert!(
        seconds(&capped, 2) < 1.06 * seconds(&free, 2),
        "memory hardly needs the clock"
    );
}

#[test]
fn an_idle_engine_is_parked_after_a_while() {
    let columns = WorkloadColumns {
        gap_s: vec![0.0, 100.0],
        ..WorkloadColumns::single(&[(1_000, 10), (10, 10)])
    };
    let result = with(r#""park_after_s": 20, "parked_w": 30"#, &columns);
    let row = &result.engines[0];
    close(
        row.seconds[4],
        80.001,
        1e-9,
        "parked: the tool's 100 s and the way, less 20 s",
    );
    close(row.joules[4], 30.0 * row.seconds[4], 1e-9, "30 W");
}

#[test]
fn a_fixed_clock_trades_time_for_energy() {
    let columns = WorkloadColumns::single(&[(20_000, 500)]);
    let (full, half) = (with("", &columns), with(r#""clock": 0.5"#, &columns));
    assert!(half.end_s > full.end_s);
    let above = |result: &SimResult| {
        let row = &result.engines[0];
        row.joules.iter().sum::<f64>() - 75.0 * row.seconds.iter().sum::<f64>()
    };
    assert!(above(&half) < above(&full), "fewer joules above idle");
}
