//! What may stand in a string, and what escapes stand for.

use super::Malformed;

/// Checks the escape that begins at `at`.
pub(super) fn check_escape(bytes: &[u8], at: usize) -> Result<(), Malformed> {
    match bytes.get(at + 1) {
        Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => Ok(()),
        Some(b'u') => match bytes.get(at + 2..at + 6) {
            Some(digits) if digits.iter().all(u8::is_ascii_hexdigit) => Ok(()),
            _ => Err(Malformed::Expected {
                what: "expected four hexadecimal digits",
                at: at + 2,
            }),
        },
        _ => Err(Malformed::Expected {
            what: "unknown escape",
            at,
        }),
    }
}

/// What is wrong with the string whose first byte stands at `at`: it has no end, or something in it is wrong.
#[cold]
pub(super) fn string_fault(bytes: &[u8], mut at: usize) -> Malformed {
    loop {
        let what = match bytes.get(at) {
            Some(b'\\') => match check_escape(bytes, at) {
                Ok(()) => {
                    at += 2;
                    continue;
                }
                Err(malformed) => return malformed,
            },
            Some(..0x20) => "control character inside a string",
            Some(_) => {
                at += 1;
                continue;
            }
            None => "a string without its end",
        };
        return Malformed::Expected { what, at };
    }
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
