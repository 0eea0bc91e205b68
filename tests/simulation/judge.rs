//! What must hold, read from the router's events and from what clients get.
//!
//! I1 to I9 and the ways in which an answer can be wrong; the accounting identity is asked of the router itself. I10 shows
//! as a wrong text: a decoder that pulls blocks after their lease does not notice.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Mutex;

use conserve::config::PolicyKind;
use conserve::event::{Event, Observer};
use conserve::units::{ConversationKey, WorkerId};

use super::plan::CallKey;

/// Every code that a client may be told, with its status.
const CODES: &[(&str, u16)] = &[
    ("overloaded", 429),
    ("queue_timeout", 429),
    ("conversation_closed", 503),
    ("context_length_exceeded", 400),
    ("draining", 503),
    ("no_workers", 503),
    ("worker_unavailable", 503),
    ("worker_timeout", 504),
    ("worker_protocol_error", 502),
];

#[derive(Default)]
pub struct Judge(Mutex<Seen>);

#[derive(Default)]
struct Seen {
    /// The policy may move a pin whose home is there.
    may_move: bool,
    /// Who is evicted loses its pin.
    pins_go: bool,
    wrong: Option<String>,
    workers: HashSet<WorkerId>,
    leaving: HashSet<WorkerId>,
    talks: HashMap<ConversationKey, Talk>,
    open: HashSet<(ConversationKey, u32)>,
    owners: HashMap<ConversationKey, u8>,
    faulted: BTreeSet<CallKey>,
}

#[derive(Default)]
struct Talk {
    turn: u32,
    /// Where it was placed last, and whether its KV has been there.
    decoder: Option<WorkerId>,
    pinned: bool,
    handoffs_left: u32,
}

impl Judge {
    pub fn new(policy: PolicyKind, tail_waits: bool) -> Self {
        let judge = Self::default();
        judge.seen(|seen| {
            seen.may_move = policy != PolicyKind::Strict;
            seen.pins_go = tail_waits;
        });
        judge
    }

    /// # Errors
    /// The first thing found wrong.
    pub fn verdict(&self) -> Result<(), String> {
        self.seen(|seen| seen.wrong.clone().map_or(Ok(()), Err))
    }

    /// # Errors
    /// A turn was begun and never ended (I7).
    pub fn all_settled(&self) -> Result<(), String> {
        self.seen(|seen| match seen.open.iter().next() {
            None => Ok(()),
            Some((key, turn)) => Err(format!("I7: turn {turn} of {key} was never settled")),
        })
    }

    pub fn faulted(&self, key: CallKey) {
        self.seen(|seen| seen.faulted.insert(key));
    }

    /// The calls that a fault was drawn for.
    pub fn faults(&self) -> Vec<CallKey> {
        self.seen(|seen| seen.faulted.iter().copied().collect())
    }

    /// # Errors
    /// Two tenants share a conversation (I9).
    pub fn belongs(&self, key: ConversationKey, tenant: u8) -> Result<(), String> {
        let owner = self.seen(|seen| *seen.owners.entry(key).or_insert(tenant));
        if owner == tenant {
            Ok(())
        } else {
            Err(format!(
                "I9: {key} belongs to tenant {owner} and to tenant {tenant}"
            ))
        }
    }

    /// The text of an answer; `None` for an error that has a name.
    ///
    /// # Errors
    /// It is neither.
    pub fn reply(status: u16, body: &[u8], streamed: bool) -> Result<Option<String>, String> {
        let value: serde_json::Value = serde_json::from_slice(body).map_err(|error| {
            format!(
                "a reply {status} is not JSON: {error}: {}",
                String::from_utf8_lossy(body)
            )
        })?;
        if (200..300).contains(&status) {
            if streamed {
                return Err(format!("a stream was asked for and a reply {status} came"));
            }
            let text = value["choices"][0]["message"]["content"]
                .as_str()
                .ok_or("an answer without text")?;
            return Ok(Some(text.to_owned()));
        }
        named(&value, Some(status))?;
        Ok(None)
    }

    /// The same of a stream.
    ///
    /// # Errors
    /// It ends neither with `[DONE]` nor with an error that has a name.
    pub fn stream(bytes: &[u8]) -> Result<Option<String>, String> {
        let text = std::str::from_utf8(bytes)
            .map_err(|_| "a stream is cut inside a character".to_owned())?;
        let mut said = String::new();
        let mut done = false;
        for event in text.split("\n\n").filter(|event| !event.is_empty()) {
            let data = event
                .strip_prefix("data: ")
                .ok_or_else(|| format!("not an event: {event:?}"))?;
            if done {
                return Err("something follows [DONE]".to_owned());
            }
            if data == "[DONE]" {
                done = true;
                continue;
            }
            let value: serde_json::Value =
                serde_json::from_str(data).map_err(|error| format!("event {data:?}: {error}"))?;
            if value.get("error").is_some() {
                named(&value, None)?;
                return Ok(None);
            }
            if value.get("usage").is_some() {
                return Err("the client did not ask for usage".to_owned());
            }
            said.push_str(
                value["choices"][0]["delta"]["content"]
                    .as_str()
                    .unwrap_or_default(),
            );
        }
        if done {
            Ok(Some(said))
        } else {
            Err(format!("a stream ends in silence: {text:?}"))
        }
    }

    fn seen<T>(&self, with: impl FnOnce(&mut Seen) -> T) -> T {
        with(&mut self.0.lock().expect("no panic inside"))
    }
}

/// I8: a code of ours has its status; what a worker said is passed on.
fn named(value: &serde_json::Value, status: Option<u16>) -> Result<(), String> {
    let error = &value["error"];
    if error["message"].as_str().is_none_or(str::is_empty) {
        return Err(format!("an error without a message: {value}"));
    }
    let code = &error["code"];
    if code == "said_by_worker" || code == 500 {
        return Ok(());
    }
    let known = CODES.iter().find(|(known, _)| code == known);
    match (known, status) {
        (None, _) => Err(format!("I8: the code {code} is not known: {value}")),
        (Some((_, right)), Some(status)) if *right != status => {
            Err(format!("I8: {code} with status {status}"))
        }
        _ => Ok(()),
    }
}

impl Observer for Judge {
    fn on(&self, event: &Event) {
        self.seen(|seen| {
            if let Err(wrong) = seen.hear(event) {
                seen.wrong.get_or_insert(wrong);
            }
        });
    }
}

impl Seen {
    fn hear(&mut self, event: &Event) -> Result<(), String> {
        match *event {
            Event::WorkerJoined { worker, .. } if !self.workers.insert(worker) => {
                return Err(format!("I4: worker id {worker} is used again"));
            }
            Event::WorkerLost { worker, .. } | Event::WorkerDraining { worker, .. } => {
                self.leaving.insert(worker);
            }
            Event::Placed {
                key,
                decoder,
                prefiller,
                ..
            } => {
                let talk = self.talks.entry(key).or_default();
                if let Some(home) = talk.decoder.filter(|home| {
                    talk.pinned
                        && !self.may_move
                        && *home != decoder
                        && !self.leaving.contains(home)
                }) {
                    return Err(format!(
                        "I1: {key} moves from {home}, which is there, to {decoder}"
                    ));
                }
                talk.decoder = Some(decoder);
                talk.pinned = false;
                // Turns of one conversation may be placed at the same time, by policies that place each turn.
                let before = if self.may_move { talk.handoffs_left } else { 0 };
                talk.handoffs_left = before + u32::from(prefiller.is_some());
            }
            Event::HandedOver {
                key,
                decoder,
                handoff,
                ..
            } => {
                let talk = self.talks.entry(key).or_default();
                if !self.may_move && talk.decoder != Some(decoder) {
                    return Err(format!(
                        "I1: the KV of {key} is handed to {decoder}, placed on {:?}",
                        talk.decoder
                    ));
                }
                talk.pinned = true;
                if handoff {
                    talk.handoffs_left = talk.handoffs_left.checked_sub(1).ok_or_else(|| {
                        format!("I2: a second handoff for one placement of {key}")
                    })?;
                }
            }
            Event::TurnStarted {
                key, decoder, turn, ..
            } => {
                let talk = self.talks.entry(key).or_default();
                if turn <= talk.turn && talk.turn != 0 {
                    return Err(format!("I2: turn {turn} of {key} after turn {}", talk.turn));
                }
                talk.turn = turn;
                if talk.decoder != Some(decoder) {
                    return Err(format!(
                        "I1: turn {turn} of {key} runs on {decoder}, placed on {:?}",
                        talk.decoder
                    ));
                }
                if !self.open.insert((key, turn)) {
                    return Err(format!("I7: turn {turn} of {key} begins twice"));
                }
            }
            Event::TurnFinished { key, turn, .. } | Event::TurnFailed { key, turn, .. }
                if !self.open.remove(&(key, turn)) =>
            {
                return Err(format!("I7: turn {turn} of {key} ends twice"));
            }
            Event::Closed { key, .. } => {
                self.talks.remove(&key);
            }
            Event::Evicted { key, .. } if self.pins_go => {
                let talk = self.talks.entry(key).or_default();
                (talk.decoder, talk.pinned) = (None, false);
            }
            _ => {}
        }
        Ok(())
    }
}
