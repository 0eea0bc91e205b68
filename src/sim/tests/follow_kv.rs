//! `follow-kv` with its parts switched off is a policy that is known; with one on, it does what that part is for.

use super::super::{Outcome, SimResult, WorkloadColumns};
use super::support::{agents, run};

const BOTH: &str = r#"{"role": "both", "kv_tokens": 60000}"#;

fn fleet(engines: &[&str], policy: &str, more: &str) -> String {
    format!(
        r#"{{"engines": [{}], "policy": {{"name": "{policy}"}}{more}}}"#,
        engines.join(", ")
    )
}

/// Turns and conversations to the last bit.
fn rows(result: &SimResult) -> String {
    format!("{:?} {:?}", result.turns, result.conversations)
}

/// Enough of them that blocks run out and prompts queue.
fn crowd(seed: u64) -> WorkloadColumns {
    agents(60, 6.0, seed)
}

const RUN: &str = r#", "router": {"tail_waits": false, "kv_events": true, "evict_idle": true, "evict_idle_below": 0.1}"#;

#[test]
fn with_every_part_off_it_is_collocated_exactly() {
    let off = "follow-kv(handoff=never, home_fuller=0, afresh_from=inf, move_share=0, thrash=inf)";
    for seed in 1..4 {
        for router in ["", RUN] {
            let columns = crowd(seed);
            let ours = run(&fleet(&[BOTH; 3], off, router), &columns);
            let theirs = run(&fleet(&[BOTH; 3], "collocated", router), &columns);
            assert_eq!(rows(&ours), rows(&theirs), "seed {seed}, router {router:?}");
        }
    }
}

#[test]
fn with_the_prefiller_forced_and_moves_off_it_is_strict_exactly() {
    let engines = [
        r#"{"role": "prefiller"}"#,
        r#"{"role": "decoder", "kv_tokens": 60000}"#,
        r#"{"role": "decoder", "kv_tokens": 60000}"#,
    ];
    for handoff in ["roles", "always"] {
        let forced =
            format!("follow-kv(handoff={handoff}, afresh_from=inf, move_share=0, thrash=inf)");
        for seed in 1..4 {
            let columns = crowd(seed);
            let ours = run(&fleet(&engines, &forced, RUN), &columns);
            let theirs = run(&fleet(&engines, "strict", RUN), &columns);
            assert_eq!(rows(&ours), rows(&theirs), "seed {seed}, {handoff}");
            assert!(ours.counters.handoffs > 0);
        }
    }
}

/// Nobody ever computes for another, so nobody is known to be faster than home.
#[test]
fn where_every_worker_does_both_strict_is_collocated_exactly() {
    for seed in 1..4 {
        for router in ["", RUN] {
            let columns = crowd(seed);
            let strict = run(&fleet(&[BOTH; 3], "strict", router), &columns);
            let collocated = run(&fleet(&[BOTH; 3], "collocated", router), &columns);
            assert_eq!(
                rows(&strict),
                rows(&collocated),
                "seed {seed}, router {router:?}"
            );
        }
    }
}

/// Not every worker that does both can hand over.
#[test]
fn where_every_worker_does_both_nothing_is_handed_over_unless_asked_for() {
    for seed in 1..4 {
        let usual = run(&fleet(&[BOTH; 3], "follow-kv", RUN), &crowd(seed));
        assert_eq!(usual.counters.handoffs, 0, "seed {seed}");
    }
}

#[test]
fn over_an_infinitely_slow_link_nothing_is_handed_over() {
    let columns = crowd(5);
    let engines = [r#"{"role": "prefiller"}"#, BOTH, BOTH, BOTH];
    let handoffs = |policy: &str| {
        run(&fleet(&engines, policy, RUN), &columns)
            .counters
            .handoffs
    };
    assert_eq!(
        handoffs("follow-kv(handoff=cheaper, link_ms_per_token=inf)"),
        0
    );
    assert!(
        handoffs("follow-kv(handoff=cheaper)") > 0,
        "else the relation says nothing"
    );
}

#[test]
fn nobody_waits_for_thrash_that_no_share_can_pass() {
    let columns = crowd(6);
    let small = r#"{"role": "both", "kv_tokens": 16000}"#;
    let waits = |policy: &str| {
        let router = r#", "router": {"tail_waits": false, "kv_events": true, "evict_idle": true}"#;
        run(&fleet(&[small; 2], policy, router), &columns)
            .counters
            .waits_thrash
    };
    assert_eq!(waits("follow-kv(thrash=1.01)"), 0);
    assert!(
        waits("follow-kv(thrash=0.05, thrash_fill=0.5)") > 0,
        "else the relation says nothing"
    );
}

#[test]
fn who_waits_for_thrash_to_end_is_admitted() {
    let small = r#"{"role": "both", "kv_tokens": 16000}"#;
    let router = r#", "router": {"tail_waits": false, "kv_events": true, "evict_idle": true}"#;
    let eager = "follow-kv(thrash=0.05, thrash_fill=0.5)";
    for seed in 6..9 {
        let columns = crowd(seed);
        let result = run(&fleet(&[small; 2], eager, router), &columns);
        assert!(
            result.counters.waits_thrash > 0,
            "else nobody waits, seed {seed}"
        );
        assert_eq!(result.diagnosis.outcome, Outcome::Finished, "seed {seed}");
        assert_eq!(
            result.diagnosis.finished,
            columns.turns.len(),
            "seed {seed}"
        );
    }
}

#[test]
fn a_place_costs_one_handoff_at_most() {
    for seed in 1..4 {
        let result = run(
            &fleet(&[BOTH; 3], "follow-kv(handoff=cheaper)", RUN),
            &crowd(seed),
        );
        let counted = &result.counters;
        let places = counted.placed_local
            + counted.placed_handoff
            + counted.placed_afresh
            + counted.placed_moved;
        assert!(counted.handoffs <= counted.placed_handoff + counted.placed_afresh);
        let first = u64::try_from(result.conversations.len()).expect("few");
        assert!(places >= first, "each conversation is placed once");
        let handed = result
            .conversations
            .iter()
            .map(|row| u64::from(row.handoffs));
        assert_eq!(handed.sum::<u64>(), counted.handoffs);
    }
}

#[test]
fn news_of_evictions_that_come_late_change_only_what_is_known() {
    let columns = crowd(7);
    let with = |delay: &str| {
        let router = format!(
            r#", "router": {{"tail_waits": false, "kv_events": true, "evict_idle": true, "report_delay_s": {delay}}}"#
        );
        run(&fleet(&[BOTH; 3], "follow-kv", &router), &columns)
    };
    let (prompt, late) = (with("0"), with("5"));
    let generated =
        |result: &SimResult| -> u64 { result.engines.iter().map(|row| row.generated_tokens).sum() };
    assert_eq!(generated(&prompt), generated(&late), "every token once");
    assert_eq!(rows(&prompt), rows(&with("0")), "the same again");
}

#[test]
fn a_prompt_as_long_as_the_engine_runs_once_nobody_builds_on_the_shared_head() {
    // The first leaves its head shared and idle; the second, with a shorter head, needs every block.
    let columns = WorkloadColumns {
        arrival_s: vec![0.0, 30.0],
        turns: vec![1, 1],
        append: vec![4_000, 7_900],
        output: vec![10, 10],
        gap_s: vec![0.0, 0.0],
        prefix_id: vec![0, 0],
        prefix_tokens: vec![3_200, 1_600],
        ..WorkloadColumns::default()
    };
    let small = r#"{"role": "both", "kv_tokens": 8000}"#;
    let router = r#", "router": {"tail_waits": false, "kv_events": true, "evict_idle": true}"#;
    let result = run(&fleet(&[small], "collocated", router), &columns);
    assert_eq!(result.diagnosis.finished, 2, "{:?}", result.diagnosis.stuck);
}
