//! What a prompt is estimated to cost at a worker, term by term, as it is told.

use std::fmt;

/// In milliseconds, of work that is there and at speeds that were measured.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Estimate {
    /// Until the prompts ahead of it are computed.
    pub wait_ms: f32,
    /// To compute it.
    pub prompt_ms: f32,
    /// What it takes from the turns that run there.
    pub stall_ms: f32,
}

impl fmt::Display for Estimate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            wait_ms,
            prompt_ms,
            stall_ms,
        } = self;
        write!(
            f,
            "wait {wait_ms:.0} + prompt {prompt_ms:.0} + stall of others {stall_ms:.0} ms"
        )
    }
}
