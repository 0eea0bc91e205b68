//! One client's connection: what was read of its request, and what it is still to be written.

use std::io::Result;

use memchr::memmem;
use mio::net::TcpStream;

use crate::http::Reader;
use crate::leg::{Asked, says_true};
use crate::spec::Spec;

/// How much of a body's start is kept, and of its end: enough to find `stream` and `user`.
const KEPT: usize = 8 << 10;
const ENDS: usize = 1 << 10;

pub(crate) enum Work {
    Idle,
    /// The answer begins when it is due.
    Late(Spec, Asked),
    /// Events still to come.
    Stream(Spec, u64, Asked),
    /// Says nothing more.
    Stalled,
}

pub(crate) struct Conn {
    pub(crate) stream: TcpStream,
    pub(crate) reader: Reader,
    /// Start of the request's body.
    pub(crate) body: Vec<u8>,
    /// Its last bytes, once it is larger than what is kept of the start.
    pub(crate) end: Vec<u8>,
    /// Bytes of the next request, read before the answer was out.
    pub(crate) held: Vec<u8>,
    pub(crate) out: Vec<u8>,
    pub(crate) at: usize,
    /// Bytes of the answer so far.
    pub(crate) sent: usize,
    pub(crate) work: Work,
    pub(crate) serial: u64,
}

impl Conn {
    pub(crate) fn new(stream: TcpStream, serial: u64) -> Self {
        Self {
            stream,
            reader: Reader::new(),
            body: Vec::new(),
            end: Vec::new(),
            held: Vec::new(),
            out: Vec::new(),
            at: 0,
            sent: 0,
            work: Work::Idle,
            serial,
        }
    }

    /// Takes bytes up to the end of a request: how many were taken, and whether it is complete.
    pub(crate) fn feed(&mut self, bytes: &[u8]) -> Result<(usize, bool)> {
        let Self {
            reader, body, end, ..
        } = self;
        reader.feed(bytes, |piece| {
            let room = KEPT - body.len();
            body.extend_from_slice(&piece[..piece.len().min(room)]);
            if piece.len() > room {
                let rest = &piece[room.max(piece.len().saturating_sub(ENDS))..];
                end.drain(..(end.len() + rest.len()).saturating_sub(ENDS));
                end.extend_from_slice(rest);
            }
        })
    }

    pub(crate) fn forget_request(&mut self) {
        self.reader.next();
        self.body.clear();
        self.end.clear();
    }

    /// How the request says that it is to be answered.
    pub(crate) fn words(&self) -> Option<&str> {
        let by_header = self.reader.header("x-mock");
        by_header
            .or_else(|| user(&self.body))
            .or_else(|| user(&self.end))
    }

    pub(crate) fn wants_stream(&self) -> bool {
        says_true(&self.body, r#""stream":"#) || says_true(&self.end, r#""stream":"#)
    }
}

/// Words after `mock` in the body's field `user`.
fn user(body: &[u8]) -> Option<&str> {
    let at = memmem::find(body, br#""user":"#)? + br#""user":"#.len();
    let text = str::from_utf8(body[at..].get(..256).unwrap_or(&body[at..])).ok()?;
    text.trim_start().strip_prefix("\"mock ")?.split('"').next()
}
