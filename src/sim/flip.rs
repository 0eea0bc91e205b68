//! The paper's stand-in for a turn that was sent to the prefiller by mistake: nothing is executed there,
//! the conversation sleeps for what the recorded run says that it would have taken.

use super::scenario::{FlipSpec, FlipWait};
use super::workload::TurnSpec;

/// The modelled work of one flipped turn, seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct FlipWork {
    pub(super) total_s: f64,
    /// The part that occupies the prefiller.
    pub(super) blocks_s: f64,
}

/// The artifact's model: KV there, a cache hit, KV back, and block management.
pub(super) fn work_s(spec: &TurnSpec) -> FlipWork {
    let (history, append) = (f64::from(spec.reuse), f64::from(spec.prompt - spec.reuse));
    let net_ms = |tokens: f64| {
        if tokens <= 1024.0 {
            4.849
        } else {
            0.985e-3 * tokens + 5.27
        }
    };
    let tokens = history + append;
    let hit_ms = if tokens <= 12_000.0 {
        14.5
    } else {
        0.95e-3 * tokens + 5.6
    };
    let management_ms = 2.0 * (2.0 + 5e-3 * tokens / 16.0);
    FlipWork {
        total_s: 1e-3 * (net_ms(history) + hit_ms + net_ms(append) + management_ms),
        blocks_s: 1e-3 * hit_ms,
    }
}

/// Seconds until every recorded prompt in flight at `now` is done; `blocks_s` are then pushed into the
/// record, which makes all prompts that start later end later.
pub(super) fn wait_s(flip: &FlipSpec, pushed_s: &mut [f64], now: f64, blocks_s: f64) -> f64 {
    if flip.wait != FlipWait::Drain {
        return 0.0;
    }
    let mut until = now;
    let spans = flip.started_s.iter().zip(&flip.ended_s);
    for ((started, ended), pushed) in spans.zip(pushed_s) {
        let (started, ended) = (started + *pushed, ended + *pushed);
        if started <= now {
            if ended > now {
                until = until.max(ended);
            }
        } else {
            *pushed += blocks_s;
        }
    }
    until - now
}
