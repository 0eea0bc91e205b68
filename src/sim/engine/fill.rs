//! What the next iteration computes: decodes first, then prompts that run, then the queue; who gives way when blocks run out.

use super::super::scenario::QueueOrder;
use super::{Engine, Load, Request};

impl Engine {
    /// What the next step computes: tokens of each running request, their load, whether prompts are in it.
    pub(super) fn fill(&mut self, now: f64) -> (Vec<u32>, Load, bool) {
        self.make_room_for_decodes(now);
        let mut chunks = Vec::new();
        let mut load = Load::default();
        let mut budget = self.budget();
        let mut prompts = self.spend_on_running(&mut chunks, &mut load, &mut budget, now);
        prompts |= self.spend_on_waiting(&mut chunks, &mut load, &mut budget, now);
        (chunks, load, prompts)
    }

    pub(super) fn take_from_waiting(&mut self, now: f64) -> bool {
        let holds = |request: &&mut Request| request.job.received.is_some();
        let Some(request) = self.waiting.iter_mut().rev().find(holds) else {
            return false;
        };
        request.queued_until(now);
        request.handed_over = false;
        request.job.known = request.job.known.max(request.computed);
        request.job.received = None;
        request.computed = 0;
        request.work.preemptions += 1;
        self.tally.preemptions += 1;
        let conversation = request.job.conversation;
        self.pool.forget(conversation, now);
        true
    }

    /// Tokens that a step may compute, decodes included.
    fn budget(&self) -> u32 {
        let decodes = self.running.iter().filter(|request| request.decodes());
        self.budget_for(decodes.count() as u32, self.decode_step_s)
    }

    pub(super) fn budget_for(&self, decodes: u32, decode_step_s: f64) -> u32 {
        let most = self.spec.max_num_batched_tokens;
        let (Some(target), Some(token_s)) = (self.spec.chunk_target_s, self.token_s) else {
            return most;
        };
        if decodes == 0 {
            return most;
        }
        let room = ((target - decode_step_s).max(0.0) / token_s) as u32;
        most.min(decodes + room.max(256))
    }

    /// Each decode needs a slot: where there is none, the newest request gives its blocks back.
    fn make_room_for_decodes(&mut self, now: f64) {
        let mut at = 0;
        while at < self.running.len() {
            let request = &self.running[at];
            let (conversation, tokens) = (request.job.conversation, request.computed + 1);
            if !request.decodes() {
                at += 1;
                continue;
            }
            let lacks = self.pool.lacks(conversation, tokens);
            if lacks == 0 || self.pool.grow(conversation, lacks, now) {
                at += 1;
            } else {
                self.preempt_newest(now);
            }
        }
    }

    fn preempt_newest(&mut self, now: f64) {
        let Some(mut request) = self.running.pop() else {
            return;
        };
        request.ran_until(now);
        request.handed_over = false;
        if let Some(mark) = request.mark.take() {
            request.gaps.extend(self.log.since(mark));
        }
        request.work.preemptions += 1;
        self.tally.preemptions += 1;
        request.job.known = request.job.known.max(request.computed);
        request.job.valid = 0;
        request.job.received = None;
        request.computed = 0;
        self.pool.forget(request.job.conversation, now);
        self.waiting.push_front(request);
    }

    fn spend_on_running(
        &mut self,
        chunks: &mut Vec<u32>,
        load: &mut Load,
        budget: &mut u32,
        now: f64,
    ) -> bool {
        let mut prompts = false;
        let decodes = self
            .running
            .iter()
            .filter(|request| request.decodes())
            .count() as u32;
        let mut for_prompts = budget.saturating_sub(decodes);
        let mut at = 0;
        while at < self.running.len() {
            let request = &self.running[at];
            let (conversation, computed) = (request.job.conversation, request.computed);
            at += 1;
            if request.decodes() {
                chunks.push(1);
                load.add_chunk(1, computed);
                *budget = budget.saturating_sub(1);
                continue;
            }
            prompts = true;
            let chunk = if request.loading {
                0
            } else {
                request.left().min(for_prompts)
            };
            let lacks = self.pool.lacks(conversation, computed + chunk);
            let mut fits = self.pool.grow(conversation, lacks, now);
            // Those that came later give way; the newest waits for those before it.
            while !fits && at < self.running.len() {
                self.preempt_newest(now);
                fits = self.pool.grow(conversation, lacks, now);
            }
            let chunk = if fits { chunk } else { 0 };
            chunks.push(chunk);
            if chunk > 0 {
                load.add_chunk(chunk, computed);
                for_prompts -= chunk;
                *budget -= chunk;
            }
        }
        prompts
    }

    fn spend_on_waiting(
        &mut self,
        chunks: &mut Vec<u32>,
        load: &mut Load,
        budget: &mut u32,
        now: f64,
    ) -> bool {
        let mut prompts = false;
        while *budget > 0 && self.running() < self.spec.max_num_seqs {
            let Some(at) = self.next_waiting(now) else {
                break;
            };
            let Some(chunk) = self.admit(at, *budget, now) else {
                break;
            };
            let request = self
                .waiting
                .remove(at)
                .expect("the index was just looked up");
            load.add_chunk(chunk, request.computed);
            *budget -= chunk;
            self.running.push(request);
            chunks.push(chunk);
            prompts = true;
        }
        prompts
    }

    fn next_waiting(&self, now: f64) -> Option<usize> {
        // KV that came over a link occupies blocks already: who has it is not held up by who has none.
        let holds = |request: &Request| request.job.received.is_some();
        if let Some(at) = self.waiting.iter().position(holds) {
            return Some(at);
        }
        let ready = |(_, request): &(usize, &Request)| !request.loading;
        let mut queue = self.waiting.iter().enumerate().filter(ready);
        let waited = |request: &Request| now - request.queued_at;
        let tokens = |request: &Request| {
            let found = self
                .pool
                .tokens(request.job.conversation)
                .min(request.job.valid);
            f64::from(request.job.prompt.saturating_sub(found))
        };
        let least =
            |a: &(f64, usize), b: &(f64, usize)| a.0.total_cmp(&b.0).then_with(|| a.1.cmp(&b.1));
        match self.spec.order {
            QueueOrder::Fcfs => queue.next().map(|(at, _)| at),
            QueueOrder::Shortest {
                ms_per_token,
                aging,
            } => {
                let key = |request: &Request| {
                    ms_per_token * tokens(request) - aging * 1e3 * waited(request)
                };
                let keyed = queue.map(|(at, request)| (key(request), at));
                keyed.min_by(least).map(|(_, at)| at)
            }
            QueueOrder::Slack {
                window,
                ttft_slo_s,
                ms_per_token,
            } => {
                let slack = |request: &Request| {
                    ttft_slo_s - waited(request) - 1e-3 * ms_per_token * tokens(request)
                };
                // Those that miss their deadline anyway come after all others.
                let late = |slack: f64| if slack < 0.0 { 1e9 - slack } else { slack };
                let keyed = queue
                    .take(window as usize)
                    .map(|(at, request)| (late(slack(request)), at));
                keyed.min_by(least).map(|(_, at)| at)
            }
        }
    }

    /// Gives the waiting request at `at` blocks for its first chunk; its tokens, `None` if it does not fit.
    fn admit(&mut self, at: usize, budget: u32, now: f64) -> Option<u32> {
        let request = &self.waiting[at];
        let job = request.job;
        let conversation = job.conversation;
        let all = job.prompt + request.generated;
        let place = self.pool.place(conversation);
        let found = match job.received {
            Some(tokens) => tokens,
            None => self
                .pool
                .take(conversation, job.valid.min(all - 1), job.prefix, now),
        };
        let chunk = (all - found).min(budget);
        let lacks = self.pool.lacks(conversation, found + chunk);
        let spare = if self.running.is_empty() {
            0
        } else {
            self.watermark
        };
        let fits = self.pool.could_have(lacks + spare, now) || lacks == 0;
        if !fits || !self.pool.grow(conversation, lacks, now) {
            if job.received.is_none() {
                self.pool.idle(conversation, now);
                self.pool.back_to(conversation, place);
            }
            return None;
        }
        let request = &mut self.waiting[at];
        request.queued_until(now);
        request.computed = found;
        if !request.started {
            request.started = true;
            request.work.started_s = now;
            request.work.cached = found;
        }
        // The last, partial block of a history is never cached: that is no loss.
        let size = self.spec.block_size;
        let known = (job.known.min(all) / size * size).saturating_sub(found);
        request.work.recomputed += known;
        self.tally.recomputed_tokens += u64::from(known);
        Some(chunk)
    }
}
