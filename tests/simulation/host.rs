//! Workers as the router meets them, with the truth about whose KV lies where.
//!
//! A prefiller keeps what it computed for its lease and then gives the blocks to others. Like the real engine, a decoder that
//! pulls blocks which are not the prompt's any more answers 200 with a wrong text; it has no way to know.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;

use serde_json::value::RawValue;

use super::plan::SECOND;

/// How long a prefiller keeps what nobody pulled.
pub const ENGINE_LEASE: u64 = 30 * SECOND;

const ROLE: &str =
    "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n";

/// What a wrong KV makes of an answer.
pub const WRONG: &str = "WRONG";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    Up,
    /// Nothing listens: connections are refused.
    Dead,
    /// Nobody answers at its address.
    Gone,
}

pub struct Host {
    pub name: String,
    pub prefills: bool,
    pub state: State,
    /// Which process it is, counted from the first.
    pub life: u32,
    /// Does nothing until then.
    pub stalled_until: u64,
    pub deaf_until: u64,
    /// What the next transfer is called; ids of a life before are never seen again.
    next: u64,
    /// Prompts whose KV waits to be pulled.
    waiting: BTreeMap<u64, Kept>,
}

struct Kept {
    prompt: u64,
    until: u64,
}

/// A request as a worker reads it.
pub struct Asked {
    pub prompt: u64,
    pub prompt_tokens: u64,
    pub stream: bool,
    pub usage: bool,
    prefill_only: bool,
    pull: Option<(String, u64)>,
}

/// What a decoder has when it begins to generate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kv {
    Right,
    Wrong,
    /// The transfer failed, and the engine knows.
    Missing,
}

impl Host {
    pub fn new(name: String, prefills: bool) -> Self {
        Self {
            name,
            prefills,
            state: State::Up,
            life: 0,
            stalled_until: 0,
            deaf_until: 0,
            next: 0,
            waiting: BTreeMap::new(),
        }
    }

    pub fn url(&self) -> String {
        format!("http://{}:8000", self.name)
    }

    pub fn die(&mut self, state: State) {
        self.state = state;
        self.waiting.clear();
    }

    pub fn rise(&mut self) {
        self.state = State::Up;
        self.life += 1;
        self.stalled_until = 0;
    }

    /// Computes a prompt for a handoff; what it answers.
    pub fn prefill(&mut self, asked: &Asked, now: u64) -> String {
        assert!(
            asked.prefill_only,
            "a prefiller is asked for one token and a handoff, not streamed"
        );
        self.next += 1;
        self.waiting.insert(
            self.next,
            Kept {
                prompt: asked.prompt,
                until: now + ENGINE_LEASE,
            },
        );
        format!(
            r#"{{"choices":[{{"message":{{"content":"x"}},"finish_reason":"length"}}],"usage":{{"prompt_tokens":{},"completion_tokens":1}},"kv_transfer_params":{{"do_remote_prefill":true,"do_remote_decode":false,"remote_engine_id":"{}#{}","remote_block_ids":[[{}]]}}}}"#,
            asked.prompt_tokens, self.name, self.life, self.next
        )
    }

    fn give(&mut self, life: u32, number: u64, prompt: u64, now: u64) -> Kv {
        if self.state != State::Up || self.life != life {
            return Kv::Missing;
        }
        match self.waiting.remove(&number) {
            Some(kept) if kept.until >= now && kept.prompt == prompt => Kv::Right,
            // Given to somebody else since, or never this prompt's.
            _ => Kv::Wrong,
        }
    }
}

/// Pulls what the request names.
pub fn pull(hosts: &mut [Host], asked: &Asked, now: u64) -> Kv {
    let Some((engine, number)) = &asked.pull else {
        return Kv::Right;
    };
    let (name, life) = engine.split_once('#').expect("an engine id of ours");
    let life = life.parse().expect("an engine id of ours");
    let host = hosts
        .iter_mut()
        .find(|host| host.name == name)
        .expect("an engine of ours");
    host.give(life, *number, asked.prompt, now)
}

impl Asked {
    /// It brings KV from elsewhere, and no token tells when that was there.
    pub fn pulls_unseen(&self) -> bool {
        self.pull.is_some() && !self.stream
    }
}

/// What a decoder answers that could not load the KV: as a stream it has begun when it finds out.
pub fn load_failure(stream: bool) -> String {
    let error = r#"{"error":{"message":"KV load failed","type":"x","param":null,"code":500}}"#;
    if stream {
        format!("{ROLE}data: {error}\n\ndata: [DONE]\n\n")
    } else {
        error.to_owned()
    }
}

/// What the answer to a prompt is, if it was computed right: it follows from the hash of the messages alone.
pub fn text_for(prompt: u64) -> String {
    format!("answer {prompt:016x} é")
}

pub fn hash(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// Reads a request; every byte of it must be JSON that the engine accepts.
pub fn read(body: &str) -> Asked {
    let fields: HashMap<&str, &RawValue> = serde_json::from_str(body).expect("a worker gets JSON");
    let messages = fields["messages"].get();
    let params: Option<serde_json::Value> = fields
        .get("kv_transfer_params")
        .map(|raw| serde_json::from_str(raw.get()).expect("JSON in JSON"));
    let is = |key: &str, value: &str| fields.get(key).is_some_and(|raw| raw.get() == value);
    let params = params.unwrap_or_default();
    let pull = (params["do_remote_prefill"] == true).then(|| {
        let engine = params["remote_engine_id"]
            .as_str()
            .expect("the engine's id")
            .to_owned();
        (
            engine,
            params["remote_block_ids"][0][0].as_u64().expect("a block"),
        )
    });
    Asked {
        prompt: hash(messages),
        prompt_tokens: messages.len() as u64 / 4 + 1,
        stream: is("stream", "true"),
        usage: fields
            .get("stream_options")
            .is_some_and(|raw| raw.get().contains("true")),
        prefill_only: params["do_remote_decode"] == true
            && is("max_tokens", "1")
            && !is("stream", "true"),
        pull,
    }
}

/// The bytes of an answer.
pub fn answer(asked: &Asked, text: &str) -> String {
    let usage = format!(
        r#""usage":{{"prompt_tokens":{},"completion_tokens":8,"prompt_tokens_details":{{"cached_tokens":0}}}}"#,
        asked.prompt_tokens
    );
    if !asked.stream {
        return format!(
            r#"{{"choices":[{{"message":{{"role":"assistant","content":"{text}"}},"finish_reason":"stop"}}],{usage}}}"#
        );
    }
    let mut events = String::from(ROLE);
    for word in text.split_inclusive(' ') {
        write!(
            events,
            "data: {{\"choices\":[{{\"delta\":{{\"content\":\"{word}\"}}}}]}}\n\n"
        )
        .expect("a String takes every text");
    }
    events.push_str("data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n");
    if asked.usage {
        write!(events, "data: {{\"choices\":[],{usage}}}\n\n").expect("a String takes every text");
    }
    events.push_str("data: [DONE]\n\n");
    events
}
