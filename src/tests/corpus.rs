//! The committed inputs of `tests/corpus/`, and ways to spoil them.

use proptest::prelude::*;
use proptest::sample::Index;

/// Bodies of requests.
pub(crate) const BODIES: [&[u8]; 5] = [
    include_bytes!("../../tests/corpus/tools.json"),
    include_bytes!("../../tests/corpus/pretty.json"),
    include_bytes!("../../tests/corpus/duplicate.json"),
    include_bytes!("../../tests/corpus/halves.json"),
    include_bytes!("../../tests/corpus/history.json"),
];

/// Answers of engines, as event streams.
pub(crate) const STREAMS: [&[u8]; 2] = [
    include_bytes!("../../tests/corpus/stream.sse"),
    include_bytes!("../../tests/corpus/crlf.sse"),
];

/// Metrics of engines.
#[cfg(not(loom))]
pub(crate) const METRICS: [&[u8]; 1] = [include_bytes!("../../tests/corpus/vllm.prom")];

/// One of `inputs` with a few bytes changed, and pieces of the others put in.
pub(crate) fn spoiled(inputs: &'static [&'static [u8]]) -> impl Strategy<Value = Vec<u8>> {
    let edit = (
        any::<Index>(),
        0..5_u8,
        any::<u8>(),
        any::<Index>(),
        any::<Index>(),
    );
    let edits = prop::collection::vec(edit, 0..6);
    (prop::sample::select(inputs), edits).prop_map(move |(input, edits)| {
        let mut bytes = input.to_vec();
        for (place, what, byte, from, to) in edits {
            let at = place.index(bytes.len() + 1);
            match what {
                0 if at < bytes.len() => bytes[at] = byte,
                1 => bytes.insert(at, b"\"\\{}[],:0-u\n\r e."[usize::from(byte) % 16]),
                2 if at < bytes.len() => drop(bytes.remove(at)),
                3 => {
                    let other = inputs[usize::from(byte) % inputs.len()];
                    let (from, to) = (from.index(other.len()), to.index(other.len()));
                    let piece = other[from.min(to)..from.max(to)].to_vec();
                    bytes.splice(at..at, piece);
                }
                _ => bytes.truncate(at),
            }
        }
        bytes
    })
}

/// An object without what is in the containers that it holds: each becomes `0`. Byte by byte, with no regard to the kind of a
/// bracket.
pub(crate) fn hollow(text: &[u8]) -> Vec<u8> {
    let mut kept = Vec::new();
    let (mut depth, mut in_string, mut escaped) = (0_usize, false, false);
    for &byte in text {
        let was_escaped = std::mem::take(&mut escaped);
        let outside = depth < 2;
        match byte {
            b'\\' => escaped = !was_escaped,
            b'"' if !was_escaped => in_string = !in_string,
            b'[' | b'{' if !in_string => depth += 1,
            b']' | b'}' if !in_string => depth = depth.saturating_sub(1),
            _ => {}
        }
        match (outside, depth < 2) {
            (true, true) => kept.push(byte),
            (true, false) => kept.push(b'0'),
            _ => {}
        }
    }
    kept
}
