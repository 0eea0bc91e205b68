//! The bytes of a string: where plain ones end, and what escaped ones stand for.

/// The first quote, backslash or control character from `at` on, or the end.
pub(super) fn next_special(bytes: &[u8], mut at: usize) -> usize {
    while let Some(word) = bytes.get(at..).and_then(<[u8]>::first_chunk::<8>) {
        let found = specials(u64::from_le_bytes(*word));
        if found != 0 {
            return at + found.trailing_zeros() as usize / 8;
        }
        at += 8;
    }
    let rest = &bytes[at.min(bytes.len())..];
    at + rest
        .iter()
        .position(|&byte| is_special(byte))
        .unwrap_or(rest.len())
}

pub(super) fn is_special(byte: u8) -> bool {
    byte == b'"' || byte == b'\\' || byte < 0x20
}

/// The high bit of each byte of the word that is special.
pub(super) fn specials(word: u64) -> u64 {
    const LOW: u64 = 0x0101_0101_0101_0101;
    const HIGH: u64 = 0x8080_8080_8080_8080;
    // The high bit of each byte that is zero; exact for every byte, as nothing is carried from one to the next.
    let zero = |x: u64| !(((x & !HIGH) + !HIGH) | x) & HIGH;
    zero(word ^ (LOW * u64::from(b'"')))
        | zero(word ^ (LOW * u64::from(b'\\')))
        | zero(word & (LOW * 0xe0))
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
