//! What an operator may set about serving turns over HTTP, checked once.
//!
//! Promises: a `DispatchConfig` that passed `validate` needs no further check anywhere; secrets are never printed.
//! Leaves to others: where the values come from, how turns are placed (`config::Config`).

use std::fmt;
use std::time::Duration;

use super::connector::{Connector, Peers};
use super::json::DEPTH_CEILING;
use super::peek::Limits;
use crate::error::ConfigError;

/// A text that is never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Wraps a secret.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    pub(crate) fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(***)")
    }
}

/// The dispatcher's settings.
///
/// ```
/// use conserve::dispatch::DispatchConfig;
/// let config = DispatchConfig { max_depth: 5_000, ..DispatchConfig::default() };
/// assert_eq!(config.validate().unwrap_err().key, "max_depth");
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct DispatchConfig {
    /// How KV is handed over.
    pub connector: Connector,
    /// Ask engines to keep what finished turns leave; the connector says how.
    pub retain: bool,
    /// What prefillers are called by the transfer layer, for connectors that need it.
    pub peers: Peers,
    /// The largest request body, in bytes.
    pub max_body_bytes: usize,
    /// The deepest nesting of a request body.
    pub max_depth: usize,
    /// Messages in one request.
    pub max_messages: usize,
    /// The longest conversation id, in bytes.
    pub max_conversation_id_bytes: usize,
    /// The headers that name a conversation, first match first, in lower case.
    pub conversation_headers: Vec<String>,
    /// How often a turn is tried again, in each of its halves.
    pub retries: u32,
    /// How long a turn waits for room.
    pub queue_timeout: Duration,
    /// How long a prefiller may take to answer.
    pub prefill_timeout: Duration,
    /// How long a decoder may take to begin a stream.
    pub first_byte_timeout: Duration,
    /// How long a decoder may take for an answer that is not streamed.
    pub answer_timeout: Duration,
    /// How long a stream may be silent.
    pub idle_timeout: Duration,
    /// How long connecting to a worker may take.
    pub connect_timeout: Duration,
    /// How old a handoff may be; below the engine's lease (vLLM: 30 s).
    pub lease: Duration,
    /// Pass the client's `Authorization` on to the workers.
    pub forward_authorization: bool,
    /// The key that the router shows to its workers.
    pub worker_key: Option<Secret>,
    /// The largest answer that is not streamed, in bytes.
    pub max_answer_bytes: usize,
    /// Recognise conversations by their message history.
    pub fingerprint: bool,
}

impl Default for DispatchConfig {
    fn default() -> Self {
        Self {
            connector: Connector::nixl(),
            retain: false,
            peers: Peers::new(),
            max_body_bytes: 32 << 20,
            max_depth: 512,
            max_messages: 65_536,
            max_conversation_id_bytes: 256,
            conversation_headers: vec!["x-conversation-id".into(), "x-session-id".into()],
            retries: 2,
            queue_timeout: Duration::from_secs(30),
            prefill_timeout: Duration::from_secs(120),
            first_byte_timeout: Duration::from_secs(120),
            answer_timeout: Duration::from_secs(600),
            idle_timeout: Duration::from_secs(60),
            connect_timeout: Duration::from_secs(2),
            lease: Duration::from_secs(25),
            forward_authorization: false,
            worker_key: None,
            max_answer_bytes: 64 << 20,
            fingerprint: true,
        }
    }
}

impl DispatchConfig {
    /// Checks every value.
    ///
    /// # Errors
    /// Names the first key outside its range.
    pub fn validate(&self) -> Result<(), ConfigError> {
        // Places in bodies and answers are 32 bits wide.
        within(
            "max_body_bytes",
            self.max_body_bytes,
            1,
            1 << 30,
            "1 to 1073741824",
        )?;
        within(
            "max_answer_bytes",
            self.max_answer_bytes,
            1,
            1 << 30,
            "1 to 1073741824",
        )?;
        within("max_depth", self.max_depth, 4, DEPTH_CEILING, "4 to 1024")?;
        within(
            "max_messages",
            self.max_messages,
            1,
            1 << 20,
            "1 to 1048576",
        )?;
        within(
            "max_conversation_id_bytes",
            self.max_conversation_id_bytes,
            1,
            4_096,
            "1 to 4096",
        )?;
        within("retries", self.retries as usize, 0, 10, "0 to 10")?;
        for (key, span) in [
            ("prefill_timeout", self.prefill_timeout),
            ("first_byte_timeout", self.first_byte_timeout),
            ("answer_timeout", self.answer_timeout),
            ("idle_timeout", self.idle_timeout),
            ("connect_timeout", self.connect_timeout),
            ("lease", self.lease),
        ] {
            if span.is_zero() {
                return refuse(key, "0", "above 0");
            }
        }
        let is_name = |byte: u8| {
            byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'_')
        };
        if let Some(name) = self
            .conversation_headers
            .iter()
            .find(|name| name.is_empty() || !name.bytes().all(is_name))
        {
            return refuse("conversation_headers", name, "header names in lower case");
        }
        if let Some(key) = &self.worker_key {
            if !key.expose().bytes().all(|byte| byte.is_ascii_graphic()) || key.expose().is_empty()
            {
                return refuse("worker_key", "***", "visible ASCII characters");
            }
            if self.forward_authorization {
                return refuse(
                    "forward_authorization",
                    "true",
                    "false when worker_key is set",
                );
            }
        }
        if self.retain && self.connector.retain_params().is_none() {
            return refuse(
                "retention",
                "pin",
                "cache, unless the connector is nixl or one of your own that says retain",
            );
        }
        match self.connector.fault() {
            Some(fault) => refuse("connector", &fault, "templates that are JSON objects"),
            None => Ok(()),
        }
    }

    pub(crate) fn limits(&self) -> Limits {
        Limits {
            body_bytes: self.max_body_bytes,
            depth: self.max_depth,
            messages: self.max_messages,
        }
    }
}

fn within(
    key: &'static str,
    value: usize,
    least: usize,
    most: usize,
    range: &'static str,
) -> Result<(), ConfigError> {
    if (least..=most).contains(&value) {
        Ok(())
    } else {
        refuse(key, &value.to_string(), range)
    }
}

fn refuse(key: &'static str, value: &str, range: &'static str) -> Result<(), ConfigError> {
    Err(ConfigError {
        key,
        value: value.to_owned(),
        range,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_is_valid() {
        assert_eq!(DispatchConfig::default().validate(), Ok(()));
    }

    #[test]
    fn each_refusal_names_its_key() {
        let base = DispatchConfig::default;
        let key = Some(Secret::new("k"));
        for (config, name) in [
            (
                DispatchConfig {
                    max_body_bytes: 0,
                    ..base()
                },
                "max_body_bytes",
            ),
            (
                DispatchConfig {
                    max_depth: 1_025,
                    ..base()
                },
                "max_depth",
            ),
            (
                DispatchConfig {
                    retries: 11,
                    ..base()
                },
                "retries",
            ),
            (
                DispatchConfig {
                    lease: Duration::ZERO,
                    ..base()
                },
                "lease",
            ),
            (
                DispatchConfig {
                    conversation_headers: vec!["X-Id".into()],
                    ..base()
                },
                "conversation_headers",
            ),
            (
                DispatchConfig {
                    worker_key: Some(Secret::new("a\nb")),
                    ..base()
                },
                "worker_key",
            ),
            (
                DispatchConfig {
                    worker_key: key,
                    forward_authorization: true,
                    ..base()
                },
                "forward_authorization",
            ),
            (
                DispatchConfig {
                    connector: Connector::declared("[]", None, None),
                    ..base()
                },
                "connector",
            ),
        ] {
            assert_eq!(config.validate().expect_err(name).key, name);
        }
    }

    #[test]
    fn a_key_is_not_printed() {
        let config = DispatchConfig {
            worker_key: Some(Secret::new("sk-worker")),
            ..DispatchConfig::default()
        };
        assert!(!format!("{config:?}").contains("sk-worker"));
        let refused = DispatchConfig {
            worker_key: Some(Secret::new("sk worker")),
            ..config
        }
        .validate()
        .unwrap_err();
        assert!(!refused.to_string().contains("sk worker"), "{refused}");
    }
}
