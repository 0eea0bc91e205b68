//! Workloads and runs for the tests.

use super::super::{Scenario, SimResult, Workload, WorkloadColumns, simulate, splitmix};

/// Numbers for workloads.
pub(super) struct Draw(pub(super) u64);

impl Draw {
    pub(super) fn unit(&mut self) -> f64 {
        let drawn = splitmix::unit(splitmix::mixed(self.0));
        self.0 = self.0.wrapping_add(splitmix::STEP);
        drawn
    }

    pub(super) fn within(&mut self, low: u32, high: u32) -> u32 {
        low + (self.unit() * f64::from(high - low + 1)) as u32
    }

    pub(super) fn exponential(&mut self, rate: f64) -> f64 {
        -(1.0 - self.unit()).ln() / rate
    }
}

/// Agents: a long first prompt, short appends, a tool between turns, some resets.
pub(super) fn agents(conversations: u32, rate: f64, seed: u64) -> WorkloadColumns {
    let (mut draw, mut at) = (Draw(seed), 0.0);
    let mut columns = WorkloadColumns::default();
    for _ in 0..conversations {
        at += draw.exponential(rate);
        let turns = draw.within(1, 6);
        columns.arrival_s.push(at);
        columns.turns.push(turns);
        let mut context = 0;
        for turn in 0..turns {
            let resets = turn > 0 && draw.unit() < 0.1;
            let reuse = if resets { context / 3 } else { context };
            let append = if turn == 0 {
                draw.within(500, 9_000)
            } else {
                draw.within(1, 900)
            };
            let output = draw.within(1, 250);
            context = reuse + append + output;
            columns.append.push(append);
            columns.output.push(output);
            columns.gap_s.push(draw.exponential(2.0));
            columns
                .reuse
                .push(if resets { i64::from(reuse) } else { -1 });
        }
    }
    columns
}

pub(super) fn run(scenario: &str, columns: &WorkloadColumns) -> SimResult {
    run_seeded(scenario, columns, 1)
}

pub(super) fn run_seeded(scenario: &str, columns: &WorkloadColumns, seed: u64) -> SimResult {
    let scenario = Scenario::from_json(scenario).expect("a valid scenario");
    let workload = Workload::new(columns).expect("a valid workload");
    simulate(&scenario, &workload, seed).expect("it runs and its books agree")
}

pub(super) fn close(found: f64, expected: f64, tolerance: f64, what: &str) {
    let same = found.is_nan() && expected.is_nan();
    let scale = expected.abs().max(1.0);
    assert!(
        same || (found - expected).abs() <= tolerance * scale,
        "{what}: {found} instead of {expected}"
    );
}

/// Everything that a run measured, as numbers.
pub(super) fn numbers(result: &SimResult) -> Vec<f64> {
    let mut all = vec![result.end_s];
    let mut turns = result.turns.clone();
    // Turns that end at the same time may be listed in either order.
    turns.sort_by_key(|row| (row.conversation, row.turn));
    for row in turns {
        all.extend([
            row.admitted_s,
            row.prefill_start_s,
            row.first_token_s,
            row.last_token_s,
        ]);
        all.extend([
            row.gap_mean_s,
            row.gap_p95_s,
            row.gap_max_s,
            row.line_s,
            row.engine_queue_s,
        ]);
        let counts = [
            row.cached_tokens,
            row.prefilled_tokens,
            row.recomputed_tokens,
            row.preemptions,
        ];
        all.extend(counts.map(f64::from));
    }
    for row in &result.conversations {
        all.push(row.ttfet_s);
        all.extend(row.ttfet_parts_s);
    }
    for row in &result.engines {
        all.extend(row.joules);
        all.extend(row.seconds);
        all.extend([row.steps, row.evicted_tokens, row.preemptions].map(|count| count as f64));
    }
    all
}
