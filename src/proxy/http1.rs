//! HTTP/1.1 as it is spoken to workers: writes the head of a request, reads the head of an answer.
//!
//! Promises: a header makes one line of a request, or none; an answer whose length could be read in two ways is the last
//! one of its connection, or none at all.
//! Leaves to others: bodies (`framing`), sockets (`conn`), what the headers mean (`Dispatch`).

use std::mem::MaybeUninit;

use bytes::{Bytes, BytesMut};
use httparse::{ParserConfig, Response, Status};
use memchr::memchr_iter;

use super::framing::{Chunked, Framing};
use crate::dispatch::Header;

/// The largest head of an answer, in bytes.
const HEAD_LIMIT_BYTES: usize = 64 << 10;
const MAX_HEADERS: usize = 100;

/// What is not HTTP, and why.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Malformed(pub(crate) &'static str);

/// Writes the head of a POST of so many bytes. What HTTP forbids in a header leaves that header out.
pub(crate) fn write_head(
    out: &mut Vec<u8>,
    authority: &str,
    path: &str,
    headers: &[Header],
    bytes: usize,
) -> Result<(), Malformed> {
    if !is_word(authority) || !is_word(path) {
        return Err(Malformed("the URL holds what no URL may"));
    }
    for part in ["POST ", path, " HTTP/1.1\r\nhost: ", authority, "\r\n"] {
        out.extend_from_slice(part.as_bytes());
    }
    let all: usize = headers
        .iter()
        .map(|(name, value)| name.len() + value.len() + 4)
        .sum();
    out.reserve(all + 32);
    for (name, value) in headers {
        if name.is_empty() || !is_line(name) || !is_line(value) {
            continue;
        }
        out.extend_from_slice(name);
        out.extend_from_slice(b": ");
        out.extend_from_slice(value);
        out.extend_from_slice(b"\r\n");
    }
    out.extend_from_slice(b"content-length: ");
    write_number(out, bytes);
    out.extend_from_slice(b"\r\n\r\n");
    Ok(())
}

fn is_word(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic())
}

/// Whether these bytes stay on their line.
fn is_line(text: &[u8]) -> bool {
    // Without a way out at the first one: so many bytes are looked at together.
    let leaves = |byte: u8| (byte < b' ' && byte != b'\t') || byte == 0x7f;
    !text.iter().fold(false, |found, &byte| found | leaves(byte))
}

fn write_number(out: &mut Vec<u8>, number: usize) {
    let mut digits = [0; 20];
    let (mut at, mut left) = (digits.len(), number);
    loop {
        at -= 1;
        digits[at] = b'0' + u8::try_from(left % 10).expect("a digit");
        left /= 10;
        if left == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[at..]);
}

/// The head of an answer.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) status: u16,
    /// Names in lower case.
    pub(crate) headers: Vec<Header>,
    pub(crate) framing: Framing,
    /// The worker takes another request on this connection.
    pub(crate) keeps_alive: bool,
}

/// Reads heads from what a worker sends.
#[derive(Debug, Default)]
pub(crate) struct HeadReader {
    /// So many bytes hold no end of a head.
    looked_at: usize,
}

impl HeadReader {
    /// Takes the head of the answer from what was read, and what the worker says before that; `None` before all is here.
    pub(crate) fn take(&mut self, read: &mut BytesMut) -> Result<Option<Head>, Malformed> {
        loop {
            let Some(end) = self.end(read) else {
                self.looked_at = read.len();
                return match read.len() {
                    0..HEAD_LIMIT_BYTES => Ok(None),
                    _ => Err(Malformed("the head is too long")),
                };
            };
            if end > HEAD_LIMIT_BYTES {
                return Err(Malformed("the head is too long"));
            }
            self.looked_at = 0;
            let head = read.split_to(end).freeze();
            if let Some(head) = parse(&head)? {
                return Ok(Some(head));
            }
        }
    }

    /// Where the empty line behind the first head ends.
    fn end(&self, read: &[u8]) -> Option<usize> {
        let from = self.looked_at.saturating_sub(2);
        memchr_iter(b'\n', &read[from..]).find_map(|at| {
            let next = from + at + 1;
            match read[next..] {
                [b'\n', ..] => Some(next + 1),
                [b'\r', b'\n', ..] => Some(next + 2),
                _ => None,
            }
        })
    }
}

/// The head that these bytes are; `None`: the answer is yet to come.
fn parse(head: &Bytes) -> Result<Option<Head>, Malformed> {
    let mut slots = [const { MaybeUninit::uninit() }; MAX_HEADERS];
    let mut response = Response::new(&mut []);
    let parsed =
        ParserConfig::default().parse_response_with_uninit_headers(&mut response, head, &mut slots);
    let (Ok(Status::Complete(_)), Some(status), Some(version)) =
        (parsed, response.code, response.version)
    else {
        return Err(Malformed("the head is not one of HTTP"));
    };
    match status {
        ..100 => return Err(Malformed("the status is none of HTTP")),
        100 | 102..=199 => return Ok(None),
        _ => {}
    }
    let mut about = About::default();
    let mut headers = Vec::with_capacity(response.headers.len() + 8);
    for header in &*response.headers {
        let name = lower(head, header.name);
        about.hear(&name, header.value);
        headers.push((name, head.slice_ref(header.value)));
    }
    let is_first_version = version == 0;
    Ok(Some(Head {
        status,
        headers,
        framing: about.framing(status, is_first_version)?,
        keeps_alive: about.keeps_alive(status, is_first_version),
    }))
}

fn lower(head: &Bytes, name: &str) -> Bytes {
    if name.bytes().any(|byte| byte.is_ascii_uppercase()) {
        return name.to_ascii_lowercase().into();
    }
    head.slice_ref(name.as_bytes())
}

/// What an answer's headers say about its body and its connection.
#[derive(Default)]
struct About {
    length: Option<u64>,
    /// There are lengths, and they are none, or differ.
    is_unclear: bool,
    /// There are transfer encodings; whether the last one is `chunked`.
    chunked: Option<bool>,
    closes: bool,
    stays: bool,
}

impl About {
    fn hear(&mut self, name: &[u8], value: &[u8]) {
        match name {
            b"content-length" => {
                // Repeated, in one line or in several, it must say the same.
                for one in value.split(|&byte| byte == b',') {
                    let length = number(one.trim_ascii());
                    self.is_unclear |=
                        length.is_none() || self.length.is_some_and(|told| Some(told) != length);
                    self.length = self.length.or(length);
                }
            }
            b"transfer-encoding" => {
                let last = value.rsplit(|&byte| byte == b',').next();
                let last = last.unwrap_or_default().trim_ascii();
                self.chunked = Some(last.eq_ignore_ascii_case(b"chunked"));
            }
            b"connection" => {
                for word in value.split(|&byte| byte == b',').map(<[u8]>::trim_ascii) {
                    self.closes |= word.eq_ignore_ascii_case(b"close");
                    self.stays |= word.eq_ignore_ascii_case(b"keep-alive");
                }
            }
            _ => {}
        }
    }

    fn framing(&self, status: u16, is_first_version: bool) -> Result<Framing, Malformed> {
        Ok(match (self.chunked, self.length) {
            _ if matches!(status, 101 | 204 | 304) => Framing::Length(0),
            (Some(_), _) if is_first_version => {
                return Err(Malformed("HTTP/1.0 has no transfer encoding"));
            }
            (Some(true), _) => Framing::Chunked(Chunked::Size),
            (None, _) if self.is_unclear => return Err(Malformed("the length is none")),
            (None, Some(length)) => Framing::Length(length),
            (Some(false), _) | (None, None) => Framing::UntilClose,
        })
    }

    fn keeps_alive(&self, status: u16, is_first_version: bool) -> bool {
        let is_willing = !self.closes && (self.stays || !is_first_version);
        // With both, somebody on the way may have gone by the other one.
        let is_clear = self.chunked.is_none() || self.length.is_none();
        is_willing && is_clear && status != 101
    }
}

/// Digits alone are a number.
fn number(text: &[u8]) -> Option<u64> {
    if !text.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(text).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(wire: &str) -> Result<Option<Head>, Malformed> {
        HeadReader::default().take(&mut BytesMut::from(wire))
    }

    fn framed(headers: &str) -> Result<(Framing, bool), Malformed> {
        let head = read(&format!("HTTP/1.1 200 OK\r\n{headers}\r\n"))?.expect("all is here");
        Ok((head.framing, head.keeps_alive))
    }

    const CHUNKED: Framing = Framing::Chunked(Chunked::Size);

    #[test]
    fn a_request_says_what_it_was_given_and_nothing_else() {
        let headers: Vec<Header> = [
            ("x-a", "1"),
            ("x-b", "\u{e9}\t"),
            ("x-c", "1\r\nx-d: 2"),
            ("x-e: 3\r\nx-f", "4"),
            ("x-g", "\0"),
            ("", "5"),
            ("x-a", "6"),
        ]
        .map(|(name, value)| (name.into(), value.into()))
        .into();
        let mut out = Vec::new();
        write_head(&mut out, "d0:8000", "/v1/x", &headers, 1_050).unwrap();
        let expected = "POST /v1/x HTTP/1.1\r\nhost: d0:8000\r\nx-a: 1\r\nx-b: \u{e9}\t\r\nx-a: 6\r\ncontent-length: 1050\r\n\r\n";
        assert_eq!(String::from_utf8(out).unwrap(), expected);
        for (authority, path) in [("d0", "/a b"), ("d0\r\nx: 1", "/"), ("", "/"), ("d0", "")] {
            assert!(write_head(&mut Vec::new(), authority, path, &[], 0).is_err());
        }
        let mut zero = Vec::new();
        write_number(&mut zero, 0);
        assert_eq!(zero, b"0");
    }

    #[test]
    fn a_head_is_the_same_however_it_is_cut() {
        let wire = "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 429 Too Many\r\nRetry-After: 7\r\nx-a:\r\ncontent-length: 3\r\n\r\nabc";
        for first in 0..wire.len() {
            let (mut reader, mut bytes) = (HeadReader::default(), BytesMut::new());
            let mut head = None;
            for piece in [&wire[..first], &wire[first..]] {
                bytes.extend_from_slice(piece.as_bytes());
                if head.is_none() {
                    head = reader.take(&mut bytes).unwrap();
                }
            }
            let head = head.expect("all is here");
            let headers = head.headers.iter().map(|(name, value)| {
                (
                    std::str::from_utf8(name).unwrap(),
                    std::str::from_utf8(value).unwrap(),
                )
            });
            assert_eq!(
                headers.collect::<Vec<_>>(),
                [("retry-after", "7"), ("x-a", ""), ("content-length", "3")]
            );
            assert_eq!(
                (head.status, head.framing, head.keeps_alive),
                (429, Framing::Length(3), true)
            );
            assert_eq!(&bytes[..], b"abc", "{first}");
        }
    }

    #[test]
    fn the_length_of_a_body_is_told_in_one_way() {
        assert_eq!(
            framed("content-length: 5\r\n"),
            Ok((Framing::Length(5), true))
        );
        assert_eq!(
            framed("content-length: 5, 5\r\ncontent-length: 5\r\n"),
            Ok((Framing::Length(5), true))
        );
        assert_eq!(
            framed("transfer-encoding: gzip, Chunked\r\n"),
            Ok((CHUNKED, true))
        );
        assert_eq!(
            framed("transfer-encoding: chunked\r\ncontent-length: 5\r\n"),
            Ok((CHUNKED, false))
        );
        assert_eq!(
            framed("transfer-encoding: chunked, gzip\r\n"),
            Ok((Framing::UntilClose, true))
        );
        assert_eq!(framed(""), Ok((Framing::UntilClose, true)));
        for wrong in [
            "5, 6",
            "+5",
            "-1",
            "5 5",
            "",
            "5,",
            "0x5",
            "18446744073709551616",
        ] {
            assert!(
                framed(&format!("content-length: {wrong}\r\n")).is_err(),
                "{wrong:?}"
            );
        }
        assert!(framed("content-length: 5\r\ncontent-length: 6\r\n").is_err());
        assert!(read("HTTP/1.0 200 OK\r\ntransfer-encoding: chunked\r\n\r\n").is_err());
    }

    #[test]
    fn a_connection_stays_when_both_sides_may_go_on() {
        let stays = |version: &str, status: &str, connection: &str| {
            let wire =
                format!("HTTP/{version} {status} x\r\ncontent-length: 0\r\n{connection}\r\n");
            read(&wire).unwrap().unwrap().keeps_alive
        };
        assert!(stays("1.1", "200", ""));
        assert!(!stays("1.1", "200", "connection: x, Close\r\n"));
        assert!(!stays(
            "1.1",
            "200",
            "connection: close\r\nconnection: keep-alive\r\n"
        ));
        assert!(!stays("1.0", "200", ""));
        assert!(stays("1.0", "200", "connection: Keep-Alive\r\n"));
        assert!(
            !stays("1.1", "101", ""),
            "it speaks something else from here on"
        );
    }

    #[test]
    fn what_is_not_http_is_no_head() {
        for wire in [
            "<html>\n\n",
            "HTTP/2 200 OK\r\n\r\n",
            "HTTP/1.1 2x0 OK\r\n\r\n",
            "HTTP/1.1 099 OK\r\n\r\n",
            "HTTP/1.1 200 OK\r\nx y: 1\r\n\r\n",
            "HTTP/1.1 200 OK\r\nx: 1\r\n folded\r\n\r\n",
            "HTTP/1.1 200 OK\r\nx: \0\r\n\r\n",
            "\r\n\r\n",
        ] {
            assert!(read(wire).is_err(), "{wire:?}");
        }
        let many = "x: 1\r\n".repeat(MAX_HEADERS + 1);
        assert!(framed(&many).is_err());
        assert_eq!(read(&"x".repeat(HEAD_LIMIT_BYTES - 1)), Ok(None));
        assert!(read(&"x".repeat(HEAD_LIMIT_BYTES)).is_err());
        let long = format!("x: {}\r\n", "y".repeat(HEAD_LIMIT_BYTES));
        assert!(framed(&long).is_err());
    }
}
