//! Policies that compute later turns elsewhere, or move the pin: what the engines and links then do.

use super::super::{Scenario, SimResult, Workload, WorkloadColumns, simulate_with};
use super::support::close;
use crate::event::Reason;
use crate::fleet::Role;
use crate::placement::{Decision, Observed, Policy, TurnView, WorkerView};
use crate::units::{Blocks, WorkerId};

/// Every turn is computed on the first prefiller; `moves`: and then lives on another decoder than before.
struct Remote {
    moves: bool,
}

impl Policy for Remote {
    fn name(&self) -> &'static str {
        "remote"
    }

    fn is_sticky(&self) -> bool {
        false
    }

    fn place(&self, turn: &TurnView, fleet: &Observed) -> Decision {
        let first = |role: Role| fleet.workers.iter().find(|worker| worker.role == role);
        let prefiller = first(Role::Prefiller).map(|worker| worker.id);
        let other = |worker: &&WorkerView| {
            let is_home = turn.home == Some(worker.id);
            worker.role == Role::Decoder
                && if self.moves {
                    !is_home
                } else {
                    is_home || turn.home.is_none()
                }
        };
        let decoder = fleet
            .workers
            .iter()
            .find(other)
            .expect("there are two decoders");
        let ceiling = decoder.capacity.unwrap_or(Blocks::ZERO);
        Decision::Place {
            prefiller,
            decoder: decoder.id,
            compute: turn.prompt,
            ceiling,
            alone: ceiling,
            reason: Reason::NoPrefillerLeft,
        }
    }

    fn next_prefiller(
        &self,
        _: &TurnView,
        _: &Observed,
        _: &[WorkerId],
    ) -> Option<(WorkerId, Reason)> {
        None
    }
}

fn run(remote: &str, moves: bool) -> SimResult {
    let scenario = format!(
        r#"{{"engines": [{{"role": "prefiller"}}, {{"role": "decoder"}}, {{"role": "decoder"}}],
            "remote": {remote}, "link": {{"bytes_per_s": 1e9, "latency_s": 0.002, "overlap": false}},
            "checks": true}}"#
    );
    let scenario = Scenario::from_json(&scenario).expect("valid");
    let columns = WorkloadColumns {
        gap_s: vec![0.0, 1.0, 1.0],
        ..WorkloadColumns::single(&[(3_000, 41), (500, 30), (200, 9)])
    };
    let workload = Workload::new(&columns).expect("valid");
    let policy = Box::new(Remote { moves });
    simulate_with(&scenario, &workload, policy, 1).expect("its books agree")
}

fn columns(result: &SimResult) -> Vec<(u32, u32, u32)> {
    let of = |row: &super::super::TurnRow| {
        (
            row.cached_tokens,
            row.recomputed_tokens,
            row.transferred_tokens,
        )
    };
    result.turns.iter().map(of).collect()
}

// Prompts: 3,000, then 3,041 + 500 = 3,541, then 3,571 + 200 = 3,771.

#[test]
fn a_prefiller_without_cache_computes_the_history_again_and_sends_all_of_it() {
    let result = run(r#"{"prefiller_cache": false, "delta": false}"#, false);
    // Known history in whole blocks: 3,040 of 3,040 computed tokens, 3,568 of 3,570.
    let expected = [(0, 0, 3_000), (0, 3_040, 3_541), (0, 3_568, 3_771)];
    assert_eq!(columns(&result), expected);
    assert_eq!(result.counters.handoffs, 3);
    let turn = &result.turns[1];
    close(
        turn.transfer_s,
        0.002 + 3_541.0 * 114_688.0 / 1e9,
        1e-12,
        "all of it crosses",
    );
}

#[test]
fn a_prefiller_with_a_cache_recomputes_only_what_the_decoder_generated_and_sends_what_is_missing() {
    let result = run(r#"{"prefiller_cache": true, "delta": true}"#, false);
    // The prefiller kept 187 whole blocks = 2,992 of 3,000, then 221 = 3,536 of 3,541.
    let expected = [
        (0, 0, 3_000),
        (2_992, 3_040 - 2_992, 3_541 - 3_040),
        (3_536, 3_568 - 3_536, 3_771 - 3_568),
    ];
    assert_eq!(columns(&result), expected);
}

#[test]
fn a_prefiller_that_fetches_recomputes_nothing() {
    let result = run(
        r#"{"prefiller_cache": false, "delta": true, "fetch": true}"#,
        false,
    );
    assert_eq!(result.counters.fetches, 2);
    let expected = [
        (0, 0, 3_000),
        (3_040, 0, 3_040 + 3_541 - 3_040),
        (3_568, 0, 3_568 + 3_771 - 3_568),
    ];
    assert_eq!(
        columns(&result),
        expected,
        "there, and what was computed back"
    );
    let turn = &result.turns[1];
    let there = 0.002 + 3_040.0 * 114_688.0 / 1e9;
    close(
        turn.prefill_start_s - turn.admitted_s,
        there,
        1e-9,
        "the fetch comes first",
    );
}

#[test]
fn a_pin_that_moves_is_counted_and_comes_back_to_what_it_left() {
    let result = run(r#"{"prefiller_cache": true, "delta": true}"#, true);
    let decoders: Vec<_> = result.turns.iter().map(|row| row.decoder).collect();
    assert_eq!(decoders, [Some(1), Some(2), Some(1)]);
    assert_eq!(
        (result.counters.moves, result.conversations[0].moves),
        (2, 2)
    );
    // The first decoder still holds 3,040 tokens of the first turn.
    let sent: Vec<_> = result
        .turns
        .iter()
        .map(|row| row.transferred_tokens)
        .collect();
    assert_eq!(sent, [3_000, 3_541, 3_771 - 3_040]);
}
