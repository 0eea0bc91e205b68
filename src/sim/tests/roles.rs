//! `follow-kv(roles=auto)`: where prefillers shorten the gaps the router makes some, where they do not nothing changes.

use super::super::{SimResult, WorkloadColumns};
use super::support::{Draw, run};

const PHASE_S: f64 = 600.0;
const TURNS: u32 = 5;

/// What conversations look like that arrive in one phase of the run.
#[derive(Clone, Copy)]
struct Phase {
    per_s: f64,
    first: (u32, u32),
    append: (u32, u32),
    output: (u32, u32),
}

/// Most of the prompt work is that of first prompts.
const HEAVY_FIRST: Phase = Phase {
    per_s: 2.6,
    first: (6_000, 12_000),
    append: (20, 120),
    output: (30, 100),
};
/// Hardly any is, and much is generated.
const HEAVY_LATER: Phase = Phase {
    per_s: 2.0,
    first: (300, 500),
    append: (2_000, 3_000),
    output: (250, 350),
};

fn columns(phases: &[Phase], seed: u64) -> WorkloadColumns {
    let (mut draw, mut columns) = (Draw(seed), WorkloadColumns::default());
    let (mut at, mut ends) = (0.0, 0.0);
    for phase in phases {
        ends += PHASE_S;
        loop {
            at += draw.exponential(phase.per_s);
            if at >= ends {
                at = ends;
                break;
            }
            columns.arrival_s.push(at);
            columns.turns.push(TURNS);
            for turn in 0..TURNS {
                let (low, high) = if turn == 0 { phase.first } else { phase.append };
                columns.append.push(draw.within(low, high));
                columns
                    .output
                    .push(draw.within(phase.output.0, phase.output.1));
                columns.gap_s.push(1.0);
                columns.reuse.push(-1);
            }
        }
    }
    columns
}

fn simulated(preset: &str, policy: &str, columns: &WorkloadColumns) -> SimResult {
    let engine = format!(r#"{{"role": "both", "preset": "{preset}"}}"#);
    let engines = [&*engine; 4].join(", ");
    let scenario = format!(
        r#"{{"engines": [{engines}], "policy": {{"name": "{policy}"}}, "link": {{"bytes_per_s": 50e9}},
             "events": true, "checks": false}}"#
    );
    run(&scenario, columns)
}

/// When the number of workers that only compute prompts changed, and from what to what.
fn changes(result: &SimResult) -> Vec<(f64, u16, u16)> {
    let read = |row: &super::super::EventRow| {
        let fields = row.what.strip_prefix("RolesChanged")?;
        let mut numbers = fields
            .split(|sign: char| !sign.is_ascii_digit())
            .filter(|word| !word.is_empty())
            .map(|word| word.parse().expect("digits"));
        // The first is the time.
        let _: u64 = numbers.next()?;
        let mut small = || u16::try_from(numbers.next().expect("three")).expect("few");
        Some((row.at_s, small(), small()))
    };
    result.events.iter().filter_map(read).collect()
}

/// Of the turns that came between these times, the mean gap that 95 in 100 do not pass, seconds.
fn gap_p95_s(result: &SimResult, from_s: f64, to_s: f64) -> f64 {
    let within = |ready_s: f64| (from_s..to_s).contains(&ready_s);
    let turns = result.turns.iter().filter(|turn| within(turn.ready_s));
    let gaps = turns.map(|turn| turn.gap_mean_s);
    let mut gaps: Vec<_> = gaps.filter(|gap| gap.is_finite()).collect();
    gaps.sort_by(f64::total_cmp);
    gaps[gaps.len() * 95 / 100]
}

#[test]
fn workers_become_prefillers_where_that_shortens_gaps_and_no_longer_when_it_does_not() {
    let columns = columns(&[HEAVY_FIRST, HEAVY_LATER], 1);
    let auto = simulated("h200-8b", "follow-kv(roles=auto)", &columns);
    let usual = simulated("h200-8b", "follow-kv", &columns);
    let changed = changes(&auto);
    let [(rose_s, 0, most), .., (fell_s, _, last)] = changed[..] else {
        panic!("it rises and falls: {changed:?}");
    };
    assert!(
        most >= 1 && rose_s >= 180.0,
        "not before three minutes were measured: {changed:?}"
    );
    assert!(last == 0 && fell_s > PHASE_S, "{changed:?}");
    assert!(
        changed
            .windows(2)
            .all(|pair| pair[1].0 - pair[0].0 >= 180.0),
        "three minutes between changes: {changed:?}"
    );
    assert!(
        changed.iter().all(|&(_, from, to)| from.abs_diff(to) == 1),
        "one at a time: {changed:?}"
    );
    let [with, without] = [&auto, &usual].map(|result| gap_p95_s(result, 300.0, PHASE_S));
    assert!(
        with < 0.95 * without,
        "{with} s with prefillers, {without} s without"
    );
    let mut early = auto.turns.iter().filter(|turn| turn.ready_s < PHASE_S);
    assert!(
        early.all(|turn| !turn.moved),
        "nothing moves, conversations only begin elsewhere"
    );
}

#[test]
fn where_steps_grow_with_their_turns_nothing_changes_to_the_last_bit() {
    let steady = Phase {
        per_s: 0.6,
        output: (100, 300),
        ..HEAVY_FIRST
    };
    let columns = columns(&[steady], 2);
    let auto = simulated("a40", "follow-kv(roles=auto)", &columns);
    let usual = simulated("a40", "follow-kv", &columns);
    assert_eq!(changes(&auto), []);
    let rows = |result: &SimResult| format!("{:?} {:?}", result.turns, result.conversations);
    assert_eq!(rows(&auto), rows(&usual));
}

#[test]
fn the_router_begins_with_what_the_operator_says() {
    let columns = columns(
        &[Phase {
            per_s: 1.0,
            ..HEAVY_FIRST
        }],
        3,
    );
    let fixed = simulated("h200-8b", "follow-kv(prefillers=1)", &columns);
    let auto = simulated("h200-8b", "follow-kv(prefillers=1, roles=auto)", &columns);
    let early = |result: &SimResult| {
        let turns = result.turns.iter().filter(|turn| turn.last_token_s < 180.0);
        format!("{:?}", turns.collect::<Vec<_>>())
    };
    assert_eq!(
        early(&fixed),
        early(&auto),
        "nothing changes in three minutes"
    );
    assert!(fixed.counters.placed_handoff > 0, "else that says nothing");
}

/// Nobody comes in this phase, or hardly anybody.
const QUIET: Phase = Phase {
    per_s: 0.003,
    ..HEAVY_LATER
};

#[test]
fn roles_of_the_last_busy_time_do_not_outlive_it() {
    let busy = columns(&[HEAVY_FIRST, QUIET, QUIET, QUIET], 1);
    for (policy, given) in [
        ("follow-kv(roles=auto)", 0),
        ("follow-kv(prefillers=3, roles=auto)", 3),
    ] {
        let changed = changes(&simulated("h200-8b", policy, &busy));
        assert!(
            changed
                .iter()
                .any(|&(at_s, _, to)| at_s < PHASE_S && to != given),
            "{policy}: they change while there is work: {changed:?}"
        );
        let &(fell_s, _, last) = changed.last().expect("some");
        assert_eq!(last, given, "those that the operator gave: {changed:?}");
        assert!(
            (PHASE_S..PHASE_S + 1_200.0).contains(&fell_s),
            "within twenty minutes: {changed:?}"
        );
    }
}
