//! Every way in which `ConServe` says no, each with one HTTP status and one stable code (I8).
//!
//! Leaves to others: faults of a request (`dispatch::Refusal`), how an error is written on the wire or raised.

use std::time::Duration;

use crate::units::{Blocks, Tokens, WorkerId};

/// A value of [`Config`](crate::config::Config) outside its range.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{key} = {value} is out of range: {range}")]
pub struct ConfigError {
    /// The key as the user wrote it.
    pub key: &'static str,
    /// The value that was refused.
    pub value: String,
    /// What is accepted.
    pub range: &'static str,
}

/// The router said no; nothing stays booked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Rejected {
    /// No room now and no place in the line, or the caller did not want to wait.
    #[error("no room for the turn now; retry in {} s", .retry_after.as_secs())]
    Overloaded {
        /// When to come back, from the observed drain rate.
        retry_after: Duration,
    },
    /// The turn waited in the line until its deadline.
    #[error("no room for the turn before its deadline; retry in {} s", .retry_after.as_secs())]
    TimedOut {
        /// When to come back, from the observed drain rate.
        retry_after: Duration,
    },
    /// No decoder could ever hold the prompt, or the pinned one could not.
    #[error("the prompt has {tokens} tokens; at most {limit} fit")]
    PromptTooLong {
        /// The size of the prompt.
        tokens: Tokens,
        /// The largest prompt that fits.
        limit: Tokens,
    },
    /// Every decoder is draining.
    #[error("every decoder is draining")]
    Draining,
    /// There is no decoder that could take a conversation.
    #[error(
        "no decoder is ready: none has joined, or each is lost, doubted or without a known KV capacity"
    )]
    NoWorkers,
    /// The conversation was closed while the turn waited.
    #[error("the conversation was closed while the turn waited")]
    Closed,
}

impl Rejected {
    /// A stable slug.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Overloaded { .. } => "overloaded",
            Self::TimedOut { .. } => "queue_timeout",
            Self::PromptTooLong { .. } => "context_length_exceeded",
            Self::Draining => "draining",
            Self::NoWorkers => "no_workers",
            Self::Closed => "conversation_closed",
        }
    }

    /// The HTTP status.
    #[must_use]
    pub const fn status(&self) -> u16 {
        match self {
            Self::Overloaded { .. } | Self::TimedOut { .. } => 429,
            Self::PromptTooLong { .. } => 400,
            Self::Draining | Self::NoWorkers | Self::Closed => 503,
        }
    }

    /// When to come back, where that is known.
    #[must_use]
    pub const fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Overloaded { retry_after } | Self::TimedOut { retry_after } => Some(*retry_after),
            Self::PromptTooLong { .. } | Self::Draining | Self::NoWorkers | Self::Closed => None,
        }
    }
}

/// A worker could not join the fleet.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum JoinError {
    /// The URL is not `http://` or `https://` followed by a host.
    #[error("{url:?} is not the http or https URL of a worker")]
    InvalidUrl {
        /// What was given.
        url: String,
    },
    /// A live worker has this URL already.
    #[error("{url} is already in the fleet as {name}")]
    AlreadyJoined {
        /// The URL.
        url: String,
        /// The worker that has it.
        worker: WorkerId,
        /// What people call it.
        name: String,
    },
    /// The capacity is zero or more than the books can hold.
    #[error("{blocks} KV blocks are out of range: 1 to {}", Blocks::MAX)]
    Capacity {
        /// What was given.
        blocks: Blocks,
    },
    /// All ids were used; they are never given twice, so the router has to be restarted.
    #[error("all {} worker ids were used", WorkerId::LIMIT)]
    IdsExhausted,
}

impl JoinError {
    /// A stable slug.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::InvalidUrl { .. } => "invalid_worker_url",
            Self::AlreadyJoined { .. } => "worker_already_joined",
            Self::Capacity { .. } => "invalid_kv_blocks",
            Self::IdsExhausted => "worker_ids_exhausted",
        }
    }
}

/// Which half of a turn a worker was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Phase {
    /// Computing the prompt.
    Prefill,
    /// Generating the answer.
    Decode,
}

impl Phase {
    /// `"prefill"` or `"decode"`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Prefill => "prefill",
            Self::Decode => "decode",
        }
    }
}

/// What a worker did instead of answering.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WorkerErrorKind {
    /// It could not be reached, or it went away.
    Unavailable,
    /// It did not answer in time.
    Timeout,
    /// It answered something that is not the protocol.
    Protocol,
}

/// A worker failed a turn.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{worker} {detail} during {}", .phase.as_str())]
pub struct WorkerError {
    /// What kind of failure.
    pub kind: WorkerErrorKind,
    /// The name of the worker.
    pub worker: String,
    /// Which half of the turn.
    pub phase: Phase,
    /// What happened, as the predicate of a sentence: `answered 500`.
    pub detail: String,
}

impl WorkerError {
    /// A stable slug.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self.kind {
            WorkerErrorKind::Unavailable => "worker_unavailable",
            WorkerErrorKind::Timeout => "worker_timeout",
            WorkerErrorKind::Protocol => "worker_protocol_error",
        }
    }

    /// The HTTP status.
    #[must_use]
    pub const fn status(&self) -> u16 {
        match self.kind {
            WorkerErrorKind::Unavailable => 503,
            WorkerErrorKind::Timeout => 504,
            WorkerErrorKind::Protocol => 502,
        }
    }

    /// Whether the same turn may be sent again.
    #[must_use]
    pub const fn retryable(&self) -> bool {
        match self.kind {
            WorkerErrorKind::Unavailable | WorkerErrorKind::Timeout => true,
            WorkerErrorKind::Protocol => false,
        }
    }
}
