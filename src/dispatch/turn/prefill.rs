//! The prefiller's half: ask it for one token and the place of the KV; if it fails, the next one; at last the decoder itself.

use bytes::Bytes;

use super::{Dispatch, Prefilling, State};
use crate::dispatch::action::{Action, Failure};
use crate::dispatch::answer::{self, Answer, Finish};
use crate::dispatch::connector::{MEMBER, Peer};
use crate::dispatch::headers::{self, Header};
use crate::dispatch::splice;
use crate::error::Phase;
use crate::event::{FailReason, Reason};
use crate::fleet::WorkerRef;
use crate::router::Turn;
use crate::units::{Timestamp, Tokens, WorkerId};

impl Dispatch {
    pub(super) fn prefill(
        &mut self,
        turn: Turn,
        worker: WorkerRef,
        mut tried: Vec<WorkerId>,
        now: Timestamp,
    ) -> Action {
        let request = self.request();
        let params = self
            .shared
            .config
            .connector
            .prefill_params(&request.transfer_id(), &self.peer(&worker));
        let body = splice::prefill_body(&self.body, &request.peek, params.as_deref());
        let upstream = self.upstream(&worker, body, Phase::Prefill);
        tried.push(worker.id);
        self.state = State::Prefilling(Prefilling {
            turn,
            worker,
            tried,
            asked: now,
        });
        Action::Call(upstream)
    }

    pub(super) fn prefill_answered(
        &mut self,
        prefilling: Prefilling,
        status: u16,
        headers: &[Header],
        body: &Bytes,
        now: Timestamp,
    ) -> Action {
        match status {
            200..=299 if !headers::is_encoded(headers) => match answer::read(body, MEMBER) {
                Ok(answer) if !answer.error => self.prefill_done(prefilling, body, &answer, now),
                _ => self.next_prefiller(prefilling, now),
            },
            // The request is at fault, or too many were sent: another prefiller would say the same.
            400..=499 => self.pass_on(
                prefilling.turn,
                FailReason::Rejected,
                status,
                headers,
                body,
                now,
            ),
            503 => self.busy(prefilling, headers, body, now),
            _ => self.next_prefiller(prefilling, now),
        }
    }

    pub(super) fn prefill_failed(
        &mut self,
        prefilling: Prefilling,
        failure: Failure,
        now: Timestamp,
    ) -> Action {
        match failure {
            Failure::Connect | Failure::Unreachable | Failure::Reset | Failure::Timeout(_) => {
                self.shared.router.suspect(prefilling.worker.id, true, now);
            }
            // No other worker is nearer.
            Failure::NoSocket if self.may_retry(&prefilling.tried) => {
                self.shared.counters.prefills_retried.add();
                let Prefilling {
                    turn,
                    worker,
                    tried,
                    ..
                } = prefilling;
                return self.prefill(turn, worker, tried, now);
            }
            Failure::NoSocket => return self.give_up(prefilling.turn, failure, now),
            Failure::TooLarge | Failure::Protocol => {}
        }
        self.next_prefiller(prefilling, now)
    }

    fn prefill_done(
        &mut self,
        prefilling: Prefilling,
        body: &Bytes,
        answer: &Answer,
        now: Timestamp,
    ) -> Action {
        let Prefilling {
            mut turn,
            worker,
            tried,
            asked,
        } = prefilling;
        let (size, transfer_id) = (self.request().peek.size, self.request().transfer_id());
        let peer = self.peer(&worker);
        self.count_nonsense(answer);
        let came = self.shared.router.pulse().came(asked, now);
        let handoff = self
            .shared
            .config
            .connector
            .handoff(body, answer, &transfer_id, &peer, came);
        if handoff.is_none() && answer.finish != Some(Finish::Stop) {
            // A worker that was not started as a prefiller answers like this, to every request.
            return self.next_prefiller(
                Prefilling {
                    turn,
                    worker,
                    tried,
                    asked,
                },
                now,
            );
        }
        if handoff.is_none() {
            // The model ended at its first token, so the engine kept no KV to hand over, and none is orphaned.
            turn.prefill_at_decoder(Reason::NoKvKept, now);
            self.shared.router.forgive(worker.id);
        }
        self.found = answer.usage.and_then(|usage| usage.cached);
        let counted = answer.usage.and_then(|usage| usage.prompt);
        if let Some(counted) = counted {
            self.shared.ratio.observe(size, counted);
        }
        let cached = answer.usage.and_then(|usage| usage.cached).unwrap_or(0);
        turn.prefilled_after(
            counted.map_or_else(|| self.shared.ratio.tokens(size), Tokens),
            Tokens(cached),
            now,
        );
        self.decode(turn, handoff, tried, now)
    }

    /// 503: the worker is busy, and so may the others be. If there is another, it is asked; else the client is told.
    fn busy(
        &mut self,
        prefilling: Prefilling,
        headers: &[Header],
        body: &Bytes,
        now: Timestamp,
    ) -> Action {
        let Prefilling {
            mut turn, tried, ..
        } = prefilling;
        if self.may_retry(&tried)
            && let Some(next) = turn.reprefill(&tried, now)
        {
            self.shared.counters.prefills_retried.add();
            return self.prefill(turn, next, tried, now);
        }
        self.pass_on(turn, FailReason::PrefillFailed, 503, headers, body, now)
    }

    fn next_prefiller(&mut self, prefilling: Prefilling, now: Timestamp) -> Action {
        let Prefilling {
            mut turn, tried, ..
        } = prefilling;
        if self.may_retry(&tried)
            && let Some(next) = turn.reprefill(&tried, now)
        {
            self.shared.counters.prefills_retried.add();
            return self.prefill(turn, next, tried, now);
        }
        self.shared.counters.prefills_on_decoder.add();
        self.decode_alone(turn, tried, Reason::NoPrefillerLeft, now)
    }

    fn may_retry(&self, tried: &[WorkerId]) -> bool {
        tried.len() <= self.shared.config.retries as usize
    }

    pub(super) fn peer(&self, worker: &WorkerRef) -> Peer {
        self.shared
            .config
            .peers
            .get(&*worker.url)
            .cloned()
            .unwrap_or_default()
    }
}
