//! Examples of bodies, and agreement with `serde_json` on every body.

use proptest::prelude::*;
use serde_json::{Map, Value, json, value::RawValue};

use super::*;
use crate::tests::corpus::{BODIES, hollow, spoiled};

const LIMITS: Limits = Limits {
    body_bytes: 1 << 20,
    depth: 128,
    messages: 100,
};

fn chat(body: &str) -> Result<Peek, Refusal> {
    peek(body.as_bytes(), Endpoint::Chat, &LIMITS)
}

/// The messages of a body that passes, or why it does not.
fn history(body: &str) -> Result<Vec<Message>, Refusal> {
    messages(body.as_bytes(), &chat(body)?, &LIMITS)
}

fn completions(body: &str) -> Result<Peek, Refusal> {
    peek(body.as_bytes(), Endpoint::Completions, &LIMITS)
}

#[track_caller]
fn refused<T: std::fmt::Debug>(
    found: Result<T, Refusal>,
    status: u16,
    code: &str,
    param: Option<&str>,
) -> String {
    let refusal = found.expect_err("the body must be refused");
    assert_eq!(
        (refusal.status, refusal.code, refusal.param.as_deref()),
        (status, code, param),
        "{refusal}"
    );
    refusal.message
}

#[test]
fn each_field_is_found_with_its_place() {
    let body = r#" { "a":{"model":1}, "model" : "m\"x" ,"messages":[{"role":"user","content":"hi"}, {"content":[],"role":"assistant"}],"stream":true,"n":2} "#;
    let found = chat(body).unwrap();
    let bytes = body.as_bytes();
    assert_eq!(&*found.model.decode(bytes).unwrap(), b"m\"x");
    assert!(found.stream);
    let messages = history(body).unwrap();
    let texts: Vec<_> = messages
        .iter()
        .map(|message| message.span.of(bytes))
        .collect();
    assert_eq!(
        texts,
        [
            &br#"{"role":"user","content":"hi"}"#[..],
            br#"{"content":[],"role":"assistant"}"#
        ]
    );
    assert_eq!(
        messages
            .iter()
            .map(|message| message.by_assistant)
            .collect::<Vec<_>>(),
        [false, true]
    );
    let n = found.field(Name::N).unwrap();
    assert_eq!(
        (n.member.of(bytes), n.value.of(bytes), n.index),
        (&b"\"n\":2"[..], &b"2"[..], 4)
    );
    assert_eq!(n.comma_after, None, "the last member");
    let model = found.field(Name::Model).unwrap();
    let commas =
        [model.comma_before, model.comma_after].map(|comma| bytes[comma.unwrap() as usize]);
    assert_eq!(commas, [b',', b',']);
    assert_eq!(bytes[found.close as usize], b'}');
}

#[test]
fn a_field_with_an_escaped_key_is_the_same_field() {
    let found =
        history(r#"{"\u006dodel":"m","mess\u0061ges":[{"r\u006fle":"assist\u0061nt"}]}"#).unwrap();
    assert!(found[0].by_assistant);
    let twice = chat(r#"{"model":"m","messages":[{}],"mode\u006C":"other"}"#);
    refused(twice, 400, "duplicate_field", Some("model"));
}

#[test]
fn whatever_is_read_or_edited_may_occur_once() {
    for (name, text) in NAMES {
        let value = match name {
            Name::Messages => "[{}]",
            Name::Stream => "true",
            Name::StreamOptions
            | Name::Metadata
            | Name::VllmXargs
            | Name::KvTransferParams
            | Name::EcTransferParams => "{}",
            Name::MaxTokens | Name::MaxCompletionTokens | Name::MinTokens | Name::N => "1",
            _ => "\"x\"",
        };
        let body = format!(r#"{{"{text}":{value},"other":0,"{text}":{value}}}"#);
        refused(chat(&body), 400, "duplicate_field", Some(text));
    }
    for (path, members) in [
        (
            "metadata.user_id",
            r#""metadata":{"user_id":"a","user_id":"b"}"#,
        ),
        (
            "conversation.id",
            r#""conversation":{"id":"a","x":0,"id":"b"}"#,
        ),
        (
            "stream_options.include_usage",
            r#""stream_options":{"include_usage":true,"include_usage":false}"#,
        ),
    ] {
        refused(
            chat(&format!("{{{members}}}")),
            400,
            "duplicate_field",
            Some(path),
        );
    }
    let twice = r#"{"model":"m","messages":[{},{"role":"user","role":"assistant"}]}"#;
    refused(
        history(twice),
        400,
        "duplicate_field",
        Some("messages[1].role"),
    );
    assert!(
        history(r#"{"model":"m","messages":[{"content":1,"content":2}],"x":1,"x":2}"#).is_ok(),
        "the worker's affair"
    );
}

#[test]
fn wrong_types_are_named() {
    for (param, members) in [
        ("model", r#""model":1"#),
        ("model", r#""model":null"#),
        ("messages", r#""messages":"hi""#),
        ("messages", r#""messages":{}"#),
        ("stream", r#""stream":"yes""#),
        ("stream", r#""stream":1"#),
        ("stream_options", r#""stream_options":[]"#),
        (
            "stream_options.include_usage",
            r#""stream_options":{"include_usage":1}"#,
        ),
        ("max_tokens", r#""max_tokens":"9""#),
        ("n", r#""n":[]"#),
        ("prompt", r#""prompt":{}"#),
        ("prompt", r#""prompt":[1,"a"]"#),
        ("prompt", r#""prompt":[null]"#),
        ("prompt[0][1]", r#""prompt":[[1,"a"]]"#),
        ("conversation", r#""conversation":1"#),
        ("metadata.user_id", r#""metadata":{"user_id":{}}"#),
        ("prompt_cache_key", r#""prompt_cache_key":7"#),
    ] {
        let message = refused(
            chat(&format!("{{{members}}}")),
            400,
            "invalid_type",
            Some(param),
        );
        assert!(message.contains(param), "{message}");
    }
    let string = r#"{"model":"m","messages":[{},"hi"]}"#;
    refused(history(string), 400, "invalid_type", Some("messages[1]"));
}

#[test]
fn what_is_inside_of_what_is_not_read_is_left_to_the_worker() {
    for inside in ["NaN", "nul", "1 2", ",", "\"\\x\"", "\"\n\"", "{]"] {
        for members in [
            format!(r#""model":"m","messages":[{{"content":[{inside}]}}]"#),
            format!(r#""messages":[{{}}],"tools":[{inside}],"model":"m""#),
            format!(r#""messages":[{{}}],"metadata":{{"x":[{inside}],"user_id":"u"}},"model":"m""#),
        ] {
            let body = format!("{{{members}}}");
            let found = chat(&body).unwrap_or_else(|refusal| panic!("{body}: {refusal}"));
            assert_eq!(&*found.model.decode(body.as_bytes()).unwrap(), b"m");
        }
    }
    // What the router reads is what the worker will read, so there it is strict.
    for members in [
        r#""stream_options":{"include_usage":true,}"#,
        r#""metadata":{"user_id":"a" "b"}"#,
        r#""metadata":{"user_id":"\x"}"#,
        r#""x":"\x""#,
        r#""x":NaN"#,
        r#""conversation":{"id":"a",,}"#,
    ] {
        let body = format!(r#"{{"model":"m","messages":[{{}}],{members}}}"#);
        refused(chat(&body), 400, "invalid_json", None);
    }
    for messages in [r#"[{"a":nul}]"#, "[{}{}]", "[{},]", r#"[{"role":"\x"}]"#] {
        let body = format!(r#"{{"model":"m","messages":{messages}}}"#);
        assert!(chat(&body).is_ok(), "{body}");
        refused(history(&body), 400, "invalid_json", None);
    }
}

#[test]
fn no_bracket_in_a_string_hides_a_field() {
    for text in ["]", "]}}", "\\\"]", "\\\\\\\"]}", "[{", "\\\\"] {
        let body = format!(
            r#"{{"tools":[{{"d":"{text}"}}],"messages":[{{"content":"{text}"}}],"model":"m","n":2}}"#
        );
        assert!(serde_json::from_str::<&RawValue>(&body).is_ok(), "{body}");
        let found = chat(&body).unwrap();
        assert!(found.field(Name::N).is_some(), "{body}");
        assert_eq!(found.close as usize, body.len() - 1);
    }
}

#[test]
fn what_is_missing_is_named() {
    refused(chat("{}"), 400, "missing_field", Some("model"));
    refused(
        chat(r#"{"model":"m"}"#),
        400,
        "missing_field",
        Some("messages"),
    );
    refused(
        chat(r#"{"model":"m","messages":[]}"#),
        400,
        "invalid_value",
        Some("messages"),
    );
    refused(
        chat(r#"{"model":"","messages":[{}]}"#),
        400,
        "invalid_value",
        Some("model"),
    );
    refused(
        completions(r#"{"model":"m","messages":[{}]}"#),
        400,
        "missing_field",
        Some("prompt"),
    );
    refused(
        completions(r#"{"model":"m","prompt":[]}"#),
        400,
        "invalid_value",
        Some("prompt"),
    );
}

#[test]
fn what_is_not_one_object_is_refused_with_its_place() {
    refused(chat(""), 400, "empty_body", None);
    refused(chat(" \n"), 400, "empty_body", None);
    refused(chat("[1]"), 400, "invalid_type", None);
    for (body, place) in [
        ("hello", "byte 0"),
        (r#"{"model":"m","messages":[{}]} x"#, "byte 30"),
        (r#"{"model":"m","messages":[{}]"#, "byte 28"),
        (r#"{"model":"m",}"#, "byte 13"),
        (r#"{"model":NaN}"#, "byte 9"),
        ("{\"model\":\"a\nb\"}", "byte 11"),
        ("\u{feff}{}", "byte 0"),
    ] {
        let message = refused(chat(body), 400, "invalid_json", None);
        assert!(message.contains(place), "{body:?}: {message}");
    }
    let message = refused(
        peek(b"{\"model\":\"\xff\"}", Endpoint::Chat, &LIMITS),
        400,
        "invalid_utf8",
        None,
    );
    assert!(message.contains("byte 10"), "{message}");
}

#[test]
fn depth_and_size_have_limits() {
    let deep = format!(
        r#"{{"model":"m","messages":[{{}}],"x":{}}}"#,
        "[".repeat(10_000)
    );
    refused(chat(&deep), 400, "nesting_too_deep", None);
    let pad = |bytes: usize| {
        format!(
            r#"{{"model":"m","messages":[{{}}],"x":"{}"}}"#,
            "a".repeat(bytes - 36)
        )
    };
    assert_eq!(pad(LIMITS.body_bytes).len(), LIMITS.body_bytes);
    assert!(chat(&pad(LIMITS.body_bytes)).is_ok(), "equal to the limit");
    refused(
        chat(&pad(LIMITS.body_bytes + 1)),
        413,
        "payload_too_large",
        None,
    );
    let many = |count: usize| {
        format!(
            r#"{{"model":"m","messages":[{}]}}"#,
            vec!["{}"; count].join(",")
        )
    };
    assert!(history(&many(100)).is_ok(), "equal to the limit");
    refused(
        history(&many(101)),
        400,
        "too_many_messages",
        Some("messages"),
    );
}

#[test]
fn a_client_cannot_bring_its_own_handoff() {
    let body = r#"{"model":"m","messages":[{}],"kv_transfer_params":{"do_remote_prefill":true}}"#;
    refused(
        chat(body),
        400,
        "unsupported_field",
        Some("kv_transfer_params"),
    );
    let body = r#"{"model":"m","messages":[{}],"kv\u005ftransfer_params":null}"#;
    refused(
        chat(body),
        400,
        "unsupported_field",
        Some("kv_transfer_params"),
    );
    let body = r#"{"model":"m","messages":[{}],"ec_transfer_params":{"h":{"peer_host":"x"}}}"#;
    refused(
        chat(body),
        400,
        "unsupported_field",
        Some("ec_transfer_params"),
    );
}

#[test]
fn nor_in_what_the_engine_takes_for_arguments_of_its_own() {
    let with = |arguments: &str| {
        chat(&format!(
            r#"{{"model":"m","messages":[{{}}],"vllm_xargs":{arguments}}}"#
        ))
    };
    for arguments in [
        r#"{"kv_transfer_params":"x"}"#,
        r#"{"a":["}"],"kv\u005ftransfer_params":[]}"#,
    ] {
        let path = "vllm_xargs.kv_transfer_params";
        refused(with(arguments), 400, "unsupported_field", Some(path));
    }
    refused(
        with(r#"{"ec_transfer_params":"x"}"#),
        400,
        "unsupported_field",
        Some("vllm_xargs.ec_transfer_params"),
    );
    for arguments in ["null", "{}", r#"{"a":"kv_transfer_params","b":[1]}"#] {
        assert!(with(arguments).is_ok(), "{arguments}");
    }
    let twice = r#"{},"vllm_xargs":{"kv_transfer_params":"x"}"#;
    refused(with(twice), 400, "duplicate_field", Some("vllm_xargs"));
}

#[test]
fn token_ids_are_counted_and_text_is_measured() {
    let size = |prompt: &str| {
        completions(&format!(r#"{{"model":"m","prompt":{prompt}}}"#)).map(|found| found.size)
    };
    assert_eq!(size("[1, 2,3]"), Ok(Size::Tokens(3)));
    assert_eq!(size("[[7,8]]"), Ok(Size::Tokens(2)));
    assert!(matches!(
        size(r#"["one"]"#),
        Ok(Size::Text { media: 0, .. })
    ));
    for several in [r#"["a","b"]"#, "[[1],[2]]"] {
        let body = format!(r#"{{"model":"m","prompt":{several}}}"#);
        let message = refused(completions(&body), 400, "unsupported_value", Some("prompt"));
        assert!(message.contains("one request for each"), "{message}");
    }
}

#[test]
fn media_is_not_measured_as_text() {
    let image = format!("data:image/png;base64,{}", "A".repeat(100_000));
    let body = format!(r#"{{"model":"m","messages":[{{"content":[{{"url":"{image}"}}]}}]}}"#);
    assert_eq!(
        chat(&body).unwrap().size,
        Size::Text {
            bytes: body.len() - image.len(),
            media: 1
        }
    );
}

#[test]
fn ids_are_found_where_clients_put_them() {
    let found = |members: &str| {
        let body = format!(r#"{{"model":"m","messages":[{{}}],{members}}}"#);
        let found = chat(&body).unwrap();
        [
            found.conversation,
            found.previous_response_id,
            found.prompt_cache_key,
            found.user_id,
        ]
        .map(|id| {
            id.map(|id| {
                String::from_utf8(id.decode(body.as_bytes()).unwrap().into_owned()).unwrap()
            })
        })
    };
    assert_eq!(found(r#""conversation":"a""#)[0].as_deref(), Some("a"));
    assert_eq!(
        found(r#""conversation":{"x":[],"id":"\u0061b"}"#)[0].as_deref(),
        Some("ab")
    );
    assert_eq!(found(r#""conversation":null"#)[0], None);
    assert_eq!(
        found(r#""previous_response_id":"r""#)[1].as_deref(),
        Some("r")
    );
    assert_eq!(found(r#""prompt_cache_key":"k""#)[2].as_deref(), Some("k"));
    assert_eq!(
        found(r#""metadata":{"user_id":"u","x":1}"#)[3].as_deref(),
        Some("u")
    );
    assert_eq!(found(r#""metadata":{"user_id":null}"#)[3], None);
}

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        ".{0,12}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 32, 5, |inner| {
        let member = (
            prop_oneof![Just("role".to_owned()), ".{0,6}"],
            inner.clone(),
        );
        prop_oneof![
            prop::collection::vec(inner, 0..5).prop_map(Value::from),
            prop::collection::vec(member, 0..5)
                .prop_map(|members| Value::Object(members.into_iter().collect::<Map<_, _>>())),
        ]
    })
}

/// Bodies that pass, with neighbours of every kind around the fields.
fn body() -> impl Strategy<Value = String> {
    let role = prop_oneof![
        Just(json!("user")),
        Just(json!("assistant")),
        Just(json!(7)),
        Just(Value::Null)
    ];
    let message =
        (role, value()).prop_map(|(role, content)| json!({"role": role, "content": content}));
    let field = prop_oneof![
        any::<bool>().prop_map(|on| ("stream".to_owned(), json!(on))),
        any::<bool>().prop_map(|on| ("stream_options".to_owned(), json!({"include_usage": on}))),
        any::<u32>().prop_map(|count| ("max_tokens".to_owned(), json!(count))),
        ".{0,9}".prop_map(|id| ("prompt_cache_key".to_owned(), json!(id))),
        ("x.{0,5}", value()),
    ];
    let messages = prop::collection::vec(message, 1..5);
    (
        ".{1,8}",
        messages,
        prop::collection::vec(field, 0..6),
        any::<bool>(),
    )
        .prop_map(|(model, messages, fields, pretty)| {
            let mut members: Map<String, Value> = fields.into_iter().collect();
            members.insert("model".into(), json!(model));
            members.insert("messages".into(), json!(messages));
            if pretty {
                serde_json::to_string_pretty(&members).unwrap()
            } else {
                serde_json::to_string(&members).unwrap()
            }
        })
}

/// The reasons for which a body that is JSON may be refused.
const REASONS: [&str; 8] = [
    "invalid_type",
    "missing_field",
    "duplicate_field",
    "invalid_value",
    "unsupported_field",
    "too_many_messages",
    "nesting_too_deep",
    "empty_body",
];

#[track_caller]
fn agrees_with_serde(body: &[u8]) {
    let theirs = serde_json::from_slice::<&RawValue>(body).is_ok();
    match peek(body, Endpoint::Chat, &LIMITS) {
        Ok(found) => {
            assert!(
                serde_json::from_slice::<&RawValue>(&hollow(body)).is_ok(),
                "passes what serde_json refuses, and not for what is inside of a container: {:?}",
                String::from_utf8_lossy(body)
            );
            let read = messages(body, &found, &LIMITS);
            if let (true, Err(refusal)) = (theirs, &read) {
                assert!(REASONS.contains(&refusal.code), "refuses JSON: {refusal}");
            }
            let Ok(Value::Object(members)) = serde_json::from_slice::<Value>(body) else {
                return; // not JSON, or half a surrogate pair somewhere: JSON by its grammar, yet not a `Value`
            };
            assert_eq!(
                &*found.model.decode(body).unwrap(),
                members["model"].as_str().unwrap().as_bytes()
            );
            assert_eq!(
                found.stream,
                members.get("stream") == Some(&Value::Bool(true))
            );
            let messages = members["messages"].as_array().unwrap();
            if let Ok(read) = read {
                assert_eq!(read.len(), messages.len());
                for (ours, message) in read.iter().zip(messages) {
                    assert_eq!(
                        &serde_json::from_slice::<Value>(ours.span.of(body)).unwrap(),
                        message
                    );
                    assert_eq!(
                        ours.by_assistant,
                        message.get("role") == Some(&json!("assistant"))
                    );
                }
            }
            for (name, text) in NAMES {
                let ours = found
                    .field(name)
                    .map(|field| serde_json::from_slice(field.value.of(body)).unwrap());
                assert_eq!(ours.as_ref(), members.get(text), "{text}");
            }
        }
        Err(refusal) if theirs => {
            assert!(REASONS.contains(&refusal.code), "refuses JSON: {refusal}");
        }
        Err(_) => {}
    }
}

proptest! {
    #[test]
    fn reads_what_serde_json_reads(body in body()) {
        prop_assert!(history(&body).is_ok(), "{:?}", history(&body));
        agrees_with_serde(body.as_bytes());
    }

    #[test]
    fn agrees_on_mutated_bodies(body in body(), edits in prop::collection::vec((any::<prop::sample::Index>(), 0..4_u8, any::<u8>()), 1..4)) {
        let mut bytes = body.into_bytes();
        for (place, what, byte) in edits {
            let at = place.index(bytes.len());
            match what {
                0 => bytes[at] = byte,
                1 => bytes.insert(at, b"\"\\{}[],:0-u"[usize::from(byte) % 11]),
                2 if bytes.len() > 1 => { bytes.remove(at); }
                _ => bytes.truncate(at.max(1)),
            }
        }
        agrees_with_serde(&bytes);
    }

    #[test]
    fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        agrees_with_serde(&bytes);
    }

    #[test]
    fn agrees_on_spoiled_bodies_of_the_corpus(bytes in spoiled(&BODIES)) {
        agrees_with_serde(&bytes);
    }
}
