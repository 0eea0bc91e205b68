//! The prefiller beside queueing theory.

use super::super::WorkloadColumns;
use super::support::{Draw, run};

#[test]
fn a_prefiller_with_equal_prompts_is_an_m_d_1_queue() {
    // One prompt fills the budget of a step, so a step serves exactly one: 11 us * 1024 + 3.5 ns * 1024^2 / 2 + 5 ms.
    let service = 11e-6 * 1024.0 + 3.5e-9 * 1024.0 * 512.0 + 5e-3;
    for load in [0.5, 0.8] {
        let (mut draw, mut at) = (Draw(11), 0.0);
        let jobs = 40_000;
        let mut columns = WorkloadColumns::default();
        for _ in 0..jobs {
            at += draw.exponential(load / service);
            columns.arrival_s.push(at);
            columns.turns.push(1);
            columns.append.push(1_024);
            columns.output.push(1);
            columns.gap_s.push(0.0);
        }
        let scenario = r#"{"engines": [{"role": "both", "max_num_batched_tokens": 1024, "watermark": 0}],
            "router": {"gate": false, "prefill_backlog_tokens": 4000000000, "report_interval_s": 1000},
            "checks": false}"#;
        let result = run(scenario, &columns);
        assert_eq!(result.turns.len(), jobs);
        let mut waits = vec![0.0; jobs];
        for row in &result.turns {
            assert_eq!(row.prefilled_tokens, 1_024, "nothing is shared");
            waits[row.conversation] = row.prefill_start_s - row.admitted_s;
        }
        // Batch means, so that the correlation of successive waits is in the error.
        let batches: Vec<f64> = waits
            .chunks(1_000)
            .map(|batch| batch.iter().sum::<f64>() / 1e3)
            .collect();
        let n = batches.len() as f64;
        let mean = batches.iter().sum::<f64>() / n;
        let variance = batches
            .iter()
            .map(|batch| (batch - mean).powi(2))
            .sum::<f64>()
            / (n - 1.0);
        let error = (variance / n).sqrt();
        let theory = load * service / (2.0 * (1.0 - load));
        assert!(
            error < 0.1 * theory,
            "the run is long enough to tell: {error} of {theory}"
        );
        assert!(
            (mean - theory).abs() < 4.0 * error,
            "mean wait {mean} +- {error} s at load {load}, Pollaczek-Khinchine says {theory} s"
        );
    }
}
