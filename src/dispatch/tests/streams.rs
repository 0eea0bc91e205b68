//! Streams that break, and streams that are cut into pieces.

use super::*;

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
    turn.stream_begins().relay();
    turn
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
    // vLLM tells the role before it has fetched anything.
    assert_eq!(turn.chunk(ROLE), ROLE);
    let event = "data: {\"error\":{\"message\":\"kv load failed\",\"code\":500}}\n\n";
    assert_eq!(turn.chunk(event), event);
    assert_eq!(turn.chunk(DONE), DONE);
    assert_eq!(turn.end(), "");
    assert_eq!(
        world.events(|event| matches!(event, Event::HandedOver { .. })),
        0,
        "the decoder never had the KV"
    );
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
    turn.stream_begins().relay();
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
