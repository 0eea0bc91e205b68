//! What goes well: two turns, streamed and not, headers and bodies as they should arrive.

use super::*;

#[test]
fn a_first_turn_is_prefilled_once_and_the_next_goes_straight_to_its_decoder() {
    let world = world(1, 2);
    let mut first = world.open(&TASK, &chat(r#", "temperature":0.70"#));
    let asked = first.start().call("p0");
    assert_eq!(asked.url, "http://p0:8000/v1/chat/completions");
    assert_eq!(
        body_of(&asked),
        chat(
            r#", "temperature":0.70,"max_tokens":1,"kv_transfer_params":{"do_remote_decode":true,"do_remote_prefill":false}"#
        ),
    );
    let Action::Call(asked) = first.answered(200, PREFILLED) else {
        panic!("the decoder is next")
    };
    assert_eq!(
        body_of(&asked),
        chat(&format!(r#", "temperature":0.70,{PARAMS}"#))
    );
    let (headers, body) = first.answered(200, ANSWER).reply(200);
    assert_eq!(body, ANSWER, "byte for byte");
    assert_eq!(
        value(&headers, "x-conserve-decoder").as_deref(),
        Some(&*asked.name)
    );
    assert_eq!(value(&headers, "x-conserve-turn").as_deref(), Some("1"));
    assert_eq!(
        value(&headers, "x-conserve-route").as_deref(),
        Some("first")
    );
    assert_eq!(
        value(&headers, "x-conserve-prefiller").as_deref(),
        Some("p0")
    );
    assert_eq!(
        value(&headers, "x-conserve-conversation").unwrap().len(),
        32
    );
    assert!(first.dispatch.is_over());

    let mut second = world.open(&TASK, &chat(""));
    let sent = second.start().call(&asked.name);
    assert_eq!(body_of(&sent), chat(""), "the body as it came");
    let (headers, _) = second.answered(200, ANSWER).reply(200);
    assert_eq!(value(&headers, "x-conserve-turn").as_deref(), Some("2"));
    assert_eq!(
        value(&headers, "x-conserve-route").as_deref(),
        Some("pinned")
    );
    assert_eq!(
        value(&headers, "x-conserve-prefiller"),
        None,
        "nothing was handed over"
    );
    assert_eq!(
        world.events(|event| matches!(event, Event::HandedOver { handoff: true, .. })),
        1
    );
    assert_eq!(
        world.booked(),
        4,
        "ceil((40 + 10) / 16) blocks of the idle conversation stay booked"
    );
    world.settled();
}

#[test]
fn a_streamed_turn_passes_and_settles_by_its_usage() {
    let world = world(1, 1);
    let mut turn = world.open(&TASK, &streamed());
    let asked = turn.start().call("p0");
    assert!(body_of(&asked).contains(r#""stream":false"#));
    let asked = turn.later(1).answered(200, PREFILLED).stream("d0");
    assert!(body_of(&asked).ends_with(&format!(
        r#","stream_options":{{"include_usage":true}},{PARAMS}}}"#
    )));
    turn.listen();
    assert_eq!(turn.later(1).chunk(ROLE), "", "held back");
    assert_eq!(turn.later(1).chunk(WORD), [ROLE, WORD].concat());
    assert_eq!(
        value(&turn.headers, "content-type").as_deref(),
        Some("text/event-stream; charset=utf-8")
    );
    assert_eq!(
        turn.later(1).chunk(USAGE),
        "",
        "the client did not ask for it"
    );
    assert_eq!(turn.chunk(DONE), DONE);
    assert_eq!(turn.end(), "");
    let first_token =
        |event: &Event| matches!(event, Event::FirstToken { ttft, .. } if *ttft == seconds(3));
    assert_eq!(world.events(first_token), 1, "the role is not a token");
    let effective =
        |event: &Event| matches!(event, Event::Effective { ttfet, .. } if *ttfet == seconds(3));
    assert_eq!(
        world.events(effective),
        1,
        "known at the end, counted to the first token"
    );
    assert_eq!(world.booked(), 4);
    world.settled();
}

#[test]
fn a_turn_that_ends_in_a_tool_call_is_not_effective() {
    let world = world(0, 1);
    let mut turn = world.open(&TASK, &streamed());
    turn.start().stream("d0");
    turn.listen();
    for event in [WORD, CALL, USAGE, DONE] {
        turn.chunk(event);
    }
    turn.end();
    assert_eq!(
        world.events(|event| matches!(event, Event::Effective { .. })),
        0
    );
    let mut turn = world.open(&TASK, &chat(""));
    turn.later(9).start().call("d0");
    turn.answered(
        200,
        r#"{"choices":[{"message":{"tool_calls":[{}]},"finish_reason":"tool_calls"}]}"#,
    )
    .reply(200);
    assert_eq!(
        world.events(|event| matches!(event, Event::Effective { .. })),
        0
    );
    let mut turn = world.open(&TASK, &chat(""));
    turn.later(10).start().call("d0");
    turn.answered(200, ANSWER).reply(200);
    let effective =
        |event: &Event| matches!(event, Event::Effective { ttfet, .. } if *ttfet == seconds(10));
    assert_eq!(
        world.events(effective),
        1,
        "from the first request of the conversation"
    );
    world.settled();
}

#[test]
fn without_prefillers_or_connector_the_decoder_gets_the_clients_body() {
    let none = DispatchConfig {
        connector: Connector::none(),
        ..DispatchConfig::default()
    };
    for world in [world(0, 1), World::new(2, 1, none, Config::default())] {
        let mut turn = world.open(&TASK, &chat(""));
        assert_eq!(body_of(&turn.start().call("d0")), chat(""));
        turn.answered(200, ANSWER).reply(200);
        assert_eq!(
            world.events(|event| matches!(event, Event::HandedOver { handoff: true, .. })),
            0
        );
        world.settled();
    }
}

#[test]
fn headers_cross_as_they_should() {
    let config = DispatchConfig {
        worker_key: Some(Secret::new("sk-worker")),
        ..DispatchConfig::default()
    };
    let world = World::new(0, 1, config, Config::default());
    let client = [
        ("authorization", "Bearer sk-client"),
        ("traceparent", "00-a-b-01"),
        ("x-request-id", "r-7"),
        ("connection", "x-hop"),
        ("x-hop", "1"),
        ("x-conversation-id", "task-42"),
    ];
    let mut turn = world.open(&client, &chat(""));
    let asked = turn.start().call("d0");
    let sent = |name| value(&asked.headers, name);
    assert_eq!(sent("authorization").as_deref(), Some("Bearer sk-worker"));
    assert_eq!(sent("traceparent").as_deref(), Some("00-a-b-01"));
    assert_eq!(sent("x-request-id").as_deref(), Some("r-7"));
    assert_eq!(sent("x-conversation-id").as_deref(), Some("task-42"));
    assert_eq!(sent("accept-encoding").as_deref(), Some("identity"));
    assert_eq!((sent("x-hop"), sent("connection")), (None, None));
    let printed = format!("{asked:?}");
    assert!(
        !printed.contains("sk-"),
        "secrets are not printed: {printed}"
    );
    let headers = [
        ("content-type", "application/json"),
        ("x-request-id", "worker's"),
        ("transfer-encoding", "chunked"),
    ];
    let (headers, _) = turn.answered_with(200, &headers, ANSWER).reply(200);
    assert_eq!(value(&headers, "x-request-id").as_deref(), Some("worker's"));
    assert_eq!(value(&headers, "transfer-encoding"), None);
    let mut turn = world.open(&TASK, &chat(""));
    let own = value(&turn.start().call("d0").headers, "x-request-id").unwrap();
    let (headers, _) = turn.answered(200, ANSWER).reply(200);
    assert_eq!(
        value(&headers, "x-request-id"),
        Some(own),
        "invented once, told to both sides"
    );
}

#[test]
fn several_choices_reach_the_decoder_and_not_the_prefiller() {
    let world = world(1, 1);
    let mut turn = world.open(&TASK, &chat(r#","n":3"#));
    assert!(body_of(&turn.start().call("p0")).contains(r#""n":1"#));
    assert!(body_of(&turn.answered(200, PREFILLED).call("d0")).contains(r#""n":3"#));
    turn.gone();
    world.settled();
}

#[test]
fn mooncake_gives_both_sides_one_id() {
    let config = DispatchConfig {
        connector: Connector::mooncake(),
        ..DispatchConfig::default()
    };
    let world = World::new(1, 1, config, Config::default());
    let id = |upstream: &Upstream| {
        let body: serde_json::Value = serde_json::from_slice(&upstream.body).unwrap();
        body["kv_transfer_params"]["transfer_id"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    let mut turn = world.open(&TASK, &chat(""));
    let prefill = id(&turn.start().call("p0"));
    let decode = id(&turn
        .answered(200, r#"{"choices":[],"usage":{"prompt_tokens":40}}"#)
        .call("d0"));
    assert_eq!(prefill, decode);
    turn.gone();
    let mut other = world.open(&[("x-session-id", "b")], &chat(""));
    assert_ne!(id(&other.start().call("p0")), prefill);
    other.gone();
    world.settled();
}

#[test]
fn an_encoded_answer_passes_intact() {
    let world = world(0, 1);
    let mut turn = world.open(&TASK, &chat(""));
    turn.start().call("d0");
    let gzip = [
        ("content-type", "application/json"),
        ("content-encoding", "gzip"),
    ];
    let (headers, body) = turn.answered_with(200, &gzip, "\u{1f}gzipped").reply(200);
    assert_eq!(
        (value(&headers, "content-encoding").as_deref(), &*body),
        (Some("gzip"), "\u{1f}gzipped")
    );
    let mut turn = world.open(&TASK, &streamed());
    turn.start().stream("d0");
    let gzip = list(&[
        ("content-type", "text/event-stream"),
        ("content-encoding", "gzip"),
    ]);
    turn.dispatch.head(200, &gzip, turn.now).relay();
    assert_eq!(turn.chunk("packed"), "packed");
    assert_eq!(turn.end(), "");
    let finished = world.events(
        |event| matches!(event, Event::TurnFinished { usage, .. } if usage.prompt.is_none()),
    );
    assert_eq!(finished, 2, "counted without usage");
    world.settled();
}

#[test]
fn a_completion_by_token_ids_is_booked_exactly() {
    let world = world(0, 1);
    let body = format!(r#"{{"model":"m","prompt":[{}]}}"#, vec!["7"; 33].join(","));
    let mut turn = world.open_at(Endpoint::Completions, &TASK, body.as_bytes());
    assert_eq!(turn.start().call("d0").url, "http://d0:8000/v1/completions");
    assert_eq!(world.booked(), 3, "33 tokens are 3 blocks of 16");
    turn.answered(
        200,
        r#"{"choices":[{"text":"a"}],"usage":{"prompt_tokens":33,"completion_tokens":15}}"#,
    )
    .reply(200);
    assert_eq!(world.booked(), 3, "48 tokens still are");
    world.settled();
}

#[test]
fn a_completion_that_nobody_can_continue_leaves_nothing() {
    let world = world(1, 1);
    let body = br#"{"model":"m","prompt":"once upon","stream":true}"#;
    let mut turn = world.open_at(Endpoint::Completions, &[], body);
    turn.start().call("p0");
    turn.answered(200, PREFILLED).stream("d0");
    turn.listen();
    turn.chunk("data: {\"choices\":[{\"text\":\"a\"}]}\n\ndata: [DONE]\n\n");
    turn.end();
    world.untouched();
}

#[test]
fn turns_without_a_handoff_ask_the_engine_to_keep_them_where_that_is_set() {
    const KEPT: &str =
        r#","kv_transfer_params":{"do_remote_decode":true,"do_remote_prefill":false}"#;
    let retaining = DispatchConfig {
        retain: true,
        ..DispatchConfig::default()
    };
    let world = World::new(1, 1, retaining, Config::default());
    let mut first = world.open(&TASK, &chat(""));
    first.start().call("p0");
    let asked = first.answered(200, PREFILLED).call("d0");
    assert_eq!(
        body_of(&asked),
        chat(&format!(",{PARAMS}")),
        "the handoff as it is"
    );
    let told = ANSWER.replace(r#"{"choices""#, &format!(r#"{{{PARAMS}, "choices""#));
    let (_, body) = first.answered(200, &told).reply(200);
    let shown = ANSWER.replace(r#"{"choices""#, r#"{"kv_transfer_params":null, "choices""#);
    assert_eq!(
        body, shown,
        "where its KV lies is not the client's business"
    );

    let mut second = world.open(&TASK, &chat(""));
    assert_eq!(body_of(&second.start().call("d0")), chat(KEPT));
    second.answered(200, ANSWER).reply(200);
    let mut third = world.open(&TASK, &streamed());
    let asked = body_of(&third.start().stream("d0"));
    assert!(
        asked.ends_with(&format!(
            r#","stream_options":{{"include_usage":true}}{KEPT}}}"#
        )),
        "{asked}"
    );
    drop(third);
    world.settled();
}

#[test]
fn a_connector_that_cannot_make_the_engine_keep_turns_is_refused() {
    for connector in [
        Connector::none(),
        Connector::mooncake(),
        Connector::declared("{}", None, None),
    ] {
        let config = DispatchConfig {
            connector,
            retain: true,
            ..DispatchConfig::default()
        };
        assert_eq!(config.validate().unwrap_err().key, "retention");
    }
    let own = DispatchConfig {
        connector: Connector::declared("{}", None, Some(r#"{"keep":true}"#.into())),
        retain: true,
        ..DispatchConfig::default()
    };
    own.validate().expect("it says how");
}
