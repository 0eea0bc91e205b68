//! What is simulated: a JSON document, each key with a default and a range.
//!
//! Promises: an unknown key, a wrong type or a value out of range is refused with the path of the key
//! and what is accepted; a `Scenario` that exists is valid.
//! Leaves to others: what the numbers mean (`cost`, `power`, `engine`, `world`).

use serde::{Deserialize, Deserializer};

use super::policy::Chosen;
use super::preset::Preset;
use crate::config::PolicyKind;

/// A scenario that cannot be run.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{key}: {problem}")]
pub struct ScenarioError {
    /// The path of the key, such as `engines[0].role`.
    pub key: String,
    /// What is wrong and what is accepted.
    pub problem: String,
}

impl ScenarioError {
    pub(super) fn new(key: impl Into<String>, problem: impl Into<String>) -> Self {
        Self {
            key: key.into(),
            problem: problem.into(),
        }
    }
}

/// A fleet, a policy and the switches of a run.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    pub(super) engines: Vec<EngineSpec>,
    #[serde(default)]
    pub(super) policy: PolicySpec,
    /// The same, read.
    #[serde(skip)]
    pub(super) chosen: Chosen,
    #[serde(default)]
    pub(super) router: RouterSpec,
    #[serde(default)]
    pub(super) link: LinkSpec,
    #[serde(default)]
    pub(super) remote: RemoteSpec,
    #[serde(default)]
    pub(super) flip: Option<FlipSpec>,
    /// What the router is told a turn needs.
    #[serde(default)]
    pub(super) kv_reservation: KvReservation,
    /// Whether first prompts cross from a prefiller, or lie on the decoder as if replayed.
    #[serde(default)]
    pub(super) pd_coupling: PdCoupling,
    /// Between client and engine, each turn, seconds.
    #[serde(default = "one_ms")]
    pub(super) round_trip_s: f64,
    /// Arrivals are ignored and this many conversations are kept going.
    #[serde(default)]
    pub(super) closed_loop: Option<u32>,
    /// The run is cut here, seconds.
    #[serde(default)]
    pub(super) horizon_s: Option<f64>,
    /// Energy is also reported for this span, seconds.
    #[serde(default)]
    pub(super) energy_window_s: Option<(f64, f64)>,
    /// Runs of equal steps are advanced at once.
    #[serde(default = "yes")]
    pub(super) fast_forward: bool,
    /// Conservation is checked after every event.
    #[serde(default = "in_debug")]
    pub(super) checks: bool,
    /// The router's events and the simulator's own are kept.
    #[serde(default)]
    pub(super) events: bool,
}

/// One worker.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct EngineSpec {
    pub(super) role: EngineRole,
    #[serde(default)]
    pub(super) preset: Preset,
    #[serde(default)]
    pub(super) name: Option<String>,
    /// In place of the preset's closed form.
    #[serde(default)]
    pub(super) grid: Option<GridSpec>,
    #[serde(default)]
    pub(super) cost: CostSpec,
    #[serde(default)]
    pub(super) kv_tokens: Option<u64>,
    #[serde(default = "sixteen")]
    pub(super) block_size: u32,
    #[serde(default)]
    pub(super) max_model_len: Option<u32>,
    /// Tokens computed in one step, decodes included.
    #[serde(default = "two_thousand")]
    pub(super) max_num_batched_tokens: u32,
    #[serde(default = "seqs")]
    pub(super) max_num_seqs: u32,
    /// Share of the blocks kept free when a request is taken from the queue.
    #[serde(default = "one_percent")]
    pub(super) watermark: f64,
    /// Prompt tokens of a step are cut so that it takes about this long, seconds.
    #[serde(default)]
    pub(super) chunk_target_s: Option<f64>,
    #[serde(default)]
    pub(super) order: QueueOrder,
    #[serde(default)]
    pub(super) retention: Retention,
    /// KV evicted here is kept in host memory and read back at this rate, bytes per second.
    #[serde(default)]
    pub(super) host_offload_bytes_per_s: Option<f64>,
    #[serde(default)]
    pub(super) power: PowerSpec,
}

/// Changes to the closed form of the preset; `null` keeps the preset's value.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct CostSpec {
    pub(super) token_s: Option<f64>,
    pub(super) pair_s: Option<f64>,
    pub(super) bytes_per_s: Option<f64>,
    pub(super) weight_bytes: Option<f64>,
    pub(super) kv_bytes_per_token: Option<f64>,
    pub(super) overhead_s: Option<f64>,
    /// The host prepares the next step while the GPU computes: a step takes the longer of both.
    pub(super) hide_overhead: bool,
    /// Share of the KV that decodes really read: below 1 where sequences read the same prefix.
    pub(super) kv_read_factor: Option<f64>,
    /// A step that mixes prompts and decodes computes this share longer.
    pub(super) mixing_penalty: f64,
}

/// Step times measured on a grid, seconds.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct GridSpec {
    /// Sequences in a decode step, rising.
    pub(super) decode_batch: Vec<f64>,
    /// Mean context of a sequence, rising.
    pub(super) decode_context: Vec<f64>,
    /// `decode_s[batch][context]`.
    pub(super) decode_s: Vec<Vec<f64>>,
    /// New tokens in a prefill step, rising.
    pub(super) prefill_new: Vec<f64>,
    /// Tokens before them, rising.
    pub(super) prefill_past: Vec<f64>,
    /// `prefill_s[new][past]`.
    pub(super) prefill_s: Vec<Vec<f64>>,
    /// What a mixed step pays once though both tables contain it: reading the weights.
    #[serde(default)]
    pub(super) shared_s: f64,
}

/// Watts of one engine.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct PowerSpec {
    pub(super) idle_w: Option<f64>,
    /// Above idle while computing.
    pub(super) compute_w: Option<f64>,
    /// Above idle while reading memory.
    pub(super) memory_w: Option<f64>,
    /// Above idle while the host prepares a step.
    pub(super) overhead_w: Option<f64>,
    pub(super) parked_w: Option<f64>,
    /// Idle for longer: parked, seconds.
    pub(super) park_after_s: Option<f64>,
    pub(super) cap_w: Option<f64>,
    /// Holds only while no prompt is computed.
    pub(super) decode_cap_w: Option<f64>,
    /// A fixed clock, as a share of the full one, instead of a cap.
    pub(super) clock: Option<f64>,
    /// Compute watts fall with the clock to this power.
    pub(super) alpha: Option<f64>,
    /// Memory time grows by this share of the clock that is missing.
    pub(super) mu: Option<f64>,
    /// The cap holds for the mean over this span, seconds.
    pub(super) cap_window_s: Option<f64>,
}

/// What an engine is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum EngineRole {
    Prefiller,
    Decoder,
    Both,
}

/// In which order an engine takes requests from its queue.
#[derive(Debug, Clone, Copy, Default, PartialEq, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum QueueOrder {
    #[default]
    Fcfs,
    /// Smallest `ms_per_token` times tokens to compute, less `aging` times the wait in ms, first.
    Shortest {
        #[serde(default = "shortest_ms")]
        ms_per_token: f64,
        #[serde(default = "half")]
        aging: f64,
    },
    /// Among the first `window`: nearest deadline first; those that miss it anyway last.
    Slack {
        window: u32,
        ttft_slo_s: f64,
        ms_per_token: f64,
    },
}

/// What becomes of the KV of a conversation between its turns.
#[derive(Debug, Clone, Copy, Default, PartialEq, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum Retention {
    /// Evicted from its tail when others need room, the longest idle first.
    #[default]
    Lru,
    /// Kept for that long, then as `lru`.
    Ttl { ttl_s: f64 },
    /// Kept until the conversation ends.
    Pin,
}

/// Which policy, and its options.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PolicySpec {
    pub(super) name: String,
    #[serde(default)]
    pub(super) options: serde_json::Map<String, serde_json::Value>,
}

impl Default for PolicySpec {
    fn default() -> Self {
        Self {
            name: PolicyKind::default().as_str().to_owned(),
            options: serde_json::Map::new(),
        }
    }
}

/// The router's settings.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RouterSpec {
    /// `off`: the router is told of more blocks than there are, so nobody waits for room.
    pub(super) gate: Gate,
    pub(super) low_watermark: f64,
    pub(super) prefill_backlog_tokens: u32,
    pub(super) evict_idle: bool,
    /// Whether later turns wait until their growth fits the books; if not, engines evict for them.
    pub(super) tail_waits: bool,
    /// `evict_idle` rests while a larger share of the prompt tokens is computed again.
    pub(super) evict_idle_below: f64,
    /// Engines tell the router whose KV they evicted; of what a run of decode steps evicted, when that ends.
    pub(super) kv_events: bool,
    /// How old what engines tell is when the router hears it, seconds.
    pub(super) report_delay_s: f64,
    /// A turn that waits longer is refused, and its conversation ends; `null`: never.
    pub(super) queue_timeout_s: Option<f64>,
    /// How often workers tell the router about themselves, seconds.
    pub(super) report_interval_s: f64,
}

impl Default for RouterSpec {
    fn default() -> Self {
        let config = crate::config::Config::default();
        Self {
            gate: Gate::On,
            low_watermark: config.low_watermark,
            prefill_backlog_tokens: config.prefill_backlog_tokens.0,
            evict_idle: config.evict_idle,
            tail_waits: config.tail_waits,
            evict_idle_below: config.evict_idle_below,
            kv_events: false,
            report_delay_s: 0.0,
            queue_timeout_s: None,
            report_interval_s: 1.0,
        }
    }
}

/// Whether new conversations wait for room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Gate {
    On,
    Off,
}

impl<'de> Deserialize<'de> for Gate {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        Ok(if bool::deserialize(from)? {
            Self::On
        } else {
            Self::Off
        })
    }
}

/// The network between engines.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct LinkSpec {
    /// Of each engine, in each direction.
    pub(super) bytes_per_s: f64,
    pub(super) latency_s: f64,
    /// KV moves layer by layer while the prompt is computed.
    pub(super) overlap: bool,
}

impl Default for LinkSpec {
    fn default() -> Self {
        Self {
            bytes_per_s: 10e9,
            latency_s: 2e-3,
            overlap: true,
        }
    }
}

/// How remote prefills are carried out.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RemoteSpec {
    /// A prefiller keeps the KV that it handed over as idle cache.
    pub(super) prefiller_cache: bool,
    /// Only what the decoder lacks is moved.
    pub(super) delta: bool,
    /// A prefiller first fetches the conversation's KV from its decoder.
    pub(super) fetch: bool,
    /// Who emits the first token after a handoff.
    pub(super) first_token: FirstToken,
    /// A handoff that waits longer for room is given up and computed on the decoder; `null`: waits on.
    pub(super) wait_max_s: Option<f64>,
}

impl Default for RemoteSpec {
    fn default() -> Self {
        Self {
            prefiller_cache: true,
            delta: true,
            fetch: false,
            first_token: FirstToken::Decoder,
            wait_max_s: Some(60.0),
        }
    }
}

/// Who emits the first token of a turn whose prompt was computed elsewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum FirstToken {
    Decoder,
    Prefiller,
}

/// What the router is told that a turn will need.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum KvReservation {
    /// The prompt, then what was used: the product.
    #[default]
    Occupancy,
    /// Prompt and answer of the turn, known beforehand.
    PerTurn,
    /// The largest context the conversation will ever have.
    OraclePeak,
}

/// Whether prefillers and decoders share one run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum PdCoupling {
    #[default]
    Real,
    /// Every first prompt lies on its decoder when it arrives there, at no cost.
    Replayed,
}

/// Mispredicted turns: the paper's stand-in sleeps for a recorded backlog.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FlipSpec {
    /// When the recorded first prompts were handed to the prefiller, seconds.
    pub(super) started_s: Vec<f64>,
    /// When each was done.
    pub(super) ended_s: Vec<f64>,
    pub(super) wait: FlipWait,
}

/// What a flipped turn waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum FlipWait {
    /// Until every recorded prompt in flight is done; its own work pushes later ones back.
    Drain,
    /// Only its own modelled work.
    None,
    /// For nothing recorded: it is executed on a prefiller, with whatever it meets there.
    Execute,
}

const fn yes() -> bool {
    true
}
const fn in_debug() -> bool {
    cfg!(debug_assertions)
}
const fn one_ms() -> f64 {
    1e-3
}
const fn sixteen() -> u32 {
    16
}
const fn two_thousand() -> u32 {
    2048
}
const fn seqs() -> u32 {
    256
}
const fn one_percent() -> f64 {
    0.01
}
const fn shortest_ms() -> f64 {
    0.03
}
const fn half() -> f64 {
    0.5
}

impl Scenario {
    /// Reads and checks a scenario.
    ///
    /// ```
    /// use conserve::sim::Scenario;
    /// let error = Scenario::from_json(r#"{"engines": [{"role": "cook"}]}"#).unwrap_err();
    /// assert_eq!(error.key, "engines[0].role");
    /// ```
    ///
    /// # Errors
    /// Names the path of the first key that is unknown, of the wrong type or out of range.
    pub fn from_json(text: &str) -> Result<Self, ScenarioError> {
        let mut from = serde_json::Deserializer::from_str(text);
        let mut scenario: Self = serde_path_to_error::deserialize(&mut from).map_err(|error| {
            let path = error.path().to_string();
            ScenarioError::new(path, error.into_inner().to_string())
        })?;
        from.end()
            .map_err(|error| ScenarioError::new(".", error.to_string()))?;
        super::ranges::check(&scenario)?;
        super::policy::settle(&mut scenario)?;
        Ok(scenario)
    }
}
