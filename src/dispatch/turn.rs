//! One client request as a state machine.
//!
//! Promises: whatever happens, in whatever order, the turn is settled once and the client gets one answer; a driver that
//! calls the wrong method gets an answer too, never a panic.
//! Leaves to others: its steps, one file for each (`start`, `prefill`, `decode`, `relay`).

mod decode;
mod listen;
mod prefill;
mod relay;
mod settle;
mod start;

use std::io::Write as _;
use std::sync::Arc;
use std::task::Waker;

use bytes::{Bytes, BytesMut};

use super::action::{Action, Failure};
use super::arrival::Arrival;
use super::connector::Handoff;
use super::dispatcher::Shared;
use super::headers::Header;
use super::peek::{Endpoint, Peek};
use super::refusal::Refusal;
use super::sse;
use crate::event::{FailReason, Reason};
use crate::fleet::WorkerRef;
use crate::identity::{ConversationKey, TenantKey};
use crate::router::{Ticket, Turn};
use crate::units::{Timestamp, WorkerId};

/// One client request.
pub struct Dispatch {
    shared: Arc<Shared>,
    endpoint: Endpoint,
    headers: Vec<Header>,
    body: Bytes,
    arrival: Arrival,
    opened: Timestamp,
    /// Boxed: what moves with a `Dispatch` is small, and so is what it takes to allocate it.
    request: Option<Box<Request>>,
    /// How often the turn was begun again.
    again: u32,
    /// A decoder that failed this request.
    doubted: Option<WorkerId>,
    /// Of the prompt, what the prefiller whose KV is handed over had in its cache; `None` if it did not say.
    found: Option<u32>,
    /// Why the turn that is answered runs where it runs.
    reason: Option<Reason>,
    state: State,
}

/// What was read from the request.
struct Request {
    peek: Peek,
    key: ConversationKey,
    tenant: TenantKey,
    /// The hash of the whole history, for requests recognised by it.
    history: Option<u128>,
    /// Nobody can continue the conversation: it ends with this turn.
    nameless: bool,
    texts: Texts,
    /// Tells this request from the others of its conversation.
    serial: u64,
}

/// What is said of a request in headers, cut from one buffer.
struct Texts {
    /// The conversation's key, as the workers are told it.
    key: Bytes,
    /// The same as its tenant is told it.
    handle: Bytes,
    /// The client's `x-request-id`, or one of our own.
    trace: Bytes,
}

impl Texts {
    fn new(
        key: ConversationKey,
        handle: ConversationKey,
        serial: u64,
        trace: Option<Bytes>,
    ) -> Self {
        let mut text = Vec::with_capacity(128);
        text.extend_from_slice(&key.digits());
        text.extend_from_slice(&handle.digits());
        let ends = (KEY_DIGITS, text.len());
        if trace.is_none() {
            text.extend_from_slice(b"conserve-");
            text.extend_from_within(..KEY_DIGITS / 2);
            write!(text, "-{serial}").expect("a vector takes all");
        }
        let text = Bytes::from(text);
        Self {
            key: text.slice(..ends.0),
            handle: text.slice(ends.0..ends.1),
            trace: trace.unwrap_or_else(|| text.slice(ends.1..)),
        }
    }
}

/// How long a key is.
const KEY_DIGITS: usize = 32;

impl Request {
    /// What the client is told of its conversation's key.
    fn handle(&self) -> ConversationKey {
        self.key.seen_by(self.tenant)
    }

    /// The name of its handoff, for engines that want one.
    fn transfer_id(&self) -> String {
        format!("conserve-{}-{}", self.key, self.serial)
    }
}

enum State {
    Opened,
    Waiting(Ticket),
    Prefilling(Prefilling),
    Decoding(Decoding),
    Listening(Box<Listening>),
    Relaying(Relaying),
    Over,
}

/// A prefiller is at work.
struct Prefilling {
    turn: Turn,
    worker: WorkerRef,
    tried: Vec<WorkerId>,
    /// When it was asked.
    asked: Timestamp,
}

/// The decoder was asked and nothing of its answer has reached the client.
struct Decoding {
    turn: Turn,
    handoff: Option<Handoff>,
    /// Prefillers that were asked in vain.
    tried: Vec<WorkerId>,
    /// How often the same decoder was asked again.
    resent: u32,
}

/// The decoder's stream has begun; the client is told when a token has come, and until then the turn can be tried again.
struct Listening {
    decoding: Decoding,
    status: u16,
    /// The worker's.
    headers: Vec<Header>,
    reader: Box<sse::Reader>,
    held: BytesMut,
}

/// The decoder's stream is passed on.
struct Relaying {
    turn: Turn,
    /// `None`: the stream is encoded and passes unread.
    reader: Option<Box<sse::Reader>>,
    /// Events with generated tokens that have come; with the first one, the decoder has the KV.
    pieces: u32,
    /// From when on these are to be counted again.
    count_at: Timestamp,
    /// When the user saw something first.
    effective: Option<Timestamp>,
}

impl Dispatch {
    pub(super) fn new(
        shared: Arc<Shared>,
        endpoint: Endpoint,
        headers: Vec<Header>,
        body: Bytes,
        arrival: Arrival,
        opened: Timestamp,
    ) -> Self {
        Self {
            shared,
            endpoint,
            headers,
            body,
            arrival,
            opened,
            request: None,
            again: 0,
            doubted: None,
            found: None,
            reason: None,
            state: State::Opened,
        }
    }

    /// Bytes of the client's body that are still held: a step may look at all of them.
    #[must_use]
    pub fn body_bytes(&self) -> usize {
        self.body.len()
    }

    /// Begins. Called once.
    pub fn start(&mut self, now: Timestamp) -> Action {
        match self.take() {
            State::Opened => self.read_and_begin(now),
            other => self.misused(other, "start", now),
        }
    }

    /// The ticket is ready or its deadline has passed, after [`Action::Wait`].
    pub fn admitted(&mut self, now: Timestamp) -> Action {
        match self.take() {
            State::Waiting(ticket) => self.take_ticket(ticket, now),
            other => self.misused(other, "admitted", now),
        }
    }

    /// A worker's whole answer, after [`Action::Call`] or [`Action::Collect`].
    pub fn answered(
        &mut self,
        status: u16,
        headers: &[Header],
        body: &Bytes,
        now: Timestamp,
    ) -> Action {
        match self.take() {
            State::Prefilling(prefilling) => {
                self.prefill_answered(prefilling, status, headers, body, now)
            }
            State::Decoding(decoding) => self.decode_answered(decoding, status, headers, body, now),
            other => self.misused(other, "answered", now),
        }
    }

    /// The head of a worker's answer, after [`Action::Stream`].
    pub fn head(&mut self, status: u16, headers: &[Header], now: Timestamp) -> Action {
        match self.take() {
            State::Decoding(decoding) => self.decode_begins(decoding, status, headers),
            other => self.misused(other, "head", now),
        }
    }

    /// A piece of the stream, after [`Action::Listen`]; no bytes: it has ended.
    pub fn heard(&mut self, bytes: &Bytes, now: Timestamp) -> Action {
        match self.take() {
            State::Listening(listening) => self.listen(listening, bytes, now),
            other => self.misused(other, "heard", now),
        }
    }

    /// A piece of the stream, after [`Action::Relay`]: what of it, if anything, goes to the client now.
    pub fn chunk(&mut self, bytes: &Bytes, now: Timestamp) -> Bytes {
        match &mut self.state {
            State::Relaying(relaying) => relaying.pass(bytes, now),
            _ => Bytes::new(),
        }
    }

    /// The stream has ended: what is left to send before the client's stream is ended too.
    pub fn end(&mut self, now: Timestamp) -> Bytes {
        match self.take() {
            State::Relaying(relaying) => self.stream_ended(relaying, now),
            other => {
                self.misused(other, "end", now);
                Bytes::new()
            }
        }
    }

    /// The worker could not be asked or did not answer.
    pub fn failed(&mut self, failure: Failure, now: Timestamp) -> Action {
        match self.take() {
            State::Prefilling(prefilling) => self.prefill_failed(prefilling, failure, now),
            State::Decoding(decoding) => self.decode_failed(decoding, failure, now),
            State::Listening(listening) => self.decode_failed(listening.decoding, failure, now),
            State::Relaying(relaying) => self.stream_failed(relaying, failure, now),
            other => self.misused(other, "failed", now),
        }
    }

    /// The client went away; the driver ends the request to the worker. Allowed in every state.
    pub fn client_gone(&mut self, now: Timestamp) {
        match self.take() {
            State::Opened | State::Over => {}
            // Dropping it leaves the line.
            State::Waiting(ticket) => drop(ticket),
            State::Prefilling(Prefilling { turn, .. })
            | State::Decoding(Decoding { turn, .. })
            | State::Relaying(Relaying { turn, .. }) => {
                self.fail(turn, FailReason::ClientGone, now);
            }
            State::Listening(listening) => {
                self.fail(listening.decoding.turn, FailReason::ClientGone, now);
            }
        }
        self.over(now);
    }

    /// Who is to be woken when `admitted` should be called.
    pub fn set_waker(&self, waker: Waker) {
        match &self.state {
            State::Waiting(ticket) => ticket.set_waker(waker),
            _ => waker.wake(),
        }
    }

    /// The place in the line, while waiting.
    #[must_use]
    pub fn ticket(&self) -> Option<&Ticket> {
        match &self.state {
            State::Waiting(ticket) => Some(ticket),
            _ => None,
        }
    }

    /// The conversation, once the request was read.
    #[must_use]
    pub fn conversation(&self) -> Option<ConversationKey> {
        self.request.as_ref().map(|request| request.key)
    }

    /// The same as its tenant is told it, in `x-conserve-conversation`.
    #[must_use]
    pub fn handle(&self) -> Option<ConversationKey> {
        self.request.as_deref().map(Request::handle)
    }

    /// Why the turn runs where it runs, once a worker's answer to it goes to the client.
    #[must_use]
    pub const fn reason(&self) -> Option<Reason> {
        self.reason
    }

    /// Whether the request is over: nothing will follow.
    #[must_use]
    pub fn is_over(&self) -> bool {
        matches!(self.state, State::Over)
    }

    /// From here on nothing is asked again: the request's bytes are not needed any more, and streams are long.
    fn relays(&mut self, relaying: Relaying) {
        self.body = Bytes::new();
        self.state = State::Relaying(relaying);
    }

    fn take(&mut self) -> State {
        std::mem::replace(&mut self.state, State::Over)
    }

    fn request(&self) -> &Request {
        self.request
            .as_ref()
            .expect("a turn begins only after the request was read")
    }

    /// A driver's mistake must not leave anything booked.
    fn misused(&mut self, state: State, called: &str, now: Timestamp) -> Action {
        match state {
            State::Opened | State::Over => {}
            State::Waiting(ticket) => drop(ticket),
            State::Prefilling(Prefilling { turn, .. })
            | State::Decoding(Decoding { turn, .. })
            | State::Relaying(Relaying { turn, .. }) => self.fail(turn, FailReason::Dropped, now),
            State::Listening(listening) => {
                self.fail(listening.decoding.turn, FailReason::Dropped, now);
            }
        }
        let message =
            format!("the door called {called} where it does not belong; this is a bug of the door");
        self.reply(&Refusal {
            status: 500,
            code: "internal_error",
            param: None,
            message,
        })
    }
}
