//! What an operator may set, checked once.
//!
//! Promises: a `Config` that passed [`Config::validate`] needs no further check anywhere.
//! Leaves to others: where the values come from (environment, arguments).

mod follow_kv;
mod policy;

use std::time::Duration;

pub use self::follow_kv::{FollowKvOptions, Handoff, Roles};
pub use self::policy::{
    AmpdOptions, AmpdRule, DeflectOptions, PolicyChoice, PolicyError, PolicyKind, PpdOptions,
    Prefillers, Remote,
};
use crate::error::ConfigError;
use crate::units::{BlockSize, Tokens};

/// The router's settings.
///
/// ```
/// use conserve::config::Config;
/// let config = Config { low_watermark: 1.5, ..Config::default() };
/// assert_eq!(config.validate().unwrap_err().key, "low_watermark");
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// Share of a decoder's blocks that new conversations may fill; the rest is for the tail (I6).
    pub low_watermark: f64,
    /// A prefiller takes new conversations while fewer prompt tokens than this are queued at it.
    pub prefill_backlog_tokens: Tokens,
    /// Turns that may wait in the line for a decoder; as many again may wait to grow on theirs.
    pub queue_limit: usize,
    /// How long a turn waits by default.
    pub queue_timeout: Duration,
    /// Conversations idle for longer are swept; `None` keeps them until they are closed.
    pub idle_timeout: Option<Duration>,
    /// Who finds no room may take the booking of the longest idle conversations of a decoder.
    pub evict_idle: bool,
    /// A turn of a pinned conversation waits until its growth fits the books of its decoder; who is evicted loses its pin.
    /// If not, it runs and takes the room of the longest idle, from their tails and without their pins, as the engine
    /// takes their KV. With this and without `evict_idle`, idle conversations can wait for each other's blocks for ever.
    pub tail_waits: bool,
    /// `evict_idle` rests, on decoders where turns run, while more than this share of the prompt tokens that are computed
    /// had been computed before: what is evicted is needed again.
    pub evict_idle_below: f64,
    /// Conversations held at once; more are shed.
    pub max_conversations: usize,
    /// Tokens in a KV block of a worker that does not report its own.
    pub block_size: BlockSize,
    /// What a worker says about its load is not used when it is older.
    pub report_stale_after: Duration,
    /// Engines keep the blocks of finished turns for so long, whatever becomes of the conversation; `None`: they may evict
    /// them at any time.
    pub retention: Option<Duration>,
    /// Which rule places conversations.
    pub policy: PolicyChoice,
    /// A turn whose first token comes later does not count as goodput; `None`: any time will do.
    pub slo_ttft: Option<Duration>,
    /// A turn whose mean gap between tokens is longer does not count as goodput.
    pub slo_tbt: Option<Duration>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            low_watermark: 0.8,
            prefill_backlog_tokens: Tokens(65_536),
            queue_limit: 1024,
            queue_timeout: Duration::from_secs(30),
            idle_timeout: Some(Duration::from_secs(3600)),
            evict_idle: true,
            tail_waits: false,
            evict_idle_below: 0.1,
            max_conversations: 4_000_000,
            block_size: BlockSize::DEFAULT,
            report_stale_after: Duration::from_secs(10),
            retention: None,
            policy: PolicyChoice::default(),
            slo_ttft: None,
            slo_tbt: None,
        }
    }
}

impl Config {
    /// Checks every value.
    ///
    /// # Errors
    /// Names the first key outside its range.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let refuse = |key, value, range| Err(ConfigError { key, value, range });
        // Written so that NaN is refused too.
        if !(self.low_watermark > 0.0 && self.low_watermark <= 1.0) {
            let value = self.low_watermark.to_string();
            return refuse("low_watermark", value, "above 0 and at most 1");
        }
        if !(0.0..=1.0).contains(&self.evict_idle_below) {
            let value = self.evict_idle_below.to_string();
            return refuse("evict_idle_below", value, "0 to 1");
        }
        if self.prefill_backlog_tokens == Tokens(0) {
            return refuse("prefill_backlog_tokens", "0".to_owned(), "at least 1");
        }
        if self.queue_limit > 1_000_000 {
            return refuse(
                "queue_limit",
                self.queue_limit.to_string(),
                "at most 1000000",
            );
        }
        if self.idle_timeout == Some(Duration::ZERO) {
            return refuse("idle_timeout", "0".to_owned(), "above 0, or none");
        }
        if self.retention == Some(Duration::ZERO) {
            return refuse("retention", "0".to_owned(), "above 0, or none");
        }
        if self.max_conversations == 0 {
            return refuse("max_conversations", "0".to_owned(), "at least 1");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_is_valid() {
        assert_eq!(Config::default().validate(), Ok(()));
    }

    #[test]
    fn each_refusal_names_its_key() {
        let base = Config::default;
        let cases = [
            (
                Config {
                    low_watermark: 0.0,
                    ..base()
                },
                "low_watermark",
            ),
            (
                Config {
                    low_watermark: f64::NAN,
                    ..base()
                },
                "low_watermark",
            ),
            (
                Config {
                    prefill_backlog_tokens: Tokens(0),
                    ..base()
                },
                "prefill_backlog_tokens",
            ),
            (
                Config {
                    queue_limit: 1_000_001,
                    ..base()
                },
                "queue_limit",
            ),
            (
                Config {
                    idle_timeout: Some(Duration::ZERO),
                    ..base()
                },
                "idle_timeout",
            ),
            (
                Config {
                    retention: Some(Duration::ZERO),
                    ..base()
                },
                "retention",
            ),
            (
                Config {
                    max_conversations: 0,
                    ..base()
                },
                "max_conversations",
            ),
        ];
        for (config, key) in cases {
            assert_eq!(config.validate().expect_err(key).key, key);
        }
    }
}
