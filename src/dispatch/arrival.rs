//! A body while it arrives: what can be said of it before it is whole, while the bytes that came last are still at hand.
//!
//! Promises: a body is read the same with it and without.
//! Leaves to others: the bytes themselves (the door), what they mean (`peek`).

use super::json::Ahead;
use super::utf8::is_utf8;

/// What is known of a body that is growing.
#[derive(Debug, Clone)]
pub struct Arrival {
    pub(crate) containers: Ahead,
    /// So many bytes are whole characters.
    pub(crate) utf8: usize,
    /// What follows them is no character.
    is_broken: bool,
}

impl Arrival {
    pub(crate) fn new(max_depth: usize) -> Self {
        Self {
            containers: Ahead::new(max_depth),
            utf8: 0,
            is_broken: false,
        }
    }

    /// The body has grown to this: what there was before is unchanged.
    pub fn grown(&mut self, body: &[u8]) {
        self.containers.grown(body);
        let end = body.len() - begun(body);
        if self.is_broken || end <= self.utf8 {
            return;
        }
        self.is_broken = !is_utf8(&body[self.utf8..end]);
        if !self.is_broken {
            self.utf8 = end;
        }
    }
}

/// How many bytes at the end of a text are the beginning of a character that could go on.
fn begun(text: &[u8]) -> usize {
    let mut last = text.iter().rev().take(3).enumerate();
    match last.find(|(_, byte)| **byte & 0xc0 != 0x80) {
        Some((behind, 0xc0..0xe0)) if behind < 1 => behind + 1,
        Some((behind, 0xe0..0xf0)) if behind < 2 => behind + 1,
        Some((behind, 0xf0..)) if behind < 3 => behind + 1,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::peek::{Endpoint, Limits, peek, peek_arrived};
    use super::*;
    use crate::tests::corpus::{BODIES, spoiled};

    const LIMITS: Limits = Limits {
        body_bytes: 1 << 20,
        depth: 12,
        messages: 100,
    };

    fn arrived(body: &[u8], cuts: &[usize]) -> Arrival {
        let mut arrival = Arrival::new(LIMITS.depth);
        for cut in cuts {
            arrival.grown(&body[..*cut]);
        }
        arrival
    }

    #[track_caller]
    fn reads_the_same(body: &[u8], cuts: &[usize]) {
        let arrival = arrived(body, cuts);
        assert_eq!(
            peek_arrived(body, Endpoint::Chat, &LIMITS, &arrival),
            peek(body, Endpoint::Chat, &LIMITS),
            "{} cut at {cuts:?}",
            String::from_utf8_lossy(body)
        );
    }

    #[test]
    fn a_body_cut_at_any_byte_is_read_the_same() {
        let blob = format!("data:{}", "A".repeat(2_100));
        let gap = " ".repeat(70);
        let (down, up) = ("[".repeat(20), "]".repeat(20));
        let many = r#""x":[],"#.repeat(70);
        for body in [
            format!(
                r#"{{"a":"é","tools":[{{"漢":"\\\"]"}}],"model":"m","messages":[{{"c":"{gap}"}},[]{gap}],"n":1}}"#
            ),
            format!(r#"{{"a":"{blob}","model":"m","messages":[{{"c":"{blob}"}}],"b":"{blob}"}}"#),
            format!(r#"{{"model":"m","messages":[{{"c":"😀{gap}😀"}}],"x":"{gap}\ud83d\ude00"}}"#),
            format!(r#"{{"model":"m","messages":[{gap}{{"c":{down}1{up}}}]}}"#),
            format!(r#"{{{many}"model":"m","messages":[{{}}]}}"#),
            format!(r#"]{gap}{gap}{{"model":"m","messages":[{{}}]}}"#),
        ] {
            for cut in 0..=body.len() {
                reads_the_same(body.as_bytes(), &[cut]);
                reads_the_same(body.as_bytes(), &[cut / 2, cut]);
            }
        }
    }

    #[test]
    fn bytes_that_are_no_character_are_told_wherever_they_came() {
        for wrong in [
            &b"\x80"[..],
            b"\xc3",
            b"\xe6\xbc",
            b"\xf0\x9f\x98",
            b"\xed\xa0\x80",
            b"\xff",
        ] {
            let body = [b"{\"model\":\"\xc3\xa9", wrong, b"\",\"messages\":[{}]}"].concat();
            for cut in 0..=body.len() {
                reads_the_same(&body, &[cut]);
                reads_the_same(&body, &[cut, body.len()]);
            }
        }
    }

    #[test]
    fn what_came_is_not_looked_at_again() {
        let text = "é".repeat(5_000);
        let body = format!(r#"{{"model":"m","messages":[{{"c":"{text}"}}]}}"#);
        let arrival = arrived(body.as_bytes(), &[100, 5_001, body.len()]);
        assert_eq!(arrival.utf8, body.len());
        // What was known of other bytes is believed of these, so nobody reads them.
        let mut other = body.into_bytes();
        other[40..9_000].fill(b']');
        assert!(peek_arrived(&other, Endpoint::Chat, &LIMITS, &arrival).is_ok());
        assert!(peek(&other, Endpoint::Chat, &LIMITS).is_err());
    }

    proptest! {
        #[test]
        fn a_body_of_the_corpus_is_read_the_same(
            bytes in spoiled(&BODIES), cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..6)
        ) {
            let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
            cuts.sort_unstable();
            reads_the_same(&bytes, &cuts);
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..300), cut in any::<prop::sample::Index>()) {
            reads_the_same(&bytes, &[cut.index(bytes.len() + 1), bytes.len()]);
        }
    }
}
