//! `follow-kv`: what it costs, and what follows from that.

use super::*;

/// Whoever may compute prompts hands over where that is cheaper.
fn anybody() -> PolicyChoice {
    variant("follow-kv(handoff=cheaper)")
}

#[test]
fn it_hands_over_only_what_is_cheaper_elsewhere() {
    let first = turn(4_000, None, 0);
    // 4,000 tokens at 10,000/s are 400 ms on both; over the link they are 51 ms more.
    assert_eq!(decide(anybody(), &first, &split()), Some((None, 2)));
    let mut busy = split();
    // Two turns run on the decoder: the prompt would take half its time from each of them, 800 ms in all.
    busy.workers[2].running = 2;
    busy.workers[2].booked = Blocks::new(0);
    assert_eq!(decide(anybody(), &first, &busy), Some((Some(0), 2)));
    let brief = turn(511, None, 0);
    assert_eq!(
        decide(anybody(), &brief, &busy),
        Some((None, 2)),
        "below 512 tokens"
    );
}

fn moving() -> PolicyChoice {
    "follow-kv(move_share=0.5)".parse().expect("an option")
}

#[test]
fn it_moves_a_pin_only_from_a_home_that_is_much_worse() {
    let pair = |queued| {
        let mut home = worker(0, Role::Both, 300);
        home.queued = Tokens(queued);
        fleet(&[home, worker(1, Role::Both, 100)])
    };
    let next = turn(4_600, Some(0), 4_000);
    // Elsewhere the whole prompt, 460 ms; at home 60 ms and the queue.
    assert_eq!(
        decide(moving(), &next, &pair(6_000)),
        None,
        "460 is not below 0.5 x 660 - 500"
    );
    assert_eq!(
        decide(moving(), &next, &pair(20_000)),
        Some((None, 1)),
        "460 < 0.5 x 2,060 - 500"
    );
}

#[test]
fn it_places_afresh_what_has_nothing_to_lose() {
    let pair = fleet(&[worker(0, Role::Both, 300), worker(1, Role::Both, 100)]);
    let lost = turn(6_000, Some(0), 1_000);
    assert_eq!(
        decide(anybody(), &lost, &pair),
        Some((None, 1)),
        "home is fuller by 0.2"
    );
    let even = fleet(&[worker(0, Role::Both, 150), worker(1, Role::Both, 100)]);
    assert_eq!(
        decide(anybody(), &lost, &even),
        None,
        "fuller by 0.05 and as fast"
    );
}

#[test]
fn equal_workers_and_an_idle_fleet_make_follow_kv_collocated() {
    let equal = fleet(&[worker(0, Role::Both, 100), worker(1, Role::Both, 100)]);
    let first = turn(9_000, None, 0);
    assert_eq!(
        decide(anybody(), &first, &equal),
        decide(PolicyKind::Collocated, &first, &equal)
    );
}

/// The second decoder of `split`, emptiest, with prompts of its own; 10 tokens are a millisecond.
fn busy_decoder(computing: u32, usual: f64) -> Observed {
    let mut fleet = split();
    fleet.workers[2].computing = Tokens(computing);
    fleet.workers[2].usual = usual;
    fleet.workers[1].booked = Blocks::new(700);
    fleet
}

#[test]
fn it_counts_the_prompts_that_the_decoder_turns_to_first() {
    let first = turn(4_000, None, 0);
    let with = |computing, usual| decide(anybody(), &first, &busy_decoder(computing, usual));
    assert_eq!(
        with(4_000, 0.0),
        Some((Some(0), 2)),
        "there 400 + 51 ms, and the decoder is busy for 400; here 800, of which 0.65 less 20 ms are 500"
    );
    assert_eq!(
        with(8_000, 0.0),
        Some((None, 2)),
        "the decoder is busy for 800 ms: above 0.65 x 1,200 - 20"
    );
    assert_eq!(
        with(4_000, 500.0),
        Some((None, 2)),
        "501 ms: 50 ms of others' prompts usually come first"
    );
    let mut unusual = variant("follow-kv(handoff=cheaper, later=0)");
    assert_eq!(
        decide(unusual, &first, &busy_decoder(4_000, 500.0)),
        Some((Some(0), 2))
    );
    unusual = variant("follow-kv(handoff=never)");
    assert_eq!(
        decide(unusual, &first, &busy_decoder(4_000, 0.0)),
        Some((None, 2))
    );
}

/// Two that do both; the first is emptier and has prompts of 800 ms.
fn uneven(fuller: u64) -> Observed {
    let mut first = worker(0, Role::Both, 100);
    first.computing = Tokens(8_000);
    fleet(&[first, worker(1, Role::Both, 100 + fuller)])
}

#[test]
fn by_the_roles_prefillers_compute_and_workers_that_do_both_only_if_made_helpers() {
    let first = turn(4_000, None, 0);
    let usual = PolicyKind::FollowKv;
    assert_eq!(
        decide(usual, &first, &split()),
        Some((Some(0), 2)),
        "as strict"
    );
    let both =
        |count: u16| -> Vec<_> { (0..count).map(|id| worker(id, Role::Both, 100)).collect() };
    let mut busy = fleet(&both(3));
    busy.workers[0].computing = Tokens(4_000);
    busy.workers[1].computing = Tokens(4_000);
    busy.workers[2].booked = Blocks::new(600);
    let (nobody, _) = decide(usual, &first, &busy).expect("a place");
    assert_eq!(nobody, None);
    let (other, _) = decide(anybody(), &first, &busy).expect("a place");
    assert_eq!(other, Some(2), "it was not asked whether it can");
    let mut mixed = fleet(&both(3));
    mixed.workers[0].role = Role::Prefiller;
    mixed.workers[0].queued = Tokens(60_000);
    let (given, _) = decide(usual, &first, &mixed).expect("a place");
    assert_eq!(given, Some(0), "however long its queue");
    let failed = [WorkerId::new(0).expect("small")];
    assert_eq!(policy(usual).next_prefiller(&first, &mixed, &failed), None);
    let mut helped = fleet(&both(3));
    helped.workers[0].helps = true;
    helped.workers[1].running = 4;
    helped.workers[2].running = 4;
    let (asked, _) = decide(usual, &first, &helped).expect("a place");
    assert_eq!(asked, Some(0));
    helped.workers[1].running = 1_000;
    helped.workers[2].running = 1_000;
    helped.workers[0].queued = helped.workers[0].backlog_limit;
    let (asked, _) = decide(usual, &first, &helped).expect("a place");
    assert_eq!(asked, None, "it takes no more, so nobody waits for it");
}

#[test]
fn a_turn_that_finds_its_kv_leaves_only_where_pins_move() {
    let asked =
        |text: &str, resident| policy(variant(text)).may_leave(Tokens(6_000), Tokens(resident));
    assert!(!asked("follow-kv", 5_000));
    assert!(asked("follow-kv", 3_000), "half is gone");
    assert!(!asked("follow-kv(afresh_from=3001)", 3_000));
    assert!(asked("follow-kv(move_share=0.5)", 5_000));
    assert!(asked("ampd", 5_000));
}

#[test]
fn it_lives_where_its_prompt_is_done_sooner_if_that_is_nearly_as_empty() {
    let first = turn(4_000, None, 0);
    for (fuller, home) in [(99, 1), (101, 0)] {
        assert_eq!(
            decide(anybody(), &first, &uneven(fuller)),
            Some((None, home)),
            "fuller by {fuller} of 1,000 blocks"
        );
    }
    let emptiest = variant("follow-kv(home_fuller=0)");
    assert_eq!(decide(emptiest, &first, &uneven(99)), Some((None, 0)));
    let mut failing = uneven(99);
    failing.workers[1].others_first = true;
    assert_eq!(
        decide(anybody(), &first, &failing),
        Some((None, 0)),
        "it failed a request lately"
    );
}

#[test]
fn every_term_of_a_cost_is_told() {
    let told = |fleet: &Observed| match policy(anybody()).place(&turn(4_000, None, 0), fleet) {
        Decision::Place { reason, .. } => reason.to_string(),
        other => panic!("there is room: {other:?}"),
    };
    let mut handed = busy_decoder(4_000, 100.0);
    handed.workers[0].queued = Tokens(100);
    handed.workers[2].running = 1;
    assert_eq!(
        told(&handed),
        "handed over: wait 10 + prompt 400 + stall of others 0 ms there, link 51, usual work at the decoder 10 ms; \
         wait 400 + prompt 400 + stall of others 200 ms at the decoder"
    );
    assert_eq!(
        told(&uneven(50)),
        "wait 0 + prompt 400 + stall of others 0 ms here; \
         wait 800 + prompt 400 + stall of others 0 ms where most blocks are free"
    );
}

proptest! {
    /// Nobody has to make room for a conversation that has a home.
    #[test]
    fn follow_kv_never_leaves_a_home_for_a_place_without_room(
        workers in (2..6_u16).prop_flat_map(|count| (0..count).map(any_worker).collect::<Vec<_>>()),
        prompt in 1..30_000_u32,
        resident in 0..30_000_u32,
        home in any::<prop::sample::Index>(),
        returns in any::<bool>(),
    ) {
        let fleet = fleet(&workers);
        let decoders: Vec<_> = workers.iter().filter(|worker| worker.role.decodes()).collect();
        let home = (!decoders.is_empty()).then(|| home.get(&decoders).id.get());
        let turn = TurnView { returns, ..turn(prompt, home, resident.min(prompt)) };
        let moves = variant("follow-kv(move_share=0.9, move_saves_ms=0, thrash_fill=0.9)");
        if let Decision::Place { decoder, .. } = policy(moves).place(&turn, &fleet) {
            let there = workers.iter().find(|worker| worker.id == decoder).expect("one of the fleet");
            let after = there.booked.plus(there.block_size.blocks(turn.prompt));
            let most = if returns { 0.9 } else { fleet.low_watermark };
            let room = there.capacity.expect("known, else nothing is placed").share(most);
            prop_assert!(after <= room || there.booked == Blocks::ZERO, "{after:?} of {room:?}");
        }
    }

    /// Whoever is as fast and as busy as home only adds the handoff.
    #[test]
    fn workers_that_are_alike_hand_nothing_over(
        like in any_worker(0),
        booked in prop::collection::vec(0..900_u64, 2..6),
        usual in 0.0..50_000.0_f64,
        prompt in 1..30_000_u32,
    ) {
        let alike = |(id, booked)| WorkerView {
            booked: Blocks::new(booked),
            capacity: Some(Blocks::new(1_000)),
            usual,
            ..WorkerView { id: WorkerId::new(id).expect("small"), role: Role::Both, ..like }
        };
        let workers: Vec<_> = (0..).zip(booked).map(alike).collect();
        if let Decision::Place { prefiller, .. } = policy(anybody()).place(&turn(prompt, None, 0), &fleet(&workers)) {
            prop_assert_eq!(prefiller, None);
        }
    }

    #[test]
    fn over_an_infinitely_slow_link_nothing_is_handed_over(
        workers in (2..6_u16).prop_flat_map(|count| (0..count).map(any_worker).collect::<Vec<_>>()),
        prompt in 1..30_000_u32,
    ) {
        let slow = variant("follow-kv(handoff=cheaper, link_ms_per_token=inf)");
        if let Decision::Place { prefiller, .. } = policy(slow).place(&turn(prompt, None, 0), &fleet(&workers)) {
            prop_assert_eq!(prefiller, None);
        }
    }
}
