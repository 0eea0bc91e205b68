//! Bodies that the door sends: to clients and to workers.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use http::{Response, StatusCode};
use hyper::body::{Body, Frame, Incoming, SizeHint};

use super::connection::Serving;
use super::relay::Relay;
use super::shelf::{OnShelf, Shelf};
use crate::dispatch::Refusal;

/// A body that is all there.
#[derive(Debug)]
pub(crate) struct Whole(Option<Bytes>);

impl Whole {
    pub(crate) fn new(bytes: Bytes) -> Self {
        Self((!bytes.is_empty()).then_some(bytes))
    }
}

impl Body for Whole {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        Poll::Ready(self.0.take().map(|bytes| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.0.as_ref().map_or(0, |bytes| bytes.len() as u64))
    }
}

/// A body that is passed on as it comes, at most `left` bytes of it.
pub(crate) struct Passed {
    pub(crate) incoming: Incoming,
    pub(crate) left: usize,
}

impl Body for Passed {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let Some(frame) = ready!(Pin::new(&mut self.incoming).poll_frame(context)) else {
            return Poll::Ready(None);
        };
        let frame = frame.map_err(io::Error::other)?;
        let size = frame.data_ref().map_or(0, Bytes::len);
        let Some(left) = self.left.checked_sub(size) else {
            return Poll::Ready(Some(Err(io::ErrorKind::FileTooLarge.into())));
        };
        self.left = left;
        Poll::Ready(Some(Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }
}

/// The body of an answer. It goes when the client has it, or left.
pub(crate) struct Outgoing {
    body: Kept,
    _serving: Serving,
}

/// HTTP/1.1 has one answer at a time, whose client is watched by its connection; HTTP/2 has many.
enum Kept {
    Here(Content),
    OnShelf(OnShelf),
}

pub(crate) enum Content {
    Whole(Whole),
    Relay(Box<Relay>),
    Passed(Passed),
}

impl Content {
    pub(crate) fn whole(bytes: Bytes) -> Self {
        Self::Whole(Whole::new(bytes))
    }

    /// Put on `there`, where there is such a place.
    pub(crate) fn of(self, serving: Serving, there: Option<&Arc<Shelf>>) -> Outgoing {
        Outgoing {
            body: match there {
                Some(place) => Kept::OnShelf(place.put(self)),
                None => Kept::Here(self),
            },
            _serving: serving,
        }
    }
}

impl Body for Content {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        match self.get_mut() {
            Self::Whole(whole) => Pin::new(whole).poll_frame(context),
            Self::Relay(relay) => relay
                .poll_piece(context)
                .map(|piece| piece.map(|bytes| Ok(Frame::data(bytes)))),
            Self::Passed(passed) => Pin::new(passed).poll_frame(context),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(whole) => whole.is_end_stream(),
            Self::Relay(relay) => relay.is_over(),
            Self::Passed(passed) => passed.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(whole) => whole.size_hint(),
            Self::Relay(_) => SizeHint::default(),
            Self::Passed(passed) => passed.size_hint(),
        }
    }
}

impl Body for Outgoing {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        match &mut self.get_mut().body {
            Kept::Here(answer) => Pin::new(answer).poll_frame(context),
            Kept::OnShelf(body) => Pin::new(body).poll_frame(context),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.body {
            Kept::Here(answer) => answer.is_end_stream(),
            Kept::OnShelf(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.body {
            Kept::Here(answer) => answer.size_hint(),
            Kept::OnShelf(body) => body.size_hint(),
        }
    }
}

/// The answer of the door itself to a request that it does not serve.
pub(crate) fn refusal(refused: &Refusal) -> Response<Content> {
    let mut response = Response::new(Content::whole(refused.body()));
    *response.status_mut() =
        StatusCode::from_u16(refused.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    if refused.status == 503 {
        headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
    }
    response
}

pub(crate) fn draining() -> Refusal {
    Refusal {
        status: 503,
        code: "draining",
        param: None,
        message: "the router is shutting down; try again".to_owned(),
    }
}
