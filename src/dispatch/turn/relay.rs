//! The decoder's stream on its way to the client.

use std::time::Duration;

use bytes::{Bytes, BytesMut};

use super::{Dispatch, Relaying};
use crate::dispatch::action::{Action, Failure};
use crate::dispatch::sse;
use crate::error::WorkerErrorKind;
use crate::event::FailReason;
use crate::units::{Timestamp, Tokens};

/// A stream's tokens are counted so often while it runs: a chunk in between costs a comparison.
const COUNT_EVERY: Duration = Duration::from_millis(250);

impl Relaying {
    pub(super) fn pass(&mut self, bytes: &Bytes, now: Timestamp) -> Bytes {
        let Some(reader) = &mut self.reader else {
            self.note(1, now);
            return bytes.clone();
        };
        let passed = reader.chunk(bytes);
        self.hear(now);
        passed
    }

    /// Notes what the reader has seen by now.
    pub(super) fn hear(&mut self, now: Timestamp) {
        let Some(seen) = self.reader.as_deref().map(sse::Reader::seen) else {
            return;
        };
        self.note(seen.pieces, now);
        if seen.content && self.effective.is_none() {
            self.effective = Some(now);
        }
        if now >= self.count_at {
            self.count(now);
        }
    }

    /// Out of the way, so that a chunk in between pays for the comparison alone.
    #[cold]
    #[inline(never)]
    fn count(&mut self, now: Timestamp) {
        self.count_at = now + COUNT_EVERY;
        // Each event that brings something brings a token at least; the end tells how many they were.
        self.turn.generated(Tokens(self.pieces));
    }

    /// `pieces` events with tokens have come so far.
    fn note(&mut self, pieces: u32, now: Timestamp) {
        // An engine sends its head, and a chat's role, before it has pulled the KV; its first token comes after.
        let mut before = std::mem::replace(&mut self.pieces, pieces);
        if before == 0 && pieces > 0 {
            self.turn.handed_over(now);
            self.turn.first_token(now);
            before = 1;
        }
        if pieces > before {
            self.turn.more_tokens(pieces - before, now);
        }
    }
}

impl Dispatch {
    pub(super) fn stream_ended(&mut self, mut relaying: Relaying, now: Timestamp) -> Bytes {
        let Some(mut reader) = relaying.reader.take() else {
            self.finish(relaying.turn, None, now);
            return Bytes::new();
        };
        let rest = reader.end();
        let seen = reader.seen();
        relaying.note(seen.pieces, now);
        if seen.error {
            // The worker told the client itself.
            self.fail(relaying.turn, FailReason::DecoderError, now);
            return rest;
        }
        if !seen.done {
            let cut = self.cut(
                relaying,
                "ended its stream before [DONE]",
                WorkerErrorKind::Protocol,
                FailReason::DecoderError,
                now,
            );
            let mut both = BytesMut::from(&*rest);
            if !rest.is_empty() {
                both.extend_from_slice(b"\n\n");
            }
            both.extend_from_slice(&cut);
            return both.freeze();
        }
        let visible = relaying.effective.or_else(|| seen.content.then_some(now));
        if let Some(at) = visible.filter(|_| !seen.tool_call) {
            relaying.turn.effective(at, now);
        }
        self.finish(relaying.turn, seen.usage, now);
        rest
    }

    pub(super) fn stream_failed(
        &mut self,
        relaying: Relaying,
        failure: Failure,
        now: Timestamp,
    ) -> Action {
        if relaying
            .reader
            .as_ref()
            .is_some_and(|reader| reader.seen().done)
        {
            // All that the client waits for has passed.
            return Action::Finish(self.stream_ended(relaying, now));
        }
        if failure.kind() != WorkerErrorKind::Protocol {
            // Not lost yet: the next turn's connection tells, and until then the KV may still be there.
            self.doubt(relaying.turn.route().decoder.id, now);
        }
        let encoded = relaying.reader.is_none();
        let event = self.cut(
            relaying,
            failure.predicate(),
            failure.kind(),
            failure.reason(),
            now,
        );
        // An event in the plain would be garbage inside an encoded stream.
        Action::Finish(if encoded { Bytes::new() } else { event })
    }

    /// Fails the turn; the event that tells the client so. It stands between two events: halves are held back.
    fn cut(
        &mut self,
        relaying: Relaying,
        what: &str,
        kind: WorkerErrorKind,
        why: FailReason,
        now: Timestamp,
    ) -> Bytes {
        self.shared.counters.streams_cut.add();
        let refusal = self.worker_error(&relaying.turn, kind, what);
        self.fail(relaying.turn, why, now);
        refusal.event()
    }
}
