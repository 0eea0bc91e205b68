//! Finds the few fields of a request body that the router reads or edits, in one pass and without a DOM.
//!
//! Promises: a body that passes is one object in UTF-8, nested no deeper than the limit, whose model, messages (or
//! prompt) and stream have the right types; a field that the router reads or edits occurs in it once, however its key is
//! spelled. Everything else in the body is left to the worker that serves it: also whether what is inside lists and objects
//! that the router does not read, `messages` and `tools` above all, is JSON.
//! Leaves to others: edits (`splice`), hashes of the history (`fingerprint`), which conversation it is (`ident`).

mod faults;
mod history;
mod reader;

pub(crate) use history::messages;

use super::arrival::Arrival;
use super::json::{Kind, Malformed, Scanner, Span, Text};
use super::refusal::Refusal;
use super::utf8::is_utf8;

/// What a body may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Limits {
    pub(crate) body_bytes: usize,
    pub(crate) depth: usize,
    pub(crate) messages: usize,
}

/// Which API a body belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Endpoint {
    /// `POST /v1/chat/completions`
    Chat,
    /// `POST /v1/completions`
    Completions,
}

impl Endpoint {
    /// The path on a worker.
    #[must_use]
    pub const fn path(self) -> &'static str {
        match self {
            Self::Chat => "/v1/chat/completions",
            Self::Completions => "/v1/completions",
        }
    }

    /// The endpoint that a path names.
    #[must_use]
    pub fn from_path(path: &str) -> Option<Self> {
        [Self::Chat, Self::Completions]
            .into_iter()
            .find(|endpoint| endpoint.path() == path)
    }
}

/// The top-level fields that the router reads or edits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Name {
    Model,
    Messages,
    Prompt,
    Stream,
    StreamOptions,
    MaxTokens,
    MaxCompletionTokens,
    MinTokens,
    N,
    Conversation,
    PreviousResponseId,
    PromptCacheKey,
    Metadata,
    VllmXargs,
    KvTransferParams,
    EcTransferParams,
}

const NAMES: [(Name, &str); 16] = [
    (Name::Model, "model"),
    (Name::Messages, "messages"),
    (Name::Prompt, "prompt"),
    (Name::Stream, "stream"),
    (Name::StreamOptions, "stream_options"),
    (Name::MaxTokens, "max_tokens"),
    (Name::MaxCompletionTokens, "max_completion_tokens"),
    (Name::MinTokens, "min_tokens"),
    (Name::N, "n"),
    (Name::Conversation, "conversation"),
    (Name::PreviousResponseId, "previous_response_id"),
    (Name::PromptCacheKey, "prompt_cache_key"),
    (Name::Metadata, "metadata"),
    (Name::VllmXargs, "vllm_xargs"),
    (Name::KvTransferParams, "kv_transfer_params"),
    (Name::EcTransferParams, "ec_transfer_params"),
];

/// What tells an engine whence to take what others computed, and whither to give it: never a client's.
pub(crate) const TRANSFERS: [Name; 2] = [Name::KvTransferParams, Name::EcTransferParams];

impl Name {
    pub(crate) fn text(self) -> &'static str {
        NAMES[self as usize].1
    }

    fn from_key(key: &[u8]) -> Option<Self> {
        NAMES
            .iter()
            .find(|(_, text)| text.as_bytes() == key)
            .map(|(name, _)| *name)
    }
}

/// One member of the body: where its key and value stand and what parts it from its neighbours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Field {
    /// From the key's quote to the end of the value.
    pub(crate) member: Span,
    pub(crate) value: Span,
    pub(crate) kind: Kind,
    /// Its place among the members of its object, from 0.
    pub(crate) index: u32,
    pub(crate) comma_before: Option<u32>,
    pub(crate) comma_after: Option<u32>,
}

/// One message of the history.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Message {
    pub(crate) span: Span,
    pub(crate) by_assistant: bool,
}

/// What `stream_options` says, when it is an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StreamOptions {
    pub(crate) include_usage: Option<Field>,
    pub(crate) continuous_usage: Option<Field>,
    /// Where its closing brace stands.
    pub(crate) close: u32,
    pub(crate) empty: bool,
}

/// How long the prompt is, as far as the body tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Size {
    /// A list of token ids was given: their number.
    Tokens(usize),
    /// Bytes of text, and the number of media values beside them.
    Text { bytes: usize, media: usize },
}

/// The fields of one body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Peek {
    fields: [Option<Field>; NAMES.len()],
    pub(crate) model: Text,
    pub(crate) stream: bool,
    pub(crate) stream_options: Option<StreamOptions>,
    pub(crate) conversation: Option<Text>,
    pub(crate) previous_response_id: Option<Text>,
    pub(crate) prompt_cache_key: Option<Text>,
    pub(crate) user_id: Option<Text>,
    pub(crate) size: Size,
    /// Where the body's closing brace stands.
    pub(crate) close: u32,
}

impl Peek {
    pub(crate) fn field(&self, name: Name) -> Option<&Field> {
        self.fields[name as usize].as_ref()
    }
}

impl From<Malformed> for Refusal {
    fn from(malformed: Malformed) -> Self {
        let code = match malformed {
            Malformed::Expected { .. } => "invalid_json",
            Malformed::TooDeep { .. } => "nesting_too_deep",
        };
        Self::bad_request(
            code,
            None,
            format!("the request body cannot be read: {malformed}; send one JSON object"),
        )
    }
}

/// Reads a body of which nothing is known.
///
/// # Errors
/// As `peek_arrived`.
#[cfg(test)]
pub(crate) fn peek(body: &[u8], endpoint: Endpoint, limits: &Limits) -> Result<Peek, Refusal> {
    peek_arrived(body, endpoint, limits, &Arrival::new(limits.depth))
}

/// Reads a body, but for what was seen of it while it arrived.
///
/// # Errors
/// 413 for one that is too large; 400 for all else, with the field or the byte at fault.
pub(crate) fn peek_arrived(
    body: &[u8],
    endpoint: Endpoint,
    limits: &Limits,
    arrival: &Arrival,
) -> Result<Peek, Refusal> {
    if body.len() > limits.body_bytes {
        return Err(too_large(body.len(), limits.body_bytes));
    }
    if body.iter().all(u8::is_ascii_whitespace) {
        return Err(Refusal::bad_request(
            "empty_body",
            None,
            "the request body is empty; send one JSON object",
        ));
    }
    // The quick look says yes or no; std's says where.
    if !is_utf8(&body[arrival.utf8..])
        && let Err(error) = std::str::from_utf8(body)
    {
        let message = format!(
            "the request body is not UTF-8: invalid byte at byte {}",
            error.valid_up_to()
        );
        return Err(Refusal::bad_request("invalid_utf8", None, message));
    }
    let scanner = Scanner::new(body, limits.depth).knowing(&arrival.containers);
    let mut reader = reader::Reader::new(body, scanner);
    reader.read()?;
    reader.into_peek(endpoint)
}

/// The refusal of a body above the limit; doors use it before they have read the whole body.
#[must_use]
pub(crate) fn too_large(bytes: usize, limit: usize) -> Refusal {
    Refusal {
        status: 413,
        code: "payload_too_large",
        param: None,
        message: format!(
            "the request body has {bytes} bytes or more; the limit is {limit} (max_body_bytes)"
        ),
    }
}

#[cfg(test)]
mod tests;
