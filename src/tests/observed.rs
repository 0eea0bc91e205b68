//! What workers tell changes the books, is counted, and grows old.

use super::support::{SECOND, ask, at, booked, fleet, key, run};
use crate::config::Config;
use crate::event::FailReason;
use crate::report::WorkerReport;
use crate::router::{Begin, Heard, Router, TurnRequest, Usage};
use crate::units::{Blocks, Timestamp, Tokens, WorkerId};

const DECODER: WorkerId = match WorkerId::new(0) {
    Some(id) => id,
    None => panic!("0 is a worker"),
};

/// A batch with one event: these blocks were stored for conversation `number`, or removed.
fn batch(kind: &str, blocks: std::ops::Range<u8>, number: u128) -> Vec<u8> {
    let text = |text: &str| {
        let length = u8::try_from(text.len()).expect("short");
        [&[0xd9, length], text.as_bytes()].concat()
    };
    let count = u8::try_from(blocks.len()).expect("few");
    [
        vec![0x92, 0, 0x91, 0x83],
        [text("type"), text(kind)].concat(),
        [text("block_hashes"), vec![0xdc, 0, count], blocks.collect()].concat(),
        [text("session_id"), text(&key(number).to_string())].concat(),
    ]
    .concat()
}

fn hear(router: &Router, number: u64, batch: &[u8]) -> Heard {
    router.hear(DECODER, number, batch, at(2)).expect("a batch")
}

#[test]
fn the_booking_of_an_idle_conversation_follows_what_its_decoder_evicts() {
    let router = fleet(Config::default(), 0, &[100]);
    run(&router, 1, 10);
    assert_eq!(
        hear(&router, 0, &batch("BlockStored", 0..10, 1)),
        Heard::Counted
    );
    let row = router.snapshot(at(2)).workers.remove(0);
    assert_eq!(row.resident, Some(Blocks::new(10)));
    hear(&router, 1, &batch("BlockRemoved", 6..10, 0));
    assert_eq!(booked(&router, 0), 6, "4 of 10 blocks are gone");
    let snapshot = router.snapshot(at(2));
    let totals = snapshot.totals;
    assert_eq!((totals.idle_evictions, totals.idle_evicted_blocks), (1, 4));
    assert_eq!(snapshot.workers[0].idle_evicted, 4);
    router.check().expect("the books balance");
    let turn = ask(&router, 1, 11).expect("room");
    assert_eq!(booked(&router, 0), 11, "what is gone is booked again");
    hear(&router, 2, &batch("BlockRemoved", 0..2, 0));
    assert_eq!(
        booked(&router, 0),
        11,
        "a turn in flight settles what it finds"
    );
    turn.finish(Usage::default(), at(2));
    router.check().expect("the books balance");
}

#[test]
fn a_missing_batch_is_asked_for_and_counts_once_it_is_there() {
    let router = fleet(Config::default(), 0, &[100]);
    let resident = || router.snapshot(at(2)).workers[0].resident;
    assert_eq!(resident(), None);
    let later = batch("BlockRemoved", 0..1, 0);
    assert_eq!(hear(&router, 1, &later), Heard::Missing { from: 0 });
    hear(&router, 0, &batch("BlockStored", 0..3, 1));
    assert_eq!(hear(&router, 1, &later), Heard::Counted);
    assert_eq!(hear(&router, 1, &later), Heard::Known);
    assert_eq!(resident(), Some(Blocks::new(2)));
    router.give_up_events(DECODER, 7);
    assert_eq!(resident(), None, "2 to 6 may have said anything");
    assert_eq!(router.snapshot(at(2)).workers[0].events_missed, 5);
    assert!(router.hear(DECODER, 7, b"\xc1", at(2)).is_err());
}

#[test]
fn a_report_of_load_grows_old_and_is_left_out() {
    let router = fleet(Config::default(), 0, &[100]);
    let row = |now: Timestamp| router.snapshot(now).workers.remove(0);
    let told = WorkerReport {
        running: Some(3),
        kv_blocks: Some(Blocks::new(90)),
        ..WorkerReport::default()
    };
    router.observe(DECODER, &told, at(1));
    let silent = WorkerReport {
        max_model_len: Some(Tokens(800)),
        ..WorkerReport::default()
    };
    router.observe(DECODER, &silent, at(9));
    let (fresh, old) = (row(at(11)), row(Timestamp(11 * SECOND + 1)));
    assert!(!fresh.report_stale, "10 s are not above 10 s");
    assert_eq!(fresh.report.and_then(|report| report.running), Some(3));
    assert!(
        old.report_stale,
        "what tells no load makes the load no younger"
    );
    let report = old.report.expect("it did report");
    assert_eq!(
        (report.running, report.kv_blocks),
        (None, Some(Blocks::new(90)))
    );
    assert_eq!(
        old.capacity,
        Some(Blocks::new(90)),
        "a process keeps its size"
    );
}

#[test]
fn tokens_computed_again_are_counted_once_they_are_told() {
    let router = fleet(Config::default(), 0, &[100]);
    let turn = |blocks, cached: u32| {
        let usage = Usage {
            prompt: Some(Tokens(blocks * 16)),
            output: Some(Tokens(16)),
            cached: Some(Tokens(cached)),
        };
        ask(&router, 1, blocks).expect("room").finish(usage, at(2));
    };
    let again = || router.snapshot(at(2)).totals.recomputed_tokens;
    turn(10, 0);
    assert_eq!(again(), 0, "a first turn computes nothing again");
    // 10 + 1 blocks of context; the KV of its last token was never computed: 10 whole blocks are there.
    turn(12, 160);
    assert_eq!(again(), 0);
    // 13 blocks of context, 12 whole ones there, 4 found: 8 * 16 tokens again, of 160 + 32 + 160 computed.
    turn(14, 64);
    assert_eq!(again(), 128);
    let share = router.recomputed_share(at(2)).expect("some were computed");
    assert!((share - 128.0 / 352.0).abs() < 1e-9, "{share}");
    turn(5, 0);
    assert_eq!(again(), 128, "a shorter history is another one");
    router.relocate(key(1), at(2));
    turn(6, 0);
    // 6 blocks of context, the last token of which was never computed.
    assert_eq!(again(), 128 + 80, "one that moved is computed again");
}

#[test]
fn a_prompt_that_was_handed_over_was_not_computed_by_its_decoder() {
    let router = fleet(Config::default(), 1, &[100]);
    let mut turn = ask(&router, 1, 10).expect("room");
    turn.prefilled(Tokens(160), at(2));
    // vLLM tells the prefiller's number here: nothing of it was in a cache.
    let usage = Usage {
        prompt: Some(Tokens(160)),
        output: Some(Tokens(1)),
        cached: Some(Tokens(0)),
    };
    turn.finish(usage, at(3));
    let rows = router.snapshot(at(3)).workers;
    let worked: Vec<_> = rows.iter().map(|row| row.work.prompt).collect();
    assert_eq!(worked, [160, 0], "p0 did, d0 did not");
}

#[test]
fn a_decoder_that_fails_turns_comes_after_the_others_for_longer_each_time() {
    // The larger one is preferred, were it not for what it fails.
    let router = fleet(Config::default(), 0, &[100, 50]);
    let placed = |number, now| {
        let request = TurnRequest {
            key: key(number),
            prompt_tokens: Tokens(16),
            wait: None,
        };
        match router.begin(&request, now) {
            Ok(Begin::Started(turn)) => turn,
            _ => unreachable!("there is room"),
        }
    };
    let next = |now| {
        let turn = placed(2, now);
        let decoder = turn.route().decoder.id.get();
        turn.fail(FailReason::ClientGone, now);
        decoder
    };
    placed(1, at(1)).fail(FailReason::Rejected, at(1));
    assert_eq!(next(at(1)), 0, "a refusal is no failure");
    for (began, lasts) in [(10, 1), (20, 2), (40, 4)] {
        let (one, other) = (placed(1, at(began)), placed(3, at(began)));
        one.fail(FailReason::DecoderError, at(began));
        other.fail(FailReason::DecoderError, at(began));
        let ends = at(began + lasts);
        assert_eq!(next(Timestamp(ends.0 - 1)), 1, "both failures are one");
        assert_eq!(next(ends), 0, "it is tried again");
    }
    placed(4, at(60)).finish(Usage::default(), at(60));
    placed(1, at(61)).fail(FailReason::Timeout, at(61));
    assert_eq!(
        (next(at(61)), next(at(62))),
        (1, 0),
        "it served: one second again"
    );
}

#[test]
fn a_count_that_cannot_be_true_books_nothing_where_no_longest_context_is_told() {
    let router = fleet(Config::default(), 0, &[10_000]);
    let told = |prompt| Usage {
        prompt: Some(Tokens(prompt)),
        ..Usage::default()
    };
    // 16 blocks are 256 tokens: up to 16 * 256 + 65536 = 69632 could be.
    ask(&router, 1, 16)
        .expect("room")
        .finish(told(69_633), at(2));
    assert_eq!(booked(&router, 0), 16);
    ask(&router, 1, 16)
        .expect("room")
        .finish(told(69_632), at(2));
    assert_eq!(booked(&router, 0), 4352);
    let small = fleet(Config::default(), 0, &[20]);
    ask(&small, 1, 16).expect("room").finish(told(321), at(2));
    assert_eq!(booked(&small, 0), 16, "20 blocks hold 320 tokens");
}
