//! What turns do where, for how long, and what their conversations are charged for it.

use std::time::Duration;

use super::support::{ask, at, fleet, key};
use crate::config::{Config, PolicyKind};
use crate::router::{Doing, Router, Usage, Work};
use crate::units::{Tokens, WorkerId};

const P0: usize = 0;
const D0: usize = 1;

fn work(router: &Router, worker: usize, now: u64) -> Work {
    router.snapshot(at(now)).workers[worker].work
}

fn usage(prompt: u32, cached: u32, output: u32) -> Usage {
    Usage {
        prompt: Some(Tokens(prompt)),
        cached: Some(Tokens(cached)),
        output: Some(Tokens(output)),
    }
}

#[test]
fn a_first_turn_prefills_on_the_prefiller_and_decodes_on_the_decoder() {
    let router = fleet(Config::default(), 1, &[100]);
    let mut turn = ask(&router, 1, 10).expect("room"); // at 1 s
    assert_eq!(
        (
            work(&router, P0, 2).prefilling,
            work(&router, D0, 2).decoding
        ),
        (1, 0)
    );
    turn.prefilled(Tokens(160), at(4));
    assert_eq!(
        (
            work(&router, P0, 4).prefilling,
            work(&router, D0, 4).decoding
        ),
        (0, 1)
    );
    turn.handed_over(at(5));
    turn.first_token(at(5));
    turn.finish(usage(160, 160, 9), at(9));
    let (prefiller, decoder) = (work(&router, P0, 99), work(&router, D0, 99));
    assert_eq!(prefiller.prefill, Duration::from_secs(3), "1 to 4 s");
    assert_eq!(decoder.decode, Duration::from_secs(5), "4 to 9 s");
    assert_eq!(
        (prefiller.decode, decoder.prefill),
        (Duration::ZERO, Duration::ZERO)
    );
    assert_eq!((prefiller.prompt, prefiller.output), (160, 0));
    assert_eq!((decoder.prompt, decoder.output), (0, 9));
    assert_eq!(router.conversation(key(1)).expect("held").tokens, 169);
}

#[test]
fn a_later_turn_prefills_what_it_adds_on_its_decoder() {
    let router = fleet(Config::default(), 0, &[100]);
    ask(&router, 1, 10)
        .expect("room")
        .finish(usage(160, 0, 0), at(1));
    let mut turn = ask(&router, 1, 12).expect("room"); // at 1 s
    turn.first_token(at(3));
    turn.finish(
        Usage {
            prompt: Some(Tokens(192)),
            ..Usage::default()
        },
        at(7),
    );
    let decoder = work(&router, D0 - 1, 9);
    assert_eq!(
        (decoder.prefill, decoder.decode),
        (Duration::from_secs(2), Duration::from_secs(4))
    );
    assert_eq!(decoder.prompt, 160 + 32, "10 of 12 blocks were there");
}

#[test]
fn an_answer_in_one_piece_counts_as_decode() {
    let router = fleet(Config::default(), 0, &[100]);
    let mut turn = ask(&router, 1, 10).expect("room");
    turn.generating(at(1));
    turn.finish(Usage::default(), at(3));
    assert_eq!(work(&router, 0, 9).decode, Duration::from_secs(2));
}

#[test]
fn what_is_charged_is_found_in_the_conversations() {
    let router = fleet(Config::default(), 1, &[100]);
    let ids: Vec<WorkerId> = router
        .snapshot(at(0))
        .workers
        .iter()
        .map(|row| row.worker.id)
        .collect();
    let charge = |worker, doing, energy, now| router.charge(ids[worker], doing, energy, at(now));
    let mut turn = ask(&router, 1, 10).expect("room");
    assert_eq!(charge(P0, Doing::Prefill, 500, 2), 0);
    turn.prefilled(Tokens(160), at(3));
    assert_eq!(
        charge(P0, Doing::Prefill, 30, 3),
        30,
        "nobody is there any more"
    );
    let other = ask(&router, 2, 10).expect("room");
    let mut other = other;
    other.prefilled(Tokens(160), at(3));
    assert_eq!(charge(D0, Doing::Decode, 201, 4), 1, "two share 200");
    turn.finish(Usage::default(), at(5));
    other.fail(crate::router::FailReason::ClientGone, at(5));
    let charged = router.conversation(key(1)).expect("held").charged_uj;
    assert_eq!(charged, 500 + 100);
    assert_eq!(charge(D0, Doing::Decode, 7, 6), 7, "nobody is left");
}

#[test]
fn a_turn_that_is_dropped_or_placed_again_leaves_no_work_behind() {
    let router = fleet(Config::default(), 2, &[100]);
    let mut turn = ask(&router, 1, 10).expect("room");
    let first = turn.route().prefiller.clone().expect("one of two").id;
    assert!(turn.reprefill(&[first], at(2)).is_some());
    assert!(
        turn.reprefill(
            &[
                first,
                WorkerId::new(1).expect("in range"),
                WorkerId::new(0).expect("in range")
            ],
            at(3)
        )
        .is_none()
    );
    let rows = router.snapshot(at(3)).workers;
    let prefilling: Vec<_> = rows.iter().map(|row| row.work.prefilling).collect();
    assert_eq!(prefilling, [0, 0, 1], "the decoder computes the prompt");
    drop(turn);
    let rows = router.snapshot(at(9)).workers;
    assert!(
        rows.iter()
            .all(|row| row.work.prefilling + row.work.decoding == 0)
    );
    assert_eq!(
        rows.iter().map(|row| row.work.prefill).sum::<Duration>(),
        Duration::from_secs(2)
    );
}

#[test]
fn a_handoff_to_a_decoder_with_prompts_of_its_own_says_nothing_about_the_link() {
    let config = Config {
        policy: PolicyKind::Ppd.into(),
        ..Config::default()
    };
    let router = fleet(config, 1, &[1000]);
    let link = |now| router.snapshot(at(now)).link_ms_per_token;
    let mut short = ask(&router, 1, 10).expect("room");
    short.prefilled(Tokens(160), at(1));
    short.handed_over(at(2));
    short.finish(usage(160, 0, 1), at(2));
    assert_eq!(link(2), None, "160 tokens tell nothing");

    let mut at_home = ask(&router, 1, 20).expect("room");
    assert!(at_home.route().prefiller.is_none(), "its own prompt");
    let mut late = ask(&router, 2, 200).expect("room");
    late.prefilled(Tokens(3_200), at(2));
    at_home.first_token(at(3));
    at_home.finish(usage(320, 160, 1), at(4));
    late.handed_over(at(4));
    assert_eq!(link(4), None, "it waited for the other's prompt");

    let mut other = ask(&router, 3, 200).expect("room");
    other.prefilled(Tokens(3_200), at(5));
    other.handed_over(at(6));
    assert_eq!(link(6), Some(995.0 / 3_200.0), "1 s less 5 ms");
}
