//! The messages of a body, one by one.
//!
//! Promises: each is an object whose role, if it has one, occurs once. What else they hold is left to the worker.
//! Leaves to others: when to ask. A request that names its conversation is never read this way.

use super::faults::{duplicate, wrong_type};
use super::{Limits, Message, Name, Peek};
use crate::dispatch::json::{Kind, Scanner, Span};
use crate::dispatch::refusal::Refusal;

/// The messages of a body that passed [`peek`](super::peek).
///
/// # Errors
/// 400 for more than the limit, and for what is no message.
pub(crate) fn messages(body: &[u8], peek: &Peek, limits: &Limits) -> Result<Vec<Message>, Refusal> {
    let mut messages = Vec::new();
    let Some(field) = peek.field(Name::Messages) else {
        return Ok(messages);
    };
    let end = field.value.end as usize;
    // They stand in the body's object.
    let mut scanner = Scanner::at(&body[..end], field.value.start as usize, 1, limits.depth);
    scanner.open(Kind::Array)?;
    while scanner.element(messages.is_empty())? {
        let place = messages.len();
        if place == limits.messages {
            let message = format!("messages holds more than {place} messages (max_messages)");
            return Err(Refusal::bad_request(
                "too_many_messages",
                Some("messages"),
                message,
            ));
        }
        let kind = scanner.kind()?;
        if kind != Kind::Object {
            return Err(wrong_type(&format!("messages[{place}]"), "an object", kind));
        }
        let start = scanner.position();
        let by_assistant = by_assistant(&mut scanner, body, place)?;
        messages.push(Message {
            span: Span::new(start, scanner.position()),
            by_assistant,
        });
    }
    Ok(messages)
}

/// Passes one message; true when its role is `assistant`.
fn by_assistant(scanner: &mut Scanner<'_>, body: &[u8], place: usize) -> Result<bool, Refusal> {
    scanner.open(Kind::Object)?;
    let mut role = None;
    let mut first = true;
    while let Some(key) = scanner.member(first)? {
        first = false;
        let is_role = key.text.says(b"role", body);
        if is_role && role.is_some() {
            return Err(duplicate(&format!("messages[{place}].role")));
        }
        if is_role && scanner.kind()? == Kind::String {
            let text = scanner.string()?;
            role = Some(text.says(b"assistant", body));
        } else {
            scanner.pass_value()?;
            if is_role {
                role = Some(false);
            }
        }
    }
    Ok(role.unwrap_or(false))
}
