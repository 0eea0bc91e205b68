//! Lines for the log on their way to whoever writes it: a bounded queue, so that a slow log slows nobody.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;

use crate::dispatch::Header;
use crate::event::Reason;

/// Lines that wait at most; what comes above is counted and dropped.
const CAPACITY: usize = 4_096;
/// Lines handed over at once at most.
const BATCH: usize = 256;
/// The largest body that a line carries; larger ones are told without.
const BODY_LIMIT_BYTES: usize = 64 << 10;

/// How much a line matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// What happened.
    Info,
    /// What somebody should look at.
    Warning,
}

/// One line.
#[derive(Debug, Clone)]
pub enum Line {
    /// How a turn was answered.
    Answered {
        /// The path.
        path: &'static str,
        /// The status.
        status: u16,
        /// The headers of the answer.
        headers: Vec<Header>,
        /// The body of an error.
        body: Option<Bytes>,
        /// Why the turn ran where it ran.
        reason: Option<Reason>,
    },
    /// A text.
    Text(Level, String),
}

pub(crate) struct Log {
    verbose: bool,
    sender: SyncSender<Option<Line>>,
    receiver: Mutex<Receiver<Option<Line>>>,
    dropped: AtomicU64,
}

impl Log {
    pub(crate) fn new(verbose: bool) -> Self {
        let (sender, receiver) = sync_channel(CAPACITY);
        Self {
            verbose,
            sender,
            receiver: Mutex::new(receiver),
            dropped: AtomicU64::new(0),
        }
    }

    pub(crate) fn info(&self, text: impl FnOnce() -> String) {
        if self.verbose {
            self.put(Line::Text(Level::Info, text()));
        }
    }

    pub(crate) fn warn(&self, text: String) {
        self.put(Line::Text(Level::Warning, text));
    }

    /// A turn was answered; `body` is `None` for a stream. A turn that ran where it is pinned says nothing.
    pub(crate) fn answered(
        &self,
        path: &'static str,
        status: u16,
        headers: &[Header],
        body: Option<&Bytes>,
        reason: Option<Reason>,
    ) {
        let is_wanted = status >= 500
            || self.verbose
                && (status >= 400
                    || headers
                        .iter()
                        .any(|(name, value)| name == "x-conserve-route" && value != "pinned"));
        if is_wanted {
            self.put(Line::Answered {
                path,
                status,
                headers: headers.to_vec(),
                body: body.filter(|body| body.len() <= BODY_LIMIT_BYTES).cloned(),
                reason,
            });
        }
    }

    /// No line follows.
    pub(crate) fn close(&self) {
        // A full queue needs no mark: whoever reads it is told by the next `wait` that times out.
        let _ = self.sender.try_send(None);
    }

    /// The next lines, maybe none within `limit`; `None` once the log is closed.
    pub(crate) fn wait(&self, limit: Duration) -> Option<Vec<Line>> {
        let receiver = self.receiver.lock().unwrap_or_else(PoisonError::into_inner);
        let mut lines = Vec::new();
        match receiver.recv_timeout(limit) {
            Ok(Some(line)) => lines.push(line),
            Ok(None) | Err(RecvTimeoutError::Disconnected) => return None,
            Err(RecvTimeoutError::Timeout) => {}
        }
        while lines.len() < BATCH {
            match receiver.try_recv() {
                Ok(Some(line)) => lines.push(line),
                // The mark is put back, so that the next call sees it.
                Ok(None) => {
                    self.close();
                    break;
                }
                Err(_) => break,
            }
        }
        let dropped = self.dropped.swap(0, Ordering::Relaxed);
        if dropped > 0 {
            lines.push(Line::Text(
                Level::Warning,
                format!("{dropped} lines were dropped here: the log is slower than the door"),
            ));
        }
        Some(lines)
    }

    fn put(&self, line: Line) {
        if self.sender.try_send(Some(line)).is_err() {
            // Relaxed: a counter; guards no memory.
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::ZERO;

    fn route(name: &'static str) -> Vec<Header> {
        vec![(
            Bytes::from_static(b"x-conserve-route"),
            Bytes::from_static(name.as_bytes()),
        )]
    }

    #[test]
    fn a_pinned_turn_says_nothing_and_a_first_one_does() {
        let log = Log::new(true);
        log.answered("/", 200, &route("pinned"), None, None);
        assert!(log.wait(NOW).unwrap().is_empty());
        log.answered("/", 200, &route("first"), None, None);
        log.answered("/", 404, &[], None, None);
        assert_eq!(log.wait(NOW).unwrap().len(), 2);
    }

    #[test]
    fn a_quiet_log_keeps_warnings_only() {
        let log = Log::new(false);
        log.info(|| unreachable!("nobody wants it"));
        log.answered("/", 404, &[], None, None);
        log.answered("/", 502, &[], None, None);
        log.warn("w".to_owned());
        assert_eq!(log.wait(NOW).unwrap().len(), 2);
    }

    #[test]
    fn what_does_not_fit_is_counted() {
        let log = Log::new(true);
        for _ in 0..CAPACITY + 3 {
            log.warn("w".to_owned());
        }
        let mut texts = Vec::new();
        loop {
            let lines = log.wait(NOW).unwrap();
            if lines.is_empty() {
                break;
            }
            texts.extend(lines);
        }
        let told = texts
            .iter()
            .filter(|line| matches!(line, Line::Text(_, text) if text.starts_with("3 lines")))
            .count();
        assert_eq!(told, 1);
    }

    #[test]
    fn after_closing_what_is_queued_comes_first() {
        let log = Log::new(true);
        log.warn("w".to_owned());
        log.close();
        assert_eq!(log.wait(NOW).unwrap().len(), 1);
        assert!(log.wait(NOW).is_none());
    }
}
