//! The history of a request as hashes: which earlier requests may this one continue?
//!
//! Promises: equal bytes of the first k messages give equal hashes, whatever stands between or after them.
//! Leaves to others: which conversation a hash belongs to, and keeping tenants apart (`identity`). The hash is not keyed:
//! who makes two histories collide confuses only conversations of their own.

use xxhash_rust::xxh3::xxh3_128;

use super::peek::Message;

/// Hashes of one message history.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Fingerprint {
    /// Of the messages before each assistant message, the longest such prefix first.
    pub(crate) prefixes: Vec<u128>,
    /// Of all messages.
    pub(crate) whole: u128,
}

/// Hashes a history in one pass.
pub(crate) fn fingerprint(body: &[u8], messages: &[Message]) -> Fingerprint {
    let mut prefixes = Vec::new();
    let mut chain = 0_u128;
    for (place, message) in messages.iter().enumerate() {
        if message.by_assistant && place > 0 {
            prefixes.push(chain);
        }
        let mut link = [0; 32];
        link[..16].copy_from_slice(&chain.to_le_bytes());
        link[16..].copy_from_slice(&xxh3_128(message.span.of(body)).to_le_bytes());
        chain = xxh3_128(&link);
    }
    prefixes.reverse();
    Fingerprint {
        prefixes,
        whole: chain,
    }
}

#[cfg(test)]
mod tests {
    use super::super::peek::{Endpoint, Limits, messages, peek};
    use super::*;

    fn of(list: &str) -> Fingerprint {
        let body = format!(r#"{{"model":"m","messages":[{list}]}}"#);
        let limits = Limits {
            body_bytes: 1 << 20,
            depth: 64,
            messages: 100,
        };
        let found = peek(body.as_bytes(), Endpoint::Chat, &limits).unwrap();
        let messages = messages(body.as_bytes(), &found, &limits).unwrap();
        fingerprint(body.as_bytes(), &messages)
    }

    const U1: &str = r#"{"role":"user","content":"1"}"#;
    const A1: &str = r#"{"role":"assistant","content":"2"}"#;
    const T2: &str = r#"{"role":"tool","content":"3"}"#;

    #[test]
    fn a_turn_begins_with_the_history_of_the_one_before() {
        let first = of(U1);
        let second = of(&format!("{U1}, {A1},{T2}"));
        let third = of(&format!("{U1},{A1},\n{T2},{A1},{U1}"));
        assert!(
            first.prefixes.is_empty(),
            "no assistant message: a new conversation"
        );
        assert_eq!(second.prefixes, [first.whole]);
        assert_eq!(
            third.prefixes,
            [second.whole, first.whole],
            "the longest first"
        );
    }

    #[test]
    fn messages_in_another_order_or_cut_elsewhere_are_another_history() {
        assert_ne!(
            of(&format!("{U1},{T2}")).whole,
            of(&format!("{T2},{U1}")).whole
        );
        assert_ne!(of(&format!("{U1},{U1}")).whole, of(U1).whole);
        assert!(
            of(&format!("{A1},{U1}")).prefixes.is_empty(),
            "nothing stands before the first message"
        );
    }
}
