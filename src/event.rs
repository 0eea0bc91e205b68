//! What the router did, as values: the only output besides the answers.
//!
//! Promises: plain data, cheap to make, no reference to the router.
//! Leaves to others: folding them (`metrics`, `identity`, a journal, a trace).

mod estimate;

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

pub use self::estimate::Estimate;
use crate::fleet::Role;
use crate::units::{Blocks, ConversationKey, Timestamp, Tokens, WorkerId};

/// Hears every [`Event`], on the thread that caused it, sometimes while the line is locked.
///
/// An observer must be quick, must not wait for a lock that a caller of the router may hold, and
/// must not call the router.
pub trait Observer: Send + Sync {
    /// One event happened.
    fn on(&self, event: &Event);
}

/// Those who hear events: a list that only grows, read without a lock.
#[derive(Default)]
pub(crate) struct Observers(OnceLock<Box<(Arc<dyn Observer>, Observers)>>);

impl Observers {
    pub(crate) fn add(&self, observer: Arc<dyn Observer>) {
        let mut entry = Box::new((observer, Observers::default()));
        let mut end = self;
        while let Err(refused) = end.0.set(entry) {
            entry = refused;
            end = &end.0.get().expect("a cell that refuses a value has one").1;
        }
    }

    /// Tells everybody; `event` is not even made if nobody listens.
    pub(crate) fn tell(&self, event: impl FnOnce() -> Event) {
        if let Some((first, rest)) = self.0.get().map(|entry| (&entry.0, &entry.1)) {
            let event = event();
            first.on(&event);
            let mut next = rest;
            while let Some(entry) = next.0.get() {
                entry.0.on(&event);
                next = &entry.1;
            }
        }
    }
}

/// Why a turn runs where it runs, with the numbers compared (I5).
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum Reason {
    /// The conversation is pinned and its KV is there.
    Pinned,
    /// Another turn of the conversation is bringing the KV there.
    Shared,
    /// The prefiller that would be done first, the decoder with most free blocks.
    LeastWork {
        /// Prompt tokens queued at the prefiller before this one.
        queued: Tokens,
        /// Its observed throughput in tokens per second.
        tokens_per_s: Option<f64>,
        /// Prefillers compared.
        prefillers: u16,
        /// Blocks free on the decoder under its ceiling, before this turn.
        free: Blocks,
        /// Decoders compared.
        decoders: u16,
    },
    /// The decoder with most free blocks; it computes the prompt itself.
    OnDecoder {
        /// Blocks free on the decoder under its ceiling, before this turn.
        free: Blocks,
        /// Decoders compared.
        decoders: u16,
    },
    /// The prefiller chosen first failed; this one is next.
    NextPrefiller {
        /// Prompt tokens queued at the prefiller before this one.
        queued: Tokens,
        /// Its observed throughput in tokens per second.
        tokens_per_s: Option<f64>,
    },
    /// Each prefiller that was asked failed; the decoder computes the prompt itself.
    NoPrefillerLeft,
    /// The prefiller kept no KV to hand over; the decoder computes the prompt itself.
    NoKvKept,
    /// The KV did not come to the decoder, or not in time; it computes the prompt itself.
    HandoffFailed,
    /// The workers' connector hands nothing over; the decoder computes the prompt itself.
    NoConnector,
    /// A policy that compares costs found this one cheaper.
    Cheaper {
        /// Estimated cost at the place chosen, in milliseconds.
        cost_ms: f64,
        /// Estimated cost at the place compared with.
        instead_of_ms: f64,
    },
    /// It is computed elsewhere and handed over: that costs less.
    HandedOver {
        /// Where it is computed.
        there: Estimate,
        /// For its KV to cross.
        link_ms: f32,
        /// Until its decoder, whose own prompts come first, turns to it, by what conversations usually find there.
        later_ms: f32,
        /// At its decoder, which turns to nothing else before it has waited for what is there already.
        here: Estimate,
    },
    /// The decoder costs less than the one with most free blocks, and has nearly as many.
    CheaperHome {
        /// The one chosen.
        here: Estimate,
        /// The one with most free blocks.
        emptiest: Estimate,
    },
    /// Home is estimated to be so slow that another computes the whole prompt sooner.
    Moved {
        /// Estimated cost at the new home, in milliseconds.
        cost_ms: f64,
        /// Estimated cost at the old one.
        instead_of_ms: f64,
    },
    /// Most of its KV is gone: it is placed as if it were new.
    KvGone {
        /// Tokens that the old home still held.
        resident: Tokens,
        /// Tokens of the prompt.
        prompt: Tokens,
    },
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rate = |rate: Option<f64>| match rate {
            Some(rate) => format!("{rate:.0} tokens/s observed"),
            None => "throughput not observed yet".to_owned(),
        };
        match *self {
            Self::Pinned => f.write_str("pinned: its KV is on this decoder"),
            Self::Shared => f.write_str("another turn of the conversation is bringing its KV here"),
            Self::LeastWork {
                queued,
                tokens_per_s,
                prefillers,
                free,
                decoders,
            } => write!(
                f,
                "prefiller: {queued} tokens queued, {}, first to be done of {prefillers}; \
                 decoder: {free} blocks free, most of {decoders}",
                rate(tokens_per_s)
            ),
            Self::OnDecoder { free, decoders } => write!(
                f,
                "decoder: {free} blocks free, most of {decoders}; it computes the prompt itself"
            ),
            Self::NextPrefiller {
                queued,
                tokens_per_s,
            } => write!(
                f,
                "the prefiller chosen first failed; next: {queued} tokens queued, {}",
                rate(tokens_per_s)
            ),
            Self::NoPrefillerLeft => f.write_str(
                "each prefiller that was asked failed; the decoder computes the prompt itself",
            ),
            Self::NoKvKept => f.write_str(
                "the prefiller kept no KV to hand over; the decoder computes the prompt itself",
            ),
            Self::HandoffFailed => f.write_str(
                "the handoff failed: the KV did not come, or not in time; the decoder computes the prompt itself",
            ),
            Self::NoConnector => f.write_str(
                "the connector hands nothing over; the decoder computes the prompt itself",
            ),
            Self::Cheaper {
                cost_ms,
                instead_of_ms,
            } => {
                write!(
                    f,
                    "estimated {cost_ms:.0} ms here, {instead_of_ms:.0} ms elsewhere"
                )
            }
            Self::HandedOver {
                there,
                link_ms,
                later_ms,
                here,
            } => write!(
                f,
                "handed over: {there} there, link {link_ms:.0}, usual work at the decoder {later_ms:.0} ms; {here} at the decoder"
            ),
            Self::CheaperHome { here, emptiest } => {
                write!(f, "{here} here; {emptiest} where most blocks are free")
            }
            Self::Moved {
                cost_ms,
                instead_of_ms,
            } => write!(
                f,
                "moved: estimated {cost_ms:.0} ms here with the whole prompt, {instead_of_ms:.0} ms at home"
            ),
            Self::KvGone { resident, prompt } => {
                write!(f, "placed afresh: home held {resident} of {prompt} tokens")
            }
        }
    }
}

/// How a turn came to its decoder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TurnKind {
    /// The conversation is new here.
    First,
    /// The conversation was on this decoder already.
    Pinned,
    /// The conversation lost its decoder and was placed again.
    Relocated,
}

impl TurnKind {
    /// `"first"`, `"pinned"` or `"relocated"`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::First => "first",
            Self::Pinned => "pinned",
            Self::Relocated => "relocated",
        }
    }
}

/// Why a turn did not finish.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FailReason {
    /// The client went away.
    ClientGone,
    /// No prefiller computed the prompt.
    PrefillFailed,
    /// The decoder is gone, and the conversation's KV with it.
    DecoderLost,
    /// The decoder answered an error.
    DecoderError,
    /// A worker did not answer in time.
    Timeout,
    /// A worker refused the request.
    Rejected,
    /// The router had no file or port left to ask a worker with.
    NoSocket,
    /// The holder let go of the turn without saying how it ended.
    Dropped,
}

impl FailReason {
    /// All of them, in the order of [`FailReason::index`].
    pub const ALL: [Self; 8] = [
        Self::ClientGone,
        Self::PrefillFailed,
        Self::DecoderLost,
        Self::DecoderError,
        Self::Timeout,
        Self::Rejected,
        Self::NoSocket,
        Self::Dropped,
    ];

    /// A stable slug.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::ClientGone => "client_gone",
            Self::PrefillFailed => "prefill_failed",
            Self::DecoderLost => "decoder_lost",
            Self::DecoderError => "decoder_error",
            Self::Timeout => "timeout",
            Self::Rejected => "rejected",
            Self::NoSocket => "no_socket",
            Self::Dropped => "dropped",
        }
    }

    /// The position in [`FailReason::ALL`].
    #[must_use]
    pub const fn index(self) -> usize {
        self as usize
    }
}

/// Why a conversation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CloseReason {
    /// Somebody closed it.
    Asked,
    /// It was idle for longer than the idle timeout.
    Idle,
    /// Its first turn never reached a decoder.
    NeverPlaced,
}

/// Why a worker left for good.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LostReason {
    /// Nothing listens at its address.
    Refused,
    /// It stopped answering.
    Silent,
    /// It was started again: what it held is gone.
    Restarted,
    /// An operator said so.
    Asked,
}

impl LostReason {
    /// A stable slug.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Refused => "refused",
            Self::Silent => "silent",
            Self::Restarted => "restarted",
            Self::Asked => "asked",
        }
    }
}

/// What an engine counted for one turn; `None` where it did not say.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt: Option<Tokens>,
    /// Tokens generated.
    pub output: Option<Tokens>,
    /// Tokens of the prompt that lay in a cache: at the prefiller, if the KV was handed over. What a decoder pulls is not
    /// cached, whatever the engine calls it.
    pub cached: Option<Tokens>,
}

/// How fast a turn was for its client; `None` where it cannot be told.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Pace {
    /// From its arrival to its first token, its wait in the line included.
    pub ttft: Option<Duration>,
    /// The mean gap between two of its tokens.
    pub tbt: Option<Duration>,
}

/// One thing that happened.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the fields are named after what they hold")]
pub enum Event {
    /// A turn joined the line behind `ahead` others.
    Queued {
        at: Timestamp,
        key: ConversationKey,
        ahead: usize,
    },
    /// A turn may run; it waited that long (zero if it never stood in the line).
    Admitted {
        at: Timestamp,
        key: ConversationKey,
        decoder: WorkerId,
        waited: Duration,
    },
    /// A turn was turned away or gave up waiting.
    Shed {
        at: Timestamp,
        key: ConversationKey,
        retry_after: Duration,
    },
    /// A conversation got its place.
    Placed {
        at: Timestamp,
        key: ConversationKey,
        prefiller: Option<WorkerId>,
        decoder: WorkerId,
        kind: TurnKind,
        reason: Reason,
    },
    /// A prefiller computed a prompt, in that long since it was sent, its queue there included.
    Prefilled {
        at: Timestamp,
        key: ConversationKey,
        prefiller: WorkerId,
        prompt: Tokens,
        took: Duration,
    },
    /// The decoder has the KV: the conversation is pinned.
    HandedOver {
        at: Timestamp,
        key: ConversationKey,
        decoder: WorkerId,
        took: Duration,
        handoff: bool,
    },
    /// A turn began.
    TurnStarted {
        at: Timestamp,
        key: ConversationKey,
        decoder: WorkerId,
        turn: u32,
        kind: TurnKind,
    },
    /// The client got the first token of a turn.
    FirstToken {
        at: Timestamp,
        key: ConversationKey,
        decoder: WorkerId,
        kind: TurnKind,
        ttft: Duration,
    },
    /// The client got `tokens` more events with tokens of a turn, together, that long after the ones before.
    MoreTokens {
        at: Timestamp,
        key: ConversationKey,
        decoder: WorkerId,
        tokens: u32,
        gap: Duration,
    },
    /// The conversation gave its first user-visible answer.
    Effective {
        at: Timestamp,
        key: ConversationKey,
        decoder: WorkerId,
        ttfet: Duration,
    },
    /// A turn finished; the conversation now holds `blocks`.
    TurnFinished {
        at: Timestamp,
        key: ConversationKey,
        decoder: WorkerId,
        turn: u32,
        kind: TurnKind,
        usage: Usage,
        took: Duration,
        pace: Pace,
        blocks: Blocks,
    },
    /// A turn did not finish.
    TurnFailed {
        at: Timestamp,
        key: ConversationKey,
        decoder: WorkerId,
        turn: u32,
        why: FailReason,
        took: Duration,
    },
    /// A conversation that lost its decoder was placed on another.
    Relocated {
        at: Timestamp,
        key: ConversationKey,
        from: Option<WorkerId>,
        to: WorkerId,
    },
    /// `blocks` of a finished turn did not fit the books and are asked for again at the next turn.
    Overcommitted {
        at: Timestamp,
        key: ConversationKey,
        decoder: WorkerId,
        blocks: Blocks,
    },
    /// A conversation ended and gave `blocks` back.
    Closed {
        at: Timestamp,
        key: ConversationKey,
        why: CloseReason,
        blocks: Blocks,
    },
    /// A sweep ended.
    Swept {
        at: Timestamp,
        conversations: usize,
        blocks: u64,
    },
    /// An idle conversation lost its booking to one that needs it.
    Evicted {
        at: Timestamp,
        key: ConversationKey,
        decoder: WorkerId,
        blocks: Blocks,
    },
    /// A decoder evicted `blocks` of a conversation that is pinned to it and idle.
    KvLost {
        at: Timestamp,
        key: ConversationKey,
        decoder: WorkerId,
        blocks: Blocks,
    },
    /// A finished turn made workers compute `tokens` of its prompt that had been computed before.
    Recomputed {
        at: Timestamp,
        key: ConversationKey,
        decoder: WorkerId,
        kind: TurnKind,
        tokens: Tokens,
    },
    /// A worker joined.
    WorkerJoined {
        at: Timestamp,
        worker: WorkerId,
        role: Role,
        tier: Option<Arc<str>>,
    },
    /// A worker takes no new conversation any more, or does again.
    WorkerDraining {
        at: Timestamp,
        worker: WorkerId,
        draining: bool,
    },
    /// A worker left for good.
    WorkerLost {
        at: Timestamp,
        worker: WorkerId,
        why: LostReason,
    },
    /// A worker is doubted, or trusted again.
    WorkerSuspect {
        at: Timestamp,
        worker: WorkerId,
        suspect: bool,
    },
    /// Of the workers that do both, so many only compute prompts from now on.
    RolesChanged {
        at: Timestamp,
        before: u16,
        helpers: u16,
    },
    /// A prefill was computed and nobody will pull it.
    Orphaned {
        at: Timestamp,
        key: ConversationKey,
        prefiller: WorkerId,
    },
}
