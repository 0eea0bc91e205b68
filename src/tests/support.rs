//! A small fleet and the few words that tests say over and over.

use std::time::Duration;

use crate::config::Config;
use crate::error::Rejected;
use crate::fleet::{Role, WorkerSpec};
use crate::router::{Begin, Router, Ticket, Turn, TurnRequest, Usage};
use crate::units::{Blocks, ConversationKey, Timestamp, Tokens, WorkerId};

pub(crate) const SECOND: u64 = 1_000_000_000;

pub(crate) fn at(seconds: u64) -> Timestamp {
    Timestamp(seconds * SECOND)
}

pub(crate) fn key(number: u128) -> ConversationKey {
    ConversationKey(number)
}

/// The gate that takes nothing from idle conversations: who needs room waits until it is given back.
pub(crate) fn holding() -> Config {
    Config {
        evict_idle: false,
        tail_waits: true,
        ..Config::default()
    }
}

/// A router over decoders of the given capacities, in blocks of 16 tokens, and prefillers.
pub(crate) fn fleet(config: Config, prefillers: usize, decoders: &[u64]) -> Router {
    let router = Router::new(config).expect("a valid configuration");
    for number in 0..prefillers {
        join(&router, &format!("http://p{number}"), Role::Prefiller, None);
    }
    for (number, blocks) in decoders.iter().enumerate() {
        join(
            &router,
            &format!("http://d{number}"),
            Role::Decoder,
            Some(*blocks),
        );
    }
    router
}

pub(crate) fn join(router: &Router, url: &str, role: Role, blocks: Option<u64>) -> WorkerId {
    let spec = WorkerSpec {
        kv_blocks: blocks.map(Blocks::new),
        ..WorkerSpec::new(url, role)
    };
    router.join(spec, at(0)).expect("a valid worker")
}

/// Asks for a turn whose prompt fills `blocks` blocks, and does not wait.
pub(crate) fn ask(router: &Router, number: u128, blocks: u32) -> Result<Turn, Rejected> {
    let request = TurnRequest {
        key: key(number),
        prompt_tokens: Tokens(blocks * 16),
        wait: None,
    };
    match router.begin(&request, at(1))? {
        Begin::Started(turn) => Ok(turn),
        Begin::Waiting(_) => unreachable!("a turn that does not want to wait is answered at once"),
    }
}

/// Asks for a turn and waits up to ten seconds, from `at(1)`.
pub(crate) fn queue(router: &Router, number: u128, blocks: u32) -> Result<Begin, Rejected> {
    let wait = Some(Duration::from_secs(10));
    let request = TurnRequest {
        key: key(number),
        prompt_tokens: Tokens(blocks * 16),
        wait,
    };
    router.begin(&request, at(1))
}

pub(crate) fn wait(router: &Router, number: u128, blocks: u32) -> Ticket {
    match queue(router, number, blocks).expect("there is a place in the line") {
        Begin::Waiting(ticket) => ticket,
        Begin::Started(turn) => panic!("expected to wait, runs as {turn:?}"),
    }
}

pub(crate) fn granted(ticket: &Ticket) -> Option<Turn> {
    ticket
        .take(at(2))
        .map(|answer| answer.expect("granted, not refused"))
}

/// Ends a turn with nothing generated.
pub(crate) fn finish(turn: Turn) {
    turn.finish(Usage::default(), at(2));
}

/// One whole turn.
pub(crate) fn run(router: &Router, number: u128, blocks: u32) {
    finish(ask(router, number, blocks).expect("there is room"));
}

pub(crate) fn booked(router: &Router, worker: usize) -> u32 {
    router.check().expect("the books agree");
    router.snapshot(at(2)).workers[worker].booked.get()
}
