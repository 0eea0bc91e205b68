//! Drives one `Dispatch`: does what each action says, up to the point where the answer can be given to the client.
//!
//! Promises: the turn is settled whatever happens: a `Drive` that is dropped before its end means that the client left.
//! Leaves to others: every decision (`Dispatch`), passing a stream on (`relay`), connections (`exchange`).

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Wake, Waker};

use bytes::Bytes;
use http::{HeaderMap, Response, StatusCode};
use tokio::sync::Notify;
use tokio::task::block_in_place;
use tokio::time::sleep_until;

use super::connection::Link;
use super::exchange::{Broken, Exchange, post};
use super::headers;
use super::outgoing::{Content, draining};
use super::relay::Relay;
use super::shared::{Shared, Stage};
use super::stats::During;
use crate::dispatch::{Action, Dispatch, Endpoint, Header, Refusal, Upstream};
use crate::error::Phase;
use crate::units::Timestamp;

/// What is done with a longer body is done while another thread takes over what this one has to do: a step of the turn may
/// read or copy all of it, and the smallest members that JSON can have take it some 10 ns a byte.
const LONG_BODY_BYTES: usize = 640 << 10;

/// One request on its way.
pub(crate) struct Drive {
    pub(crate) shared: Arc<Shared>,
    /// Boxed: what moves with a request on its way into hyper and out of it is small.
    pub(crate) dispatch: Box<Dispatch>,
    route: Endpoint,
    link: Arc<Link>,
    /// For the headers of the answer: an empty map with room, that of the request.
    map: HeaderMap,
    during: During,
    /// The status that the client was sent; 0 before.
    status: u16,
    is_over: bool,
}

/// What a step of the request leads to.
enum Next {
    Act(Action),
    Relay(Begun),
}

/// A stream whose head may go to the client.
struct Begun {
    status: u16,
    headers: Vec<Header>,
    first: Bytes,
    upstream: Upstream,
    exchange: Exchange,
}

impl Drive {
    pub(crate) fn new(
        shared: Arc<Shared>,
        dispatch: Box<Dispatch>,
        route: Endpoint,
        link: Arc<Link>,
        map: HeaderMap,
    ) -> Self {
        shared.stats.entered();
        Self {
            shared,
            dispatch,
            route,
            link,
            map,
            during: During::Start,
            status: 0,
            is_over: false,
        }
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.shared.clock.now()
    }

    /// Serves the request: the answer, whose body goes on driving it where it is a stream.
    pub(crate) async fn run(mut self) -> Response<Content> {
        let ending = self.shared.reached(Stage::Ending);
        let reached = tokio::select! {
            biased;
            next = self.steps() => next,
            () = ending => {
                let now = self.now();
                self.dispatch.client_gone(now);
                let refused = draining();
                let headers = vec![
                    (Bytes::from_static(b"content-type"), Bytes::from_static(b"application/json")),
                    (Bytes::from_static(b"retry-after"), Bytes::from_static(b"1")),
                ];
                Next::Act(Action::Reply { status: refused.status, headers, body: refused.body() })
            }
        };
        match reached {
            Next::Relay(begun) => self.relay(begun),
            Next::Act(Action::Reply {
                status,
                headers,
                body,
            }) => self.reply(status, headers, body),
            Next::Act(action) => {
                let name = format!("{action:?}");
                self.shared.log.warn(format!(
                    "{}: the door failed: an action out of place: {name}",
                    self.route.path()
                ));
                let now = self.now();
                self.dispatch.client_gone(now);
                let refused = Refusal {
                    status: 500,
                    code: "internal_error",
                    param: None,
                    message: "the router failed; see its log".to_owned(),
                };
                let json = (
                    Bytes::from_static(b"content-type"),
                    Bytes::from_static(b"application/json"),
                );
                self.reply(500, vec![json], refused.body())
            }
        }
    }

    async fn steps(&mut self) -> Next {
        let now = self.now();
        let mut action = self.step(|dispatch| dispatch.start(now));
        loop {
            action = match action {
                Action::Call(upstream) => self.call(&upstream).await,
                Action::Stream(upstream) => match self.stream(upstream).await {
                    Next::Act(action) => action,
                    begun @ Next::Relay(_) => return begun,
                },
                // Boxed, as most turns do not wait.
                Action::Wait { deadline } => Box::pin(self.wait(deadline)).await,
                action => return Next::Act(action),
            };
        }
    }

    /// A step that may look at the whole body.
    fn step(&mut self, step: impl FnOnce(&mut Dispatch) -> Action) -> Action {
        if self.dispatch.body_bytes() > LONG_BODY_BYTES {
            block_in_place(|| step(&mut self.dispatch))
        } else {
            step(&mut self.dispatch)
        }
    }

    /// Waits for a place in line, or for the end of the wait.
    async fn wait(&mut self, deadline: Timestamp) -> Action {
        self.during = During::Waiting;
        let granted = Arc::new(Granted(Notify::new()));
        self.dispatch.set_waker(Waker::from(Arc::clone(&granted)));
        tokio::select! {
            () = granted.0.notified() => {}
            () = sleep_until(self.shared.clock.instant(deadline)) => {}
        }
        let now = self.now();
        self.step(|dispatch| dispatch.admitted(now))
    }

    /// One exchange whose answer is held whole.
    async fn call(&mut self, upstream: &Upstream) -> Action {
        self.enter(upstream.phase);
        let (status, headers, exchange) = match post(&self.shared, upstream).await {
            Ok(answered) => answered,
            Err(broken) => return self.failed(&broken, upstream),
        };
        let limit = upstream.max_answer_bytes;
        self.collect(status, &headers, exchange, limit, upstream)
            .await
    }

    /// The rest of an answer, at most `limit` bytes, held whole.
    async fn collect(
        &mut self,
        status: u16,
        headers: &[Header],
        exchange: Exchange,
        limit: usize,
        upstream: &Upstream,
    ) -> Action {
        match exchange.read_whole(limit, upstream).await {
            Ok(body) => {
                let now = self.now();
                self.step(|dispatch| dispatch.answered(status, headers, &body, now))
            }
            Err(broken) => self.failed(&broken, upstream),
        }
    }

    /// One exchange whose answer is passed on as it comes.
    async fn stream(&mut self, upstream: Upstream) -> Next {
        self.enter(upstream.phase);
        let (status, headers, mut exchange) = match post(&self.shared, &upstream).await {
            Ok(answered) => answered,
            Err(broken) => return Next::Act(self.failed(&broken, &upstream)),
        };
        exchange.rest();
        let mut action = self.dispatch.head(status, &headers, self.now());
        let mut has_begun = false;
        while action == Action::Listen {
            action = self.listen(&upstream, &mut exchange, has_begun).await;
            has_begun = true;
        }
        match action {
            Action::Relay {
                status,
                headers,
                first,
            } => Next::Relay(Begun {
                status,
                headers,
                first,
                upstream,
                exchange,
            }),
            Action::Collect { limit } => Next::Act(
                self.collect(status, &headers, exchange, limit, &upstream)
                    .await,
            ),
            action => Next::Act(action),
        }
    }

    /// One piece of a stream whose client was told nothing yet.
    async fn listen(
        &mut self,
        upstream: &Upstream,
        exchange: &mut Exchange,
        has_begun: bool,
    ) -> Action {
        let patience = upstream.patience(has_begun);
        let piece = poll_fn(|context| exchange.poll_piece(patience, context));
        match piece.await {
            Ok(piece) => {
                let piece = piece.unwrap_or_default();
                self.shared.stats.relayed(piece.len());
                self.dispatch.heard(&piece, self.now())
            }
            Err(broken) => self.failed(&broken, upstream),
        }
    }

    /// Counts and tells what went wrong at a worker; what to do now.
    pub(crate) fn failed(&mut self, broken: &Broken, upstream: &Upstream) -> Action {
        self.note(broken, upstream);
        let now = self.now();
        self.step(|dispatch| dispatch.failed(broken.failure, now))
    }

    fn note(&self, broken: &Broken, upstream: &Upstream) {
        let kind = self.shared.stats.failed(broken.failure);
        self.shared.log.warn(format!(
            "{}: {} failed at {}: {kind} {}",
            self.route.path(),
            upstream.phase.as_str(),
            upstream.name,
            broken.detail
        ));
    }

    fn enter(&mut self, phase: Phase) {
        self.during = match phase {
            Phase::Prefill => During::Prefill,
            Phase::Decode => During::Decode,
        };
    }

    fn relay(mut self, begun: Begun) -> Response<Content> {
        let Begun {
            status,
            headers,
            first,
            upstream,
            exchange,
        } = begun;
        self.status = status;
        self.shared.log.answered(
            self.route.path(),
            status,
            &headers,
            None,
            self.dispatch.reason(),
        );
        let map = std::mem::take(&mut self.map);
        let relay = Relay::new(self, upstream, exchange, first);
        head(status, headers, map, Content::Relay(Box::new(relay)))
    }

    fn reply(mut self, status: u16, headers: Vec<Header>, body: Bytes) -> Response<Content> {
        self.shared.log.answered(
            self.route.path(),
            status,
            &headers,
            Some(&body),
            self.dispatch.reason(),
        );
        self.status = status;
        self.is_over = true;
        let map = std::mem::take(&mut self.map);
        head(status, headers, map, Content::whole(body))
    }

    /// All of the answer was given to the client's connection.
    pub(crate) fn finish(&mut self) {
        self.is_over = true;
    }
}

fn head(status: u16, headers: Vec<Header>, map: HeaderMap, body: Content) -> Response<Content> {
    let mut response = Response::new(body);
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::BAD_GATEWAY);
    *response.headers_mut() = headers::to_map(headers, map);
    response
}

impl Drop for Drive {
    fn drop(&mut self) {
        let shared = &self.shared;
        if !self.is_over {
            let path = self.route.path();
            let during = self.during.as_str();
            self.dispatch.client_gone(shared.clock.now());
            self.status = 499;
            shared.stats.client_gone(self.during);
            if self.link.is_stalled() {
                shared.log.warn(format!(
                    "{path}: the client took nothing for too long while {during}; let go"
                ));
            } else {
                shared
                    .log
                    .info(|| format!("{path}: the client left while {during}"));
            }
        }
        shared.stats.answered(self.route, self.status);
        if shared.stats.left() {
            shared.idle.notify_one();
        }
    }
}

/// Wakes whoever waits in line.
struct Granted(Notify);

impl Wake for Granted {
    fn wake(self: Arc<Self>) {
        self.0.notify_one();
    }
}
