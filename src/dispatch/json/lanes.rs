//! Which of a block's 64 bytes are what: bit i of an answer is for byte i.
//!
//! Promises: [`Wide`] and [`Avx2`] say the same. Which of them a machine can have is found out while it runs.

use wide::u8x16;

/// Bytes looked at together.
pub(super) const BLOCK: usize = 64;

/// The last of the control characters, which a string must not hold.
const LAST_CONTROL: u8 = 0x1f;

/// What a look at a block finds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Look {
    /// Quotes and control characters.
    pub(super) ends: u64,
    pub(super) slashes: u64,
    /// Quotes, `n` and `t`: what most escapes end in, beside backslashes.
    pub(super) usual: u64,
}

/// Where strings may begin and end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Quotes {
    pub(super) quotes: u64,
    pub(super) slashes: u64,
}

/// Where containers may begin and end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Brackets {
    /// `[` and `{`
    pub(super) opens: u64,
    /// `]` and `}`
    pub(super) closes: u64,
}

/// The one bit in which `[` and `{` differ, and `]` and `}`.
const CURLY: u8 = b'[' ^ b'{';

pub(super) trait Lanes: Copy {
    fn look(self, block: &[u8; BLOCK]) -> Look;
    fn quotes(self, block: &[u8; BLOCK]) -> Quotes;
    fn brackets(self, block: &[u8; BLOCK]) -> Brackets;
}

/// On every machine: 16 bytes at once.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wide;

impl Lanes for Wide {
    #[inline]
    fn look(self, block: &[u8; BLOCK]) -> Look {
        let mut found = Look {
            ends: 0,
            slashes: 0,
            usual: 0,
        };
        for (place, lane) in block.as_chunks::<16>().0.iter().enumerate() {
            let lane = u8x16::new(*lane);
            let equal = |byte| lane.cmp_eq(u8x16::splat(byte));
            let bits = |lane: u8x16| u64::from(lane.move_mask().cast_unsigned()) << (place * 16);
            let last_control = u8x16::splat(LAST_CONTROL);
            let quotes = equal(b'"');
            found.ends |= bits(quotes | lane.max(last_control).cmp_eq(last_control));
            found.slashes |= bits(equal(b'\\'));
            found.usual |= bits(quotes | equal(b'n') | equal(b't'));
        }
        found
    }

    #[inline]
    fn quotes(self, block: &[u8; BLOCK]) -> Quotes {
        Quotes {
            quotes: equal(block, 0, b'"'),
            slashes: equal(block, 0, b'\\'),
        }
    }

    #[inline]
    fn brackets(self, block: &[u8; BLOCK]) -> Brackets {
        Brackets {
            opens: equal(block, CURLY, b'{'),
            closes: equal(block, CURLY, b'}'),
        }
    }
}

/// Which bytes are this one when these bits are set in them.
#[inline]
fn equal(block: &[u8; BLOCK], bits: u8, byte: u8) -> u64 {
    let mut found = 0;
    for (place, lane) in block.as_chunks::<16>().0.iter().enumerate() {
        let equal = (u8x16::new(*lane) | u8x16::splat(bits)).cmp_eq(u8x16::splat(byte));
        found |= u64::from(equal.move_mask().cast_unsigned()) << (place * 16);
    }
    found
}

#[cfg(target_arch = "x86_64")]
pub(super) use avx2::Avx2;

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use core::arch::x86_64::__m256i;

    use pulp::x86::V3;

    use super::{BLOCK, Brackets, CURLY, LAST_CONTROL, Lanes, Look, Quotes};

    /// Where the processor has AVX2: 32 bytes at once.
    #[derive(Debug, Clone, Copy)]
    pub(in super::super) struct Avx2(pub(in super::super) V3);

    #[expect(
        clippy::inline_always,
        reason = "they are of use only inside a function that has the instructions"
    )]
    impl Avx2 {
        #[inline(always)]
        fn equal(self, lane: __m256i, byte: u8) -> __m256i {
            let byte = self.0.avx._mm256_set1_epi8(byte.cast_signed());
            self.0.avx2._mm256_cmpeq_epi8(lane, byte)
        }

        #[inline(always)]
        fn either(self, one: __m256i, other: __m256i) -> __m256i {
            self.0.avx2._mm256_or_si256(one, other)
        }

        #[inline(always)]
        fn bits(self, lane: __m256i) -> u64 {
            u64::from(self.0.avx2._mm256_movemask_epi8(lane).cast_unsigned())
        }

        #[inline(always)]
        fn half(self, half: &[u8; 32]) -> Look {
            let lane: __m256i = pulp::cast(*half);
            let last_control = self.0.avx._mm256_set1_epi8(LAST_CONTROL.cast_signed());
            let largest = self.0.avx2._mm256_max_epu8(lane, last_control);
            let controls = self.0.avx2._mm256_cmpeq_epi8(largest, last_control);
            let quotes = self.equal(lane, b'"');
            let letters = self.either(self.equal(lane, b'n'), self.equal(lane, b't'));
            Look {
                ends: self.bits(self.either(quotes, controls)),
                slashes: self.bits(self.equal(lane, b'\\')),
                usual: self.bits(self.either(quotes, letters)),
            }
        }

        /// Which bytes are this one when these bits are set in them.
        #[inline(always)]
        fn found(self, block: &[u8; BLOCK], bits: u8, byte: u8) -> u64 {
            let halves = block.as_chunks::<32>().0;
            let bits = self.0.avx._mm256_set1_epi8(bits.cast_signed());
            let low = self.equal(self.either(pulp::cast(halves[0]), bits), byte);
            let high = self.equal(self.either(pulp::cast(halves[1]), bits), byte);
            self.bits(low) | self.bits(high) << 32
        }
    }

    impl Lanes for Avx2 {
        #[expect(clippy::inline_always, reason = "as above")]
        #[inline(always)]
        fn look(self, block: &[u8; BLOCK]) -> Look {
            let halves = block.as_chunks::<32>().0;
            let (low, high) = (self.half(&halves[0]), self.half(&halves[1]));
            Look {
                ends: low.ends | high.ends << 32,
                slashes: low.slashes | high.slashes << 32,
                usual: low.usual | high.usual << 32,
            }
        }

        #[expect(clippy::inline_always, reason = "as above")]
        #[inline(always)]
        fn quotes(self, block: &[u8; BLOCK]) -> Quotes {
            Quotes {
                quotes: self.found(block, 0, b'"'),
                slashes: self.found(block, 0, b'\\'),
            }
        }

        #[expect(clippy::inline_always, reason = "as above")]
        #[inline(always)]
        fn brackets(self, block: &[u8; BLOCK]) -> Brackets {
            Brackets {
                opens: self.found(block, CURLY, b'{'),
                closes: self.found(block, CURLY, b'}'),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tell_apart(lanes: impl Lanes) {
        for byte in 0..=255_u8 {
            for place in 0..BLOCK {
                let mut block = [0xff; BLOCK];
                block[place] = byte;
                let here = |is| u64::from(is) << place;
                let expected = Look {
                    ends: here(byte == b'"' || byte < 0x20),
                    slashes: here(byte == b'\\'),
                    usual: here(matches!(byte, b'"' | b'n' | b't')),
                };
                assert_eq!(lanes.look(&block), expected, "byte {byte} at {place}");
                let expected = Quotes {
                    quotes: here(byte == b'"'),
                    slashes: here(byte == b'\\'),
                };
                assert_eq!(lanes.quotes(&block), expected, "byte {byte} at {place}");
                let expected = Brackets {
                    opens: here(matches!(byte, b'[' | b'{')),
                    closes: here(matches!(byte, b']' | b'}')),
                };
                assert_eq!(lanes.brackets(&block), expected, "byte {byte} at {place}");
            }
        }
    }

    #[test]
    fn every_byte_at_every_place_is_told_apart() {
        tell_apart(Wide);
        #[cfg(target_arch = "x86_64")]
        if let Some(simd) = pulp::x86::V3::try_new() {
            tell_apart(Avx2(simd));
        }
    }
}
