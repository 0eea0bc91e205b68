//! Where the strings of a text end: worked out for 64 bytes at once, and once only, however many strings they hold.
//!
//! Leaves to others: which bytes are inside a string. Outside of strings a backslash is an error, so that what is said of
//! escapes is true up to the first error.

use super::escapes::check_escape;
use super::first_bit;
#[cfg(target_arch = "x86_64")]
use super::lanes::Avx2;
use super::lanes::{BLOCK, Lanes, Wide};

/// Blocks that are looked at together.
const BLOCKS: usize = 16;
const PAGE: usize = BLOCKS * BLOCK;
/// Every other bit, from the first.
const EVEN: u64 = 0x5555_5555_5555_5555;

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
            self.turn_to(text, start / PAGE);
        }
        let mut block = start / BLOCK % BLOCKS;
        let mut ahead = u64::MAX << (start % BLOCK);
        let mut escaped = false;
        while self.ends[block] & ahead == 0 {
            escaped |= self.slashes[block] & ahead != 0;
            ahead = u64::MAX;
            block += 1;
            if block == BLOCKS {
                self.turn_to(text, self.number + 1);
                block = 0;
            }
        }
        let ends = self.ends[block] & ahead;
        let before = ahead & first_bit(ends).wrapping_sub(1);
        let at = self.number * PAGE + block * BLOCK + ends.trailing_zeros() as usize;
        (at, escaped || self.slashes[block] & before != 0)
    }

    #[cold]
    #[inline(never)]
    fn turn_to(&mut self, text: &[u8], number: usize) {
        // Pages are left out only between strings, where no backslash stands that could reach over them.
        self.number = number;
        #[cfg(target_arch = "x86_64")]
        if let Some(simd) = pulp::x86::V3::try_new() {
            return simd.vectorize(Looking {
                lanes: Avx2(simd),
                page: self,
                text,
            });
        }
        self.look(Wide, text);
    }

    #[expect(
        clippy::inline_always,
        reason = "it becomes part of the function that has the instructions"
    )]
    #[inline(always)]
    fn look(&mut self, lanes: impl Lanes, text: &[u8]) {
        let start = self.number * PAGE;
        let (blocks, rest) = text[start..text.len().min(start + PAGE)].as_chunks::<BLOCK>();
        for (place, block) in blocks.iter().enumerate().take(BLOCKS) {
            self.look_at(lanes, text, place, block);
        }
        // Where the page is not full, the text ends.
        if blocks.len() < BLOCKS {
            let mut last = [b' '; BLOCK];
            last[..rest.len()].copy_from_slice(rest);
            self.look_at(lanes, text, blocks.len(), &last);
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
    fn look_at(&mut self, lanes: impl Lanes, text: &[u8], place: usize, block: &[u8; BLOCK]) {
        let found = lanes.look(block);
        let escaped = escaped(found.slashes, &mut self.carries);
        self.ends[place] = found.ends & !escaped;
        self.slashes[place] = found.slashes;
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
///
/// Adding its first bit to a run carries to the bit behind it, so runs that begin at even and at odd places are added apart.
#[inline]
fn escaped(slashes: u64, carried: &mut bool) -> u64 {
    let first = u64::from(*carried);
    let slashes = slashes & !first;
    let begins = slashes & !(slashes << 1);
    let behind_even = slashes.wrapping_add(begins & EVEN) & !slashes;
    let (behind_odd, reaches_on) = slashes.overflowing_add(begins & !EVEN);
    *carried = reaches_on;
    (behind_even & !EVEN) | (behind_odd & !slashes & EVEN) | first
}

#[cfg(target_arch = "x86_64")]
struct Looking<'a> {
    lanes: Avx2,
    page: &'a mut Page,
    text: &'a [u8],
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
        self.page.look(self.lanes, self.text);
    }
}
