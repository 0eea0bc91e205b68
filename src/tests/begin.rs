//! Examples: what a turn gets, and what it leaves.

use super::support::*;
use crate::config::{Config, PolicyKind};
use crate::conversation::ConversationPhase;
use crate::error::Rejected;
use crate::fleet::Role;
use crate::placement::{Decision, Observed, Policy, TurnView};
use crate::report::WorkerReport;
use crate::router::{Begin, FailReason, LostReason, Reason, TurnKind, Usage};
use crate::units::{Blocks, Tokens, WorkerId};

fn default_fleet() -> crate::router::Router {
    fleet(Config::default(), 1, &[100, 200])
}

#[test]
fn first_turn_hands_over_and_later_turns_stay() {
    let router = default_fleet();
    let mut first = ask(&router, 1, 10).expect("room");
    let route = first.route().clone();
    assert_eq!(
        (&*route.decoder.name, route.handoff),
        ("d1", true),
        "d1 has more room"
    );
    assert_eq!((route.kind, route.turn), (TurnKind::First, 1));
    assert!(
        matches!(route.reason, Reason::LeastWork { decoders: 2, .. }),
        "{}",
        route.reason
    );
    first.prefilled(Tokens(161), at(1));
    assert_eq!(booked(&router, 2), 11, "161 tokens need 11 blocks");
    first.handed_over(at(1));
    first.finish(
        Usage {
            output: Some(Tokens(16)),
            ..Usage::default()
        },
        at(1),
    );
    assert_eq!(booked(&router, 2), 12, "177 tokens need 12 blocks");

    let second = ask(&router, 1, 20).expect("room");
    assert_eq!(
        (&*second.route().decoder.name, second.route().handoff),
        ("d1", false)
    );
    assert_eq!(
        (second.route().kind, second.route().turn),
        (TurnKind::Pinned, 2)
    );
    assert_eq!(booked(&router, 2), 20, "the growth is booked");
    finish(second);
}

#[test]
fn a_fleet_without_prefillers_prefills_on_the_decoder() {
    let router = fleet(Config::default(), 0, &[100]);
    let turn = ask(&router, 1, 10).expect("room");
    assert!(!turn.route().handoff);
    assert!(matches!(turn.route().reason, Reason::OnDecoder { .. }));
}

#[test]
fn a_worker_that_is_both_needs_no_handoff_to_itself() {
    let router = fleet(Config::default(), 0, &[]);
    join(&router, "http://w0", Role::Both, Some(100));
    let turn = ask(&router, 1, 10).expect("room");
    assert!(!turn.route().handoff);
}

#[test]
fn a_first_turn_that_fails_leaves_nothing() {
    let router = default_fleet();
    ask(&router, 1, 10)
        .expect("room")
        .fail(FailReason::PrefillFailed, at(1));
    assert_eq!(router.conversation(key(1)), None);
    assert_eq!((booked(&router, 1), booked(&router, 2)), (0, 0));
    drop(ask(&router, 1, 10).expect("room"));
    assert_eq!(router.conversation(key(1)), None, "dropping is failing");
    assert_eq!(router.snapshot(at(2)).workers[0].queued, Tokens(0));
}

#[test]
fn a_later_turn_that_fails_returns_its_growth_only() {
    let router = default_fleet();
    run(&router, 1, 10);
    ask(&router, 1, 30)
        .expect("room")
        .fail(FailReason::ClientGone, at(1));
    assert_eq!(booked(&router, 2), 10);
    assert_eq!(
        router.conversation(key(1)).expect("pinned").phase,
        ConversationPhase::Pinned
    );
}

#[test]
fn new_conversations_stop_at_the_watermark_and_pinned_ones_go_on() {
    let router = fleet(holding(), 0, &[100]);
    run(&router, 1, 79);
    assert!(
        matches!(ask(&router, 2, 2), Err(Rejected::Overloaded { .. })),
        "79 + 2 > 80"
    );
    run(&router, 3, 1);
    assert_eq!(booked(&router, 0), 80, "79 + 1 = 80");
    run(&router, 1, 99);
    assert_eq!(booked(&router, 0), 100, "the tail may use the rest");
    assert!(
        matches!(ask(&router, 1, 100), Err(Rejected::Overloaded { .. })),
        "1 is not free"
    );
    assert_eq!(booked(&router, 0), 100, "a refusal leaves nothing");
}

#[test]
fn what_fits_nowhere_is_too_long_and_what_fits_alone_runs_alone() {
    let router = fleet(Config::default(), 0, &[100]);
    let limit = Tokens(1600);
    let tokens = Tokens(101 * 16);
    let too_long = Err(Rejected::PromptTooLong { tokens, limit });
    assert_eq!(ask(&router, 1, 101).map(|_| ()), too_long);
    run(&router, 1, 100);
    assert_eq!(
        booked(&router, 0),
        100,
        "above the watermark, but the decoder was empty"
    );
    assert_eq!(
        ask(&router, 1, 101).map(|_| ()),
        too_long,
        "a pinned one too"
    );
}

#[test]
fn several_turns_of_a_conversation_share_its_pin() {
    let router = default_fleet();
    run(&router, 1, 10);
    let (a, b) = (
        ask(&router, 1, 12).expect("room"),
        ask(&router, 1, 15).expect("room"),
    );
    assert_eq!(a.route().decoder, b.route().decoder);
    assert_eq!((a.route().turn, b.route().turn), (2, 3));
    assert_eq!(booked(&router, 2), 17, "10 + 2 + 5");
    finish(b);
    assert_eq!(booked(&router, 2), 17, "15 held, 2 reserved");
    finish(a);
    assert_eq!(
        booked(&router, 2),
        12,
        "alone in flight, the last one knows: 12"
    );
}

#[test]
fn an_impatient_follower_joins_the_pin_before_the_handover() {
    let router = default_fleet();
    let first = ask(&router, 1, 10).expect("room");
    let second = ask(&router, 1, 10).expect("room");
    assert_eq!(second.route().decoder, first.route().decoder);
    assert!(!second.route().handoff);
    assert_eq!(second.route().reason, Reason::Shared);
    first.fail(FailReason::PrefillFailed, at(1));
    let view = router
        .conversation(key(1))
        .expect("the second turn still runs");
    assert_eq!(
        (view.phase, view.in_flight),
        (ConversationPhase::Unpinned, 1)
    );
    finish(second);
    assert_eq!(
        (booked(&router, 1), booked(&router, 2)),
        (0, 0),
        "unpinned: nothing is kept"
    );
}

#[test]
fn compaction_shrinks_the_booking() {
    let router = default_fleet();
    run(&router, 1, 50);
    run(&router, 1, 5);
    assert_eq!(booked(&router, 2), 5);
}

#[test]
fn an_answer_that_outgrows_the_decoder_is_counted_not_booked() {
    let router = fleet(Config::default(), 0, &[20]);
    run(&router, 2, 8);
    let turn = ask(&router, 1, 8).expect("room");
    turn.finish(
        Usage {
            output: Some(Tokens(160)),
            ..Usage::default()
        },
        at(1),
    );
    assert_eq!(booked(&router, 0), 20, "8 + 8 + 10 blocks do not fit 20");
    assert_eq!(router.snapshot(at(1)).totals.overcommitted, 1);
}

#[test]
fn closing_frees_the_blocks_and_a_running_turn_returns_its_own() {
    let router = default_fleet();
    run(&router, 1, 10);
    let turn = ask(&router, 1, 30).expect("room");
    assert!(router.close(key(1), at(1)));
    assert!(!router.close(key(1), at(1)), "closed is final");
    assert_eq!(
        booked(&router, 2),
        20,
        "only the growth of the running turn is left"
    );
    let again = ask(&router, 1, 10).expect("room");
    assert_eq!(
        (again.route().kind, again.route().turn),
        (TurnKind::First, 1),
        "a new one"
    );
    finish(turn);
    finish(again);
    assert_eq!(booked(&router, 1) + booked(&router, 2), 10);
}

#[test]
fn a_lost_decoder_makes_its_pins_stale() {
    let router = default_fleet();
    run(&router, 1, 10);
    let running = ask(&router, 1, 12).expect("room");
    let lost = running.route().decoder.id;
    router.lose(lost, LostReason::Refused, at(1));
    running.fail(FailReason::DecoderLost, at(1));
    let view = router.conversation(key(1)).expect("known");
    assert_eq!(
        (view.phase, view.decoder),
        (ConversationPhase::Unpinned, None)
    );
    let next = ask(&router, 1, 12).expect("the other decoder has room");
    assert_eq!(
        (&*next.route().decoder.name, next.route().kind),
        ("d0", TurnKind::Relocated)
    );
    assert_eq!(next.route().turn, 3, "turn numbers only grow");
    finish(next);
    router.check().expect("the books agree");
}

#[test]
fn a_drained_decoder_lets_turns_finish_and_conversations_leave() {
    let router = default_fleet();
    run(&router, 1, 10);
    let running = ask(&router, 1, 12).expect("room");
    let drained = running.route().decoder.id;
    router.drain(drained, at(1));
    let beside = ask(&router, 1, 12).expect("room");
    assert_eq!(
        beside.route().decoder.id,
        drained,
        "its conversation still runs there"
    );
    finish(running);
    finish(beside);
    let next = ask(&router, 1, 12).expect("room");
    assert_eq!(
        (&*next.route().decoder.name, next.route().kind),
        ("d0", TurnKind::Relocated)
    );
    finish(next);
    assert_eq!(booked(&router, 2), 0, "it left nothing behind");
    router.drain(WorkerId::new(1).expect("small"), at(1));
    assert_eq!(ask(&router, 2, 1).map(|_| ()), Err(Rejected::Draining));
}

#[test]
fn relocate_unpins_and_the_next_turn_is_placed_afresh() {
    let router = default_fleet();
    assert!(!router.relocate(key(1), at(1)), "unknown");
    run(&router, 1, 10);
    assert!(router.relocate(key(1), at(1)));
    assert_eq!(booked(&router, 2), 0);
    let next = ask(&router, 1, 12).expect("room");
    assert_eq!(
        (next.route().kind, next.route().handoff),
        (TurnKind::Relocated, true)
    );
}

#[test]
fn the_next_prefiller_replaces_a_failed_one_and_then_the_decoder_does() {
    let router = fleet(Config::default(), 2, &[100]);
    let mut turn = ask(&router, 1, 10).expect("room");
    let first = turn.route().prefiller.clone().expect("a handoff").id;
    let second = turn.reprefill(&[first], at(1)).expect("there are two").id;
    assert_ne!(first, second);
    assert_eq!(
        turn.route().prefiller.as_ref().map(|worker| worker.id),
        Some(second)
    );
    assert_eq!(turn.reprefill(&[first, second], at(1)), None);
    assert_eq!(
        (turn.route().handoff, turn.route().reason),
        (false, Reason::NoPrefillerLeft)
    );
    let queued: u32 = router
        .snapshot(at(1))
        .workers
        .iter()
        .map(|row| row.queued.0)
        .sum();
    assert_eq!(queued, 0);
    finish(turn);
}

#[test]
fn sweeping_takes_idle_conversations_only() {
    let router = default_fleet();
    run(&router, 1, 10);
    run(&router, 2, 10);
    let running = ask(&router, 2, 10).expect("room");
    let hour = 3600;
    assert_eq!(
        router.sweep(at(2 + hour)).conversations,
        0,
        "idle for exactly the timeout"
    );
    let swept = router.sweep(at(3 + hour));
    assert_eq!((swept.conversations, swept.blocks), (1, 10));
    assert_eq!(router.conversation(key(1)), None);
    finish(running);
    router.check().expect("the books agree");
}

#[test]
fn the_longest_idle_are_evicted_under_pressure_when_allowed() {
    let router = fleet(
        Config {
            evict_idle: true,
            ..holding()
        },
        0,
        &[100],
    );
    for number in 1..=4 {
        run(&router, number, 20);
    }
    run(&router, 1, 20);
    let turn = ask(&router, 5, 25).expect("two idle ones make room: 80 - 40 + 25 <= 80");
    let phase = |number| router.conversation(key(number)).expect("known").phase;
    assert_eq!(
        [phase(1), phase(2), phase(3), phase(4)],
        [
            ConversationPhase::Unpinned,
            ConversationPhase::Unpinned,
            ConversationPhase::Pinned,
            ConversationPhase::Pinned
        ],
        "equal times: the order of the keys"
    );
    finish(turn);
    assert_eq!(booked(&router, 0), 65);
}

#[test]
fn ttfet_counts_from_the_first_request_and_is_recorded_once() {
    let router = default_fleet();
    run(&router, 1, 10);
    let mut turn = ask(&router, 1, 10).expect("room");
    turn.effective(at(5), at(6));
    turn.effective(at(7), at(7));
    finish(turn);
    let ttfet = router.conversation(key(1)).expect("known").ttfet;
    assert_eq!(
        ttfet,
        Some(std::time::Duration::from_secs(4)),
        "first request at 1, token at 5"
    );
}

#[test]
fn conversations_are_bounded() {
    let router = fleet(
        Config {
            max_conversations: 1,
            ..Config::default()
        },
        0,
        &[100],
    );
    run(&router, 1, 1);
    assert!(matches!(
        ask(&router, 2, 1),
        Err(Rejected::Overloaded { .. })
    ));
    assert!(matches!(
        queue(&router, 2, 1),
        Err(Rejected::Overloaded { .. })
    ));
    assert!(ask(&router, 1, 1).is_ok(), "the known one goes on");
}

#[test]
fn a_decoder_of_unknown_capacity_waits_for_its_report() {
    let router = fleet(Config::default(), 0, &[]);
    let decoder = join(&router, "http://d0", Role::Decoder, None);
    assert_eq!(ask(&router, 1, 1).map(|_| ()), Err(Rejected::NoWorkers));
    let ticket = wait(&router, 1, 1);
    let report = crate::report::WorkerReport {
        kv_blocks: Some(Blocks::new(10)),
        ..crate::report::WorkerReport::default()
    };
    router.observe(decoder, &report, at(2));
    finish(granted(&ticket).expect("now there is a decoder"));
}

/// Moves every pinned conversation to the other decoder, by one handoff.
struct Restless;

impl Policy for Restless {
    fn name(&self) -> &'static str {
        "restless"
    }

    fn is_sticky(&self) -> bool {
        false
    }

    fn place(&self, turn: &TurnView, fleet: &Observed) -> Decision {
        let other = |id: Option<WorkerId>| {
            fleet
                .workers
                .iter()
                .find(move |worker| worker.role.decodes() && Some(worker.id) != id)
        };
        let prefiller = fleet.workers.iter().find(|worker| worker.role.prefills());
        other(turn.home).map_or(Decision::Stay, |decoder| Decision::Place {
            compute: turn.prompt,
            prefiller: prefiller.map(|worker| worker.id),
            decoder: decoder.id,
            ceiling: decoder.capacity.unwrap_or_default(),
            alone: decoder.capacity.unwrap_or_default(),
            reason: Reason::Cheaper {
                cost_ms: 1.0,
                instead_of_ms: 2.0,
            },
        })
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

#[test]
fn a_policy_may_move_the_pin_with_one_handoff() {
    let router = crate::router::Router::with_policy(Config::default(), Box::new(Restless))
        .expect("a valid configuration");
    join(&router, "http://p0", Role::Prefiller, None);
    join(&router, "http://d0", Role::Decoder, Some(100));
    join(&router, "http://d1", Role::Decoder, Some(100));
    run(&router, 1, 10);
    assert_eq!((booked(&router, 1), booked(&router, 2)), (10, 0));
    let moved = ask(&router, 1, 12).expect("room");
    assert_eq!(
        (&*moved.route().decoder.name, moved.route().handoff),
        ("d1", true)
    );
    assert_eq!(moved.route().kind, TurnKind::Relocated);
    finish(moved);
    assert_eq!((booked(&router, 1), booked(&router, 2)), (0, 12));
    assert_eq!(router.snapshot(at(2)).totals.handoffs, 2);
    assert!(matches!(queue(&router, 1, 12), Ok(Begin::Started(_))));
}

#[test]
fn a_count_above_the_longest_context_is_not_believed() {
    let router = fleet(Config::default(), 1, &[100]);
    let decoder = WorkerId::new(1).expect("a small id");
    let report = WorkerReport {
        max_model_len: Some(Tokens(800)),
        ..WorkerReport::default()
    };
    router.observe(decoder, &report, at(1));
    let garbage = Tokens(u32::MAX);
    for (prompt, output) in [(Some(garbage), None), (None, Some(garbage)), (None, None)] {
        let mut turn = ask(&router, 1, 10).expect("room");
        turn.prefilled(garbage, at(2));
        assert_eq!(booked(&router, 1), 10, "the estimate stands");
        let usage = Usage {
            prompt,
            output,
            cached: None,
        };
        turn.finish(usage, at(2));
        assert_eq!(booked(&router, 1), 10, "one answer does not fill a decoder");
    }
    let turn = ask(&router, 1, 10).expect("room");
    let usage = Usage {
        prompt: Some(Tokens(700)),
        output: Some(Tokens(100)),
        cached: None,
    };
    turn.finish(usage, at(2));
    assert_eq!(booked(&router, 1), 50, "800 tokens: equal to the context");
}

#[test]
fn a_prompt_computed_elsewhere_for_its_home_needs_only_what_home_lacks() {
    let config = |evict_idle| Config {
        policy: PolicyKind::Disaggregated.into(),
        evict_idle,
        ..holding()
    };
    let router = fleet(config(false), 1, &[100]);
    run(&router, 1, 60);
    let next = ask(&router, 1, 70).expect("60 + 10 of 100");
    assert!(
        next.route().handoff,
        "every prompt is computed on the prefiller"
    );
    assert_eq!(booked(&router, 1), 70);
    finish(next);
    assert_eq!(booked(&router, 1), 70);
    let conversations = router.snapshot(at(2)).workers[1].conversations;
    assert_eq!(conversations, 1, "it did not leave");
    assert!(ask(&router, 1, 101).is_err(), "above the capacity");
    let mut exact = ask(&router, 1, 100).expect("70 + 30");
    exact.prefilled(Tokens(95 * 16), at(2));
    assert_eq!(booked(&router, 1), 95);
    exact.handed_over(at(2));
    exact.fail(FailReason::DecoderError, at(2));
    assert_eq!(booked(&router, 1), 95, "its KV is there");

    // Idle conversations make room for it, as for one at home.
    let router = fleet(config(true), 1, &[100]);
    run(&router, 1, 40);
    run(&router, 2, 40);
    let next = ask(&router, 1, 70).expect("30 more than 80 of 100: the other one goes");
    assert!(next.route().handoff);
    assert_eq!(booked(&router, 1), 70);
}

#[test]
fn a_turn_that_waits_to_grow_is_asked_again_where_its_prompt_is_computed() {
    let config = Config {
        policy: PolicyKind::Disaggregated.into(),
        ..holding()
    };
    let router = fleet(config, 1, &[100]);
    run(&router, 1, 40);
    let other = ask(&router, 2, 40).expect("80 of 100");
    let ticket = wait(&router, 1, 70);
    other.fail(FailReason::PrefillFailed, at(2));
    let next = granted(&ticket).expect("the other one left");
    assert!(next.route().handoff);
    assert_eq!(booked(&router, 1), 70);
    finish(next);
    assert_eq!(booked(&router, 1), 70);
}

#[test]
fn a_conversation_whose_prompt_failed_elsewhere_stays_at_home() {
    let config = Config {
        policy: PolicyKind::Disaggregated.into(),
        ..Config::default()
    };
    let router = fleet(config, 1, &[100, 100]);
    run(&router, 1, 60);
    let home = router.conversation(key(1)).expect("open").decoder;
    for (blocks, why) in [
        (70, FailReason::PrefillFailed),
        (80, FailReason::ClientGone),
        (61, FailReason::DecoderError),
    ] {
        let next = ask(&router, 1, blocks).expect("room");
        assert!(next.route().handoff, "computed on the prefiller");
        next.fail(why, at(2));
        let view = router.conversation(key(1)).expect("open");
        assert_eq!((&view.decoder, view.in_flight), (&home, 0), "{why:?}");
        let booked: Vec<_> = (1..3).map(|worker| booked(&router, worker)).collect();
        assert_eq!(
            booked.iter().sum::<u32>(),
            60,
            "what it had, not its growth"
        );
        router.check().expect("the accounting identity");
    }
    // A prompt that turned out shorter than what lies there leaves no more than was booked.
    let mut next = ask(&router, 1, 70).expect("room");
    next.prefilled(Tokens(20 * 16), at(2));
    next.fail(FailReason::Rejected, at(2));
    router.check().expect("the accounting identity");
    let lost = ask(&router, 1, 70).expect("room");
    lost.fail(FailReason::DecoderLost, at(2));
    assert_eq!(router.conversation(key(1)).expect("open").decoder, None);
    router.check().expect("the accounting identity");
    let conversations = router
        .snapshot(at(2))
        .workers
        .iter()
        .map(|worker| worker.conversations)
        .sum::<u64>();
    assert_eq!(conversations, 0);
}
