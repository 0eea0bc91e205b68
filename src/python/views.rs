//! What the router tells about itself, as Python values.

use std::collections::BTreeMap;

use pyo3::prelude::*;

use super::clock::seconds;
use crate::roles::{Advice, Measured};
use crate::router::{ConversationView, Snapshot, Swept, Totals, WorkerRow};
use crate::units::Blocks;

/// What `Router.sweep` freed.
#[pyclass(name = "Swept", frozen, eq, hash, get_all, module = "conserve")]
#[derive(PartialEq, Eq, Hash)]
pub(super) struct PySwept {
    conversations: usize,
    blocks: u64,
}

impl From<&Swept> for PySwept {
    fn from(swept: &Swept) -> Self {
        Self {
            conversations: swept.conversations,
            blocks: swept.blocks,
        }
    }
}

#[pymethods]
impl PySwept {
    #[classattr]
    fn __match_args__() -> (&'static str, &'static str) {
        ("conversations", "blocks")
    }

    fn __repr__(&self) -> String {
        format!(
            "Swept(conversations={}, blocks={})",
            self.conversations, self.blocks
        )
    }
}

/// A conversation at one moment. Times are on the router's clock.
#[pyclass(name = "ConversationView", frozen, get_all, module = "conserve")]
pub(super) struct PyConversationView {
    /// Its key, 32 hexadecimal digits: tenant and id under the router's secret.
    key: String,
    phase: &'static str,
    /// URL of the decoder it is pinned to.
    decoder: Option<String>,
    decoder_name: Option<String>,
    decoder_id: Option<u16>,
    /// Turns begun so far.
    turn: u32,
    in_flight: u32,
    /// KV blocks booked for it.
    blocks: u32,
    first_seen_s: f64,
    last_used_s: f64,
    /// Time from its first request to the first token of its first user-visible answer; None until
    /// known.
    ttfet_s: Option<f64>,
    /// Energy that its turns used, as far as it was measured and their work has ended.
    energy_j: f64,
    /// Prompt tokens computed and tokens generated for it.
    tokens: u64,
}

impl From<&ConversationView> for PyConversationView {
    fn from(view: &ConversationView) -> Self {
        let decoder = view.decoder.as_ref();
        Self {
            key: view.key.to_string(),
            phase: view.phase.as_str(),
            decoder: decoder.map(|worker| worker.url.to_string()),
            decoder_name: decoder.map(|worker| worker.name.to_string()),
            decoder_id: decoder.map(|worker| worker.id.get()),
            turn: view.turn,
            in_flight: view.in_flight,
            blocks: view.blocks.get(),
            first_seen_s: seconds(view.first_seen),
            last_used_s: seconds(view.last_used),
            ttfet_s: view.ttfet.map(|span| span.as_secs_f64()),
            #[expect(clippy::cast_precision_loss, reason = "far below 2^52 microjoules")]
            energy_j: view.charged_uj as f64 / 1e6,
            tokens: view.tokens,
        }
    }
}

#[pymethods]
impl PyConversationView {
    fn __repr__(&self) -> String {
        let decoder = self.decoder_name.as_deref().unwrap_or("no decoder");
        format!(
            "<ConversationView {} {} turn {} on {decoder}>",
            self.key, self.phase, self.turn
        )
    }
}

/// A worker at one moment.
#[pyclass(name = "WorkerView", frozen, get_all, module = "conserve")]
pub(super) struct PyWorkerView {
    id: u16,
    name: String,
    url: String,
    role: &'static str,
    /// It does both, but holds conversations only when no other has room, and computes prompts for the others.
    helps: bool,
    tier: Option<String>,
    health: &'static str,
    draining: bool,
    /// Capacity; None for a prefiller and while it is unknown.
    kv_blocks: Option<u32>,
    /// Tokens in a block.
    block_size: u32,
    /// Longest prompt plus answer it takes.
    max_model_len: Option<u32>,
    /// KV blocks booked: those of conversations pinned to it and those of turns in flight.
    booked_blocks: u32,
    /// Of these, the blocks of turns in flight.
    reserved_blocks: u32,
    /// Of these, the blocks that no conversation holds and the engine keeps until their time is up.
    retained_blocks: u32,
    /// Turns in flight.
    running: u32,
    /// Conversations pinned to it or on their way.
    conversations: u64,
    /// Input tokens given to it as a prefiller and not done yet.
    queued_tokens: u32,
    /// Prefill speed observed; None before any.
    tokens_per_s: Option<f64>,
    /// What it last said about itself: the share of its KV cache in use, 0 to 1.
    kv_usage: Option<f64>,
    /// What it last said about itself: requests that run.
    reported_running: Option<u32>,
    /// What it last said about itself: requests that wait.
    reported_waiting: Option<u32>,
    /// Since it last told its load; None if it never did.
    report_age_s: Option<f64>,
    /// That is too long ago, and what it told is left out.
    report_stale: bool,
    /// Blocks in its prefix cache, from its KV events.
    resident_blocks: Option<u32>,
    /// Of these, in use by no running request.
    resident_idle_blocks: Option<u32>,
    /// Blocks of idle conversations pinned to it that it evicted.
    idle_evicted_blocks: u64,
    /// When it joined.
    joined_s: f64,
    /// Turns whose prompt is computed there now.
    prefilling: u32,
    /// Turns whose answer is generated there now.
    decoding: u32,
    /// Turn-seconds of prefill: two turns for a second are two.
    prefill_s: f64,
    /// Turn-seconds of decode.
    decode_s: f64,
    /// Prompt tokens computed.
    prompt_tokens: u64,
    /// Tokens generated.
    output_tokens: u64,
}

impl From<&WorkerRow> for PyWorkerView {
    fn from(row: &WorkerRow) -> Self {
        let report = row.report.as_ref();
        Self {
            id: row.worker.id.get(),
            name: row.worker.name.to_string(),
            url: row.worker.url.to_string(),
            role: row.role.as_str(),
            helps: row.helps,
            tier: row.tier.as_deref().map(str::to_owned),
            health: row.health.as_str(),
            draining: row.draining,
            kv_blocks: row.capacity.map(Blocks::get),
            block_size: row.block_size.get(),
            max_model_len: row.max_model_len.map(|tokens| tokens.0),
            booked_blocks: row.booked.get(),
            reserved_blocks: row.reserved.get(),
            retained_blocks: row.retained.get(),
            running: row.running,
            conversations: row.conversations,
            queued_tokens: row.queued.0,
            tokens_per_s: row.tokens_per_s,
            kv_usage: report.and_then(|report| report.kv_usage),
            reported_running: report.and_then(|report| report.running),
            reported_waiting: report.and_then(|report| report.waiting),
            report_age_s: row.report_age.map(|age| age.as_secs_f64()),
            report_stale: row.report_stale,
            resident_blocks: row.resident.map(Blocks::get),
            resident_idle_blocks: row.resident_idle.map(Blocks::get),
            idle_evicted_blocks: row.idle_evicted,
            joined_s: seconds(row.joined),
            prefilling: row.work.prefilling,
            decoding: row.work.decoding,
            prefill_s: row.work.prefill.as_secs_f64(),
            decode_s: row.work.decode.as_secs_f64(),
            prompt_tokens: row.work.prompt,
            output_tokens: row.work.output,
        }
    }
}

#[pymethods]
impl PyWorkerView {
    fn __repr__(&self) -> String {
        format!(
            "<WorkerView {} {} {} {}>",
            self.id, self.name, self.role, self.health
        )
    }
}

/// How many workers should only compute prompts, and the measured terms that it follows from.
#[pyclass(name = "Advice", frozen, get_all, module = "conserve")]
pub(super) struct PyAdvice {
    /// So many should.
    prefillers: u16,
    /// So many do.
    prefillers_now: u16,
    workers: u16,
    /// Gap between two tokens as advised.
    gap_ms: f64,
    /// With what there is; None if that cannot carry the load.
    gap_now_ms: Option<f64>,
    /// For each number of prefillers from 0 on; None where the load would not be carried.
    gaps_ms: Vec<Option<f64>>,
    /// A decode step without turns.
    step_ms: f64,
    /// More for each turn in it.
    step_ms_per_turn: f64,
    /// Workers' time that prompts take.
    prompt_workers: f64,
    /// Of it, what prefillers could take.
    movable_workers: f64,
    /// Tokens generated.
    tokens_per_s: f64,
    /// Workers' worth of KV that conversations hold.
    held_workers: f64,
    /// All of it in words.
    text: String,
}

impl From<&Advice> for PyAdvice {
    fn from(advice: &Advice) -> Self {
        let Measured {
            workers,
            prefillers,
            fixed_ms,
            slope_ms,
            prompts,
            movable,
            tokens_per_ms,
            held,
            low_watermark: _,
            spares_the_busy: _,
        } = advice.measured;
        Self {
            prefillers: advice.prefillers,
            prefillers_now: prefillers,
            workers,
            gap_ms: advice.gap_ms,
            gap_now_ms: advice.gap_now_ms,
            gaps_ms: advice.measured.gaps_ms().collect(),
            step_ms: fixed_ms,
            step_ms_per_turn: slope_ms,
            prompt_workers: prompts,
            movable_workers: movable,
            tokens_per_s: tokens_per_ms * 1e3,
            held_workers: held,
            text: advice.to_string(),
        }
    }
}

#[pymethods]
impl PyAdvice {
    fn __str__(&self) -> &str {
        &self.text
    }

    fn __repr__(&self) -> String {
        format!(
            "<Advice {} of {} workers, {} now>",
            self.prefillers, self.workers, self.prefillers_now
        )
    }
}

/// The router at one moment.
#[pyclass(name = "Snapshot", frozen, module = "conserve")]
pub(super) struct PySnapshot(Snapshot);

impl From<Snapshot> for PySnapshot {
    fn from(snapshot: Snapshot) -> Self {
        Self(snapshot)
    }
}

#[pymethods]
impl PySnapshot {
    /// The live ones in the order in which they joined, then the latest lost ones.
    #[getter]
    fn workers(&self) -> Vec<PyWorkerView> {
        self.0.workers.iter().map(PyWorkerView::from).collect()
    }

    #[getter]
    const fn conversations(&self) -> usize {
        self.0.conversations
    }

    /// Turns in line for a decoder.
    #[getter]
    const fn waiting(&self) -> usize {
        self.0.waiting
    }

    /// Other turns that wait: for room on their decoder, or for their conversation to be handed over.
    #[getter]
    const fn waiting_tail(&self) -> usize {
        self.0.waiting_tail
    }

    /// Share of the prompt tokens computed in the last two minutes that an earlier turn had computed.
    #[getter]
    const fn recomputed_share(&self) -> Option<f64> {
        self.0.recomputed_share
    }

    /// How many workers should only compute prompts; None until enough was measured.
    #[getter]
    fn advice(&self) -> Option<PyAdvice> {
        self.0.advice.as_ref().map(PyAdvice::from)
    }

    /// Workers that only compute prompts: prefillers, and those that the policy holds back for it.
    #[getter]
    const fn prefillers(&self) -> u16 {
        self.0.prefillers
    }

    /// Who changes that: the operator, who is advised, or the router.
    #[getter]
    const fn roles(&self) -> &'static str {
        self.0.roles.as_str()
    }

    #[getter]
    fn policy(&self) -> &str {
        &self.0.policy
    }

    /// Totals since the start, by event.
    #[getter]
    fn counters(&self) -> BTreeMap<&'static str, u64> {
        // Every field by name, so that a new one is a compile error here.
        let Totals {
            opened,
            closed,
            started,
            finished,
            failed,
            shed,
            handoffs,
            relocated,
            evicted,
            overcommitted,
            idle_evictions,
            idle_evicted_blocks,
            recomputed_tokens,
            placed_tokens,
            placed_local,
            placed_handoff,
            placed_afresh,
            placed_moved,
            waits_room,
            waits_thrash,
            waits_growth,
            waits_placing,
        } = self.0.totals;
        BTreeMap::from([
            ("opened", opened),
            ("closed", closed),
            ("started", started),
            ("finished", finished),
            ("failed", failed),
            ("shed", shed),
            ("handoffs", handoffs),
            ("relocated", relocated),
            ("evicted", evicted),
            ("overcommitted", overcommitted),
            ("idle_evictions", idle_evictions),
            ("idle_evicted_blocks", idle_evicted_blocks),
            ("recomputed_tokens", recomputed_tokens),
            ("placed_tokens", placed_tokens),
            ("placed_local", placed_local),
            ("placed_handoff", placed_handoff),
            ("placed_afresh", placed_afresh),
            ("placed_moved", placed_moved),
            ("waits_room", waits_room),
            ("waits_thrash", waits_thrash),
            ("waits_growth", waits_growth),
            ("waits_placing", waits_placing),
        ])
    }

    fn __repr__(&self) -> String {
        let Snapshot {
            workers,
            conversations,
            waiting,
            ..
        } = &self.0;
        format!(
            "<Snapshot {} workers, {conversations} conversations, {waiting} waiting>",
            workers.len()
        )
    }
}
