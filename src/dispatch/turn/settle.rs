//! How a request ends: the turn settled, the client answered.

use std::fmt::Write as _;
use std::time::Duration;

use bytes::Bytes;

use super::{Dispatch, State};
use crate::dispatch::action::{Action, Failure, Upstream};
use crate::dispatch::answer::{Answer, Counts};
use crate::dispatch::headers::{self, Header, header};
use crate::dispatch::refusal::Refusal;
use crate::error::{Phase, WorkerError, WorkerErrorKind};
use crate::event::{FailReason, Usage};
use crate::fleet::WorkerRef;
use crate::router::Turn;
use crate::units::{Timestamp, Tokens, WorkerId};

impl Dispatch {
    pub(super) fn finish(&mut self, turn: Turn, counts: Option<Counts>, now: Timestamp) {
        let counts = counts.unwrap_or_default();
        if let Some(prompt) = counts.prompt {
            self.shared.ratio.observe(self.request().peek.size, prompt);
        }
        // What a decoder pulled it may call cached, or tell the prefiller's number; for this turn it was computed all the same.
        let cached = match turn.route().prefiller {
            Some(_) => self.found,
            None => counts.cached,
        };
        let usage = Usage {
            prompt: counts.prompt.map(Tokens),
            output: counts.output.map(Tokens),
            cached: cached.map(Tokens),
        };
        if self.doubted == Some(turn.route().decoder.id) {
            self.shared
                .router
                .suspect(turn.route().decoder.id, false, now);
        }
        turn.finish(usage, now);
        self.over(now);
    }

    /// The turn failed and is not begun again.
    pub(super) fn fail(&mut self, turn: Turn, why: FailReason, now: Timestamp) {
        turn.fail(why, now);
        self.over(now);
    }

    /// A conversation that nobody can continue must not hold its blocks until it is swept.
    pub(super) fn over(&mut self, now: Timestamp) {
        self.state = State::Over;
        if let Some(request) = self.request.as_ref().filter(|request| request.nameless) {
            self.shared.router.close(request.key, now);
        }
    }

    /// The worker's own answer, for what only it can know.
    pub(super) fn pass_on(
        &mut self,
        turn: Turn,
        why: FailReason,
        status: u16,
        headers: &[Header],
        body: &Bytes,
        now: Timestamp,
    ) -> Action {
        let headers = self.answer_headers(&turn, headers);
        self.fail(turn, why, now);
        Action::Reply {
            status,
            headers,
            body: body.clone(),
        }
    }

    /// The worker failed the turn and nobody else can serve it now.
    pub(super) fn give_up(&mut self, turn: Turn, failure: Failure, now: Timestamp) -> Action {
        let refusal = self.worker_error(&turn, failure.kind(), failure.predicate());
        self.fail(turn, failure.reason(), now);
        self.reply(&refusal)
    }

    /// The decoder answered what no worker answers.
    pub(super) fn answered_nonsense(&mut self, turn: Turn, what: &str, now: Timestamp) -> Action {
        let refusal = self.worker_error(&turn, WorkerErrorKind::Protocol, what);
        self.fail(turn, FailReason::DecoderError, now);
        self.reply(&refusal)
    }

    pub(super) fn worker_error(&self, turn: &Turn, kind: WorkerErrorKind, what: &str) -> Refusal {
        let worker = turn.route().decoder.name.to_string();
        let error = WorkerError {
            kind,
            worker,
            phase: Phase::Decode,
            detail: what.to_owned(),
        };
        let message = format!(
            "decoder {error}; conversation {}: send the turn again",
            self.request().key
        );
        Refusal {
            status: error.status(),
            code: error.code(),
            param: None,
            message,
        }
    }

    /// A worker that says where KV lies, but not so that anybody could fetch it, counts as one that says nothing.
    pub(super) fn count_nonsense(&self, answer: &Answer) {
        if answer.tells_nonsense() {
            self.shared.counters.handoffs_malformed.add();
        }
    }

    /// The worker gets no new conversation until it is trusted again: by whoever watches it, or because it serves this
    /// request after all.
    pub(super) fn doubt(&mut self, worker: WorkerId, now: Timestamp) {
        self.shared.router.suspect(worker, true, now);
        self.doubted = Some(worker);
    }

    pub(super) fn reply(&mut self, refusal: &Refusal) -> Action {
        self.reply_with(refusal, None)
    }

    pub(super) fn reply_with(
        &mut self,
        refusal: &Refusal,
        retry_after: Option<Duration>,
    ) -> Action {
        self.state = State::Over;
        let mut headers = vec![header("content-type", "application/json")];
        if let Some(span) = retry_after {
            headers.push(header("retry-after", span.as_secs().max(1).to_string()));
        }
        if let Some(request) = &self.request {
            let texts = &request.texts;
            headers.push(header("x-conserve-conversation", texts.handle.clone()));
            headers.push(header("x-request-id", texts.trace.clone()));
        } else if let Some(id) = headers::get(&self.headers, "x-request-id") {
            headers.push(header("x-request-id", id.clone()));
        }
        Action::Reply {
            status: refusal.status,
            headers,
            body: refusal.body(),
        }
    }

    /// The worker's headers and what the router adds to every answer.
    pub(super) fn answer_headers(&mut self, turn: &Turn, from_worker: &[Header]) -> Vec<Header> {
        let route = turn.route();
        self.reason = Some(route.reason);
        let request = self.request();
        let name = &*route.decoder.name;
        let mut text = String::with_capacity(name.len() + 10);
        text.push_str(name);
        write!(text, "{}", route.turn).expect("a string takes all");
        let text = Bytes::from(text);
        let mut own = Vec::with_capacity(6);
        own.extend([
            header("x-conserve-conversation", request.texts.handle.clone()),
            header("x-conserve-decoder", text.slice(..name.len())),
            header("x-conserve-turn", text.slice(name.len()..)),
            header("x-conserve-route", route.kind.as_str()),
        ]);
        if let Some(prefiller) = &route.prefiller {
            // Only where its KV was handed over: when the decoder computed the prompt, the route names nobody.
            own.push(header("x-conserve-prefiller", prefiller.name.to_string()));
        }
        if headers::get(from_worker, "x-request-id").is_none() {
            own.push(header("x-request-id", request.texts.trace.clone()));
        }
        headers::to_client(from_worker, own)
    }

    pub(super) fn upstream(&self, worker: &WorkerRef, body: Bytes, phase: Phase) -> Upstream {
        let config = &self.shared.config;
        let texts = &self.request().texts;
        let first_byte_timeout = match phase {
            Phase::Prefill => config.prefill_timeout,
            Phase::Decode if self.request().peek.stream => config.first_byte_timeout,
            // Nothing of an answer in one piece comes before all of it was generated.
            Phase::Decode => config.answer_timeout,
        };
        Upstream {
            worker: worker.id,
            name: worker.name.clone(),
            url: [worker.url.trim_end_matches('/'), self.endpoint.path()].concat(),
            headers: headers::to_worker(&self.headers, config, &texts.trace, &texts.key),
            body,
            connect_timeout: config.connect_timeout,
            first_byte_timeout,
            idle_timeout: config.idle_timeout,
            max_answer_bytes: config.max_answer_bytes,
            phase,
        }
    }
}
