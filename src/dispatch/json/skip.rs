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
    pub(super) start: usize,
    /// Behind its last bracket.
    pub(super) end: usize,
    /// Long data URIs in it, and their bytes.
    pub(super) blobs: usize,
    pub(super) blob_bytes: usize,
}

/// Passes the container of `text` whose first bracket stands at `start`, at most `levels` deep.
pub(super) fn pass(text: &[u8], start: usize, levels: usize) -> Result<Passed, Fault> {
    Skip::new(0, levels).pass(text, start)
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

/// A place between two blocks of a text, and what is open there.
#[derive(Debug, Clone)]
pub(super) struct Skip {
    /// A container that is in so many others is one that is passed.
    floor: usize,
    levels: usize,
    /// Containers that are open.
    depth: usize,
    /// All bits are set inside a string, none outside.
    inside: u64,
    /// The next byte stands behind a backslash.
    carries: bool,
    /// Where the string begins that reaches into the next block.
    string: usize,
    /// Where the container begins that is being passed, and the long data URIs in it so far.
    start: usize,
    blobs: usize,
    blob_bytes: usize,
}

#[expect(
    clippy::inline_always,
    reason = "they become part of the function that has the instructions"
)]
impl Skip {
    pub(super) fn new(floor: usize, levels: usize) -> Self {
        Self {
            floor,
            levels,
            depth: 0,
            inside: 0,
            carries: false,
            string: 0,
            start: 0,
            blobs: 0,
            blob_bytes: 0,
        }
    }

    /// Where the container begins that is being passed, if one is.
    pub(super) fn open(&self) -> Option<usize> {
        (self.depth > self.floor).then_some(self.start)
    }

    /// Goes on from `at` to the end of the text, or of a container.
    pub(super) fn pass(mut self, text: &[u8], at: usize) -> Result<Passed, Fault> {
        let mut passed = None;
        let stop = |found| {
            passed = Some(found);
            false
        };
        let end = self.blocks(text, at, stop)?;
        if passed.is_none() {
            let rest = &text[end..];
            let mut last = [b' '; BLOCK];
            last[..rest.len()].copy_from_slice(rest);
            let stop = |found| {
                passed = Some(found);
                false
            };
            self.block(Wide, text, &last, end, &mut { stop })?;
        }
        passed.ok_or(Fault::Endless {
            in_string: self.inside != 0,
        })
    }

    /// Passes whole blocks from `at` on and gives each container that ends in them, as long as `each` wants more; where the
    /// next block begins.
    pub(super) fn blocks(
        &mut self,
        text: &[u8],
        at: usize,
        each: impl FnMut(Passed) -> bool,
    ) -> Result<usize, Fault> {
        #[cfg(target_arch = "x86_64")]
        if let Some(simd) = pulp::x86::V3::try_new() {
            return simd.vectorize(Passing {
                lanes: Avx2(simd),
                skip: self,
                text,
                at,
                each,
            });
        }
        self.run(Wide, text, at, each)
    }

    #[inline(always)]
    fn run(
        &mut self,
        lanes: impl Lanes,
        text: &[u8],
        mut at: usize,
        mut each: impl FnMut(Passed) -> bool,
    ) -> Result<usize, Fault> {
        for block in text[at..].as_chunks::<BLOCK>().0 {
            if !self.block(lanes, text, block, at, &mut each)? {
                break;
            }
            at += BLOCK;
        }
        Ok(at)
    }

    /// The block at `at`; false when `each` wants no more.
    #[inline(always)]
    fn block(
        &mut self,
        lanes: impl Lanes,
        text: &[u8],
        block: &[u8; BLOCK],
        at: usize,
        each: &mut impl FnMut(Passed) -> bool,
    ) -> Result<bool, Fault> {
        let found = lanes.quotes(block);
        let quotes = found.quotes & !escaped(found.slashes, &mut self.carries);
        let inside = if quotes != 0 {
            self.strings(text, quotes, at)
        } else if self.inside != 0 {
            return Ok(true);
        } else {
            0
        };
        let Brackets { opens, closes } = lanes.brackets(block);
        let (opens, closes) = (opens & !inside, closes & !inside);
        if opens | closes == 0 {
            return Ok(true);
        }
        let (up, down) = (opens.count_ones() as usize, closes.count_ones() as usize);
        if self.floor + down < self.depth && self.depth + up <= self.levels {
            self.depth = self.depth + up - down;
            return Ok(true);
        }
        self.brackets(opens, closes, at, each)
    }

    /// Which bytes of the block are inside strings; `quotes` is not 0.
    #[inline(always)]
    fn strings(&mut self, text: &[u8], quotes: u64, at: usize) -> u64 {
        if self.inside != 0 {
            let end = at + quotes.trailing_zeros() as usize;
            if end - self.string >= BLOB_MIN_BYTES && text[self.string..].starts_with(b"data:") {
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

    /// Bracket by bracket, where a container may begin, end or be too deep.
    #[inline(always)]
    fn brackets(
        &mut self,
        opens: u64,
        closes: u64,
        at: usize,
        each: &mut impl FnMut(Passed) -> bool,
    ) -> Result<bool, Fault> {
        let mut left = opens | closes;
        while left != 0 {
            let (bit, place) = (first_bit(left), at + left.trailing_zeros() as usize);
            left ^= bit;
            if opens & bit != 0 {
                if self.depth == self.levels {
                    return Err(Fault::TooDeep(place));
                }
                if self.depth == self.floor {
                    self.start = place;
                    self.blobs = 0;
                    self.blob_bytes = 0;
                }
                self.depth += 1;
                continue;
            }
            // Nothing is open: no text that is JSON.
            self.depth = self.depth.saturating_sub(1);
            let passed = Passed {
                start: self.start,
                end: place + 1,
                blobs: self.blobs,
                blob_bytes: self.blob_bytes,
            };
            if self.depth == self.floor && !each(passed) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

#[cfg(target_arch = "x86_64")]
struct Passing<'a, F> {
    lanes: Avx2,
    skip: &'a mut Skip,
    text: &'a [u8],
    at: usize,
    each: F,
}

#[cfg(target_arch = "x86_64")]
impl<F: FnMut(Passed) -> bool> pulp::NullaryFnOnce for Passing<'_, F> {
    type Output = Result<usize, Fault>;

    #[expect(
        clippy::inline_always,
        reason = "it becomes part of the function that has the instructions"
    )]
    #[inline(always)]
    fn call(self) -> Self::Output {
        self.skip.run(self.lanes, self.text, self.at, self.each)
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
                        start,
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
        let mut wide = Err(Fault::Endless { in_string: false });
        let padded = [text, &[b' '; BLOCK]].concat();
        let mut skip = Skip::new(0, levels);
        let run = skip.run(Wide, &padded, start, |passed| {
            wide = Ok(passed);
            false
        });
        if let Err(fault) = run {
            wide = Err(fault);
        } else if wide.is_err() && skip.inside != 0 {
            wide = Err(Fault::Endless { in_string: true });
        }
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
