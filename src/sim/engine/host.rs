//! KV that is read back from host memory before a prompt is computed.

use super::super::cost;
use super::{Engine, Request};

impl Engine {
    /// Seconds to read back what host memory holds of the job just submitted; it waits for that.
    pub(in crate::sim) fn load_s(&mut self, now: f64) -> Option<f64> {
        self.catch_up(now);
        let rate = self.spec.host_offload_bytes_per_s?;
        let request = self.waiting.back_mut()?;
        let job = &request.job;
        let valid = job.valid.min(job.prompt - 1) / self.spec.block_size * self.spec.block_size;
        let tokens = self.pool.hosted(job.conversation).min(valid);
        let missing = tokens.saturating_sub(self.pool.tokens(job.conversation));
        if missing == 0 || job.received.is_some() {
            return None;
        }
        request.loading = true;
        self.tally.loaded_tokens += u64::from(missing);
        Some(f64::from(missing) * cost::kv_bytes(&self.spec) / rate)
    }

    /// Host memory was read for this conversation. Without room for it the read was in vain.
    pub(in crate::sim) fn loaded(&mut self, conversation: usize, now: f64) {
        self.catch_up(now);
        let of = |request: &&mut Request| request.job.conversation == conversation;
        let Some(request) = self.waiting.iter_mut().find(of) else {
            return;
        };
        request.loading = false;
        let job = &mut request.job;
        let valid = job.valid.min(job.prompt - 1) / self.spec.block_size * self.spec.block_size;
        let tokens = self.pool.hosted(conversation).min(valid);
        let found = self.pool.take(conversation, valid, job.prefix, now);
        let lacks = self.pool.lacks(conversation, tokens);
        if tokens > found && self.pool.grow(conversation, lacks, now) {
            self.pool.computed(conversation, tokens);
            job.received = Some(tokens);
        } else {
            self.pool.idle(conversation, now);
        }
    }
}
