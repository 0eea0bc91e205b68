//! One exchange with a worker: connect or reuse, send, read the head, then the body piece by piece.
//!
//! Promises: dropping it aborts the request to the worker; a kept connection that its worker closed in the same moment
//! is no failure of the worker: the request goes out once more, on a new connection.
//! Leaves to others: what to send and what a failure means (`Dispatch`), how long to wait for a piece (`driver`, `relay`).

use std::fmt;
use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::conn::Conn;
use super::framing::{Framing, Step};
use super::http1::{Head, HeadReader, Malformed, write_head};
use super::quiet::Quiet;
use super::shared::Shared;
use super::socket::Socket;
use super::tls;
use crate::dispatch::{Failure, Header, TimeoutKind, Upstream};

/// What went wrong, and what it looked like.
#[derive(Debug)]
pub(crate) struct Broken {
    pub(crate) failure: Failure,
    pub(crate) detail: String,
}

impl Broken {
    fn new(failure: Failure, detail: &dyn fmt::Display) -> Self {
        Self {
            failure,
            detail: detail.to_string(),
        }
    }

    pub(crate) fn late(kind: TimeoutKind) -> Self {
        Self::new(Failure::Timeout(kind), &"")
    }
}

impl From<io::Error> for Broken {
    fn from(error: io::Error) -> Self {
        Self::new(Failure::Reset, &error)
    }
}

impl Broken {
    /// The connection ended before the answer did.
    fn ended() -> Self {
        Self::new(Failure::Reset, &"the connection ended before the answer")
    }
}

/// An answer whose head is here.
pub(crate) struct Exchange {
    shared: Arc<Shared>,
    /// `None` once the answer is complete.
    conn: Option<Box<Conn>>,
    framing: Framing,
    keeps_alive: bool,
    quiet: Quiet,
}

/// Sends `upstream`; status and headers of the answer once they are here.
pub(crate) async fn post(
    shared: &Arc<Shared>,
    upstream: &Upstream,
) -> Result<(u16, Vec<Header>, Exchange), Broken> {
    let (origin, path) = split(&upstream.url)?;
    if let Some(conn) = shared.pool.take(upstream.worker)
        && let Some(answered) = send(shared, conn, upstream, path).await?
    {
        return Ok(answered);
    }
    // Boxed, as most requests do without it.
    let conn = Box::pin(connect(shared, origin, upstream)).await?;
    let answered = send(shared, conn, upstream, path).await?;
    answered.ok_or_else(Broken::ended)
}

async fn connect(shared: &Shared, origin: &str, upstream: &Upstream) -> Result<Box<Conn>, Broken> {
    let authority = authority(origin);
    let is_tls = origin.starts_with("https:");
    let has_port = authority.rfind(':') > authority.rfind(']');
    let connecting = async {
        let stream = if has_port {
            TcpStream::connect(authority).await?
        } else {
            let port = if is_tls { 443 } else { 80 };
            TcpStream::connect((authority.trim_matches(['[', ']']), port)).await?
        };
        stream.set_nodelay(true)?;
        if !is_tls {
            return Ok(Socket::Plain(stream));
        }
        let host = authority.rfind(':').filter(|_| has_port);
        let host = host.map_or(authority, |colon| &authority[..colon]);
        tls::connect(&shared.tls, host.trim_matches(['[', ']']), stream).await
    };
    let stream = match timeout(upstream.connect_timeout, connecting).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused => {
            return Err(Broken::new(Failure::Connect, &error));
        }
        Ok(Err(error)) if is_ours(&error) => return Err(Broken::new(Failure::NoSocket, &error)),
        Ok(Err(error)) => return Err(Broken::new(Failure::Unreachable, &error)),
        Err(_) => return Err(Broken::late(TimeoutKind::Connect)),
    };
    Ok(Box::new(Conn::new(upstream.worker, authority, stream)))
}

/// Whether connecting failed for want of something of ours: a file, a local port, memory.
fn is_ours(error: &io::Error) -> bool {
    // The same numbers everywhere; the standard library has no kinds for them.
    const TOO_MANY_FILES_HERE: i32 = 23;
    const TOO_MANY_FILES: i32 = 24;
    matches!(
        error.kind(),
        io::ErrorKind::AddrNotAvailable | io::ErrorKind::OutOfMemory
    ) || matches!(
        error.raw_os_error(),
        Some(TOO_MANY_FILES_HERE | TOO_MANY_FILES)
    )
}

/// The head of the answer, and the rest to come; `None`: the connection ended without a byte of one.
async fn send(
    shared: &Arc<Shared>,
    mut conn: Box<Conn>,
    upstream: &Upstream,
    path: &str,
) -> Result<Option<(u16, Vec<Header>, Exchange)>, Broken> {
    let body = upstream.body.clone();
    let length = body.len();
    let put = conn.put(body, |out, authority| {
        write_head(out, authority, path, &upstream.headers, length)
    });
    put.map_err(|Malformed(what)| Broken::new(Failure::Unreachable, &what))?;
    let mut reader = HeadReader::default();
    let head = poll_fn(|context| match poll_head(&mut conn, &mut reader, context) {
        Poll::Pending => {
            let late = conn.patience.poll(upstream.first_byte_timeout, context);
            late.map(|()| Err(Broken::late(TimeoutKind::FirstByte)))
        }
        ready @ Poll::Ready(_) => ready,
    });
    let head = head.await?;
    let answered = head.map(|head| {
        let exchange = Exchange {
            shared: Arc::clone(shared),
            conn: Some(conn),
            framing: head.framing,
            keeps_alive: head.keeps_alive,
            quiet: Quiet::default(),
        };
        (head.status, head.headers, exchange)
    });
    Ok(answered)
}

/// The head of the answer, which may come before all of the request was taken; `None`: the connection ended before any of it.
fn poll_head(
    conn: &mut Conn,
    reader: &mut HeadReader,
    context: &mut Context<'_>,
) -> Poll<Result<Option<Head>, Broken>> {
    let unsent = if conn.has_sent() {
        None
    } else {
        match conn.poll_send(context) {
            // A worker may say why it takes no more.
            Poll::Ready(Err(error)) => Some(error),
            Poll::Ready(Ok(())) | Poll::Pending => None,
        }
    };
    loop {
        let had_some = !conn.read.is_empty();
        match conn.poll_read(context) {
            Poll::Ready(Ok(true)) => {}
            Poll::Ready(Ok(false)) if had_some => return Poll::Ready(Err(Broken::ended())),
            Poll::Ready(Err(error)) if had_some => return Poll::Ready(Err(error.into())),
            Poll::Ready(Ok(false) | Err(_)) => return Poll::Ready(Ok(None)),
            Poll::Pending => match unsent {
                Some(_) if !had_some => return Poll::Ready(Ok(None)),
                Some(error) => return Poll::Ready(Err(error.into())),
                None => return Poll::Pending,
            },
        }
        let taken = reader.take(&mut conn.read);
        let taken = taken.map_err(|Malformed(what)| Broken::new(Failure::Protocol, &what));
        if let Some(head) = taken? {
            return Poll::Ready(Ok(Some(head)));
        }
    }
}

/// Origin and path of a worker's URL.
fn split(url: &str) -> Result<(&str, &str), Broken> {
    let rest = without_scheme(url)
        .ok_or_else(|| Broken::new(Failure::Unreachable, &"the URL is not one of HTTP"))?;
    let path = rest.find('/').unwrap_or(rest.len());
    Ok(url.split_at(url.len() - rest.len() + path))
}

fn without_scheme(url: &str) -> Option<&str> {
    url.strip_prefix("http://")
        .or_else(|| url.strip_prefix("https://"))
}

/// Host and port of an origin.
fn authority(origin: &str) -> &str {
    without_scheme(origin).unwrap_or(origin)
}

impl Exchange {
    /// What comes next is waited for anew.
    pub(crate) fn rest(&mut self) {
        if let Some(conn) = &mut self.conn {
            conn.patience.rest();
        }
    }

    /// The next piece of the body, for which the worker has so much time; `None` at its end, when the connection is kept for
    /// the next exchange.
    pub(crate) fn poll_piece(
        &mut self,
        patience: (TimeoutKind, Duration),
        context: &mut Context<'_>,
    ) -> Poll<Result<Option<Bytes>, Broken>> {
        let polled = self.poll_next(patience, context);
        if polled.is_ready() {
            self.rest();
        }
        polled
    }

    /// The same, with the time of the wait before.
    fn poll_next(
        &mut self,
        (kind, limit): (TimeoutKind, Duration),
        context: &mut Context<'_>,
    ) -> Poll<Result<Option<Bytes>, Broken>> {
        let Some(conn) = &mut self.conn else {
            return Poll::Ready(Ok(None));
        };
        loop {
            let taken = self.framing.take(&mut conn.read);
            match taken.map_err(|Malformed(what)| Broken::new(Failure::Reset, &what))? {
                Step::Piece(bytes) => return Poll::Ready(Ok(Some(bytes))),
                Step::End => break,
                Step::More => {}
            }
            let read = self.quiet.poll(context, |context| {
                if !conn.has_sent() {
                    // The answer has begun: what becomes of the rest of the request is the worker's affair.
                    let _ = conn.poll_send(context);
                }
                conn.poll_read(context)
            });
            if read.is_pending() {
                ready!(conn.patience.poll(limit, context));
                return Poll::Ready(Err(Broken::late(kind)));
            }
            if !ready!(read)? {
                if !self.framing.ends_with_connection() {
                    return Poll::Ready(Err(Broken::ended()));
                }
                self.keeps_alive = false;
                break;
            }
        }
        if let Some(conn) = self.conn.take().filter(|_| self.keeps_alive) {
            self.shared.pool.keep(conn);
        }
        Poll::Ready(Ok(None))
    }

    /// The rest of the body, at most `limit` bytes, within the time for the first byte.
    pub(crate) async fn read_whole(
        mut self,
        limit: usize,
        upstream: &Upstream,
    ) -> Result<Bytes, Broken> {
        let patience = upstream.patience(false);
        let mut next = async |size: usize| {
            let piece = poll_fn(|context| self.poll_next(patience, context)).await?;
            match piece {
                Some(bytes) if size + bytes.len() > limit => Err(Broken::new(
                    Failure::TooLarge,
                    &format_args!("above {limit} bytes"),
                )),
                piece => Ok(piece),
            }
        };
        let Some(first) = next(0).await? else {
            return Ok(Bytes::new());
        };
        let Some(second) = next(first.len()).await? else {
            return Ok(first);
        };
        let mut whole = BytesMut::with_capacity((first.len() + second.len()) * 2);
        whole.extend_from_slice(&first);
        whole.extend_from_slice(&second);
        while let Some(piece) = next(whole.len()).await? {
            whole.extend_from_slice(&piece);
        }
        Ok(whole.freeze())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_router_lacks_is_not_the_workers_fault() {
        assert!(is_ours(&io::Error::from_raw_os_error(24)), "EMFILE");
        assert!(is_ours(&io::ErrorKind::AddrNotAvailable.into()));
        assert!(!is_ours(&io::ErrorKind::ConnectionRefused.into()));
        assert!(!is_ours(&io::ErrorKind::HostUnreachable.into()));
    }

    #[test]
    fn a_url_is_cut_into_origin_and_path() {
        assert_eq!(
            split("http://d0:8000/v1/x").unwrap(),
            ("http://d0:8000", "/v1/x")
        );
        assert_eq!(
            split("https://[::1]:8000/a/b").unwrap(),
            ("https://[::1]:8000", "/a/b")
        );
        assert_eq!(split("http://d0").unwrap(), ("http://d0", ""));
        assert_eq!(authority("https://d0:1"), "d0:1");
        assert_eq!(
            split("ftp://d0/").unwrap_err().failure,
            Failure::Unreachable
        );
    }
}
