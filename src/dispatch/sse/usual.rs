//! Tells events that say what the one before said: most events of a stream differ in a word of text alone, and in the stamp
//! of the time where an engine puts one on each.
//!
//! Promises: an event that is taken for such a one would be read to the same `Answer`, but for where its parts lie.

use std::ops::Range;

use crate::dispatch::answer::Answer;

/// A larger event is read each time.
const LIMIT_BYTES: usize = 4 << 10;

/// The last event that was read and brought text.
#[derive(Debug, Default)]
pub(super) struct Usual {
    event: Vec<u8>,
    /// The digits of a number that was passed over; empty where there is none before the text.
    stamp: Range<usize>,
    /// Between the quotes.
    text: Range<usize>,
    answer: Option<Answer>,
}

impl Usual {
    /// Remembers `event`, whose data are its bytes from `at` on and say `answer`.
    pub(super) fn learn(&mut self, event: &[u8], at: usize, answer: &Answer) {
        let Some(text) = answer.text.filter(|_| event.len() <= LIMIT_BYTES) else {
            return;
        };
        let here = |start: u32, end: u32| at + start as usize..at + end as usize;
        let stamp = answer.stamp.filter(|stamp| stamp.end <= text.start);
        self.stamp = stamp.map_or(0..0, |stamp| here(stamp.start, stamp.end));
        self.text = here(text.start, text.end);
        self.event.clear();
        self.event.extend_from_slice(event);
        self.answer = Some(answer.clone());
    }

    /// What `event` says, if it is like the last one.
    pub(super) fn says(&self, event: &[u8]) -> Option<&Answer> {
        let answer = self.answer.as_ref()?;
        let text = event
            .strip_prefix(&self.event[..self.stamp.start])
            .and_then(|rest| self.after_stamp(rest))?
            .strip_prefix(&self.event[self.stamp.end..self.text.start])?
            .strip_suffix(&self.event[self.text.end..])?;
        let is_plain = |&byte: &u8| byte >= b' ' && byte != b'"' && byte != b'\\';
        (!text.is_empty() && text.iter().all(is_plain)).then_some(answer)
    }

    fn after_stamp<'a>(&self, bytes: &'a [u8]) -> Option<&'a [u8]> {
        if self.stamp.is_empty() {
            return Some(bytes);
        }
        let digits = bytes.iter().take_while(|byte| byte.is_ascii_digit());
        let count = digits.count();
        // 07 is no number.
        let is_number = count == 1 || (count > 1 && bytes[0] != b'0');
        is_number.then(|| &bytes[count..])
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::dispatch::answer;
    use crate::dispatch::json::Span;

    const PLAIN: &str = r#"{"id":"x","created":17,"choices":[{"index":0,"delta":{"content":" tok"},"finish_reason":null}]}"#;

    fn learned(data: &str) -> Usual {
        let mut usual = Usual::default();
        let event = format!("data: {data}\n\n");
        usual.learn(
            event.as_bytes(),
            6,
            &answer::read(data.as_bytes(), "").unwrap(),
        );
        usual
    }

    fn without_places(answer: &Answer) -> Answer {
        let there = |place: Option<Span>| place.map(|_| Span::new(0, 0));
        Answer {
            handoff: there(answer.handoff),
            told: there(answer.told),
            text: there(answer.text),
            stamp: there(answer.stamp),
            ..answer.clone()
        }
    }

    fn is_usual(usual: &Usual, data: &str) -> bool {
        usual.says(format!("data: {data}\n\n").as_bytes()).is_some()
    }

    #[test]
    fn another_word_and_another_stamp_say_the_same() {
        let usual = learned(PLAIN);
        for (from, to) in [
            (" tok", "x"),
            (" tok", "漢"),
            (":17,", ":1800000000000000000,"),
            (":17,", ":0,"),
        ] {
            assert!(is_usual(&usual, &PLAIN.replace(from, to)), "{to}");
        }
    }

    #[test]
    fn what_may_say_more_is_read() {
        let usual = learned(PLAIN);
        for (from, to) in [
            (" tok", ""),
            (" tok", r"\n"),
            (" tok", r#"a","role":"b"#),
            (" tok", "\u{1}"),
            (":17,", ":07,"),
            (":17,", ":,"),
            (":17,", ":1e3,"),
            (":17,", ":17,\"error\":1,"),
            ("null", r#""stop""#),
            ("]}", r#"],"usage":{"prompt_tokens":1}}"#),
        ] {
            assert!(!is_usual(&usual, &PLAIN.replace(from, to)), "{to}");
        }
        assert!(!is_usual(&usual, "[DONE]"));
    }

    #[test]
    fn numbers_that_are_acted_on_are_no_stamps() {
        let usage = PLAIN.replace(
            r#""created":17"#,
            r#""usage":{"prompt_tokens":17,"completion_tokens":1}"#,
        );
        assert!(!is_usual(&learned(&usage), &usage.replace("17", "18")));
        let error = PLAIN.replace("created", "error");
        assert!(!is_usual(&learned(&error), &error.replace("17", "18")));
    }

    #[test]
    fn only_what_brought_text_is_remembered() {
        for data in [
            PLAIN.replace(" tok", ""),
            PLAIN.replace(" tok", &"a".repeat(LIMIT_BYTES)),
        ] {
            assert!(!is_usual(&learned(&data), &data), "{} bytes", data.len());
        }
    }

    proptest! {
        #[test]
        fn what_is_not_read_says_what_reading_finds(
            members in prop::sample::subsequence(vec![
                r#""id":"x""#, r#""created":17"#, r#""error":null"#, r#""error":3"#, r#""usage":{"prompt_tokens":5}"#,
                r#""object":"error""#, r#""":8"#,
                r#""choices":[{"delta":{"reasoning":"a","content":"b"},"finish_reason":"stop"}]"#,
                r#""choices":[{"delta":{"content":"é"}},{"text":"c"}]"#,
                r#""choices":[{"delta":{"tool_calls":[{}],"refusal":"d"},"token_ids":[9]}]"#,
            ], 1..6).prop_shuffle(),
            at in any::<prop::sample::Index>(),
            part in 0..3_usize,
            take in 0..4_usize,
            put in prop::collection::vec(prop::sample::select(r#"0179.e-"\,:{}[]abé "#.as_bytes().to_vec()), 0..5),
        ) {
            let data = format!("{{{}}}", members.join(","));
            let usual = learned(&data);
            let mut event = format!("data: {data}\n\n").into_bytes();
            let part = [6..6 + data.len(), usual.text.clone(), usual.stamp.clone()][part].clone();
            let at = part.start + at.index(part.len() + 1);
            event.splice(at..(at + take).min(part.end.max(at)), put);
            let other = &event[6..event.len() - 2];
            if let Some(said) = usual.says(&event) {
                let read = answer::read(other, "").expect("it is like one that was read");
                prop_assert_eq!(without_places(said), without_places(&read));
            }
        }
    }
}
