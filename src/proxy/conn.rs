//! A connection to a worker: the socket, what is to be sent on it, what was read from it.
//!
//! Promises: it moves only while somebody polls it, whoever uses it, in the same task; of what a worker sends, as much is
//! held as one read brought.
//! Leaves to others: what the bytes mean (`http1`, `framing`), keeping it (`pool`), connecting and time (`exchange`).

use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker, ready};

use bytes::{Buf, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio::time::Instant;

use super::alarm::Alarm;
use super::socket::Socket;
use crate::units::WorkerId;

/// What is read at once: so much at first, more where a worker sends more.
const READ_FROM_BYTES: usize = 8 << 10;
const READ_TO_BYTES: usize = 128 << 10;

pub(crate) struct Conn {
    pub(crate) worker: WorkerId,
    /// Host and port.
    authority: Box<str>,
    socket: Socket,
    /// What was read and not taken yet.
    pub(crate) read: BytesMut,
    room: usize,
    /// The head of the request, from `sent` on. Its memory is used again.
    head: Vec<u8>,
    sent: usize,
    /// What is left to send of the request's body.
    body: Bytes,
    is_flushed: bool,
    /// For what the worker is to say next. It stays with the connection: a timer that is only moved costs less than one for
    /// each request.
    pub(crate) patience: Alarm,
    pub(crate) idle_since: Instant,
}

impl Conn {
    pub(crate) fn new(worker: WorkerId, authority: &str, socket: Socket) -> Self {
        Self {
            worker,
            authority: authority.into(),
            socket,
            read: BytesMut::new(),
            room: READ_FROM_BYTES,
            head: Vec::new(),
            sent: 0,
            body: Bytes::new(),
            is_flushed: true,
            patience: Alarm::default(),
            idle_since: Instant::now(),
        }
    }

    /// Whether the worker takes a request now, as far as can be known: what it says unasked, or its end, makes it unfit.
    pub(crate) fn is_usable(&mut self) -> bool {
        let mut nobody = Context::from_waker(Waker::noop());
        // Not into `read`, whose memory may still be somebody's answer.
        let mut byte = [0];
        let mut unasked = ReadBuf::new(&mut byte);
        let looked = Pin::new(&mut self.socket).poll_read(&mut nobody, &mut unasked);
        self.has_sent() && self.read.is_empty() && looked.is_pending()
    }

    /// Puts a request up, whose head `write` writes.
    pub(crate) fn put<E>(
        &mut self,
        body: Bytes,
        write: impl FnOnce(&mut Vec<u8>, &str) -> Result<(), E>,
    ) -> Result<(), E> {
        self.head.clear();
        write(&mut self.head, &self.authority)?;
        (self.sent, self.body, self.is_flushed) = (0, body, false);
        Ok(())
    }

    pub(crate) fn has_sent(&self) -> bool {
        self.is_flushed
    }

    /// Sends what is left of the request.
    pub(crate) fn poll_send(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.sent < self.head.len() || !self.body.is_empty() {
            let head = &self.head[self.sent..];
            let parts = [IoSlice::new(head), IoSlice::new(&self.body)];
            // One that is empty would be taken for all there is by a socket that writes one part at a time.
            let parts = &parts[usize::from(head.is_empty())..];
            let count = ready!(Pin::new(&mut self.socket).poll_write_vectored(context, parts))?;
            if count == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            let of_head = count.min(head.len());
            self.sent += of_head;
            self.body.advance(count - of_head);
        }
        // Others may want to use its memory again.
        self.body = Bytes::new();
        // TLS keeps what the socket does not take.
        ready!(Pin::new(&mut self.socket).poll_flush(context))?;
        self.is_flushed = true;
        Poll::Ready(Ok(()))
    }

    /// Reads on; whether there was something before the end.
    pub(crate) fn poll_read(&mut self, context: &mut Context<'_>) -> Poll<io::Result<bool>> {
        // What was read before may still be on its way to the client, and its memory with it: so it is filled up first.
        if self.read.capacity() - self.read.len() < self.room / 2 {
            self.read.reserve(self.room);
        }
        let room = self.read.capacity() - self.read.len();
        let count = ready!(pin!(self.socket.read_buf(&mut self.read)).poll(context))?;
        if count == room {
            self.room = (2 * self.room).min(READ_TO_BYTES);
        }
        Poll::Ready(Ok(count > 0))
    }
}
