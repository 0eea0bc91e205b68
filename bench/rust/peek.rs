//! What does reading a request body cost, from its bytes to the request for the pinned decoder? And an event of a stream?
//!
//! Measured beside it in the same run: copying the body, validating it with `serde_json`, and building a DOM of it, which
//! is where a router that parses and serialises again begins.

use std::fmt::Write as _;
use std::hint::black_box;
use std::sync::Arc;

use bytes::Bytes;
use conserve::config::Config;
use conserve::dispatch::{Action, Connector, DispatchConfig, Dispatcher, Endpoint, Header};
use conserve::fleet::{Role, WorkerSpec};
use conserve::identity::{Identity, IdentityLimits};
use conserve::router::Router;
use conserve::units::{Blocks, Timestamp};
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};

/// An agent's history of about that many bytes: source code as tool output, with three escapes in each line.
fn history(bytes: usize) -> String {
    let line = r#"    let value = map.get(\"key\").unwrap_or(&default);\n"#;
    let mut messages = String::from(r#"{"role":"system","content":"You are an agent."}"#);
    while messages.len() + 250 < bytes {
        let lines = ((bytes - messages.len()) / line.len()).clamp(1, 80);
        let text = line.repeat(lines);
        write!(
            messages,
            r#",{{"role":"assistant","content":"ok"}},{{"role":"user","content":"{text}"}}"#
        )
        .unwrap();
    }
    messages
}

/// The body of the turn after that history.
fn next_turn(history: &str, more: &str) -> Bytes {
    let next = r#"{"role":"assistant","content":"done"},{"role":"user","content":"go on"}"#;
    Bytes::from(format!(
        r#"{{"model":"m","temperature":0.7,"messages":[{history},{next}]{more}}}"#
    ))
}

fn dispatcher() -> Dispatcher {
    let identity = Arc::new(Identity::new([7; 16], IdentityLimits::default()));
    let router = Router::new(Config::default())
        .unwrap()
        .with_observer(identity.clone());
    let spec =
        WorkerSpec::new("http://d0:8000", Role::Decoder).with_kv_blocks(Blocks::new(10_000_000));
    router.join(spec, Timestamp(0)).unwrap();
    let config = DispatchConfig {
        connector: Connector::none(),
        ..DispatchConfig::default()
    };
    Dispatcher::new(Arc::new(router), identity, config).unwrap()
}

/// The conversation's first turn, so that the later ones find it pinned.
fn pin(dispatcher: &Dispatcher, headers: &[Header], history: &str) {
    let body = Bytes::from(format!(r#"{{"model":"m","messages":[{history}]}}"#));
    let mut turn = dispatcher.open(Endpoint::Chat, headers.to_vec(), body, Timestamp(1));
    assert!(matches!(turn.start(Timestamp(1)), Action::Call(_)));
    turn.answered(
        200,
        &[],
        &Bytes::from_static(br#"{"choices":[{"message":{"content":"a"}}]}"#),
        Timestamp(2),
    );
}

/// A pinned turn until its decoder would be asked; then the client leaves.
fn turn(dispatcher: &Dispatcher, headers: &[Header], body: &Bytes) {
    let mut turn = dispatcher.open(Endpoint::Chat, headers.to_vec(), body.clone(), Timestamp(3));
    let action = turn.start(Timestamp(3));
    assert!(
        matches!(action, Action::Call(_) | Action::Stream(_)),
        "{action:?}"
    );
    black_box(&action);
    turn.client_gone(Timestamp(4));
}

fn read_bodies(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("body");
    let named = [(
        Bytes::from_static(b"x-conversation-id"),
        Bytes::from_static(b"task-42"),
    )];
    for (label, size) in [("1KB", 1 << 10), ("64KB", 64 << 10), ("512KB", 512 << 10)] {
        let history = history(size);
        let plain = next_turn(&history, "");
        let stream = next_turn(&history, r#","stream":true"#);
        group.throughput(Throughput::Bytes(plain.len() as u64));
        let id = |name| BenchmarkId::new(name, label);
        let dispatcher = dispatcher();
        pin(&dispatcher, &named, &history);
        pin(&dispatcher, &[], &history);
        group.bench_function(id("pinned_turn"), |b| {
            b.iter(|| turn(&dispatcher, &named, &plain));
        });
        group.bench_function(id("pinned_turn_stream"), |b| {
            b.iter(|| turn(&dispatcher, &named, &stream));
        });
        group.bench_function(id("fingerprinted_turn"), |b| {
            b.iter(|| turn(&dispatcher, &[], &plain));
        });
        group.bench_function(id("copy"), |b| b.iter(|| black_box(plain.to_vec())));
        group.bench_function(id("serde_json_validate"), |b| {
            b.iter(|| {
                serde_json::from_slice::<&serde_json::value::RawValue>(black_box(&plain))
                    .unwrap()
                    .get()
                    .len()
            });
        });
        group.bench_function(id("serde_json_dom"), |b| {
            b.iter(|| serde_json::from_slice::<serde_json::Value>(black_box(&plain)).unwrap());
        });
        assert_eq!(
            dispatcher.router().snapshot(Timestamp(5)).conversations,
            2,
            "each turn found its conversation"
        );
    }
    group.finish();
}

/// What does one event of a stream cost on its way through?
fn read_events(criterion: &mut Criterion) {
    const EVENT: &str = concat!(
        r#"data: {"id":"chatcmpl-0b1c2d3e4f","object":"chat.completion.chunk","created":1764460800,"model":"m","#,
        r#""choices":[{"index":0,"delta":{"content":" token"},"logprobs":null,"finish_reason":null}]}"#,
        "\n\n"
    );
    let dispatcher = dispatcher();
    let body = next_turn(&history(1 << 10), r#","stream":true"#);
    let mut turn = dispatcher.open(Endpoint::Chat, Vec::new(), body, Timestamp(1));
    turn.start(Timestamp(1));
    let head = [(
        Bytes::from_static(b"content-type"),
        Bytes::from_static(b"text/event-stream"),
    )];
    assert!(matches!(
        turn.head(200, &head, Timestamp(2)),
        Action::Listen
    ));
    let event = Bytes::from_static(EVENT.as_bytes());
    assert!(matches!(
        turn.heard(&event, Timestamp(2)),
        Action::Relay { .. }
    ));
    let (first, second) = (event.slice(..100), event.slice(100..));
    let mut group = criterion.benchmark_group("event");
    group.bench_function("whole", |b| {
        b.iter(|| turn.chunk(black_box(&event), Timestamp(3)));
    });
    group.bench_function("in_two_chunks", |b| {
        b.iter(|| {
            (
                turn.chunk(black_box(&first), Timestamp(3)),
                turn.chunk(black_box(&second), Timestamp(3)),
            )
        });
    });
    group.bench_function("serde_json_dom", |b| {
        let json = EVENT
            .trim_end()
            .strip_prefix("data: ")
            .expect("one data line");
        b.iter(|| serde_json::from_str::<serde_json::Value>(black_box(json)).expect("JSON"));
    });
    group.finish();
}

criterion_group!(benches, read_bodies, read_events);
criterion_main!(benches);
