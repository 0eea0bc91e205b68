//! What do a million live conversations weigh, what does `begin` cost while they are swept, and what a turn that is refused
//! where engines keep a hundred thousand of them?
//!
//! Bytes are counted by the allocator, as asked for and without its own overhead; the resident size
//! of the process is given beside them. `--test` does the same with twenty thousand.

#![allow(
    missing_docs,
    clippy::disallowed_methods,
    clippy::disallowed_macros,
    reason = "a program"
)]
#![allow(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss
)]
#![allow(clippy::cast_possible_wrap, clippy::similar_names)]
#![allow(unsafe_code, reason = "an allocator that counts")]

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::{Duration, Instant};

use common::{OUTPUT, Turns, key, prompt, quantile};
use conserve::config::Config;
use conserve::event::Usage;
use conserve::fleet::{Role, WorkerSpec};
use conserve::identity::{Identity, IdentityLimits};
use conserve::router::{Begin, Router, TurnRequest};
use conserve::units::{Blocks, ConversationKey, Timestamp, Tokens};

struct Counting;

static BYTES: AtomicI64 = AtomicI64::new(0);

// SAFETY: passes every call to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        BYTES.fetch_add(layout.size() as i64, Ordering::Relaxed);
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        BYTES.fetch_sub(layout.size() as i64, Ordering::Relaxed);
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const HOUR: u64 = 3_600_000_000_000;

fn resident_bytes() -> i64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    statm
        .split(' ')
        .nth(1)
        .and_then(|pages| pages.parse::<i64>().ok())
        .unwrap_or(0)
        * 4096
}

fn fill(router: &Router, conversations: u64) {
    for number in 0..conversations {
        router.turn(key(number), 500, OUTPUT, 1);
    }
}

/// Nanoseconds of `begin`, one by one, on conversations that stay, until told to stop.
fn probe(router: &Router, first: u64, stop: &AtomicBool, least: u64, now: u64) -> Vec<u64> {
    let mut spans = Vec::with_capacity(1 << 22);
    let mut step = 0;
    while step < least || !stop.load(Ordering::Relaxed) {
        let number = first + step % 1_000;
        let request = TurnRequest {
            key: ConversationKey(key(number)),
            prompt_tokens: Tokens(prompt(step / 1_000)),
            wait: None,
        };
        let before = Instant::now();
        let begun = router.begin(&request, Timestamp(now));
        spans.push(before.elapsed().as_nanos() as u64);
        let Ok(Begin::Started(turn)) = begun else {
            panic!("no room")
        };
        turn.finish(
            Usage {
                output: Some(Tokens(OUTPUT)),
                ..Usage::default()
            },
            Timestamp(now),
        );
        step += 1;
    }
    spans.sort_unstable();
    spans
}

/// Nanoseconds of `begin` for a newcomer and for a later turn that find no room: the decoder's engine keeps all of it.
fn refused(conversations: u64) -> [Vec<u64>; 2] {
    let config = Config {
        retention: Some(Duration::from_nanos(HOUR)),
        low_watermark: 1.0,
        max_conversations: 8_000_000,
        ..Config::default()
    };
    let router = Router::new(config).expect("valid");
    let blocks = 500_u64.div_ceil(16) + u64::from(OUTPUT).div_ceil(16);
    let spec = WorkerSpec::new("http://d0:8000", Role::Decoder)
        .with_kv_blocks(Blocks::new(conversations * blocks));
    router.join(spec, Timestamp(0)).expect("valid");
    fill(&router, conversations);
    [conversations, 0].map(|number| {
        let request = TurnRequest {
            key: ConversationKey(key(number)),
            prompt_tokens: Tokens(u32::try_from(conversations * 16 * 4).expect("few")),
            wait: None,
        };
        let mut spans: Vec<u64> = (0..1_000)
            .map(|step| {
                let before = Instant::now();
                let begun = router.begin(&request, Timestamp(3 + step));
                let took = before.elapsed().as_nanos() as u64;
                assert!(begun.is_err(), "no room");
                took
            })
            .collect();
        spans.sort_unstable();
        spans
    })
}

fn quantiles(spans: &[u64]) -> serde_json::Value {
    serde_json::json!({
        "p50": quantile(spans, 0.5), "p95": quantile(spans, 0.95), "p99": quantile(spans, 0.99),
        "p999": quantile(spans, 0.999), "max": quantile(spans, 1.0), "count": spans.len(),
    })
}

fn main() {
    let test = std::env::args().any(|argument| argument == "--test");
    let conversations = if test { 20_000 } else { 1_000_000 };
    let mut result = common::provenance("scale");
    result.insert("conversations".into(), conversations.into());

    let (bytes, resident) = (BYTES.load(Ordering::Relaxed), resident_bytes());
    let router = common::router(64);
    fill(&router, conversations);
    let bytes = BYTES.load(Ordering::Relaxed) - bytes;
    let resident = resident_bytes() - resident;
    assert_eq!(
        router.snapshot(Timestamp(1)).conversations as u64,
        conversations
    );
    let each = |total: i64| (total as f64 / conversations as f64 * 10.0).round() / 10.0;
    result.insert(
        "memory".into(),
        serde_json::json!({
            "allocated_mb": bytes as f64 / 1e6, "allocated_bytes_each": each(bytes),
            "resident_mb": resident as f64 / 1e6, "resident_bytes_each": each(resident),
        }),
    );

    let before = BYTES.load(Ordering::Relaxed);
    let identity = Identity::new([7; 16], IdentityLimits::default());
    let tenant = identity.tenant(None);
    for number in 0..conversations {
        for turn in 0..2 {
            let history = key(number * 2 + turn);
            identity.remember(tenant, history, ConversationKey(key(number)));
        }
    }
    let fingerprints = BYTES.load(Ordering::Relaxed) - before;
    result.insert(
        "fingerprint_index_bytes_each".into(),
        each(fingerprints).into(),
    );
    drop(identity);

    // A thousand conversations that are used all the while; all others are idle for an hour.
    let (first, late) = (conversations, 2 * HOUR);
    for number in first..first + 1_000 {
        router.turn(key(number), 500, OUTPUT, late);
    }
    let alone = probe(&router, first, &AtomicBool::new(true), 300_000, late);
    result.insert("begin_ns_before_the_sweep".into(), quantiles(&alone));
    let stop = Arc::new(AtomicBool::new(false));
    let (during, swept, took) = std::thread::scope(|scope| {
        let (router, stop) = (&router, &stop);
        let probing = scope.spawn(move || probe(router, first, stop, 1, late));
        let start = Instant::now();
        let swept = router.sweep(Timestamp(late));
        let took = start.elapsed();
        stop.store(true, Ordering::Relaxed);
        (probing.join().expect("no panic"), swept, took)
    });
    assert_eq!(
        swept.conversations as u64, conversations,
        "all the idle ones"
    );
    router.check().expect("the accounting identity");
    result.insert("begin_ns_during_the_sweep".into(), quantiles(&during));
    result.insert("sweep_ms".into(), (took.as_millis() as u64).into());
    drop(router);
    let [newcomer, later] = refused(conversations.min(100_000));
    result.insert("refused_newcomer_ns".into(), quantiles(&newcomer));
    result.insert("refused_later_turn_ns".into(), quantiles(&later));
    if test {
        println!(
            "{}",
            serde_json::to_string_pretty(&result).expect("plain values")
        );
    } else {
        common::write_result("scale", &result);
    }
}
