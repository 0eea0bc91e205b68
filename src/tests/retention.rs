//! Engines that keep what finished turns left until a time has passed: the books keep it as long.

use std::time::Duration;

use proptest::prelude::*;

use super::support::{SECOND, at, booked, fleet, granted, key, wait};
use crate::config::{Config, PolicyKind};
use crate::error::Rejected;
use crate::router::{Begin, FailReason, Router, Turn, TurnRequest, Usage};
use crate::units::{Blocks, Timestamp, Tokens, WorkerId};

const TTL: u64 = 100;

fn pinning() -> Config {
    Config {
        retention: Some(Duration::from_secs(TTL)),
        low_watermark: 1.0,
        ..Config::default()
    }
}

fn begin(router: &Router, number: u128, tokens: u32, now: Timestamp) -> Result<Turn, Rejected> {
    let request = TurnRequest {
        key: key(number),
        prompt_tokens: Tokens(tokens),
        wait: None,
    };
    match router.begin(&request, now)? {
        Begin::Started(turn) => Ok(turn),
        Begin::Waiting(_) => unreachable!("a turn that does not want to wait is answered at once"),
    }
}

/// One turn of `tokens` with its answer of 10 tokens in them, `cached` of which the engine found.
fn turn(router: &Router, number: u128, tokens: u32, cached: Option<u32>, now: Timestamp) {
    let usage = Usage {
        prompt: Some(Tokens(tokens - 10)),
        output: Some(Tokens(10)),
        cached: cached.map(Tokens),
    };
    begin(router, number, tokens - 10, now)
        .expect("there is room")
        .finish(usage, now);
}

fn retained(router: &Router) -> u32 {
    router.snapshot(at(0)).workers[0].retained.get()
}

#[test]
fn a_closed_conversation_stays_booked_until_its_engine_lets_go() {
    let router = fleet(pinning(), 0, &[20]);
    turn(&router, 1, 160, None, at(1));
    assert_eq!(booked(&router, 0), 10);
    assert!(router.close(key(1), at(5)));
    assert_eq!((booked(&router, 0), retained(&router)), (10, 10));
    router.tick(Timestamp((1 + TTL) * SECOND - 1));
    assert_eq!(booked(&router, 0), 10, "its time is that of its last turn");
    router.tick(at(1 + TTL));
    assert_eq!((booked(&router, 0), retained(&router)), (0, 0));
}

#[test]
fn without_retention_a_closed_conversation_frees_its_blocks_at_once() {
    let config = Config {
        retention: None,
        ..pinning()
    };
    let router = fleet(config, 0, &[20]);
    turn(&router, 1, 160, None, at(1));
    assert!(router.close(key(1), at(5)));
    assert_eq!(booked(&router, 0), 0);
}

#[test]
fn what_was_idle_for_longer_than_engines_keep_it_is_free_at_once() {
    let router = fleet(pinning(), 0, &[20]);
    turn(&router, 1, 160, None, at(1));
    assert!(router.close(key(1), at(1 + TTL)));
    assert_eq!((booked(&router, 0), retained(&router)), (0, 0));
}

#[test]
fn who_waits_is_served_when_the_engine_lets_go() {
    let router = fleet(pinning(), 0, &[20]);
    turn(&router, 1, 240, None, at(0));
    let ticket = wait(&router, 2, 10);
    assert!(router.close(key(1), at(1)));
    router.tick(at(2));
    assert!(granted(&ticket).is_none(), "closed is not free");
    // The ticket's patience ends at 11 s: another stands in for it.
    router.tick(at(20));
    drop(ticket);
    let late = TurnRequest {
        key: key(3),
        prompt_tokens: Tokens(160),
        wait: Some(Duration::from_secs(TTL)),
    };
    let Ok(Begin::Waiting(ticket)) = router.begin(&late, at(30)) else {
        panic!("expected to wait");
    };
    router.tick(at(TTL));
    let turn = ticket.take(at(TTL)).expect("answered").expect("granted");
    turn.finish(Usage::default(), at(TTL));
    assert_eq!(booked(&router, 0), 10);
}

#[test]
fn each_later_turn_leaves_the_partial_block_of_the_one_before() {
    let router = fleet(pinning(), 0, &[20]);
    turn(&router, 1, 100, None, at(1));
    assert_eq!(booked(&router, 0), 7, "100 tokens fill 6 blocks and a part");
    // Found: the 6 whole blocks. The seventh is kept for turn 1 and computed again for turn 2.
    turn(&router, 1, 120, Some(96), at(10));
    assert_eq!((booked(&router, 0), retained(&router)), (9, 1));
    // An engine that does not say what it found: 119 / 16 = 7 whole blocks, of 8.
    turn(&router, 1, 140, None, at(20));
    assert_eq!((booked(&router, 0), retained(&router)), (11, 2));
    router.tick(at(10 + TTL));
    assert_eq!((booked(&router, 0), retained(&router)), (10, 1));
    router.tick(at(20 + TTL));
    assert_eq!(
        (booked(&router, 0), retained(&router)),
        (9, 0),
        "140 tokens"
    );
}

#[test]
fn a_rewritten_history_stands_beside_the_old_one() {
    let router = fleet(pinning(), 0, &[40]);
    turn(&router, 1, 320, None, at(1));
    // 5 blocks, of which 2 are the old one's: 20 + 3 are in use.
    turn(&router, 1, 80, Some(32), at(10));
    assert_eq!((booked(&router, 0), retained(&router)), (23, 18));
    router.tick(at(10 + TTL));
    assert_eq!(booked(&router, 0), 5);
}

#[test]
fn the_next_turn_asks_for_the_block_that_is_not_shared() {
    let router = fleet(pinning(), 0, &[10]);
    turn(&router, 1, 150, None, at(1));
    // 10 blocks and the partial one of before are 11.
    assert!(begin(&router, 1, 160, at(2)).is_err());
    assert_eq!(booked(&router, 0), 10);
    begin(&router, 1, 160, at(1 + TTL))
        .expect("nothing is kept any more")
        .finish(Usage::default(), at(2 + TTL));
}

#[test]
fn a_turn_that_outlives_its_conversation_is_kept_too() {
    let router = fleet(pinning(), 0, &[20]);
    turn(&router, 1, 96, None, at(1));
    let running = begin(&router, 1, 128, at(10)).expect("there is room");
    assert!(router.close(key(1), at(11)));
    running.finish(Usage::default(), at(12));
    // 6 of turn 1 until 110 s; 2 and the partial one of turn 2 until 112 s.
    assert_eq!((booked(&router, 0), retained(&router)), (9, 9));
    router.tick(at(10 + TTL));
    assert_eq!(retained(&router), 3);
    router.tick(at(12 + TTL));
    assert_eq!(booked(&router, 0), 0);
}

#[test]
fn a_turn_that_ends_where_its_conversation_is_no_more_counts_as_a_use_of_home() {
    let router = fleet(pinning(), 0, &[20, 20]);
    let first = begin(&router, 1, 1, at(1)).expect("there is room");
    let elsewhere = begin(&router, 1, 81, at(1)).expect("beside the first");
    drop(first);
    turn(&router, 1, 32, None, at(1));
    assert_eq!((booked(&router, 0), booked(&router, 1)), (6, 2), "it moved");
    elsewhere.finish(Usage::default(), at(50));
    let (engine, home) = (router.engine(), WorkerId::new(1).expect("small"));
    assert!(some_is_kept(&router, home, at(149)));
    assert!(engine.keeps_some(engine.fleet.worker(home), at(149)));
}

#[test]
fn a_turn_that_failed_leaves_nothing_behind() {
    let router = fleet(pinning(), 0, &[20]);
    turn(&router, 1, 96, None, at(1));
    drop(begin(&router, 1, 128, at(10)).expect("there is room"));
    assert_eq!((booked(&router, 0), retained(&router)), (6, 0));
}

#[test]
fn nothing_is_evicted_that_the_engine_keeps() {
    let config = Config {
        evict_idle: true,
        ..pinning()
    };
    let router = fleet(config, 0, &[20]);
    turn(&router, 1, 240, None, at(1));
    assert!(begin(&router, 2, 160, at(50)).is_err());
    let turn = begin(&router, 2, 160, at(1 + TTL)).expect("the engine lets go");
    turn.finish(Usage::default(), at(2 + TTL));
    assert_eq!(booked(&router, 0), 20, "5 of 15 were taken");
}

#[test]
fn who_finds_no_room_does_not_walk_the_conversations() {
    let config = Config {
        evict_idle: true,
        ..pinning()
    };
    let router = fleet(config, 0, &[21]);
    for number in 1..=10 {
        turn(&router, number, 32, None, at(1));
    }
    let visited = || router.engine().table.visited.get();
    let refused = |seconds| {
        let before = visited();
        assert!(
            begin(&router, 1, 160, at(seconds)).is_err(),
            "no room to grow"
        );
        assert!(
            begin(&router, 11, 160, at(seconds)).is_err(),
            "no room at all"
        );
        visited() - before
    };
    assert!(refused(2) <= 10, "the first finds out what is there");
    assert_eq!(refused(3), 0);
    // Whoever begins and gives up makes nobody look again.
    for seconds in 4..8 {
        drop(begin(&router, 2, 16, at(seconds)).expect("the block that is not shared"));
        assert_eq!(refused(seconds), 0);
    }
    let before = visited();
    let turn = begin(&router, 11, 160, at(1 + TTL)).expect("the engine lets go");
    assert_eq!(visited() - before, 0, "nine were idle all the while");
    turn.finish(Usage::default(), at(1 + TTL));
}

/// What `keeps_some` tells, from every conversation there is.
fn some_is_kept(router: &Router, id: WorkerId, now: Timestamp) -> bool {
    let engine = router.engine();
    let mut kept = engine.fleet.worker(id).retained.blocks() > Blocks::ZERO;
    engine.table.for_each(|_, conversation| {
        let state = conversation.state();
        let ends = conversation.last_used() + Duration::from_secs(TTL);
        kept |= state.is_on(id) && state.blocks > Blocks::ZERO && ends > now;
    });
    kept
}

#[test]
fn a_newcomer_goes_where_nothing_is_kept() {
    let router = fleet(pinning(), 0, &[20, 20]);
    turn(&router, 1, 240, None, at(1));
    assert!(router.close(key(1), at(2)));
    turn(&router, 2, 160, None, at(3));
    turn(&router, 3, 160, None, at(4));
    assert_eq!((booked(&router, 0), booked(&router, 1)), (15, 20));
    assert!(
        begin(&router, 4, 160, at(5)).is_err(),
        "15 + 10 are above 20"
    );
}

#[test]
fn what_a_decoder_keeps_of_a_conversation_that_a_failed_turn_unpins_is_booked() {
    let router = fleet(pinning(), 0, &[20]);
    turn(&router, 1, 96, None, at(1));
    // A connection that was cut, say: the decoder may live.
    let next = begin(&router, 1, 128, at(10)).expect("there is room");
    next.fail(FailReason::DecoderLost, at(11));
    assert_eq!((booked(&router, 0), retained(&router)), (6, 6));
    router.check().expect("the accounting identity");
    router.tick(at(10 + TTL));
    assert_eq!(booked(&router, 0), 0);
}

#[test]
fn what_home_keeps_of_a_closed_conversation_is_booked_when_its_prompt_fails_elsewhere() {
    let config = Config {
        policy: PolicyKind::Disaggregated.into(),
        ..pinning()
    };
    let router = fleet(config, 1, &[20]);
    let kept = || router.snapshot(at(0)).workers[1].retained.get();
    turn(&router, 1, 96, None, at(1));
    let next = begin(&router, 1, 128, at(10)).expect("there is room");
    assert!(next.route().handoff, "computed on the prefiller");
    assert!(router.close(key(1), at(11)));
    next.fail(FailReason::ClientGone, at(12));
    assert_eq!((booked(&router, 1), kept()), (6, 6));
    router.check().expect("the accounting identity");
    router.tick(at(10 + TTL));
    assert_eq!(booked(&router, 1), 0);
}

#[test]
fn what_home_holds_is_held_again_when_a_prompt_fails_elsewhere_whoever_ended_meanwhile() {
    for retention in [None, Some(Duration::from_secs(TTL))] {
        let config = Config {
            policy: PolicyKind::Disaggregated.into(),
            retention,
            ..pinning()
        };
        let router = fleet(config, 1, &[20]);
        let first = begin(&router, 1, 160, at(1)).expect("there is room");
        let beside = begin(&router, 1, 16, at(1)).expect("beside the first");
        first.finish(Usage::default(), at(2));
        let elsewhere = begin(&router, 1, 96, at(3)).expect("10 are lent");
        assert!(elsewhere.route().handoff);
        beside.finish(Usage::default(), at(4));
        elsewhere.fail(FailReason::ClientGone, at(5));
        let held = router.conversation(key(1)).expect("open").blocks;
        assert_eq!((held.get(), booked(&router, 1)), (10, 10));
        router.check().expect("the accounting identity");
    }
}

/// What may happen to a conversation.
#[derive(Debug, Clone)]
enum Happening {
    Begin {
        number: u128,
        tokens: u32,
    },
    Finish {
        place: usize,
        output: u32,
        cached: Option<u32>,
    },
    Fail {
        place: usize,
        lost: bool,
    },
    Drop(usize),
    Close(u128),
    Relocate(u128),
    Pass(u64),
}

fn happening() -> impl Strategy<Value = Happening> {
    let cached = proptest::option::of(0..400_u32);
    prop_oneof![
        4 => (0..4_u128, 1..300_u32).prop_map(|(number, tokens)| Happening::Begin { number, tokens }),
        4 => (0..4_usize, 0..40_u32, cached)
            .prop_map(|(place, output, cached)| Happening::Finish { place, output, cached }),
        1 => (0..4_usize, any::<bool>()).prop_map(|(place, lost)| Happening::Fail { place, lost }),
        1 => (0..4_usize).prop_map(Happening::Drop),
        1 => (0..4_u128).prop_map(Happening::Close),
        1 => (0..4_u128).prop_map(Happening::Relocate),
        2 => (1..60_u64).prop_map(Happening::Pass),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases.max(300), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_books_balance_and_end_empty(
        evict_idle in any::<bool>(),
        elsewhere in any::<bool>(),
        capacities in proptest::collection::vec(5..40_u64, 1..3),
        happenings in proptest::collection::vec(happening(), 1..60),
    ) {
        let policy = if elsewhere { PolicyKind::Disaggregated } else { PolicyKind::Strict };
        let config = Config { evict_idle, policy: policy.into(), ..pinning() };
        let router = fleet(config, usize::from(elsewhere), &capacities);
        let (mut turns, mut now, mut last) = (Vec::new(), at(1), at(1));
        for each in happenings {
            match each {
                Happening::Begin { number, tokens } => turns.extend(begin(&router, number, tokens, now)),
                Happening::Finish { place, output, cached } if place < turns.len() => {
                    let usage = Usage {
                        prompt: None,
                        output: Some(Tokens(output)),
                        cached: cached.map(Tokens),
                    };
                    turns.swap_remove(place).finish(usage, now);
                    last = now;
                }
                Happening::Drop(place) if place < turns.len() => drop(turns.swap_remove(place)),
                Happening::Fail { place, lost } if place < turns.len() => {
                    let why = if lost { FailReason::DecoderLost } else { FailReason::Rejected };
                    turns.swap_remove(place).fail(why, now);
                    last = now;
                }
                Happening::Finish { .. } | Happening::Fail { .. } | Happening::Drop(_) => {}
                Happening::Close(number) => { router.close(key(number), now); }
                Happening::Relocate(number) => { router.relocate(key(number), now); }
                Happening::Pass(seconds) => {
                    now = now + Duration::from_secs(seconds);
                    router.tick(now);
                }
            }
            router.check().expect("the accounting identity");
            for row in router.snapshot(now).workers {
                prop_assert!(row.booked <= row.capacity.unwrap_or_default());
                let id = row.worker.id;
                let told = router.engine().keeps_some(router.engine().fleet.worker(id), now);
                let kept = some_is_kept(&router, id, now);
                // What a conversation holds that is being brought to where it is, its turn has.
                prop_assert!(told == kept || told && row.reserved > Blocks::ZERO, "{} {}", told, kept);
            }
        }
        turns.clear();
        for number in 0..4 {
            router.close(key(number), now);
        }
        router.tick(now.max(last) + Duration::from_secs(TTL + 1));
        for row in router.snapshot(now).workers {
            prop_assert_eq!((row.booked.get(), row.retained.get()), (0, 0));
        }
    }
}
