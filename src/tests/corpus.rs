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
