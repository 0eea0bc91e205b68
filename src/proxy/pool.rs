//! Kept connections to the workers.
//!
//! Promises: a connection that its worker closed is not handed out: each is looked at before it is used again; none is
//! kept longer than [`KEPT`], because engines behind uvicorn close after five idle seconds.
//! Leaves to others: connecting, and what to do when a connection dies in the same moment (`exchange`).

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::conn::Conn;
use crate::units::WorkerId;

/// How long an idle connection is kept.
const KEPT: Duration = Duration::from_secs(4);

/// Idle connections by the number of their worker, the one used last on top.
#[derive(Default)]
pub(crate) struct Pool {
    idle: Mutex<Vec<Idle>>,
}

/// Those to one worker.
type Idle = Vec<Box<Conn>>;

impl Pool {
    /// A kept connection to this worker that is fit for use.
    pub(crate) fn take(&self, worker: WorkerId) -> Option<Box<Conn>> {
        loop {
            let mut conn = self.lock().get_mut(worker.index())?.pop()?;
            if conn.idle_since.elapsed() < KEPT && conn.is_usable() {
                return Some(conn);
            }
        }
    }

    /// Keeps a connection whose exchange is complete, if it takes another one.
    pub(crate) fn keep(&self, mut conn: Box<Conn>) {
        if conn.is_usable() {
            conn.patience.rest();
            conn.idle_since = Instant::now();
            let place = conn.worker.index();
            let mut idle = self.lock();
            if idle.len() <= place {
                idle.resize_with(place + 1, Idle::new);
            }
            idle[place].push(conn);
        }
    }

    /// Closes connections that were idle for too long.
    pub(crate) fn sweep(&self) {
        let mut closed = Vec::new();
        for conns in &mut *self.lock() {
            // The one used last is on top, so the old ones are at the front.
            let old = conns.partition_point(|conn| conn.idle_since.elapsed() >= KEPT);
            closed.extend(conns.drain(..old));
            if conns.is_empty() {
                *conns = Idle::new();
            }
        }
        drop(closed);
    }

    pub(crate) fn clear(&self) {
        self.lock().clear();
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Idle>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
