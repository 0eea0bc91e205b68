//! A door and its network: obeys each `Action` as the real drivers do, over connections that fail in every way.

use std::sync::{Arc, Mutex};
use std::task::{Wake, Waker};

use bytes::Bytes;
use conserve::dispatch::{Action, Dispatch, Failure, Header, TimeoutKind, Upstream};
use conserve::error::Phase;

use super::draw::Draw;
use super::host::{self, Asked, Kv, State};
use super::plan::{CallFault, FOR_CALL, MS, SECOND};
use super::world::{Due, World};

/// What happens on the way of one call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Net {
    /// The door writes the request.
    Send,
    /// The worker gets it.
    Arrive,
    /// It has computed.
    Done,
    /// It sends the next piece.
    Emit(usize),
    /// A piece reaches the door.
    Piece(usize),
    Fail(Failure),
    /// Too slow, if nothing came since this many arrivals.
    Timer(TimeoutKind, u64),
}

impl Net {
    pub fn is_ours(&self) -> bool {
        matches!(
            self,
            Self::Send | Self::Piece(_) | Self::Fail(_) | Self::Timer(..)
        )
    }
}

/// One client request.
pub struct Request {
    pub dispatch: Dispatch,
    pub talk: usize,
    pub turn: usize,
    pub attempt: u64,
    pub branch: u64,
    pub messages: Arc<str>,
    pub streamed: bool,
    calls: u64,
    call: Option<Call>,
    waiting: bool,
    /// What the client has of a stream that has begun.
    pub relayed: Option<Vec<u8>>,
    over: bool,
}

/// One call to a worker.
struct Call {
    number: u64,
    upstream: Upstream,
    streams: bool,
    reading: Reading,
    fault: Option<CallFault>,
    draw: Draw,
    host: usize,
    life: u32,
    /// The other end is gone: nothing comes any more.
    broken: bool,
    asked: Option<Asked>,
    kv: Kv,
    status: u16,
    is_stream: bool,
    pieces: Vec<Bytes>,
    /// What happens after the last piece.
    last: Last,
    arrivals: u64,
    /// Pieces arrive in order.
    latest: u64,
    body: Vec<u8>,
}

/// What the door does with what comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reading {
    /// It waits for the head, or passes a stream on.
    Head,
    /// It holds a stream back until the first token.
    Unheard,
    /// It reads to the end.
    Whole,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Last {
    End,
    Reset,
    Silence,
}

/// Requests whose ticket says that it is ready.
pub type Woken = Arc<Mutex<Vec<usize>>>;

struct Bell {
    request: usize,
    woken: Woken,
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.woken
            .lock()
            .expect("no panic inside")
            .push(self.request);
    }
}

impl Request {
    pub fn new(
        dispatch: Dispatch,
        place: (usize, usize, u64, u64),
        messages: Arc<str>,
        streamed: bool,
    ) -> Self {
        let (talk, turn, attempt, branch) = place;
        Self {
            dispatch,
            talk,
            turn,
            attempt,
            branch,
            messages,
            streamed,
            calls: 0,
            call: None,
            waiting: false,
            relayed: None,
            over: false,
        }
    }

    pub fn is_over(&self) -> bool {
        self.over
    }

    pub fn describe(&self) -> String {
        let call = self.call.as_ref().map(|call| {
            format!(
                "{:?} {} {:?}",
                call.upstream.phase, call.upstream.name, call.fault
            )
        });
        format!(
            "talk {} turn {} try {} branch {}, waiting {}, call {call:?}",
            self.talk, self.turn, self.attempt, self.branch, self.waiting
        )
    }
}

impl World {
    /// Does what the dispatcher asks for.
    pub fn obey(&mut self, index: usize, action: Action) -> Result<(), String> {
        self.requests[index].waiting = false;
        match action {
            Action::Wait { deadline } => {
                self.note(|| format!("request {index} waits in line"));
                self.requests[index].waiting = true;
                let bell = Bell {
                    request: index,
                    woken: Arc::clone(&self.woken),
                };
                self.requests[index]
                    .dispatch
                    .set_waker(Waker::from(Arc::new(bell)));
                let left = deadline.0.saturating_sub(self.now().0);
                self.plan_in(left, Due::Deadline { request: index });
                Ok(())
            }
            Action::Call(upstream) => self.call(index, upstream, false),
            Action::Stream(upstream) => self.call(index, upstream, true),
            Action::Listen => {
                self.requests[index]
                    .call
                    .as_mut()
                    .expect("a stream is being read")
                    .reading = Reading::Unheard;
                Ok(())
            }
            Action::Relay { status, first, .. } => {
                self.note(|| format!("request {index}: the client gets a head, {status}"));
                self.requests[index].relayed = Some(first.to_vec());
                Ok(())
            }
            Action::Collect { .. } => {
                self.requests[index]
                    .call
                    .as_mut()
                    .expect("an answer is being read")
                    .reading = Reading::Whole;
                Ok(())
            }
            Action::Reply {
                status,
                headers,
                body,
            } => self.over(index, Some((status, headers, body))),
            Action::Finish(bytes) => {
                self.requests[index]
                    .relayed
                    .as_mut()
                    .expect("after a relay")
                    .extend_from_slice(&bytes);
                self.over(index, None)
            }
        }
    }

    fn over(
        &mut self,
        index: usize,
        reply: Option<(u16, Vec<Header>, Bytes)>,
    ) -> Result<(), String> {
        let request = &mut self.requests[index];
        request.over = true;
        request.call = None;
        if !request.dispatch.is_over() {
            return Err(format!(
                "request {index} has its answer, but its dispatch is not over"
            ));
        }
        self.answered(index, reply)
    }

    /// Rings that a ticket is ready are answered at once.
    pub fn wake(&mut self) -> Result<(), String> {
        loop {
            let Some(index) = self.woken.lock().expect("no panic inside").pop() else {
                return Ok(());
            };
            if self.requests[index].waiting {
                self.admitted(index)?;
            }
        }
    }

    pub fn deadline(&mut self, index: usize) -> Result<(), String> {
        if !self.requests[index].waiting {
            return Ok(());
        }
        let was = self.now();
        self.admitted(index)?;
        if self.requests[index].waiting
            && self.requests[index]
                .dispatch
                .ticket()
                .is_some_and(|ticket| ticket.deadline() <= was)
        {
            return Err(format!(
                "request {index} waits on though its deadline has passed"
            ));
        }
        Ok(())
    }

    fn admitted(&mut self, index: usize) -> Result<(), String> {
        let now = self.now();
        let action = self.requests[index].dispatch.admitted(now);
        self.obey(index, action)
    }

    fn call(&mut self, index: usize, upstream: Upstream, streams: bool) -> Result<(), String> {
        let request = &mut self.requests[index];
        request.calls += 1;
        let key = [
            request.talk as u64,
            request.turn as u64,
            request.attempt,
            request.branch,
            request.calls,
        ];
        let host = self
            .hosts
            .iter()
            .position(|host| upstream.url.starts_with(&host.url()))
            .ok_or_else(|| format!("{} is no worker", upstream.url))?;
        let number = request.calls;
        let fault = self.plan.fault(&key, &self.without);
        let text = format!(
            "request {index} calls {} for its {:?}{}",
            upstream.name,
            upstream.phase,
            fault.map_or_else(String::new, |fault| format!(", fault {fault:?}"))
        );
        let mut draw = Draw::of(self.plan.seed, &[&[FOR_CALL, 1], &key[..]].concat());
        let soon = draw.within(1_000, 100_000);
        self.requests[index].call = Some(Call {
            number,
            upstream,
            streams,
            reading: Reading::Head,
            fault,
            draw,
            host,
            life: 0,
            broken: false,
            asked: None,
            kv: Kv::Right,
            status: 200,
            is_stream: false,
            pieces: Vec::new(),
            last: Last::End,
            arrivals: 0,
            latest: 0,
            body: Vec::new(),
        });
        if fault.is_some() {
            self.judge.faulted(key);
        }
        self.note(|| text);
        self.plan_in(
            soon,
            Due::Net {
                request: index,
                call: number,
                what: Net::Send,
            },
        );
        Ok(())
    }

    pub fn net(&mut self, index: usize, number: u64, what: Net) -> Result<(), String> {
        let at = self.at;
        let Some(mut call) = self.requests[index]
            .call
            .take_if(|call| call.number == number)
        else {
            return Ok(());
        };
        let host = &self.hosts[call.host];
        let on_host = matches!(what, Net::Done | Net::Emit(_));
        if on_host && (call.broken || host.life != call.life || host.state != State::Up) {
            self.requests[index].call = Some(call);
            return Ok(());
        }
        if (on_host || what == Net::Arrive) && at < host.stalled_until {
            let until = host.stalled_until;
            self.requests[index].call = Some(call);
            self.plan_at(
                until,
                Due::Net {
                    request: index,
                    call: number,
                    what,
                },
            );
            return Ok(());
        }
        match what {
            Net::Send => self.send(index, &mut call),
            Net::Arrive => self.arrive(index, &mut call),
            Net::Done => self.done(index, &mut call),
            Net::Emit(piece) => self.emit(index, &mut call, piece),
            Net::Piece(piece) => return self.piece(index, call, piece),
            Net::Fail(failure) => return self.fail(index, call, failure),
            Net::Timer(kind, arrivals) => {
                if call.arrivals == arrivals {
                    return self.fail(index, call, Failure::Timeout(kind));
                }
            }
        }
        self.requests[index].call = Some(call);
        Ok(())
    }

    fn fail(&mut self, index: usize, call: Call, failure: Failure) -> Result<(), String> {
        self.note(|| format!("request {index}: {} fails: {failure:?}", call.upstream.name));
        drop(call);
        let now = self.now();
        let action = self.requests[index].dispatch.failed(failure, now);
        self.obey(index, action)
    }

    fn plan_net(&mut self, index: usize, call: &mut Call, span: u64, what: Net) {
        call.latest = call.latest.max(self.at + span);
        self.plan_at(
            call.latest,
            Due::Net {
                request: index,
                call: call.number,
                what,
            },
        );
    }

    fn timer(&mut self, index: usize, call: &Call, kind: TimeoutKind) {
        let limit = match kind {
            TimeoutKind::Connect => call.upstream.connect_timeout,
            TimeoutKind::FirstByte => call.upstream.first_byte_timeout,
            TimeoutKind::Idle => call.upstream.idle_timeout,
        };
        let what = Net::Timer(kind, call.arrivals);
        self.plan_in(
            limit.as_nanos() as u64,
            Due::Net {
                request: index,
                call: call.number,
                what,
            },
        );
    }

    fn send(&mut self, index: usize, call: &mut Call) {
        let state = self.hosts[call.host].state;
        call.life = self.hosts[call.host].life;
        let delay = call.draw.span(50_000, 40 * MS);
        match (state, call.fault) {
            (_, Some(CallFault::Unreachable)) => {
                self.plan_net(index, call, delay, Net::Fail(Failure::Unreachable));
            }
            (State::Gone, _) | (_, Some(CallFault::NoConnect)) => {
                self.timer(index, call, TimeoutKind::Connect);
            }
            (State::Dead, _) => self.plan_net(index, call, delay, Net::Fail(Failure::Connect)),
            (State::Up, fault) => {
                self.timer(index, call, TimeoutKind::FirstByte);
                if fault != Some(CallFault::Lost) {
                    self.plan_net(index, call, delay, Net::Arrive);
                }
            }
        }
    }

    fn arrive(&mut self, index: usize, call: &mut Call) {
        let host = &self.hosts[call.host];
        if call.broken {
            return;
        }
        if host.state == State::Dead
            || (host.state == State::Up && host.life != call.life)
            || call.fault == Some(CallFault::ResetAtOnce)
        {
            self.plan_net(index, call, MS, Net::Fail(Failure::Reset));
            return;
        }
        let body = std::str::from_utf8(&call.upstream.body).expect("a body is text");
        call.asked = Some(host::read(body));
        let longest = if call.upstream.phase == Phase::Prefill {
            8 * SECOND
        } else {
            2 * SECOND
        };
        let mut takes = call.draw.span(5 * MS, longest);
        if let Some(CallFault::Late(by)) = call.fault {
            // It stands in the worker's queue first. A whole answer cannot show how long: see README.md, "What is assumed".
            let asked = call.asked.as_ref().expect("just read");
            takes += if asked.pulls_unseen() {
                by.min(4 * SECOND)
            } else {
                by
            };
        }
        self.plan_net(index, call, takes, Net::Done);
    }

    fn done(&mut self, index: usize, call: &mut Call) {
        let asked = call.asked.take().expect("it arrived");
        let text = self.answer(call, &asked);
        let mut rest = Bytes::from(text);
        match call.fault {
            Some(CallFault::ResetAt(share)) => {
                rest.truncate(rest.len() * usize::from(share) / 256);
                call.last = Last::Reset;
            }
            Some(CallFault::SilentAt(share)) => {
                rest.truncate(rest.len() * usize::from(share) / 256);
                call.last = Last::Silence;
            }
            _ => {}
        }
        while !rest.is_empty() {
            let cut = call.draw.within(1, 200).min(rest.len() as u64) as usize;
            call.pieces
                .push(rest.split_to(if call.streams { cut } else { rest.len() }));
        }
        self.note(|| {
            format!(
                "request {index}: {} answers {}, KV {:?}",
                call.upstream.name, call.status, call.kv
            )
        });
        self.emit(index, call, 0);
    }

    /// Status, kind and bytes of the answer.
    fn answer(&mut self, call: &mut Call, asked: &Asked) -> String {
        if let Some(CallFault::Says(status)) = call.fault {
            call.status = status;
            return r#"{"error":{"message":"no","type":"x","param":null,"code":"said_by_worker"}}"#
                .to_owned();
        }
        if call.fault == Some(CallFault::Garbage) {
            return "<html>not what you wanted</html>".to_owned();
        }
        if call.upstream.phase == Phase::Prefill {
            return self.hosts[call.host].prefill(asked, self.at);
        }
        call.kv = host::pull(&mut self.hosts, asked, self.at);
        if call.kv == Kv::Missing {
            call.is_stream = asked.stream && call.draw.chance(50);
            if !call.is_stream {
                call.status = 500;
            }
            return host::load_failure(call.is_stream);
        }
        call.is_stream = asked.stream;
        let right = host::text_for(asked.prompt);
        host::answer(
            asked,
            if call.kv == Kv::Right {
                &right
            } else {
                host::WRONG
            },
        )
    }

    fn emit(&mut self, index: usize, call: &mut Call, piece: usize) {
        let delay = call.draw.span(50_000, 20 * MS);
        self.plan_net(index, call, delay, Net::Piece(piece));
        if piece < call.pieces.len() {
            let pause = call.draw.span(100_000, 300 * MS);
            let next = Due::Net {
                request: index,
                call: call.number,
                what: Net::Emit(piece + 1),
            };
            self.plan_in(pause, next);
        }
    }

    /// Piece 0 carries the head too; the one behind the last is the end.
    fn piece(&mut self, index: usize, mut call: Call, piece: usize) -> Result<(), String> {
        call.arrivals += 1;
        let ends = piece == call.pieces.len();
        if ends && call.last == Last::Reset {
            return self.fail(index, call, Failure::Reset);
        }
        let now = self.now();
        if piece == 0 && call.streams {
            let action = self.requests[index]
                .dispatch
                .head(call.status, &call.headers(), now);
            self.timer(index, &call, TimeoutKind::Idle);
            self.requests[index].call = Some(call);
            self.obey(index, action)?;
            let Some(head_read) = self.requests[index].call.take() else {
                return Ok(());
            };
            call = head_read;
        } else {
            self.timer(index, &call, TimeoutKind::Idle);
        }
        let Some(bytes) = call.pieces.get(piece).cloned() else {
            if call.last == Last::Silence {
                self.requests[index].call = Some(call);
                return Ok(());
            }
            return self.end(index, call);
        };
        let request = &mut self.requests[index];
        if let Some(relayed) = &mut request.relayed {
            relayed.extend_from_slice(&request.dispatch.chunk(&bytes, now));
        } else if call.reading == Reading::Unheard {
            let action = request.dispatch.heard(&bytes, now);
            request.call = Some(call);
            return self.obey(index, action);
        } else {
            call.body.extend_from_slice(&bytes);
        }
        request.call = Some(call);
        Ok(())
    }

    fn end(&mut self, index: usize, call: Call) -> Result<(), String> {
        let now = self.now();
        let request = &mut self.requests[index];
        if let Some(relayed) = &mut request.relayed {
            let rest = request.dispatch.end(now);
            relayed.extend_from_slice(&rest);
            return self.over(index, None);
        }
        if call.reading == Reading::Unheard {
            let action = request.dispatch.heard(&Bytes::new(), now);
            return self.obey(index, action);
        }
        if call.streams && call.reading == Reading::Head {
            return Err(format!("request {index}: neither relayed nor collected"));
        }
        let headers = call.headers();
        let action = request
            .dispatch
            .answered(call.status, &headers, &Bytes::from(call.body), now);
        self.obey(index, action)
    }

    /// A worker's death ends its connections, or leaves them half-open.
    pub fn connections_break(&mut self, host: usize, vanish: bool) {
        for index in 0..self.requests.len() {
            let Some(mut call) = self.requests[index]
                .call
                .take_if(|call| call.host == host && !call.broken)
            else {
                continue;
            };
            if call.life == self.hosts[host].life && call.latest > 0 {
                call.broken = true;
                if !vanish {
                    self.plan_net(index, &mut call, MS, Net::Fail(Failure::Reset));
                }
            }
            self.requests[index].call = Some(call);
        }
    }

    pub fn leave(&mut self, index: usize) -> Result<(), String> {
        if self.requests[index].over {
            return Ok(());
        }
        self.note(|| format!("request {index}: the client leaves"));
        let now = self.now();
        let request = &mut self.requests[index];
        request.dispatch.client_gone(now);
        request.over = true;
        request.call = None;
        request.waiting = false;
        if !request.dispatch.is_over() {
            return Err(format!(
                "request {index}: its client left, but its dispatch is not over"
            ));
        }
        self.left(index);
        Ok(())
    }
}

impl Call {
    fn headers(&self) -> Vec<Header> {
        let kind: &[u8] = if self.is_stream {
            b"text/event-stream; charset=utf-8"
        } else {
            b"application/json"
        };
        let mut headers = vec![(
            Bytes::from_static(b"content-type"),
            Bytes::copy_from_slice(kind),
        )];
        if matches!(self.status, 429 | 503) {
            headers.push((Bytes::from_static(b"retry-after"), Bytes::from_static(b"3")));
        }
        headers
    }
}
