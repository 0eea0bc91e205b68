//! The two bodies that are sent to workers, made from the client's by cutting and joining spans.
//!
//! Promises: every byte of the client's body that no edit names arrives as it came: key order, white space and the
//! spelling of numbers too; a body without edits is shared, not copied.
//! Leaves to others: where the fields stand (`peek`), what the handoff adds (`connector`).

use bytes::{Bytes, BytesMut};

use super::json::{Kind, Span};
use super::peek::{Field, Name, Peek};

/// The prefiller's leg: one token, not streamed, with the handoff asked for.
pub(crate) fn prefill_body(body: &Bytes, peek: &Peek, handoff: Option<&[u8]>) -> Bytes {
    let mut edits = Edits::new(body);
    edits.remove(&[Name::StreamOptions, Name::MinTokens].map(|name| peek.field(name)));
    for name in [Name::MaxTokens, Name::MaxCompletionTokens, Name::N] {
        if let Some(field) = peek.field(name) {
            edits.replace(field.value, b"1");
        }
    }
    if let Some(field) = peek.field(Name::Stream) {
        edits.replace(field.value, b"false");
    }
    if peek.field(Name::MaxTokens).is_none() {
        edits.append(peek.close, Name::MaxTokens, b"1");
    }
    if let Some(handoff) = handoff {
        edits.append(peek.close, Name::KvTransferParams, handoff);
    }
    edits.join()
}

/// The decoder's leg: the client's body, with the handed-over KV named and, in a stream, the usage asked for.
pub(crate) fn decode_body(body: &Bytes, peek: &Peek, handoff: Option<&[u8]>) -> Bytes {
    let mut edits = Edits::new(body);
    if hides_usage(peek) {
        ask_for_usage(&mut edits, peek);
    }
    if let Some(handoff) = handoff {
        edits.append(peek.close, Name::KvTransferParams, handoff);
    }
    edits.join()
}

/// The text with `null` in place of a value.
pub(crate) fn nulled(text: &Bytes, value: Span) -> Bytes {
    let mut edits = Edits::new(text);
    edits.replace(value, b"null");
    edits.join()
}

/// True when the router asks for a usage event that the client did not ask for.
pub(crate) fn hides_usage(peek: &Peek) -> bool {
    let asked = peek
        .stream_options
        .and_then(|options| options.include_usage);
    peek.stream && asked.is_none_or(|field| field.kind != Kind::True)
}

fn ask_for_usage(edits: &mut Edits<'_>, peek: &Peek) {
    const WHOLE: &[u8] = br#"{"include_usage":true}"#;
    let Some(options) = peek.stream_options else {
        match peek.field(Name::StreamOptions) {
            Some(null) => edits.replace(null.value, WHOLE),
            None => edits.append(peek.close, Name::StreamOptions, WHOLE),
        }
        return;
    };
    match options.include_usage {
        Some(field) => edits.replace(field.value, b"true"),
        None if options.empty => edits.insert(options.close, br#""include_usage":true"#),
        None => edits.insert(options.close, br#","include_usage":true"#),
    }
    // Without the client's `include_usage` this option has no effect; with ours it would.
    if let Some(field) = options
        .continuous_usage
        .filter(|field| field.kind == Kind::True)
    {
        edits.replace(field.value, b"false");
    }
}

struct Edits<'a> {
    body: &'a Bytes,
    /// What stands in place of `start..end`; disjoint.
    list: Vec<(usize, usize, Vec<u8>)>,
}

impl<'a> Edits<'a> {
    fn new(body: &'a Bytes) -> Self {
        Self {
            body,
            list: Vec::new(),
        }
    }

    fn replace(&mut self, span: Span, text: &[u8]) {
        self.list
            .push((span.start as usize, span.end as usize, text.to_vec()));
    }

    fn insert(&mut self, at: u32, text: &[u8]) {
        self.list.push((at as usize, at as usize, text.to_vec()));
    }

    /// A member after all others. The object has one at least: `model` is never removed.
    fn append(&mut self, close: u32, name: Name, value: &[u8]) {
        let mut text = Vec::with_capacity(name.text().len() + value.len() + 4);
        text.extend_from_slice(b",\"");
        text.extend_from_slice(name.text().as_bytes());
        text.extend_from_slice(b"\":");
        text.extend_from_slice(value);
        self.insert(close, &text);
    }

    /// Takes members out, each with one comma: the one behind it as long as nothing stands before it, else the one before.
    fn remove<const N: usize>(&mut self, fields: &[Option<&Field>; N]) {
        let mut fields: Vec<&Field> = fields.iter().flatten().copied().collect();
        fields.sort_unstable_by_key(|field| field.index);
        for (removed_before, field) in fields.into_iter().enumerate() {
            let all_before_are_removed = field.index as usize == removed_before;
            let (start, end) = match (
                all_before_are_removed,
                field.comma_before,
                field.comma_after,
            ) {
                (true, _, Some(comma)) => (field.member.start, comma + 1),
                (false, Some(comma), _) => (comma, field.member.end),
                (true, _, None) | (false, None, _) => (field.member.start, field.member.end),
            };
            self.list.push((start as usize, end as usize, Vec::new()));
        }
    }

    fn join(mut self) -> Bytes {
        if self.list.is_empty() {
            return self.body.clone();
        }
        // Stable: insertions at one place keep their order.
        self.list.sort_by_key(|edit| edit.0);
        let added: usize = self.list.iter().map(|edit| edit.2.len()).sum();
        let mut joined = BytesMut::with_capacity(self.body.len() + added);
        let mut at = 0;
        for (start, end, text) in &self.list {
            joined.extend_from_slice(&self.body[at..*start]);
            joined.extend_from_slice(text);
            at = *end;
        }
        joined.extend_from_slice(&self.body[at..]);
        joined.freeze()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::value::RawValue;

    use super::super::json::Scanner;
    use super::super::peek::{Endpoint, Limits, peek};
    use super::*;
    use crate::tests::corpus::{BODIES, hollow, spoiled};

    const LIMITS: Limits = Limits {
        body_bytes: 1 << 20,
        depth: 64,
        messages: 100,
    };

    fn read(body: &str) -> (Bytes, Peek) {
        let bytes = Bytes::from(body.to_owned());
        let found = peek(&bytes, Endpoint::Chat, &LIMITS).expect("a body that passes");
        (bytes, found)
    }

    fn prefill(body: &str) -> String {
        let (bytes, found) = read(body);
        String::from_utf8(prefill_body(&bytes, &found, Some(b"{\"p\":1}")).to_vec()).unwrap()
    }

    fn decode(body: &str, handoff: Option<&str>) -> String {
        let (bytes, found) = read(body);
        String::from_utf8(decode_body(&bytes, &found, handoff.map(str::as_bytes)).to_vec()).unwrap()
    }

    #[test]
    fn prefill_asks_for_one_token_and_no_stream() {
        assert_eq!(
            prefill(
                r#"{"stream_options":{"include_usage":true}, "min_tokens":3 ,"model":"m", "messages":[{}],"n":4,"stream": true }"#
            ),
            r#"{ "model":"m", "messages":[{}],"n":1,"stream": false ,"max_tokens":1,"kv_transfer_params":{"p":1}}"#,
        );
        assert_eq!(
            prefill(
                r#"{"model":"m","messages":[{}],"max_tokens":9,"min_tokens":1,"stream_options":null,"max_completion_tokens":7}"#
            ),
            r#"{"model":"m","messages":[{}],"max_tokens":1,"max_completion_tokens":1,"kv_transfer_params":{"p":1}}"#,
        );
        assert_eq!(
            prefill(r#"{"min_tokens":1,"model":"m","messages":[{}],"stream_options":null}"#),
            r#"{"model":"m","messages":[{}],"max_tokens":1,"kv_transfer_params":{"p":1}}"#,
            "the first and the last member leave no comma behind",
        );
    }

    #[test]
    fn a_turn_without_edits_shares_the_clients_bytes() {
        let (bytes, found) =
            read(r#"{"model":"m","messages":[{}],"temperature":0.70,"seed":9007199254740993}"#);
        let sent = decode_body(&bytes, &found, None);
        assert_eq!(sent.as_ptr(), bytes.as_ptr(), "no copy");
        assert_eq!(sent, bytes);
    }

    #[test]
    fn a_stream_asks_for_usage_once() {
        let with = |options: &str| {
            decode(
                &format!(r#"{{"model":"m","messages":[{{}}],"stream":true{options}}}"#),
                None,
            )
        };
        let sent =
            |options: &str| format!(r#"{{"model":"m","messages":[{{}}],"stream":true{options}}}"#);
        assert_eq!(
            with(""),
            sent(r#","stream_options":{"include_usage":true}"#)
        );
        assert_eq!(
            with(r#","stream_options":null"#),
            sent(r#","stream_options":{"include_usage":true}"#)
        );
        assert_eq!(
            with(r#","stream_options":{ }"#),
            sent(r#","stream_options":{ "include_usage":true}"#)
        );
        assert_eq!(
            with(r#","stream_options":{"x":1}"#),
            sent(r#","stream_options":{"x":1,"include_usage":true}"#)
        );
        assert_eq!(
            with(r#","stream_options":{"continuous_usage_stats":true,"include_usage":false}"#),
            sent(r#","stream_options":{"continuous_usage_stats":false,"include_usage":true}"#),
        );
        let asked = r#","stream_options":{"include_usage":true,"continuous_usage_stats":true}"#;
        assert_eq!(
            with(asked),
            sent(asked),
            "the client's own wish is left alone"
        );
    }

    /// The members of an object as they are spelled.
    fn members(body: &str) -> Vec<(String, String)> {
        assert!(
            serde_json::from_slice::<&RawValue>(&hollow(body.as_bytes())).is_ok(),
            "not JSON: {body}"
        );
        let mut scanner = Scanner::new(body.as_bytes(), 64);
        scanner.kind().unwrap();
        scanner.open(Kind::Object).unwrap();
        let mut found = Vec::new();
        while let Some(key) = scanner.member(found.is_empty()).unwrap() {
            scanner.skip_space();
            let start = scanner.position();
            scanner.pass_value().unwrap();
            let value = Span::new(start, scanner.position());
            let text = |span: Span| String::from_utf8(span.of(body.as_bytes()).to_vec()).unwrap();
            found.push((text(key.text.inside), text(value)));
        }
        found
    }

    fn spelled_body() -> impl Strategy<Value = String> {
        let space = prop_oneof![Just(""), Just(" "), Just("\n\t")];
        let member = prop_oneof![
            Just(r#""stream":true"#),
            Just(r#""stream" : false"#),
            Just(r#""stream":null"#),
            Just(r#""n":3"#),
            Just(r#""stream_options":{"include_usage": false}"#),
            Just(r#""stream_options":null"#),
            Just(r#""stream_options":{"z":[1]}"#),
            Just(r#""min_tokens": 5"#),
            Just(r#""max_tokens":1e2"#),
            Just(r#""max_completion_tokens":4"#),
            Just(r#""temperature":0.70"#),
            Just(r#""x":{"stream":[ 1.0 , 2]}"#),
        ];
        (
            prop::collection::vec((member, space), 0..8),
            any::<prop::sample::Index>(),
        )
            .prop_map(|(mut all, place)| {
                let name = |text: &str| text.split('"').nth(1).map(str::to_owned);
                let mut seen = std::collections::HashSet::new();
                all.retain(|(text, _)| seen.insert(name(text)));
                all.insert(
                    place.index(all.len() + 1),
                    (r#""model":"m","messages":[ {} ]"#, " "),
                );
                let members: Vec<_> = all
                    .into_iter()
                    .map(|(text, space)| format!("{space}{text}{space}"))
                    .collect();
                format!("{{{}}}", members.join(","))
            })
    }

    /// The members that no leg edits, however their names are spelled.
    fn kept(body: &[u8]) -> Vec<(String, String)> {
        const EDITED: [&str; 7] = [
            "stream",
            "stream_options",
            "n",
            "min_tokens",
            "max_tokens",
            "max_completion_tokens",
            "kv_transfer_params",
        ];
        let mut all = members(std::str::from_utf8(body).expect("JSON is UTF-8"));
        all.retain(|(name, _)| {
            let name: Result<String, _> = serde_json::from_str(&format!("\"{name}\""));
            !name.is_ok_and(|name| EDITED.contains(&name.as_str()))
        });
        all
    }

    proptest! {
        #[test]
        fn only_the_intended_members_differ(body in spelled_body()) {
            let before = members(&body);
            let has = |name: &str| before.iter().any(|member| member.0 == name);
            let mut wanted: Vec<_> = before
                .iter()
                .filter(|member| member.0 != "stream_options" && member.0 != "min_tokens")
                .map(|(name, value)| match name.as_str() {
                    "n" | "max_tokens" | "max_completion_tokens" => (name.clone(), "1".to_owned()),
                    "stream" => (name.clone(), "false".to_owned()),
                    _ => (name.clone(), value.clone()),
                })
                .collect();
            if !has("max_tokens") {
                wanted.push(("max_tokens".into(), "1".into()));
            }
            wanted.push(("kv_transfer_params".into(), "{\"p\":1}".into()));
            prop_assert_eq!(members(&prefill(&body)), wanted);

            let after = members(&decode(&body, Some("{}")));
            let kept: Vec<_> = after
                .iter()
                .filter(|member| member.0 != "kv_transfer_params" && member.0 != "stream_options")
                .collect();
            prop_assert_eq!(kept, before.iter().filter(|member| member.0 != "stream_options").collect::<Vec<_>>());
            let (_, found) = read(&body);
            let options = after.iter().find(|member| member.0 == "stream_options").map(|member| member.1.as_str());
            if found.stream {
                let options: serde_json::Value = serde_json::from_str(options.unwrap()).unwrap();
                prop_assert_eq!(&options["include_usage"], &serde_json::Value::Bool(true));
            } else {
                let as_it_came = before.iter().find(|member| member.0 == "stream_options");
                prop_assert_eq!(options, as_it_came.map(|member| member.1.as_str()));
            }
        }

        #[test]
        fn a_spoiled_body_keeps_every_byte_of_what_is_not_edited(bytes in spoiled(&BODIES)) {
            let bytes = Bytes::from(bytes);
            let Ok(found) = peek(&bytes, Endpoint::Chat, &LIMITS) else {
                return Ok(());
            };
            let whole = kept(&bytes);
            prop_assert_eq!(&kept(&prefill_body(&bytes, &found, Some(b"{}"))), &whole);
            prop_assert_eq!(&kept(&decode_body(&bytes, &found, Some(b"{}"))), &whole);
        }
    }
}
