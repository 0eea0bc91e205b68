//! What can be wrong with a field, in words.

use super::Name;
use crate::dispatch::json::Kind;
use crate::dispatch::refusal::Refusal;

pub(super) fn check_type(name: Name, kind: Kind) -> Result<(), Refusal> {
    let (allowed, noun): (&[Kind], _) = match name {
        Name::Model => (&[Kind::String], "a string"),
        Name::Messages => (&[Kind::Array], "a list of messages"),
        Name::Prompt => (
            &[Kind::String, Kind::Array],
            "a string or a list of token ids",
        ),
        Name::Stream => (&[Kind::True, Kind::False, Kind::Null], "true or false"),
        Name::StreamOptions | Name::Metadata | Name::VllmXargs => {
            (&[Kind::Object, Kind::Null], "an object")
        }
        Name::MaxTokens | Name::MaxCompletionTokens | Name::MinTokens | Name::N => {
            (&[Kind::Number, Kind::Null], "a number")
        }
        Name::Conversation => (
            &[Kind::String, Kind::Object, Kind::Null],
            "a string or an object with an id",
        ),
        Name::PreviousResponseId | Name::PromptCacheKey => {
            (&[Kind::String, Kind::Null], "a string")
        }
        Name::KvTransferParams | Name::EcTransferParams => return Ok(()),
    };
    if allowed.contains(&kind) {
        Ok(())
    } else {
        Err(wrong_type(name.text(), noun, kind))
    }
}

pub(super) fn missing(name: Name) -> Refusal {
    let name = name.text();
    Refusal::bad_request(
        "missing_field",
        Some(name),
        format!("the request body has no field {name}; add it"),
    )
}

pub(super) fn wrong_type(path: &str, wanted: &str, kind: Kind) -> Refusal {
    Refusal::bad_request(
        "invalid_type",
        Some(path),
        format!("{path} must be {wanted}, not {}", kind.noun()),
    )
}

pub(super) fn duplicate(path: &str) -> Refusal {
    let message = format!(
        "{path} occurs twice, and router and worker could read different ones; send it once"
    );
    Refusal::bad_request("duplicate_field", Some(path), message)
}

pub(super) fn routers_own(path: &str) -> Refusal {
    let message = format!(
        "{path} belongs to the router, which alone tells workers whom to fetch from; leave it out"
    );
    Refusal::bad_request("unsupported_field", Some(path), message)
}
