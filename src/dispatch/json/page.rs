//! Where the strings of a text end: worked out for 64 bytes at once, and once only, however many strings they hold.
//!
//! Leaves to others: which bytes are inside a string. Outside of strings a backslash is an error, so that what is said of
//! escapes is true up to the first error.

use memchr::memchr;

use super::escapes::check_escape;
use super::first_bit;
#[cfg(target_arch = "x86_64")]
use super::lanes::Avx2;
use super::lanes::{BLOCK, Lanes, Wide};

/// Blocks that are looked at together.
const BLOCKS: usize = 16;
const PAGE: usize = BLOCKS * BLOCK;
/// Every other bit, from the second.
const ODD: u64 = 0xaaaa_aaaa_aaaa_aaaa;

/// The part of a text that is looked at now. Bit i of a block is for its byte i.
pub(super) struct Page {
    number: usize,
    /// Quotes and control characters that stand behind no backslash, and the end of the text.
    ends: [u64; BLOCKS],
    slashes: [u64; BLOCKS],
    /// The first byte behind the page stands behind a backslash.
    carries: bool,
    /// Where the first escape that is none begins.
    wrong: usize,
}

impl Page {
    pub(super) fn new() -> Self {
        Self {
            number: usize::MAX,
            ends: [0; BLOCKS],
            slashes: [0; BLOCKS],
            carries: false,
            wrong: usize::MAX,
        }
    }

    /// The bytes before `end`, which stands behind a bracket, were left out: what is wrong in them is not asked about.
    #[inline]
    pub(super) fn leave_out(&mut self, text: &[u8], end: usize) {
        if self.wrong < end {
            self.wrong = self.next_wrong(text, end);
        }
    }

    /// Where in the page the first escape that is none begins from `at` on. What was looked at for it is not looked at again
    /// before something behind it is left out too, so that many wrong ones cost no more than their length.
    #[cold]
    #[inline(never)]
    fn next_wrong(&self, text: &[u8], mut at: usize) -> usize {
        let end = text.len().min((self.number + 1) * PAGE);
        while let Some(slash) = text.get(at..end).and_then(|rest| memchr(b'\\', rest)) {
            at += slash;
            if check_escape(text, at).is_err() {
                return at;
            }
            at += 2;
        }
        usize::MAX
    }

    /// Where the string of `text` ends whose first byte stands at `start`, and whether it holds escapes; `None` when something
    /// in it is wrong, or it has no end. To be asked for one after the other.
    #[expect(
        clippy::inline_always,
        reason = "most strings end in the block that they begin in: there it is a few instructions"
    )]
    #[inline(always)]
    pub(super) fn string_end(&mut self, text: &[u8], start: usize) -> Option<(usize, bool)> {
        let block = start / BLOCK % BLOCKS;
        let ahead = u64::MAX << (start % BLOCK);
        let ends = self.ends[block] & ahead;
        let (at, escaped) = if start / PAGE == self.number && ends != 0 {
            let before = ahead & first_bit(ends).wrapping_sub(1);
            let at = start - start % BLOCK + ends.trailing_zeros() as usize;
            (at, self.slashes[block] & before != 0)
        } else {
            self.far_string_end(text, start)
        };
        (at < self.wrong && text.get(at) == Some(&b'"')).then_some((at, escaped))
    }

    #[inline(never)]
    fn far_string_end(&mut self, text: &[u8], start: usize) -> (usize, bool) {
        if start / PAGE != self.number {
            // What was left out may end with a backslash, but no escape reaches out of a string, and none into this one.
            self.carries = false;
            self.turn_to(text, start);
        }
        let mut block = start / BLOCK % BLOCKS;
        let mut ahead = u64::MAX << (start % BLOCK);
        let mut escaped = false;
        while self.ends[block] & ahead == 0 {
            escaped |= self.slashes[block] & ahead != 0;
            ahead = u64::MAX;
            block += 1;
            if block == BLOCKS {
                self.turn_to(text, (self.number + 1) * PAGE);
                block = 0;
            }
        }
        let ends = self.ends[block] & ahead;
        let before = ahead & first_bit(ends).wrapping_sub(1);
        let at = self.number * PAGE + block * BLOCK + ends.trailing_zeros() as usize;
        (at, escaped || self.slashes[block] & before != 0)
    }

    /// Looks at the page of the byte at `start`, from there on.
    #[cold]
    #[inline(never)]
    fn turn_to(&mut self, text: &[u8], start: usize) {
        self.number = start / PAGE;
        #[cfg(target_arch = "x86_64")]
        if let Some(simd) = pulp::x86::V3::try_new() {
            return simd.vectorize(Looking {
                lanes: Avx2(simd),
                page: self,
                text,
                start,
            });
        }
        self.look(Wide, text, start);
    }

    #[expect(
        clippy::inline_always,
        reason = "it becomes part of the function that has the instructions"
    )]
    #[inline(always)]
    fn look(&mut self, lanes: impl Lanes, text: &[u8], from: usize) {
        let start = self.number * PAGE;
        let (blocks, rest) = text[start..text.len().min(start + PAGE)].as_chunks::<BLOCK>();
        let first = from / BLOCK % BLOCKS;
        let mut ahead = u64::MAX << (from % BLOCK);
        for (place, block) in blocks.iter().enumerate().take(BLOCKS).skip(first) {
            self.look_at(lanes, text, place, block, ahead);
            ahead = u64::MAX;
        }
        // Where the page is not full, the text ends.
        if blocks.len() < BLOCKS {
            let mut last = [b' '; BLOCK];
            last[..rest.len()].copy_from_slice(rest);
            self.look_at(lanes, text, blocks.len(), &last, ahead);
            self.ends[blocks.len()] |= 1 << rest.len();
        }
    }

    /// Code and tool output hold an escape every few bytes, in no order that a processor could guess: so they are told apart
    /// without a branch for each.
    #[expect(
        clippy::inline_always,
        reason = "it becomes part of the function that has the instructions"
    )]
    #[inline(always)]
    fn look_at(
        &mut self,
        lanes: impl Lanes,
        text: &[u8],
        place: usize,
        block: &[u8; BLOCK],
        ahead: u64,
    ) {
        let found = lanes.look(block);
        let slashes = found.slashes & ahead;
        let escaped = escaped(slashes, &mut self.carries);
        self.ends[place] = found.ends & !escaped;
        self.slashes[place] = slashes;
        let unusual = escaped & !found.usual;
        if unusual != 0 {
            let wrong = first_wrong(text, self.number * PAGE + place * BLOCK, unusual);
            self.wrong = self.wrong.min(wrong);
        }
    }
}

/// Where the first escape that is none begins in the block at `start`; `places` has a bit for the second byte of each.
#[cold]
#[inline(never)]
fn first_wrong(text: &[u8], start: usize, mut places: u64) -> usize {
    while places != 0 {
        let at = start + places.trailing_zeros() as usize - 1;
        if check_escape(text, at).is_err() {
            return at;
        }
        places ^= first_bit(places);
    }
    usize::MAX
}

/// The bytes behind a run of backslashes of which the last one begins an escape: a run of odd length.
#[inline]
pub(super) fn escaped(slashes: u64, carried: &mut bool) -> u64 {
    let first = u64::from(*carried);
    let begin = slashes & !first;
    // Every other byte of each run, from its first one on, up to the byte behind it: one subtraction marks them in all runs,
    // for it borrows from bit to bit in a run and stops at the next odd place behind it.
    let escapes = (begin << 1 | ODD).wrapping_sub(begin) ^ ODD;
    *carried = (escapes & slashes) >> 63 != 0;
    (escapes ^ first) & !slashes
}

#[cfg(target_arch = "x86_64")]
struct Looking<'a> {
    lanes: Avx2,
    page: &'a mut Page,
    text: &'a [u8],
    start: usize,
}

#[cfg(target_arch = "x86_64")]
impl pulp::NullaryFnOnce for Looking<'_> {
    type Output = ();

    #[expect(
        clippy::inline_always,
        reason = "it becomes part of the function that has the instructions"
    )]
    #[inline(always)]
    fn call(self) {
        self.page.look(self.lanes, self.text, self.start);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_looked_at_once_though_wrong_escapes_are_left_out() {
        let text = br#"{"a":["\x"],"b":["\r\y"],"c":"\r","d":"\z"}"#;
        let place = |part: &[u8]| memchr::memmem::find(text, part).unwrap();
        let mut page = Page::new();
        let string = |page: &mut Page, part| page.string_end(text, place(part) + 1);
        assert_eq!(string(&mut page, b"\"a"), Some((3, false)));
        for (wrong, behind, next) in [
            (&b"\\x"[..], &b",\"b"[..], &b"\\y"[..]),
            (b"\\y", b",\"c", b"\\z"),
        ] {
            assert_eq!(page.wrong, place(wrong));
            page.leave_out(text, place(behind));
            assert_eq!((page.number, page.wrong), (0, place(next)));
        }
        let right = place(b"\"\\r\",");
        assert_eq!(page.string_end(text, right + 1), Some((right + 3, true)));
        assert_eq!(string(&mut page, b"\"\\z"), None);
    }

    #[test]
    fn what_is_escaped_is_told_for_every_run_at_every_place() {
        for pattern in 0..1_u64 << 12 {
            for place in [0, 1, 26, 51, 52] {
                for first in [false, true] {
                    let slashes = pattern << place;
                    let (mut carries, mut expected) = (first, 0);
                    for bit in 0..64 {
                        let is_slash = slashes >> bit & 1 == 1;
                        expected |= u64::from(carries && !is_slash) << bit;
                        carries = is_slash && !carries;
                    }
                    let mut told = first;
                    assert_eq!(escaped(slashes, &mut told), expected, "{slashes:b} {first}");
                    assert_eq!(told, carries, "{slashes:b} {first}");
                }
            }
        }
    }
}
