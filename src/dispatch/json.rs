//! One forward pass over JSON text, without building anything.
//!
//! Promises: accepts exactly what the JSON grammar accepts (bytes beyond ASCII inside strings are not looked at), but for what is
//! inside a container that the caller has no question about (`pass_value`); never recurses, never allocates while it scans, and
//! stops at a nesting depth that the caller sets.
//! Leaves to others: which members matter (`peek`, `sse`, `answer`) and whether the text is UTF-8 (`peek`).

mod ahead;
mod escapes;
mod lanes;
mod page;
mod skip;

use std::borrow::Cow;

pub(crate) use ahead::Ahead;
use escapes::{string_fault, unescape};
use page::Page;

/// Words of the stack of open containers: one bit each.
const WORDS: usize = 16;

/// The deepest nesting that a scanner can be asked to follow.
pub(crate) const DEPTH_CEILING: usize = WORDS * 64;

/// A string of at least this many bytes that begins like a data URI is media, not text.
const BLOB_MIN_BYTES: usize = 2_048;

/// Bytes `start..end` of the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) start: u32,
    pub(crate) end: u32,
}

impl Span {
    /// A text is at most 4 GiB: `Limits` of `peek` and the answer limits keep it so.
    #[expect(clippy::cast_possible_truncation, reason = "no place is beyond 4 GiB")]
    pub(crate) fn new(start: usize, end: usize) -> Self {
        Self {
            start: start as u32,
            end: end as u32,
        }
    }

    /// The bytes it names.
    pub(crate) fn of(self, bytes: &[u8]) -> &[u8] {
        &bytes[self.start as usize..self.end as usize]
    }
}

/// A string as it is spelled: the bytes between its quotes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Text {
    pub(crate) inside: Span,
    pub(crate) escaped: bool,
}

impl Text {
    /// What the string says; `None` when it holds half of a surrogate pair.
    pub(crate) fn decode(self, bytes: &[u8]) -> Option<Cow<'_, [u8]>> {
        let raw = self.inside.of(bytes);
        if self.escaped {
            unescape(raw).map(Cow::Owned)
        } else {
            Some(Cow::Borrowed(raw))
        }
    }

    /// As `decode`, for comparing with short names: `None` too when no spelling of a short name is this long.
    pub(crate) fn decode_name(self, bytes: &[u8]) -> Option<Cow<'_, [u8]>> {
        const LONGEST_SPELLING: usize = 32 * 6;
        if self.escaped && self.inside.of(bytes).len() > LONGEST_SPELLING {
            None
        } else {
            self.decode(bytes)
        }
    }

    /// Whether it says this short name, which needs no escapes.
    #[inline]
    pub(crate) fn says(self, name: &[u8], bytes: &[u8]) -> bool {
        self.inside.of(bytes) == name
            || self.escaped && self.decode_name(bytes).is_some_and(|text| *text == *name)
    }

    pub(crate) fn is_empty(self) -> bool {
        self.inside.start == self.inside.end
    }
}

/// What a value is, told by its first byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Object,
    Array,
    String,
    Number,
    True,
    False,
    Null,
}

impl Kind {
    /// For messages: `an array`.
    pub(crate) fn noun(self) -> &'static str {
        match self {
            Self::Object => "an object",
            Self::Array => "an array",
            Self::String => "a string",
            Self::Number => "a number",
            Self::True | Self::False => "a boolean",
            Self::Null => "null",
        }
    }
}

/// Why the text is not JSON, and where.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Malformed {
    #[error("{what} at byte {at}")]
    Expected { what: &'static str, at: usize },
    #[error("nested deeper than {limit} levels at byte {at}")]
    TooDeep { limit: usize, at: usize },
}

type Result<T> = std::result::Result<T, Malformed>;

/// A member's key with the comma that stands before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Key {
    pub(crate) text: Text,
    pub(crate) start: usize,
    pub(crate) comma: Option<usize>,
}

/// A position in a text and the containers open there.
pub(crate) struct Scanner<'a> {
    bytes: &'a [u8],
    at: usize,
    depth: usize,
    max_depth: usize,
    /// Bit `depth - 1` is set when that container is an object.
    objects: [u64; WORDS],
    page: Page,
    blob_bytes: usize,
    blobs: usize,
    ahead: Option<&'a Ahead>,
}

#[expect(
    clippy::inline_always,
    reason = "what a loop over members does not ask for is not worked out then: a third of the instructions"
)]
impl<'a> Scanner<'a> {
    pub(crate) fn new(bytes: &'a [u8], max_depth: usize) -> Self {
        Self {
            bytes,
            at: 0,
            depth: 0,
            max_depth: max_depth.min(DEPTH_CEILING),
            objects: [0; WORDS],
            page: Page::new(),
            blob_bytes: 0,
            blobs: 0,
            ahead: None,
        }
    }

    /// Takes what is known of the text's containers.
    pub(crate) fn knowing(self, ahead: &'a Ahead) -> Self {
        Self {
            ahead: Some(ahead),
            ..self
        }
    }

    /// Goes on at the container of `text` that begins at `at`, inside of `depth` others.
    pub(crate) fn at(text: &'a [u8], at: usize, depth: usize, max_depth: usize) -> Self {
        Self {
            at,
            depth,
            ..Self::new(text, max_depth)
        }
    }

    pub(crate) fn position(&self) -> usize {
        self.at
    }

    /// How many long data URIs were passed, and their bytes.
    pub(crate) fn media(&self) -> (usize, usize) {
        (self.blobs, self.blob_bytes)
    }

    /// The kind of the value that begins here, after white space.
    #[inline(always)]
    pub(crate) fn kind(&mut self) -> Result<Kind> {
        self.skip_space();
        match self.byte() {
            Some(b'{') => Ok(Kind::Object),
            Some(b'[') => Ok(Kind::Array),
            Some(b'"') => Ok(Kind::String),
            Some(b'-' | b'0'..=b'9') => Ok(Kind::Number),
            Some(b't') => Ok(Kind::True),
            Some(b'f') => Ok(Kind::False),
            Some(b'n') => Ok(Kind::Null),
            _ => Err(self.expected("expected a value")),
        }
    }

    /// Enters the container that begins here.
    #[inline(always)]
    pub(crate) fn open(&mut self, kind: Kind) -> Result<()> {
        debug_assert!(matches!(
            (kind, self.byte()),
            (Kind::Object, Some(b'{')) | (Kind::Array, Some(b'['))
        ));
        if self.depth == self.max_depth {
            return Err(Malformed::TooDeep {
                limit: self.max_depth,
                at: self.at,
            });
        }
        let (word, bit) = (self.depth / 64, 1 << (self.depth % 64));
        if kind == Kind::Object {
            self.objects[word] |= bit;
        } else {
            self.objects[word] &= !bit;
        }
        self.depth += 1;
        self.at += 1;
        Ok(())
    }

    /// The next member's key, its colon passed; `None` when the object ends here.
    #[inline(always)]
    pub(crate) fn member(&mut self, first: bool) -> Result<Option<Key>> {
        self.skip_space();
        let mut comma = None;
        match self.byte() {
            Some(b'}') => {
                self.close();
                return Ok(None);
            }
            Some(b',') if !first => {
                comma = Some(self.at);
                self.at += 1;
                self.skip_space();
            }
            _ if first => {}
            _ => return Err(self.expected("expected ',' or '}'")),
        }
        let start = self.at;
        let text = self.key()?;
        Ok(Some(Key { text, start, comma }))
    }

    /// True at the next element's value; false when the array ends here.
    #[inline(always)]
    pub(crate) fn element(&mut self, first: bool) -> Result<bool> {
        self.skip_space();
        match self.byte() {
            Some(b']') => {
                self.close();
                Ok(false)
            }
            Some(b',') if !first => {
                self.at += 1;
                Ok(true)
            }
            _ if first => Ok(true),
            _ => Err(self.expected("expected ',' or ']'")),
        }
    }

    /// Passes a string; its opening quote is here.
    #[inline(always)]
    pub(crate) fn string(&mut self) -> Result<Text> {
        let start = self.at + 1;
        let Some((at, escaped)) = self.page.string_end(self.bytes, start) else {
            return Err(string_fault(self.bytes, start));
        };
        self.at = at + 1;
        if at - start >= BLOB_MIN_BYTES && self.bytes[start..].starts_with(b"data:") {
            self.blobs += 1;
            self.blob_bytes += at - start;
        }
        Ok(Text {
            inside: Span::new(start, at),
            escaped,
        })
    }

    /// Passes the value that begins here, whatever it is.
    pub(crate) fn skip_value(&mut self) -> Result<()> {
        let base = self.depth;
        loop {
            match self.kind()? {
                Kind::String => {
                    self.string()?;
                }
                Kind::Number => self.number()?,
                Kind::True => self.literal(b"true")?,
                Kind::False => self.literal(b"false")?,
                Kind::Null => self.literal(b"null")?,
                Kind::Object => {
                    self.open(Kind::Object)?;
                    if self.member(true)?.is_some() {
                        continue;
                    }
                }
                Kind::Array => {
                    self.open(Kind::Array)?;
                    if self.element(true)? {
                        continue;
                    }
                }
            }
            loop {
                if self.depth == base {
                    return Ok(());
                }
                let more = if self.in_object() {
                    self.member(false)?.is_some()
                } else {
                    self.element(false)?
                };
                if more {
                    break;
                }
            }
        }
    }

    /// Passes the value that begins here; what a container holds is neither read nor checked, but for its depth (`skip`).
    pub(crate) fn pass_value(&mut self) -> Result<()> {
        if !matches!(self.kind()?, Kind::Object | Kind::Array) {
            return self.skip_value();
        }
        let known = match self.ahead {
            Some(ahead) if self.depth == 1 => ahead.container(self.bytes, self.at),
            _ => None,
        };
        let passed = known
            .unwrap_or_else(|| skip::pass(self.bytes, self.at, self.max_depth - self.depth))
            .map_err(|fault| fault.told(self.bytes, self.max_depth))?;
        self.at = passed.end;
        self.page.leave_out(self.bytes, passed.end);
        self.blobs += passed.blobs;
        self.blob_bytes += passed.blob_bytes;
        Ok(())
    }

    /// Passes a value and says what it was and where.
    pub(crate) fn value(&mut self) -> Result<(Kind, Span)> {
        let kind = self.kind()?;
        let start = self.at;
        self.skip_value()?;
        Ok((kind, Span::new(start, self.at)))
    }

    /// Nothing but white space may follow.
    pub(crate) fn finish(&mut self) -> Result<()> {
        self.skip_space();
        if self.at == self.bytes.len() {
            Ok(())
        } else {
            Err(self.expected("expected the end of the body"))
        }
    }

    #[inline(always)]
    pub(crate) fn skip_space(&mut self) {
        while let Some(b' ' | b'\n' | b'\t' | b'\r') = self.byte() {
            self.at += 1;
        }
    }

    #[inline(always)]
    fn key(&mut self) -> Result<Text> {
        if self.byte() != Some(b'"') {
            return Err(self.expected("expected a key"));
        }
        let text = self.string()?;
        self.skip_space();
        if self.byte() != Some(b':') {
            return Err(self.expected("expected ':'"));
        }
        self.at += 1;
        Ok(text)
    }

    fn number(&mut self) -> Result<()> {
        if self.byte() == Some(b'-') {
            self.at += 1;
        }
        if self.byte() == Some(b'0') {
            self.at += 1;
        } else {
            self.digits()?;
        }
        if self.byte() == Some(b'.') {
            self.at += 1;
            self.digits()?;
        }
        if let Some(b'e' | b'E') = self.byte() {
            self.at += 1;
            if let Some(b'+' | b'-') = self.byte() {
                self.at += 1;
            }
            self.digits()?;
        }
        // `01` ends after the zero here; whoever reads on then finds a digit where a comma belongs.
        Ok(())
    }

    fn digits(&mut self) -> Result<()> {
        let start = self.at;
        while let Some(b'0'..=b'9') = self.byte() {
            self.at += 1;
        }
        if self.at == start {
            Err(self.expected("expected a digit"))
        } else {
            Ok(())
        }
    }

    fn literal(&mut self, word: &'static [u8]) -> Result<()> {
        if !self.bytes[self.at..].starts_with(word) {
            return Err(self.expected("expected a value"));
        }
        self.at += word.len();
        Ok(())
    }

    #[inline(always)]
    fn in_object(&self) -> bool {
        let top = self.depth - 1;
        self.objects[top / 64] >> (top % 64) & 1 == 1
    }

    #[inline(always)]
    fn close(&mut self) {
        self.depth -= 1;
        self.at += 1;
    }

    #[inline(always)]
    fn byte(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    #[cold]
    fn expected(&self, what: &'static str) -> Malformed {
        let what = if self.at >= self.bytes.len() {
            "the text ends too early"
        } else {
            what
        };
        Malformed::Expected { what, at: self.at }
    }
}

/// The lowest bit that is set, if any is.
fn first_bit(bits: u64) -> u64 {
    bits & bits.wrapping_neg()
}

#[cfg(test)]
mod tests;
