//! A client's connection: bounds on heads and on clients that take nothing, and the door's own words for bad HTTP.
//!
//! Promises: a head is complete within a time, or its connection ends; an idle connection ends after `keep_alive`; a
//! write that makes no progress within `client_stall_timeout` fails; what is not HTTP is answered with an error object.
//! Leaves to others: parsing and the size of a head (hyper), bodies (`intake`).

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, Bytes};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use super::alarm::Alarm;
use super::bad_http;

/// What requests and their connection know of each other. Each is Relaxed: both run in the connection's task.
#[derive(Debug, Default)]
pub(crate) struct Link {
    is_stalled: AtomicBool,
    served: AtomicUsize,
}

impl Link {
    /// Whether the client was given up because it took nothing for too long.
    pub(crate) fn is_stalled(&self) -> bool {
        self.is_stalled.load(Ordering::Relaxed)
    }
}

/// A request is being read or answered: no head is due.
#[derive(Debug)]
pub(crate) struct Serving(Arc<Link>);

impl Serving {
    pub(crate) fn new(link: &Arc<Link>) -> Self {
        link.served.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(link))
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
    stream: TcpStream,
    link: Arc<Link>,
    limits: Limits,
    /// For the head that is due.
    head: Alarm,
    /// For the write that is under way.
    stall: Alarm,
    /// No byte was read yet.
    is_new: bool,
    /// A head has begun.
    is_in_head: bool,
    /// What is said instead of hyper's own words, as far as it is unsaid.
    instead: Option<Bytes>,
}

impl Connection {
    pub(crate) fn new(stream: TcpStream, link: Arc<Link>, limits: Limits) -> Self {
        Self {
            stream,
            link,
            limits,
            head: Alarm::default(),
            stall: Alarm::default(),
            is_new: true,
            is_in_head: false,
            instead: None,
        }
    }

    /// Ends the connection when the head that is due does not come.
    fn expect_head(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.link.served.load(Ordering::Relaxed) > 0 {
            self.head.rest();
            self.is_in_head = false;
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
            let _ = self.stream.try_write(&bad_http::late(self.limits.head));
        }
        Poll::Ready(Ok(()))
    }

    fn after_write(
        &mut self,
        context: &mut Context<'_>,
        written: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        if written.is_ready() {
            self.stall.rest();
            return written;
        }
        ready!(self.stall.poll(self.limits.stall, context));
        self.link.is_stalled.store(true, Ordering::Relaxed);
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
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
        while self.stream.try_read(&mut rest).is_ok_and(|count| count > 0) {}
        Poll::Ready(Ok(size))
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if Pin::new(&mut self.stream)
            .poll_read(context, buffer)?
            .is_pending()
        {
            return self.expect_head(context);
        }
        self.is_new = false;
        if !self.is_in_head && self.link.served.load(Ordering::Relaxed) == 0 {
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
        if self.instead.is_none() {
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
        if self.instead.is_none() {
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
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
