//! Reads a body field by field, and checks each field where it stands.
//!
//! Leaves to others: what a body is before it is JSON (`peek`).

use super::faults::{check_type, duplicate, missing, routers_own, wrong_type};
use super::{Endpoint, Field, NAMES, Name, Peek, Size, StreamOptions, TRANSFERS};
use crate::dispatch::json::{Key, Kind, Malformed, Scanner, Span, Text};
use crate::dispatch::refusal::Refusal;

pub(super) struct Reader<'a> {
    body: &'a [u8],
    scanner: Scanner<'a>,
    fields: [Option<Field>; NAMES.len()],
    stream_options: Option<StreamOptions>,
    has_messages: bool,
    strings: [Option<Text>; NAMES.len()],
    user_id: Option<Text>,
    prompt: Option<PromptShape>,
    close: u32,
}

/// What the field `prompt` holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PromptShape {
    Text,
    Tokens(usize),
    Several(usize),
}

impl<'a> Reader<'a> {
    pub(super) fn new(body: &'a [u8], scanner: Scanner<'a>) -> Self {
        Self {
            body,
            scanner,
            fields: [None; NAMES.len()],
            stream_options: None,
            has_messages: false,
            strings: [None; NAMES.len()],
            user_id: None,
            prompt: None,
            close: 0,
        }
    }

    pub(super) fn read(&mut self) -> Result<(), Refusal> {
        let kind = self.scanner.kind()?;
        if kind != Kind::Object {
            let read = self
                .scanner
                .skip_value()
                .and_then(|()| self.scanner.finish());
            // `nul` is no null, and `[1` no list.
            if let Err(malformed @ Malformed::Expected { .. }) = read {
                return Err(malformed.into());
            }
            let message = format!(
                "the request body must be a JSON object, not {}",
                kind.noun()
            );
            return Err(Refusal::bad_request("invalid_type", None, message));
        }
        self.scanner.open(Kind::Object)?;
        let mut index = 0;
        let mut previous = None;
        while let Some(key) = self.scanner.member(index == 0)? {
            self.set_comma_after(previous, &key);
            previous = self.name(&key);
            match previous {
                Some(name) => self.read_field(name, &key, index)?,
                None => self.scanner.pass_value()?,
            }
            index += 1;
        }
        self.close = narrow(self.scanner.position() - 1);
        Ok(self.scanner.finish()?)
    }

    fn name(&self, key: &Key) -> Option<Name> {
        key.text
            .decode_name(self.body)
            .and_then(|key| Name::from_key(&key))
    }

    fn set_comma_after(&mut self, name: Option<Name>, next: &Key) {
        if let Some(field) = name.and_then(|name| self.fields[name as usize].as_mut()) {
            field.comma_after = next.comma.map(narrow);
        }
    }

    fn read_field(&mut self, name: Name, key: &Key, index: u32) -> Result<(), Refusal> {
        if self.fields[name as usize].is_some() {
            return Err(duplicate(name.text()));
        }
        let kind = self.scanner.kind()?;
        check_type(name, kind)?;
        let start = self.scanner.position();
        match (name, kind) {
            (Name::Messages, Kind::Array) => self.has_messages = self.pass_messages()?,
            (Name::Prompt, Kind::Array) => self.prompt = Some(self.read_prompts()?),
            (Name::StreamOptions, Kind::Object) => {
                self.stream_options = Some(self.read_stream_options()?);
            }
            (Name::Metadata, Kind::Object) => {
                self.user_id = self.read_id_member("metadata.user_id", b"user_id")?;
            }
            (Name::Conversation, Kind::Object) => {
                self.strings[name as usize] = self.read_id_member("conversation.id", b"id")?;
            }
            (Name::VllmXargs, Kind::Object) => self.pass_extra_arguments()?,
            (_, Kind::String) => self.strings[name as usize] = Some(self.scanner.string()?),
            _ => self.scanner.skip_value()?,
        }
        let end = self.scanner.position();
        self.fields[name as usize] = Some(field(key, start, end, kind, index));
        Ok(())
    }

    /// Passes the messages; whether there is any. Who needs them one by one reads them later (`history`).
    fn pass_messages(&mut self) -> Result<bool, Refusal> {
        let open = self.scanner.position();
        self.scanner.pass_value()?;
        let inside = &self.body[open + 1..self.scanner.position() - 1];
        Ok(!inside.trim_ascii_start().is_empty())
    }

    fn read_stream_options(&mut self) -> Result<StreamOptions, Refusal> {
        self.scanner.open(Kind::Object)?;
        let mut options = StreamOptions {
            include_usage: None,
            continuous_usage: None,
            close: 0,
            empty: true,
        };
        let mut index = 0;
        while let Some(key) = self.scanner.member(options.empty)? {
            options.empty = false;
            let name = key.text.decode_name(self.body);
            let slot = match name.as_deref() {
                Some(b"include_usage") => {
                    Some(("stream_options.include_usage", &mut options.include_usage))
                }
                Some(b"continuous_usage_stats") => Some((
                    "stream_options.continuous_usage_stats",
                    &mut options.continuous_usage,
                )),
                _ => None,
            };
            let kind = self.scanner.kind()?;
            let start = self.scanner.position();
            self.scanner.pass_value()?;
            if let Some((path, slot)) = slot {
                if slot.is_some() {
                    return Err(duplicate(path));
                }
                if !matches!(kind, Kind::True | Kind::False | Kind::Null) {
                    return Err(wrong_type(path, "a boolean", kind));
                }
                *slot = Some(field(&key, start, self.scanner.position(), kind, index));
            }
            index += 1;
        }
        options.close = narrow(self.scanner.position() - 1);
        Ok(options)
    }

    /// Passes an object and gives its one member that names a conversation.
    fn read_id_member(&mut self, path: &str, name: &[u8]) -> Result<Option<Text>, Refusal> {
        self.scanner.open(Kind::Object)?;
        let mut id = None;
        let mut seen = false;
        let mut first = true;
        while let Some(key) = self.scanner.member(first)? {
            first = false;
            if !key.text.says(name, self.body) {
                self.scanner.pass_value()?;
                continue;
            }
            if std::mem::replace(&mut seen, true) {
                return Err(duplicate(path));
            }
            match self.scanner.kind()? {
                Kind::String => id = Some(self.scanner.string()?),
                Kind::Null => self.scanner.skip_value()?,
                other => return Err(wrong_type(path, "a string", other)),
            }
        }
        Ok(id)
    }

    /// vLLM takes transfer parameters from these too, and looks into them as if they were an object: anything else ends the engine.
    fn pass_extra_arguments(&mut self) -> Result<(), Refusal> {
        self.scanner.open(Kind::Object)?;
        let mut first = true;
        while let Some(key) = self.scanner.member(first)? {
            first = false;
            let says = |name: &Name| key.text.says(name.text().as_bytes(), self.body);
            if let Some(name) = TRANSFERS.into_iter().find(says) {
                return Err(routers_own(&format!("vllm_xargs.{}", name.text())));
            }
            self.scanner.pass_value()?;
        }
        Ok(())
    }

    /// A list is token ids, or several prompts of which each is a string or a list of token ids.
    fn read_prompts(&mut self) -> Result<PromptShape, Refusal> {
        self.scanner.open(Kind::Array)?;
        let mut count = 0;
        let mut shape = PromptShape::Tokens(0);
        let mut kinds = None;
        while self.scanner.element(count == 0)? {
            let kind = self.scanner.kind()?;
            if !matches!(kind, Kind::Number | Kind::String | Kind::Array)
                || kinds.is_some_and(|first| first != kind)
            {
                let message = format!(
                    "prompt[{count}] cannot be {}; give a string or a list of token ids",
                    kind.noun()
                );
                return Err(Refusal::bad_request(
                    "invalid_type",
                    Some("prompt"),
                    message,
                ));
            }
            kinds = Some(kind);
            let inner = if kind == Kind::Array {
                PromptShape::Tokens(self.count_tokens(count)?)
            } else {
                PromptShape::Text
            };
            if kind != Kind::Array {
                self.scanner.skip_value()?;
            }
            count += 1;
            shape = match kind {
                Kind::Number => PromptShape::Tokens(count),
                _ if count == 1 => inner,
                _ => PromptShape::Several(count),
            };
        }
        Ok(shape)
    }

    fn count_tokens(&mut self, place: usize) -> Result<usize, Refusal> {
        self.scanner.open(Kind::Array)?;
        let mut count = 0;
        while self.scanner.element(count == 0)? {
            let kind = self.scanner.kind()?;
            if kind != Kind::Number {
                return Err(wrong_type(
                    &format!("prompt[{place}][{count}]"),
                    "a token id",
                    kind,
                ));
            }
            self.scanner.skip_value()?;
            count += 1;
        }
        Ok(count)
    }

    pub(super) fn into_peek(self, endpoint: Endpoint) -> Result<Peek, Refusal> {
        for name in TRANSFERS {
            if self.fields[name as usize].is_some() {
                return Err(routers_own(name.text()));
            }
        }
        let model = self.strings[Name::Model as usize].ok_or_else(|| missing(Name::Model))?;
        if model.is_empty() {
            return Err(Refusal::bad_request(
                "invalid_value",
                Some("model"),
                "model is an empty string; name a model",
            ));
        }
        self.check_prompt(endpoint)?;
        let (media, media_bytes) = self.scanner.media();
        let size = match (endpoint, self.prompt) {
            (Endpoint::Completions, Some(PromptShape::Tokens(count))) => Size::Tokens(count),
            _ => Size::Text {
                bytes: self.body.len() - media_bytes,
                media,
            },
        };
        Ok(Peek {
            model,
            stream: self.fields[Name::Stream as usize]
                .is_some_and(|field| field.kind == Kind::True),
            stream_options: self.stream_options,
            conversation: self.strings[Name::Conversation as usize],
            previous_response_id: self.strings[Name::PreviousResponseId as usize],
            prompt_cache_key: self.strings[Name::PromptCacheKey as usize],
            user_id: self.user_id,
            size,
            close: self.close,
            fields: self.fields,
        })
    }

    fn check_prompt(&self, endpoint: Endpoint) -> Result<(), Refusal> {
        match endpoint {
            Endpoint::Chat if self.fields[Name::Messages as usize].is_none() => {
                Err(missing(Name::Messages))
            }
            Endpoint::Chat if !self.has_messages => {
                let message = "messages is empty; give at least one message";
                Err(Refusal::bad_request(
                    "invalid_value",
                    Some("messages"),
                    message,
                ))
            }
            Endpoint::Completions if self.fields[Name::Prompt as usize].is_none() => {
                Err(missing(Name::Prompt))
            }
            Endpoint::Completions => match self.prompt {
                Some(PromptShape::Several(count)) => {
                    let message = format!(
                        "prompt holds {count} prompts, and a conversation has one; send one request for each prompt"
                    );
                    Err(Refusal::bad_request(
                        "unsupported_value",
                        Some("prompt"),
                        message,
                    ))
                }
                Some(PromptShape::Tokens(0)) => Err(Refusal::bad_request(
                    "invalid_value",
                    Some("prompt"),
                    "prompt is an empty list; give a prompt",
                )),
                _ => Ok(()),
            },
            Endpoint::Chat => Ok(()),
        }
    }
}

fn field(key: &Key, start: usize, end: usize, kind: Kind, index: u32) -> Field {
    Field {
        member: Span::new(key.start, end),
        value: Span::new(start, end),
        kind,
        index,
        comma_before: key.comma.map(narrow),
        comma_after: None,
    }
}

fn narrow(at: usize) -> u32 {
    Span::new(at, at).start
}
