//! Who gets room that idle conversations hold: by default growth takes it, and so do newcomers unless it is needed again.

use std::time::Duration;

use super::support::*;
use crate::config::{Config, PolicyKind};
use crate::conversation::ConversationPhase;
use crate::error::Rejected;
use crate::router::{Begin, FailReason, LostReason, Router, TurnRequest, Usage};
use crate::units::Tokens;

/// One decoder of 100 blocks, 80 for newcomers.
fn one_decoder() -> Router {
    fleet(Config::default(), 0, &[100])
}

fn holds(router: &Router, number: u128) -> (ConversationPhase, u32) {
    let view = router.conversation(key(number)).expect("open");
    (view.phase, view.blocks.get())
}

/// Half of what was computed lately had been computed before.
fn thrash(router: &Router) {
    run(router, 9, 10);
    let again = Usage {
        cached: Some(Tokens(0)),
        ..Usage::default()
    };
    ask(router, 9, 10).expect("room").finish(again, at(2));
    assert!(router.snapshot(at(2)).recomputed_share > Some(0.4));
}

#[test]
fn two_idle_conversations_that_both_grow_do_not_wait_for_each_other() {
    let router = one_decoder();
    run(&router, 1, 40);
    run(&router, 2, 40);
    run(&router, 1, 70);
    assert_eq!(
        holds(&router, 2),
        (ConversationPhase::Pinned, 30),
        "its tail"
    );
    run(&router, 2, 70);
    assert_eq!(holds(&router, 1), (ConversationPhase::Pinned, 30));
    assert_eq!(router.snapshot(at(2)).totals.evicted, 2);
}

#[test]
fn a_newcomer_takes_the_room_of_the_longest_idle_and_they_stay_pinned() {
    let router = one_decoder();
    run(&router, 1, 40);
    run(&router, 2, 40);
    run(&router, 3, 50);
    assert_eq!(holds(&router, 1), (ConversationPhase::Pinned, 0));
    assert_eq!(holds(&router, 2), (ConversationPhase::Pinned, 30));
    assert_eq!(booked(&router, 0), 80);
}

#[test]
fn newcomers_wait_while_what_they_evict_is_needed_again_but_for_no_idle_decoder() {
    let router = one_decoder();
    thrash(&router);
    run(&router, 1, 60);
    let running = ask(&router, 2, 10).expect("80 of 80");
    let newcomer = wait(&router, 3, 30);
    assert!(granted(&newcomer).is_none(), "idle ones hold 70");
    finish(running);
    finish(granted(&newcomer).expect("nothing runs that could suffer"));
    router.check_progress().expect("nobody waits");
}

#[test]
fn newcomers_are_served_when_the_last_turn_ends_though_its_conversation_leaves_with_it() {
    let router = one_decoder();
    thrash(&router);
    run(&router, 1, 60);
    run(&router, 2, 0);
    let running = ask(&router, 2, 0).expect("it needs nothing");
    let newcomer = wait(&router, 3, 30);
    running.fail(FailReason::DecoderLost, at(2));
    finish(granted(&newcomer).expect("nothing runs that could suffer"));
}

#[test]
fn newcomers_are_served_when_a_turn_ends_on_a_lost_decoder_and_less_is_computed_again() {
    let config = Config {
        policy: PolicyKind::Strict.into(),
        ..Config::default()
    };
    let router = fleet(config, 0, &[200, 100]);
    thrash(&router);
    let long = ask(&router, 1, 140).expect("150 of 160");
    run(&router, 2, 60);
    let running = ask(&router, 4, 10).expect("70 of 80");
    let lost = long.route().decoder.id;
    assert_ne!(running.route().decoder.id, lost);
    router.lose(lost, LostReason::Asked, at(2));
    let newcomer = wait(&router, 3, 30);
    finish(long);
    assert!(router.snapshot(at(2)).recomputed_share < Some(0.1));
    finish(granted(&newcomer).expect("idle ones may be evicted"));
}

#[test]
fn growth_that_waits_is_served_when_less_is_computed_again_elsewhere() {
    let config = Config {
        policy: PolicyKind::Strict.into(),
        tail_waits: true,
        evict_idle_below: 0.3,
        ..Config::default()
    };
    let router = fleet(config, 0, &[100, 100]);
    thrash(&router);
    run(&router, 2, 20);
    run(&router, 3, 30);
    let again = Usage {
        cached: Some(Tokens(0)),
        ..Usage::default()
    };
    ask(&router, 3, 30).expect("room").finish(again, at(2));
    assert!(router.snapshot(at(2)).recomputed_share > Some(0.3));
    let running = ask(&router, 3, 30).expect("it needs nothing");
    let growing = wait(&router, 3, 95);
    let elsewhere = ask(&router, 2, 100).expect("room");
    assert_ne!(elsewhere.route().decoder.id, running.route().decoder.id);
    finish(elsewhere);
    assert!(router.snapshot(at(2)).recomputed_share < Some(0.3));
    finish(granted(&growing).expect("the idle one may be evicted"));
    finish(running);
}

#[test]
fn growth_runs_though_turns_in_flight_hold_the_room() {
    let router = one_decoder();
    run(&router, 1, 40);
    let other = ask(&router, 2, 40).expect("80 of 80");
    let grown = ask(&router, 1, 100).expect("its engine finds the room");
    assert_eq!(booked(&router, 0), 100, "the books never pass the capacity");
    finish(other);
    finish(grown);
    assert_eq!(booked(&router, 0), 100);
}

#[test]
fn turns_that_wait_to_grow_do_not_wait_for_each_other() {
    let config = Config {
        tail_waits: true,
        ..Config::default()
    };
    let router = fleet(config, 0, &[100]);
    run(&router, 1, 35);
    run(&router, 2, 35);
    let (other, third) = (ask(&router, 2, 35), ask(&router, 3, 10));
    let (first, second) = (wait(&router, 1, 70), wait(&router, 2, 60));
    finish(other.expect("it needs nothing"));
    assert!(granted(&first).is_none(), "a turn is in flight");
    third.expect("80 of 80").fail(FailReason::ClientGone, at(2));
    finish(granted(&first).expect("nothing runs: it takes what the other one holds"));
    router
        .check_progress()
        .expect("the other one is in line to be placed");
    finish(granted(&second).expect("the first is idle"));
}

#[test]
fn the_longest_idle_goes_first_also_when_it_was_not_idle_at_the_last_look() {
    let router = one_decoder();
    let begin = |number, seconds| {
        let request = TurnRequest {
            key: key(number),
            prompt_tokens: Tokens(20 * 16),
            wait: None,
        };
        match router.begin(&request, at(seconds)) {
            Ok(Begin::Started(turn)) => turn,
            other => panic!("{other:?}"),
        }
    };
    let whole = |number, seconds| begin(number, seconds).finish(Usage::default(), at(seconds));
    whole(1, 1);
    let running = begin(1, 2);
    for number in 2..=4 {
        whole(number, u64::try_from(number).expect("small") + 1);
    }
    whole(5, 10);
    assert_eq!(holds(&router, 2).1, 0, "the first was in flight");
    running.fail(FailReason::ClientGone, at(11));
    whole(6, 12);
    let held: Vec<u32> = (1..=6).map(|number| holds(&router, number).1).collect();
    assert_eq!(
        held,
        [0, 0, 20, 20, 20, 20],
        "the first was used before the third"
    );
    whole(7, 13);
    assert_eq!(holds(&router, 3).1, 0);
}

#[test]
fn growth_waits_for_what_engines_keep_and_no_longer() {
    let config = Config {
        retention: Some(Duration::from_secs(60)),
        ..Config::default()
    };
    let router = fleet(config, 0, &[100]);
    run(&router, 1, 40);
    run(&router, 2, 40);
    let asks = |seconds| {
        let request = TurnRequest {
            key: key(1),
            prompt_tokens: Tokens(70 * 16),
            wait: None,
        };
        router.begin(&request, at(seconds))
    };
    let refused = asks(61);
    assert!(
        matches!(refused, Err(Rejected::Overloaded { .. })),
        "used at 2 s: kept until 62 s"
    );
    let Ok(Begin::Started(turn)) = asks(62) else {
        panic!("the engine may evict");
    };
    turn.finish(Usage::default(), at(63));
    assert_eq!(holds(&router, 2), (ConversationPhase::Pinned, 30));
}
