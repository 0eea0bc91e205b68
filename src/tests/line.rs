//! Examples: who waits, who is next, who is turned away.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use super::support::*;
use crate::config::Config;
use crate::conversation::ConversationPhase;
use crate::error::Rejected;
use crate::fleet::Role;
use crate::router::{Begin, FailReason, LostReason, Router, TurnKind};
use crate::units::Tokens;

/// One decoder of 100 blocks, 80 for newcomers.
fn one_decoder() -> Router {
    fleet(holding(), 0, &[100])
}

#[derive(Default)]
struct Bell(AtomicUsize);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn newcomers_are_served_first_come_first_served() {
    let router = one_decoder();
    run(&router, 1, 80);
    let (second, third) = (wait(&router, 2, 70), wait(&router, 3, 1));
    assert_eq!((second.position(), third.position()), (0, 1));
    assert!(
        granted(&third).is_none(),
        "it would fit, but it is not its turn"
    );
    let overtaking = ask(&router, 4, 1);
    assert!(
        matches!(overtaking, Err(Rejected::Overloaded { .. })),
        "nor of who just came"
    );
    assert!(router.close(key(1), at(1)));
    let second = granted(&second).expect("70 <= 80");
    let third = granted(&third).expect("71 <= 80");
    finish(second);
    finish(third);
    assert_eq!(booked(&router, 0), 71);
}

#[test]
fn a_waker_is_called_once_and_the_ticket_is_a_future() {
    let router = one_decoder();
    run(&router, 1, 80);
    let ticket = wait(&router, 2, 70);
    let bell = Arc::new(Bell::default());
    let waker = Waker::from(Arc::clone(&bell));
    assert!(ticket.poll(&mut Context::from_waker(&waker)).is_pending());
    router.close(key(1), at(1));
    assert_eq!(bell.0.load(Ordering::Relaxed), 1);
    let Poll::Ready(Ok(turn)) = ticket.poll(&mut Context::from_waker(&waker)) else {
        panic!("it was woken for this")
    };
    finish(turn);
    assert!(
        ticket.poll(&mut Context::from_waker(&waker)).is_pending(),
        "answered once"
    );
    assert!(ticket.take(at(99)).is_none());
}

#[test]
fn growth_goes_before_newcomers() {
    let router = one_decoder();
    run(&router, 1, 40);
    run(&router, 2, 40);
    let newcomer = wait(&router, 3, 10);
    let growth = wait(&router, 1, 70);
    // 40 + 40 + 20 fit, but who waits to grow is before it.
    assert!(matches!(
        ask(&router, 2, 60),
        Err(Rejected::Overloaded { .. })
    ));
    assert!(
        ask(&router, 2, 40).is_ok(),
        "a turn that needs nothing takes nothing away"
    );
    router.close(key(2), at(1));
    let grown = granted(&growth).expect("40 + 30 <= 100");
    let newcomer = granted(&newcomer).expect("70 + 10 <= 80");
    finish(grown);
    finish(newcomer);
    assert_eq!(booked(&router, 0), 80);
}

#[test]
fn a_full_line_sheds_and_a_late_turn_times_out() {
    let router = fleet(
        Config {
            queue_limit: 1,
            ..holding()
        },
        0,
        &[100],
    );
    run(&router, 1, 80);
    let waits = wait(&router, 2, 10);
    assert!(matches!(
        queue(&router, 3, 10),
        Err(Rejected::Overloaded { .. })
    ));
    router.tick(at(10));
    assert!(waits.take(at(10)).is_none(), "asked at 1, waits 10 s");
    router.tick(at(11));
    assert!(matches!(
        waits.take(at(11)),
        Some(Err(Rejected::TimedOut { .. }))
    ));
    assert_eq!(router.conversation(key(2)), None, "it leaves nothing");
    let waits = wait(&router, 3, 10);
    assert!(
        matches!(waits.take(at(11)), Some(Err(Rejected::TimedOut { .. }))),
        "without a tick"
    );
    assert_eq!(router.snapshot(at(11)).waiting, 0);
}

#[test]
fn a_cancelled_ticket_makes_way() {
    let router = one_decoder();
    run(&router, 1, 75);
    let (large, small) = (wait(&router, 2, 70), wait(&router, 3, 5));
    drop(large);
    finish(granted(&small).expect("75 + 5 = 80 and nobody is before it"));
    assert_eq!(router.conversation(key(2)), None);
    let large = wait(&router, 2, 70);
    router.close(key(1), at(1));
    drop(large);
    assert_eq!(
        booked(&router, 0),
        5,
        "a turn that was granted and not taken is given back"
    );
}

#[test]
fn followers_wait_for_the_handover_and_run_on_the_pin() {
    let router = fleet(holding(), 1, &[100, 100]);
    let mut first = ask(&router, 1, 10).expect("room");
    let (second, third) = (wait(&router, 1, 12), wait(&router, 1, 13));
    first.handed_over(at(1));
    let (second, third) = (
        granted(&second).expect("pinned"),
        granted(&third).expect("pinned"),
    );
    assert_eq!(second.route().decoder, first.route().decoder);
    assert_eq!((second.route().turn, third.route().turn), (2, 3));
    assert!(!second.route().handoff);
    finish(first);
    finish(third);
    finish(second);
    assert_eq!(router.check(), Ok(()));
}

#[test]
fn the_first_follower_takes_over_from_a_placer_that_fails() {
    let router = fleet(holding(), 1, &[100]);
    let first = ask(&router, 1, 10).expect("room");
    let (second, third) = (wait(&router, 1, 12), wait(&router, 1, 13));
    first.fail(FailReason::PrefillFailed, at(1));
    let mut second = granted(&second).expect("its turn to place");
    assert_eq!(
        (second.route().kind, second.route().handoff),
        (TurnKind::First, true)
    );
    assert!(granted(&third).is_none(), "waits for the new placer");
    second.handed_over(at(1));
    finish(granted(&third).expect("pinned"));
    finish(second);
    assert_eq!(router.snapshot(at(2)).totals.relocated, 0);
}

#[test]
fn a_placer_that_leaves_the_line_hands_its_place_to_a_follower() {
    let router = one_decoder();
    run(&router, 1, 80);
    let (placer, follower) = (wait(&router, 2, 10), wait(&router, 2, 20));
    drop(placer);
    assert_eq!(router.conversation(key(2)).expect("waits").in_flight, 1);
    router.close(key(1), at(1));
    finish(granted(&follower).expect("room"));
    assert_eq!(booked(&router, 0), 20);
}

#[test]
fn closing_refuses_those_who_wait_for_the_conversation() {
    let router = one_decoder();
    run(&router, 1, 80);
    let (placer, follower) = (wait(&router, 2, 10), wait(&router, 2, 20));
    assert!(router.close(key(2), at(1)));
    assert!(matches!(placer.take(at(2)), Some(Err(Rejected::Closed))));
    assert!(matches!(follower.take(at(2)), Some(Err(Rejected::Closed))));
    run(&router, 3, 0);
    assert_eq!(router.snapshot(at(2)).conversations, 2);
}

#[test]
fn those_who_wait_to_grow_on_a_lost_decoder_are_placed_again() {
    let router = fleet(holding(), 0, &[100]);
    run(&router, 1, 40);
    run(&router, 2, 40);
    let (a, b) = (wait(&router, 1, 70), wait(&router, 1, 71));
    let lost = router
        .conversation(key(1))
        .and_then(|view| view.decoder)
        .expect("pinned")
        .id;
    router.lose(lost, LostReason::Silent, at(1));
    assert!(granted(&a).is_none(), "no decoder is left");
    join(&router, "http://d9", Role::Decoder, Some(100));
    let mut a = granted(&a).expect("a new decoder");
    assert_eq!(
        (&*a.route().decoder.name, a.route().kind),
        ("d1", TurnKind::Relocated)
    );
    a.handed_over(at(2));
    finish(granted(&b).expect("on the same pin"));
    finish(a);
    router.check().expect("the books agree");
}

#[test]
fn a_prefiller_with_a_long_queue_lets_newcomers_wait() {
    let config = Config {
        prefill_backlog_tokens: Tokens(100),
        ..holding()
    };
    let router = fleet(config, 1, &[1000]);
    let mut first = ask(&router, 1, 10).expect("an empty queue takes any prompt");
    let ticket = wait(&router, 2, 1);
    first.prefilled(Tokens(160), at(2));
    finish(granted(&ticket).expect("the queue is empty again"));
    finish(first);
}

#[test]
fn an_idle_conversation_makes_room_for_growth_only_when_allowed() {
    for evict_idle in [false, true] {
        let router = fleet(
            Config {
                evict_idle,
                ..holding()
            },
            0,
            &[100],
        );
        run(&router, 1, 40);
        run(&router, 2, 40);
        match queue(&router, 1, 70) {
            Ok(Begin::Started(turn)) => {
                assert!(evict_idle);
                finish(turn);
                let view = router.conversation(key(2)).expect("known");
                assert_eq!(view.phase, ConversationPhase::Unpinned);
            }
            Ok(Begin::Waiting(_)) => assert!(!evict_idle),
            Err(rejected) => panic!("{rejected}"),
        }
        router.check().expect("the books agree");
    }
}
