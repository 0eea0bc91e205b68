//! Reads a request's body: whole, within a size and a time, without buffering what is refused.

use std::error::Error;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, HeaderMap};
use hyper::body::{Body, Incoming};
use tokio::time::timeout;

use super::shared::Shared;
use crate::dispatch::{Arrival, Refusal};

/// How much of a refused body is read and dropped before the connection is closed, so that a client that sends first
/// and reads later still sees the answer instead of a reset.
const LINGER_BYTES: usize = 256 << 20;
const LINGER: Duration = Duration::from_secs(10);

/// Why there is no body.
pub(crate) enum Unread {
    /// It is not taken.
    Refused(Refusal),
    /// The client left before it was complete.
    Gone,
}

impl From<Refusal> for Unread {
    fn from(refused: Refusal) -> Self {
        Self::Refused(refused)
    }
}

/// The body of a request with these headers.
pub(crate) async fn read(
    shared: &Arc<Shared>,
    headers: &HeaderMap,
    incoming: &mut Incoming,
) -> Result<(Bytes, Arrival), Unread> {
    let limit = shared.dispatcher.config().max_body_bytes;
    let length = headers
        .get(CONTENT_LENGTH)
        .and_then(|value| value.to_str().ok()?.parse::<usize>().ok());
    if let Some(length) = length.filter(|length| *length > limit) {
        return Err(shared.dispatcher.too_large(length).into());
    }
    let span = shared.config.body_timeout;
    match timeout(span, collect(shared, incoming, length.unwrap_or(0), limit)).await {
        Ok(read) => read,
        Err(_) => Err(Unread::Refused(Refusal {
            status: 408,
            code: "request_timeout",
            param: None,
            message: format!(
                "the request body did not arrive within {} s; send it again",
                span.as_secs_f64()
            ),
        })),
    }
}

async fn collect(
    shared: &Arc<Shared>,
    incoming: &mut Incoming,
    expected: usize,
    limit: usize,
) -> Result<(Bytes, Arrival), Unread> {
    let mut arrival = shared.dispatcher.arrival();
    // What is promised is reserved at once: only the pages that are written take memory.
    let mut whole = Vec::new();
    while let Some(bytes) = piece(incoming).await? {
        let size = whole.len() + bytes.len();
        if size > limit {
            return Err(shared.dispatcher.too_large(size).into());
        }
        if whole.is_empty() {
            if incoming.is_end_stream() {
                return Ok((bytes, arrival));
            }
            whole = shared.buffers.take(expected.max(bytes.len()));
        }
        whole.extend_from_slice(&bytes);
        // hyper reads into this memory again when nobody else has it.
        drop(bytes);
        arrival.grown(&whole);
    }
    Ok((shared.buffers.lend(whole), arrival))
}

/// The next piece of data.
async fn piece(incoming: &mut Incoming) -> Result<Option<Bytes>, Unread> {
    loop {
        match poll_fn(|context| Pin::new(&mut *incoming).poll_frame(context)).await {
            None => return Ok(None),
            Some(Ok(frame)) => {
                if let Ok(bytes) = frame.into_data() {
                    return Ok(Some(bytes));
                }
            }
            Some(Err(error)) if error.is_incomplete_message() || !is_malformed(&error) => {
                return Err(Unread::Gone);
            }
            Some(Err(error)) => {
                return Err(Unread::Refused(Refusal {
                    status: 400,
                    code: "invalid_body",
                    param: None,
                    message: format!("the request body cannot be read: {error}"),
                }));
            }
        }
    }
}

/// The body breaks the rules of HTTP/1.1; any other error is a client that left or an HTTP/2 stream that is gone.
fn is_malformed(error: &hyper::Error) -> bool {
    let cause = error
        .source()
        .and_then(|cause| cause.downcast_ref::<io::Error>());
    cause.is_some_and(|cause| {
        !matches!(
            cause.kind(),
            io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe
        )
    })
}

/// Reads and drops what a refused client still sends, within bounds.
pub(crate) async fn linger(mut incoming: Incoming) {
    let dropping = async {
        let mut dropped = 0;
        while let Ok(Some(bytes)) = piece(&mut incoming).await {
            dropped += bytes.len();
            if dropped >= LINGER_BYTES {
                return;
            }
        }
    };
    // Whether it ended in time makes no difference.
    let _ = timeout(LINGER, dropping).await;
}
