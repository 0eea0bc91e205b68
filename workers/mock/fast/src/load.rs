//! The load generator: `load --port P --body FILE... [--connections 16] [--seconds 2] [--warm_s 0] [--requests 0]
//! [--sessions 1000] [--rate 0] [--header x-session-id] [--path /v1/chat/completions]`. Prints one JSON object.
//!
//! Closed loop, or with `--rate` open: arrivals are planned and do not wait for answers; latency counts from the plan. With
//! several bodies each connection plays conversations: one session sends them in order, then another begins. `@@SESSION@@`
//! in a body is replaced by the session's name, which also goes into the header.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Result, Write};
use std::time::Duration;

use memchr::memmem;
use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token};

use crate::http::Reader;
use crate::now_ns;
use crate::options::{Options, bad};
use crate::stats::Samples;

const MARK: &[u8] = b"@@SESSION@@";
/// Before the digits of an event's time.
const CLOCK: &[u8] = br#""ts":"#;
const DIGITS: usize = 19;

/// A request's bytes and where the session's name goes.
struct Template {
    bytes: Vec<u8>,
    marks: Vec<usize>,
}

struct Conn {
    stream: TcpStream,
    reader: Reader,
    out: Vec<u8>,
    at: usize,
    /// When the request at hand was to start; `None` between requests.
    began: Option<u64>,
    has_event: bool,
    /// End of a piece, in which an event's time may begin.
    carry: Vec<u8>,
    session: u64,
    turn: usize,
}

#[derive(Default)]
struct Tally {
    is_recording: bool,
    latency: Samples,
    first: Samples,
    relay: Samples,
    done: u64,
    not_200: u64,
    errors: u64,
    chunks: u64,
}

struct Load {
    poll: Poll,
    port: u16,
    conns: Vec<Conn>,
    idle: VecDeque<usize>,
    templates: Vec<Template>,
    sessions: u64,
    next_session: u64,
    issued: u64,
    tally: Tally,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let header: String = options.get("header", "x-session-id".to_owned())?;
    let path: String = options.get("path", "/v1/chat/completions".to_owned())?;
    let connections: usize = options.get("connections", 16)?;
    let templates = options
        .all("body")
        .map(|file| template(file, &path, &header))
        .collect::<Result<Vec<_>>>()?;
    if templates.is_empty() {
        return Err(bad("--body FILE is needed"));
    }
    let mut load = Load {
        poll: Poll::new()?,
        port: options.get("port", 0)?,
        conns: Vec::new(),
        idle: VecDeque::new(),
        templates,
        sessions: options.get("sessions", 1000_u64)?.max(1),
        next_session: options.get("first_session", 0)?,
        issued: 0,
        tally: Tally::default(),
    };
    for _ in 0..connections {
        load.open()?;
    }
    let warm_s: f64 = options.get("warm_s", 0.0)?;
    let seconds: f64 = options.get("seconds", 2.0)?;
    load.drive(
        warm_s,
        seconds,
        options.get("rate", 0.0)?,
        options.get("requests", 0)?,
    )
}

fn template(file: &str, path: &str, header: &str) -> Result<Template> {
    let body = std::fs::read(file)?;
    let mut bytes = format!(
        "POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\nauthorization: Bearer sk-x\r\n\
         {header}: @@SESSION@@\r\ncontent-length: {}\r\n\r\n",
        body.len()
    )
    .into_bytes();
    bytes.extend_from_slice(&body);
    let marks = memmem::find_iter(&bytes, MARK).collect();
    Ok(Template { bytes, marks })
}

fn span_ns(seconds: f64) -> u64 {
    u64::try_from(Duration::from_secs_f64(seconds).as_nanos()).unwrap_or(u64::MAX)
}

impl Load {
    fn connect(&self, token: usize) -> Result<TcpStream> {
        let stream = std::net::TcpStream::connect(("127.0.0.1", self.port))?;
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        let mut stream = TcpStream::from_std(stream);
        self.poll.registry().register(
            &mut stream,
            Token(token),
            Interest::READABLE | Interest::WRITABLE,
        )?;
        Ok(stream)
    }

    fn open(&mut self) -> Result<usize> {
        let token = self.conns.len();
        let stream = self.connect(token)?;
        self.conns.push(Conn {
            stream,
            reader: Reader::new(),
            out: Vec::new(),
            at: 0,
            began: None,
            has_event: false,
            carry: Vec::new(),
            session: 0,
            turn: 0,
        });
        self.idle.push_back(token);
        Ok(token)
    }

    fn drive(&mut self, warm_s: f64, seconds: f64, rate: f64, requests: u64) -> Result<()> {
        let start = now_ns();
        let (warm, end) = (start + span_ns(warm_s), start + span_ns(warm_s + seconds));
        let (mut planned, mut recorded_from) = (start, start);
        let step = if rate > 0.0 { span_ns(1.0 / rate) } else { 0 };
        let mut events = Events::with_capacity(1024);
        let mut scratch = vec![0; 256 << 10];
        loop {
            let now = now_ns();
            if !self.tally.is_recording && now >= warm {
                self.tally.is_recording = true;
                recorded_from = now;
            }
            let is_over = if requests > 0 {
                self.issued >= requests
            } else {
                now >= end
            };
            if is_over && (self.idle.len() == self.conns.len() || requests == 0) {
                break;
            }
            let mut wait = Duration::from_millis(50);
            if !is_over && rate > 0.0 {
                while planned <= now {
                    let token = if let Some(token) = self.idle.pop_front() {
                        token
                    } else {
                        self.open()?;
                        self.idle.pop_back().unwrap_or_default()
                    };
                    self.start(token, planned);
                    planned += step;
                }
                wait = Duration::from_nanos(planned - now);
                // The poll rounds up to milliseconds: the last one is waited out here.
                wait = wait.saturating_sub(Duration::from_millis(1));
            } else if !is_over {
                while let Some(token) = self.idle.pop_front() {
                    self.start(token, now_ns());
                    if requests > 0 && self.issued >= requests {
                        break;
                    }
                }
            }
            match self.poll.poll(&mut events, Some(wait)) {
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                polled => polled?,
            }
            for event in &events {
                self.ready(event.token().0, &mut scratch)?;
            }
        }
        self.report(now_ns() - recorded_from);
        Ok(())
    }

    fn start(&mut self, token: usize, planned: u64) {
        self.issued += 1;
        let conn = &mut self.conns[token];
        if conn.turn == 0 {
            conn.session = self.next_session % self.sessions;
            self.next_session += 1;
        }
        let template = &self.templates[conn.turn];
        conn.turn = (conn.turn + 1) % self.templates.len();
        conn.out.clear();
        conn.out.extend_from_slice(&template.bytes);
        let name = format!("s{:010}", conn.session);
        for mark in &template.marks {
            conn.out[*mark..*mark + MARK.len()].copy_from_slice(name.as_bytes());
        }
        conn.at = 0;
        conn.began = Some(planned);
        conn.has_event = false;
        conn.carry.clear();
        // What is wrong with the connection shows when it is read.
        let _ = write(conn);
    }

    fn ready(&mut self, token: usize, scratch: &mut [u8]) -> Result<()> {
        let conn = &mut self.conns[token];
        let mut is_open = write(conn).is_ok();
        while is_open {
            match conn.stream.read(scratch) {
                Ok(0) => is_open = false,
                Ok(size) => match self.tally.take(conn, &scratch[..size]) {
                    Ok(false) => {}
                    Ok(true) => {
                        is_open = !conn
                            .reader
                            .header("connection")
                            .is_some_and(|value| value.eq_ignore_ascii_case("close"));
                        conn.reader.next();
                        self.idle.push_back(token);
                    }
                    Err(_) => is_open = false,
                },
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => is_open = false,
            }
        }
        if self.conns[token].began.take().is_some() {
            self.tally.errors += u64::from(self.tally.is_recording);
            self.idle.push_back(token);
        }
        let stream = self.connect(token)?;
        let conn = &mut self.conns[token];
        conn.stream = stream;
        conn.reader = Reader::new();
        conn.out.clear();
        conn.at = 0;
        Ok(())
    }

    fn report(&mut self, span: u64) {
        let tally = &mut self.tally;
        let seconds = Duration::from_nanos(span).as_secs_f64();
        let per_s = |count: u64| f64::from(u32::try_from(count).unwrap_or(u32::MAX)) / seconds;
        let (done, chunks) = (tally.done, tally.chunks);
        let samples = tally.latency.count();
        let [p50, p90, p99, p999] = tally.latency.percentiles([500, 900, 990, 999]);
        let [first_p50, first_p99] = tally.first.percentiles([500, 990]);
        let [relay_p50, relay_p99] = tally.relay.percentiles([500, 990]);
        println!(
            "{{\"seconds\":{seconds:.3},\"done\":{done},\"rps\":{:.1},\"p50\":{p50},\"p90\":{p90},\"p99\":{p99},\"p999\":{p999},\
             \"samples\":{samples},\"non200\":{},\"errs\":{},\"chunks\":{chunks},\"cps\":{:.1},\"first_p50\":{first_p50},\
             \"first_p99\":{first_p99},\"relay_p50\":{relay_p50},\"relay_p99\":{relay_p99}}}",
            per_s(done),
            tally.not_200,
            tally.errors,
            per_s(chunks),
        );
    }
}

fn write(conn: &mut Conn) -> Result<()> {
    while conn.at < conn.out.len() {
        match conn.stream.write(&conn.out[conn.at..]) {
            Ok(size) => conn.at += size,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

impl Tally {
    /// Takes bytes of an answer; whether it is complete.
    fn take(&mut self, conn: &mut Conn, bytes: &[u8]) -> Result<bool> {
        let Conn {
            reader,
            carry,
            has_event,
            began,
            ..
        } = conn;
        let now = now_ns();
        let mut seen = Vec::new();
        let (_, is_complete) = reader.feed(bytes, |piece| events(carry, piece, &mut seen))?;
        let Some(start) = *began else {
            return Ok(false);
        };
        if self.is_recording {
            for ts in &seen {
                self.relay.add_ns(now.saturating_sub(*ts));
            }
            self.chunks += seen.len() as u64;
            if !*has_event && !seen.is_empty() {
                self.first.add_ns(now.saturating_sub(start));
            }
        }
        *has_event |= !seen.is_empty();
        if is_complete {
            *began = None;
            if self.is_recording {
                self.done += 1;
                if reader.second_word() == "200" {
                    self.latency.add_ns(now.saturating_sub(start));
                } else {
                    self.not_200 += 1;
                }
            }
        }
        Ok(is_complete)
    }
}

/// Finds the times of events in `piece`, also in one that began in the piece before.
fn events(carry: &mut Vec<u8>, piece: &[u8], seen: &mut Vec<u64>) {
    let joined;
    let bytes = if carry.is_empty() {
        piece
    } else {
        carry.extend_from_slice(piece);
        joined = std::mem::take(carry);
        &joined
    };
    let mut at = 0;
    while let Some(found) = memmem::find(&bytes[at..], CLOCK) {
        let digits = at + found + CLOCK.len();
        let Some(text) = bytes.get(digits..digits + DIGITS) else {
            *carry = bytes[at + found..].to_vec();
            return;
        };
        if let Some(ts) = str::from_utf8(text).ok().and_then(|text| text.parse().ok()) {
            seen.push(ts);
        }
        at = digits + DIGITS;
    }
    let keep = bytes.len().saturating_sub(CLOCK.len() - 1).max(at);
    if bytes[keep..].contains(&b'"') {
        *carry = bytes[keep..].to_vec();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_found_however_the_stream_is_cut() {
        let wire =
            br#"data: {"ts":1800000000000000001,"a":"b"} data: {"ts":1800000000000000002,"ts""#;
        for cut in 1..wire.len() {
            let (mut carry, mut seen) = (Vec::new(), Vec::new());
            for piece in wire.chunks(cut) {
                events(&mut carry, piece, &mut seen);
            }
            assert_eq!(
                seen,
                [1_800_000_000_000_000_001, 1_800_000_000_000_000_002],
                "cut every {cut} bytes"
            );
        }
    }
}
