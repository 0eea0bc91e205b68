//! Which rule places conversations, with its options: text that is read once.
//!
//! Promises: a `PolicyChoice` that was read is valid; its `Display` says every option that matters and reads back to the
//! same choice.
//! Leaves to others: what the rules do (`placement`).

use std::fmt;
use std::str::FromStr;

use super::follow_kv::FollowKvOptions;
use crate::units::Tokens;

/// Which rule places conversations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PolicyKind {
    /// The paper's: one placement, one handoff, pinned for life.
    Strict,
    /// A conversation lives where its KV is; a prefiller, or another home, only where that is observed to be cheaper.
    FollowKv,
    /// Baseline: every worker computes the prompts of its own conversations.
    Collocated,
    /// Baseline: the same without affinity; each turn goes to the worker with most free blocks.
    CollocatedSpread,
    /// Baseline: every turn is computed on a prefiller and handed to the conversation's decoder.
    Disaggregated,
    /// Baseline: the same for turns that bring many tokens; shorter ones run at home.
    Ppd,
    /// Baseline: each later turn runs at home or is computed on a prefiller, as its estimated times say.
    Ampd,
    /// Baseline: prompts go to a prefiller unless a decoder can compute them sooner and keep its gaps short.
    Deflect,
}

/// What a policy makes of workers that only compute prompts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Prefillers {
    /// It is meant for a fleet with some.
    Needed,
    /// Where there are some they compute prompts for others; without, it is a policy of its own.
    Used,
    /// They would be idle.
    Unused,
}

impl Prefillers {
    /// In a word.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Needed => "needed",
            Self::Used => "used",
            Self::Unused => "unused",
        }
    }
}

impl Default for PolicyKind {
    fn default() -> Self {
        Self::DEFAULT
    }
}

impl PolicyKind {
    /// The one that runs where none is named.
    pub const DEFAULT: Self = Self::FollowKv;

    /// Every policy.
    pub const ALL: [Self; 8] = [
        Self::Strict,
        Self::FollowKv,
        Self::Collocated,
        Self::CollocatedSpread,
        Self::Disaggregated,
        Self::Ppd,
        Self::Ampd,
        Self::Deflect,
    ];

    /// As an operator writes it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Strict => "strict",
            Self::FollowKv => "follow-kv",
            Self::Collocated => "collocated",
            Self::CollocatedSpread => "collocated-spread",
            Self::Disaggregated => "disaggregated",
            Self::Ppd => "ppd",
            Self::Ampd => "ampd",
            Self::Deflect => "deflect",
        }
    }

    /// The policy of that name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == name)
    }

    /// What it makes of workers that only compute prompts.
    #[must_use]
    pub const fn prefillers(self) -> Prefillers {
        match self {
            Self::Strict | Self::Disaggregated | Self::Ppd | Self::Ampd | Self::Deflect => {
                Prefillers::Needed
            }
            Self::FollowKv => Prefillers::Used,
            Self::Collocated | Self::CollocatedSpread => Prefillers::Unused,
        }
    }

    /// Its options, each with what it takes.
    #[must_use]
    pub const fn options(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::Strict | Self::Collocated | Self::CollocatedSpread => &[],
            Self::FollowKv => super::follow_kv::OPTIONS,
            Self::Disaggregated => REMOTE,
            Self::Ppd => PPD,
            Self::Ampd => AMPD,
            Self::Deflect => DEFLECT,
        }
    }
}

/// A policy that does not exist, or an option that it does not have or that is out of range.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    /// No policy has this name.
    #[error("{name:?} is no policy: {known}")]
    Unknown {
        /// As it was written.
        name: String,
        /// Those that there are.
        known: String,
    },
    /// The policy has no such option.
    #[error("policy {policy} has no option {option:?}: {known}")]
    NoSuchOption {
        /// The policy.
        policy: &'static str,
        /// As it was written.
        option: String,
        /// Those that it has.
        known: String,
    },
    /// The option does not take this.
    #[error("policy {policy}: {option} = {value} is out of range: {accepted}")]
    OutOfRange {
        /// The policy.
        policy: &'static str,
        /// The option.
        option: &'static str,
        /// What was refused.
        value: String,
        /// What is accepted.
        accepted: &'static str,
    },
}

impl PolicyError {
    /// What is accepted.
    #[must_use]
    pub fn accepted(&self) -> &str {
        match self {
            Self::Unknown { known, .. } | Self::NoSuchOption { known, .. } => known,
            Self::OutOfRange { accepted, .. } => accepted,
        }
    }

    /// The option that is wrong, if it is not the policy's name.
    #[must_use]
    pub fn option(&self) -> Option<&str> {
        match self {
            Self::Unknown { .. } => None,
            Self::NoSuchOption { option, .. } => Some(option),
            Self::OutOfRange { option, .. } => Some(option),
        }
    }
}

/// How the workers are taken to carry out a later turn's prompt on a prefiller. Queues and times are counted accordingly;
/// what the workers do is their own setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Remote {
    /// The prefiller still holds the history that it computed before.
    pub prefix_cache: bool,
    /// The prefiller fetches the history from the decoder.
    pub fetch: bool,
    /// Only what the decoder lacks crosses.
    pub delta: bool,
}

impl Default for Remote {
    /// As vLLM does it.
    fn default() -> Self {
        Self {
            prefix_cache: true,
            fetch: false,
            delta: true,
        }
    }
}

impl Remote {
    fn set(&mut self, option: &str, value: &str) -> Option<()> {
        let of = match option {
            "pcache" => &mut self.prefix_cache,
            "fetch" => &mut self.fetch,
            "delta" => &mut self.delta,
            _ => return None,
        };
        *of = flag(value)?;
        Some(())
    }

    /// What is not as usual, as options.
    fn unusual(self) -> Vec<String> {
        let usual = Self::default();
        let flags = [
            ("pcache", self.prefix_cache, usual.prefix_cache),
            ("fetch", self.fetch, usual.fetch),
            ("delta", self.delta, usual.delta),
        ];
        let changed = flags.into_iter().filter(|(_, value, usual)| value != usual);
        changed
            .map(|(key, value, _)| format!("{key}={}", u8::from(value)))
            .collect()
    }
}

/// When turns under `ppd` are computed on a prefiller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PpdOptions {
    /// Turns that bring fewer tokens run at home.
    pub threshold: Tokens,
    /// How the others are computed.
    pub remote: Remote,
}

impl Default for PpdOptions {
    /// What PPD's published engine uses.
    fn default() -> Self {
        Self {
            threshold: Tokens(512),
            remote: Remote::default(),
        }
    }
}

/// By what `ampd` decides.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum AmpdRule {
    /// The one place that meets both targets; the faster one if both do, or neither.
    #[default]
    Slo,
    /// A prefiller if its first token comes in time, else home if that meets both targets, else the faster one.
    RemoteFirst,
    /// The faster one.
    Min,
    /// Home if the turn brings fewer tokens than the threshold.
    Static,
}

impl AmpdRule {
    const ALL: [Self; 4] = [Self::Slo, Self::RemoteFirst, Self::Min, Self::Static];

    const fn as_str(self) -> &'static str {
        match self {
            Self::Slo => "slo",
            Self::RemoteFirst => "remote_first",
            Self::Min => "min",
            Self::Static => "static",
        }
    }
}

/// How `ampd` estimates and decides. The published description leaves these open.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AmpdOptions {
    /// By what it decides.
    pub rule: AmpdRule,
    /// For the rule `static`.
    pub threshold: Tokens,
    /// Whether the transfer from prefiller to decoder counts.
    pub counts_transfer: bool,
    /// Does not look at queues.
    pub blind: bool,
    /// How a prompt is computed on a prefiller.
    pub remote: Remote,
    /// Target for the first token, milliseconds.
    pub ttft_ms: f64,
    /// Target for the gap between tokens, milliseconds.
    pub tbt_ms: f64,
    /// Prompt tokens that a worker computes in one step.
    pub step_tokens: Tokens,
}

impl Default for AmpdOptions {
    fn default() -> Self {
        Self {
            rule: AmpdRule::Slo,
            threshold: Tokens(512),
            counts_transfer: true,
            blind: false,
            remote: Remote::default(),
            ttft_ms: 1_000.0,
            tbt_ms: 60.0,
            step_tokens: Tokens(2_048),
        }
    }
}

/// How `deflect` estimates.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DeflectOptions {
    /// Target for the gap between tokens of those that decode, milliseconds.
    pub tbt_ms: f64,
    /// Prompt tokens that a worker computes in one step at most.
    pub step_tokens: Tokens,
    /// How a later prompt is computed on a prefiller.
    pub remote: Remote,
}

impl Default for DeflectOptions {
    fn default() -> Self {
        Self {
            tbt_ms: 60.0,
            step_tokens: Tokens(2_048),
            remote: Remote::default(),
        }
    }
}

const FLAG: &str = "0 or 1";
const TOKENS: &str = "a whole number of tokens, or inf";
const STEP_TOKENS: &str = "a whole number of tokens above 0";
const MILLISECONDS: &str = "milliseconds, above 0";
const REMOTE: &[(&str, &str)] = &[("pcache", FLAG), ("fetch", FLAG), ("delta", FLAG)];
const PPD: &[(&str, &str)] = &[
    ("threshold", TOKENS),
    ("pcache", FLAG),
    ("fetch", FLAG),
    ("delta", FLAG),
];
const AMPD: &[(&str, &str)] = &[
    ("rule", "slo, remote_first, min or static"),
    ("threshold", TOKENS),
    ("X", FLAG),
    ("blind", FLAG),
    ("pcache", FLAG),
    ("fetch", FLAG),
    ("delta", FLAG),
    ("ttft_ms", MILLISECONDS),
    ("tbt_ms", MILLISECONDS),
    ("step_tokens", STEP_TOKENS),
];
const DEFLECT: &[(&str, &str)] = &[
    ("tbt_ms", MILLISECONDS),
    ("step_tokens", STEP_TOKENS),
    ("pcache", FLAG),
    ("fetch", FLAG),
    ("delta", FLAG),
];

/// A policy and its options.
///
/// ```
/// use conserve::config::PolicyChoice;
/// let choice: PolicyChoice = "ampd(rule=min, X=0)".parse().unwrap();
/// assert_eq!(choice.to_string(), "ampd(min, X=0, pcache=1)");
/// assert!("ampd(mood=good)".parse::<PolicyChoice>().is_err());
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum PolicyChoice {
    /// See [`PolicyKind::Strict`].
    Strict,
    /// See [`PolicyKind::FollowKv`].
    FollowKv(FollowKvOptions),
    /// See [`PolicyKind::Collocated`].
    Collocated,
    /// See [`PolicyKind::CollocatedSpread`].
    CollocatedSpread,
    /// See [`PolicyKind::Disaggregated`].
    Disaggregated(Remote),
    /// See [`PolicyKind::Ppd`].
    Ppd(PpdOptions),
    /// See [`PolicyKind::Ampd`].
    Ampd(AmpdOptions),
    /// See [`PolicyKind::Deflect`].
    Deflect(DeflectOptions),
}

impl Default for PolicyChoice {
    fn default() -> Self {
        PolicyKind::default().into()
    }
}

impl From<PolicyKind> for PolicyChoice {
    fn from(kind: PolicyKind) -> Self {
        match kind {
            PolicyKind::Strict => Self::Strict,
            PolicyKind::FollowKv => Self::FollowKv(FollowKvOptions::default()),
            PolicyKind::Collocated => Self::Collocated,
            PolicyKind::CollocatedSpread => Self::CollocatedSpread,
            PolicyKind::Disaggregated => Self::Disaggregated(Remote::default()),
            PolicyKind::Ppd => Self::Ppd(PpdOptions::default()),
            PolicyKind::Ampd => Self::Ampd(AmpdOptions::default()),
            PolicyKind::Deflect => Self::Deflect(DeflectOptions::default()),
        }
    }
}

impl PolicyChoice {
    /// Which policy it is.
    #[must_use]
    pub const fn kind(&self) -> PolicyKind {
        match self {
            Self::Strict => PolicyKind::Strict,
            Self::FollowKv(_) => PolicyKind::FollowKv,
            Self::Collocated => PolicyKind::Collocated,
            Self::CollocatedSpread => PolicyKind::CollocatedSpread,
            Self::Disaggregated(_) => PolicyKind::Disaggregated,
            Self::Ppd(_) => PolicyKind::Ppd,
            Self::Ampd(_) => PolicyKind::Ampd,
            Self::Deflect(_) => PolicyKind::Deflect,
        }
    }

    /// How later turns are computed on a prefiller, for a policy that does that.
    pub const fn remote_mut(&mut self) -> Option<&mut Remote> {
        match self {
            Self::Strict | Self::FollowKv(_) | Self::Collocated | Self::CollocatedSpread => None,
            Self::Disaggregated(remote) => Some(remote),
            Self::Ppd(options) => Some(&mut options.remote),
            Self::Ampd(options) => Some(&mut options.remote),
            Self::Deflect(options) => Some(&mut options.remote),
        }
    }

    /// The policy of that name with these options.
    ///
    /// # Errors
    /// If there is no such policy, or it does not take one of the options.
    pub fn new<'a>(
        name: &str,
        options: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Result<Self, PolicyError> {
        let Some(kind) = PolicyKind::from_name(name) else {
            let known = PolicyKind::ALL.map(PolicyKind::as_str).join(", ");
            let name = name.to_owned();
            return Err(PolicyError::Unknown { name, known });
        };
        let mut choice = Self::from(kind);
        for (option, value) in options {
            choice.set(option, value)?;
        }
        Ok(choice)
    }

    /// The name of the policy, and its options, in what a user wrote.
    #[must_use]
    pub fn split(text: &str) -> (&str, Vec<(&str, &str)>) {
        let text = text.trim();
        let Some((name, rest)) = text.split_once('(') else {
            return (text, Vec::new());
        };
        let Some(inside) = rest.strip_suffix(')') else {
            return (text, Vec::new());
        };
        let name = name.trim();
        let first = PolicyKind::from_name(name)
            .and_then(|kind| kind.options().first())
            .map_or("", |(key, _)| *key);
        let parts = inside
            .split(',')
            .map(str::trim)
            .filter(|part| !part.is_empty());
        let options = parts
            .enumerate()
            .map(|(at, part)| match part.split_once('=') {
                Some((key, value)) => (key.trim(), value.trim()),
                None if at == 0 && !first.is_empty() => (first, part),
                None => (part, ""),
            });
        (name, options.collect())
    }

    fn set(&mut self, option: &str, value: &str) -> Result<(), PolicyError> {
        let kind = self.kind();
        let policy = kind.as_str();
        let same = |(key, _): &&(&'static str, &'static str)| key.eq_ignore_ascii_case(option);
        let Some((option, accepted)) = kind.options().iter().find(same) else {
            let keys: Vec<_> = kind.options().iter().map(|(key, _)| *key).collect();
            let (known, option) = (known_options(&keys), option.to_owned());
            return Err(PolicyError::NoSuchOption {
                policy,
                option,
                known,
            });
        };
        let value = value.trim();
        let set = match self {
            Self::Strict | Self::Collocated | Self::CollocatedSpread => None,
            Self::FollowKv(options) => options.set(option, value),
            Self::Disaggregated(remote) => remote.set(option, value),
            Self::Ppd(options) => match *option {
                "threshold" => tokens(value).map(|threshold| options.threshold = threshold),
                option => options.remote.set(option, value),
            },
            Self::Ampd(options) => options.set(option, value),
            Self::Deflect(options) => options.set(option, value),
        };
        set.ok_or_else(|| PolicyError::OutOfRange {
            policy,
            option,
            value: value.to_owned(),
            accepted,
        })
    }
}

fn known_options(keys: &[&str]) -> String {
    if keys.is_empty() {
        "it has none".to_owned()
    } else {
        keys.join(", ")
    }
}

impl AmpdOptions {
    fn set(&mut self, option: &str, value: &str) -> Option<()> {
        match option {
            "rule" => {
                let named = |rule: &AmpdRule| rule.as_str() == value;
                self.rule = AmpdRule::ALL.into_iter().find(named)?;
            }
            "threshold" => self.threshold = tokens(value)?,
            "X" => self.counts_transfer = flag(value)?,
            "blind" => self.blind = flag(value)?,
            "ttft_ms" => self.ttft_ms = milliseconds(value)?,
            "tbt_ms" => self.tbt_ms = milliseconds(value)?,
            "step_tokens" => {
                self.step_tokens = tokens(value).filter(|tokens| *tokens > Tokens(0))?;
            }
            option => return self.remote.set(option, value),
        }
        Some(())
    }
}

impl DeflectOptions {
    fn set(&mut self, option: &str, value: &str) -> Option<()> {
        match option {
            "tbt_ms" => self.tbt_ms = milliseconds(value)?,
            "step_tokens" => {
                self.step_tokens = tokens(value).filter(|tokens| *tokens > Tokens(0))?;
            }
            option => return self.remote.set(option, value),
        }
        Some(())
    }

    fn parts(&self) -> Vec<String> {
        let mut parts = vec![format!("tbt_ms={}", self.tbt_ms)];
        if self.step_tokens != Self::default().step_tokens {
            parts.push(format!("step_tokens={}", Count(self.step_tokens)));
        }
        parts.extend(self.remote.unusual());
        parts
    }
}

fn flag(value: &str) -> Option<bool> {
    match value.to_ascii_lowercase().as_str() {
        "0" | "false" => Some(false),
        "1" | "true" => Some(true),
        _ => None,
    }
}

/// `inf` is more than any prompt has.
fn tokens(value: &str) -> Option<Tokens> {
    if value == "inf" {
        return Some(Tokens(u32::MAX));
    }
    value.parse().ok().map(Tokens)
}

fn milliseconds(value: &str) -> Option<f64> {
    let value: f64 = value.parse().ok()?;
    (value.is_finite() && value > 0.0).then_some(value)
}

impl FromStr for PolicyChoice {
    type Err = PolicyError;

    /// `ampd`, or `ampd(rule=min, X=0)`; the first option may be written without its name.
    fn from_str(text: &str) -> Result<Self, PolicyError> {
        let (name, options) = Self::split(text);
        Self::new(name, options)
    }
}

impl fmt::Display for PolicyChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = match self {
            Self::Strict | Self::Collocated | Self::CollocatedSpread => Vec::new(),
            Self::FollowKv(options) => options.unusual(),
            Self::Disaggregated(remote) => remote.unusual(),
            Self::Ppd(options) => {
                let mut parts = vec![Count(options.threshold).to_string()];
                parts.extend(options.remote.unusual());
                parts
            }
            Self::Ampd(options) => options.parts(),
            Self::Deflect(options) => options.parts(),
        };
        f.write_str(self.kind().as_str())?;
        if !parts.is_empty() {
            write!(f, "({})", parts.join(", "))?;
        }
        Ok(())
    }
}

impl AmpdOptions {
    /// Rule, transfer and cache always; the rest where it is not as usual.
    fn parts(&self) -> Vec<String> {
        let usual = Self::default();
        let mut parts = vec![self.rule.as_str().to_owned()];
        if self.rule == AmpdRule::Static || self.threshold != usual.threshold {
            parts.push(format!("threshold={}", Count(self.threshold)));
        }
        parts.push(format!("X={}", u8::from(self.counts_transfer)));
        if self.remote.prefix_cache {
            parts.push("pcache=1".to_owned());
        }
        parts.extend(self.remote.unusual());
        if self.blind {
            parts.push("blind=1".to_owned());
        }
        for (key, value, usual) in [
            ("ttft_ms", self.ttft_ms, usual.ttft_ms),
            ("tbt_ms", self.tbt_ms, usual.tbt_ms),
        ] {
            if value.to_bits() != usual.to_bits() {
                parts.push(format!("{key}={value}"));
            }
        }
        if self.step_tokens != usual.step_tokens {
            parts.push(format!("step_tokens={}", Count(self.step_tokens)));
        }
        parts
    }
}

/// Tokens as an option writes them.
struct Count(Tokens);

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.0 == u32::MAX {
            f.write_str("inf")
        } else {
            write!(f, "{}", self.0.0)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_reads_back_with_its_usual_options() {
        for kind in PolicyKind::ALL {
            let choice = PolicyChoice::from(kind);
            assert_eq!(kind.as_str().parse(), Ok(choice));
            assert_eq!(choice.kind(), kind);
            assert_eq!(choice.to_string().parse(), Ok(choice));
        }
    }

    #[test]
    fn what_a_variant_is_called_reads_back_to_it() {
        for text in [
            "ppd(0)",
            "ppd(inf)",
            "ampd(min, X=0, pcache=0)",
            "deflect(tbt_ms=40.5, step_tokens=512, pcache=0)",
            "disaggregated",
            "disaggregated(pcache=0, delta=0)",
            "ppd(64, fetch=1)",
            "ampd(static, threshold=256, X=1, pcache=1, fetch=1, delta=0, blind=1)",
            "ampd(remote_first, X=1, pcache=1, ttft_ms=250.5, tbt_ms=40, step_tokens=512)",
        ] {
            let choice: PolicyChoice = text.parse().expect(text);
            assert_eq!(choice.to_string(), text);
        }
        let same: PolicyChoice = "ampd(x=false, rule=min , PCACHE=0)"
            .parse()
            .expect("any order");
        assert_eq!(same.to_string(), "ampd(min, X=0, pcache=0)");
    }

    #[test]
    fn what_a_policy_does_not_take_is_named_with_what_it_does() {
        for (text, said) in [
            ("guess", "\"guess\" is no policy: strict, "),
            (
                "strict(1)",
                "policy strict has no option \"1\": it has none",
            ),
            ("ampd(mood=good)", "no option \"mood\": rule, threshold, X"),
            (
                "ampd(luck)",
                "rule = luck is out of range: slo, remote_first",
            ),
            ("ampd(min, 3)", "no option \"3\""),
            ("ampd(X=2)", "X = 2 is out of range: 0 or 1"),
            ("ampd(ttft_ms=0)", "milliseconds, above 0"),
            ("ampd(ttft_ms=NaN)", "milliseconds, above 0"),
            ("ampd(step_tokens=0)", "above 0"),
            ("ppd(-1)", "a whole number of tokens, or inf"),
            ("ampd(min", "\"ampd(min\" is no policy"),
        ] {
            let error = text.parse::<PolicyChoice>().expect_err(text).to_string();
            assert!(error.contains(said), "{text}: {error}");
        }
    }
}
