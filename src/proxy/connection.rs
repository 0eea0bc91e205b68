//! A client's connection: bounds on heads and on clients that take nothing, and the door's own words for bad HTTP.
//!
//! Promises: a head is complete within a time, or its connection ends; an idle connection ends after `keep_alive`, at most
//! twice that; a write that makes no progress within `client_stall_timeout` fails; what is not HTTP is answered with an error
//! object; a client that leaves is noticed while it is answered, though it sent more requests before, up to the limit of `ahead`.
//! Leaves to others: parsing and the size of a head (hyper), bodies (`intake`).

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, Bytes};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};

use super::ahead::Ahead;
use super::alarm::Alarm;
use super::bad_http;
use super::shelf::Shelf;
use super::socket::Socket;

/// What HTTP/2 begins with.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// What requests and their connection know of each other. Each is Relaxed: no other memory depends on it.
#[derive(Default)]
pub(crate) struct Link {
    is_stalled: AtomicBool,
    /// All of a turn's request was read and not all of its answer written: what comes now belongs to later requests.
    is_answering: AtomicBool,
    served: AtomicUsize,
    shelf: Arc<Shelf>,
}

impl Link {
    /// Whether the client was given up because it took nothing for too long.
    pub(crate) fn is_stalled(&self) -> bool {
        self.is_stalled.load(Ordering::Relaxed)
    }

    /// The answers of an HTTP/2 connection.
    pub(crate) fn shelf(&self) -> &Arc<Shelf> {
        &self.shelf
    }

    /// Drops the answers of which the client took nothing for `limit`.
    pub(crate) fn drop_stale(&self, limit: Duration) {
        let stale = self.shelf.stale(limit);
        if !stale.is_empty() {
            let was_stalled = self.is_stalled.swap(true, Ordering::Relaxed);
            drop(stale);
            self.is_stalled.store(was_stalled, Ordering::Relaxed);
        }
    }
}

/// A request is being read or answered: no head is due.
pub(crate) struct Serving(Arc<Link>);

impl Serving {
    pub(crate) fn new(link: &Arc<Link>) -> Self {
        link.served.fetch_add(1, Ordering::Relaxed);
        link.is_answering.store(false, Ordering::Relaxed);
        Self(Arc::clone(link))
    }

    /// The whole request was read.
    pub(crate) fn answers(&self) {
        self.0.is_answering.store(true, Ordering::Relaxed);
    }

    pub(crate) fn again(&self) -> Self {
        Self::new(&self.0)
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.0.served.fetch_sub(1, Ordering::Relaxed);
    }
}

/// How long a client may take.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// For a head, from its first byte on, and for the first one from the start.
    pub(crate) head: Duration,
    /// Between two requests.
    pub(crate) idle: Duration,
    /// To take anything of an answer.
    pub(crate) stall: Duration,
}

/// The socket.
pub(crate) struct Connection {
    stream: Socket,
    link: Arc<Link>,
    limits: Limits,
    /// For the head that is due.
    head: Alarm,
    /// To see that the request is over.
    look: Alarm,
    /// For the write that is under way.
    stall: Alarm,
    /// No byte was read yet.
    is_new: bool,
    /// A head has begun.
    is_in_head: bool,
    /// HTTP/2 is spoken: heads are read by frames, and what is not HTTP/2 is told by its own frames.
    is_http2: bool,
    /// What was read to tell the protocol, or behind the request that is answered.
    ahead: Ahead,
    /// What is said instead of hyper's own words, as far as it is unsaid.
    instead: Option<Bytes>,
}

impl Connection {
    pub(crate) fn new(stream: Socket, link: Arc<Link>, limits: Limits) -> Self {
        Self {
            stream,
            link,
            limits,
            head: Alarm::default(),
            look: Alarm::default(),
            stall: Alarm::default(),
            is_new: true,
            is_in_head: false,
            is_http2: false,
            ahead: Ahead::default(),
            instead: None,
        }
    }

    /// Waits for the first bytes and tells by them whether the client speaks HTTP/2. What was read is read again.
    pub(crate) async fn speaks_http2(&mut self) -> io::Result<bool> {
        let mut start = [0; PREFACE.len()];
        let mut count = 0;
        loop {
            let read = self.read(&mut start[count..]).await?;
            count += read;
            if start[..count] != PREFACE[..count] || read == 0 || count == PREFACE.len() {
                self.ahead.put_back(&start[..count]);
                self.is_http2 = start == *PREFACE;
                return Ok(self.is_http2);
            }
        }
    }

    /// Ends the connection when the head that is due does not come.
    fn expect_head(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.link.served.load(Ordering::Relaxed) > 0 {
            self.head.rest();
            self.is_in_head = false;
            // Some answers are over after the last time that somebody asks for bytes: then this does.
            while self.look.poll(self.limits.idle, context).is_ready() {
                self.look.rest();
            }
            return Poll::Pending;
        }
        let is_idle = !self.is_new && !self.is_in_head;
        let limit = if is_idle {
            self.limits.idle
        } else {
            self.limits.head
        };
        ready!(self.head.poll(limit, context));
        if self.is_in_head {
            // So small that the socket takes it at once, or its client takes nothing anyway.
            let late = bad_http::late(self.limits.head);
            let _ = Pin::new(&mut self.stream).poll_write(context, &late);
            let _ = Pin::new(&mut self.stream).poll_flush(context);
        }
        Poll::Ready(Ok(()))
    }

    fn after_write<T>(
        &mut self,
        context: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.stall.rest();
            return written;
        }
        ready!(self.stall.poll(self.limits.stall, context));
        self.link.is_stalled.store(true, Ordering::Relaxed);
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }

    /// Whether only reading on can tell that the client left: hyper looks for that by itself, but not when it holds bytes of a
    /// later request.
    fn is_answering(&self) -> bool {
        !self.is_http2 && self.link.is_answering.load(Ordering::Relaxed)
    }

    /// Says the door's words where hyper would say its own, of `size` bytes.
    fn say_instead(&mut self, context: &mut Context<'_>, size: usize) -> Poll<io::Result<usize>> {
        while let Some(rest) = self.instead.as_mut().filter(|rest| !rest.is_empty()) {
            let written = Pin::new(&mut self.stream).poll_write(context, rest);
            let count = match written {
                Poll::Ready(Ok(count)) => count,
                written => return self.after_write(context, written),
            };
            rest.advance(count);
        }
        // What the client still says is taken, so that closing does not reset the connection under our answer.
        let mut rest = [0; 4096];
        let mut taken = ReadBuf::new(&mut rest);
        while let Poll::Ready(Ok(())) = Pin::new(&mut self.stream).poll_read(context, &mut taken)
            && !taken.filled().is_empty()
        {
            taken.clear();
        }
        Poll::Ready(Ok(size))
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let stream = Pin::new(&mut this.stream);
        if this.ahead.poll_read(stream, context, buffer)?.is_pending() {
            return self.expect_head(context);
        }
        self.is_new = false;
        if !self.is_in_head && !self.is_http2 && self.link.served.load(Ordering::Relaxed) == 0 {
            self.is_in_head = true;
            self.head.rest();
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.instead.is_none() && !self.is_http2 {
            self.instead = bad_http::instead_of(data);
        }
        if self.instead.is_some() {
            return self.say_instead(context, data.len());
        }
        let written = Pin::new(&mut self.stream).poll_write(context, data);
        self.after_write(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        data: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if self.instead.is_none() && !self.is_http2 {
            self.instead = data.first().and_then(|head| bad_http::instead_of(head));
        }
        if self.instead.is_some() {
            let size = data.iter().map(|slice| slice.len()).sum();
            return self.say_instead(context, size);
        }
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, data);
        self.after_write(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.is_answering() {
            this.ahead.look(Pin::new(&mut this.stream), context)?;
        }
        // TLS keeps what the socket does not take.
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        self.after_write(context, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
