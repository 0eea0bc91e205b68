//! Nothing is lost and nothing appears: tokens, blocks, seconds, joules.

use super::super::{Outcome, SimResult};
use super::support::{agents, close, run, run_seeded};

const FLEETS: [(&str, &str); 6] = [
    (
        "strict 1P2D",
        r#""engines": [{"role": "prefiller"}, {"role": "decoder"}, {"role": "decoder"}]"#,
    ),
    (
        "tight, without a gate",
        r#""engines": [{"role": "prefiller", "kv_tokens": 24000}, {"role": "decoder", "kv_tokens": 24000},
            {"role": "decoder", "kv_tokens": 24000}], "router": {"gate": false}"#,
    ),
    (
        "the first token comes from the prefiller, which keeps nothing",
        r#""engines": [{"role": "prefiller"}, {"role": "decoder", "kv_tokens": 30000}],
            "remote": {"prefiller_cache": false, "delta": false, "first_token": "prefiller"},
            "router": {"gate": false}"#,
    ),
    (
        "collocated",
        r#""engines": [{"role": "both"}, {"role": "both"}]"#,
    ),
    (
        "oracle reservation, replayed prompts",
        r#""engines": [{"role": "decoder"}, {"role": "decoder"}], "kv_reservation": "oracle_peak",
            "pd_coupling": "replayed", "router": {"low_watermark": 1.0}"#,
    ),
    (
        "a slow link, room that is waited for",
        r#""engines": [{"role": "prefiller"}, {"role": "decoder", "kv_tokens": 24000}],
            "router": {"gate": false}, "link": {"bytes_per_s": 1e9, "overlap": false},
            "remote": {"wait_max_s": 0.5}"#,
    ),
];

fn sum(values: impl Iterator<Item = u64>) -> u64 {
    values.sum()
}

fn check(fleet: &str, result: &SimResult, prefiller_emits: bool) {
    assert_eq!(
        result.diagnosis.outcome,
        Outcome::Finished,
        "{fleet}: {:?}",
        result.diagnosis
    );
    let turns = &result.turns;
    let outputs = sum(turns.iter().map(|row| u64::from(row.output_tokens)));
    let handed_over = turns.iter().filter(|row| row.prefiller.is_some()).count() as u64;
    let at_engines = sum(result.engines.iter().map(|row| row.generated_tokens));
    let given = result.counters.abandoned_handoffs;
    if prefiller_emits {
        assert_eq!(
            at_engines + handed_over + given,
            outputs,
            "{fleet}: each token is generated once"
        );
    } else {
        assert_eq!(at_engines, outputs, "{fleet}: each token is generated once");
    }
    let prefilled = sum(turns.iter().map(|row| u64::from(row.prefilled_tokens)));
    let computed = sum(result.engines.iter().map(|row| row.prefill_tokens));
    assert_eq!(
        computed, prefilled,
        "{fleet}: each computed prompt token belongs to a turn"
    );
    let recomputed = sum(turns.iter().map(|row| u64::from(row.recomputed_tokens)));
    let lost = sum(result.engines.iter().map(|row| row.recomputed_tokens));
    assert_eq!(recomputed, lost, "{fleet}");
    for row in turns
        .iter()
        .filter(|row| row.preemptions == 0 && row.prefiller.is_none())
    {
        if given == 0 && row.transfer_end_s.is_nan() {
            let needed = row.prompt_tokens - row.cached_tokens;
            assert!(
                row.prefilled_tokens == needed || row.prefilled_tokens == 1,
                "{fleet}: {row:?}"
            );
        }
        assert!(row.first_token_s <= row.last_token_s, "{fleet}: {row:?}");
    }
    for row in &result.engines {
        close(row.seconds.iter().sum(), result.end_s, 1e-9, fleet);
        // 75 W are always drawn, and at most 225 more.
        let (joules, span) = (row.joules.iter().sum::<f64>(), result.end_s);
        assert!(
            (75.0 * span..=300.0 * span + 1e-6).contains(&joules),
            "{fleet}: {joules} J"
        );
        close(row.joules[3], 75.0 * row.seconds[3], 1e-9, fleet);
    }
    let handoffs: u32 = result.conversations.iter().map(|row| row.handoffs).sum();
    assert_eq!(u64::from(handoffs), result.counters.handoffs, "{fleet}");
}

#[test]
fn tokens_blocks_seconds_and_joules_are_conserved() {
    for seed in 0..4 {
        let columns = agents(40, 3.0, seed);
        for (fleet, spec) in FLEETS {
            let scenario = format!(r#"{{{spec}, "checks": true}}"#);
            check(
                fleet,
                &run(&scenario, &columns),
                fleet.starts_with("the first token"),
            );
        }
    }
}

const POLICIES: [&str; 12] = [
    "follow-kv",
    "collocated-spread",
    "disaggregated(pcache=0, delta=0)",
    "disaggregated(pcache=0, fetch=1)",
    "ppd(300)",
    "ampd(slo)",
    "ampd(remote_first, pcache=0, delta=0, flip=0.2)",
    "ampd(min, X=0, reorder=4, noise=0.5, stale_s=1)",
    "deflect(tbt_ms=20)",
    "deflect(length=0.4, toremote=0.5)",
    "strict(flip=0.5, stale_s=3)",
    "oracle(min)",
];

#[test]
fn they_are_conserved_under_every_policy() {
    for (seed, policy) in POLICIES.into_iter().enumerate() {
        for engine in ["", r#", "kv_tokens": 24000"#] {
            let columns = agents(40, 3.0, seed as u64);
            let scenario = format!(
                r#"{{"engines": [{{"role": "prefiller"{engine}}}, {{"role": "decoder"{engine}}}, {{"role": "both"{engine}}}],
                    "policy": {{"name": "{policy}"}}, "router": {{"evict_idle": true}}, "checks": true}}"#
            );
            check(policy, &run(&scenario, &columns), false);
        }
    }
}

#[test]
fn energy_of_two_windows_is_the_energy_of_both() {
    let columns = agents(20, 3.0, 3);
    let window = |from: f64, to: f64| {
        let scenario = format!(
            r#"{{"engines": [{{"role": "both", "power": {{"cap_w": 200, "park_after_s": 0.5}}}}],
                "energy_window_s": [{from}, {to}]}}"#
        );
        let result = run(&scenario, &columns);
        (
            result.engines[0].window_joules,
            result.engines[0].joules.iter().sum::<f64>(),
        )
    };
    let (all, total) = window(0.0, 1e4);
    close(all, total, 1e-9, "a window that is longer than the run");
    let (first, second) = (window(0.0, 4.321).0, window(4.321, 1e4).0);
    assert!(
        first > 0.0 && second > 0.0,
        "the edge lies inside the run: {first} and {second} J"
    );
    close(first + second, total, 1e-9, "two windows");
}

#[test]
fn the_same_seed_gives_the_same_bytes() {
    let columns = agents(60, 4.0, 5);
    let scenario = r#"{"engines": [{"role": "prefiller"}, {"role": "decoder"}, {"role": "decoder"}],
        "events": true}"#;
    let bytes = |seed| format!("{:?}", run_seeded(scenario, &columns, seed));
    assert_eq!(bytes(1), bytes(1));
    assert_ne!(
        bytes(1),
        bytes(2),
        "the seed breaks ties between equal decoders"
    );
}
