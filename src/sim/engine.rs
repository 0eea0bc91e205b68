//! One engine: continuous batching as vLLM does it, one iteration after another.
//!
//! An iteration gives each running decode one token, spends the rest of its token budget on prompts
//! (running ones first, then from the queue), evicts idle KV for the blocks it needs, and preempts the
//! newest request when there is none left to evict. Iterations that only decode are planned as one
//! span of steps: until a request ends, blocks run out, or somebody interrupts.
//!
//! Promises: a span equals its steps one by one; an interrupted span ends at the first step boundary
//! at or after the interruption, as an iteration in progress cannot be changed.
//! Leaves to others: when to call (`world`), what a step costs (`cost`), blocks (`pool`), watts (`power`).

mod ahead;

use std::collections::VecDeque;

use super::cost::{Load, StepCost, Stretch};
use super::gaps::{GapStats, StepLog};
use super::pool::Pool;
use super::power::{Governor, Phase, Span};
use super::record::EngineTally;
use super::scenario::{EngineSpec, QueueOrder, Retention};

/// What a request asks of an engine.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Job {
    pub(super) conversation: usize,
    pub(super) prompt: u32,
    /// Tokens to generate; 0: compute the prompt and hold its KV.
    pub(super) output: u32,
    /// Tokens of the prompt that are valid history.
    pub(super) valid: u32,
    /// Of these, tokens that were computed before, anywhere.
    pub(super) known: u32,
    pub(super) prefix: Option<(u32, u32)>,
    /// The KV came over a link and is in use already: this many tokens are there.
    pub(super) received: Option<u32>,
    /// The client has its first token already, since then.
    pub(super) emitted_at: Option<f64>,
}

/// What a request found, for its turn's record.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Work {
    pub(super) started_s: f64,
    pub(super) cached: u32,
    pub(super) computed: u32,
    pub(super) recomputed: u32,
    pub(super) preemptions: u32,
}

/// What an iteration brought to pass.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Outcome {
    FirstToken {
        conversation: usize,
    },
    /// The prompt is computed and its KV is held until it is handed over.
    Prefilled {
        conversation: usize,
        work: Work,
    },
    Finished {
        conversation: usize,
        work: Work,
        gaps: GapStats,
    },
}

#[derive(Debug)]
struct Request {
    job: Job,
    queued_at: f64,
    work: Work,
    started: bool,
    /// Tokens whose KV is computed.
    computed: u32,
    generated: u32,
    /// Waits until host memory was read.
    loading: bool,
    /// From where on it got a token from each step; `None` until it did here.
    mark: Option<usize>,
    gaps: Vec<f64>,
    last_token: Option<f64>,
}

impl Request {
    /// Tokens to compute before the next one can be emitted.
    fn left(&self) -> u32 {
        self.job.prompt + self.generated - self.computed
    }

    fn decodes(&self) -> bool {
        self.generated > 0 && self.left() == 1
    }

    fn emits(&self) -> bool {
        self.job.output > 0
    }
}

/// The steps that are under way.
#[derive(Debug)]
struct Current {
    span: Span,
    steps: u64,
    /// Tokens that each running request computes in a step; empty: one each.
    chunks: Vec<u32>,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Engine {
    spec: EngineSpec,
    cost: Box<dyn StepCost>,
    governor: Governor,
    pool: Pool,
    waiting: VecDeque<Request>,
    running: Vec<Request>,
    current: Option<Current>,
    pub(super) epoch: u64,
    log: StepLog,
    fast_forward: bool,
    watermark: u32,
    /// Since when nothing was computed.
    idle_since: f64,
    pub(super) tally: EngineTally,
    /// Seconds per prompt token, and of a decode-only step, as observed here.
    token_s: Option<f64>,
    decode_step_s: f64,
}

impl Engine {
    pub(super) fn new(
        spec: &EngineSpec,
        cost: Box<dyn StepCost>,
        pool: Pool,
        fast_forward: bool,
    ) -> Self {
        let base = spec.preset.constants();
        let watermark = f64::from(pool.capacity()) * spec.watermark;
        Self {
            governor: Governor::new(super::power::Watts::new(base, &spec.power)),
            spec: spec.clone(),
            cost,
            pool,
            waiting: VecDeque::new(),
            running: Vec::new(),
            current: None,
            epoch: 0,
            log: StepLog::default(),
            fast_forward,
            watermark: watermark as u32,
            idle_since: 0.0,
            tally: EngineTally::default(),
            token_s: None,
            decode_step_s: 0.0,
        }
    }

    pub(super) fn running(&self) -> u32 {
        self.running.len() as u32
    }

    pub(super) fn waiting(&self) -> u32 {
        self.waiting.len() as u32
    }

    pub(super) fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Who lost how many blocks since this was last asked.
    pub(super) fn take_lost(&mut self) -> Vec<(usize, u32)> {
        self.pool.take_lost()
    }

    pub(super) fn is_busy(&self) -> bool {
        self.current.is_some()
    }

    /// Queues a job. The caller interrupts or plans next.
    pub(super) fn submit(&mut self, job: Job, now: f64) {
        let request = Request {
            job,
            queued_at: now,
            work: Work::default(),
            started: false,
            computed: job.received.unwrap_or(0),
            generated: u32::from(job.emitted_at.is_some()),
            loading: false,
            mark: None,
            gaps: Vec::new(),
            last_token: job.emitted_at,
        };
        self.waiting.push_back(request);
        self.tally.queue_peak = self.tally.queue_peak.max(self.waiting());
    }

    /// Seconds to read back what host memory holds of the job just submitted; it waits for that.
    pub(super) fn load_s(&mut self, now: f64) -> Option<f64> {
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
        Some(f64::from(missing) * super::cost::kv_bytes(&self.spec) / rate)
    }

    /// Host memory was read for this conversation. Without room for it the read was in vain.
    pub(super) fn loaded(&mut self, conversation: usize, now: f64) {
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

    /// Ends the steps under way at the first boundary at or after `now`; when that is, if it changed.
    pub(super) fn interrupt(&mut self, now: f64) -> Option<f64> {
        let current = self.current.as_mut()?;
        let steps = current.span.steps_until(now, current.steps);
        if steps == current.steps {
            return None;
        }
        current.steps = steps;
        self.epoch += 1;
        Some(current.span.end(steps))
    }

    /// Plans the next steps if nothing is under way; when they end.
    pub(super) fn plan(&mut self, now: f64) -> Option<f64> {
        if self.current.is_some() {
            return None;
        }
        let (chunks, load, prompts) = loop {
            let planned = self.fill(now);
            // Nothing fits while some that wait hold blocks: the newest of them gives its own back.
            if planned.1.prefill + planned.1.decodes > 0.0 {
                break planned;
            }
            if !self.take_from_waiting(now) {
                return None;
            }
        };
        self.account_idle(now);
        let stretch = if prompts {
            Stretch::single(self.cost.step(&load))
        } else {
            self.cost.stretch(&load)
        };
        let phase = match (load.prefill > 0.0, load.decodes > 0.0) {
            (true, true) => Phase::Mixed,
            (true, false) => Phase::Prefill,
            (false, _) => Phase::Decode,
        };
        let span = self.governor.span(&stretch, phase, now);
        let steps = if prompts || !self.fast_forward {
            1
        } else {
            self.decode_steps(&span, now)
        };
        let end = span.end(steps);
        self.epoch += 1;
        self.current = Some(Current {
            span,
            steps,
            chunks,
        });
        Some(end)
    }

    /// What the next step computes: tokens of each running request, their load, whether prompts are in it.
    fn fill(&mut self, now: f64) -> (Vec<u32>, Load, bool) {
        self.make_room_for_decodes(now);
        let mut chunks = Vec::new();
        let mut load = Load::default();
        let mut budget = self.budget();
        let mut prompts = self.spend_on_running(&mut chunks, &mut load, &mut budget, now);
        prompts |= self.spend_on_waiting(&mut chunks, &mut load, &mut budget, now);
        (chunks, load, prompts)
    }

    fn take_from_waiting(&mut self, now: f64) -> bool {
        let holds = |request: &&mut Request| request.job.received.is_some();
        let Some(request) = self.waiting.iter_mut().rev().find(holds) else {
            return false;
        };
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

    fn budget_for(&self, decodes: u32, decode_step_s: f64) -> u32 {
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

    /// How many steps until something changes.
    fn decode_steps(&self, span: &Span, now: f64) -> u64 {
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
    fn catch_up(&mut self, now: f64) {
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
    pub(super) fn books(&mut self, now: f64) -> &mut Pool {
        self.catch_up(now);
        &mut self.pool
    }

    /// The steps under way have ended.
    pub(super) fn finish(&mut self, now: f64, outcomes: &mut Vec<Outcome>) {
        self.catch_up(now);
        let Some(current) = self.current.take() else {
            return;
        };
        let Current {
            span,
            steps,
            chunks,
        } = current;
        self.account_steps(&span, steps, &chunks, now);
        self.log.push(span.first_s(), span.growth_s(), steps);
        let mut at = 0;
        for chunk in chunks {
            let tokens = chunk
                * if span.phase == Phase::Decode {
                    steps as u32
                } else {
                    1
                };
            if self.advance(at, tokens, steps as u32, now, outcomes) {
                self.running.remove(at);
            } else {
                at += 1;
            }
        }
        self.idle_since = now;
    }

    /// One request computed `tokens`; whether it leaves the engine's running list.
    fn advance(
        &mut self,
        at: usize,
        tokens: u32,
        steps: u32,
        now: f64,
        outcomes: &mut Vec<Outcome>,
    ) -> bool {
        let mark = self.log.mark();
        let request = &mut self.running[at];
        let conversation = request.job.conversation;
        if tokens == 0 {
            return false;
        }
        if request.decodes() {
            request.computed += steps;
            request.generated += steps;
            if request.mark.is_none() {
                request
                    .gaps
                    .extend(request.last_token.map(|last| now - last));
                request.mark = Some(mark);
            }
            request.last_token = Some(now);
            self.tally.generated_tokens += u64::from(steps);
        } else {
            request.computed += tokens;
            request.work.computed += tokens;
            self.tally.prefill_tokens += u64::from(tokens);
            if request.left() > 0 {
                self.pool.computed(conversation, request.computed);
                return false;
            }
            if let Some((id, length)) = request.job.prefix {
                self.pool.share(conversation, id, length);
            }
            if request.emits() {
                if request.generated == 0 {
                    outcomes.push(Outcome::FirstToken { conversation });
                } else if let Some(last) = request.last_token {
                    request.gaps.push(now - last);
                }
                request.generated += 1;
                request.last_token = Some(now);
                request.mark = Some(mark);
                self.tally.generated_tokens += 1;
            }
        }
        self.pool.computed(conversation, request.computed);
        if !request.emits() {
            let work = request.work;
            outcomes.push(Outcome::Prefilled { conversation, work });
            return true;
        }
        if request.generated < request.job.output {
            return false;
        }
        let from = request.mark.unwrap_or(mark);
        let gaps = self.log.stats(from, std::mem::take(&mut request.gaps));
        let work = request.work;
        outcomes.push(Outcome::Finished {
            conversation,
            work,
            gaps,
        });
        self.pool.idle(conversation, now);
        true
    }

    fn account_steps(&mut self, span: &Span, steps: u64, chunks: &[u32], now: f64) {
        self.governor.note(span, steps, now);
        let phase = span.phase as usize;
        self.tally.joules[phase] += span.energy(steps, &self.governor.watts);
        self.tally.seconds[phase] += now - span.start;
        self.tally.steps += steps;
        let length = now - span.start;
        let prompt: u32 = chunks.iter().filter(|chunk| **chunk > 1).sum();
        if span.phase == Phase::Decode {
            self.decode_step_s = span.step_s(steps);
        } else if prompt >= 256 {
            let sample = length / f64::from(prompt);
            self.token_s = Some(
                self.token_s
                    .map_or(sample, |old| old + 0.1 * (sample - old)),
            );
        }
    }

    fn account_idle(&mut self, now: f64) {
        let (awake, parked) = self.idle_parts(now);
        let watts = &self.governor.watts;
        self.tally.joules[Phase::Idle as usize] += watts.idle * awake;
        self.tally.joules[Phase::Parked as usize] += watts.parked * parked;
        self.tally.seconds[Phase::Idle as usize] += awake;
        self.tally.seconds[Phase::Parked as usize] += parked;
        self.idle_since = now;
    }

    fn idle_parts(&self, now: f64) -> (f64, f64) {
        let span = (now - self.idle_since).max(0.0);
        let awake = span.min(self.governor.watts.park_after_s);
        (awake, span - awake)
    }

    /// Joules drawn from the start until `now`.
    pub(super) fn joules_by(&self, now: f64) -> f64 {
        let so_far: f64 = self.tally.joules.iter().sum();
        let watts = &self.governor.watts;
        if let Some(current) = &self.current {
            so_far + current.span.energy_until(now, current.steps, watts)
        } else {
            let (awake, parked) = self.idle_parts(now);
            so_far + watts.idle * awake + watts.parked * parked
        }
    }

    /// Joules of the whole run, once it has stopped.
    pub(super) fn total_joules(&self) -> f64 {
        self.tally.joules.iter().sum()
    }

    /// Every second of virtual time is in one phase.
    pub(super) fn check(&self, now: f64) -> Result<(), String> {
        let since = match &self.current {
            Some(current) => current.span.start,
            None => self.idle_since,
        };
        let accounted: f64 = self.tally.seconds.iter().sum::<f64>() + (now - since);
        if (accounted - now).abs() > 1e-9 * now.max(1.0) * (1 + self.tally.steps) as f64 {
            return Err(format!("{accounted} s accounted for at {now} s"));
        }
        self.pool.check()
    }

    /// The run ends: what was under way counts until now.
    pub(super) fn stop(&mut self, now: f64) {
        self.catch_up(now);
        if let Some(current) = &self.current {
            let begun = current.span.steps_until(now, current.steps);
            let done = begun - u64::from(current.span.end(begun) > now);
            let decodes = self.running.iter().filter(|request| request.decodes());
            self.tally.steps += done;
            self.tally.generated_tokens += done * decodes.count() as u64;
            let joules = current
                .span
                .energy_until(now, current.steps, &self.governor.watts);
            self.tally.joules[current.span.phase as usize] += joules;
            self.tally.seconds[current.span.phase as usize] += now - current.span.start;
        } else {
            self.account_idle(now);
        }
    }

    /// What goes on here, for a diagnosis.
    pub(super) fn describe(&self) -> String {
        format!(
            "{} running, {} queued, {} of {} blocks in use, {} idle",
            self.running(),
            self.waiting(),
            self.pool.active(),
            self.pool.capacity(),
            self.pool.used() - self.pool.active(),
        )
    }
}
