//! Whether bytes are UTF-8: 32 at once where the processor has AVX2, with a look at 256 whether they are ASCII.
//!
//! Promises: says what `std::str::from_utf8` says of every text, but not where one is wrong.
//!
//! An agent's history holds a character beyond ASCII every few lines, and a check that looks at each 64 bytes whether it may
//! skip them decides wrongly about as often as rightly: the processor then waits longer than what was skipped would have taken. Of
//! 256 bytes, nearly all or nearly none may be skipped.

/// Whether these bytes are UTF-8.
pub(super) fn is_utf8(text: &[u8]) -> bool {
    #[cfg(target_arch = "x86_64")]
    if let Some(simd) = pulp::x86::V3::try_new() {
        return avx2::is_utf8(simd, text);
    }
    simdutf8::basic::from_utf8(text).is_ok()
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use core::arch::x86_64::__m256i;

    use pulp::x86::V3;

    const LANE: usize = 32;
    /// Bytes that are looked at together.
    const CHUNK: usize = 8 * LANE;
    /// Bytes before a place that may begin a character which reaches it.
    const BEFORE: usize = 3;

    /// Never inlined: a profile names what it costs by this name.
    #[inline(never)]
    pub(super) fn is_utf8(simd: V3, text: &[u8]) -> bool {
        simd.vectorize(Checking { simd, text })
    }

    struct Checking<'a> {
        simd: V3,
        text: &'a [u8],
    }

    impl pulp::NullaryFnOnce for Checking<'_> {
        type Output = bool;

        #[expect(
            clippy::inline_always,
            reason = "it becomes part of the function that has the instructions"
        )]
        #[inline(always)]
        fn call(self) -> bool {
            Check::new(self.simd).holds(self.text)
        }
    }

    // What two bytes in a row can be that they must not be, a bit for each. The first byte's high half, its low half and the
    // second byte's high half each allow some; what all three allow is the case. (J. Keiser, D. Lemire, "Validating UTF-8 in
    // less than one instruction per byte", 2020.)
    /// A character's first byte, and no other of it follows.
    const TOO_SHORT: u8 = 1 << 0;
    /// ASCII, and a byte follows that only continues.
    const TOO_LONG: u8 = 1 << 1;
    /// Three bytes for what two can say.
    const LONG_3: u8 = 1 << 2;
    /// Beyond the last character.
    const TOO_LARGE: u8 = 1 << 3;
    const SURROGATE: u8 = 1 << 4;
    /// Two bytes for what one can say.
    const LONG_2: u8 = 1 << 5;
    /// Four bytes for what three can say, or far beyond the last character.
    const LONG_4: u8 = 1 << 6;
    /// Both only continue: right as the third or fourth byte of a character, and there only.
    const TWO_MORE: u8 = 1 << 7;
    /// Whatever the first byte's low half is.
    const ANY: u8 = TOO_SHORT | TOO_LONG | TWO_MORE;

    const FIRST_HIGH: [u8; 16] = {
        let mut table = [TOO_LONG; 16];
        let mut half = 0x8;
        while half < 0xc {
            table[half] = TWO_MORE;
            half += 1;
        }
        table[0xc] = TOO_SHORT | LONG_2;
        table[0xd] = TOO_SHORT;
        table[0xe] = TOO_SHORT | LONG_3 | SURROGATE;
        table[0xf] = TOO_SHORT | TOO_LARGE | LONG_4;
        table
    };
    const FIRST_LOW: [u8; 16] = {
        // From f5 on all is too large, whatever follows.
        let mut table = [ANY | TOO_LARGE | LONG_4; 16];
        table[0x0] = ANY | LONG_3 | LONG_2 | LONG_4;
        table[0x1] = ANY | LONG_2;
        table[0x2] = ANY;
        table[0x3] = ANY;
        table[0x4] = ANY | TOO_LARGE;
        table[0xd] |= SURROGATE;
        table
    };
    const SECOND_HIGH: [u8; 16] = {
        let mut table = [TOO_SHORT; 16];
        let continues = TOO_LONG | LONG_2 | TWO_MORE;
        table[0x8] = continues | LONG_3 | LONG_4;
        table[0x9] = continues | LONG_3 | TOO_LARGE;
        table[0xa] = continues | SURROGATE | TOO_LARGE;
        table[0xb] = continues | SURROGATE | TOO_LARGE;
        table
    };

    #[derive(Clone, Copy)]
    struct Check {
        simd: V3,
        first_high: __m256i,
        first_low: __m256i,
        second_high: __m256i,
        /// What was found wrong: 0 in each byte where nothing was.
        wrong: __m256i,
    }

    #[expect(
        clippy::inline_always,
        reason = "they become part of the function that has the instructions"
    )]
    impl Check {
        #[inline(always)]
        fn new(simd: V3) -> Self {
            let twice = |table: [u8; 16]| pulp::cast([table, table]);
            Self {
                simd,
                first_high: twice(FIRST_HIGH),
                first_low: twice(FIRST_LOW),
                second_high: twice(SECOND_HIGH),
                wrong: pulp::cast([0_u8; LANE]),
            }
        }

        #[inline(always)]
        fn holds(mut self, text: &[u8]) -> bool {
            // ASCII stands before and behind, so that a character that was begun elsewhere, or goes on there, is wrong.
            let mut edge = [0; BEFORE + LANE];
            if let Some((begin, _)) = text.split_first_chunk::<LANE>() {
                edge[BEFORE..].copy_from_slice(begin);
                self.lane(&edge, 0);
                let mut at = LANE;
                while let Some(seen) = text[at - BEFORE..].first_chunk::<{ BEFORE + CHUNK }>() {
                    self.chunk(seen);
                    at += CHUNK;
                }
                while let Some(seen) = text[at - BEFORE..].first_chunk::<{ BEFORE + LANE }>() {
                    self.lane(seen, 0);
                    at += LANE;
                }
                let rest = &text[at - BEFORE..];
                edge = [0; _];
                edge[..rest.len()].copy_from_slice(rest);
            } else {
                edge[BEFORE..][..text.len()].copy_from_slice(text);
            }
            self.lane(&edge, 0);
            self.simd.avx._mm256_testz_si256(self.wrong, self.wrong) == 1
        }

        /// Checks the bytes behind the first three, which were checked before.
        #[inline(always)]
        fn chunk(&mut self, seen: &[u8; BEFORE + CHUNK]) {
            let mut any = lane(seen, 0);
            for place in 0..CHUNK / LANE {
                any = self.either(any, lane(seen, BEFORE + place * LANE));
            }
            if self.simd.avx2._mm256_movemask_epi8(any) == 0 {
                return;
            }
            for place in 0..CHUNK / LANE {
                self.lane(seen, place * LANE);
            }
        }

        /// Checks the 32 bytes that stand three behind `at`.
        #[inline(always)]
        fn lane<const N: usize>(&mut self, seen: &[u8; N], at: usize) {
            let avx2 = self.simd.avx2;
            let set = |byte: u8| self.simd.avx._mm256_set1_epi8(byte.cast_signed());
            let low_half = |lane| avx2._mm256_and_si256(lane, set(0x0f));
            let high_half = |lane| low_half(avx2._mm256_srli_epi16::<4>(lane));
            let [third, second, first, last] = [0, 1, 2, 3].map(|before| lane(seen, at + before));
            let of_high = avx2._mm256_shuffle_epi8(self.first_high, high_half(first));
            let of_low = avx2._mm256_shuffle_epi8(self.first_low, low_half(first));
            let of_next = avx2._mm256_shuffle_epi8(self.second_high, high_half(last));
            let found = avx2._mm256_and_si256(avx2._mm256_and_si256(of_high, of_low), of_next);
            // The highest bit is set where the byte two before begins three, or the one three before begins four.
            let three = avx2._mm256_subs_epu8(second, set(0xe0 - 0x80));
            let four = avx2._mm256_subs_epu8(third, set(0xf0 - 0x80));
            let more = avx2._mm256_and_si256(self.either(three, four), set(TWO_MORE));
            self.wrong = self.either(self.wrong, avx2._mm256_xor_si256(more, found));
        }

        #[inline(always)]
        fn either(&self, one: __m256i, other: __m256i) -> __m256i {
            self.simd.avx2._mm256_or_si256(one, other)
        }
    }

    #[expect(clippy::inline_always, reason = "as above")]
    #[inline(always)]
    fn lane<const N: usize>(seen: &[u8; N], at: usize) -> __m256i {
        let lane: [u8; LANE] = seen[at..at + LANE].try_into().expect("so many");
        pulp::cast(lane)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[track_caller]
    fn agrees(text: &[u8]) {
        let expected = std::str::from_utf8(text).is_ok();
        assert_eq!(is_utf8(text), expected, "{text:x?}");
        let elsewhere = simdutf8::basic::from_utf8(text).is_ok();
        assert_eq!(elsewhere, expected, "{text:x?}");
    }

    /// Right and wrong ones, and characters of which the end or the beginning is missing.
    const PIECES: [&[u8]; 24] = [
        b"a",
        b"\0",
        b"\x7f",
        b"\xc2\x80",
        b"\xc3\xa9",
        b"\xdf\xbf",
        b"\xe0\xa0\x80",
        b"\xe6\xbc\xa2",
        b"\xed\x9f\xbf",
        b"\xee\x80\x80",
        b"\xf0\x90\x80\x80",
        b"\xf0\x9f\x98\x80",
        b"\xf4\x8f\xbf\xbf",
        b"\x80",
        b"\xc3",
        b"\xc1\xbf",
        b"\xe6\xbc",
        b"\xe0\x9f\xbf",
        b"\xed\xa0\x80",
        b"\xf0\x9f\x98",
        b"\xf0\x8f\xbf\xbf",
        b"\xf4\x90\x80\x80",
        b"\xf5\x80\x80\x80",
        b"\xff",
    ];

    #[test]
    fn a_piece_is_right_or_wrong_wherever_it_stands() {
        for around in ["a", "é", "漢", "😀"] {
            // Beyond the first 32 bytes, and two chunks of 256.
            for place in (0..600).filter(|place| place % around.len() == 0) {
                let before = around.repeat(place / around.len());
                for piece in PIECES {
                    let mut text = [before.as_bytes(), piece].concat();
                    agrees(&text);
                    for more in [1, 40, 300] {
                        text.truncate(place + piece.len());
                        text.extend_from_slice(around.repeat(more).as_bytes());
                        agrees(&text);
                    }
                }
            }
        }
    }

    #[test]
    fn four_bytes_in_a_row_are_right_or_wrong_whatever_they_are() {
        // The first and the last of each kind that the table of well-formed bytes in the Unicode standard tells apart.
        const KINDS: [u8; 24] = [
            0x00, 0x7f, 0x80, 0x8f, 0x90, 0x9f, 0xa0, 0xbf, 0xc0, 0xc1, 0xc2, 0xdf, 0xe0, 0xe1,
            0xec, 0xed, 0xee, 0xef, 0xf0, 0xf1, 0xf3, 0xf4, 0xf5, 0xff,
        ];
        let mut text = [b'a'; 70];
        // Across the first 32 bytes.
        for first in KINDS {
            for second in KINDS {
                for third in KINDS {
                    for fourth in KINDS {
                        text[30..34].copy_from_slice(&[first, second, third, fourth]);
                        agrees(&text);
                    }
                }
            }
        }
    }

    proptest! {
        #[test]
        fn bytes_are_utf8_when_std_says_so(
            pieces in prop::collection::vec((prop::sample::select(&PIECES[..]), 1..200_usize), 0..8),
            spoiled in prop::option::of((any::<prop::sample::Index>(), any::<u8>())),
            end in any::<prop::sample::Index>(),
        ) {
            let mut text: Vec<u8> = pieces.iter().flat_map(|(piece, times)| piece.repeat(*times)).collect();
            agrees(&text);
            if let Some((place, byte)) = spoiled.filter(|_| !text.is_empty()) {
                let place = place.index(text.len());
                text[place] = byte;
                agrees(&text);
            }
            text.truncate(end.index(text.len() + 1));
            agrees(&text);
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..700)) {
            agrees(&bytes);
        }
    }
}
