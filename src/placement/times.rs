//! What a turn would take at a worker, from measured times: of a prompt token, of a decode step, of a token over the link.
//!
//! Promises: pure; what was not observed at a worker is taken from the fastest one that was.
//! Leaves to others: what follows from it (one file for each policy).

use super::{Observed, WorkerView};
use crate::units::Tokens;

/// Of a prompt token where none was observed anywhere, and of one over a link: 114,688 bytes at 10 GB/s.
const UNKNOWN_MS_PER_TOKEN: f64 = 0.02;
const LINK_MS_PER_TOKEN: f64 = 0.0115;
const LINK_MS: f64 = 5.0;

/// Milliseconds, as far as they are known.
pub(super) struct Times {
    unknown: f64,
}

impl Times {
    pub(super) fn of(fleet: &Observed) -> Self {
        let known = fleet
            .workers
            .iter()
            .filter_map(|worker| worker.tokens_per_s);
        let fastest = known.fold(0.0, f64::max);
        let unknown = if fastest > 0.0 {
            1e3 / fastest
        } else {
            UNKNOWN_MS_PER_TOKEN
        };
        Self { unknown }
    }

    /// To compute `tokens` of a prompt there, once it is their turn.
    pub(super) fn prompt(&self, worker: &WorkerView, tokens: Tokens) -> f64 {
        let rate = worker.tokens_per_s.filter(|rate| *rate > 0.0);
        f64::from(tokens.0) * rate.map_or(self.unknown, |rate| 1e3 / rate)
    }

    /// Until the prompts that are there are computed.
    pub(super) fn queue(&self, worker: &WorkerView) -> f64 {
        self.prompt(worker, worker.queued + worker.computing)
    }

    /// For `tokens` to cross.
    pub(super) fn link(tokens: Tokens) -> f64 {
        LINK_MS + f64::from(tokens.0) * LINK_MS_PER_TOKEN
    }

    /// One decode step; a worker where none was observed decodes nothing.
    pub(super) fn step(worker: &WorkerView) -> f64 {
        worker.step_ms.unwrap_or(0.0)
    }
}
