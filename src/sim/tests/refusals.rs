//! What is refused, and how it is said.

use super::super::{Scenario, Workload, WorkloadColumns, simulate};

#[test]
fn a_bad_scenario_names_the_path_of_the_key_and_what_is_accepted() {
    let engine = |more: &str| format!(r#"{{"engines": [{{"role": "both"{more}}}]}}"#);
    let cases = [
        (
            engine(r#", "kv_token": 5"#),
            "engines[0].kv_token",
            "unknown field",
        ),
        (
            engine(r#", "preset": "b200""#),
            "engines[0].preset",
            "unknown variant",
        ),
        (
            engine(r#", "watermark": 1"#),
            "engines[0].watermark",
            "0 to below 1",
        ),
        (
            engine(r#", "block_size": 0"#),
            "engines[0].block_size",
            "1 to 4096",
        ),
        (
            engine(r#", "max_num_seqs": 4096"#),
            "engines[0].max_num_seqs",
            "1 to max_num_batched_tokens",
        ),
        (
            engine(r#", "cost": {"token_s": -1}"#),
            "engines[0].cost.token_s",
            "at least 0",
        ),
        (
            engine(r#", "power": {"clock": 0.1}"#),
            "engines[0].power.clock",
            "0.25 to 1",
        ),
        (
            engine(r#", "retention": {"kind": "ttl"}"#),
            "engines[0].retention",
            "missing field `ttl_s`",
        ),
        (
            engine(
                r#", "grid": {"decode_batch": [1, 1], "decode_context": [0, 1], "decode_s": [[1, 1], [1, 1]],
                    "prefill_new": [1, 2], "prefill_past": [0, 1], "prefill_s": [[1, 1], [1, 1]]}"#,
            ),
            "engines[0].grid.decode_batch",
            "rising",
        ),
        (r#"{"engines": []}"#.to_owned(), "engines", "1 to 1024"),
        (
            r#"{"engines": [{"role": "prefiller"}]}"#.to_owned(),
            "engines",
            "that decodes",
        ),
        (
            r#"{"engines": [{"role": "both"}], "link": {"bytes_per_s": 0}}"#.to_owned(),
            "link.bytes_per_s",
            "above 0",
        ),
        (
            r#"{"engines": [{"role": "both"}], "energy_window_s": [2, 1]}"#.to_owned(),
            "energy_window_s[1]",
            "after the start",
        ),
    ];
    for (text, key, accepted) in cases {
        let error = Scenario::from_json(&text).expect_err(key);
        assert_eq!(error.key, key, "{error}");
        assert!(error.problem.contains(accepted), "{error}");
    }
}

#[test]
fn settings_of_router_and_policy_are_refused_with_their_path() {
    let workload = Workload::new(&WorkloadColumns::single(&[(10, 1)])).expect("valid");
    let cases = [
        (r#""router": {"low_watermark": 2}"#, "router.low_watermark"),
        (r#""policy": {"name": "guess"}"#, "policy.name"),
        (
            r#""policy": {"name": "strict", "options": {"x": 1}}"#,
            "policy.options.x",
        ),
        (r#""policy": {"name": "ampd(luck)"}"#, "policy.options.rule"),
        (
            r#""policy": {"name": "ampd", "options": {"ttft_ms": [1]}}"#,
            "policy.options.ttft_ms",
        ),
        (
            r#""policy": {"name": "ampd(reorder=many)"}"#,
            "policy.options.reorder",
        ),
        (r#""policy": {"name": "ampd-paper"}"#, "flip"),
        (r#""policy": {"name": "ampd-paper(1)"}"#, "policy.options.1"),
    ];
    for (more, key) in cases {
        let text = format!(r#"{{"engines": [{{"role": "both"}}], {more}}}"#);
        let refused = Scenario::from_json(&text)
            .and_then(|scenario| simulate(&scenario, &workload, 1))
            .expect_err(key);
        assert_eq!(refused.key, key, "{refused}");
    }
}

#[test]
fn a_bad_workload_names_column_and_place() {
    let good = WorkloadColumns::single(&[(100, 10), (20, 5)]);
    let bad = |change: &dyn Fn(&mut WorkloadColumns)| {
        let mut columns = good.clone();
        change(&mut columns);
        Workload::new(&columns).expect_err("refused").to_string()
    };
    assert_eq!(
        bad(&|columns| columns.output[1] = 0),
        "output[1] = 0: at least 1"
    );
    assert_eq!(
        bad(&|columns| columns.append[0] = 0),
        "append[0] = 0: at least 1"
    );
    assert!(bad(&|columns| columns.arrival_s[0] = f64::NAN).starts_with("arrival_s[0] = NaN"));
    assert!(bad(&|columns| columns.reuse = vec![-1, 111]).contains("0 to 110, the context before"));
    assert!(bad(&|columns| columns.gap_s.truncate(1)).contains("expected 2 entries"));
    let empty = WorkloadColumns {
        arrival_s: vec![0.0],
        turns: vec![0],
        ..WorkloadColumns::default()
    };
    let error = Workload::new(&empty).expect_err("a conversation without turns");
    assert_eq!(error.to_string(), "turns[0] = 0: 1 to 65535");
    let prefix = bad(&|columns| {
        columns.prefix_id = vec![0];
        columns.prefix_tokens = vec![100];
    });
    assert_eq!(prefix, "prefix_tokens[0] = 100: less than the first prompt");
}
