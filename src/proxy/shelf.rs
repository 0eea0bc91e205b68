//! Answers on HTTP/2 streams whose client may leave them lying: it need not give a stream any room, and answers pings
//! meanwhile, so that the connection looks alive.
//!
//! Promises: an answer that its client takes nothing of for a time is dropped, and its request to the worker with it; the
//! other streams of the connection go on.
//! Leaves to others: clients that read nothing of the whole connection (`connection`).

use std::collections::HashMap;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use tokio::time::Instant;

use super::outgoing::Content;

/// The answers of one connection.
#[derive(Default)]
pub(crate) struct Shelf {
    places: Mutex<HashMap<u64, Arc<Mutex<Offered>>>>,
    next: AtomicU64,
}

/// One answer.
struct Offered {
    /// `None` once it was dropped, or taken whole.
    content: Option<Content>,
    /// Since when the client could have taken something; `None` while the worker is waited for.
    since: Option<Instant>,
}

impl Shelf {
    /// Puts an answer there, until what is returned is dropped.
    pub(crate) fn put(self: &Arc<Self>, content: Content) -> OnShelf {
        let offered = Arc::new(Mutex::new(Offered {
            content: Some(content),
            since: Some(Instant::now()),
        }));
        // Relaxed: only its own count matters.
        let place = self.next.fetch_add(1, Ordering::Relaxed);
        lock(&self.places).insert(place, Arc::clone(&offered));
        OnShelf {
            shelf: Arc::clone(self),
            place,
            offered,
        }
    }

    /// The answers of which nothing was taken for `limit`; they are dropped with what is returned.
    pub(crate) fn stale(&self, limit: Duration) -> Vec<Content> {
        // Never two locks at once: what is dropped takes its own.
        let all: Vec<_> = lock(&self.places).values().map(Arc::clone).collect();
        let overdue = |offered: &Arc<Mutex<Offered>>| {
            let mut offered = lock(offered);
            let is_due = offered.since.is_some_and(|since| since.elapsed() >= limit);
            is_due.then(|| offered.content.take()).flatten()
        };
        all.iter().filter_map(overdue).collect()
    }
}

/// An answer on the shelf, as the body that hyper sends.
pub(crate) struct OnShelf {
    shelf: Arc<Shelf>,
    place: u64,
    offered: Arc<Mutex<Offered>>,
}

impl Drop for OnShelf {
    fn drop(&mut self) {
        lock(&self.shelf.places).remove(&self.place);
    }
}

impl Body for OnShelf {
    type Data = Bytes;
    type Error = io::Error;

    /// hyper asks when the client gave the stream room.
    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let mut offered = lock(&self.offered);
        let Some(answer) = &mut offered.content else {
            return Poll::Ready(Some(Err(io::ErrorKind::TimedOut.into())));
        };
        let polled = Pin::new(answer).poll_frame(context);
        offered.since = polled.is_ready().then(Instant::now);
        polled
    }

    fn is_end_stream(&self) -> bool {
        let offered = lock(&self.offered);
        // One that was dropped ends with an error, not as if it were whole.
        offered.content.as_ref().is_some_and(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        let offered = lock(&self.offered);
        offered
            .content
            .as_ref()
            .map_or_else(SizeHint::default, Body::size_hint)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
