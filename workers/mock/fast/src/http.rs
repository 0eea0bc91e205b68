//! Reads HTTP/1.1 messages of either direction, a piece at a time, keeping only the head.

use std::io::{Error, ErrorKind, Result};

use memchr::memmem;

const HEAD_LIMIT: usize = 64 << 10;

enum State {
    Head,
    /// Bytes of body still to come.
    Length(usize),
    /// A chunk's size line so far.
    Size(usize, bool),
    Chunk(usize),
    ChunkEnd,
    /// Bytes of the trailer line so far.
    Trailer(usize),
}

/// One message after the other of a connection.
pub(crate) struct Reader {
    pub(crate) head: Vec<u8>,
    state: State,
    /// Bytes of the body so far.
    size: usize,
}

impl Reader {
    pub(crate) fn new() -> Self {
        Self {
            head: Vec::new(),
            state: State::Head,
            size: 0,
        }
    }

    /// Takes bytes up to the end of a message, handing its body to `body`: how many were taken, and whether it is complete.
    /// `head` keeps its head until the next call.
    pub(crate) fn feed(
        &mut self,
        input: &[u8],
        mut body: impl FnMut(&[u8]),
    ) -> Result<(usize, bool)> {
        let mut at = 0;
        while at < input.len() {
            let rest = &input[at..];
            match &mut self.state {
                State::Head => {
                    let old = self.head.len();
                    self.head.extend_from_slice(&rest[..rest.len().min(4096)]);
                    if let Some(end) =
                        memmem::find(&self.head[old.saturating_sub(3)..], b"\r\n\r\n")
                    {
                        let end = old.saturating_sub(3) + end + 4;
                        self.head.truncate(end);
                        at += end - old;
                        self.state = self.framing()?;
                        if matches!(self.state, State::Length(0)) {
                            return Ok((at, self.done()));
                        }
                    } else {
                        at += self.head.len() - old;
                        if self.head.len() > HEAD_LIMIT {
                            return Err(Error::new(ErrorKind::InvalidData, "head above 64 KiB"));
                        }
                    }
                }
                State::Length(left) | State::Chunk(left) => {
                    let take = rest.len().min(*left);
                    body(&rest[..take]);
                    self.size += take;
                    *left -= take;
                    at += take;
                    if *left == 0 {
                        if matches!(self.state, State::Length(_)) {
                            return Ok((at, self.done()));
                        }
                        self.state = State::ChunkEnd;
                    }
                }
                State::Size(size, in_extension) => {
                    at += 1;
                    match (rest[0], *in_extension) {
                        (b'\n', _) => {
                            self.state = if *size == 0 {
                                State::Trailer(0)
                            } else {
                                State::Chunk(*size)
                            }
                        }
                        (b'\r', _) | (_, true) => {}
                        (b';', _) => *in_extension = true,
                        (byte, _) => {
                            let digit = char::from(byte)
                                .to_digit(16)
                                .filter(|_| *size < usize::MAX >> 8);
                            let digit = digit
                                .ok_or_else(|| Error::new(ErrorKind::InvalidData, "chunk size"))?;
                            *size = *size * 16 + digit as usize;
                        }
                    }
                }
                State::ChunkEnd => {
                    at += 1;
                    if rest[0] == b'\n' {
                        self.state = State::Size(0, false);
                    }
                }
                State::Trailer(length) => {
                    at += 1;
                    match (rest[0], *length) {
                        (b'\n', 0) => return Ok((at, self.done())),
                        (b'\n', _) => *length = 0,
                        (b'\r', _) => {}
                        _ => *length += 1,
                    }
                }
            }
        }
        Ok((at, false))
    }

    fn done(&mut self) -> bool {
        self.state = State::Head;
        true
    }

    /// Forgets the head of the message that is complete.
    pub(crate) fn next(&mut self) {
        self.head.clear();
        self.size = 0;
    }

    /// Bytes of the body of the message at hand, framing not counted.
    pub(crate) fn body_size(&self) -> usize {
        self.size
    }

    fn framing(&self) -> Result<State> {
        if self
            .header("transfer-encoding")
            .is_some_and(|value| value.eq_ignore_ascii_case("chunked"))
        {
            return Ok(State::Size(0, false));
        }
        match self.header("content-length") {
            None => Ok(State::Length(0)),
            Some(text) => text
                .parse()
                .map(State::Length)
                .map_err(|_| Error::new(ErrorKind::InvalidData, "content-length")),
        }
    }

    /// Value of a header of the head at hand.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let head = str::from_utf8(&self.head).ok()?;
        head.split("\r\n").skip(1).find_map(|line| {
            let (key, value) = line.split_once(':')?;
            key.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }

    /// The second word of the first line: path of a request, status of an answer.
    pub(crate) fn second_word(&self) -> &str {
        let end = memchr::memchr(b'\r', &self.head).unwrap_or(0);
        str::from_utf8(&self.head[..end])
            .ok()
            .and_then(|line| line.split(' ').nth(1))
            .unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_read_alike_however_they_are_cut() {
        let wire = b"POST /a HTTP/1.1\r\nContent-Length: 3\r\n\r\nabcHTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n\
            2;x=1\r\nde\r\n1\r\nf\r\n0\r\nt: 1\r\n\r\nGET /b HTTP/1.1\r\n\r\n";
        for cut in 1..wire.len() {
            let mut reader = Reader::new();
            let (mut words, mut body) = (Vec::new(), Vec::new());
            for piece in wire.chunks(cut) {
                let mut at = 0;
                while at < piece.len() {
                    let (taken, is_complete) = reader
                        .feed(&piece[at..], |bytes| body.extend_from_slice(bytes))
                        .unwrap();
                    at += taken;
                    if is_complete {
                        words.push(reader.second_word().to_owned());
                        reader.next();
                    }
                }
            }
            assert_eq!(words, ["/a", "200", "/b"], "cut every {cut} bytes");
            assert_eq!(body, b"abcdef", "cut every {cut} bytes");
        }
    }

    #[test]
    fn sizes_that_are_no_sizes_are_refused() {
        for wire in [
            "A / B\r\ncontent-length: x\r\n\r\n",
            "A / B\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        ] {
            assert!(
                Reader::new().feed(wire.as_bytes(), |_| ()).is_err(),
                "{wire}"
            );
        }
    }
}
