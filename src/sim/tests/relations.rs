//! How two runs must differ when one thing differs.

use super::super::{SimResult, WorkloadColumns};
use super::support::{agents, close, run};

fn fleet(extra: &str) -> String {
    format!(
        r#"{{"engines": [{{"role": "prefiller"}}, {{"role": "decoder"}}, {{"role": "decoder"}}]{extra}}}"#
    )
}

fn mean_ttft(result: &SimResult) -> f64 {
    let waits = result
        .turns
        .iter()
        .map(|row| row.first_token_s - row.ready_s);
    waits.sum::<f64>() / result.turns.len() as f64
}

#[test]
fn an_infinitely_fast_link_costs_nothing_and_a_slower_one_more() {
    let columns = agents(40, 1.0, 2);
    let with = |rate: &str| {
        let link =
            format!(r#", "link": {{"bytes_per_s": {rate}, "latency_s": 0, "overlap": false}}"#);
        run(&fleet(&link), &columns)
    };
    let [infinite, fast, slow] = ["1e30", "1e10", "1e9"].map(with);
    let exposed = |result: &SimResult| result.turns.iter().map(|row| row.transfer_s).sum::<f64>();
    assert!(exposed(&infinite) < 1e-9, "{}", exposed(&infinite));
    assert!(mean_ttft(&infinite) < mean_ttft(&fast) && mean_ttft(&fast) < mean_ttft(&slow));
    assert_eq!(infinite.counters.handoffs, 40, "each first turn, once");
    assert_eq!(slow.counters.handoffs, 40);
}

#[test]
fn without_tool_time_a_lonely_conversation_ends_earlier_by_exactly_its_tool_time() {
    let columns = WorkloadColumns {
        gap_s: vec![0.0, 2.5, 0.75],
        ..WorkloadColumns::single(&[(3_000, 50), (100, 20), (400, 30)])
    };
    let idle = WorkloadColumns {
        gap_s: vec![0.0; 3],
        ..columns.clone()
    };
    let (with, without) = (run(&fleet(""), &columns), run(&fleet(""), &idle));
    close(with.end_s - without.end_s, 3.25, 1e-9, "end");
    close(with.conversations[0].tool_s, 3.25, 1e-12, "tool time");
    for (a, b) in with.turns.iter().zip(&without.turns) {
        close(
            a.first_token_s - a.ready_s,
            b.first_token_s - b.ready_s,
            1e-9,
            "time to first token",
        );
    }
}

#[test]
fn a_flip_changes_only_what_it_is_meant_to() {
    let columns = agents(20, 1.0, 9);
    let record = r#", "flip": {"wait": "drain", "started_s": [0.0, 2.0], "ended_s": [3.0, 900.0]}"#;
    let none = run(&fleet(record), &columns);
    let rows = |result: &SimResult| format!("{:?}", result.turns);
    assert!(
        rows(&none) == rows(&run(&fleet(""), &columns)),
        "no turn is flipped"
    );
    let lonely = WorkloadColumns {
        flip: vec![false, true],
        ..WorkloadColumns::single(&[(5_000, 10), (100, 5)])
    };
    let flipped = run(&fleet(record), &lonely);
    let second = &flipped.turns[1];
    // The turn reaches the router before 2.0 s, when only the prompt that ends at 3.0 s is in flight.
    // KV there 0.985 us * 5010 + 5.27 ms, a hit 14.5 ms, KV back 4.849 ms, management 2 (2 + 5 us * 5110 / 16).
    let at = second.ready_s + 0.001;
    assert!(at < 2.0, "{at}");
    let work = 0.985e-3 * 5_010.0 + 5.27 + 14.5 + 4.849 + 2.0 * (2.0 + 5e-3 * 5_110.0 / 16.0);
    close(second.slept_s, 3.0 - at + 1e-3 * work, 1e-9, "sleep");
    assert_eq!(flipped.counters.flips, 1);
}

fn policy(text: &str) -> String {
    fleet(&format!(r#", "policy": {{"name": "{text}"}}"#))
}

#[test]
fn ampd_that_never_goes_is_strict_and_that_always_goes_is_disaggregated() {
    let columns = agents(60, 1.5, 4);
    let rows = |result: &SimResult| format!("{:?}", (&result.turns, &result.conversations));
    let of = |text: &str| rows(&run(&policy(text), &columns));
    let (strict, always) = (of("strict"), of("disaggregated"));
    assert!(strict != always);
    assert!(of("ampd(static, threshold=inf)") == strict);
    assert!(of("ppd(inf)") == strict);
    assert!(of("ampd(static, threshold=0)") == always);
    assert!(of("ppd(0)") == always);
    let afresh = of("disaggregated(pcache=0, delta=0)");
    assert!(afresh != always);
    assert!(of("ampd(static, threshold=0, pcache=0, delta=0)") == afresh);
}

#[test]
fn ampd_is_strict_where_home_is_always_cheaper() {
    // A prefiller that takes 100 times as long for each token.
    let slow = |name: &str| {
        format!(
            r#"{{"engines": [{{"role": "prefiller", "cost": {{"token_s": 0.0011}}}}, {{"role": "decoder"}},
                {{"role": "decoder"}}], "policy": {{"name": "{name}"}}}}"#
        )
    };
    let columns = agents(20, 0.05, 6);
    let rows = |name: &str| {
        let result = run(&slow(name), &columns);
        assert_eq!(result.counters.handoffs, 20, "{name}: only first turns");
        format!("{:?}", (result.turns, result.conversations))
    };
    let strict = rows("strict");
    for name in ["ampd(min)", "ampd(min, X=0)", "ampd(min, pcache=0)"] {
        assert!(rows(name) == strict, "{name}");
    }
}

#[test]
fn what_a_policy_takes_about_remote_prefills_is_what_the_engines_do() {
    let columns = agents(20, 0.5, 8);
    let said = run(&policy("disaggregated(pcache=0, delta=0)"), &columns);
    let done = run(
        &fleet(
            r#", "policy": {"name": "disaggregated"}, "remote": {"prefiller_cache": false, "delta": false}"#,
        ),
        &columns,
    );
    assert_eq!(said.policy, "disaggregated(pcache=0, delta=0)");
    assert_eq!(done.policy, said.policy);
    assert!(format!("{:?}", said.turns) == format!("{:?}", done.turns));
    let fetched = run(
        &policy("ampd(static, threshold=0, pcache=0, fetch=1)"),
        &columns,
    );
    assert!(fetched.counters.fetches > 0);
}

#[test]
fn prefillers_may_reorder_what_waits_under_ampd() {
    let columns = agents(80, 4.0, 3);
    let of = |text: &str| run(&policy(text), &columns);
    let (plain, reordered) = (of("ampd(min)"), of("ampd(min, reorder=8)"));
    assert_eq!(reordered.policy, "ampd(min, X=1, pcache=1, reorder=8)");
    assert!(format!("{:?}", plain.turns) != format!("{:?}", reordered.turns));
    let none = of("ampd(min, reorder=0)");
    assert!(format!("{:?}", plain.turns) == format!("{:?}", none.turns));
}

#[test]
fn a_shared_prefix_is_computed_once_on_each_engine() {
    let mut columns = WorkloadColumns::default();
    for at in 0..3 {
        columns.arrival_s.push(f64::from(at));
        columns.turns.push(1);
        columns.append.push(4_100);
        columns.output.push(10);
        columns.gap_s.push(0.0);
        columns.prefix_id.push(0);
        columns.prefix_tokens.push(4_000);
    }
    let result = run(r#"{"engines": [{"role": "both"}]}"#, &columns);
    let found: Vec<u32> = result.turns.iter().map(|row| row.cached_tokens).collect();
    assert_eq!(
        found,
        [0, 4_000, 4_000],
        "4,000 tokens are 250 whole blocks"
    );
}

#[test]
fn a_reset_voids_what_lies_behind_it() {
    let columns = WorkloadColumns {
        reuse: vec![-1, 1_000],
        ..WorkloadColumns::single(&[(5_000, 100), (2_000, 10)])
    };
    let result = run(r#"{"engines": [{"role": "both"}]}"#, &columns);
    let turn = &result.turns[1];
    // 1,000 tokens are 62 whole blocks = 992.
    assert_eq!(
        (
            turn.prompt_tokens,
            turn.cached_tokens,
            turn.recomputed_tokens
        ),
        (3_000, 992, 0)
    );
}

#[test]
fn evicted_kv_is_computed_again_and_counted() {
    // Two conversations of 6,000 tokens take turns on an engine that holds 8,000.
    let columns = WorkloadColumns {
        arrival_s: vec![0.0, 5.0],
        turns: vec![2, 1],
        append: vec![6_000, 100, 6_000],
        output: vec![10, 10, 10],
        gap_s: vec![0.0, 20.0, 0.0],
        ..WorkloadColumns::default()
    };
    let engine = |more: &str| {
        format!(
            r#"{{"engines": [{{"role": "both", "kv_tokens": 8000{more}}}], "router": {{"gate": false}}}}"#
        )
    };
    let second = |result: &SimResult| {
        let turn = result
            .turns
            .iter()
            .find(|row| row.turn == 1)
            .expect("it ran")
            .clone();
        (turn.recomputed_tokens, turn.cached_tokens)
    };
    let lru = run(&engine(""), &columns);
    let (recomputed, cached) = second(&lru);
    // 6,009 tokens: 375 whole blocks; 500 - 125 = 375 are free... all but 125 blocks were evicted.
    assert_eq!(
        (recomputed + cached, cached),
        (6_000, 1_984),
        "the head of the history survives"
    );
    let offloaded = run(&engine(r#", "host_offload_bytes_per_s": 1e11"#), &columns);
    assert_eq!(second(&offloaded), (0, 6_000), "read back from host memory");
    assert!(offloaded.engines[0].loaded_tokens > 0);
}

#[test]
fn a_prompt_shorter_than_the_shared_prefix_is_computed_whole() {
    let columns = WorkloadColumns {
        prefix_id: vec![0],
        prefix_tokens: vec![1_600],
        reuse: vec![-1, 0],
        ..WorkloadColumns::single(&[(2_000, 10), (300, 10)])
    };
    let result = run(r#"{"engines": [{"role": "both"}]}"#, &columns);
    let turn = &result.turns[1];
    assert_eq!((turn.cached_tokens, turn.prefilled_tokens), (0, 300));
}

#[test]
fn an_executed_flip_is_one_more_handoff_and_no_sleep() {
    let record =
        |wait: &str| format!(r#", "flip": {{"wait": "{wait}", "started_s": [], "ended_s": []}}"#);
    let none = agents(20, 1.0, 9);
    let mut some = none.clone();
    some.flip = vec![false; some.append.len()];
    let (mut at, mut declared) = (0, 0);
    for turns in &some.turns {
        if *turns > 1 {
            some.flip[at + 1] = true;
            declared += 1;
        }
        at += *turns as usize;
    }
    let rows = |result: &SimResult| format!("{:?}", result.turns);
    assert_eq!(
        rows(&run(&fleet(&record("execute")), &none)),
        rows(&run(&fleet(""), &none)),
        "no turn is declared: the policy within decides"
    );
    let result = run(&fleet(&record("execute")), &some);
    let slept: f64 = result.turns.iter().map(|row| row.slept_s).sum();
    assert_eq!(slept.to_bits(), 0, "executed, not modelled");
    assert_eq!(result.counters.flips, declared);
    assert_eq!(result.counters.handoffs, 20 + declared);
    let remote = |row: &&super::super::TurnRow| row.turn == 1 && row.prefiller == Some(0);
    assert_eq!(result.turns.iter().filter(remote).count() as u64, declared);
}
