//! Steps that only decode, many at once: how many, and the blocks of those that have begun.

use super::super::pool::Pool;
use super::super::power::Span;
use super::super::scenario::{QueueOrder, Retention};
use super::{Engine, Request};

impl Engine {
    /// How many steps until something changes.
    pub(super) fn decode_steps(&self, span: &Span, now: f64) -> u64 {
        let until_end = self
            .running
            .iter()
            .map(|request| request.job.output - request.generated);
        let mut most = u64::from(until_end.min().unwrap_or(1))
            .min(span.steps)
            .max(1);
        // Who waits for room is looked at again when the steps end: nothing frees any before, unless
        // time itself does, or changes who is next.
        let timeless = self.spec.order == QueueOrder::Fcfs
            && !matches!(self.spec.retention, Retention::Ttl { .. });
        // Who gets a token here for the first time has a gap of its own to it, and equal ones only from then on.
        let joins = |request: &Request| request.mark.is_none();
        if (!self.waiting.is_empty() && !timeless) || self.running.iter().any(joins) {
            return 1;
        }
        let change = self.governor.next_change();
        if change.is_finite() {
            most = span.steps_until(change, most);
        }
        let lacks = |steps: u64| -> u64 {
            let need = |request: &Request| {
                let tokens = u64::from(request.computed) + steps;
                let tokens = u32::try_from(tokens).unwrap_or(u32::MAX);
                u64::from(self.pool.lacks(request.job.conversation, tokens))
            };
            self.running.iter().map(need).sum()
        };
        let available = u64::from(self.pool.available(now));
        if lacks(most) <= available {
            return most;
        }
        let (mut low, mut high) = (1, most);
        while low + 1 < high {
            let middle = low + (high - low) / 2;
            if lacks(middle) <= available {
                low = middle;
            } else {
                high = middle;
            }
        }
        low
    }

    /// Takes the blocks of the steps that have begun by now, as they would have been step by step: before
    /// anybody else changes the pool.
    pub(super) fn catch_up(&mut self, now: f64) {
        let Some(current) = &self.current else { return };
        let steps = current.span.steps_until(now, current.steps) as u32;
        for (request, chunk) in self.running.iter().zip(&current.chunks) {
            if *chunk != 1 {
                continue;
            }
            let conversation = request.job.conversation;
            let lacks = self.pool.lacks(conversation, request.computed + steps);
            let had = self.pool.grow(conversation, lacks, now);
            debug_assert!(had, "the steps were planned within the blocks");
        }
    }

    /// The blocks, to be changed by somebody else than the engine's own steps.
    pub(in crate::sim) fn books(&mut self, now: f64) -> &mut Pool {
        self.catch_up(now);
        &mut self.pool
    }
}
