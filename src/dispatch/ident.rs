//! Which conversation does a request name? Headers first, then fields of the body.
//!
//! Promises: an id that passes is short, not empty and free of control characters; a request that names two different
//! conversations in one header is refused.
//! Leaves to others: keys and tenants (`identity`), requests that name none (`fingerprint`).

use std::borrow::Cow;

use super::config::DispatchConfig;
use super::headers::Header;
use super::json::Text;
use super::peek::Peek;
use super::refusal::Refusal;

/// The id that a request names, if it names one.
///
/// # Errors
/// 400 for an id that cannot be one.
pub(crate) fn named<'a>(
    headers: &'a [Header],
    peek: &Peek,
    body: &'a [u8],
    config: &DispatchConfig,
) -> Result<Option<Cow<'a, [u8]>>, Refusal> {
    for name in &config.conversation_headers {
        let mut values = headers
            .iter()
            .filter(|(found, _)| found.eq_ignore_ascii_case(name.as_bytes()));
        let Some((_, id)) = values.next() else {
            continue;
        };
        if values.any(|(_, other)| other != id) {
            let message = format!("header {name} occurs twice with different values; send it once");
            return Err(Refusal::bad_request(
                "invalid_conversation_id",
                Some(name),
                message,
            ));
        }
        check(id, name, config)?;
        return Ok(Some(Cow::Borrowed(id)));
    }
    let fields: [(&str, Option<Text>); 4] = [
        ("conversation", peek.conversation),
        ("previous_response_id", peek.previous_response_id),
        ("prompt_cache_key", peek.prompt_cache_key),
        ("metadata.user_id", peek.user_id),
    ];
    for (param, text) in fields {
        let Some(text) = text else { continue };
        let Some(id) = text.decode(body) else {
            let message =
                format!("{param} holds half of a surrogate pair; give an id of whole characters");
            return Err(Refusal::bad_request(
                "invalid_conversation_id",
                Some(param),
                message,
            ));
        };
        check(&id, param, config)?;
        return Ok(Some(id));
    }
    Ok(None)
}

fn check(id: &[u8], param: &str, config: &DispatchConfig) -> Result<(), Refusal> {
    let limit = config.max_conversation_id_bytes;
    let message = if id.is_empty() {
        format!("{param} is empty; leave it out or give an id")
    } else if id.len() > limit {
        format!(
            "{param} has {} bytes; a conversation id has at most {limit} (max_conversation_id_bytes)",
            id.len()
        )
    } else if let Some(at) = id.iter().position(u8::is_ascii_control) {
        format!("{param} holds a control character at byte {at}; use visible characters")
    } else {
        return Ok(());
    };
    Err(Refusal::bad_request(
        "invalid_conversation_id",
        Some(param),
        message,
    ))
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::super::peek::{Endpoint, peek};
    use super::*;

    fn find(headers: &[(&str, &str)], members: &str) -> Result<Option<Vec<u8>>, Refusal> {
        let body = format!(r#"{{"model":"m","messages":[{{}}]{members}}}"#);
        let config = DispatchConfig::default();
        let found = peek(body.as_bytes(), Endpoint::Chat, &config.limits()).unwrap();
        let bytes = |text: &str| Bytes::from(text.to_owned());
        let headers: Vec<Header> = headers
            .iter()
            .map(|(name, value)| (bytes(name), bytes(value)))
            .collect();
        named(&headers, &found, body.as_bytes(), &config).map(|id| id.map(Cow::into_owned))
    }

    #[test]
    fn the_first_match_wins() {
        let body = r#","conversation":"c","prompt_cache_key":"k""#;
        let id = |headers: &[(&str, &str)], body| {
            find(headers, body)
                .unwrap()
                .map(|id| String::from_utf8(id).unwrap())
        };
        assert_eq!(
            id(&[("x-session-id", "s"), ("X-Conversation-ID", "h")], body).as_deref(),
            Some("h")
        );
        assert_eq!(id(&[("x-session-id", "s")], body).as_deref(), Some("s"));
        assert_eq!(id(&[], body).as_deref(), Some("c"));
        assert_eq!(
            id(&[], r#","prompt_cache_key":"k","metadata":{"user_id":"u"}"#).as_deref(),
            Some("k")
        );
        assert_eq!(
            id(&[], r#","metadata":{"user_id":"u"}"#).as_deref(),
            Some("u")
        );
        assert_eq!(id(&[], ""), None);
    }

    #[test]
    fn ids_that_cannot_be_one_are_refused_with_their_place() {
        let long = "x".repeat(10_240);
        let refused = |headers: &[(&str, &str)], body: &str| {
            let refusal = find(headers, body).unwrap_err();
            assert_eq!(
                (refusal.status, refusal.code),
                (400, "invalid_conversation_id")
            );
            refusal.param.unwrap()
        };
        assert_eq!(
            refused(&[("x-conversation-id", &long)], ""),
            "x-conversation-id"
        );
        assert_eq!(
            refused(&[("x-conversation-id", "a\tb")], ""),
            "x-conversation-id"
        );
        assert_eq!(
            refused(&[("x-conversation-id", "")], ""),
            "x-conversation-id"
        );
        assert_eq!(
            refused(&[("x-session-id", "a"), ("x-session-id", "b")], ""),
            "x-session-id"
        );
        assert_eq!(
            refused(&[], r#","conversation":{"id":"a\u0000"}"#),
            "conversation"
        );
        assert_eq!(
            refused(&[], r#","prompt_cache_key":"\ud800""#),
            "prompt_cache_key"
        );
        assert!(
            find(&[("x-session-id", "a"), ("x-session-id", "a")], "").is_ok(),
            "twice the same"
        );
        assert!(
            find(&[("x-session-id", &"x".repeat(256))], "").is_ok(),
            "equal to the limit"
        );
    }
}
