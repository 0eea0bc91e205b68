//! Policies under errors, and the oracle: what they change, and what they must not.

use std::sync::Arc;

use super::super::policy::Made;
use super::super::world::World;
use super::super::{Outcome, Scenario, SimResult, Workload, WorkloadColumns};
use super::support::{agents, close, run};

fn fleet(policy: &str) -> String {
    format!(
        r#"{{"engines": [{{"role": "prefiller"}}, {{"role": "decoder"}}, {{"role": "decoder"}}],
            "policy": {{"name": "{policy}"}}}}"#
    )
}

fn rows(result: &SimResult) -> String {
    format!("{:?}", (&result.turns, &result.conversations))
}

#[test]
fn errors_of_zero_change_nothing() {
    let columns = agents(40, 1.5, 11);
    let none = "flip=0, toremote=0, noise=0, length=0, stale_s=0";
    for (plain, misled) in [
        ("strict", "strict(FLAWS)"),
        ("disaggregated(pcache=0)", "disaggregated(pcache=0, FLAWS)"),
        ("ampd(min)", "ampd(min, FLAWS)"),
        (
            "ampd(slo, X=0, pcache=0)",
            "ampd(slo, X=0, pcache=0, FLAWS)",
        ),
        ("deflect", "deflect(tbt_ms=60, FLAWS)"),
        ("oracle(min)", "oracle(min, FLAWS)"),
    ] {
        let with = run(&fleet(&misled.replace("FLAWS", none)), &columns);
        let without = run(&fleet(plain), &columns);
        assert_eq!(with.policy, without.policy);
        assert!(rows(&with) == rows(&without), "{plain}");
    }
}

#[test]
fn flips_send_later_turns_away_and_only_those() {
    let columns = agents(150, 0.8, 5);
    let later = columns.append.len() as f64 - 150.0;
    let of = |policy: &str| run(&fleet(policy), &columns);
    let share = |result: &SimResult| (result.counters.handoffs as f64 - 150.0) / later;
    let flipped = of("strict(flip=0.3)");
    assert_eq!(flipped.policy, "strict(flip=0.3)");
    assert!((share(&flipped) - 0.3).abs() < 0.06, "{}", share(&flipped));
    let sent = of("strict(toremote=0.2)");
    assert!((share(&sent) - 0.2).abs() < 0.06, "{}", share(&sent));
    let home = of("disaggregated(flip=0.3)");
    assert!((share(&home) - 0.7).abs() < 0.06, "{}", share(&home));
    let away = of("disaggregated(toremote=0.5)");
    assert!(
        rows(&away) == rows(&of("disaggregated")),
        "no turn stays that could be sent away"
    );
}

#[test]
fn follow_kv_is_sent_away_where_there_is_a_prefiller_to_go_to() {
    let columns = agents(150, 0.8, 5);
    let later = columns.append.len() as f64 - 150.0;
    let handoffs = |policy: &str| run(&fleet(policy), &columns).counters.handoffs as f64;
    let sent = handoffs("follow-kv(toremote=0.2)") - handoffs("follow-kv");
    assert!((sent / later - 0.2).abs() < 0.06, "{}", sent / later);
    for role in ["both", "decoder"] {
        let engine = format!(r#"{{"role": "{role}"}}"#);
        let alike = |policy: &str| {
            format!(r#"{{"engines": [{engine}, {engine}], "policy": {{"name": "{policy}"}}}}"#)
        };
        let error = Scenario::from_json(&alike("follow-kv(toremote=0.2)")).expect_err(role);
        assert_eq!(error.key, "policy.options", "{error}");
        run(&alike("follow-kv(toremote=0)"), &columns);
    }
}

#[test]
fn noise_and_lengths_change_what_decides_by_times() {
    let columns = agents(80, 3.0, 7);
    let of = |policy: &str| rows(&run(&fleet(policy), &columns));
    let plain = of("ampd(min)");
    assert!(of("ampd(min, noise=0.5)") != plain);
    assert!(of("ampd(min, length=0.5)") != plain);
    assert!(of("ampd(min, stale_s=2)") != plain);
    assert!(of("ampd(min, noise=0.5, error_seed=1)") != of("ampd(min, noise=0.5, error_seed=2)"));
    // By its threshold alone it decides without times; lengths it still takes as told.
    let fixed = of("ampd(static, threshold=300)");
    assert!(of("ampd(static, threshold=300, noise=0.5)") == fixed);
    assert!(of("ampd(static, threshold=300, length=0.5)") != fixed);
}

#[test]
fn a_fleet_seen_late_is_still_booked_as_it_is() {
    let columns = agents(120, 6.0, 3);
    for policy in [
        "strict(stale_s=5)",
        "collocated(stale_s=5)",
        "follow-kv(stale_s=3)",
        "deflect(tbt_ms=60, stale_s=5)",
    ] {
        let result = run(&fleet(policy), &columns);
        assert_eq!(result.diagnosis.outcome, Outcome::Finished, "{policy}");
        assert!(result.policy.contains("stale_s"), "{}", result.policy);
    }
    let fresh = rows(&run(&fleet("strict"), &columns));
    assert!(rows(&run(&fleet("strict(stale_s=5)"), &columns)) != fresh);
}

#[test]
fn errors_that_a_policy_has_no_use_for_are_refused() {
    for (policy, key) in [
        ("strict(noise=0.1)", "policy.options"),
        ("collocated(flip=0.1)", "policy.options"),
        ("ampd(slo, flip=0.6)", "policy.options.flip"),
        ("ampd(slo, stale_s=soon)", "policy.options.stale_s"),
        ("oracle(luck)", "policy.options.rule"),
    ] {
        let error = Scenario::from_json(&fleet(policy)).expect_err(policy);
        assert_eq!(error.key, key, "{error}");
    }
}

/// Runs to the end; the truth about the last turn that asked, and what happened.
fn foreseen(policy: &str, columns: &WorkloadColumns) -> (f64, f64, SimResult) {
    let scenario = Scenario::from_json(&fleet(policy)).expect("valid");
    let workload = Workload::new(columns).expect("valid");
    let made = Made::of(&scenario.chosen);
    let truth = Arc::clone(made.truth.as_ref().expect("an oracle"));
    let world = World::new(&scenario, &workload, made, 1).expect("valid");
    let result = world.run().expect("its books agree");
    let told = truth.told();
    let (_, weights) = told.first().expect("it was told");
    (weights.local / 1e3, weights.remote / 1e3, result)
}

#[test]
fn what_the_oracle_is_told_happens() {
    let lonely = WorkloadColumns::single(&[(3_000, 50), (2_500, 20)]);
    for extra in ["", ", pcache=0, delta=0", ", pcache=0, fetch=1"] {
        let away = format!("oracle(static, threshold=0{extra})");
        let (_, remote, result) = foreseen(&away, &lonely);
        let turn = &result.turns[1];
        close(turn.first_token_s - turn.admitted_s, remote, 1e-6, &away);
    }
    let (local, _, result) = foreseen("oracle(static, threshold=inf)", &lonely);
    let turn = &result.turns[1];
    close(turn.first_token_s - turn.admitted_s, local, 1e-9, "at home");
}

#[test]
fn the_oracle_counts_those_that_run_and_wait_at_home() {
    // Four conversations on one decoder: three decode or are computed when the last turn of the first comes.
    let columns = WorkloadColumns {
        arrival_s: vec![0.0, 0.1, 0.2, 1.0],
        turns: vec![2, 1, 1, 1],
        append: vec![3_000, 4_000, 2_000, 2_500, 6_000],
        output: vec![10, 30, 400, 300, 200],
        gap_s: vec![0.0, 1.2, 0.0, 0.0, 0.0],
        ..WorkloadColumns::default()
    };
    let scenario = r#"{"engines": [{"role": "prefiller"}, {"role": "decoder"}],
        "policy": {"name": "oracle(static, threshold=inf)"}}"#;
    let scenario = Scenario::from_json(scenario).expect("valid");
    let workload = Workload::new(&columns).expect("valid");
    let made = Made::of(&scenario.chosen);
    let truth = Arc::clone(made.truth.as_ref().expect("an oracle"));
    let result = World::new(&scenario, &workload, made, 1)
        .and_then(World::run)
        .expect("its books agree");
    let [(_, weights)] = truth.told()[..] else {
        panic!("one turn asked about one prefiller");
    };
    let turn = result
        .turns
        .iter()
        .find(|row| row.turn == 1)
        .expect("it ran");
    let running = result
        .turns
        .iter()
        .filter(|row| row.first_token_s < turn.admitted_s && row.last_token_s > turn.first_token_s);
    assert!(running.count() >= 2, "others decode meanwhile");
    close(
        turn.first_token_s - turn.admitted_s,
        weights.local / 1e3,
        1e-9,
        "in company",
    );
}

#[test]
fn the_oracle_is_no_worse_than_its_estimates_in_company() {
    let columns = agents(150, 2.5, 21);
    let mean = |policy: &str| {
        let result = run(&fleet(policy), &columns);
        assert_eq!(result.diagnosis.outcome, Outcome::Finished);
        let waits = result.turns.iter().filter(|row| row.turn > 0);
        let waits: Vec<f64> = waits.map(|row| row.first_token_s - row.ready_s).collect();
        waits.iter().sum::<f64>() / waits.len() as f64
    };
    let (knows, guesses) = (mean("oracle(min)"), mean("ampd(min)"));
    assert!(knows <= guesses, "{knows} s, {guesses} s");
}
