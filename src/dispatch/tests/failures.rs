//! Every row of the failure table.

use super::*;
use crate::event::Reason;

const GARBAGE: [(u16, &str); 5] = [
    (200, "<html>"),
    (200, "{}"),
    (200, r#"{"error":{"message":"no"}}"#),
    (500, "{}"),
    (302, ""),
];

#[test]
fn a_prefiller_that_fails_is_followed_by_the_next_one() {
    for failure in [
        Failure::Connect,
        Failure::Reset,
        Failure::Timeout(TimeoutKind::FirstByte),
        Failure::Protocol,
    ] {
        let world = world(2, 1);
        let mut turn = world.open(&TASK, &chat(""));
        let Action::Call(first) = turn.start() else {
            panic!("a prefiller is asked")
        };
        let Action::Call(second) = turn.failed(failure) else {
            panic!("the other prefiller is asked")
        };
        assert_eq!(first.phase, second.phase);
        assert_ne!(first.worker, second.worker, "{failure:?}");
        assert_eq!(first.body, second.body);
        assert!(body_of(&turn.answered(200, PREFILLED).call("d0")).contains(PARAMS));
        turn.answered(200, ANSWER).reply(200);
        assert_eq!(world.counter("prefills_retried"), 1);
        world.settled();
    }
}

#[test]
fn a_prefiller_that_answers_garbage_is_followed_by_the_next_one_and_then_by_the_decoder() {
    for (status, body) in GARBAGE {
        let world = world(2, 1);
        let mut turn = world.open(&TASK, &chat(""));
        turn.start();
        let Action::Call(second) = turn.answered(status, body) else {
            panic!("the other prefiller is asked")
        };
        assert_eq!(
            second.phase,
            crate::error::Phase::Prefill,
            "{status} {body}"
        );
        assert_eq!(
            body_of(&turn.answered(status, body).call("d0")),
            chat(""),
            "the decoder computes the prompt itself"
        );
        turn.answered(200, ANSWER).reply(200);
        assert_eq!(world.counter("prefills_on_decoder"), 1);
        assert_eq!(
            world.events(|event| matches!(event, Event::HandedOver { handoff: true, .. })),
            0
        );
        world.settled();
    }
}

#[test]
fn prefillers_are_asked_no_more_often_than_allowed() {
    let world = world(5, 1);
    let mut turn = world.open(&TASK, &chat(""));
    let mut action = turn.start();
    let mut asked = 0;
    while let Action::Call(upstream) = &action
        && upstream.phase == crate::error::Phase::Prefill
    {
        asked += 1;
        action = turn.failed(Failure::Reset);
    }
    assert_eq!(asked, 3, "once and two retries");
    action.call("d0");
    turn.answered(200, ANSWER).reply(200);
    world.settled();
}

#[test]
fn a_prompt_that_ends_at_its_first_token_has_no_kv_to_hand_over() {
    let world = world(2, 1);
    let mut turn = world.open(&TASK, &chat(""));
    turn.start();
    let stopped = r#"{"choices":[{"finish_reason":"stop"}],"usage":{"prompt_tokens":40},"kv_transfer_params":null}"#;
    assert_eq!(
        body_of(&turn.answered(200, stopped).call("d0")),
        chat(""),
        "no other prefiller is blamed"
    );
    turn.answered(200, ANSWER).reply(200);
    assert_eq!(world.counter("prefills_retried"), 0);
    world.settled();
}

#[test]
fn what_a_worker_says_about_the_request_reaches_the_client_as_it_is() {
    for (status, retries) in [(400, 0), (404, 0), (429, 0), (503, 1)] {
        let world = world(2, 1);
        let mut turn = world.open(&TASK, &chat(""));
        turn.start();
        let headers = [("content-type", "application/json"), ("retry-after", "7")];
        let mut action = turn.answered_with(status, &headers, "{\"busy\": 1}");
        if retries == 1 {
            assert!(
                matches!(action, Action::Call(_)),
                "503: the other prefiller may have room"
            );
            action = turn.answered_with(status, &headers, "{\"busy\": 1}");
        }
        let (headers, body) = action.reply(status);
        assert_eq!(
            (value(&headers, "retry-after").as_deref(), &*body),
            (Some("7"), "{\"busy\": 1}")
        );
        assert_eq!(world.counter("prefills_retried"), retries);
        world.untouched();
    }
}

#[test]
fn a_decoder_that_says_it_is_busy_is_not_asked_again() {
    for status in [400, 429, 503] {
        let world = world(0, 2);
        world.open(&TASK, &chat("")).succeed();
        let booked = world.booked();
        for body in [chat(""), streamed()] {
            let mut turn = world.open(&TASK, &body);
            let action = turn.start();
            if matches!(action, Action::Stream(_)) {
                let head = list(&[("content-type", "application/json"), ("retry-after", "7")]);
                assert!(matches!(
                    turn.dispatch.head(status, &head, turn.now),
                    Action::Collect { .. }
                ));
            }
            let headers = [("content-type", "application/json"), ("retry-after", "7")];
            let (headers, body) = turn.answered_with(status, &headers, "busy").reply(status);
            assert_eq!(
                (value(&headers, "retry-after").as_deref(), &*body),
                (Some("7"), "busy")
            );
        }
        assert_eq!(
            world.booked(),
            booked,
            "the growth is returned and the pin stays"
        );
        assert_eq!(world.counter("decodes_retried"), 0);
        world.settled();
    }
}

#[test]
fn a_decoder_that_refuses_the_connection_is_lost_and_the_turn_is_placed_again() {
    let world = world(1, 2);
    let home = world.open(&TASK, &chat("")).succeed();
    let mut turn = world.open(&TASK, &streamed());
    let lost = turn.start().stream(&home);
    turn.failed(Failure::Connect).call("p0");
    let Action::Stream(found) = turn.answered(200, PREFILLED) else {
        panic!("the other decoder is asked")
    };
    assert_ne!(found.worker, lost.worker);
    assert!(
        body_of(&found).contains(PARAMS),
        "with its whole history, prefilled again"
    );
    turn.listen();
    for event in [WORD, USAGE, DONE] {
        turn.chunk(event);
    }
    turn.end();
    assert_eq!(world.decoder_of(&turn), Some(found.worker));
    assert_eq!(
        world.events(|event| matches!(event, Event::Relocated { .. })),
        1
    );
    assert_eq!(
        world.events(|event| matches!(event, Event::WorkerLost { .. })),
        1
    );
    world.settled();
}

#[test]
fn a_first_turn_whose_decoder_is_gone_is_placed_again() {
    let world = world(1, 2);
    let mut turn = world.open(&TASK, &chat(""));
    turn.start().call("p0");
    let Action::Call(lost) = turn.answered(200, PREFILLED) else {
        panic!("a decoder is asked")
    };
    turn.failed(Failure::Connect).call("p0");
    let Action::Call(found) = turn.answered(200, PREFILLED) else {
        panic!("the other decoder is asked")
    };
    assert_ne!(found.worker, lost.worker);
    turn.answered(200, ANSWER).reply(200);
    world.settled();
    assert_eq!(world.booked(), 4, "only where it is");
}

#[test]
fn a_reset_before_the_first_byte_is_tried_again_as_often_as_allowed() {
    let world = world(0, 1);
    world.open(&TASK, &chat("")).succeed();
    let mut turn = world.open(&TASK, &chat(""));
    turn.start().call("d0");
    turn.failed(Failure::Reset).call("d0");
    turn.failed(Failure::Reset).call("d0");
    let error = turn.failed(Failure::Reset).error(503, "worker_unavailable");
    assert!(
        error["message"]
            .as_str()
            .unwrap()
            .contains("decoder d0 closed the connection"),
        "{error}"
    );
    assert_eq!(world.counter("decodes_retried"), 2);
    world.settled();
}

#[test]
fn the_only_decoder_is_gone_and_the_turn_waits_for_one() {
    let world = world(0, 1);
    world.open(&TASK, &chat("")).succeed();
    let mut turn = world.open(&TASK, &chat(""));
    turn.start().call("d0");
    let deadline = turn.failed(Failure::Connect).wait();
    assert_eq!(deadline.since(turn.now), seconds(30));
    world.join("d1", Role::Decoder);
    turn.admitted().call("d1");
    turn.answered(200, ANSWER).reply(200);
    world.settled();

    let mut turn = world.open(&TASK, &chat(""));
    turn.start().call("d1");
    turn.failed(Failure::Connect).wait();
    turn.later(31).world.router.tick(turn.now);
    let Action::Reply { status, .. } = turn.admitted() else {
        panic!("the wait is over")
    };
    assert!([429, 503].contains(&status), "{status}");
    world.settled();
    assert_eq!(world.booked(), 0);
}

#[test]
fn a_decoder_that_cannot_load_the_kv_computes_the_prompt_itself() {
    for body in [chat(""), streamed()] {
        let world = world(1, 1);
        let mut turn = world.open(&TASK, &body);
        turn.start().call("p0");
        if let Action::Stream(_) = turn.answered(200, PREFILLED) {
            let json = list(&[("content-type", "application/json")]);
            assert!(matches!(
                turn.dispatch.head(500, &json, turn.now),
                Action::Collect { .. }
            ));
        }
        let (Action::Call(again) | Action::Stream(again)) = turn.answered(500, "{}") else {
            panic!("the decoder is asked once more")
        };
        assert!(!body_of(&again).contains("kv_transfer_params"));
        let (_, answer) = turn.answered(500, "broken").reply(500);
        assert_eq!(answer, "broken", "and not a third time");
        assert_eq!(world.counter("handoffs_recomputed"), 1);
        world.untouched();
    }
}

#[test]
fn a_prompt_computed_on_the_decoder_says_what_became_of_the_handoff() {
    let stopped = r#"{"choices":[{"finish_reason":"stop"}],"usage":{"prompt_tokens":40},"kv_transfer_params":null}"#;
    for (prefilled, decoded, reason) in [
        ((200, PREFILLED), Some(500), Reason::HandoffFailed),
        ((200, stopped), None, Reason::NoKvKept),
        ((500, "{}"), None, Reason::NoPrefillerLeft),
    ] {
        let world = world(1, 1);
        let mut turn = world.open(&TASK, &chat(""));
        turn.start();
        turn.answered(prefilled.0, prefilled.1).call("d0");
        if let Some(status) = decoded {
            turn.answered(status, "{}").call("d0");
        }
        turn.answered(200, ANSWER).reply(200);
        assert_eq!(turn.dispatch.reason(), Some(reason));
        world.settled();
    }
}

#[test]
fn prefillers_that_were_not_asked_are_not_blamed() {
    let world = world(5, 1);
    let mut turn = world.open(&TASK, &chat(""));
    turn.start();
    turn.answered(200, PREFILLED).call("d0");
    turn.answered(500, "{}").call("d0");
    turn.answered(200, ANSWER).reply(200);
    let blamed = |row: &&crate::router::WorkerRow| row.others_first;
    let snapshot = world.router.snapshot(turn.now);
    assert_eq!(snapshot.workers.iter().filter(blamed).count(), 0);
    world.settled();
}

#[test]
fn an_error_of_a_pinned_turns_decoder_reaches_the_client() {
    let world = world(0, 1);
    world.open(&TASK, &chat("")).succeed();
    let mut turn = world.open(&TASK, &chat(""));
    turn.start().call("d0");
    let (_, body) = turn.answered(500, "broken").reply(500);
    assert_eq!(body, "broken");
    assert_eq!(world.booked(), 4, "as before the turn");
    world.settled();
}

#[test]
fn a_decoder_that_hangs_is_suspect_and_the_client_is_told() {
    for kind in [TimeoutKind::FirstByte, TimeoutKind::Idle] {
        let world = world(0, 1);
        let mut turn = world.open(&TASK, &chat(""));
        turn.start().call("d0");
        let error = turn
            .failed(Failure::Timeout(kind))
            .error(504, "worker_timeout");
        assert_eq!(error["type"], "server_error");
        assert_eq!(
            world.events(|event| matches!(event, Event::WorkerSuspect { suspect: true, .. })),
            1
        );
        world.untouched();
    }
}

#[test]
fn a_decoder_that_answers_garbage_is_named() {
    for (status, body, failure) in [
        (200, "<html>", None),
        (304, "", None),
        (0, "", Some(Failure::Protocol)),
        (0, "", Some(Failure::TooLarge)),
    ] {
        let world = world(0, 1);
        let mut turn = world.open(&TASK, &chat(""));
        turn.start().call("d0");
        let action = match failure {
            Some(failure) => turn.failed(failure),
            None => turn.answered(status, body),
        };
        let error = action.error(502, "worker_protocol_error");
        assert!(error["message"].as_str().unwrap().contains("d0"), "{error}");
        world.untouched();
    }
}

#[test]
fn a_handoff_older_than_the_lease_is_never_sent() {
    let world = world(2, 1);
    let mut turn = world.open(&TASK, &chat(""));
    turn.start();
    assert!(body_of(&turn.answered(200, PREFILLED).call("d0")).contains(PARAMS));
    let again = turn
        .later(24)
        .failed(Failure::Timeout(TimeoutKind::Connect))
        .call("d0");
    assert!(
        body_of(&again).contains(PARAMS),
        "24 s of 25: nothing was sent yet, so the KV still waits"
    );
    let Action::Call(prefill) = turn.later(1).failed(Failure::Timeout(TimeoutKind::Connect)) else {
        panic!("the prompt is prefilled again")
    };
    assert_eq!(prefill.phase, crate::error::Phase::Prefill);
    assert_eq!(world.counter("handoffs_expired"), 1);
    turn.answered(200, PREFILLED).call("d0");
    turn.answered(200, ANSWER).reply(200);
    assert_eq!(
        world.events(|event| matches!(event, Event::HandedOver { .. })),
        1
    );
    world.settled();
}

#[test]
fn no_room_waits_and_then_says_when_to_come_back() {
    let world = world(0, 1);
    // 80 of 100 blocks are for newcomers: 5,000 bytes are 1,250 tokens, 79 blocks.
    let large = chat(&format!(r#","x":"{}""#, "a".repeat(4_900)));
    let mut first = world.open(&TASK, &large);
    first.start().call("d0");
    let mut second = world.open(&[("x-session-id", "b")], &large);
    second.start().wait();
    second.later(31).world.router.tick(second.now);
    let (headers, _) = second.admitted().reply(429);
    assert!(
        value(&headers, "retry-after")
            .unwrap()
            .parse::<u64>()
            .unwrap()
            >= 1
    );
    let mut third = world.open(&[("x-session-id", "c")], &large);
    third.start().wait();
    first.gone();
    third.admitted().call("d0");
    third.gone();
    world.untouched();
}

#[test]
fn a_decoder_that_cannot_be_reached_is_not_lost() {
    let world = world(0, 2);
    let home = world.open(&TASK, &chat("")).succeed();
    let mut turn = world.open(&TASK, &chat(""));
    turn.start().call(&home);
    turn.failed(Failure::Unreachable).call(&home);
    turn.failed(Failure::Unreachable).call(&home);
    turn.failed(Failure::Unreachable)
        .error(503, "worker_unavailable");
    assert_eq!(
        world.events(|event| matches!(event, Event::WorkerLost { .. })),
        0
    );
    assert_eq!(world.booked(), 4, "the pin and its blocks stay");
    world.settled();
    let mut first = world.open(&[("x-session-id", "b")], &chat(""));
    let Action::Call(asked) = first.start() else {
        panic!("a decoder is asked")
    };
    assert_ne!(
        *asked.name, *home,
        "a doubted decoder gets no new conversation"
    );
    first.gone();
}

#[test]
fn want_of_our_own_sockets_says_nothing_about_a_worker() {
    let world = world(1, 2);
    let mut first = world.open(&TASK, &chat(""));
    first.start().call("p0");
    first.failed(Failure::NoSocket).call("p0");
    first.failed(Failure::NoSocket).call("p0");
    let Action::Call(asked) = first.answered(200, PREFILLED) else {
        panic!("a decoder is asked")
    };
    let home = asked.name.clone();
    let again = first.failed(Failure::NoSocket).call(&home);
    assert!(body_of(&again).contains(PARAMS));
    first.answered(200, ANSWER).reply(200);

    let mut later = world.open(&TASK, &chat(""));
    later.start().call(&home);
    later.failed(Failure::NoSocket).call(&home);
    later.failed(Failure::NoSocket).call(&home);
    later
        .failed(Failure::NoSocket)
        .error(503, "worker_unavailable");
    let mut other = world.open(&[("x-session-id", "b")], &chat(""));
    other.start().call("p0");
    for _ in 0..2 {
        other.failed(Failure::NoSocket).call("p0");
    }
    other
        .failed(Failure::NoSocket)
        .error(503, "worker_unavailable");
    assert_eq!(
        world.events(|event| matches!(event, Event::WorkerSuspect { .. })),
        0
    );
    let shown = world.router.snapshot(world.now).workers;
    assert!(shown.iter().all(|row| !row.others_first), "{shown:?}");
    world.settled();
}

#[test]
fn a_first_turn_leaves_a_decoder_that_cannot_be_reached() {
    let world = world(1, 2);
    let mut turn = world.open(&TASK, &chat(""));
    turn.start().call("p0");
    let Action::Call(away) = turn.answered(200, PREFILLED) else {
        panic!("a decoder is asked")
    };
    for _ in 0..2 {
        let again = turn.failed(Failure::Unreachable).call(&away.name);
        assert!(
            body_of(&again).contains(PARAMS),
            "the KV still waits to be pulled"
        );
    }
    turn.failed(Failure::Unreachable).call("p0");
    let Action::Call(found) = turn.answered(200, PREFILLED) else {
        panic!("the other decoder is asked")
    };
    assert_ne!(found.worker, away.worker);
    turn.answered(200, ANSWER).reply(200);
    world.settled();
}

#[test]
fn a_decoder_that_serves_the_request_after_all_is_trusted_again() {
    let world = world(0, 1);
    world.open(&TASK, &chat("")).succeed();
    let mut turn = world.open(&TASK, &chat(""));
    turn.start().call("d0");
    turn.failed(Failure::Reset).call("d0");
    turn.answered(200, ANSWER).reply(200);
    let doubts = |wanted| {
        world.events(
            |event| matches!(event, Event::WorkerSuspect { suspect, .. } if *suspect == wanted),
        )
    };
    assert_eq!((doubts(true), doubts(false)), (1, 1));
    world
        .open(&[("x-session-id", "b")], &chat(""))
        .start()
        .call("d0");
}
