//! The worker: `serve --port 0 --chunks 64 --interval_ms 20 --blocks 100000 --role any`. Prints its port.
//!
//! Every POST is answered as OpenAI's chat completions are, streamed if the body says `"stream":true`; `spec` says how to ask
//! for faults. Each event of a stream carries the time it was written, in nanoseconds, as `"ts"`. One that is `prefiller`,
//! `decoder` or `both` also does its part of a handoff: refuses the other's part and parameters that no prefill issued, and
//! answers `stale` to those that are older than `--lease_ms`.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::io::{ErrorKind, Read, Result, Write};
use std::net::SocketAddr;
use std::time::Duration;

use mio::net::TcpListener;
use mio::{Events, Interest, Poll, Token};

use crate::answer::{self, Facts};
use crate::conn::{Conn, Work};
use crate::handoff::Handoff;
use crate::leg::{Asked, Leg, Role, says_true};
use crate::now_ns;
use crate::options::Options;
use crate::spec::Spec;

const DOOR: Token = Token(usize::MAX);

struct Worker {
    conns: Vec<Option<Conn>>,
    free: Vec<usize>,
    role: Role,
    port: u16,
    handoff: Handoff,
    facts: Facts,
    due: BinaryHeap<Reverse<(u64, usize, u64)>>,
    flat: VecDeque<(usize, u64)>,
    usual: Spec,
    told: Spec,
    serial: u64,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let usual = Spec::new(options.get("chunks", 64)?, options.get("interval_ms", 20)?);
    let mut listener =
        TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], options.get("port", 0)?)))?;
    let (port, started_ns) = (listener.local_addr()?.port(), now_ns());
    println!("{port}");
    let mut poll = Poll::new()?;
    poll.registry()
        .register(&mut listener, DOOR, Interest::READABLE)?;
    let mut worker = Worker {
        conns: Vec::new(),
        free: Vec::new(),
        due: BinaryHeap::new(),
        flat: VecDeque::new(),
        told: usual.clone(),
        usual,
        role: options.get("role", Role::Any)?,
        port,
        handoff: Handoff::new(
            format!("{:x}{started_ns:x}", std::process::id()),
            options.get("lease_ms", 30_000)?,
        ),
        facts: Facts {
            blocks: options.get("blocks", 100_000)?,
            max_model_len: options.get("max_model_len", 131_072)?,
            running: 0,
            served: 0,
            computed: 0,
            pulled: 0,
            refused: 0,
            stale: 0,
            started_ns,
        },
        serial: 0,
    };
    let mut events = Events::with_capacity(1024);
    let mut buffer = vec![0; 256 << 10];
    loop {
        let wait = worker.wait();
        match poll.poll(&mut events, wait) {
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            polled => polled?,
        }
        for event in &events {
            if event.token() == DOOR {
                worker.accept(&listener, &poll);
            } else {
                worker.ready(event.token().0, &mut buffer);
            }
        }
        worker.tick();
    }
}

impl Worker {
    fn wait(&self) -> Option<Duration> {
        if !self.flat.is_empty() {
            return Some(Duration::ZERO);
        }
        let Reverse((due, ..)) = self.due.peek()?;
        Some(Duration::from_nanos(due.saturating_sub(now_ns())))
    }

    fn accept(&mut self, listener: &TcpListener, poll: &Poll) {
        while let Ok((mut stream, _)) = listener.accept() {
            let token = self.free.pop().unwrap_or(self.conns.len());
            let _ = stream.set_nodelay(true);
            if poll
                .registry()
                .register(
                    &mut stream,
                    Token(token),
                    Interest::READABLE | Interest::WRITABLE,
                )
                .is_err()
            {
                continue;
            }
            self.serial += 1;
            let conn = Conn::new(stream, self.serial);
            if token == self.conns.len() {
                self.conns.push(Some(conn));
            } else {
                self.conns[token] = Some(conn);
            }
        }
    }

    /// Reads and writes all that the socket has and takes.
    fn ready(&mut self, token: usize, buffer: &mut [u8]) {
        let Some(mut conn) = self.conns.get_mut(token).and_then(Option::take) else {
            return;
        };
        let mut is_open = self.flush(token, &mut conn);
        while is_open {
            match conn.stream.read(buffer) {
                Ok(0) => is_open = false,
                Ok(size) => is_open = self.take(token, &mut conn, &buffer[..size]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => is_open = false,
            }
        }
        self.put_back(token, conn, is_open);
    }

    fn put_back(&mut self, token: usize, conn: Conn, is_open: bool) {
        if is_open {
            self.conns[token] = Some(conn);
        } else {
            self.facts.running -= usize::from(matches!(conn.work, Work::Stream(..)));
            self.free.push(token);
        }
    }

    /// Takes bytes of requests; false if the connection is to be closed.
    fn take(&mut self, token: usize, conn: &mut Conn, mut bytes: &[u8]) -> bool {
        while !bytes.is_empty() {
            if !matches!(conn.work, Work::Idle) || !conn.out.is_empty() {
                conn.held.extend_from_slice(bytes);
                return conn.held.len() < 16 << 20;
            }
            let Ok((size, is_complete)) = conn.feed(bytes) else {
                return false;
            };
            bytes = &bytes[size..];
            if is_complete {
                self.answer(token, conn);
                conn.forget_request();
                if !self.flush(token, conn) {
                    return false;
                }
            }
        }
        true
    }

    fn answer(&mut self, token: usize, conn: &mut Conn) {
        self.facts.served += 1;
        conn.sent = 0;
        let path = conn.reader.second_word();
        if conn.reader.head.starts_with(b"GET") {
            conn.out = answer::fact(path, &self.facts);
            return;
        }
        if path == "/mock" {
            let told = self.usual.with(&String::from_utf8_lossy(&conn.body));
            let status = if told.is_ok() { 200 } else { 400 };
            self.told = told.unwrap_or_else(|_| self.told.clone());
            if !self.told.hold {
                self.release();
            }
            let said = Spec {
                status,
                ..Spec::new(1, 0)
            };
            conn.out = answer::whole(&said, "text/plain", b"");
            return;
        }
        let spec = match conn.words().map(|words| self.told.with(words)) {
            None => self.told.clone(),
            Some(Ok(spec)) => spec,
            Some(Err(_)) => Spec {
                status: 400,
                ..Spec::new(1, 0)
            },
        };
        let streams = conn.wants_stream();
        let mut asked = Asked::canned(streams);
        if self.role != Role::Any && spec.status == 200 {
            // Contiguous unless the middle of the body was not kept.
            let kept = [&conn.body[..], &conn.end].concat();
            asked = Asked::read(&kept, conn.reader.body_size(), streams, self.role);
            if let Err(why) = self.judge(&kept, &mut asked) {
                self.facts.refused += 1;
                conn.out = answer::refusal(&spec, 500, why);
                return;
            }
        }
        if spec.hold {
            conn.work = Work::Late(spec, asked);
        } else if spec.latency_ms > 0 {
            self.due.push(Reverse((
                now_ns() + spec.latency_ms * 1_000_000,
                token,
                conn.serial,
            )));
            conn.work = Work::Late(spec, asked);
        } else {
            self.begin(token, conn, spec, asked);
        }
    }

    /// Those that are held are due.
    fn release(&mut self) {
        let now = now_ns();
        for (token, conn) in self.conns.iter().enumerate() {
            if let Some(conn) = conn
                && matches!(&conn.work, Work::Late(spec, _) if spec.hold)
            {
                self.due.push(Reverse((now, token, conn.serial)));
            }
        }
    }

    /// What a worker with a role makes of a request; what is wrong with it otherwise.
    fn judge(&mut self, body: &[u8], asked: &mut Asked) -> std::result::Result<(), &'static str> {
        asked.may_be_served_by(self.role)?;
        if asked.leg == Leg::Decode && says_true(body, r#""do_remote_prefill":"#) {
            asked.is_stale = self.handoff.redeem(body, now_ns())?.is_stale;
            asked.pulled_tokens = asked.prompt_tokens;
            self.facts.stale += u64::from(asked.is_stale);
        }
        self.facts.pulled += asked.pulled_tokens;
        self.facts.computed += asked.prompt_tokens - asked.pulled_tokens;
        Ok(())
    }

    fn begin(&mut self, token: usize, conn: &mut Conn, spec: Spec, asked: Asked) {
        if spec.garbage {
            conn.out.extend_from_slice(answer::GARBAGE);
        } else if asked.streams && spec.status == 200 {
            conn.out.extend_from_slice(answer::STREAM_HEAD);
            self.facts.running += 1;
            if spec.interval_ms == 0 {
                self.flat.push_back((token, conn.serial));
            } else {
                // The streams of a burst do not all speak in the same millisecond.
                let first = (conn.serial % spec.interval_ms + 1) * 1_000_000;
                self.due
                    .push(Reverse((now_ns() + first, token, conn.serial)));
            }
            let left = spec.chunks;
            conn.work = Work::Stream(spec, left, asked);
            return;
        } else if self.role == Role::Any || spec.status != 200 {
            conn.out.extend_from_slice(&answer::completion(&spec));
        } else {
            let is_prefill = asked.leg == Leg::Prefill;
            let params = (asked.leg != Leg::Decode)
                .then(|| self.handoff.issue(now_ns(), self.port, asked.prompt_tokens));
            let chunks = if is_prefill { 1 } else { spec.chunks };
            let rest = usize::try_from(chunks - 1).unwrap_or(0);
            let text = asked.first_text(&spec).to_owned() + &answer::TOKEN.repeat(rest);
            let usage = answer::usage(asked.prompt_tokens, chunks, asked.pulled_tokens);
            let answer = answer::told(&spec, &text, &usage, params.as_deref());
            conn.out.extend_from_slice(&answer);
        }
        if spec.stall_at.is_some() || spec.reset_at.is_some() || spec.close_at.is_some() {
            conn.work = Work::Stream(spec, 0, asked);
            self.facts.running += 1;
        } else {
            conn.work = Work::Idle;
        }
    }

    /// Writes what is there; false if the connection is to be closed.
    fn flush(&mut self, token: usize, conn: &mut Conn) -> bool {
        while conn.at < conn.out.len() {
            let (stall_at, reset_at, close_at) = match &conn.work {
                Work::Stream(spec, ..) => (spec.stall_at, spec.reset_at, spec.close_at),
                Work::Stalled => return true,
                _ => (None, None, None),
            };
            let limits = [stall_at, reset_at, close_at];
            let limit = limits.into_iter().flatten().min().unwrap_or(usize::MAX);
            if conn.sent >= limit {
                if stall_at == Some(limit) {
                    self.facts.running -= 1;
                    conn.work = Work::Stalled;
                    return true;
                }
                if reset_at == Some(limit) {
                    let _ = socket2::SockRef::from(&conn.stream).set_linger(Some(Duration::ZERO));
                }
                return false;
            }
            let end = conn
                .out
                .len()
                .min(conn.at.saturating_add(limit - conn.sent));
            match conn.stream.write(&conn.out[conn.at..end]) {
                Ok(size) => {
                    conn.at += size;
                    conn.sent += size;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return true,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return false,
            }
        }
        let was_blocked = conn.at > 0;
        conn.out.clear();
        conn.at = 0;
        match &conn.work {
            Work::Stream(_, 0, _) => {
                self.facts.running -= 1;
                conn.work = Work::Idle;
            }
            Work::Stream(spec, ..) if spec.interval_ms == 0 && was_blocked => {
                self.flat.push_back((token, conn.serial));
                return true;
            }
            _ => {}
        }
        if matches!(conn.work, Work::Idle) && !conn.held.is_empty() {
            let held = std::mem::take(&mut conn.held);
            return self.take(token, conn, &held);
        }
        true
    }

    /// Does what is due, and one event of each flat-out stream.
    fn tick(&mut self) {
        let now = now_ns();
        while let Some(Reverse((due, token, serial))) = self.due.peek().copied() {
            if due > now {
                break;
            }
            self.due.pop();
            self.step(token, serial, due);
        }
        for _ in 0..self.flat.len() {
            if let Some((token, serial)) = self.flat.pop_front() {
                self.step(token, serial, now);
            }
        }
    }

    fn step(&mut self, token: usize, serial: u64, due: u64) {
        let Some(mut conn) = self
            .conns
            .get_mut(token)
            .and_then(|conn| conn.take_if(|conn| conn.serial == serial))
        else {
            return;
        };
        match std::mem::replace(&mut conn.work, Work::Idle) {
            Work::Late(spec, asked) => self.begin(token, &mut conn, spec, asked),
            Work::Stream(spec, left, asked) if left > 0 => {
                let is_flat = spec.interval_ms == 0;
                // A flat-out stream whose socket is full goes on when it is not.
                if !is_flat || conn.out.is_empty() {
                    let text = if left == spec.chunks {
                        asked.first_text(&spec)
                    } else {
                        answer::TOKEN
                    };
                    answer::event(&mut conn.out, now_ns(), text);
                    if left == 1 {
                        if asked.wants_usage {
                            let usage = answer::usage(
                                asked.prompt_tokens,
                                spec.chunks,
                                asked.pulled_tokens,
                            );
                            answer::usage_event(&mut conn.out, &usage);
                        }
                        conn.out.extend_from_slice(answer::STREAM_END);
                    }
                    if !is_flat && left > 1 {
                        self.due
                            .push(Reverse((due + spec.interval_ms * 1_000_000, token, serial)));
                    }
                    conn.work = Work::Stream(spec, left - 1, asked);
                } else {
                    conn.work = Work::Stream(spec, left, asked);
                }
            }
            work => conn.work = work,
        }
        let is_open = self.flush(token, &mut conn);
        self.put_back(token, conn, is_open);
    }
}
