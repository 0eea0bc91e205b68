//! What a driver is asked to do next.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;

use super::headers::Header;
use crate::error::{Phase, WorkerErrorKind};
use crate::event::FailReason;
use crate::units::{Timestamp, WorkerId};

/// The next thing to do for one request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Wait until the ticket is ready or the deadline has passed, then call `admitted`.
    Wait {
        /// When waiting ends at the latest.
        deadline: Timestamp,
    },
    /// Send the request, read the whole answer, then call `answered` (or `failed`).
    Call(Upstream),
    /// Send the request, read the head of the answer, then call `head` (or `failed`).
    Stream(Upstream),
    /// Read the next piece of the answer that has begun, then call `heard` with it, with nothing at the answer's end (or
    /// `failed`). The client is told nothing yet.
    Listen,
    /// Send this head and `first` to the client, then pass on what `chunk` gives until `end` (or `failed`).
    Relay {
        /// The status.
        status: u16,
        /// The headers; the driver adds those of its own hop.
        headers: Vec<Header>,
        /// What was heard so far; may be empty.
        first: Bytes,
    },
    /// Read the rest of the answer, then call `answered` with its status and headers, or `failed(TooLarge)`.
    Collect {
        /// The most bytes to read.
        limit: usize,
    },
    /// Send this answer to the client; the request is over.
    Reply {
        /// The status.
        status: u16,
        /// The headers; the driver adds those of its own hop.
        headers: Vec<Header>,
        /// The body.
        body: Bytes,
    },
    /// Send these bytes and end the stream; the request is over.
    Finish(Bytes),
}

/// One request to a worker.
#[derive(Clone, PartialEq, Eq)]
pub struct Upstream {
    /// The worker.
    pub worker: WorkerId,
    /// What people call it.
    pub name: std::sync::Arc<str>,
    /// The full URL.
    pub url: String,
    /// All headers but `host` and `content-length`.
    pub headers: Vec<Header>,
    /// The body.
    pub body: Bytes,
    /// How long connecting may take.
    pub connect_timeout: Duration,
    /// How long the first byte of the answer may take once the request is sent.
    pub first_byte_timeout: Duration,
    /// How long the answer may be silent after that.
    pub idle_timeout: Duration,
    /// The largest answer to a `Call`, in bytes.
    pub max_answer_bytes: usize,
    /// Which half of the turn it is.
    pub phase: Phase,
}

impl Upstream {
    /// How long the next piece of a stream may take, and what it is called when it takes longer.
    #[must_use]
    pub const fn patience(&self, has_begun: bool) -> (TimeoutKind, Duration) {
        if has_begun {
            (TimeoutKind::Idle, self.idle_timeout)
        } else {
            (TimeoutKind::FirstByte, self.first_byte_timeout)
        }
    }
}

/// Without bodies and header values: they hold prompts and credentials.
impl fmt::Debug for Upstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self
            .headers
            .iter()
            .map(|(name, _)| String::from_utf8_lossy(name))
            .collect();
        f.debug_struct("Upstream")
            .field("worker", &self.worker)
            .field("url", &self.url)
            .field("headers", &names)
            .field("body_bytes", &self.body.len())
            .field("phase", &self.phase)
            .finish_non_exhaustive()
    }
}

/// Which wait a worker exceeded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TimeoutKind {
    /// Connecting.
    Connect,
    /// The first byte of the answer.
    FirstByte,
    /// The time between two pieces of the answer.
    Idle,
}

/// What went wrong between a driver and a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Failure {
    /// The connection was refused: nothing listens there, so what it held is gone.
    Connect,
    /// It could not be reached for another reason (no route, no name): nothing was sent, and nothing is known of it.
    Unreachable,
    /// Nothing of ours was left to connect with, no file or port: nothing was sent, and it says nothing about the worker.
    NoSocket,
    /// The connection ended before the answer was complete.
    Reset,
    /// Too slow.
    Timeout(TimeoutKind),
    /// The answer is larger than the limit.
    TooLarge,
    /// The answer is not HTTP.
    Protocol,
}

impl Failure {
    /// Every failure with its name.
    pub const NAMED: [(&'static str, Self); 9] = [
        ("connect", Self::Connect),
        ("unreachable", Self::Unreachable),
        ("no_socket", Self::NoSocket),
        ("reset", Self::Reset),
        ("connect_timeout", Self::Timeout(TimeoutKind::Connect)),
        ("first_byte_timeout", Self::Timeout(TimeoutKind::FirstByte)),
        ("idle_timeout", Self::Timeout(TimeoutKind::Idle)),
        ("too_large", Self::TooLarge),
        ("protocol", Self::Protocol),
    ];

    /// The failure of that name, one of [`Failure::NAMED`].
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        let named = Self::NAMED.iter().find(|(known, _)| *known == name);
        named.map(|(_, failure)| *failure)
    }

    /// What the client is told.
    pub(crate) const fn kind(self) -> WorkerErrorKind {
        match self {
            Self::Connect | Self::Unreachable | Self::NoSocket | Self::Reset => {
                WorkerErrorKind::Unavailable
            }
            Self::Timeout(_) => WorkerErrorKind::Timeout,
            Self::TooLarge | Self::Protocol => WorkerErrorKind::Protocol,
        }
    }

    /// Why a turn failed whose decoder failed like this. Only a refused connection proves that the KV is gone.
    pub(crate) const fn reason(self) -> FailReason {
        match self {
            Self::Connect => FailReason::DecoderLost,
            Self::NoSocket => FailReason::NoSocket,
            Self::Timeout(_) => FailReason::Timeout,
            Self::Unreachable | Self::Reset | Self::TooLarge | Self::Protocol => {
                FailReason::DecoderError
            }
        }
    }

    /// As the predicate of a sentence whose subject is the worker.
    pub(crate) const fn predicate(self) -> &'static str {
        match self {
            Self::Connect => "refused the connection",
            Self::Unreachable => "could not be reached",
            Self::NoSocket => "could not be asked: the router has too many files or ports open",
            Self::Reset => "closed the connection before its answer was complete",
            Self::Timeout(TimeoutKind::Connect) => "did not accept a connection in time",
            Self::Timeout(TimeoutKind::FirstByte) => "did not begin to answer in time",
            Self::Timeout(TimeoutKind::Idle) => "fell silent",
            Self::TooLarge => "sent an answer above max_answer_bytes",
            Self::Protocol => "sent something that is not HTTP",
        }
    }
}
