//! What a client is told when its request is not served: one `OpenAI` error object with its status.
//!
//! Promises: valid JSON whatever the texts hold, and that a message longer than a screen is cut.
//! Leaves to others: which status and code a refusal has (`peek`, `error`, `failure`).

use std::fmt::Write as _;

use bytes::Bytes;

/// The longest message that is sent, in bytes.
const MESSAGE_LIMIT_BYTES: usize = 2_000;

/// A request that is not served, as the client sees it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{code}: {message}")]
pub struct Refusal {
    /// The HTTP status.
    pub status: u16,
    /// A stable slug.
    pub code: &'static str,
    /// The field of the request that is at fault, as a path: `messages[2].role`.
    pub param: Option<String>,
    /// What happened, to which object, what to do.
    pub message: String,
}

impl Refusal {
    /// A request that no worker could serve either.
    pub(crate) fn bad_request(
        code: &'static str,
        param: Option<&str>,
        message: impl Into<String>,
    ) -> Self {
        Self {
            status: 400,
            code,
            param: param.map(str::to_owned),
            message: message.into(),
        }
    }

    /// The `OpenAI` error object.
    ///
    /// ```
    /// use conserve::dispatch::Refusal;
    /// let refusal = Refusal { status: 400, code: "invalid_type", param: Some("model".into()), message: "no \"model\"".into() };
    /// assert_eq!(
    ///     refusal.body(),
    ///     r#"{"error":{"message":"no \"model\"","type":"invalid_request_error","param":"model","code":"invalid_type"}}"#,
    /// );
    /// ```
    #[must_use]
    pub fn body(&self) -> Bytes {
        let mut text = String::with_capacity(self.message.len() + 128);
        text.push_str(r#"{"error":{"message":"#);
        push_json_string(&mut text, cut(&self.message));
        text.push_str(r#","type":"#);
        push_json_string(&mut text, self.kind());
        text.push_str(r#","param":"#);
        match &self.param {
            Some(param) => push_json_string(&mut text, cut(param)),
            None => text.push_str("null"),
        }
        text.push_str(r#","code":"#);
        push_json_string(&mut text, self.code);
        text.push_str("}}");
        Bytes::from(text)
    }

    /// The same as an event of a stream that has begun.
    #[must_use]
    pub fn event(&self) -> Bytes {
        let mut event = b"data: ".to_vec();
        event.extend_from_slice(&self.body());
        event.extend_from_slice(b"\n\n");
        Bytes::from(event)
    }

    fn kind(&self) -> &'static str {
        match self.status {
            401 => "authentication_error",
            403 => "permission_error",
            429 => "rate_limit_error",
            400..=499 => "invalid_request_error",
            _ => "server_error",
        }
    }
}

fn cut(text: &str) -> &str {
    let mut end = MESSAGE_LIMIT_BYTES.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// Appends `text` as a JSON string.
pub(crate) fn push_json_string(out: &mut String, text: &str) {
    out.push('"');
    for character in text.chars() {
        match character {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            control if control < ' ' || control == '\u{7f}' => {
                write!(out, "\\u{:04x}", u32::from(control)).expect("a String takes every text");
            }
            plain => out.push(plain),
        }
    }
    out.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_with_quotes_and_control_characters_stay_json() {
        let refusal = Refusal::bad_request(
            "invalid_json",
            Some("a\"b\u{1}"),
            "tab\t, quote\", back\\, é, \u{7f}",
        );
        let object: serde_json::Value = serde_json::from_slice(&refusal.body()).unwrap();
        assert_eq!(
            object["error"]["message"],
            "tab\t, quote\", back\\, é, \u{7f}"
        );
        assert_eq!(object["error"]["param"], "a\"b\u{1}");
        assert_eq!(object["error"]["type"], "invalid_request_error");
    }

    #[test]
    fn a_message_is_cut_between_characters() {
        let refusal = Refusal::bad_request("x", None, "é".repeat(5_000));
        let object: serde_json::Value = serde_json::from_slice(&refusal.body()).unwrap();
        assert_eq!(
            object["error"]["message"].as_str().unwrap().len(),
            MESSAGE_LIMIT_BYTES
        );
    }
}
