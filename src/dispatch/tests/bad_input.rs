//! Requests that are not served: each with its status and code, and nothing booked.

use super::*;

#[track_caller]
fn refused(
    world: &World,
    headers: &[(&str, &str)],
    body: &[u8],
    status: u16,
    code: &str,
) -> serde_json::Value {
    let mut turn = world.open_at(Endpoint::Chat, headers, body);
    let error = turn.start().error(status, code);
    assert!(turn.dispatch.is_over());
    world.untouched();
    assert_eq!(
        world.events(|event| matches!(event, Event::TurnStarted { .. })),
        0
    );
    error
}

#[test]
fn bodies_that_are_no_request() {
    let world = world(1, 1);
    let deep = format!(
        r#"{{"model":"m","messages":[{{}}],"x":{}}}"#,
        "[".repeat(10_000)
    );
    let unicode = b"{\"model\":\"\xff\",\"messages\":[{}]}";
    for (body, code, param) in [
        (&b""[..], "empty_body", None),
        (b"hello", "invalid_json", None),
        (b"not json", "invalid_json", None),
        (b"nul", "invalid_json", None),
        (b"[1", "invalid_json", None),
        (b"\"x", "invalid_json", None),
        (b"null null", "invalid_json", None),
        (b"null", "invalid_type", None),
        (b"\"x\"", "invalid_type", None),
        (b"[]", "invalid_type", None),
        (unicode, "invalid_utf8", None),
        (deep.as_bytes(), "nesting_too_deep", None),
        (br#"{"messages":[{}]}"#, "missing_field", Some("model")),
        (
            br#"{"model":7,"messages":[{}]}"#,
            "invalid_type",
            Some("model"),
        ),
        (br#"{"model":"m"}"#, "missing_field", Some("messages")),
        (
            br#"{"model":"m","messages":"hi"}"#,
            "invalid_type",
            Some("messages"),
        ),
        (
            br#"{"model":"m","messages":[{}],"stream":"yes"}"#,
            "invalid_type",
            Some("stream"),
        ),
        (
            br#"{"model":"m","messages":[{}],"model":"n"}"#,
            "duplicate_field",
            Some("model"),
        ),
        (
            br#"{"model":"m","messages":[{}],"kv_transfer_params":{}}"#,
            "unsupported_field",
            Some("kv_transfer_params"),
        ),
    ] {
        let error = refused(&world, &[], body, 400, code);
        assert_eq!(
            error["param"].as_str(),
            param,
            "{}",
            String::from_utf8_lossy(body)
        );
        assert_eq!(error["type"], "invalid_request_error");
    }
    assert_eq!(world.counter("requests_refused"), 19);
}

#[test]
fn a_body_above_the_limit() {
    let config = DispatchConfig {
        max_body_bytes: 1_000,
        ..DispatchConfig::default()
    };
    let world = World::new(1, 1, config, Config::default());
    let error = refused(&world, &[], &vec![b' '; 1_001], 413, "payload_too_large");
    assert!(
        error["message"]
            .as_str()
            .unwrap()
            .contains("max_body_bytes")
    );
    assert_eq!(
        world.dispatcher.too_large(100_000_000).status,
        413,
        "for doors that stop reading"
    );
}

#[test]
fn ids_that_cannot_be_one() {
    let world = world(1, 1);
    let long = "x".repeat(10_240);
    for id in [&*long, "a\u{7}b", ""] {
        let error = refused(
            &world,
            &[("x-conversation-id", id)],
            chat("").as_bytes(),
            400,
            "invalid_conversation_id",
        );
        assert_eq!(error["param"], "x-conversation-id");
    }
}

#[test]
fn a_model_that_nobody_serves() {
    let world = world(1, 1);
    world
        .dispatcher
        .set_models(["other".to_owned(), "n".to_owned()]);
    let error = refused(&world, &[], chat("").as_bytes(), 404, "model_not_found");
    assert_eq!(error["param"], "model");
    assert!(
        error["message"].as_str().unwrap().contains("n, other"),
        "{error}"
    );
    world.dispatcher.set_models(["m".to_owned()]);
    world.open(&[], &chat("")).start().call("p0");
}

#[test]
fn a_prompt_longer_than_any_decoder() {
    let world = world(1, 2);
    // 100 blocks of 16 tokens hold 1,600; at four bytes a token, and an estimate off by two, that is 12,800 bytes.
    let body = chat(&format!(r#","x":"{}""#, "a".repeat(13_000)));
    let error = refused(&world, &[], body.as_bytes(), 400, "context_length_exceeded");
    assert_eq!(error["param"], "messages");
    assert!(
        error["message"].as_str().unwrap().contains("1600"),
        "{error}"
    );
    let body = format!(
        r#"{{"model":"m","prompt":[{}]}}"#,
        vec!["1"; 1_601].join(",")
    );
    let mut turn = world.open_at(Endpoint::Completions, &TASK, body.as_bytes());
    turn.start().error(400, "context_length_exceeded");
    world.untouched();
}

#[test]
fn a_prompt_that_only_an_estimate_finds_too_long_is_left_to_the_worker() {
    let world = world(1, 1);
    let mut turn = world.open(&TASK, &chat(&format!(r#","x":"{}""#, "a".repeat(10_000))));
    turn.start().call("p0");
    let refusal = r#"{"error":{"message":"too long","code":"context_length_exceeded"}}"#;
    let (_, body) = turn.answered(400, refusal).reply(400);
    assert_eq!(body, refusal, "the worker has counted");
    world.untouched();
}

#[test]
fn an_encoded_body() {
    let world = world(1, 1);
    refused(
        &world,
        &[("content-encoding", "gzip")],
        b"\x1f\x8b",
        415,
        "unsupported_encoding",
    );
}

#[test]
fn a_door_that_calls_the_wrong_method_leaves_nothing_booked() {
    let world = world(1, 1);
    let mut turn = world.open(&[], &streamed());
    turn.start().call("p0");
    turn.start().error(500, "internal_error");
    world.untouched();
    let mut turn = world.open(&[], &streamed());
    turn.stream_begins().error(500, "internal_error");
    assert_eq!(
        (turn.chunk(WORD), turn.end()),
        (String::new(), String::new())
    );
    world.untouched();
}
