//! What a turn would take at a worker, from measured times: of a prompt token, of a decode step, of a token over the link.
//!
//! Promises: pure; what was not observed at a worker is taken from the fastest one that was.
//! Leaves to others: what follows from it (one file for each policy).

use super::{Observed, WorkerView};
use crate::units::Tokens;

/// Of a prompt token where none was observed anywhere.
const UNKNOWN_MS_PER_TOKEN: f64 = 0.02;

/// What a handoff takes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Link {
    /// Before its first token, milliseconds.
    pub(super) ms: f64,
    /// More for each token, until handoffs were observed.
    pub(super) ms_per_token: f64,
}

impl Link {
    /// 114,688 bytes for each token at 10 GB/s.
    const USUAL: Self = Self {
        ms: 5.0,
        ms_per_token: 0.0115,
    };
}

/// Milliseconds, as far as they are known.
pub(crate) struct Times {
    unknown: f64,
    link: Link,
}

impl Times {
    pub(super) fn of(fleet: &Observed) -> Self {
        Self::over(Link::USUAL, fleet)
    }

    /// The same with a link of which so much is assumed until handoffs were observed.
    pub(super) fn over(assumed: Link, fleet: &Observed) -> Self {
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
        let ms_per_token = fleet.link_ms_per_token.unwrap_or(assumed.ms_per_token);
        let link = Link {
            ms_per_token,
            ..assumed
        };
        Self { unknown, link }
    }

    /// To compute one token of a prompt there.
    pub(super) fn token(&self, worker: &WorkerView) -> f64 {
        let rate = worker.tokens_per_s.filter(|rate| *rate > 0.0);
        rate.map_or(self.unknown, |rate| 1e3 / rate)
    }

    /// To compute `tokens` of a prompt there, once it is their turn.
    pub(super) fn prompt(&self, worker: &WorkerView, tokens: Tokens) -> f64 {
        f64::from(tokens.0) * self.token(worker)
    }

    /// Until the prompts that are there are computed.
    pub(super) fn queue(&self, worker: &WorkerView) -> f64 {
        self.prompt(worker, worker.queued + worker.computing)
    }

    /// For `tokens` to cross.
    pub(super) fn link(&self, tokens: Tokens) -> f64 {
        self.link.ms + f64::from(tokens.0) * self.link.ms_per_token
    }

    /// One decode step; a worker where none was observed decodes nothing.
    pub(super) fn step(worker: &WorkerView) -> f64 {
        worker.step_ms.unwrap_or(0.0)
    }
}
