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

mod account;
mod ahead;
mod fill;
mod host;
mod steps;

use std::collections::VecDeque;

use super::cost::{Load, StepCost, Stretch};
use super::gaps::{GapStats, StepLog};
use super::pool::Pool;
use super::power::{Governor, Phase, Span};
use super::record::EngineTally;
use super::scenario::EngineSpec;
use super::split::{Ledger, Part, Split};

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
    /// All of the time since it was submitted.
    pub(super) spent: Split,
}

/// What an iteration brought to pass.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Outcome {
    FirstToken {
        conversation: usize,
        /// All of the time since it was submitted.
        spent: Split,
    },
    /// The prompt is computed and its KV is held until it is handed over.
    Prefilled { conversation: usize, work: Work },
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
    ledger: Ledger,
    /// Its whole prompt was handed over and is still here.
    handed_over: bool,
}

impl Request {
    /// It was in the queue until `now`.
    fn queued_until(&mut self, now: f64) {
        let part = if self.handed_over {
            Part::DecoderQueue
        } else {
            Part::EngineQueue
        };
        self.ledger.spend(part, now);
    }

    /// It ran until `now`.
    fn ran_until(&mut self, now: f64) {
        let part = if self.handed_over || self.decodes() {
            Part::Decode
        } else {
            Part::Compute
        };
        self.ledger.spend(part, now);
    }

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
            ledger: Ledger::new(now),
            handed_over: job.received.is_some() && job.output > 0,
        };
        self.waiting.push_back(request);
        self.tally.queue_peak = self.tally.queue_peak.max(self.waiting());
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
            request.work.computed += tokens;
            self.tally.prefill_tokens += u64::from(tokens);
            if tokens < request.left() {
                request.computed += tokens;
                self.pool.computed(conversation, request.computed);
                return false;
            }
            request.ran_until(now);
            request.computed += tokens;
            if let Some((id, length)) = request.job.prefix {
                self.pool.share(conversation, id, length);
            }
            if request.emits() {
                if request.generated == 0 {
                    let spent = request.ledger.spent();
                    outcomes.push(Outcome::FirstToken {
                        conversation,
                        spent,
                    });
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
            request.work.spent = request.ledger.spent();
            let work = request.work;
            outcomes.push(Outcome::Prefilled { conversation, work });
            return true;
        }
        if request.generated < request.job.output {
            return false;
        }
        let from = request.mark.unwrap_or(mark);
        let gaps = self.log.stats(from, std::mem::take(&mut request.gaps));
        request.ledger.spend(Part::Decode, now);
        request.work.spent = request.ledger.spent();
        let work = request.work;
        outcomes.push(Outcome::Finished {
            conversation,
            work,
            gaps,
        });
        self.pool.idle(conversation, now);
        true
    }
}
