//! Where the body of an answer ends, and what of it is here.
//!
//! Promises: gives out each byte of the body once, in order, whatever the pieces in which it was read; a body that breaks
//! the rules is never taken for one that ended.
//! Leaves to others: reading (`conn`), the head that says how the body is framed (`http1`).

use bytes::{Buf, Bytes, BytesMut};
use memchr::memchr;

use super::http1::Malformed;

/// The longest line between two chunks: a size and its extensions, or a trailer.
const LINE_LIMIT_BYTES: usize = 16 << 10;
/// All trailers.
const TRAILERS_LIMIT_BYTES: usize = 16 << 10;

/// How the end of a body is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Framing {
    /// So many bytes are left.
    Length(u64),
    Chunked(Chunked),
    /// It ends with its connection.
    UntilClose,
}

/// What comes next in a chunked body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Chunked {
    Size,
    /// So many bytes are left of a chunk, one at least.
    Data(u64),
    /// The end of the line behind a chunk.
    DataEnd,
    /// Trailers, of which so many bytes were passed.
    Trailers(usize),
    End,
}

/// What the bytes that were read come to.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// A part of the body, not an empty one.
    Piece(Bytes),
    End,
    /// Nothing before more is read.
    More,
}

impl Framing {
    /// Takes the next part of the body from what was read.
    pub(crate) fn take(&mut self, read: &mut BytesMut) -> Result<Step, Malformed> {
        match self {
            Self::Length(0) | Self::Chunked(Chunked::End) => Ok(Step::End),
            _ if read.is_empty() => Ok(Step::More),
            Self::Length(left) => Ok(take_of(left, read)),
            Self::UntilClose => Ok(Step::Piece(read.split().freeze())),
            Self::Chunked(chunked) => chunked.take(read),
        }
    }

    /// Whether the end of the connection is the end of the body.
    pub(crate) fn ends_with_connection(&self) -> bool {
        matches!(self, Self::UntilClose)
    }
}

impl Chunked {
    fn take(&mut self, read: &mut BytesMut) -> Result<Step, Malformed> {
        loop {
            match self {
                Self::Size => {
                    let Some(line) = line(read)? else {
                        return Ok(Step::More);
                    };
                    let size = size(&read[..line])?;
                    read.advance(line + 2);
                    *self = match size {
                        0 => Self::Trailers(0),
                        size => Self::Data(size),
                    };
                }
                Self::Data(left) => {
                    let step = take_of(left, read);
                    if *left == 0 {
                        *self = Self::DataEnd;
                    }
                    return Ok(step);
                }
                Self::DataEnd => match **read {
                    [b'\r', b'\n', ..] => {
                        read.advance(2);
                        *self = Self::Size;
                    }
                    [] | [b'\r'] => return Ok(Step::More),
                    _ => return Err(Malformed("a chunk is longer than its size")),
                },
                Self::Trailers(passed) => {
                    let Some(line) = line(read)? else {
                        return Ok(Step::More);
                    };
                    *passed += line;
                    if *passed > TRAILERS_LIMIT_BYTES || !is_trailer(&read[..line]) {
                        return Err(Malformed("what is behind the last chunk is no trailer"));
                    }
                    read.advance(line + 2);
                    if line == 0 {
                        *self = Self::End;
                    }
                }
                Self::End => return Ok(Step::End),
            }
        }
    }
}

fn take_of(left: &mut u64, read: &mut BytesMut) -> Step {
    if read.is_empty() {
        return Step::More;
    }
    let count = usize::try_from(*left).map_or(read.len(), |left| left.min(read.len()));
    *left -= count as u64;
    Step::Piece(read.split_to(count).freeze())
}

/// The length of the line that was read, without its end; `None` before all of it is here.
fn line(read: &[u8]) -> Result<Option<usize>, Malformed> {
    let Some(end) = memchr(b'\n', &read[..read.len().min(LINE_LIMIT_BYTES)]) else {
        if read.len() >= LINE_LIMIT_BYTES {
            return Err(Malformed("a line between chunks is too long"));
        }
        return Ok(None);
    };
    match read[..end] {
        [.., b'\r'] => Ok(Some(end - 1)),
        _ => Err(Malformed("a line between chunks ends with half an end")),
    }
}

/// Whether the line is a header, or empty.
fn is_trailer(line: &[u8]) -> bool {
    let text = [line, b"\r\n\r\n"].concat();
    let mut slot = [httparse::EMPTY_HEADER];
    line.is_empty()
        || matches!(httparse::parse_headers(&text, &mut slot), Ok(status) if status.is_complete())
}

/// The size that a line tells. Extensions say nothing to us.
fn size(line: &[u8]) -> Result<u64, Malformed> {
    const WRONG: Malformed = Malformed("a chunk has no size");
    let mut size = 0_u64;
    let mut digits = 0;
    for byte in line {
        let Some(digit) = char::from(*byte).to_digit(16) else {
            break;
        };
        size = size.checked_mul(16).ok_or(WRONG)? | u64::from(digit);
        digits += 1;
    }
    let behind = line[digits..]
        .iter()
        .find(|&&byte| byte != b' ' && byte != b'\t');
    match behind {
        None | Some(b';') if digits > 0 && !line.contains(&b'\r') => Ok(size),
        _ => Err(WRONG),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The body of `wire`, read in pieces that end at `cuts`, and what is left behind it; `None` while it has not ended.
    fn body(
        framing: &Framing,
        wire: &[u8],
        cuts: &[usize],
    ) -> Result<(Vec<u8>, Option<Vec<u8>>), Malformed> {
        let mut framing = framing.clone();
        let (mut read, mut whole, mut at) = (BytesMut::new(), Vec::new(), 0);
        for end in cuts.iter().copied().chain([wire.len()]) {
            read.extend_from_slice(&wire[at..end]);
            at = end;
            loop {
                match framing.take(&mut read)? {
                    Step::Piece(piece) => {
                        assert!(!piece.is_empty());
                        whole.extend_from_slice(&piece);
                    }
                    Step::More => break,
                    Step::End => {
                        read.extend_from_slice(&wire[at..]);
                        return Ok((whole, Some(read.to_vec())));
                    }
                }
            }
        }
        Ok((whole, None))
    }

    const CHUNKED: Framing = Framing::Chunked(Chunked::Size);

    #[test]
    fn a_body_is_the_same_however_it_is_cut() {
        let chunked = b"5\r\nhello\r\n00A ; x=\"1\" \r\n, world\n\r\n\r\n0\r\nx-t: 1\r\n\r\nrest";
        let cases: [(Framing, &[u8], &[u8]); 3] = [
            (CHUNKED, chunked, b"hello, world\n\r\n"),
            (Framing::Length(5), b"hellorest", b"hello"),
            (Framing::Length(0), b"rest", b""),
        ];
        for (framing, wire, expected) in cases {
            for first in 0..=wire.len() {
                for second in first..=wire.len() {
                    let read = body(&framing, wire, &[first, second]);
                    assert_eq!(
                        read,
                        Ok((expected.to_vec(), Some(b"rest".to_vec()))),
                        "{first}, {second}"
                    );
                }
            }
        }
    }

    #[test]
    fn what_is_not_here_has_not_ended() {
        let wire = b"5\r\nhello\r\n0\r\n\r\n";
        for end in 0..wire.len() {
            let (_, rest) = body(&CHUNKED, &wire[..end], &[]).unwrap();
            assert_eq!(rest, None, "{end}");
        }
        assert_eq!(
            body(&Framing::Length(6), b"hello", &[]),
            Ok((b"hello".to_vec(), None))
        );
        assert_eq!(
            body(&Framing::UntilClose, b"hello", &[2]),
            Ok((b"hello".to_vec(), None))
        );
    }

    #[test]
    fn what_breaks_the_rules_is_no_body() {
        for wire in [
            "\r\nhello",
            "x\r\n",
            "-1\r\n",
            "5 5\r\nhello",
            "0x5\r\nhello",
            "5\nhello",
            "5\r\nhelloo\r\n",
            "5\r\nhello\n0\r\n\r\n",
            "10000000000000000\r\n",
            "0\r\n\n",
            ";\r\n",
            " 5\r\nhello",
        ] {
            assert!(body(&CHUNKED, wire.as_bytes(), &[]).is_err(), "{wire:?}");
        }
        for (before, byte) in [("5;", "x"), ("0\r\n", "x")] {
            let endless = format!("{before}{}", byte.repeat(LINE_LIMIT_BYTES));
            assert!(
                body(&CHUNKED, endless.as_bytes(), &[]).is_err(),
                "{before:?}"
            );
        }
        let trailers = format!("0\r\n{}", "x-a: 1\r\n".repeat(TRAILERS_LIMIT_BYTES / 6 + 1));
        assert!(body(&CHUNKED, trailers.as_bytes(), &[]).is_err());
    }
}
