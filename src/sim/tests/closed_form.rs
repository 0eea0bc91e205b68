//! Runs that can be computed by hand, and runs that must not depend on how they are advanced.

use super::super::WorkloadColumns;
use super::support::{agents, close, numbers, run};

/// a40: 11 us a token, 3.5 ns a pair, 1.19 GB of weights and 114,688 bytes a token at 500 GB/s, 5 ms a step.
const TOKEN: f64 = 11e-6;
const PAIR: f64 = 3.5e-9;
const WEIGHTS: f64 = 1.19e9 / 500e9;
const CONTEXT: f64 = 114_688.0 / 500e9;
const HOST: f64 = 5e-3;

fn prefill(new: f64, past: f64) -> f64 {
    (TOKEN * new).max(WEIGHTS) + PAIR * new * (past + new / 2.0) + HOST
}

fn decode(context: f64) -> f64 {
    WEIGHTS + CONTEXT * context + HOST
}

#[test]
fn a_single_conversation_on_one_engine_is_the_closed_form() {
    let columns = WorkloadColumns {
        gap_s: vec![0.0, 1.5],
        ..WorkloadColumns::single(&[(5_000, 40), (300, 10)])
    };
    let result = run(r#"{"engines": [{"role": "both"}]}"#, &columns);
    let (one, two) = (&result.turns[0], &result.turns[1]);
    // 5,000 tokens in chunks of 2,048, 2,048 and 904.
    let first = 0.001 + prefill(2048.0, 0.0) + prefill(2048.0, 2048.0) + prefill(904.0, 4096.0);
    close(one.first_token_s, first, 1e-12, "first token");
    let decodes: f64 = (0..39)
        .map(|token| decode(5_000.0 + f64::from(token)))
        .sum();
    close(one.last_token_s, first + decodes, 1e-12, "last token");
    close(one.gap_mean_s, decodes / 39.0, 1e-12, "mean gap");
    close(one.gap_max_s, decode(5_038.0), 1e-12, "largest gap");
    // Nearest rank: the 38th of 39 gaps.
    close(
        one.gap_p95_s,
        decode(5_037.0),
        1e-12,
        "95th percentile of the gaps",
    );
    // 5,039 tokens are computed, 314 whole blocks = 5,024 of them are cached.
    assert_eq!(
        (two.cached_tokens, two.prefilled_tokens),
        (5_024, 5_340 - 5_024)
    );
    assert_eq!(two.recomputed_tokens, 0, "part of a block is no loss");
    let ready = first + decodes + 1.5;
    close(two.ready_s, ready, 1e-12, "the tool is done");
    let second = ready + 0.001 + prefill(316.0, 5_024.0);
    close(
        two.first_token_s,
        second,
        1e-12,
        "first token of the second turn",
    );
    close(
        result.conversations[0].ttfet_s,
        second,
        1e-12,
        "the last turn answers the user",
    );
}

#[test]
fn a_single_conversation_with_a_handoff_is_the_closed_form() {
    let columns = WorkloadColumns::single(&[(1_000, 3)]);
    let scenario = r#"{
        "engines": [{"role": "prefiller"}, {"role": "decoder"}],
        "link": {"bytes_per_s": 1e9, "latency_s": 0.002, "overlap": OVERLAP}
    }"#;
    let computed = 0.001 + prefill(1_000.0, 0.0);
    let alone = 0.002 + 1_000.0 * 114_688.0 / 1e9;
    // Layer by layer, what the link could move while the prompt was computed is not waited for.
    for (overlap, exposed) in [("false", alone), ("true", alone - prefill(1_000.0, 0.0))] {
        let result = run(&scenario.replace("OVERLAP", overlap), &columns);
        let turn = &result.turns[0];
        close(turn.prefill_end_s, computed, 1e-12, "prompt computed");
        close(
            turn.transfer_end_s,
            computed + exposed,
            1e-12,
            "handed over",
        );
        let first = computed + exposed + decode(999.0);
        close(turn.first_token_s, first, 1e-12, "one decode step later");
        let last = first + decode(1_000.0) + decode(1_001.0);
        close(turn.last_token_s, last, 1e-12, "last token");
        assert_eq!(
            (turn.prefiller, turn.decoder, turn.transferred_tokens),
            (Some(0), Some(1), 1_000)
        );
    }
}

#[test]
fn runs_of_steps_advanced_at_once_equal_the_steps_one_by_one() {
    let plain = r#"{"role": "both"}"#;
    let cases = [
        ("plenty of room", plain.to_owned()),
        (
            "eviction and preemption",
            r#"{"role": "both", "kv_tokens": 24000}"#.to_owned(),
        ),
        (
            "a power cap",
            r#"{"role": "both", "power": {"cap_w": 180}}"#.to_owned(),
        ),
        (
            "a cap for decodes",
            r#"{"role": "both", "power": {"decode_cap_w": 120}}"#.to_owned(),
        ),
        (
            "a hidden host",
            r#"{"role": "both", "cost": {"hide_overhead": true, "overhead_s": 0.012}}"#.to_owned(),
        ),
        (
            "steps that fill a cap's window exactly",
            r#"{"role": "both", "power": {"cap_w": 150},
                "cost": {"hide_overhead": true, "overhead_s": 0.02}}"#
                .to_owned(),
        ),
        (
            "a chunk target",
            r#"{"role": "both", "chunk_target_s": 0.03}"#.to_owned(),
        ),
        (
            "shortest first",
            r#"{"role": "both", "max_num_seqs": 4, "order": {"kind": "shortest"}}"#.to_owned(),
        ),
        (
            "host memory",
            r#"{"role": "both", "kv_tokens": 24000, "host_offload_bytes_per_s": 2e10}"#.to_owned(),
        ),
        (
            "a TTL",
            r#"{"role": "both", "kv_tokens": 40000, "retention": {"kind": "ttl", "ttl_s": 1.0}}"#
                .to_owned(),
        ),
        ("a grid", GRID.to_owned()),
    ];
    let columns = agents(40, 2.0, 7);
    for (case, engine) in cases {
        let scenario = |fast| {
            format!(
                r#"{{"engines": [{engine}, {engine}], "fast_forward": {fast}, "router": {{"gate": false}},
                    "checks": true}}"#
            )
        };
        let (fast, slow) = (
            run(&scenario(true), &columns),
            run(&scenario(false), &columns),
        );
        assert!(
            fast.counters.events < slow.counters.events,
            "{case}: something was skipped"
        );
        assert_eq!(fast.diagnosis.finished, 40, "{case}");
        for (at, (fast, slow)) in numbers(&fast).into_iter().zip(numbers(&slow)).enumerate() {
            close(fast, slow, 1e-9, &format!("{case}, number {at}"));
        }
    }
}

const GRID: &str = r#"{"role": "both", "grid": {
    "decode_batch": [1, 8, 64], "decode_context": [64, 1024, 4096, 16384],
    "decode_s": [[0.002, 0.0024, 0.003, 0.006], [0.003, 0.004, 0.009, 0.03], [0.005, 0.01, 0.04, 0.15]],
    "prefill_new": [16, 512, 2048], "prefill_past": [0, 8192],
    "prefill_s": [[0.003, 0.004], [0.007, 0.02], [0.025, 0.08]], "shared_s": 0.002}}"#;
