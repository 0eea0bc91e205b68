//! When a prompt would be computed if it came now: the steps that the engine would take, taken on paper.
//!
//! Promises: exact while nobody else comes, the clock stays, blocks suffice and the queue is first come, first served.
//! Leaves to others: what follows from it (`oracle`).

use super::{Engine, Load, Phase, Request};

/// A prompt that is not there yet, in seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(in crate::sim) struct Ahead {
    /// Until its first chunk is begun, and until its last one is computed.
    pub(in crate::sim) begins: f64,
    pub(in crate::sim) ends: f64,
    /// The longest step in which somebody else decodes meanwhile.
    pub(in crate::sim) gap: f64,
}

/// One request on paper.
#[derive(Debug, Clone, Copy)]
struct Sketch {
    /// Tokens of the prompt to compute, after `past` others.
    left: u32,
    past: u32,
    /// Tokens to generate.
    output: u32,
    own: bool,
}

impl Sketch {
    fn of(request: &Request, computed: u32) -> Self {
        Self {
            left: (request.job.prompt + request.generated).saturating_sub(computed),
            past: computed,
            output: request.job.output.saturating_sub(request.generated),
            own: false,
        }
    }

    fn decodes(&self) -> bool {
        self.left == 1 && !self.own && self.output > 0
    }
}

impl Engine {
    /// Seconds of a step that only decodes: those that run now and one more with this context.
    pub(in crate::sim) fn decode_step_s(&self, context: u32, now: f64) -> f64 {
        let mut load = Load::default();
        let ended = self.ended_steps(now);
        for request in self.running.iter().filter(|request| request.decodes()) {
            load.add_chunk(1, request.computed + ended);
        }
        load.add_chunk(1, context);
        self.step_s(&load)
    }

    /// How many of the steps under way have ended.
    fn ended_steps(&self, now: f64) -> u32 {
        let current = self.current.as_ref();
        current.map_or(0, |current| {
            current.span.steps_until(now, current.steps) as u32 - 1
        })
    }

    /// The last step that only decoded, of those that have ended.
    fn observed_decode_step_s(&self, now: f64) -> f64 {
        match (&self.current, u64::from(self.ended_steps(now))) {
            (Some(current), ended) if ended > 0 && current.span.phase == Phase::Decode => {
                current.span.step_s(ended)
            }
            _ => self.decode_step_s,
        }
    }

    fn step_s(&self, load: &Load) -> f64 {
        let parts = self.cost.step(load);
        parts.compute + parts.memory + parts.exposed_host()
    }

    /// A prompt of `new` tokens after `past` that are here already.
    pub(in crate::sim) fn ahead(&self, new: u32, past: u32, now: f64) -> Ahead {
        let (mut at, mut requests) = self.after_current(now);
        let waiting = |held: bool| {
            let of = move |request: &&Request| request.job.received.is_some() == held;
            self.waiting.iter().filter(of)
        };
        for request in waiting(true).chain(waiting(false)) {
            let found = match request.job.received {
                Some(tokens) => tokens,
                None => self
                    .pool
                    .tokens(request.job.conversation)
                    .min(request.job.valid),
            };
            requests.push(Sketch::of(request, found));
        }
        requests.push(Sketch {
            left: new,
            past,
            output: 0,
            own: true,
        });
        let observed_s = self.observed_decode_step_s(now);
        let mut ahead = Ahead {
            begins: f64::NAN,
            ends: 0.0,
            gap: 0.0,
        };
        loop {
            let decodes = requests.iter().filter(|request| request.decodes()).count() as u32;
            let budget = self.budget_for(decodes, observed_s);
            let mut budget = budget.saturating_sub(decodes).max(1);
            let mut load = Load::default();
            let began = at;
            for request in &mut requests {
                let chunk = if request.decodes() {
                    1
                } else {
                    request.left.min(budget)
                };
                if chunk == 0 {
                    continue;
                }
                if !request.decodes() {
                    budget -= chunk;
                }
                if request.own && ahead.begins.is_nan() {
                    ahead.begins = began - now;
                }
                load.add_chunk(chunk, request.past);
                request.left -= chunk;
                request.past += chunk;
                if request.left == 0 && request.output > 0 {
                    request.output -= 1;
                    request.left = u32::from(request.output > 0);
                }
            }
            let step = self.step_s(&load);
            at += step;
            if decodes > 0 {
                ahead.gap = ahead.gap.max(step);
            }
            if requests
                .iter()
                .any(|request| request.own && request.left == 0)
            {
                ahead.ends = at - now;
                return ahead;
            }
            requests.retain(|request| request.left > 0);
        }
    }

    /// When the steps under way can be changed, and what runs then.
    fn after_current(&self, now: f64) -> (f64, Vec<Sketch>) {
        let Some(current) = &self.current else {
            let running = self.running.iter();
            let sketches = running.map(|request| Sketch::of(request, request.computed));
            return (now, sketches.collect());
        };
        let steps = current.span.steps_until(now, current.steps);
        let mut requests = Vec::new();
        for (request, chunk) in self.running.iter().zip(&current.chunks) {
            let decodes = request.decodes();
            let tokens = if decodes { steps as u32 } else { *chunk };
            let mut sketch = Sketch::of(request, request.computed);
            if decodes {
                sketch.past += tokens;
                sketch.output = sketch.output.saturating_sub(tokens);
                sketch.left = u32::from(sketch.output > 0);
            } else {
                sketch.left -= tokens.min(sketch.left);
                sketch.past += tokens;
                if sketch.left == 0 && sketch.output > 0 {
                    sketch.output -= 1;
                    sketch.left = u32::from(sketch.output > 0);
                }
            }
            if sketch.left > 0 {
                requests.push(sketch);
            }
        }
        (current.span.end(steps), requests)
    }
}
