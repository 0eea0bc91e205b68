//! The decoder's stream before its first token: the client has seen nothing, so the turn can still be tried again.
//!
//! An engine begins a stream before it has pulled the KV (vLLM: head and a chat's role at once), so a failed pull comes as an
//! event. Held back are at most `HELD_LIMIT` bytes, and for no longer than the worker may be silent.

use bytes::{Bytes, BytesMut};

use super::{Dispatch, Listening, Relaying, State};
use crate::dispatch::action::Action;
use crate::event::FailReason;
use crate::units::Timestamp;

/// A stream of more bytes than this without a token is passed on unheard.
const HELD_LIMIT: usize = 64 << 10;

impl Dispatch {
    pub(super) fn listen(
        &mut self,
        mut listening: Box<Listening>,
        bytes: &Bytes,
        now: Timestamp,
    ) -> Action {
        if bytes.is_empty() {
            return self.ended_unheard(*listening, now);
        }
        let passed = listening.reader.chunk(bytes);
        let seen = listening.reader.seen();
        if seen.error && !seen.token && listening.decoding.handoff.is_some() {
            return self.recompute(listening.decoding, now);
        }
        let handoff = listening.decoding.handoff.as_ref();
        if seen.token
            && handoff.is_some_and(|handoff| handoff.is_stale(self.shared.config.lease, now))
        {
            // Pulled in time, it would have said something by now (I10).
            return self.distrust(listening.decoding, now);
        }
        let says_something = seen.token || seen.error || seen.done || seen.finish.is_some();
        if says_something || listening.held.len() + passed.len() > HELD_LIMIT {
            return self.let_go(*listening, passed, now);
        }
        listening.held.extend_from_slice(&passed);
        self.state = State::Listening(listening);
        Action::Listen
    }

    /// The client is told now; nothing can be taken back any more.
    fn let_go(&mut self, listening: Listening, passed: Bytes, now: Timestamp) -> Action {
        let Listening {
            decoding,
            status,
            headers,
            reader,
            held,
        } = listening;
        let headers = self.answer_headers(&decoding.turn, &headers);
        let mut relaying = Relaying {
            turn: decoding.turn,
            reader: Some(reader),
            pieces: 0,
            count_at: Timestamp(0),
            effective: None,
        };
        relaying.hear(now);
        self.relays(relaying);
        Action::Relay {
            status,
            headers,
            first: join(held, passed),
        }
    }

    fn ended_unheard(&mut self, mut listening: Listening, now: Timestamp) -> Action {
        let rest = listening.reader.end();
        let seen = listening.reader.seen();
        if seen.error && !seen.token && listening.decoding.handoff.is_some() {
            return self.recompute(listening.decoding, now);
        }
        let Listening {
            decoding,
            status,
            headers,
            held,
            ..
        } = listening;
        if !seen.done && !seen.error {
            return self.answered_nonsense(decoding.turn, "ended its stream before [DONE]", now);
        }
        let headers = self.answer_headers(&decoding.turn, &headers);
        if seen.error {
            self.fail(decoding.turn, FailReason::DecoderError, now);
        } else {
            self.finish(decoding.turn, seen.usage, now);
        }
        Action::Reply {
            status,
            headers,
            body: join(held, rest),
        }
    }
}

fn join(mut held: BytesMut, more: Bytes) -> Bytes {
    if held.is_empty() {
        return more;
    }
    held.extend_from_slice(&more);
    held.freeze()
}
