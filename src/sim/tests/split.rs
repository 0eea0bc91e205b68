//! What the time to the first answer was spent on: the parts add up to it, and each is what its name says.

use super::super::{ConversationRow, SimResult, WorkloadColumns};
use super::fuzz;
use super::support::{Draw, agents, close, run, run_seeded};

const PARTS: usize = ConversationRow::PARTS.len();

fn part(row: &ConversationRow, name: &str) -> f64 {
    let at = ConversationRow::PARTS.iter().position(|part| *part == name);
    row.ttfet_parts_s[at.expect("a part of this name")]
}

/// Whoever was answered is told where all of the time went; who was not is told nothing.
pub(super) fn adds_up(result: &SimResult, about: &str) {
    for (at, row) in result.conversations.iter().enumerate() {
        let what = format!("{about}, conversation {at}: {row:?}");
        close(
            row.ttfet_parts_s.iter().sum(),
            row.ttfet_s,
            1e-12 * row.arrival_s.max(1e3),
            &what,
        );
        let least = row.ttfet_parts_s.iter().copied().fold(0.0, f64::min);
        assert!(least >= -1e-9, "{what}");
    }
}

/// In how many conversations the sum lacks something if a part is left out.
fn needed(result: &SimResult, count: &mut [usize; PARTS]) {
    for row in result
        .conversations
        .iter()
        .filter(|row| row.ttfet_s.is_finite())
    {
        let sum: f64 = row.ttfet_parts_s.iter().sum();
        for (count, part) in count.iter_mut().zip(row.ttfet_parts_s) {
            *count += usize::from((sum - part - row.ttfet_s).abs() > 1e-6);
        }
    }
}

#[test]
fn the_parts_add_up_in_random_scenarios_and_none_can_be_left_out() {
    let mut count = [0; PARTS];
    let (mut preemptions, mut evicted, mut fetches, mut handoffs) = (0, 0, 0, 0);
    for seed in 10_000..10_040 {
        let mut draw = Draw(seed);
        let scenario = fuzz::scenario(&mut draw);
        let mut columns = agents(draw.within(4, 24), draw.scale(0.3, 12.0), seed);
        columns.flip = columns.append.iter().map(|_| draw.unit() < 0.1).collect();
        let flip = r#""flip": {"started_s": [0.5, 3.0], "ended_s": [2.0, 9.0], "wait": "drain"}"#;
        for fast in [true, false] {
            let text = format!("{scenario}, {flip}, \"checks\": true, \"fast_forward\": {fast}}}");
            let result = run_seeded(&text, &columns, seed);
            adds_up(&result, &format!("seed {seed}, fast_forward {fast}"));
            needed(&result, &mut count);
            preemptions += result
                .engines
                .iter()
                .map(|row| row.preemptions)
                .sum::<u64>();
            evicted += result
                .engines
                .iter()
                .map(|row| row.evicted_tokens)
                .sum::<u64>();
            fetches += result.counters.fetches;
            handoffs += result.counters.handoffs;
        }
    }
    assert!(
        preemptions.min(evicted).min(fetches).min(handoffs) > 0,
        "nothing is proved of what did not happen: {preemptions} {evicted} {fetches} {handoffs}"
    );
    for (name, count) in ConversationRow::PARTS.iter().zip(count) {
        assert!(count > 0, "{name} is needed nowhere");
    }
}

/// a40: 11 us a token, 3.5 ns a pair, 1.19 GB of weights and 114,688 bytes a token at 500 GB/s, 5 ms a step.
fn prefill(new: f64, past: f64) -> f64 {
    (11e-6 * new).max(1.19e9 / 500e9) + 3.5e-9 * new * (past + new / 2.0) + 5e-3
}

fn decode(context: f64) -> f64 {
    1.19e9 / 500e9 + 114_688.0 / 500e9 * context + 5e-3
}

#[test]
fn each_part_of_a_conversation_with_a_handoff_is_the_closed_form() {
    let columns = WorkloadColumns {
        gap_s: vec![0.0, 1.5],
        ..WorkloadColumns::single(&[(1_000, 3), (300, 10)])
    };
    let result = run(
        r#"{"engines": [{"role": "prefiller"}, {"role": "decoder"}],
            "link": {"bytes_per_s": 1e9, "latency_s": 0.002, "overlap": false}}"#,
        &columns,
    );
    let row = &result.conversations[0];
    // 1,002 tokens are computed; 62 whole blocks of them are cached.
    let appended = 1_303.0 - 992.0;
    let expected = [
        ("tool", 1.5),
        ("network", 2.0 * 0.001),
        ("slept", 0.0),
        ("line", 0.0),
        ("engine_queue", 0.0),
        ("compute", prefill(1_000.0, 0.0) + prefill(appended, 992.0)),
        ("handoff_wait", 0.0),
        ("transfer", 0.002 + 1_000.0 * 114_688.0 / 1e9),
        ("decoder_queue", 0.0),
        ("decode", decode(999.0) + decode(1_000.0) + decode(1_001.0)),
    ];
    for (name, seconds) in expected {
        close(part(row, name), seconds, 1e-12, name);
    }
    adds_up(&result, "one handoff");
}

#[test]
fn who_comes_while_a_step_runs_waits_for_its_end_where_the_work_is() {
    // The second prompt comes while the first one is computed, its KV while the first conversation decodes.
    let columns = WorkloadColumns {
        arrival_s: vec![0.0, 0.01],
        turns: vec![1, 1],
        append: vec![2_000, 500],
        output: vec![200, 2],
        gap_s: vec![0.0, 0.0],
        ..WorkloadColumns::default()
    };
    let result = run(
        r#"{"engines": [{"role": "prefiller", "max_num_batched_tokens": 2000}, {"role": "decoder"}],
            "link": {"bytes_per_s": 1e10, "latency_s": 0.002, "overlap": false}}"#,
        &columns,
    );
    let row = &result.conversations[1];
    close(
        part(row, "engine_queue"),
        0.001 + prefill(2_000.0, 0.0) - 0.011,
        1e-12,
        "until the first prompt is done",
    );
    close(
        part(row, "compute"),
        prefill(500.0, 0.0),
        1e-12,
        "its own prompt",
    );
    let queued = part(row, "decoder_queue");
    assert!(
        queued > 1e-6 && queued < decode(2_200.0),
        "no longer than a step of the other one: {queued}"
    );
    let both = decode(499.0) + 114_688.0 / 500e9 * 2_200.0;
    let step = part(row, "decode");
    assert!(
        step > decode(499.0) && step < both,
        "a step of both: {step}"
    );
}

#[test]
fn what_a_preemption_costs_is_a_queue_and_a_prompt_again() {
    // Two contexts grow until only one fits: the newer one gives way in its first turn and computes it again.
    let columns = WorkloadColumns {
        arrival_s: vec![0.0, 0.0],
        turns: vec![1, 2],
        append: vec![3_000, 3_000, 10],
        output: vec![600, 600, 2],
        gap_s: vec![0.0, 0.0, 0.0],
        ..WorkloadColumns::default()
    };
    let result = run(
        r#"{"engines": [{"role": "both", "kv_tokens": 6400, "max_num_batched_tokens": 8192}], "router": {"gate": false}}"#,
        &columns,
    );
    adds_up(&result, "a preemption");
    let turn = result
        .turns
        .iter()
        .find(|row| row.conversation == 1 && row.turn == 0);
    let turn = turn.expect("it ended");
    assert_eq!(turn.preemptions, 1, "{turn:?}");
    let row = &result.conversations[1];
    let waited = part(row, "engine_queue");
    assert!(waited > 1.0, "until the other one is done: {waited}");
    let once = turn.first_token_s - turn.prefill_start_s;
    assert!(
        part(row, "compute") > once + prefill(1_500.0, 0.0),
        "its context again: {row:?}"
    );
}
