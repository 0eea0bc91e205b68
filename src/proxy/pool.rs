//! Kept connections to the workers.
//!
//! Promises: a connection that its worker closed is not handed out: each is looked at before it is used again; none is
//! kept longer than [`KEPT`], because engines behind uvicorn close after five idle seconds.
//! Leaves to others: connecting, and what to do when a connection dies in the same moment (`exchange`).

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use hyper::client::conn::http1::{Connection, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::time::Instant;

use super::outgoing::Whole;
use super::socket::Socket;

/// How long an idle connection is kept.
const KEPT: Duration = Duration::from_secs(4);

/// A connection to a worker. It moves only while somebody polls it: whoever uses it drives it, in the same task.
pub(crate) struct Conn {
    /// Scheme, host and port.
    pub(crate) origin: Arc<str>,
    pub(crate) sender: SendRequest<Whole>,
    pub(crate) driver: Pin<Box<Connection<TokioIo<Socket>, Whole>>>,
    idle_since: Instant,
}

impl Conn {
    pub(crate) fn new(
        origin: Arc<str>,
        sender: SendRequest<Whole>,
        driver: Connection<TokioIo<Socket>, Whole>,
    ) -> Self {
        Self {
            origin,
            sender,
            driver: Box::pin(driver),
            idle_since: Instant::now(),
        }
    }

    /// Moves it on and says whether it takes a request now.
    fn is_usable(&mut self) -> bool {
        let mut nobody = Context::from_waker(Waker::noop());
        // It is done when the worker closed it, or sent what nobody asked for.
        let is_open = matches!(self.driver.as_mut().poll(&mut nobody), Poll::Pending);
        is_open && self.sender.is_ready()
    }
}

/// Idle connections by origin, the one used last on top.
#[derive(Default)]
pub(crate) struct Pool {
    idle: Mutex<HashMap<Arc<str>, Vec<Conn>>>,
}

impl Pool {
    /// A kept connection to `origin` that is fit for use.
    pub(crate) fn take(&self, origin: &str) -> Option<Conn> {
        loop {
            let mut conn = self.lock().get_mut(origin)?.pop()?;
            if conn.idle_since.elapsed() < KEPT && conn.is_usable() {
                return Some(conn);
            }
        }
    }

    /// Keeps a connection whose exchange is complete, if it takes another one.
    pub(crate) fn keep(&self, mut conn: Conn) {
        if conn.is_usable() {
            conn.idle_since = Instant::now();
            let origin = Arc::clone(&conn.origin);
            self.lock().entry(origin).or_default().push(conn);
        }
    }

    /// Closes connections that were idle for too long.
    pub(crate) fn sweep(&self) {
        let mut closed = Vec::new();
        let mut idle = self.lock();
        idle.retain(|_, conns| {
            // The one used last is on top, so the old ones are at the front.
            let old = conns.partition_point(|conn| conn.idle_since.elapsed() >= KEPT);
            closed.extend(conns.drain(..old));
            !conns.is_empty()
        });
        drop(idle);
        drop(closed);
    }

    pub(crate) fn clear(&self) {
        self.lock().clear();
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Arc<str>, Vec<Conn>>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
