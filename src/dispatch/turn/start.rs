//! From the client's bytes to a turn: read, name, size, begin.

use std::time::Duration;

use super::{Dispatch, Request, State, Texts};
use crate::dispatch::action::Action;
use crate::dispatch::estimate;
use crate::dispatch::fingerprint::fingerprint;
use crate::dispatch::headers;
use crate::dispatch::ident;
use crate::dispatch::peek::{Endpoint, Peek, messages, peek_arrived};
use crate::dispatch::refusal::Refusal;
use crate::error::Rejected;
use crate::event::Reason;
use crate::identity::{ConversationKey, TenantKey};
use crate::router::{Begin, Ticket, Turn, TurnRequest};
use crate::units::{Timestamp, Tokens};

/// Which conversation a request belongs to.
struct Named {
    key: ConversationKey,
    history: Option<u128>,
    nameless: bool,
}

impl Dispatch {
    pub(super) fn read_and_begin(&mut self, now: Timestamp) -> Action {
        match self.read() {
            Ok(request) => {
                self.request = Some(request);
                self.begin(now)
            }
            Err(refusal) => {
                self.shared.counters.requests_refused.add();
                self.reply(&refusal)
            }
        }
    }

    fn read(&self) -> Result<Box<Request>, Refusal> {
        if headers::is_encoded(&self.headers) {
            let message =
                "the request body is encoded (content-encoding); send it as plain JSON".to_owned();
            return Err(Refusal {
                status: 415,
                code: "unsupported_encoding",
                param: None,
                message,
            });
        }
        let limits = self.shared.config.limits();
        let peek = peek_arrived(&self.body, self.endpoint, &limits, &self.arrival)?;
        self.check_model(&peek)?;
        let tenant = self
            .shared
            .identity
            .tenant(headers::credential(&self.headers));
        let Named {
            key,
            history,
            nameless,
        } = self.name(&peek, tenant)?;
        let serial = self.shared.serial();
        let given = headers::get(&self.headers, "x-request-id")
            .filter(|id| !id.is_empty())
            .cloned();
        Ok(Box::new(Request {
            peek,
            key,
            tenant,
            history,
            nameless,
            texts: Texts::new(key, key.seen_by(tenant), serial, given),
            serial,
        }))
    }

    fn check_model(&self, peek: &Peek) -> Result<(), Refusal> {
        let model = peek.model.decode(&self.body);
        if model
            .as_deref()
            .is_some_and(|model| self.shared.serves(model))
        {
            return Ok(());
        }
        let name = String::from_utf8_lossy(model.as_deref().unwrap_or_default()).into_owned();
        let message = format!(
            "model {name:?} is not served here; served: {}",
            self.shared.models()
        );
        Err(Refusal {
            status: 404,
            code: "model_not_found",
            param: Some("model".to_owned()),
            message,
        })
    }

    fn name(&self, peek: &Peek, tenant: TenantKey) -> Result<Named, Refusal> {
        let identity = &self.shared.identity;
        if let Some(id) = ident::named(&self.headers, peek, &self.body, &self.shared.config)? {
            return Ok(Named {
                key: identity.explicit(tenant, &id),
                history: None,
                nameless: false,
            });
        }
        if self.endpoint == Endpoint::Completions || !self.shared.config.fingerprint {
            return Ok(Named {
                key: identity.fresh(tenant),
                history: None,
                nameless: true,
            });
        }
        let messages = messages(&self.body, peek, &self.shared.config.limits())?;
        let found = fingerprint(&self.body, &messages);
        let is_busy = |key| {
            self.shared
                .router
                .conversation(key)
                .is_some_and(|view| view.in_flight > 0)
        };
        let known = identity.recognise_idle(tenant, &found.prefixes, is_busy);
        let key = known.unwrap_or_else(|| identity.fresh(tenant));
        Ok(Named {
            key,
            history: Some(found.whole),
            nameless: false,
        })
    }

    /// Asks the router for a place, at first and after the place was lost.
    pub(super) fn begin(&mut self, now: Timestamp) -> Action {
        let request = self.request();
        let estimate = self.shared.ratio.tokens(request.peek.size);
        let mut begun = self.begin_with(estimate, now);
        if let Err(Rejected::PromptTooLong { limit, .. }) = begun
            && !estimate::is_exact(request.peek.size)
            && estimate.0 / 2 <= limit.0
        {
            // An estimate may be off by two; what might fit is left to the worker, which counts.
            begun = self.begin_with(limit, now);
        }
        match begun {
            Ok(Begin::Started(turn)) => self.placed(turn, now),
            Ok(Begin::Waiting(ticket)) => self.wait(ticket),
            Err(rejected) => self.rejected(&rejected),
        }
    }

    fn begin_with(&self, prompt_tokens: Tokens, now: Timestamp) -> Result<Begin, Rejected> {
        let patience = self.shared.config.queue_timeout;
        // A turn that lost its place may wait as long as one that had none.
        let waited = if self.again == 0 {
            now.since(self.opened)
        } else {
            Duration::ZERO
        };
        let wait = Some(patience.saturating_sub(waited));
        self.shared.router.begin(
            &TurnRequest {
                key: self.request().key,
                prompt_tokens,
                wait,
            },
            now,
        )
    }

    fn wait(&mut self, ticket: Ticket) -> Action {
        let deadline = ticket.deadline();
        self.state = State::Waiting(ticket);
        Action::Wait { deadline }
    }

    pub(super) fn take_ticket(&mut self, ticket: Ticket, now: Timestamp) -> Action {
        match ticket.take(now) {
            Some(Ok(turn)) => self.placed(turn, now),
            Some(Err(rejected)) => self.rejected(&rejected),
            None => self.wait(ticket),
        }
    }

    fn placed(&mut self, turn: Turn, now: Timestamp) -> Action {
        let Request {
            key,
            tenant,
            history,
            ..
        } = *self.request();
        if let Some(whole) = history {
            self.shared.identity.remember(tenant, whole, key);
        }
        match turn.route().prefiller.clone() {
            Some(prefiller) if self.shared.config.connector.hands_over() => {
                self.prefill(turn, prefiller, Vec::new(), now)
            }
            _ => self.decode_alone(turn, Vec::new(), Reason::NoConnector, now),
        }
    }

    fn rejected(&mut self, rejected: &Rejected) -> Action {
        let advice = match rejected {
            Rejected::PromptTooLong { .. } => "; shorten the conversation",
            Rejected::Draining | Rejected::NoWorkers => "; try again when a decoder has joined",
            Rejected::Overloaded { .. } | Rejected::TimedOut { .. } | Rejected::Closed => "",
        };
        let param = matches!(rejected, Rejected::PromptTooLong { .. })
            .then(|| self.prompt_field().to_owned());
        let message = format!("{rejected}{advice}");
        let refusal = Refusal {
            status: rejected.status(),
            code: rejected.code(),
            param,
            message,
        };
        // When a decoder comes is not known; a client that is told nothing tries again at once.
        let soon = matches!(rejected, Rejected::Draining | Rejected::NoWorkers)
            .then_some(Duration::from_secs(1));
        self.reply_with(&refusal, rejected.retry_after().or(soon))
    }

    fn prompt_field(&self) -> &'static str {
        match self.endpoint {
            Endpoint::Chat => "messages",
            Endpoint::Completions => "prompt",
        }
    }
}
