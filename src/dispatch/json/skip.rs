//! Passes a container without reading what it holds: 64 bytes at once, of which most hold no bracket that counts.
//!
//! Promises: finds the bracket that closes the container in every text that is JSON; follows no more levels than it is told to.
//! A text that is not JSON it may pass, and then to a place where no parser would be: whoever reads the text refuses it. Strings
//! are told apart exactly (a quote ends one unless an odd number of backslashes stands before it), and kinds of brackets are
//! not, for where a text is JSON each closes its own kind. So no reader of JSON can find the members of the object around the
//! container elsewhere than here.
//! Leaves to others: whether escapes, control characters, numbers and commas are what they should be.

#[cfg(target_arch = "x86_64")]
use super::lanes::Avx2;
use super::lanes::{BLOCK, Brackets, Lanes, Wide};
use super::page::escaped;
use super::{BLOB_MIN_BYTES, Malformed, first_bit};

/// A container that was passed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Passed {
    /// Behind its last bracket.
    pub(super) end: usize,
    /// Long data URIs in it, and their bytes.
    pub(super) blobs: usize,
    pub(super) blob_bytes: usize,
}

/// Passes the container of `text` whose first bracket stands at `start`, at most `levels` deep.
pub(super) fn pass(text: &[u8], start: usize, levels: usize) -> Result<Passed, Fault> {
    #[cfg(target_arch = "x86_64")]
    if let Some(simd) = pulp::x86::V3::try_new() {
        return simd.vectorize(Passing {
            lanes: Avx2(simd),
            text,
            start,
            levels,
        });
    }
    Skip::new(text, levels).run(Wide, start)
}

/// Why there is no end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    /// The bracket here opens one level too many.
    TooDeep(usize),
    /// The text ends before, in a string or not.
    Endless { in_string: bool },
}

impl Fault {
    pub(super) fn told(self, text: &[u8], limit: usize) -> Malformed {
        match self {
            Self::TooDeep(at) => Malformed::TooDeep { limit, at },
            Self::Endless { in_string } => Malformed::Expected {
                what: if in_string {
                    "a string without its end"
                } else {
                    "the text ends too early"
                },
                at: text.len(),
            },
        }
    }
}

struct Skip<'a> {
    text: &'a [u8],
    levels: usize,
    /// Containers that are open.
    depth: usize,
    /// All bits are set inside a string, none outside.
    inside: u64,
    /// The next byte stands behind a backslash.
    carries: bool,
    /// Where the string begins that reaches into the next block.
    string: usize,
    blobs: usize,
    blob_bytes: usize,
}

#[expect(
    clippy::inline_always,
    reason = "they become part of the function that has the instructions"
)]
impl<'a> Skip<'a> {
    fn new(text: &'a [u8], levels: usize) -> Self {
        Self {
            text,
            levels,
            depth: 0,
            inside: 0,
            carries: false,
            string: 0,
            blobs: 0,
            blob_bytes: 0,
        }
    }

    #[inline(always)]
    fn run(mut self, lanes: impl Lanes, start: usize) -> Result<Passed, Fault> {
        let (blocks, rest) = self.text[start..].as_chunks::<BLOCK>();
        let mut at = start;
        for block in blocks {
            if let Some(end) = self.block(lanes, block, at)? {
                return Ok(self.passed(end));
            }
            at += BLOCK;
        }
        let mut last = [b' '; BLOCK];
        last[..rest.len()].copy_from_slice(rest);
        match self.block(lanes, &last, at)? {
            Some(end) => Ok(self.passed(end)),
            None => Err(Fault::Endless {
                in_string: self.inside != 0,
            }),
        }
    }

    fn passed(&self, end: usize) -> Passed {
        Passed {
            end,
            blobs: self.blobs,
            blob_bytes: self.blob_bytes,
        }
    }

    /// The block at `at`; where the container ends, if in there.
    #[inline(always)]
    fn block(
        &mut self,
        lanes: impl Lanes,
        block: &[u8; BLOCK],
        at: usize,
    ) -> Result<Option<usize>, Fault> {
        let found = lanes.quotes(block);
        let quotes = found.quotes & !escaped(found.slashes, &mut self.carries);
        let inside = if quotes != 0 {
            self.strings(quotes, at)
        } else if self.inside != 0 {
            return Ok(None);
        } else {
            0
        };
        let Brackets { opens, closes } = lanes.brackets(block);
        let (opens, closes) = (opens & !inside, closes & !inside);
        if opens | closes == 0 {
            return Ok(None);
        }
        let (up, down) = (opens.count_ones() as usize, closes.count_ones() as usize);
        if down < self.depth && self.depth + up <= self.levels {
            self.depth = self.depth + up - down;
            return Ok(None);
        }
        self.brackets(opens, closes, at)
    }

    /// Which bytes of the block are inside strings; `quotes` is not 0.
    #[inline(always)]
    fn strings(&mut self, quotes: u64, at: usize) -> u64 {
        if self.inside != 0 {
            let end = at + quotes.trailing_zeros() as usize;
            if end - self.string >= BLOB_MIN_BYTES && self.text[self.string..].starts_with(b"data:")
            {
                self.blobs += 1;
                self.blob_bytes += end - self.string;
            }
        }
        // Each bit becomes the parity of the quotes up to it.
        let mut parity = quotes;
        for shift in [1, 2, 4, 8, 16, 32] {
            parity ^= parity << shift;
        }
        let inside = parity ^ self.inside;
        self.inside = u64::MAX * (inside >> 63);
        self.string = at + BLOCK - quotes.leading_zeros() as usize;
        inside
    }

    /// Bracket by bracket, where the container may end or be too deep.
    #[inline(always)]
    fn brackets(&mut self, opens: u64, closes: u64, at: usize) -> Result<Option<usize>, Fault> {
        let mut left = opens | closes;
        while left != 0 {
            let (bit, place) = (first_bit(left), at + left.trailing_zeros() as usize);
            if opens & bit == 0 {
                self.depth -= 1;
                if self.depth == 0 {
                    return Ok(Some(place + 1));
                }
            } else if self.depth == self.levels {
                return Err(Fault::TooDeep(place));
            } else {
                self.depth += 1;
            }
            left ^= bit;
        }
        Ok(None)
    }
}

#[cfg(target_arch = "x86_64")]
struct Passing<'a> {
    lanes: Avx2,
    text: &'a [u8],
    start: usize,
    levels: usize,
}

#[cfg(target_arch = "x86_64")]
impl pulp::NullaryFnOnce for Passing<'_> {
    type Output = Result<Passed, Fault>;

    #[expect(
        clippy::inline_always,
        reason = "it becomes part of the function that has the instructions"
    )]
    #[inline(always)]
    fn call(self) -> Self::Output {
        Skip::new(self.text, self.levels).run(self.lanes, self.start)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::tests::fragments;
    use super::*;

    /// The same, byte by byte.
    fn by_bytes(text: &[u8], start: usize, levels: usize) -> Result<Passed, Fault> {
        let (mut depth, mut string, mut escaped) = (0, None, false);
        let (mut blobs, mut blob_bytes) = (0, 0);
        for (at, byte) in text.iter().enumerate().skip(start) {
            let was_escaped = std::mem::take(&mut escaped);
            match (byte, string) {
                (b'\\', _) => escaped = !was_escaped,
                (b'"', _) if was_escaped => {}
                (b'"', None) => string = Some(at + 1),
                (b'"', Some(begin)) => {
                    string = None;
                    if at - begin >= BLOB_MIN_BYTES && text[begin..].starts_with(b"data:") {
                        blobs += 1;
                        blob_bytes += at - begin;
                    }
                }
                (b'[' | b'{', None) if depth == levels => return Err(Fault::TooDeep(at)),
                (b'[' | b'{', None) => depth += 1,
                (b']' | b'}', None) if depth == 1 => {
                    return Ok(Passed {
                        end: at + 1,
                        blobs,
                        blob_bytes,
                    });
                }
                (b']' | b'}', None) => depth -= 1,
                _ => {}
            }
        }
        Err(Fault::Endless {
            in_string: string.is_some(),
        })
    }

    #[track_caller]
    fn agrees(text: &[u8], start: usize, levels: usize) {
        let expected = by_bytes(text, start, levels);
        let told = || String::from_utf8_lossy(text).into_owned();
        assert_eq!(pass(text, start, levels), expected, "{}", told());
        let wide = Skip::new(text, levels).run(Wide, start);
        assert_eq!(wide, expected, "{}", told());
    }

    #[test]
    fn a_container_ends_where_it_ends_wherever_blocks_end() {
        for before in 0..140 {
            for held in [
                "\"]\"",
                "\"\\\"]\"",
                "\"\\\\\",[]",
                "{\"a\":[{}]}",
                "\"}\\\\\\\"}\"",
            ] {
                for after in [0, 1, 62, 63, 64, 65] {
                    let text = format!("[{}{held}{}]}}", " ".repeat(before), " ".repeat(after));
                    agrees(text.as_bytes(), 0, 8);
                    assert_eq!(pass(text.as_bytes(), 0, 8).unwrap().end, text.len() - 1);
                }
            }
        }
    }

    #[test]
    fn media_is_counted_from_its_length_on_wherever_blocks_end() {
        for before in 0..70 {
            for (length, counts) in [(BLOB_MIN_BYTES - 1, 0), (BLOB_MIN_BYTES, 1), (9_999, 1)] {
                let blob = format!("data:{}", "A".repeat(length - 5));
                let text = format!("[{}\"{blob}\",\"x{blob}\"]", " ".repeat(before));
                agrees(text.as_bytes(), 0, 8);
                let passed = pass(text.as_bytes(), 0, 8).unwrap();
                assert_eq!((passed.blobs, passed.blob_bytes), (counts, counts * length));
            }
        }
    }

    #[test]
    fn what_is_too_deep_is_told_with_its_place_wherever_blocks_end() {
        for before in 0..140 {
            for open in ["[", "{\"a\":"] {
                // Up and down below the limit first.
                let text = format!("[[]{}[]{}", " ".repeat(before), open.repeat(20));
                let at = 5 + before + 9 * open.len();
                assert_eq!(pass(text.as_bytes(), 0, 10), Err(Fault::TooDeep(at)));
                agrees(text.as_bytes(), 0, 10);
            }
        }
        assert_eq!(pass(b"[]", 0, 0), Err(Fault::TooDeep(0)));
    }

    proptest! {
        #[test]
        fn it_passes_what_a_reader_byte_by_byte_passes(
            parts in prop::collection::vec(fragments(), 1..8), before in 0..70_usize, levels in 1..9_usize, object: bool
        ) {
            let open = if object { "{" } else { "[" };
            let text = format!("{}{open}{}", "x".repeat(before), parts.concat());
            agrees(text.as_bytes(), before, levels);
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            agrees(&[b"[", bytes.as_slice()].concat(), 0, 4);
        }
    }
}
