//! Where a setting no longer matters: a gate that is never reached, reports that come late.

use super::super::{SimResult, WorkloadColumns};
use super::support::{agents, close, numbers, run};

const ENGINES: &str =
    r#""engines": [{"role": "prefiller"}, {"role": "decoder"}, {"role": "decoder"}]"#;

fn with(router: &str, columns: &WorkloadColumns) -> SimResult {
    run(
        &format!(r#"{{{ENGINES}, "round_trip_s": 0, "router": {{{router}}}}}"#),
        columns,
    )
}

#[test]
fn a_gate_that_is_never_reached_changes_nothing() {
    let columns = agents(40, 2.0, 6);
    let without = numbers(&with(r#""gate": false"#, &columns));
    // 40 conversations of at most 15,000 tokens fit the watermark of two decoders with 308,448 each.
    for gate in [
        r#""low_watermark": 1.0"#,
        r#""low_watermark": 1.0, "report_interval_s": 0.1"#,
    ] {
        let gated = with(gate, &columns);
        assert!(gated.turns.iter().all(|row| row.line_s < 1e-9), "{gate}");
        for (found, expected) in numbers(&gated).into_iter().zip(&without) {
            close(found, *expected, 1e-9, gate);
        }
    }
}

#[test]
fn a_gate_that_is_reached_moves_the_wait_from_the_engines_to_the_line() {
    let columns = agents(60, 8.0, 7);
    let small = |gate: &str| {
        let engine = r#"{"role": "decoder", "kv_tokens": 40000}"#;
        run(
            &format!(
                r#"{{"engines": [{{"role": "prefiller"}}, {engine}, {engine}], "round_trip_s": 0,
                    "router": {{{gate}, "evict_idle": true}}}}"#
            ),
            &columns,
        )
    };
    let line = |result: &SimResult| result.turns.iter().map(|row| row.line_s).sum::<f64>();
    let lost = |result: &SimResult| {
        let rows = result.engines.iter();
        rows.map(|row| row.recomputed_tokens + row.preemptions)
            .sum::<u64>()
    };
    let (open, closed) = (
        small(r#""gate": false, "prefill_backlog_tokens": 1000000000"#),
        small(r#""low_watermark": 0.8"#),
    );
    assert!(line(&open) < 1e-9, "{} s", line(&open));
    assert!(line(&closed) > 1.0, "{} s", line(&closed));
    assert!(
        lost(&closed) <= lost(&open),
        "{} and {} tokens and preemptions",
        lost(&closed),
        lost(&open)
    );
}

#[test]
fn strict_decides_by_its_own_books_so_late_reports_change_no_placement() {
    let columns = agents(60, 3.0, 8);
    let placed = |interval: f64| {
        let result = with(&format!(r#""report_interval_s": {interval}"#), &columns);
        assert_eq!(result.diagnosis.finished, 60);
        assert_eq!(result.counters.handoffs, 60, "one for each conversation");
        let mut rows: Vec<_> = result
            .turns
            .iter()
            .map(|row| (row.conversation, row.turn, row.decoder))
            .collect();
        rows.sort_unstable();
        rows
    };
    let prompt = placed(0.05);
    for late in [1.0, 5.0, 1e6] {
        assert_eq!(placed(late), prompt, "reports every {late} s");
    }
}
