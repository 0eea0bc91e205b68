//! Streams that break, and streams that are cut into pieces.

use super::*;

const FAILED: &str = "data: {\"error\":{\"message\":\"kv load failed\",\"code\":500}}\n\n";

#[track_caller]
fn error_event(text: &str) -> serde_json::Value {
    let data = text
        .strip_prefix("data: ")
        .and_then(|text| text.strip_suffix("\n\n"))
        .expect("one event");
    let mut object: serde_json::Value = serde_json::from_str(data).expect("an error object");
    object["error"].take()
}

fn relaying(world: &World) -> Client<'_> {
    let mut turn = world.open(&TASK, &streamed());
    let mut action = turn.start();
    if let Action::Call(_) = action {
        action = turn.answered(200, PREFILLED);
    }
    assert!(matches!(action, Action::Stream(_)));
    turn.listen();
    turn
}

#[test]
fn the_request_is_let_go_once_its_stream_has_begun() {
    let body = Bytes::from(streamed());
    let world = world(0, 1);
    let mut turn = world.open_bytes(Endpoint::Chat, &TASK, body.clone());
    drop(turn.start());
    turn.listen();
    turn.chunk(ROLE);
    assert!(!body.is_unique(), "it may have to be sent again");
    turn.chunk(WORD);
    assert!(body.is_unique());
    turn.gone();
    world.settled();
}

#[test]
fn a_streams_tokens_are_counted_while_it_runs_and_once() {
    let world = world(0, 1);
    let mut turn = relaying(&world);
    turn.chunk(WORD);
    assert_eq!(world.generated(), 1, "with the first one");
    turn.chunk(WORD);
    assert_eq!(world.generated(), 1, "not with each");
    turn.later(1).chunk(&WORD.repeat(2));
    assert_eq!(world.generated(), 4);
    turn.later(1).chunk(&[USAGE, DONE].concat());
    turn.end();
    assert_eq!(world.generated(), 10, "what the engine counts, not 4 more");

    let mut cut = relaying(&world);
    cut.chunk(WORD);
    cut.later(1).chunk(&WORD.repeat(2));
    cut.gone();
    assert_eq!(world.generated(), 13, "they were generated all the same");

    let mut wordy = relaying(&world);
    wordy.chunk(&[&WORD.repeat(11), USAGE, DONE].concat());
    wordy.end();
    assert_eq!(world.generated(), 24, "never fewer than before");
    world.settled();
}

#[test]
fn a_stream_cut_at_any_byte_gives_the_client_the_same() {
    let whole = [ROLE, WORD, WORD, USAGE, DONE].concat();
    let wanted = [ROLE, WORD, WORD, DONE].concat();
    for cut in 0..=whole.len() {
        let world = world(0, 1);
        let mut turn = relaying(&world);
        let (head, tail) = whole.split_at(cut);
        let got = [turn.chunk(head), turn.chunk(tail), turn.end()].concat();
        assert_eq!(got, wanted, "cut at {cut}");
        assert_eq!(world.booked(), 4, "cut at {cut}: settled by usage");
        world.settled();
    }
}

#[test]
fn a_decoder_lost_in_mid_stream_gives_an_error_event_and_the_end() {
    for failure in [Failure::Reset, Failure::Timeout(TimeoutKind::Idle)] {
        let world = world(1, 2);
        let mut turn = relaying(&world);
        let home = world.decoder_of(&turn).unwrap();
        assert_eq!(
            turn.chunk(&format!("{WORD}data: {{\"cho")),
            WORD,
            "half an event is held back"
        );
        let error = error_event(&turn.failed(failure).finish());
        assert!(
            ["worker_unavailable", "worker_timeout"].contains(&error["code"].as_str().unwrap())
        );
        assert!(
            error["message"].as_str().unwrap().contains("decoder d"),
            "{error}"
        );
        assert_eq!(world.counter("streams_cut"), 1);
        world.settled();

        let mut next = world.open(&TASK, &chat(""));
        let Action::Call(asked) = next.start() else {
            panic!("the pin is kept until the decoder refuses")
        };
        assert_eq!(asked.worker, home);
        next.failed(Failure::Connect).call("p0");
        let Action::Call(found) = next.answered(200, PREFILLED) else {
            panic!("the other decoder is asked")
        };
        assert_ne!(found.worker, home);
        next.answered(200, ANSWER).reply(200);
        assert_eq!(
            world.events(|event| matches!(event, Event::Relocated { .. })),
            1
        );
        assert_eq!(world.booked(), 4);
        world.settled();
    }
}

#[test]
fn a_stream_that_ends_without_done_is_a_failure() {
    let world = world(0, 1);
    let mut turn = relaying(&world);
    turn.chunk(WORD);
    let error = error_event(&turn.end());
    assert_eq!(error["code"], "worker_protocol_error");
    assert_eq!(
        world.events(|event| matches!(event, Event::TurnFailed { .. })),
        1
    );
    world.settled();
}

#[test]
fn a_reset_after_done_is_no_failure() {
    let world = world(0, 1);
    let mut turn = relaying(&world);
    for event in [WORD, USAGE, DONE] {
        turn.chunk(event);
    }
    assert_eq!(turn.failed(Failure::Reset).finish(), "");
    assert_eq!(
        world.events(|event| matches!(event, Event::TurnFinished { .. })),
        1
    );
    world.settled();
}

#[test]
fn an_error_event_of_the_worker_passes_and_fails_the_turn() {
    let world = world(1, 1);
    let mut turn = relaying(&world);
    assert_eq!(turn.chunk(&[ROLE, WORD].concat()), [ROLE, WORD].concat());
    assert_eq!(turn.chunk(FAILED), FAILED);
    assert_eq!(turn.chunk(DONE), DONE);
    assert_eq!(turn.end(), "");
    assert_eq!(world.counter("handoffs_recomputed"), 0);
    assert_eq!(
        world.events(|event| matches!(event, Event::TurnFailed { .. })),
        1
    );
    world.settled();
}

#[test]
fn kv_that_cannot_be_loaded_is_computed_before_the_client_sees_anything() {
    // vLLM tells the role before it has fetched anything; a completion's stream begins with the error.
    for before in ["", ROLE] {
        let world = world(1, 1);
        let mut turn = relaying(&world);
        assert_eq!(turn.chunk(before), "");
        let again = turn.heard(&[FAILED, DONE].concat()).stream("d0");
        assert!(!body_of(&again).contains("kv_transfer_params"));
        assert_eq!(world.counter("handoffs_recomputed"), 1);
        let orphaned = |event: &Event| matches!(event, Event::Orphaned { .. });
        assert_eq!(world.events(orphaned), 1, "nobody pulls that KV any more");
        turn.listen();
        assert_eq!(
            turn.chunk(&[ROLE, FAILED].concat()),
            [ROLE, FAILED].concat()
        );
        turn.end();
        assert_eq!(world.events(orphaned), 1, "counted once");
        world.untouched();
    }
}

#[test]
fn a_decoder_lost_before_its_first_token_is_tried_again_unseen() {
    let world = world(0, 1);
    world.open(&TASK, &chat("")).succeed();
    let mut turn = relaying(&world);
    assert_eq!(turn.chunk(ROLE), "");
    turn.failed(Failure::Reset).stream("d0");
    turn.listen();
    for event in [ROLE, WORD, USAGE, DONE] {
        turn.chunk(event);
    }
    assert_eq!(turn.end(), "");
    assert_eq!(world.counter("decodes_retried"), 1);
    assert_eq!(world.counter("streams_cut"), 0);
    world.settled();
}

#[test]
fn a_decoder_that_falls_silent_before_its_first_token_is_a_plain_error() {
    let world = world(1, 1);
    let mut turn = relaying(&world);
    turn.chunk(ROLE);
    turn.failed(Failure::Timeout(TimeoutKind::Idle))
        .error(504, "worker_timeout");
    world.untouched();
}

#[test]
fn a_stream_that_ends_before_its_first_token_is_a_plain_error_or_all_there_is() {
    let world = world(0, 1);
    let mut turn = relaying(&world);
    turn.chunk(ROLE);
    turn.heard("").error(502, "worker_protocol_error");
    world.untouched();

    let mut turn = relaying(&world);
    assert_eq!(turn.chunk("data: [DONE]"), "", "half an event is held back");
    assert_eq!(turn.heard("").reply(200).1, "data: [DONE]");
    world.settled();
}

#[test]
fn a_stream_without_a_token_is_held_back_up_to_a_limit() {
    let world = world(0, 1);
    let mut turn = relaying(&world);
    let beat = format!(": {}\n\n", "x".repeat(1 << 12));
    let mut beats = 0;
    let first = loop {
        beats += 1;
        match turn.heard(&beat) {
            Action::Listen => {}
            Action::Relay { first, .. } => break string(&first),
            other => panic!("expected a stream, got {other:?}"),
        }
    };
    assert_eq!(first, beat.repeat(beats), "nothing is lost");
    assert_eq!(beats, 16, "64 KiB");
    assert_eq!(
        world.events(|event| matches!(event, Event::FirstToken { .. })),
        0
    );
    turn.gone();
    world.untouched();
}

#[test]
fn usage_that_the_client_asked_for_passes() {
    let world = world(0, 1);
    let mut turn = world.open(
        &TASK,
        &chat(r#","stream":true,"stream_options":{"include_usage":true}"#),
    );
    turn.start().stream("d0");
    turn.listen();
    assert_eq!(
        turn.chunk(&[WORD, USAGE, DONE].concat()),
        [WORD, USAGE, DONE].concat()
    );
    turn.end();
    world.settled();
}

#[test]
fn an_answer_that_is_no_stream_passes_as_it_is() {
    let world = world(0, 1);
    let mut turn = world.open(&TASK, &streamed());
    turn.start().stream("d0");
    let json = list(&[("content-type", "application/json")]);
    let Action::Collect { limit } = turn.dispatch.head(200, &json, turn.now) else {
        panic!("collected")
    };
    assert_eq!(limit, world.dispatcher.config().max_answer_bytes);
    assert_eq!(turn.answered(200, ANSWER).reply(200).1, ANSWER);
    assert_eq!(world.booked(), 4);
    world.settled();
}
