//! The body of a streamed answer: takes a piece from the worker when the client's connection has room for one.
//!
//! Promises: nothing is read ahead, so a slow reader slows its own worker; a stream that breaks ends with an error event.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};

use super::driver::Drive;
use super::exchange::Exchange;
use super::outgoing::draining;
use super::quiet::Quiet;
use super::shared::Stage;
use crate::dispatch::{Action, Upstream};

/// A stream on its way from a worker to a client.
pub(crate) struct Relay {
    drive: Drive,
    upstream: Upstream,
    /// `None` once the worker has no more to say.
    exchange: Option<Exchange>,
    ending: Pin<Box<dyn Future<Output = ()> + Send>>,
    of_ending: Quiet,
    /// What was heard before the client was told; goes out before anything else.
    first: Bytes,
    has_begun: bool,
}

impl Relay {
    pub(crate) fn new(
        drive: Drive,
        mut upstream: Upstream,
        exchange: Exchange,
        first: Bytes,
    ) -> Self {
        // The request's bytes are not needed any more; streams are long.
        upstream.body = Bytes::new();
        upstream.headers = Vec::new();
        let ending = Box::pin(drive.shared.reached(Stage::Ending));
        Self {
            drive,
            upstream,
            exchange: Some(exchange),
            ending,
            of_ending: Quiet::default(),
            has_begun: !first.is_empty(),
            first,
        }
    }

    pub(crate) fn is_over(&self) -> bool {
        self.exchange.is_none()
    }

    /// The next bytes for the client; `None` at the end.
    pub(crate) fn poll_piece(&mut self, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        let Some(exchange) = &mut self.exchange else {
            return Poll::Ready(None);
        };
        let ending = &mut self.ending;
        let told = (self.of_ending).poll(context, |context| ending.as_mut().poll(context));
        if told.is_ready() {
            let now = self.drive.now();
            self.drive.dispatch.client_gone(now);
            let mut event = BytesMut::from(&b"\n\n"[..]);
            event.extend_from_slice(&draining().event());
            return self.last(event.freeze());
        }
        if !self.first.is_empty() {
            return Poll::Ready(Some(std::mem::take(&mut self.first)));
        }
        loop {
            let patience = self.upstream.patience(self.has_begun);
            let broken = match ready!(exchange.poll_piece(patience, context)) {
                Ok(Some(piece)) => {
                    self.has_begun = true;
                    self.drive.shared.stats.relayed(piece.len());
                    let now = self.drive.now();
                    let out = self.drive.dispatch.chunk(&piece, now);
                    if out.is_empty() {
                        continue;
                    }
                    return Poll::Ready(Some(out));
                }
                Ok(None) => {
                    let now = self.drive.now();
                    let rest = self.drive.dispatch.end(now);
                    return self.last(rest);
                }
                Err(broken) => broken,
            };
            let rest = match self.drive.failed(&broken, &self.upstream) {
                Action::Finish(rest) => rest,
                // A stream that has begun can only be finished.
                _ => Bytes::new(),
            };
            return self.last(rest);
        }
    }

    fn last(&mut self, rest: Bytes) -> Poll<Option<Bytes>> {
        self.exchange = None;
        self.drive.finish();
        Poll::Ready((!rest.is_empty()).then_some(rest))
    }
}
