//! What a run leaves behind: one row for each turn, conversation and engine, and counts.
//!
//! Times are seconds of virtual time; NaN means that it did not happen.

use super::diagnosis::Diagnosis;
use super::gaps::GapStats;

/// One turn.
#[derive(Debug, Clone, PartialEq)]
#[expect(missing_docs, reason = "the fields are named after what they hold")]
pub struct TurnRow {
    pub conversation: usize,
    /// Counts from 0.
    pub turn: usize,
    /// The client sent it.
    pub ready_s: f64,
    /// The router let it run.
    pub admitted_s: f64,
    /// The first chunk of its prompt began.
    pub prefill_start_s: f64,
    /// Its prompt was computed; on the decoder that is the first token.
    pub prefill_end_s: f64,
    /// Its KV was handed over.
    pub transfer_end_s: f64,
    pub first_token_s: f64,
    pub last_token_s: f64,
    /// Mean, 95th percentile and largest time between two of its tokens.
    pub gap_mean_s: f64,
    pub gap_p95_s: f64,
    pub gap_max_s: f64,
    /// The engine that computed the prompt for another one.
    pub prefiller: Option<usize>,
    pub decoder: Option<usize>,
    /// The turn ran elsewhere than the one before.
    pub moved: bool,
    pub visible: bool,
    pub prompt_tokens: u32,
    pub output_tokens: u32,
    /// Found computed where the prompt was computed.
    pub cached_tokens: u32,
    /// Computed for this turn, repetitions included.
    pub prefilled_tokens: u32,
    /// Of these, computed before and lost.
    pub recomputed_tokens: u32,
    pub transferred_tokens: u32,
    pub preemptions: u32,
    /// Waits: in the router's line; in an engine's queue; for room and a way to hand over; asleep as a flip.
    pub line_s: f64,
    pub engine_queue_s: f64,
    pub handoff_wait_s: f64,
    pub slept_s: f64,
    /// Computing the prompt, and moving KV, where that was exposed.
    pub compute_s: f64,
    pub transfer_s: f64,
}

impl TurnRow {
    pub(super) fn new(conversation: usize, turn: usize) -> Self {
        let none = f64::NAN;
        Self {
            conversation,
            turn,
            ready_s: none,
            admitted_s: none,
            prefill_start_s: none,
            prefill_end_s: none,
            transfer_end_s: none,
            first_token_s: none,
            last_token_s: none,
            gap_mean_s: none,
            gap_p95_s: none,
            gap_max_s: none,
            prefiller: None,
            decoder: None,
            moved: false,
            visible: false,
            prompt_tokens: 0,
            output_tokens: 0,
            cached_tokens: 0,
            prefilled_tokens: 0,
            recomputed_tokens: 0,
            transferred_tokens: 0,
            preemptions: 0,
            line_s: 0.0,
            engine_queue_s: 0.0,
            handoff_wait_s: 0.0,
            slept_s: 0.0,
            compute_s: 0.0,
            transfer_s: 0.0,
        }
    }

    pub(super) fn set_gaps(&mut self, gaps: GapStats) {
        (self.gap_mean_s, self.gap_p95_s, self.gap_max_s) = (gaps.mean, gaps.p95, gaps.max);
    }
}

/// One conversation.
#[derive(Debug, Clone, PartialEq)]
#[expect(missing_docs, reason = "the fields are named after what they hold")]
pub struct ConversationRow {
    pub arrival_s: f64,
    /// Its first turn was let run.
    pub admitted_s: f64,
    pub done_s: f64,
    /// First token of its first visible turn since its arrival, tool time included.
    pub ttfet_s: f64,
    /// Tool time before that turn.
    pub tool_s: f64,
    /// What `ttfet_s` was spent on, in the order of [`ConversationRow::PARTS`]: they add up to it. NaN without it.
    pub ttfet_parts_s: [f64; Self::PARTS.len()],
    /// `"finished"`, `"unfinished"`, or the code of the router's refusal.
    pub status: &'static str,
    pub turns_done: usize,
    pub handoffs: u32,
    pub moves: u32,
}

impl ConversationRow {
    /// What the parts of the time to the first answer are called.
    pub const PARTS: [&'static str; 10] = [
        "tool",
        "network",
        "slept",
        "line",
        "engine_queue",
        "compute",
        "handoff_wait",
        "transfer",
        "decoder_queue",
        "decode",
    ];
}

/// One engine.
#[derive(Debug, Clone, PartialEq)]
#[expect(missing_docs, reason = "the fields are named after what they hold")]
pub struct EngineRow {
    pub name: String,
    pub role: &'static str,
    /// Joules and seconds by phase, in the order of [`EngineRow::PHASES`].
    pub joules: [f64; 5],
    pub seconds: [f64; 5],
    /// Joules in the energy window; NaN without one.
    pub window_joules: f64,
    pub steps: u64,
    pub prefill_tokens: u64,
    pub generated_tokens: u64,
    pub recomputed_tokens: u64,
    pub evicted_tokens: u64,
    pub loaded_tokens: u64,
    pub preemptions: u64,
    pub queue_peak: u32,
    pub kv_blocks: u32,
}

impl EngineRow {
    /// What the phases are called.
    pub const PHASES: [&'static str; 5] = ["prefill", "mixed", "decode", "idle", "parked"];
}

/// What an engine counts.
#[derive(Debug, Clone, Default)]
pub(super) struct EngineTally {
    pub(super) joules: [f64; 5],
    pub(super) seconds: [f64; 5],
    pub(super) steps: u64,
    pub(super) prefill_tokens: u64,
    pub(super) generated_tokens: u64,
    pub(super) recomputed_tokens: u64,
    pub(super) loaded_tokens: u64,
    pub(super) preemptions: u64,
    pub(super) queue_peak: u32,
}

/// The run in counts.
#[derive(Debug, Clone, Default, PartialEq)]
#[expect(missing_docs, reason = "the fields are named after what they count")]
pub struct Counters {
    pub events: u64,
    pub handoffs: u64,
    pub fetches: u64,
    pub moves: u64,
    pub abandoned_handoffs: u64,
    pub flips: u64,
    pub transferred_bytes: f64,
    pub link_busy_s: f64,
    /// What the router counted: places given, by how, and turns that waited, by what for.
    pub placed_local: u64,
    pub placed_handoff: u64,
    pub placed_afresh: u64,
    pub placed_moved: u64,
    pub waits_room: u64,
    pub waits_thrash: u64,
    pub waits_growth: u64,
}

/// One thing that happened, if the scenario asked for events.
#[derive(Debug, Clone, PartialEq)]
pub struct EventRow {
    /// When, seconds.
    pub at_s: f64,
    /// What, in words with numbers.
    pub what: String,
}

/// The whole run.
#[derive(Debug, Clone, PartialEq)]
pub struct SimResult {
    /// In order of completion; those that never completed come last, in order of conversation.
    pub turns: Vec<TurnRow>,
    /// In the order of the workload.
    pub conversations: Vec<ConversationRow>,
    /// In the order of the scenario.
    pub engines: Vec<EngineRow>,
    /// Counts.
    pub counters: Counters,
    /// How it ended.
    pub diagnosis: Diagnosis,
    /// Empty unless asked for.
    pub events: Vec<EventRow>,
    /// The name of the policy that the router ran.
    pub policy: String,
    /// When it ended.
    pub end_s: f64,
}
