//! The bytes of a string: where plain ones end, and what escaped ones stand for.

use wide::u8x16;

/// Bytes looked at together.
const BLOCK: usize = 32;

/// How a string goes on from its first byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ended {
    /// At this quote.
    Quote { at: usize, escaped: bool },
    /// It does not: what is wrong there.
    Wrong { what: &'static str, at: usize },
}

/// Passes the bytes of a string whose first one stands at `at`.
///
/// Code and tool output hold an escape every few bytes, so one block is looked at once, however many escapes it holds.
pub(super) fn pass_string(bytes: &[u8], mut at: usize) -> Ended {
    let mut escaped = false;
    loop {
        let Some(block) = bytes.get(at..).and_then(<[u8]>::first_chunk::<BLOCK>) else {
            return pass_slowly(bytes, at, escaped);
        };
        let mut found = specials(block);
        let mut next = BLOCK;
        while found != 0 {
            let place = found.trailing_zeros() as usize;
            match bytes[at + place] {
                b'"' => {
                    return Ended::Quote {
                        at: at + place,
                        escaped,
                    };
                }
                b'\\' => match pass_escape(bytes, at + place) {
                    Ok(end) => {
                        escaped = true;
                        let behind = end - at;
                        if behind >= BLOCK {
                            next = behind;
                            break;
                        }
                        found &= u32::MAX << behind;
                    }
                    Err(wrong) => return wrong,
                },
                _ => return control_character(at + place),
            }
        }
        at += next;
    }
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

/// Bit i is set when byte i is a quote, a backslash or a control character.
#[inline]
pub(super) fn specials(block: &[u8; BLOCK]) -> u32 {
    let (low, high) = block.split_at(BLOCK / 2);
    let half = |bytes: &[u8]| {
        let text = u8x16::new(bytes.try_into().expect("half of a block"));
        let last_control = u8x16::splat(0x1f);
        let found = text.cmp_eq(u8x16::splat(b'"'))
            | text.cmp_eq(u8x16::splat(b'\\'))
            | text.max(last_control).cmp_eq(last_control);
        found.move_mask().cast_unsigned()
    };
    half(low) | half(high) << (BLOCK / 2)
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
