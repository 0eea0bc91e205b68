//! The decoder's half, until its answer begins to reach the client.

use bytes::{Bytes, BytesMut};

use super::{Decoding, Dispatch, Listening, Relaying, State};
use crate::dispatch::action::{Action, Failure, TimeoutKind};
use crate::dispatch::answer::{self, Answer};
use crate::dispatch::connector::{Handoff, MEMBER, Stale};
use crate::dispatch::headers::{self, Header};
use crate::dispatch::{splice, sse};
use crate::error::Phase;
use crate::event::{FailReason, LostReason, Reason, TurnKind};
use crate::router::Turn;
use crate::units::{Timestamp, WorkerId};

/// The most of an error's body that is read before it is passed on.
const ERROR_LIMIT_BYTES: usize = 1 << 20;

impl Dispatch {
    /// The decoder computes the prompt itself: the prefillers give back what was queued at them.
    pub(super) fn decode_alone(
        &mut self,
        mut turn: Turn,
        tried: Vec<WorkerId>,
        reason: Reason,
        now: Timestamp,
    ) -> Action {
        if turn.route().handoff {
            turn.prefill_at_decoder(reason, now);
        }
        self.decode(turn, None, tried, now)
    }

    pub(super) fn decode(
        &mut self,
        turn: Turn,
        handoff: Option<Handoff>,
        tried: Vec<WorkerId>,
        now: Timestamp,
    ) -> Action {
        self.ask_decoder(
            Decoding {
                turn,
                handoff,
                tried,
                resent: 0,
            },
            now,
        )
    }

    fn ask_decoder(&mut self, decoding: Decoding, now: Timestamp) -> Action {
        let params = match &decoding.handoff {
            None => self.retain_params(),
            Some(handoff) => match handoff.params(self.shared.config.lease, now) {
                Ok(params) => params.cloned(),
                Err(Stale) => return self.prefill_again(decoding, now),
            },
        };
        let peek = &self.request().peek;
        let body = splice::decode_body(&self.body, peek, params.as_deref());
        let decoder = decoding.turn.route().decoder.clone();
        let upstream = self.upstream(&decoder, body, Phase::Decode);
        let streams = peek.stream;
        let mut decoding = decoding;
        if !streams {
            // Nobody will see where its prefill ends.
            decoding.turn.generating(now);
        }
        self.state = State::Decoding(decoding);
        if streams {
            Action::Stream(upstream)
        } else {
            Action::Call(upstream)
        }
    }

    /// What a request without a handoff carries.
    fn retain_params(&self) -> Option<Bytes> {
        let config = &self.shared.config;
        let asked = config.retain.then(|| config.connector.retain_params());
        asked.flatten().cloned()
    }

    /// The member of a decoder's answer that is not the client's, if there may be one.
    fn secret_member(&self) -> &'static str {
        if self.shared.config.retain {
            MEMBER
        } else {
            ""
        }
    }

    /// The handoff is as old as the lease: its blocks may hold somebody else's KV (I10).
    fn prefill_again(&mut self, decoding: Decoding, now: Timestamp) -> Action {
        self.shared.counters.handoffs_expired.add();
        let Decoding {
            mut turn, tried, ..
        } = decoding;
        if tried.len() <= self.shared.config.retries as usize
            && let Some(next) = turn.reprefill(&[], now)
        {
            return self.prefill(turn, next, tried, now);
        }
        self.shared.counters.prefills_on_decoder.add();
        self.decode_alone(turn, tried, Reason::HandoffFailed, now)
    }

    pub(super) fn decode_begins(
        &mut self,
        decoding: Decoding,
        status: u16,
        headers: &[Header],
    ) -> Action {
        if !(200..=299).contains(&status) || !headers::is_event_stream(headers) {
            let limit = if status < 300 {
                self.shared.config.max_answer_bytes
            } else {
                ERROR_LIMIT_BYTES
            };
            self.state = State::Decoding(decoding);
            return Action::Collect { limit };
        }
        if !headers::is_encoded(headers) {
            let hides_usage = splice::hides_usage(&self.request().peek);
            self.state = State::Listening(Box::new(Listening {
                decoding,
                status,
                headers: headers.to_vec(),
                reader: Box::new(sse::Reader::new(hides_usage)),
                held: BytesMut::new(),
            }));
            return Action::Listen;
        }
        // What cannot be read is passed on as it comes.
        let headers = self.answer_headers(&decoding.turn, headers);
        self.relays(Relaying {
            turn: decoding.turn,
            reader: None,
            pieces: 0,
            count_at: Timestamp(0),
            effective: None,
        });
        Action::Relay {
            status,
            headers,
            first: Bytes::new(),
        }
    }

    pub(super) fn decode_answered(
        &mut self,
        decoding: Decoding,
        status: u16,
        headers: &[Header],
        body: &Bytes,
        now: Timestamp,
    ) -> Action {
        match status {
            200..=299 if self.may_have_pulled_late(&decoding, now) => self.distrust(decoding, now),
            200..=299 if headers::is_encoded(headers) => {
                self.decode_done(decoding, None, status, headers, body, now)
            }
            200..=299 => match answer::read(body, self.secret_member()) {
                Ok(answer) => {
                    self.count_nonsense(&answer);
                    // Where a kept turn lies is between engine and router, who asked for it.
                    let body = &answer
                        .told
                        .map_or_else(|| body.clone(), |span| splice::nulled(body, span));
                    self.decode_done(decoding, Some(&answer), status, headers, body, now)
                }
                Err(error) => {
                    let what =
                        format!("answered {status} with something that is not JSON ({error})");
                    self.answered_nonsense(decoding.turn, &what, now)
                }
            },
            // A full worker is not a failing one.
            400..=499 | 503 => self.pass_on(
                decoding.turn,
                FailReason::Rejected,
                status,
                headers,
                body,
                now,
            ),
            500..=599 if decoding.handoff.is_some() => self.recompute(decoding, now),
            500..=599 => self.pass_on(
                decoding.turn,
                FailReason::DecoderError,
                status,
                headers,
                body,
                now,
            ),
            _ => {
                let what = format!("answered {status}, which a worker does not");
                self.answered_nonsense(decoding.turn, &what, now)
            }
        }
    }

    /// The decoder could not load the KV, most likely: once more, and it computes the prompt itself.
    pub(super) fn recompute(&mut self, decoding: Decoding, now: Timestamp) -> Action {
        self.shared.counters.handoffs_recomputed.add();
        self.decode_alone(decoding.turn, decoding.tried, Reason::HandoffFailed, now)
    }

    /// A decoder that pulls after the lease answers 200 with a wrong text (I10). A whole answer takes as long as its text, so
    /// its age says nothing by itself: it is doubtful if the decoder, or this process, stood still meanwhile.
    fn may_have_pulled_late(&self, decoding: &Decoding, now: Timestamp) -> bool {
        let router = &self.shared.router;
        decoding.handoff.as_ref().is_some_and(|handoff| {
            let since = handoff.taken_at();
            handoff.is_stale(self.shared.config.lease, now)
                && (router.pulse().stopped_since(since, now)
                    || router.doubted_since(decoding.turn.route().decoder.id, since))
        })
    }

    /// What the decoder answered may be about somebody else's KV: nobody sees it.
    pub(super) fn distrust(&mut self, decoding: Decoding, now: Timestamp) -> Action {
        self.shared.counters.handoffs_expired.add();
        self.decode_alone(decoding.turn, decoding.tried, Reason::HandoffFailed, now)
    }

    fn decode_done(
        &mut self,
        decoding: Decoding,
        answer: Option<&Answer>,
        status: u16,
        headers: &[Header],
        body: &Bytes,
        now: Timestamp,
    ) -> Action {
        let mut turn = decoding.turn;
        let headers = self.answer_headers(&turn, headers);
        turn.handed_over(now);
        turn.first_token(now);
        if answer.is_some_and(|answer| answer.error) {
            self.fail(turn, FailReason::DecoderError, now);
        } else {
            if answer.is_some_and(|answer| answer.content && !answer.tool_call) {
                turn.effective(now, now);
            }
            self.finish(turn, answer.and_then(|answer| answer.usage), now);
        }
        Action::Reply {
            status,
            headers,
            body: body.clone(),
        }
    }

    pub(super) fn decode_failed(
        &mut self,
        decoding: Decoding,
        failure: Failure,
        now: Timestamp,
    ) -> Action {
        let decoder = decoding.turn.route().decoder.id;
        match failure {
            Failure::Connect => {
                self.shared.router.lose(decoder, LostReason::Refused, now);
                self.begin_again(decoding.turn, failure, now)
            }
            Failure::Reset => {
                self.doubt(decoder, now);
                self.begin_again(decoding.turn, failure, now)
            }
            Failure::Unreachable | Failure::Timeout(TimeoutKind::Connect) => {
                self.doubt(decoder, now);
                self.resend(decoding, failure, now)
            }
            Failure::NoSocket => self.resend(decoding, failure, now),
            Failure::Timeout(TimeoutKind::FirstByte | TimeoutKind::Idle) => {
                self.doubt(decoder, now);
                self.give_up(decoding.turn, failure, now)
            }
            Failure::TooLarge | Failure::Protocol => self.give_up(decoding.turn, failure, now),
        }
    }

    /// Nothing was sent, so the KV still waits to be pulled: the same decoder is asked again.
    fn resend(&mut self, decoding: Decoding, failure: Failure, now: Timestamp) -> Action {
        if decoding.resent < self.shared.config.retries {
            self.shared.counters.decodes_retried.add();
            let resent = decoding.resent + 1;
            return self.ask_decoder(Decoding { resent, ..decoding }, now);
        }
        match decoding.turn.route().kind {
            // Its KV is there, and whoever watches the fleet will find out whether it comes back.
            TurnKind::Pinned => self.give_up(decoding.turn, failure, now),
            TurnKind::First | TurnKind::Relocated => self.begin_again(decoding.turn, failure, now),
        }
    }

    /// Gives the place back and asks the router for one again, with the whole history.
    fn begin_again(&mut self, turn: Turn, failure: Failure, now: Timestamp) -> Action {
        if self.again == self.shared.config.retries {
            return self.give_up(turn, failure, now);
        }
        self.again += 1;
        self.shared.counters.decodes_retried.add();
        turn.fail(failure.reason(), now);
        self.begin(now)
    }
}
