//! The bytes of a string: where plain ones end, and what escaped ones stand for.

use wide::u8x16;

/// Bytes looked at together.
const BLOCK: usize = 64;
/// Bytes looked at first: most keys and many values end within them.
const LANE: usize = 16;
/// Every other bit, from the first.
const EVEN: u64 = 0x5555_5555_5555_5555;

/// How a string goes on from its first byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ended {
    /// At this quote.
    Quote { at: usize, escaped: bool },
    /// It does not: what is wrong there.
    Wrong { what: &'static str, at: usize },
}

/// Passes the bytes of a string whose first one stands at `at`.
pub(super) fn pass_string(bytes: &[u8], at: usize) -> Ended {
    if let Some(start) = bytes.get(at..).and_then(<[u8]>::first_chunk::<LANE>) {
        let place = specials(start).trailing_zeros() as usize;
        if start.get(place) == Some(&b'"') {
            return Ended::Quote {
                at: at + place,
                escaped: false,
            };
        }
    }
    pass_blocks(bytes, at)
}

/// Code and tool output hold an escape every few bytes, in no order that a processor could guess: so the escapes of a
/// block are told apart without a branch for each.
fn pass_blocks(bytes: &[u8], mut at: usize) -> Ended {
    let mut has_escapes = false;
    // The first byte of the block stands behind a backslash that is the last byte of the block before.
    let mut carried = false;
    while let Some(block) = bytes.get(at..).and_then(<[u8]>::first_chunk::<BLOCK>) {
        let Marks {
            quotes,
            slashes,
            controls,
        } = marks(block);
        let escaped = escaped(slashes, &mut carried);
        let ends = (quotes | controls) & !escaped;
        let before = (ends & ends.wrapping_neg()).wrapping_sub(1);
        let mut to_check = escaped & before & !quotes;
        if to_check != 0 {
            to_check &= !eithers(block, b'n', b't');
        }
        while to_check != 0 {
            let place = at + to_check.trailing_zeros() as usize;
            if let Err(wrong) = pass_escape(bytes, place - 1) {
                return wrong;
            }
            to_check &= to_check - 1;
        }
        has_escapes |= slashes & before != 0;
        if ends != 0 {
            let place = at + ends.trailing_zeros() as usize;
            return if bytes[place] == b'"' {
                Ended::Quote {
                    at: place,
                    escaped: has_escapes,
                }
            } else {
                control_character(place)
            };
        }
        at += BLOCK;
    }
    pass_slowly(bytes, at - usize::from(carried), has_escapes)
}

/// The bytes behind a run of backslashes of which the last one begins an escape: a run of odd length.
///
/// Adding its first bit to a run carries to the bit behind it, so runs that begin at even and at odd places are added apart.
fn escaped(slashes: u64, carried: &mut bool) -> u64 {
    let first = u64::from(*carried);
    let slashes = slashes & !first;
    let begins = slashes & !(slashes << 1);
    let behind_even = slashes.wrapping_add(begins & EVEN) & !slashes;
    let (behind_odd, reaches_on) = slashes.overflowing_add(begins & !EVEN);
    *carried = reaches_on;
    (behind_even & !EVEN) | (behind_odd & !slashes & EVEN) | first
}

/// The same for the last bytes of a text.
fn pass_slowly(bytes: &[u8], mut at: usize, mut escaped: bool) -> Ended {
    loop {
        match bytes.get(at) {
            Some(b'"') => return Ended::Quote { at, escaped },
            Some(b'\\') => match pass_escape(bytes, at) {
                Ok(end) => {
                    escaped = true;
                    at = end;
                }
                Err(wrong) => return wrong,
            },
            Some(..0x20) => return control_character(at),
            Some(_) => at += 1,
            None => {
                return Ended::Wrong {
                    what: "a string without its end",
                    at,
                };
            }
        }
    }
}

fn control_character(at: usize) -> Ended {
    Ended::Wrong {
        what: "control character inside a string",
        at,
    }
}

/// The end of the escape that begins at `at`.
fn pass_escape(bytes: &[u8], at: usize) -> Result<usize, Ended> {
    match bytes.get(at + 1) {
        Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => Ok(at + 2),
        Some(b'u') => match bytes.get(at + 2..at + 6) {
            Some(digits) if digits.iter().all(u8::is_ascii_hexdigit) => Ok(at + 6),
            _ => Err(Ended::Wrong {
                what: "expected four hexadecimal digits",
                at: at + 2,
            }),
        },
        _ => Err(Ended::Wrong {
            what: "unknown escape",
            at,
        }),
    }
}

/// What stands where in a block: bit i is for byte i.
struct Marks {
    quotes: u64,
    slashes: u64,
    controls: u64,
}

#[inline]
fn marks(block: &[u8; BLOCK]) -> Marks {
    Marks {
        quotes: lanes(block, |text| text.cmp_eq(u8x16::splat(b'"'))),
        slashes: lanes(block, |text| text.cmp_eq(u8x16::splat(b'\\'))),
        controls: lanes(block, is_control),
    }
}

/// Where one of two bytes stands.
#[inline]
fn eithers(block: &[u8; BLOCK], one: u8, other: u8) -> u64 {
    lanes(block, |text| {
        text.cmp_eq(u8x16::splat(one)) | text.cmp_eq(u8x16::splat(other))
    })
}

#[inline]
fn lanes(block: &[u8; BLOCK], test: impl Fn(u8x16) -> u8x16) -> u64 {
    let mut found = 0;
    for (place, lane) in block.as_chunks::<LANE>().0.iter().enumerate() {
        found |= u64::from(mask(test(u8x16::new(*lane)))) << (place * LANE);
    }
    found
}

/// Bit i is set when byte i is a quote, a backslash or a control character.
#[inline]
pub(super) fn specials(lane: &[u8; LANE]) -> u32 {
    let text = u8x16::new(*lane);
    mask(text.cmp_eq(u8x16::splat(b'"')) | text.cmp_eq(u8x16::splat(b'\\')) | is_control(text))
}

#[inline]
fn is_control(text: u8x16) -> u8x16 {
    let last = u8x16::splat(0x1f);
    text.max(last).cmp_eq(last)
}

#[inline]
fn mask(found: u8x16) -> u32 {
    found.move_mask().cast_unsigned()
}

/// The bytes that an escaped string stands for; the scanner has found its escapes well formed.
pub(super) fn unescape(raw: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(raw.len());
    let mut rest = raw;
    while let Some(slash) = memchr::memchr(b'\\', rest) {
        out.extend_from_slice(&rest[..slash]);
        let code = *rest.get(slash + 1)?;
        rest = &rest[slash + 2..];
        out.push(match code {
            b'b' => 0x08,
            b'f' => 0x0c,
            b'n' => b'\n',
            b'r' => b'\r',
            b't' => b'\t',
            b'u' => {
                let mut unit = hex4(rest)?;
                rest = &rest[4..];
                if (0xd800..0xdc00).contains(&unit) {
                    let low = hex4(rest.strip_prefix(b"\\u")?)?;
                    if !(0xdc00..0xe000).contains(&low) {
                        return None;
                    }
                    rest = &rest[6..];
                    unit = 0x1_0000 + ((unit - 0xd800) << 10) + (low - 0xdc00);
                }
                let mut utf8 = [0; 4];
                out.extend_from_slice(char::from_u32(unit)?.encode_utf8(&mut utf8).as_bytes());
                continue;
            }
            plain => plain,
        });
    }
    out.extend_from_slice(rest);
    Some(out)
}

fn hex4(digits: &[u8]) -> Option<u32> {
    digits.get(..4)?.iter().try_fold(0, |value, &digit| {
        Some(value << 4 | char::from(digit).to_digit(16)?)
    })
}
