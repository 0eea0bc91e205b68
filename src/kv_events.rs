//! A worker's KV events, as vLLM publishes them: which blocks its prefix cache took in and let go.
//!
//! A batch is `MessagePack`: `[timestamp, [event, ...], rank]`, where an event is a map with a `type`.
//! Promises: pure, never panics, whatever the bytes; what an event says beyond what is needed is
//! skipped, so that a later engine may say more.
//! Leaves to others: sockets (`watch`), order and gaps, and what the blocks mean (`residency`).

mod msgpack;

use self::msgpack::{Reader, Value};
use crate::units::ConversationKey;

/// Bytes that are no batch of events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a batch of KV events: malformed at byte {at}")]
pub struct Malformed {
    /// Where reading stopped.
    pub at: usize,
}

/// One event. A block is named by 64 bits of the engine's own hash of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum KvEvent {
    /// Blocks were taken into the prefix cache, or found there, for a request of `session`.
    Stored {
        blocks: Vec<u64>,
        session: Option<ConversationKey>,
    },
    /// Blocks were evicted.
    Removed { blocks: Vec<u64> },
    /// Nothing is left.
    Cleared,
}

/// The events of one batch, in their order. Those of other media than the accelerator's memory, and those of types not
/// known here, are left out.
pub(crate) fn decode(payload: &[u8]) -> Result<Vec<KvEvent>, Malformed> {
    let mut reader = Reader::new(payload);
    read_batch(&mut reader).ok_or(Malformed { at: reader.at() })
}

fn read_batch(reader: &mut Reader<'_>) -> Option<Vec<KvEvent>> {
    let members = reader.array()?;
    if members < 2 {
        return None;
    }
    reader.skip()?;
    let mut events = Vec::new();
    for _ in 0..reader.array()? {
        read_event(reader, &mut events)?;
    }
    for _ in 2..members {
        reader.skip()?;
    }
    Some(events)
}

/// Adds the event unless it does not matter; `None` for what cannot be read.
fn read_event(reader: &mut Reader<'_>, events: &mut Vec<KvEvent>) -> Option<()> {
    let (mut kind, mut blocks, mut session) = (None, Vec::new(), None);
    let (mut here, mut group) = (true, 0);
    for _ in 0..reader.map()? {
        match reader.value()? {
            Value::Text(b"type") => kind = text(reader.value()?),
            Value::Text(b"block_hashes") => {
                for _ in 0..reader.array()? {
                    blocks.push(hash(&reader.value()?)?);
                }
            }
            Value::Text(b"session_id") => session = key(&reader.value()?),
            Value::Text(b"medium") => {
                here &= matches!(reader.value()?, Value::Nil | Value::Text(b"GPU"));
            }
            Value::Text(b"locality") => here &= !matches!(reader.value()?, Value::Text(b"REMOTE")),
            Value::Text(b"group_idx") => {
                if let Value::Int(index) = reader.value()? {
                    group = index;
                }
            }
            _ => reader.skip()?,
        }
    }
    // The same hash in two groups of layers is two blocks.
    for block in &mut blocks {
        *block ^= group.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
    match kind {
        Some(b"BlockStored") if here => events.push(KvEvent::Stored { blocks, session }),
        Some(b"BlockRemoved") if here => events.push(KvEvent::Removed { blocks }),
        Some(b"AllBlocksCleared") => events.push(KvEvent::Cleared),
        _ => {}
    }
    Some(())
}

fn text(value: Value<'_>) -> Option<&[u8]> {
    match value {
        Value::Text(text) => Some(text),
        _ => None,
    }
}

/// A hash is a number, or bytes of which any eight do.
fn hash(value: &Value<'_>) -> Option<u64> {
    match *value {
        Value::Int(number) => Some(number),
        Value::Bytes(bytes) | Value::Text(bytes) => {
            let mut eight = [0; 8];
            for (to, from) in eight.iter_mut().zip(bytes) {
                *to = *from;
            }
            Some(u64::from_be_bytes(eight))
        }
        _ => None,
    }
}

/// The conversation that the router named as the session of its request; other sessions are nobody's.
fn key(value: &Value<'_>) -> Option<ConversationKey> {
    match value {
        Value::Text(text) if text.len() == 32 => std::str::from_utf8(text).ok()?.parse().ok(),
        _ => None,
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
