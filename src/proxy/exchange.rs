//! One exchange with a worker: connect or reuse, send, read the head, then the body piece by piece.
//!
//! Promises: dropping it aborts the request to the worker; a kept connection that its worker closed in the same moment
//! is no failure of the worker: the request goes out once more, on a new connection.
//! Leaves to others: what to send and what a failure means (`Dispatch`), how long to wait for a piece (`driver`, `relay`).

use std::error::Error;
use std::fmt;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};

use bytes::{Bytes, BytesMut};
use http::header::{HOST, HeaderMap, HeaderValue};
use http::{Method, Request, Response, Uri};
use hyper::body::{Body, Incoming};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::headers;
use super::outgoing::Whole;
use super::pool::Conn;
use super::quiet::Quiet;
use super::shared::Shared;
use super::socket::Socket;
use super::tls;
use crate::dispatch::{Failure, TimeoutKind, Upstream};

/// The largest head of an answer, in bytes.
const HEAD_LIMIT_BYTES: usize = 64 << 10;

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

impl From<hyper::Error> for Broken {
    fn from(error: hyper::Error) -> Self {
        let failure = if error.is_parse() {
            Failure::Protocol
        } else {
            Failure::Reset
        };
        let cause = error.source().map(|cause| format!(": {cause}"));
        Self::new(
            failure,
            &format_args!("{error}{}", cause.unwrap_or_default()),
        )
    }
}

/// An answer whose head is here.
pub(crate) struct Exchange {
    shared: Arc<Shared>,
    /// `None` once the answer is complete.
    conn: Option<Conn>,
    /// The connection has ended; what it had read is still in `body`.
    is_closed: bool,
    body: Incoming,
    /// The connection was told that more of the body is wanted.
    is_asked: bool,
    quiet: Quiet,
}

/// Sends `upstream`; the answer once its head is here.
pub(crate) async fn post(
    shared: &Arc<Shared>,
    upstream: &Upstream,
) -> Result<(u16, HeaderMap, Exchange), Broken> {
    let (origin, path) = split(&upstream.url)?;
    if let Some(conn) = shared.pool.take(origin) {
        match send(shared, conn, upstream, path).await {
            Err(broken) if broken.failure == Failure::Reset => {}
            answered => return answered,
        }
    }
    let conn = connect(shared, origin, upstream).await?;
    send(shared, conn, upstream, path).await
}

async fn connect(shared: &Shared, origin: &str, upstream: &Upstream) -> Result<Conn, Broken> {
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
    let (sender, driver) = http1::Builder::new()
        .max_header_size(HEAD_LIMIT_BYTES)
        .handshake(TokioIo::new(stream))
        .await?;
    Ok(Conn::new(Arc::from(origin), sender, driver))
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

async fn send(
    shared: &Arc<Shared>,
    mut conn: Conn,
    upstream: &Upstream,
    path: &str,
) -> Result<(u16, HeaderMap, Exchange), Broken> {
    let request = request(authority(&conn.origin), upstream, path)?;
    let mut quiet = Quiet::default();
    let (response, is_closed) = exchange(&mut conn, request, &mut quiet).await?;
    let (head, body) = response.into_parts();
    let exchange = Exchange {
        shared: Arc::clone(shared),
        conn: Some(conn),
        is_closed,
        body,
        is_asked: false,
        quiet,
    };
    Ok((head.status.as_u16(), head.headers, exchange))
}

/// Drives the connection until the head of the answer is here; whether the connection has ended by then.
async fn exchange(
    conn: &mut Conn,
    request: Request<Whole>,
    quiet: &mut Quiet,
) -> Result<(Response<Incoming>, bool), hyper::Error> {
    let mut answer = pin!(conn.sender.send_request(request));
    let driver = &mut conn.driver;
    let mut is_closed = false;
    std::future::poll_fn(move |context| {
        quiet.poll(context, |context| {
            // Its own error reaches `answer`.
            is_closed = is_closed || driver.as_mut().poll(context).is_ready();
            answer
                .as_mut()
                .poll(context)
                .map_ok(|response| (response, is_closed))
        })
    })
    .await
}

fn request(authority: &str, upstream: &Upstream, path: &str) -> Result<Request<Whole>, Broken> {
    let invalid =
        |what: &str| Broken::new(Failure::Unreachable, &format_args!("{what} is not valid"));
    let mut request = Request::new(Whole::new(upstream.body.clone()));
    *request.method_mut() = Method::POST;
    *request.uri_mut() = Uri::try_from(path).map_err(|_| invalid("the path of its URL"))?;
    let host = HeaderValue::from_str(authority).map_err(|_| invalid("the host of its URL"))?;
    let mut map = headers::to_map(upstream.headers.clone());
    map.insert(HOST, host);
    *request.headers_mut() = map;
    Ok(request)
}

/// Origin and path of a worker's URL.
fn split(url: &str) -> Result<(&str, &str), Broken> {
    let rest = ["http://", "https://"]
        .iter()
        .find_map(|scheme| url.strip_prefix(scheme))
        .ok_or_else(|| Broken::new(Failure::Unreachable, &"the URL is not one of HTTP"))?;
    let path = rest.find('/').unwrap_or(rest.len());
    Ok(url.split_at(url.len() - rest.len() + path))
}

/// Host and port of an origin.
fn authority(origin: &str) -> &str {
    origin.split_once("://").map_or(origin, |(_, rest)| rest)
}

impl Exchange {
    /// The next piece of the body; `None` at its end, when the connection is kept for the next exchange.
    pub(crate) fn poll_piece(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Result<Option<Bytes>, Broken>> {
        let mut quiet = std::mem::take(&mut self.quiet);
        let polled = quiet.poll(context, |context| self.poll_parts(context));
        self.quiet = quiet;
        polled
    }

    fn poll_parts(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Bytes>, Broken>> {
        // The connection reads only what somebody asked for, and asking happens in `poll_body`: hence it comes first, unless
        // the connection was asked when this was called before.
        if !self.is_asked
            && let ready @ Poll::Ready(_) = self.poll_body()
        {
            return ready;
        }
        if let (false, Some(conn)) = (self.is_closed, &mut self.conn) {
            self.is_closed = conn.driver.as_mut().poll(context).is_ready();
        }
        self.poll_body()
    }

    /// What the connection has read, or asks it to read. Wakes nobody: the connection is polled before it each time, and
    /// nothing else adds to the body.
    fn poll_body(&mut self) -> Poll<Result<Option<Bytes>, Broken>> {
        let mut nobody = Context::from_waker(Waker::noop());
        loop {
            let frame = Pin::new(&mut self.body).poll_frame(&mut nobody);
            self.is_asked = frame.is_pending();
            return match ready!(frame) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(bytes) => Poll::Ready(Ok(Some(bytes))),
                    // Trailers are of one hop.
                    Err(_) => continue,
                },
                Some(Err(error)) => Poll::Ready(Err(error.into())),
                None => {
                    if let Some(conn) = self.conn.take().filter(|_| !self.is_closed) {
                        self.shared.pool.keep(conn);
                    }
                    Poll::Ready(Ok(None))
                }
            };
        }
    }

    /// The rest of the body, at most `limit` bytes.
    pub(crate) async fn read_whole(mut self, limit: usize) -> Result<Bytes, Broken> {
        let mut next = async |size: usize| {
            let piece = std::future::poll_fn(|context| self.poll_piece(context)).await?;
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
