//! Every atomic protocol under all interleavings of two threads.
//!
//! `RUSTFLAGS="--cfg loom" cargo test --release --lib loom_`. The word, the books and the line's
//! lock are loom's; the table is not, its calls are single steps here. Each model is one decision.

use std::sync::Arc as StdArc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use loom::sync::Arc;
use loom::thread;

use crate::config::Config;
use crate::conversation::{Conversation, ConversationPhase, State};
use crate::error::Rejected;
use crate::fleet::{Role, WorkerSpec};
use crate::longest_idle::{LongestIdle, Look};
use crate::occupancy::{Ceiling, NEWCOMERS_WAIT, Occupancy, Rank, Reservation};
use crate::router::{Begin, FailReason, Router, Turn, TurnRequest, Usage};
use crate::units::{Blocks, ConversationKey, Timestamp, Tokens, WorkerId};

const NOW: Timestamp = Timestamp(1);
const D0: WorkerId = WorkerId::new(0).unwrap();

fn blocks(n: u64) -> Blocks {
    Blocks::new(n)
}

/// Checks every interleaving, and that there were some: threads that never meet prove nothing.
fn model(check: impl Fn() + Send + Sync + 'static) {
    let runs = StdArc::new(AtomicUsize::new(0));
    let count = StdArc::clone(&runs);
    loom::model(move || {
        count.fetch_add(1, Ordering::Relaxed);
        check();
    });
    let runs = runs.load(Ordering::Relaxed);
    assert!(runs > 2, "{runs} interleavings: the threads do not meet");
}

#[test]
fn loom_two_bookings_that_fit_only_alone_admit_one() {
    model(|| {
        let decoder = Arc::new(Occupancy::new());
        let other = Arc::clone(&decoder);
        let book = |decoder: &Occupancy| {
            let ceiling = Ceiling::capacity(blocks(10));
            let reservation = decoder.try_reserve(blocks(6), ceiling, Rank::Arriving);
            reservation
                .reservation
                .map(Reservation::hand_to_turn)
                .is_some()
        };
        let first = thread::spawn(move || book(&other));
        let second = book(&decoder);
        let first = first.join().unwrap();
        assert!(
            first ^ second,
            "6 + 6 > 10: exactly one may hold its blocks"
        );
        assert_eq!(decoder.books().booked, blocks(6));
    });
}

#[test]
fn loom_settling_and_booking_never_pass_the_capacity() {
    model(|| {
        let decoder = Arc::new(Occupancy::new());
        let ceiling = Ceiling::capacity(blocks(10));
        let held = decoder.try_reserve(blocks(6), ceiling, Rank::Arriving);
        let held = held.reservation.expect("empty").hand_to_turn();
        let other = Arc::clone(&decoder);
        let settles = thread::spawn(move || other.settle(held, 8, blocks(10)).0);
        let booked = decoder.try_reserve(blocks(3), ceiling, Rank::Arriving);
        let booked = booked
            .reservation
            .map_or(0, |reservation| reservation.hand_to_turn().get());
        let kept = settles.join().unwrap();
        let all = i64::from(decoder.books().booked.get());
        assert_eq!(all, kept + i64::from(booked), "each block is counted once");
        assert!(all <= 10);
    });
}

#[test]
fn loom_a_waiter_sees_the_room_or_the_giver_sees_the_waiter() {
    model(|| {
        let decoder = Arc::new(Occupancy::new());
        decoder.grow(blocks(10), blocks(10));
        let other = Arc::clone(&decoder);
        let gives = thread::spawn(move || other.release(blocks(10)));
        decoder.flag(NEWCOMERS_WAIT, true);
        let ceiling = Ceiling::capacity(blocks(10));
        let found = decoder.try_reserve(blocks(10), ceiling, Rank::FromLine);
        let found = found.reservation.map(Reservation::hand_to_turn).is_some();
        assert!(
            found || gives.join().unwrap(),
            "nobody would ever serve the waiter"
        );
    });
}

#[test]
fn loom_what_a_turn_saves_in_a_pocket_is_found_or_the_turn_sees_the_waiter() {
    model(|| {
        let decoder = Arc::new(Occupancy::new());
        let ceiling = Ceiling::capacity(blocks(10));
        let held = decoder.try_reserve(blocks(10), ceiling, Rank::Arriving);
        let held = held.reservation.expect("empty").hand_to_turn();
        let other = Arc::clone(&decoder);
        let ends = thread::spawn(move || other.settle(held, 0, blocks(10)).1);
        decoder.flag(NEWCOMERS_WAIT, true);
        let found = decoder.try_reserve(blocks(10), ceiling, Rank::FromLine);
        let found = found.reservation.map(Reservation::hand_to_turn).is_some();
        assert!(
            found || ends.join().unwrap(),
            "nobody would ever serve the waiter"
        );
    });
}

#[test]
fn loom_an_allowance_taken_in_advance_hides_no_room_from_a_waiter() {
    model(|| {
        let decoder = Arc::new(Occupancy::new());
        let ceiling = Ceiling::capacity(blocks(10));
        let other = Arc::clone(&decoder);
        let books = thread::spawn(move || {
            let asked = other.try_reserve(blocks(8), ceiling, Rank::Arriving);
            assert!(
                asked.reservation.map(Reservation::hand_to_turn).is_some(),
                "8 + 2 <= 10"
            );
            asked.somebody_waits
        });
        decoder.flag(NEWCOMERS_WAIT, true);
        let found = decoder.try_reserve(blocks(2), ceiling, Rank::FromLine);
        let found = found.reservation.map(Reservation::hand_to_turn).is_some();
        assert!(
            found || books.join().unwrap(),
            "nobody would ever serve the waiter"
        );
    });
}

#[test]
fn loom_a_waiter_sees_the_idle_conversation_or_the_turn_sees_the_waiter() {
    model(|| {
        let decoder = Arc::new(Occupancy::new());
        let conversation = Arc::new(Conversation::new(State::born(Some(D0)), NOW));
        let (books, word) = (Arc::clone(&decoder), Arc::clone(&conversation));
        let ends = thread::spawn(move || {
            word.update::<()>(|state| Ok(state.settle(blocks(1))))
                .unwrap();
            books.somebody_waits()
        });
        decoder.flag(NEWCOMERS_WAIT, true);
        let idle = conversation.state().in_flight == 0;
        assert!(idle || ends.join().unwrap(), "nobody would ever look again");
    });
}

#[test]
fn loom_who_comes_while_somebody_walks_is_known() {
    model(|| {
        let list = Arc::new(LongestIdle::of(D0));
        let conversation = StdArc::new(Conversation::new(State::born(None), NOW));
        let (noted, word) = (Arc::clone(&list), StdArc::clone(&conversation));
        let comes = thread::spawn(move || {
            word.update(|state| state.place(D0, true)).unwrap();
            noted.came(ConversationKey(1), &word, NOW);
        });
        if !list.until(|_, _, _| Look::Next) {
            let here = list.concerns(conversation.state());
            let walked = here.then(|| ((NOW, ConversationKey(1)), StdArc::clone(&conversation)));
            list.found(walked.into_iter().collect());
        }
        comes.join().unwrap();
        let mut known = 0;
        assert!(list.until(|_, _, _| {
            known += 1;
            Look::Next
        }));
        assert_eq!(known, 1);
    });
}

#[test]
fn loom_a_word_is_taken_by_one_of_two_placers() {
    model(|| {
        let conversation = Conversation::new(State::born(Some(D0)).leave().unpin(), NOW);
        let conversation = Arc::new(conversation);
        let take = |conversation: &Conversation| {
            let state = conversation.state();
            state.phase == ConversationPhase::Unpinned
                && conversation.replace(state, state.place(D0, false).unwrap())
        };
        let other = Arc::clone(&conversation);
        let first = thread::spawn(move || take(&other));
        let second = take(&conversation);
        assert!(
            first.join().unwrap() ^ second,
            "one brings it to its decoder"
        );
        assert_eq!(conversation.state().turn, 2);
    });
}

#[test]
fn loom_closing_beats_or_follows_a_settlement_and_never_both() {
    model(|| {
        let placed = State::born(Some(D0)).hand_over(D0, blocks(4)).unwrap();
        let conversation = Arc::new(Conversation::new(placed, NOW));
        let other = Arc::clone(&conversation);
        let closes = thread::spawn(move || other.update(State::close).map(|(old, _)| old.blocks));
        let settled = conversation.update(|state| {
            if state.is_on(D0) {
                Ok(state.settle(blocks(7)))
            } else {
                Err(())
            }
        });
        let freed = closes.join().unwrap().expect("closed once");
        assert_eq!(
            freed,
            if settled.is_ok() {
                blocks(7)
            } else {
                blocks(4)
            }
        );
        assert_eq!(
            conversation.state().phase,
            ConversationPhase::Closed,
            "final"
        );
    });
}

// The whole router, two calls at once.

fn router(capacity: u64) -> StdArc<Router> {
    over(capacity, Config::default())
}

fn over(capacity: u64, config: Config) -> StdArc<Router> {
    let router = Router::new(Config {
        low_watermark: 1.0,
        ..config
    })
    .unwrap();
    let spec = WorkerSpec::new("http://d0", Role::Decoder).with_kv_blocks(blocks(capacity));
    router.join(spec, NOW).unwrap();
    StdArc::new(router)
}

fn begin(router: &Router, key: u128, size: u32, wait: bool) -> Result<Begin, Rejected> {
    let request = TurnRequest {
        key: ConversationKey(key),
        prompt_tokens: Tokens(size * 16),
        wait: wait.then_some(Duration::from_secs(9)),
    };
    router.begin(&request, NOW)
}

fn started(router: &Router, key: u128, size: u32) -> Turn {
    match begin(router, key, size, false) {
        Ok(Begin::Started(turn)) => turn,
        other => panic!("expected a turn, not {other:?}"),
    }
}

fn finish(turn: Turn) {
    turn.finish(Usage::default(), NOW);
}

/// Nothing runs any more: the turn runs, or it never will.
fn must_run(begun: Result<Begin, Rejected>) -> Turn {
    match begun.expect("it waits, so it is not refused") {
        Begin::Started(turn) => turn,
        Begin::Waiting(ticket) => ticket
            .take(NOW)
            .expect("a wake-up was lost")
            .expect("granted, not refused"),
    }
}

#[test]
fn loom_a_newcomer_that_waits_is_served_by_who_frees() {
    model(|| {
        let router = router(10);
        finish(started(&router, 1, 10));
        let other = StdArc::clone(&router);
        let closes = thread::spawn(move || assert!(other.close(ConversationKey(1), NOW)));
        let waits = begin(&router, 2, 10, true);
        closes.join().unwrap();
        finish(must_run(waits));
        router.check().unwrap();
    });
}

#[test]
fn loom_growth_that_waits_is_served_by_a_turn_that_shrinks() {
    model(|| {
        let router = router(10);
        finish(started(&router, 1, 5));
        let shrinking = started(&router, 2, 5);
        let shrinks = thread::spawn(move || {
            shrinking.finish(
                Usage {
                    prompt: Some(Tokens(16)),
                    ..Usage::default()
                },
                NOW,
            );
        });
        let waits = begin(&router, 1, 8, true);
        shrinks.join().unwrap();
        finish(must_run(waits));
        router.check().unwrap();
    });
}

#[test]
fn loom_a_follower_runs_after_the_handover() {
    model(|| {
        let router = router(10);
        let mut first = started(&router, 1, 2);
        let hands_over = thread::spawn(move || {
            first.handed_over(NOW);
            first
        });
        let follows = begin(&router, 1, 3, true);
        let first = hands_over.join().unwrap();
        finish(must_run(follows));
        finish(first);
        router.check().unwrap();
    });
}

#[test]
fn loom_a_follower_takes_over_from_a_placer_that_fails() {
    model(|| {
        let router = router(10);
        let first = started(&router, 1, 2);
        let fails = thread::spawn(move || first.fail(FailReason::PrefillFailed, NOW));
        let follows = begin(&router, 1, 3, true);
        fails.join().unwrap();
        finish(must_run(follows));
        router.check().unwrap();
    });
}

#[test]
fn loom_two_first_turns_make_one_conversation() {
    model(|| {
        let router = router(10);
        let other = StdArc::clone(&router);
        let first = thread::spawn(move || begin(&other, 1, 2, true));
        let second = begin(&router, 1, 2, true);
        let first = first.join().unwrap();
        let (placer, follower) = match (first, second) {
            (Ok(Begin::Started(turn)), other) | (other, Ok(Begin::Started(turn))) => (turn, other),
            other => panic!("one of them places: {other:?}"),
        };
        finish(placer);
        finish(must_run(follower));
        assert_eq!(router.conversation(ConversationKey(1)).unwrap().turn, 2);
        router.check().unwrap();
    });
}

#[test]
fn loom_closing_and_finishing_give_back_once() {
    model(|| {
        let router = router(10);
        finish(started(&router, 1, 2));
        let turn = started(&router, 1, 4);
        let finishes = thread::spawn(move || {
            turn.finish(
                Usage {
                    output: Some(Tokens(16)),
                    ..Usage::default()
                },
                NOW,
            );
        });
        assert!(router.close(ConversationKey(1), NOW));
        finishes.join().unwrap();
        router.check().unwrap();
        assert_eq!(
            router.snapshot(NOW).workers[0].booked,
            Blocks::ZERO,
            "nothing is left"
        );
    });
}

#[test]
fn loom_two_turns_of_one_conversation_settle_to_what_the_last_one_knows() {
    model(|| {
        let router = router(20);
        finish(started(&router, 1, 2));
        let (a, b) = (started(&router, 1, 4), started(&router, 1, 6));
        let other = thread::spawn(move || finish(a));
        finish(b);
        other.join().unwrap();
        router.check().unwrap();
        let row = &router.snapshot(NOW).workers[0];
        assert_eq!((row.reserved, row.running), (Blocks::ZERO, 0));
        assert!([blocks(4), blocks(6)].contains(&row.booked));
    });
}

#[test]
fn loom_a_ticket_given_up_while_it_is_granted_leaves_nothing() {
    model(|| {
        let keeps = Config {
            evict_idle: false,
            ..Config::default()
        };
        let router = over(10, keeps);
        finish(started(&router, 1, 10));
        let ticket = match begin(&router, 2, 10, true) {
            Ok(Begin::Waiting(ticket)) => ticket,
            other => panic!("expected to wait, not {other:?}"),
        };
        let other = StdArc::clone(&router);
        let closes = thread::spawn(move || assert!(other.close(ConversationKey(1), NOW)));
        drop(ticket);
        closes.join().unwrap();
        router.check().unwrap();
        assert_eq!(router.snapshot(NOW).workers[0].booked, Blocks::ZERO);
        assert_eq!(router.snapshot(NOW).waiting, 0);
    });
}

#[test]
fn loom_a_sweep_never_takes_a_conversation_whose_turn_begins() {
    model(|| {
        let router = router(10);
        finish(started(&router, 1, 2));
        let other = StdArc::clone(&router);
        let late = Timestamp(2 * 3600 * 1_000_000_000);
        let sweeps = thread::spawn(move || other.sweep(late).conversations);
        let turn = started(&router, 1, 3);
        let swept = sweeps.join().unwrap();
        let first_again = turn.route().turn == 1;
        assert_eq!(
            swept == 1,
            first_again,
            "swept before it began, and then it is a new one"
        );
        finish(turn);
        router.check().unwrap();
    });
}
