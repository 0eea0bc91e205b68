//! What a worker's JSON says that the router acts on: a whole answer, or one event of a stream.
//!
//! Promises: reads and changes nothing; a field of a type that it does not expect is passed over.
//! Leaves to others: what follows from it (`sse`, `connector`, the state machine).

use super::json::{Kind, Malformed, Scanner, Span, Text};

/// The deepest nesting that is followed in a worker's answer.
const MAX_DEPTH: usize = 256;

/// Token counts as a worker reports them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) prompt: Option<u32>,
    pub(crate) output: Option<u32>,
    pub(crate) cached: Option<u32>,
}

/// How the worker says a choice ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Finish {
    ToolCalls,
    /// The model chose to end.
    Stop,
    Other,
}

/// One answer or event.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "independent findings, not states"
)]
pub(crate) struct Answer {
    /// The number of choices; `None` when there is no list of choices.
    pub(crate) choices: Option<usize>,
    /// Something was generated: content, reasoning, a tool call.
    pub(crate) token: bool,
    /// Something that the user sees was generated.
    pub(crate) content: bool,
    pub(crate) tool_call: bool,
    pub(crate) finish: Option<Finish>,
    pub(crate) usage: Option<Counts>,
    pub(crate) error: bool,
    /// The value of the member that names handed-over KV, when it is an object with members.
    pub(crate) handoff: Option<Span>,
    /// The same, whatever it is but null.
    pub(crate) told: Option<Span>,
    /// The inside of a string, not an empty one, that made this an answer with a token.
    pub(crate) text: Option<Span>,
    /// The first number that is acted on by nobody.
    pub(crate) stamp: Option<Span>,
}

impl Answer {
    /// The worker named handed-over KV in a way that nobody understands.
    pub(crate) fn tells_nonsense(&self) -> bool {
        self.told.is_some() && self.handoff.is_none()
    }
}

/// Reads one JSON object; `handoff` is the name of the member that describes handed-over KV.
///
/// # Errors
/// When the text is not one JSON object.
pub(crate) fn read(text: &[u8], handoff: &str) -> Result<Answer, Malformed> {
    let mut reader = Reader {
        text,
        scanner: Scanner::new(text, MAX_DEPTH),
        answer: Answer::default(),
    };
    if reader.scanner.kind()? != Kind::Object {
        return Err(Malformed::Expected {
            what: "expected an object",
            at: reader.scanner.position(),
        });
    }
    reader.members(|reader, key, kind| match key {
        b"choices" if kind == Kind::Array => reader.choices(),
        b"usage" if kind == Kind::Object => reader.usage(),
        b"error" => {
            reader.answer.error = kind != Kind::Null;
            reader.scanner.skip_value()
        }
        b"object" if kind == Kind::String => {
            let says_error = reader.string()? == b"error";
            reader.answer.error |= says_error;
            Ok(())
        }
        _ if key == handoff.as_bytes() && kind != Kind::Null => {
            let (_, span) = reader.scanner.value()?;
            let is_empty = span
                .of(text)
                .iter()
                .all(|byte| byte.is_ascii_whitespace() || matches!(byte, b'{' | b'}'));
            reader.answer.told = Some(span);
            reader.answer.handoff = (kind == Kind::Object && !is_empty).then_some(span);
            Ok(())
        }
        _ if kind == Kind::Number && reader.answer.stamp.is_none() => {
            reader.answer.stamp = Some(reader.scanner.value()?.1);
            Ok(())
        }
        _ => reader.scanner.skip_value(),
    })?;
    reader.scanner.finish()?;
    Ok(reader.answer)
}

struct Reader<'a> {
    text: &'a [u8],
    scanner: Scanner<'a>,
    answer: Answer,
}

impl<'a> Reader<'a> {
    /// Passes an object; `each` must pass the value of the key that it is given.
    fn members<F>(&mut self, mut each: F) -> Result<(), Malformed>
    where
        F: FnMut(&mut Self, &[u8], Kind) -> Result<(), Malformed>,
    {
        self.scanner.open(Kind::Object)?;
        let mut first = true;
        while let Some(key) = self.scanner.member(first)? {
            first = false;
            let kind = self.scanner.kind()?;
            match key.text.decode_name(self.text) {
                Some(key) => each(self, &key, kind)?,
                None => self.scanner.skip_value()?,
            }
        }
        Ok(())
    }

    fn choices(&mut self) -> Result<(), Malformed> {
        self.scanner.open(Kind::Array)?;
        let mut count = 0;
        while self.scanner.element(count == 0)? {
            count += 1;
            if self.scanner.kind()? != Kind::Object {
                self.scanner.skip_value()?;
                continue;
            }
            self.members(|reader, key, kind| match (key, kind) {
                (b"delta" | b"message", Kind::Object) => reader.generated(),
                (b"text", Kind::String) => {
                    reader.answer.content |= reader.token()?;
                    Ok(())
                }
                (b"token_ids", Kind::Array) => {
                    // The text of a first token may be empty: half a character.
                    let (_, span) = reader.scanner.value()?;
                    reader.answer.token |= span.of(reader.text).iter().any(u8::is_ascii_digit);
                    Ok(())
                }
                (b"finish_reason", Kind::String) => {
                    reader.answer.finish = Some(match reader.string()? {
                        b"tool_calls" | b"function_call" => Finish::ToolCalls,
                        b"stop" => Finish::Stop,
                        _ => Finish::Other,
                    });
                    Ok(())
                }
                _ => reader.scanner.skip_value(),
            })?;
        }
        self.answer.choices = Some(count);
        self.answer.tool_call |= self.answer.finish == Some(Finish::ToolCalls);
        Ok(())
    }

    /// A message, or the part of one that an event brings.
    fn generated(&mut self) -> Result<(), Malformed> {
        self.members(|reader, key, kind| match (key, kind) {
            (b"content" | b"refusal" | b"reasoning" | b"reasoning_content", Kind::String) => {
                let some = reader.token()?;
                reader.answer.content |= some && matches!(key, b"content" | b"refusal");
                Ok(())
            }
            (b"tool_calls", Kind::Array) => {
                let (_, span) = reader.scanner.value()?;
                let some = span.of(reader.text).contains(&b'{');
                reader.answer.token |= some;
                reader.answer.tool_call |= some;
                Ok(())
            }
            (b"function_call", Kind::Object) => {
                reader.answer.token = true;
                reader.answer.tool_call = true;
                reader.scanner.skip_value()
            }
            _ => reader.scanner.skip_value(),
        })
    }

    /// Passes a string and says whether it brings a token: whether it is not empty.
    fn token(&mut self) -> Result<bool, Malformed> {
        let text = self.scanner.string()?;
        let some = !text.is_empty();
        if some {
            self.answer.token = true;
            self.answer.text = Some(text.inside);
        }
        Ok(some)
    }

    fn usage(&mut self) -> Result<(), Malformed> {
        self.answer.usage = Some(Counts::default());
        self.members(|reader, key, kind| match (key, kind) {
            (b"prompt_tokens", Kind::Number) => reader.count(|counts| &mut counts.prompt),
            (b"completion_tokens", Kind::Number) => reader.count(|counts| &mut counts.output),
            (b"prompt_tokens_details", Kind::Object) => {
                reader.members(|reader, key, kind| match (key, kind) {
                    (b"cached_tokens", Kind::Number) => reader.count(|counts| &mut counts.cached),
                    _ => reader.scanner.skip_value(),
                })
            }
            _ => reader.scanner.skip_value(),
        })
    }

    fn count(&mut self, slot: impl Fn(&mut Counts) -> &mut Option<u32>) -> Result<(), Malformed> {
        let (_, span) = self.scanner.value()?;
        let number = std::str::from_utf8(span.of(self.text))
            .ok()
            .and_then(|digits| digits.parse().ok());
        if let Some(counts) = &mut self.answer.usage {
            *slot(counts) = number;
        }
        Ok(())
    }

    /// Passes a string and gives its bytes as they are spelled: the words compared with need no escapes.
    fn string(&mut self) -> Result<&'a [u8], Malformed> {
        let Text { inside, .. } = self.scanner.string()?;
        Ok(inside.of(self.text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn says(text: &str) -> Answer {
        read(text.as_bytes(), "kv_transfer_params")
            .unwrap_or_else(|error| panic!("{error}: {text}"))
    }

    #[test]
    fn usage_and_handoff_of_a_prefill_answer_are_found() {
        let text = r#"{"id":"x","choices":[{"message":{"content":"a"},"finish_reason":"length"}],
            "usage":{"prompt_tokens":120,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":16}},
            "kv_transfer_params": {"remote_block_ids":[[1,2]], "remote_port":5600}}"#;
        let answer = says(text);
        assert_eq!(
            answer.usage,
            Some(Counts {
                prompt: Some(120),
                output: Some(1),
                cached: Some(16)
            })
        );
        let handoff = answer.handoff.unwrap().of(text.as_bytes());
        assert_eq!(
            handoff, br#"{"remote_block_ids":[[1,2]], "remote_port":5600}"#,
            "as it is spelled"
        );
        assert_eq!(
            (answer.choices, answer.finish),
            (Some(1), Some(Finish::Other))
        );
    }

    #[test]
    fn no_handoff_is_no_handoff() {
        for text in ["{}", r#"{"kv_transfer_params":null}"#] {
            let answer = says(text);
            assert_eq!((answer.handoff, answer.told), (None, None), "{text}");
            assert!(!answer.tells_nonsense(), "{text}");
        }
        for value in ["{ }", "\"x\"", "[1]", "[{\"a\":1}]", "true", "0"] {
            let text = format!(r#"{{"kv_transfer_params": {value} }}"#);
            let answer = says(&text);
            assert_eq!(answer.handoff, None, "{text}");
            assert_eq!(answer.told.unwrap().of(text.as_bytes()), value.as_bytes());
            assert!(answer.tells_nonsense(), "{text}");
        }
    }

    #[test]
    fn tokens_content_and_tool_calls_are_told_apart() {
        let delta = |delta: &str| {
            let answer = says(&format!(
                r#"{{"choices":[{{"delta":{delta},"finish_reason":null}}]}}"#
            ));
            (answer.token, answer.content, answer.tool_call)
        };
        assert_eq!(
            delta(r#"{"role":"assistant","content":""}"#),
            (false, false, false)
        );
        assert_eq!(delta(r#"{"content":null}"#), (false, false, false));
        assert_eq!(delta(r#"{"content":"a"}"#), (true, true, false));
        assert_eq!(delta(r#"{"reasoning_content":"a"}"#), (true, false, false));
        assert_eq!(delta(r#"{"tool_calls":[]}"#), (false, false, false));
        assert_eq!(
            delta(r#"{"tool_calls":[{"index":0}]}"#),
            (true, false, true)
        );
        let text = says(r#"{"choices":[{"text":"a","finish_reason":"stop"}]}"#);
        assert_eq!(
            (text.token, text.content, text.finish),
            (true, true, Some(Finish::Stop))
        );
        assert!(says(r#"{"choices":[{"delta":{},"finish_reason":"tool_calls"}]}"#).tool_call);
    }

    #[test]
    fn errors_are_seen_in_both_spellings() {
        assert!(says(r#"{"error":{"message":"m"}}"#).error);
        assert!(says(r#"{"object":"error","message":"m"}"#).error);
        assert!(!says(r#"{"error":null,"choices":[{"delta":{"content":"\"error\":1"}}]}"#).error);
    }

    #[test]
    fn counts_that_are_no_counts_are_passed_over() {
        let usage = says(r#"{"usage":{"prompt_tokens":1.5,"completion_tokens":-1,"prompt_tokens_details":null}}"#).usage;
        assert_eq!(usage, Some(Counts::default()));
        assert_eq!(says(r#"{"usage":null}"#).usage, None);
        assert!(read(b"[1]", "x").is_err());
        assert!(read(b"<html>", "x").is_err());
    }
}
