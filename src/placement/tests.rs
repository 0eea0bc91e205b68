//! Every policy: what it decides can be carried out, and the same is decided twice (I5). And examples of each, those of `follow-kv` in a file of
//! their own.

mod follow_kv;

use proptest::prelude::*;

use super::*;
use crate::config::{PolicyChoice, PolicyKind};

fn worker(id: u16, role: Role, booked: u64) -> WorkerView {
    WorkerView {
        id: WorkerId::new(id).expect("small"),
        role,
        helps: false,
        open: true,
        others_first: false,
        capacity: Some(Blocks::new(1_000)),
        block_size: BlockSize::DEFAULT,
        booked: Blocks::new(booked),
        running: 0,
        growth_waits: false,
        queued: Tokens(0),
        computing: Tokens(0),
        usual: 0.0,
        backlog_limit: Tokens(65_536),
        tokens_per_s: Some(10_000.0),
        step_ms: Some(20.0),
        max_model_len: None,
    }
}

fn fleet(workers: &[WorkerView]) -> Observed {
    Observed {
        workers: workers.to_vec(),
        low_watermark: 0.8,
        recomputed_share: None,
        link_ms_per_token: None,
        shared_head: Tokens(0),
    }
}

fn turn(prompt: u32, home: Option<u16>, resident: u32) -> TurnView {
    TurnView {
        tie: 7,
        prompt: Tokens(prompt),
        home: home.map(|id| WorkerId::new(id).expect("small")),
        resident: Tokens(resident),
        returns: false,
    }
}

fn variant(text: &str) -> PolicyChoice {
    text.parse().expect("a policy")
}

fn decide(
    kind: impl Into<PolicyChoice>,
    turn: &TurnView,
    fleet: &Observed,
) -> Option<(Option<u16>, u16)> {
    match policy(kind).place(turn, fleet) {
        Decision::Place {
            prefiller, decoder, ..
        } => Some((prefiller.map(WorkerId::get), decoder.get())),
        Decision::Stay => None,
        other => panic!("there is room: {other:?}"),
    }
}

/// A prefiller and two decoders, the second emptier.
fn split() -> Observed {
    fleet(&[
        worker(0, Role::Prefiller, 0),
        worker(1, Role::Decoder, 300),
        worker(2, Role::Decoder, 100),
    ])
}

#[test]
fn who_failed_a_request_lately_comes_after_all_others_and_before_nobody() {
    let mut fleet = split();
    fleet.workers.push(worker(3, Role::Prefiller, 0));
    fleet.workers[0].tokens_per_s = Some(50_000.0);
    let new = turn(2_000, None, 0);
    assert_eq!(decide(PolicyKind::Strict, &new, &fleet), Some((Some(0), 2)));
    fleet.workers[0].others_first = true;
    fleet.workers[2].others_first = true;
    assert_eq!(
        decide(PolicyKind::Strict, &new, &fleet),
        Some((Some(3), 1)),
        "a slower prefiller and a fuller decoder that serve"
    );
    for worker in &mut fleet.workers {
        worker.others_first = true;
    }
    assert_eq!(
        decide(PolicyKind::Strict, &new, &fleet),
        Some((Some(0), 2)),
        "nobody is left: as if nothing had failed"
    );
}

#[test]
fn a_first_turn_goes_to_the_emptiest_decoder_by_the_way_that_the_policy_names() {
    let first = turn(4_000, None, 0);
    for (kind, prefiller) in [
        (PolicyKind::Strict, Some(0)),
        (PolicyKind::Disaggregated, Some(0)),
        (PolicyKind::Ppd, Some(0)),
        (PolicyKind::Ampd, Some(0)),
        (PolicyKind::Collocated, None),
        (PolicyKind::CollocatedSpread, None),
    ] {
        assert_eq!(
            decide(kind, &first, &split()),
            Some((prefiller, 2)),
            "{}",
            kind.as_str()
        );
    }
}

#[test]
fn a_later_turn_stays_unless_the_policy_has_a_reason() {
    let short = turn(4_100, Some(1), 4_000);
    let long = turn(4_512, Some(1), 4_000);
    for (kind, with_short, with_long) in [
        (
            PolicyKind::Disaggregated,
            Some((Some(0), 1)),
            Some((Some(0), 1)),
        ),
        (PolicyKind::Ppd, None, Some((Some(0), 1))),
        (
            PolicyKind::CollocatedSpread,
            Some((None, 2)),
            Some((None, 2)),
        ),
        (PolicyKind::FollowKv, None, None),
    ] {
        assert_eq!(
            decide(kind, &short, &split()),
            with_short,
            "{}, 100 new tokens",
            kind.as_str()
        );
        assert_eq!(
            decide(kind, &long, &split()),
            with_long,
            "{}, 512 new tokens",
            kind.as_str()
        );
    }
}

/// 100 new tokens take 10 ms on either side at 10,000 tokens/s, each with a decode step of 20 ms.
#[test]
fn ampd_stays_where_both_take_as_long_and_goes_where_home_is_busy() {
    let next = turn(4_100, Some(1), 4_000);
    let gone = Some((Some(0), 1));
    let busy = |tokens| {
        let mut fleet = split();
        fleet.workers[1].computing = Tokens(tokens);
        fleet
    };
    // At home 10 + 20 ms and the queue; away 10 + 20 ms and the link, 5 + 1.15 ms.
    assert_eq!(decide(variant("ampd(min)"), &next, &split()), None);
    assert_eq!(
        decide(variant("ampd(min)"), &next, &busy(61)),
        None,
        "36.1 ms, 36.15"
    );
    assert_eq!(
        decide(variant("ampd(min)"), &next, &busy(62)),
        gone,
        "36.2 ms, 36.15"
    );
    assert_eq!(
        decide(variant("ampd(min, X=0)"), &next, &busy(1)),
        gone,
        "the link is free"
    );
    assert_eq!(
        decide(variant("ampd(min, X=0, blind=1)"), &next, &busy(9_000)),
        None
    );
    // Without a cache the prefiller computes 4,100 tokens: 410 ms.
    let costly = variant("ampd(min, pcache=0)");
    assert_eq!(decide(costly, &next, &busy(4_000)), None, "430 ms, 436");
    assert_eq!(decide(costly, &next, &busy(4_100)), gone, "440 ms, 436");
    // It fetches the history instead: 5 + 46 ms.
    assert_eq!(
        decide(variant("ampd(min, pcache=0, fetch=1)"), &next, &busy(1_000)),
        gone
    );
}

#[test]
fn a_link_that_was_measured_counts_in_place_of_the_usual_one() {
    let next = turn(4_100, Some(1), 4_000);
    let with = |computing, link_ms_per_token| {
        let mut fleet = split();
        fleet.workers[1].computing = Tokens(computing);
        fleet.link_ms_per_token = link_ms_per_token;
        decide(variant("ampd(min)"), &next, &fleet)
    };
    let gone = Some((Some(0), 1));
    assert_eq!(with(100, None), gone, "40 ms, 36.15");
    assert_eq!(with(100, Some(0.05)), None, "40 ms, 10 + 20 + 5 + 5");
    assert_eq!(with(101, Some(0.05)), gone, "40.1 ms, 40");
}

#[test]
fn the_rules_of_ampd_differ_in_what_comes_first() {
    let next = turn(4_100, Some(1), 4_000);
    let gone = Some((Some(0), 1));
    let with = |computing, queued| {
        let mut fleet = split();
        fleet.workers[1].computing = Tokens(computing);
        fleet.workers[0].queued = Tokens(queued);
        fleet
    };
    let of = |rule: &str, fleet: &Observed| decide(variant(&format!("ampd({rule})")), &next, fleet);
    // Both in time; the step of 20 ms and 100 tokens make a gap of 30 ms, home is a little faster.
    assert_eq!(of("slo", &with(0, 0)), None);
    assert_eq!(of("remote_first", &with(0, 0)), gone);
    // 500 more tokens make the gap 80 ms > 60 ms: away, although that is slower.
    assert_eq!(of("slo", &with(500, 900)), gone);
    assert_eq!(of("min", &with(500, 900)), None);
    // Neither in time: the faster one.
    assert_eq!(of("slo", &with(20_000, 30_000)), None);
    assert_eq!(of("remote_first", &with(20_000, 30_000)), None);
    assert_eq!(of("slo", &with(30_000, 20_000)), gone);
    // A target that home meets and the prefiller does not.
    assert_eq!(of("remote_first", &with(0, 30_000)), None);
    assert_eq!(of("slo", &with(0, 30_000)), None);
    assert_eq!(of("static, threshold=101", &with(90_000, 0)), None);
    assert_eq!(of("static, threshold=100", &with(0, 90_000)), gone);
}

#[test]
fn deflect_computes_at_a_decoder_what_the_prefiller_would_have_later() {
    let first = turn(4_000, None, 0);
    let with = |queued, running| {
        let mut fleet = split();
        fleet.workers[0].queued = Tokens(queued);
        for worker in &mut fleet.workers {
            worker.running = running;
        }
        fleet
    };
    let kind = PolicyKind::Deflect;
    // At the prefiller 400 ms, the link 51 ms, a step 20 ms: 471 ms. At a decoder in chunks of (60 - 20) x 10 = 400
    // tokens: 10 steps of 20 ms and 400 ms, 600 ms.
    assert_eq!(decide(kind, &first, &with(0, 3)), Some((Some(0), 2)));
    assert_eq!(
        decide(kind, &first, &with(1_290, 3)),
        Some((Some(0), 2)),
        "600 ms as well"
    );
    assert_eq!(
        decide(kind, &first, &with(1_300, 3)),
        Some((None, 2)),
        "601 ms; the emptier of two as fast"
    );
    // Where nothing decodes the chunks are of 2,048 tokens: 2 steps.
    assert_eq!(decide(kind, &first, &with(0, 0)), Some((None, 2)), "440 ms");
    // No chunk keeps gaps under 21 ms, where a step takes 20: the prefiller, however long its queue.
    let strict = variant("deflect(tbt_ms=21)");
    assert_eq!(decide(strict, &first, &with(60_000, 3)), Some((Some(0), 2)));
    // A prefiller that takes no more is no reason to wait.
    assert_eq!(decide(kind, &first, &with(65_536, 3)), Some((None, 2)));
    // Later turns: 100 tokens take a step and 10 ms at home, as much and the link away.
    let next = turn(4_100, Some(1), 4_000);
    assert_eq!(decide(kind, &next, &with(0, 3)), None);
    let mut busy = with(0, 3);
    busy.workers[1].computing = Tokens(900);
    assert_eq!(
        decide(kind, &next, &busy),
        Some((Some(0), 1)),
        "1,000 tokens: 3 steps and 100 ms"
    );
}

#[test]
fn without_a_cache_a_whole_prompt_is_queued_at_the_prefiller() {
    let next = turn(4_100, Some(1), 4_000);
    for (text, queued) in [
        ("disaggregated", 100),
        ("disaggregated(pcache=0)", 4_100),
        ("ppd(0, pcache=0, fetch=1)", 100),
    ] {
        let Decision::Place { compute, .. } = policy(variant(text)).place(&next, &split()) else {
            panic!("{text} goes to the prefiller");
        };
        assert_eq!(compute, Tokens(queued), "{text}");
    }
}

fn any_worker(id: u16) -> impl Strategy<Value = WorkerView> {
    (
        prop::sample::select(vec![Role::Prefiller, Role::Decoder, Role::Both]),
        any::<bool>(),
        prop::option::of(1..2_000_u64),
        0..2_000_u64,
        0..9_u32,
        0..100_000_u32,
        prop::option::of(1.0..50_000.0_f64),
        prop::option::of(1..20_000_u32),
    )
        .prop_map(
            move |(role, open, capacity, booked, running, queued, rate, longest)| WorkerView {
                helps: role == Role::Both && queued % 3 == 0,
                open,
                capacity: capacity.map(Blocks::new),
                booked: Blocks::new(booked.min(capacity.unwrap_or(0))),
                running,
                growth_waits: queued % 5 == 0,
                queued: Tokens(queued),
                computing: Tokens(queued % 7_000),
                tokens_per_s: rate,
                step_ms: rate.map(|rate| rate / 100.0),
                max_model_len: longest.map(Tokens),
                ..worker(id, role, 0)
            },
        )
}

proptest! {
    #[test]
    fn what_is_decided_can_be_carried_out(
        workers in (1..6_u16).prop_flat_map(|count| (0..count).map(any_worker).collect::<Vec<_>>()),
        prompt in 1..30_000_u32,
        resident in 0..30_000_u32,
        home in prop::option::of(0..6_u16),
        tie in any::<u64>(),
        kind in prop::sample::select(PolicyKind::ALL.map(PolicyChoice::from).into_iter().chain(
            ["ampd(min, X=0, pcache=0)", "ampd(remote_first, fetch=1)", "ampd(static, threshold=0)"].map(variant)
        ).collect::<Vec<_>>()),
    ) {
        let fleet = fleet(&workers);
        let home = home.filter(|home| workers.iter().any(|worker| worker.id.get() == *home && worker.role.decodes()));
        let turn = TurnView { tie, ..turn(prompt, home, resident.min(prompt)) };
        let kind: PolicyChoice = kind;
        let decision = policy(kind).place(&turn, &fleet);
        prop_assert_eq!(decision, policy(kind).place(&turn, &fleet), "I5");
        match decision {
            Decision::Queue => prop_assert!(turn.home.is_some(), "there is a place to give up"),
            Decision::Stay => prop_assert!(turn.home.is_some(), "there is a home to stay at"),
            Decision::Place { prefiller, decoder, ceiling, alone, .. } => {
                let by_id = |id| workers.iter().find(|worker| worker.id == id).expect("one of the fleet");
                let decoder = by_id(decoder);
                prop_assert!(decoder.role.decodes());
                prop_assert!(decoder.open || Some(decoder.id) == turn.home, "a closed decoder gets nothing new");
                prop_assert!(ceiling <= decoder.capacity.unwrap_or(Blocks::ZERO));
                prop_assert!(ceiling <= alone);
                if let Some(prefiller) = prefiller.map(by_id) {
                    prop_assert!(prefiller.role.prefills());
                    prop_assert!(prefiller.id != decoder.id, "nobody hands over to itself");
                    prop_assert!(prefiller.open || Some(prefiller.id) == turn.home);
                }
            }
            Decision::Wait(_) | Decision::TooLong { .. } => {}
        }
    }
}
