//! A stream of server-sent events, read while it passes.
//!
//! Promises: all bytes pass in their order, apart from a usage event that the client did not ask for; an event is passed
//! on as soon as its last byte is here, wherever the network cut it; at most `HELD_LIMIT` bytes are held back.
//! What is held back when a stream is cut is less than one event, so what the client has ends between two events.
//! Leaves to others: what the findings mean for the turn.

mod usual;

use std::borrow::Cow;

use bytes::{Bytes, BytesMut};

use super::answer::{self, Answer, Counts, Finish};
use usual::Usual;

/// An event larger than this many bytes passes unread.
const HELD_LIMIT: usize = 1 << 20;

/// What was seen so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "independent findings, not states"
)]
pub(crate) struct Seen {
    /// A first generated token, be it of reasoning or of a tool call.
    pub(crate) token: bool,
    /// Events that brought such tokens.
    pub(crate) pieces: u32,
    /// A first token that the user sees.
    pub(crate) content: bool,
    pub(crate) tool_call: bool,
    pub(crate) finish: Option<Finish>,
    pub(crate) usage: Option<Counts>,
    pub(crate) error: bool,
    /// `[DONE]`
    pub(crate) done: bool,
}

/// One stream.
#[derive(Debug)]
pub(crate) struct Reader {
    hide_usage: bool,
    seen: Seen,
    /// The beginning of an event whose end has not come.
    held: Vec<u8>,
    lines: Lines,
    last_was_hidden: bool,
    usual: Usual,
    /// The event at hand is too large to be held: it passes unread.
    oversized: bool,
}

impl Reader {
    pub(crate) fn new(hide_usage: bool) -> Self {
        Self {
            hide_usage,
            seen: Seen::default(),
            held: Vec::new(),
            lines: Lines {
                blank: true,
                after_cr: false,
            },
            last_was_hidden: false,
            usual: Usual::default(),
            oversized: false,
        }
    }

    pub(crate) fn seen(&self) -> Seen {
        self.seen
    }

    /// What of the stream may go on, now that these bytes have come.
    pub(crate) fn chunk(&mut self, bytes: &Bytes) -> Bytes {
        let mut start = self.rest_of_line_end(bytes);
        // `None`: the bytes before `start` pass as they are. A line feed that ends a hidden event does not.
        let mut out =
            (start == 1 && self.held.is_empty() && self.last_was_hidden).then(BytesMut::new);
        if start == 1 && !self.held.is_empty() {
            self.held.push(b'\n');
            out = Some(BytesMut::new());
        }
        while let Some(end) = self.lines.event_end(bytes, start) {
            let event = &bytes[start..end];
            if self.held.is_empty() {
                self.last_was_hidden =
                    !std::mem::take(&mut self.oversized) && self.reads_hidden(event);
                match &mut out {
                    Some(out) if !self.last_was_hidden => out.extend_from_slice(event),
                    None if self.last_was_hidden => out = Some(BytesMut::from(&bytes[..start])),
                    _ => {}
                }
            } else {
                self.held.extend_from_slice(event);
                let whole = std::mem::take(&mut self.held);
                self.last_was_hidden = self.reads_hidden(&whole);
                let out = out.get_or_insert_with(|| {
                    BytesMut::with_capacity(whole.len() + bytes.len() - end)
                });
                if !self.last_was_hidden {
                    out.extend_from_slice(&whole);
                }
            }
            start = end;
        }
        self.keep_rest(bytes, start, out)
    }

    /// The stream has ended: what was held back, when it is a whole event that only lacks its blank line.
    pub(crate) fn end(&mut self) -> Bytes {
        let held = std::mem::take(&mut self.held);
        if held.is_empty() || !is_whole(&held) || self.reads_hidden(&held) {
            Bytes::new()
        } else {
            Bytes::from(held)
        }
    }

    /// 1 when the first byte is the line feed of a CRLF that the last chunk began.
    fn rest_of_line_end(&mut self, bytes: &Bytes) -> usize {
        usize::from(
            !bytes.is_empty() && std::mem::take(&mut self.lines.after_cr) && bytes[0] == b'\n',
        )
    }

    fn keep_rest(&mut self, bytes: &Bytes, start: usize, out: Option<BytesMut>) -> Bytes {
        if self.oversized {
            let Some(mut out) = out else {
                return bytes.clone();
            };
            out.extend_from_slice(&bytes[start..]);
            return out.freeze();
        }
        self.held.extend_from_slice(&bytes[start..]);
        if self.held.len() > HELD_LIMIT {
            self.oversized = true;
            self.last_was_hidden = false;
            let mut out = out.unwrap_or_else(|| BytesMut::from(&bytes[..start]));
            out.extend_from_slice(&std::mem::take(&mut self.held));
            return out.freeze();
        }
        out.map_or_else(|| bytes.slice(..start), BytesMut::freeze)
    }

    /// Notes what an event says; true when the client must not see it.
    fn reads_hidden(&mut self, event: &[u8]) -> bool {
        if let Some(answer) = self.usual.says(event) {
            return self.seen.note(answer, self.hide_usage);
        }
        let Some(data) = data_of(event) else {
            return false;
        };
        self.seen.error |= data.named_error;
        if data.text.trim_ascii() == b"[DONE]" {
            self.seen.done = true;
            return false;
        }
        let Ok(answer) = answer::read(&data.text, "") else {
            return false;
        };
        if let Cow::Borrowed(text) = data.text {
            let at = text.as_ptr().addr() - event.as_ptr().addr();
            self.usual.learn(event, at, &answer);
        }
        self.seen.note(&answer, self.hide_usage)
    }
}

impl Seen {
    /// Notes what an event said; true when the client must not see it.
    fn note(&mut self, answer: &Answer, hide_usage: bool) -> bool {
        self.error |= answer.error;
        self.token |= answer.token;
        self.pieces += u32::from(answer.token);
        self.content |= answer.content;
        self.tool_call |= answer.tool_call;
        self.finish = answer.finish.or(self.finish);
        self.usage = answer.usage.or(self.usage);
        hide_usage && answer.usage.is_some() && answer.choices == Some(0) && !answer.error
    }
}

/// Where lines end, across chunks.
#[derive(Debug)]
struct Lines {
    /// Nothing stands on the current line yet.
    blank: bool,
    /// The last byte was a carriage return: a line feed now belongs to it.
    after_cr: bool,
}

impl Lines {
    /// The end of the event that reaches its blank line first, looking from `at` on.
    fn event_end(&mut self, bytes: &[u8], mut at: usize) -> Option<usize> {
        while let Some(skip) = memchr::memchr2(b'\n', b'\r', &bytes[at..]) {
            let ended_blank = self.blank && skip == 0;
            let mut end = at + skip + 1;
            if bytes[end - 1] == b'\r' {
                match bytes.get(end) {
                    Some(b'\n') => end += 1,
                    Some(_) => {}
                    None => self.after_cr = true,
                }
            }
            self.blank = true;
            at = end;
            if ended_blank {
                return Some(end);
            }
        }
        self.blank &= at == bytes.len();
        None
    }
}

struct Data<'a> {
    text: Cow<'a, [u8]>,
    named_error: bool,
}

/// The data of an event: its `data` lines joined by line feeds. `None` when it has none: a comment, a heartbeat.
fn data_of(event: &[u8]) -> Option<Data<'_>> {
    let mut text: Option<Cow<'_, [u8]>> = None;
    let mut named_error = false;
    let mut rest = event;
    while !rest.is_empty() {
        let end = memchr::memchr2(b'\n', b'\r', rest).unwrap_or(rest.len());
        let line = &rest[..end];
        rest = rest.get(end + 1..).unwrap_or_default();
        if let Some(value) = field(line, b"data") {
            match &mut text {
                None => text = Some(value.into()),
                Some(text) => {
                    let text = text.to_mut();
                    text.push(b'\n');
                    text.extend_from_slice(value);
                }
            }
        } else if let Some(value) = field(line, b"event") {
            named_error = value == b"error";
        }
    }
    text.map(|text| Data { text, named_error })
}

fn field<'a>(line: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    let value = line.strip_prefix(name)?.strip_prefix(b":")?;
    Some(value.strip_prefix(b" ").unwrap_or(value))
}

fn is_whole(event: &[u8]) -> bool {
    data_of(event).is_some_and(|data| {
        data.text.trim_ascii() == b"[DONE]" || answer::read(&data.text, "").is_ok()
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::tests::corpus::{STREAMS, spoiled};

    const ROLE: &str = r#"data: {"choices":[{"delta":{"role":"assistant","content":""}}]}"#;
    const WORD: &str = r#"data: {"choices":[{"delta":{"content":"é\n\"usage\":{}"}}]}"#;
    const CALL: &str = r#"data: {"choices":[{"delta":{"tool_calls":[{"index":0}]},"finish_reason":"tool_calls"}]}"#;
    const USAGE: &str = r#"data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":2}}"#;
    const DONE: &str = "data: [DONE]";

    fn stream(events: &[&str], line_end: &str) -> String {
        let blank = [line_end, line_end].concat();
        let event = |event: &&str| event.replace('\n', line_end) + &blank;
        events.iter().map(event).collect::<Vec<_>>().concat()
    }

    /// Feeds the pieces; gives all that passed and what was seen.
    fn pass<'a>(hide: bool, pieces: impl IntoIterator<Item = &'a [u8]>) -> (Vec<u8>, Seen) {
        let mut reader = Reader::new(hide);
        let mut passed = Vec::new();
        for piece in pieces {
            passed.extend_from_slice(&reader.chunk(&Bytes::copy_from_slice(piece)));
        }
        passed.extend_from_slice(&reader.end());
        (passed, reader.seen())
    }

    #[test]
    fn a_stream_cut_at_any_byte_passes_without_the_usage_event() {
        for line_end in ["\n", "\r\n", "\r"] {
            let comment = ": heartbeat";
            let lines = "event: x\ndata: {\"choices\":\ndata:  [{\"delta\":{}}]}";
            let whole = stream(&[comment, ROLE, WORD, lines, USAGE, CALL, DONE], line_end);
            let wanted = stream(&[comment, ROLE, WORD, lines, CALL, DONE], line_end);
            let counts = Counts {
                prompt: Some(9),
                output: Some(2),
                cached: None,
            };
            for cut in 0..=whole.len() {
                let (head, tail) = whole.as_bytes().split_at(cut);
                let (passed, seen) = pass(true, [head, tail]);
                assert_eq!(
                    String::from_utf8_lossy(&passed),
                    wanted,
                    "cut at {cut} of {line_end:?}"
                );
                assert_eq!(seen.usage, Some(counts), "cut at {cut}");
                assert!(seen.token && seen.content && seen.tool_call && seen.done && !seen.error);
                assert_eq!(
                    pass(false, [head, tail]).0,
                    whole.as_bytes(),
                    "asked for: cut at {cut}"
                );
            }
            let (passed, seen) = pass(true, whole.as_bytes().chunks(1));
            assert_eq!(
                (passed, seen.usage),
                (wanted.into_bytes(), Some(counts)),
                "byte by byte"
            );
        }
    }

    #[test]
    fn whole_events_pass_without_a_copy_and_at_once() {
        let mut reader = Reader::new(true);
        let bytes = Bytes::from(stream(&[ROLE, WORD], "\n"));
        let passed = reader.chunk(&bytes);
        assert_eq!(
            (passed.as_ptr(), passed.len()),
            (bytes.as_ptr(), bytes.len())
        );
        let bytes = Bytes::from(format!("{}data: {{", stream(&[WORD], "\r")));
        assert_eq!(
            reader.chunk(&bytes),
            stream(&[WORD], "\r"),
            "the begun event waits"
        );
    }

    #[test]
    fn the_first_token_is_not_the_role() {
        assert!(!pass(true, [stream(&[ROLE], "\n").as_bytes()]).1.token);
        let seen = pass(true, [stream(&[ROLE, CALL], "\n").as_bytes()]).1;
        assert!(
            seen.token && !seen.content,
            "a tool call is a token that the user does not see"
        );
    }

    #[test]
    fn usage_beside_a_choice_stays() {
        let both = r#"data: {"choices":[{"delta":{"content":"x"}}],"usage":{"prompt_tokens":1}}"#;
        let text = stream(&[both], "\n");
        let (passed, seen) = pass(true, [text.as_bytes()]);
        assert_eq!(passed, text.as_bytes());
        assert_eq!(seen.usage.unwrap().prompt, Some(1));
    }

    #[test]
    fn errors_are_seen() {
        for event in [
            r#"data: {"error":{"message":"kv load failed"}}"#,
            "event: error\ndata: {}",
        ] {
            let seen = pass(true, [stream(&[event], "\n").as_bytes()]).1;
            assert!(seen.error, "{event}");
        }
    }

    #[test]
    fn half_an_event_at_the_end_is_dropped_and_a_whole_one_is_not() {
        let whole = stream(&[WORD], "\n");
        assert_eq!(
            pass(false, [format!("{whole}data: {{\"cho").as_bytes()]).0,
            whole.as_bytes()
        );
        let (passed, seen) = pass(false, [format!("{whole}data: [DONE]").as_bytes()]);
        assert_eq!(passed, format!("{whole}data: [DONE]").as_bytes());
        assert!(seen.done);
    }

    #[test]
    fn an_event_too_large_to_hold_passes_unread() {
        let large = format!("data: {{\"x\":\"{}\"}}\n\n", "a".repeat(3 * HELD_LIMIT));
        let whole = format!("{large}{}", stream(&[USAGE, DONE], "\n"));
        let mut reader = Reader::new(true);
        let mut passed = Vec::new();
        for piece in whole.as_bytes().chunks(10_000) {
            passed.extend_from_slice(&reader.chunk(&Bytes::copy_from_slice(piece)));
            assert!(reader.held.len() <= HELD_LIMIT, "bounded");
        }
        assert_eq!(
            passed,
            format!("{large}{}", stream(&[DONE], "\n")).into_bytes()
        );
        assert!(
            reader.seen().done && reader.seen().usage.is_some(),
            "it reads on after it"
        );
    }

    proptest! {
        #[test]
        fn no_byte_is_lost_however_it_is_cut(
            pieces in prop::collection::vec(prop::collection::vec(prop::sample::select(vec![
                &b"\n"[..], b"\r", b"\n\n", b"data: ", b"data: {\"choices\":[]}", b":", b"\xff\x00", b"event: a", b"{", b"[DONE]",
            ]), 0..6), 0..12),
        ) {
            let pieces: Vec<Vec<u8>> = pieces.into_iter().map(|piece| piece.concat()).collect();
            let mut whole = pieces.concat();
            let mut reader = Reader::new(false);
            let mut passed = Vec::new();
            for piece in &pieces {
                passed.extend_from_slice(&reader.chunk(&Bytes::copy_from_slice(piece)));
            }
            passed.extend_from_slice(&reader.held);
            prop_assert_eq!(&passed, &whole);
            whole.extend_from_slice(b"\n\n\n");
            prop_assert_eq!(pass(false, [&whole[..]]).0, pass(false, whole.chunks(1)).0);
        }

        #[test]
        fn no_byte_of_a_spoiled_stream_is_lost_however_it_is_cut(
            bytes in spoiled(&STREAMS),
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..8),
        ) {
            let mut cuts: Vec<_> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
            cuts.extend([0, bytes.len()]);
            cuts.sort_unstable();
            let mut reader = Reader::new(false);
            let mut passed = Vec::new();
            for pair in cuts.windows(2) {
                passed.extend_from_slice(&reader.chunk(&Bytes::copy_from_slice(&bytes[pair[0]..pair[1]])));
            }
            let seen = reader.seen();
            passed.extend_from_slice(&reader.held);
            prop_assert_eq!(&passed, &bytes);
            let mut whole = Reader::new(false);
            whole.chunk(&Bytes::copy_from_slice(&bytes));
            prop_assert_eq!(format!("{seen:?}"), format!("{:?}", whole.seen()), "cuts change nothing");
        }
    }
}
