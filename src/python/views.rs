//! What the router tells about itself, as Python values.

use std::collections::BTreeMap;

use pyo3::prelude::*;

use super::clock::seconds;
use crate::router::{ConversationView, Snapshot, Swept, Totals, WorkerRow};
use crate::units::Blocks;

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

#[pyclass(name = "ConversationView", frozen, get_all, module = "conserve")]
pub(super) struct PyConversationView {
    key: String,
    phase: &'static str,
    decoder: Option<String>,
    decoder_name: Option<String>,
    decoder_id: Option<u16>,
    turn: u32,
    in_flight: u32,
    blocks: u32,
    first_seen_s: f64,
    last_used_s: f64,
    ttfet_s: Option<f64>,
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

#[pyclass(name = "WorkerView", frozen, get_all, module = "conserve")]
pub(super) struct PyWorkerView {
    id: u16,
    name: String,
    url: String,
    role: &'static str,
    tier: Option<String>,
    health: &'static str,
    draining: bool,
    kv_blocks: Option<u32>,
    block_size: u32,
    max_model_len: Option<u32>,
    booked_blocks: u32,
    reserved_blocks: u32,
    running: u32,
    conversations: u64,
    queued_tokens: u32,
    tokens_per_s: Option<f64>,
    kv_usage: Option<f64>,
    reported_running: Option<u32>,
    reported_waiting: Option<u32>,
    report_age_s: Option<f64>,
    joined_s: f64,
}

impl From<&WorkerRow> for PyWorkerView {
    fn from(row: &WorkerRow) -> Self {
        let report = row.report.as_ref();
        Self {
            id: row.worker.id.get(),
            name: row.worker.name.to_string(),
            url: row.worker.url.to_string(),
            role: row.role.as_str(),
            tier: row.tier.as_deref().map(str::to_owned),
            health: row.health.as_str(),
            draining: row.draining,
            kv_blocks: row.capacity.map(Blocks::get),
            block_size: row.block_size.get(),
            max_model_len: row.max_model_len.map(|tokens| tokens.0),
            booked_blocks: row.booked.get(),
            reserved_blocks: row.reserved.get(),
            running: row.running,
            conversations: row.conversations,
            queued_tokens: row.queued.0,
            tokens_per_s: row.tokens_per_s,
            kv_usage: report.and_then(|report| report.kv_usage),
            reported_running: report.and_then(|report| report.running),
            reported_waiting: report.and_then(|report| report.waiting),
            report_age_s: row.report_age.map(|age| age.as_secs_f64()),
            joined_s: seconds(row.joined),
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

#[pyclass(name = "Snapshot", frozen, module = "conserve")]
pub(super) struct PySnapshot(Snapshot);

impl From<Snapshot> for PySnapshot {
    fn from(snapshot: Snapshot) -> Self {
        Self(snapshot)
    }
}

#[pymethods]
impl PySnapshot {
    #[getter]
    fn workers(&self) -> Vec<PyWorkerView> {
        self.0.workers.iter().map(PyWorkerView::from).collect()
    }

    #[getter]
    const fn conversations(&self) -> usize {
        self.0.conversations
    }

    #[getter]
    const fn waiting(&self) -> usize {
        self.0.waiting
    }

    #[getter]
    const fn waiting_tail(&self) -> usize {
        self.0.waiting_tail
    }

    #[getter]
    const fn policy(&self) -> &'static str {
        self.0.policy
    }

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
