//! Runs that cannot go on say so.

use super::super::{Outcome, SimResult, WorkloadColumns};
use super::support::run;

fn two_that_grow() -> WorkloadColumns {
    WorkloadColumns {
        arrival_s: vec![0.0, 0.1],
        turns: vec![2, 2],
        append: vec![1_500, 500, 1_500, 500],
        output: vec![16; 4],
        gap_s: vec![1.0; 4],
        ..WorkloadColumns::default()
    }
}

#[test]
fn two_idle_conversations_that_wait_for_each_others_blocks_are_a_deadlock() {
    // 3,200 tokens hold two of 1,516, but neither can grow by 500 while the other keeps what it has.
    let scenario = |gate: &str| {
        let router = format!(r#""router": {{"low_watermark": 1.0{gate}}}"#);
        format!(r#"{{"engines": [{{"role": "both", "kv_tokens": 3200}}], {router}}}"#)
    };
    let holding = r#", "tail_waits": true, "evict_idle": false"#;
    let result = run(&scenario(holding), &two_that_grow());
    let diagnosis = &result.diagnosis;
    assert_eq!(
        (diagnosis.outcome, diagnosis.unfinished),
        (Outcome::Deadlocked, 2)
    );
    assert!(diagnosis.unstable, "its percentiles mean nothing");
    let told = diagnosis.stuck.join("\n");
    assert!(told.contains("conversation 0, turn 1: Line"), "{told}");
    assert_eq!(result.turns.len(), 4, "two that ran and two that wait");
    assert!(result.turns[3].first_token_s.is_nan());
    let growth_runs = r#", "evict_idle": false"#;
    let pins_go = r#", "tail_waits": true"#;
    for gate in ["", growth_runs, pins_go] {
        let freed = run(&scenario(gate), &two_that_grow());
        assert_eq!(
            freed.diagnosis.outcome,
            Outcome::Finished,
            "by default{gate}"
        );
    }
}

#[test]
fn a_handoff_that_waits_for_room_in_vain_is_given_up_and_counted() {
    // The first conversation keeps its KV for 50 s of its tool time; the second finds no room for 10 s.
    let columns = WorkloadColumns {
        arrival_s: vec![0.0, 1.0],
        turns: vec![2, 1],
        append: vec![3_000, 10, 3_000],
        output: vec![16; 3],
        gap_s: vec![0.0, 100.0, 0.0],
        ..WorkloadColumns::default()
    };
    let scenario = |retention: &str, wait: &str| {
        format!(
            r#"{{"engines": [{{"role": "prefiller"}},
                {{"role": "decoder", "kv_tokens": 4000, "retention": {retention}}}],
                "router": {{"gate": false}}, "remote": {{"wait_max_s": {wait}}}}}"#
        )
    };
    let ttl = r#"{"kind": "ttl", "ttl_s": 50}"#;
    let of = |result: &SimResult| (result.counters.abandoned_handoffs, result.counters.handoffs);
    let result = run(&scenario(ttl, "10"), &columns);
    assert_eq!(result.diagnosis.outcome, Outcome::Finished);
    assert_eq!(of(&result), (1, 1));
    let late = result
        .turns
        .iter()
        .find(|row| row.conversation == 1)
        .expect("it ran");
    assert!(
        late.handoff_wait_s > 9.9 && late.first_token_s > 50.0,
        "{late:?}"
    );
    assert_eq!(
        late.prefilled_tokens, 6_000,
        "once in vain and once on its decoder"
    );
    let patient = run(&scenario(ttl, "null"), &columns);
    assert_eq!(
        (patient.diagnosis.outcome, of(&patient)),
        (Outcome::Finished, (0, 2))
    );
    // With KV that is kept for good, the one that computes again stands before the one whose end would
    // free the room: hold and wait.
    let pinned = run(&scenario(r#"{"kind": "pin"}"#, "10"), &columns);
    assert_eq!(
        (pinned.diagnosis.outcome, pinned.diagnosis.unfinished),
        (Outcome::Deadlocked, 2)
    );
}

#[test]
fn a_run_past_its_horizon_is_cut_and_an_overloaded_one_is_unstable() {
    let scenario = |horizon: &str| format!(r#"{{"engines": [{{"role": "both"}}]{horizon}}}"#);
    let cut = run(&scenario(r#", "horizon_s": 0.5"#), &two_that_grow());
    assert_eq!(
        (cut.diagnosis.outcome, cut.diagnosis.finished),
        (Outcome::Horizon, 0)
    );
    assert!((cut.end_s - 0.5).abs() < 1e-12);
    let columns = |rate: f64| {
        let count = 300_u32;
        WorkloadColumns {
            arrival_s: (0..count).map(|at| f64::from(at) / rate).collect(),
            turns: vec![1; 300],
            append: vec![8_000; 300],
            output: vec![50; 300],
            gap_s: vec![0.0; 300],
            ..WorkloadColumns::default()
        }
    };
    // One takes 0.2 s of prefill and, alone, 0.4 s of decoding.
    let calm = run(&scenario(""), &columns(1.0)).diagnosis;
    assert!(!calm.unstable, "{calm:?}");
    let over = run(&scenario(""), &columns(10.0)).diagnosis;
    assert!(over.unstable && over.backlog_slope_per_s > 1.0, "{over:?}");
}

#[test]
fn a_turn_that_waits_too_long_is_refused_and_its_conversation_ends() {
    let scenario = r#"{"engines": [{"role": "both", "kv_tokens": 3200}],
        "router": {"low_watermark": 1.0, "queue_timeout_s": 5, "tail_waits": true, "evict_idle": false}}"#;
    let result = run(scenario, &two_that_grow());
    let status: Vec<_> = result.conversations.iter().map(|row| row.status).collect();
    assert_eq!(
        status,
        ["queue_timeout", "finished"],
        "the first gives up, which lets the second in"
    );
    assert_eq!(
        (result.diagnosis.refused, result.diagnosis.finished),
        (1, 1)
    );
}

#[test]
fn a_closed_loop_keeps_so_many_going() {
    let columns = WorkloadColumns {
        arrival_s: vec![0.0; 10],
        turns: vec![1; 10],
        append: vec![1_000; 10],
        output: vec![20; 10],
        gap_s: vec![0.0; 10],
        ..WorkloadColumns::default()
    };
    let result = run(
        r#"{"engines": [{"role": "both"}], "closed_loop": 3}"#,
        &columns,
    );
    let rows = &result.conversations;
    for row in rows {
        let going = rows
            .iter()
            .filter(|other| other.arrival_s <= row.arrival_s && row.arrival_s < other.done_s);
        assert!(going.count() <= 3);
    }
    assert_eq!(result.diagnosis.finished, 10);
}
