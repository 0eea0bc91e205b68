//! Watts of one engine, and the clock that keeps them under a cap.
//!
//! ```text
//! P(f) = idle + (compute_w f^alpha tc/f + memory_w (1+f)/2 tm (1 + mu (1-f)) + overhead_w to) / T(f)
//! ```
//! A cap holds for the mean over a window: at the first step boundary after each window the clock becomes the
//! largest in 0.25..=1 at which the work of that window would have drawn at most the cap.
//! A cap for decodes alone has its own clock, fed by decode-only steps.
//!
//! Promises: energy is the integral of power; a span of steps is integrated in closed form.

use super::cost::{Parts, Stretch};
use super::events::nanosecond;
use super::preset::Constants;
use super::scenario::PowerSpec;

const SLOWEST: f64 = 0.25;
/// Share of its window that a cap does not wait for: steps that fill a window exactly end it, however
/// their sum was rounded.
const WINDOW_SLACK: f64 = 1e-6;

/// What an engine is doing, for its accounts; in the order of `EngineRow::PHASES`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    Prefill,
    Mixed,
    Decode,
    Idle,
    Parked,
}

/// The constants of one engine.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Watts {
    pub(super) idle: f64,
    pub(super) parked: f64,
    pub(super) park_after_s: f64,
    compute: f64,
    memory: f64,
    overhead: f64,
    cap: f64,
    decode_cap: Option<f64>,
    fixed_clock: Option<f64>,
    alpha: f64,
    mu: f64,
    window_s: f64,
}

impl Watts {
    pub(super) fn new(base: Constants, spec: &PowerSpec) -> Self {
        let scale = base.limit_w / 300.0;
        Self {
            idle: spec.idle_w.unwrap_or(75.0 * scale),
            parked: spec.parked_w.unwrap_or(30.0 * scale),
            park_after_s: spec.park_after_s.unwrap_or(f64::INFINITY),
            compute: spec.compute_w.unwrap_or(225.0 * scale),
            memory: spec.memory_w.unwrap_or(130.0 * scale),
            overhead: spec.overhead_w.unwrap_or(40.0 * scale),
            cap: spec.cap_w.unwrap_or(f64::INFINITY),
            decode_cap: spec.decode_cap_w,
            fixed_clock: spec.clock,
            alpha: spec.alpha.unwrap_or(1.3),
            mu: spec.mu.unwrap_or(0.05),
            window_s: spec.cap_window_s.unwrap_or(0.1),
        }
    }

    /// Whether any work could draw more than `cap`.
    fn can_exceed(&self, cap: f64) -> bool {
        self.idle + self.compute.max(self.memory).max(self.overhead) > cap
    }

    fn clocked(&self, parts: Parts, clock: f64) -> Parts {
        Parts {
            compute: parts.compute / clock,
            memory: parts.memory * (1.0 + self.mu * (1.0 - clock)),
            ..parts
        }
    }

    /// Mean watts of work that took these seconds at full clock.
    fn mean(&self, at_full: Parts, clock: f64) -> f64 {
        let parts = self.clocked(at_full, clock);
        let span = parts.compute + parts.memory + parts.host;
        self.idle + self.above_idle(&parts, parts.host, clock) / span
    }

    fn above_idle(&self, clocked: &Parts, host: f64, clock: f64) -> f64 {
        self.compute * clock.powf(self.alpha) * clocked.compute
            + self.memory * 0.5 * (1.0 + clock) * clocked.memory
            + self.overhead * host
    }

    /// The fastest clock at which this work stays under `cap`.
    fn clock_under(&self, cap: f64, at_full: Parts) -> f64 {
        if self.mean(at_full, 1.0) <= cap {
            return 1.0;
        }
        let (mut low, mut high) = (SLOWEST, 1.0);
        for _ in 0..50 {
            let middle = 0.5 * (low + high);
            if self.mean(at_full, middle) <= cap {
                low = middle;
            } else {
                high = middle;
            }
        }
        low
    }
}

/// Work since the clock was last set, in seconds at full clock.
#[derive(Debug, Clone, Copy)]
struct Governed {
    clock: f64,
    seen: Parts,
}

/// Sets the clock of one engine.
#[derive(Debug)]
pub(super) struct Governor {
    pub(super) watts: Watts,
    /// All steps, or with a cap for decodes: all others, and decode-only steps.
    classes: [Governed; 2],
    active: bool,
    next: f64,
}

impl Governor {
    pub(super) fn new(watts: Watts) -> Self {
        let clock = watts.fixed_clock.unwrap_or(1.0);
        let governed = Governed {
            clock,
            seen: Parts::default(),
        };
        let tightest = watts.decode_cap.unwrap_or(watts.cap).min(watts.cap);
        let active = watts.fixed_clock.is_none() && watts.can_exceed(tightest);
        Self {
            watts,
            classes: [governed; 2],
            active,
            next: 0.0,
        }
    }

    fn class(&self, phase: Phase) -> usize {
        usize::from(self.watts.decode_cap.is_some() && phase == Phase::Decode)
    }

    /// Steps of `phase` from `now` on, at the clock that holds now.
    pub(super) fn span(&self, stretch: &Stretch, phase: Phase, now: f64) -> Span {
        let clock = self.classes[self.class(phase)].clock;
        let first = self.watts.clocked(stretch.first, clock);
        let growth = stretch.growth * (1.0 + self.watts.mu * (1.0 - clock));
        let (busy, mut steps) = (first.compute + first.memory, stretch.steps);
        let behind = first.hidden && busy < first.host;
        if behind && growth > 0.0 {
            // Behind the host's work steps are equal until the GPU's are longer.
            steps = steps.min(((first.host - busy) / growth) as u64 + 1);
        }
        Span {
            start: now,
            steps,
            first,
            growth,
            clock,
            phase,
            behind,
            at_full: *stretch,
        }
    }

    /// When the clock may next change; infinite if it never does.
    pub(super) fn next_change(&self) -> f64 {
        if self.active {
            self.next
        } else {
            f64::INFINITY
        }
    }

    /// `steps` steps of a span ended at `now`.
    pub(super) fn note(&mut self, span: &Span, steps: u64, now: f64) {
        if !self.active {
            return;
        }
        let class = self.class(span.phase);
        let n = steps as f64;
        let seen = &mut self.classes[class].seen;
        seen.compute += n * span.at_full.first.compute;
        seen.memory += n * span.at_full.first.memory + span.at_full.growth * n * (n - 1.0) / 2.0;
        seen.host += span.host(steps);
        if now < self.next {
            return;
        }
        self.next = now + self.watts.window_s * (1.0 - WINDOW_SLACK);
        for class in 0..self.classes.len() {
            let Governed { seen, .. } = self.classes[class];
            if seen.compute + seen.memory + seen.host > 0.0 {
                let cap = match (class, self.watts.decode_cap) {
                    (1, Some(cap)) => cap.min(self.watts.cap),
                    _ => self.watts.cap,
                };
                self.classes[class].clock = self.watts.clock_under(cap, seen);
                self.classes[class].seen = Parts::default();
            }
        }
    }
}

/// Steps in a row, each as long as the one before plus the same growth.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Span {
    pub(super) start: f64,
    /// For how many the form holds.
    pub(super) steps: u64,
    first: Parts,
    growth: f64,
    clock: f64,
    pub(super) phase: Phase,
    /// The host is the slower one: steps do not grow.
    behind: bool,
    at_full: Stretch,
}

impl Span {
    /// Seconds of the first step.
    pub(super) fn first_s(&self) -> f64 {
        self.first.compute + self.first.memory + self.first.exposed_host()
    }

    /// Seconds by which each step is longer than the one before.
    pub(super) fn growth_s(&self) -> f64 {
        if self.behind { 0.0 } else { self.growth }
    }

    /// Seconds of one step, counted from 1.
    pub(super) fn step_s(&self, step: u64) -> f64 {
        self.first_s() + (step - 1) as f64 * self.growth_s()
    }

    /// Seconds of the first `steps`.
    fn length(&self, steps: u64) -> f64 {
        let n = steps as f64;
        n * self.first_s() + self.growth_s() * n * (n - 1.0) / 2.0
    }

    /// When the first `steps` are done.
    pub(super) fn end(&self, steps: u64) -> f64 {
        self.start + self.length(steps)
    }

    /// How many steps, at least one and at most `most`, until one ends at or after `when`.
    pub(super) fn steps_until(&self, when: f64, most: u64) -> u64 {
        let (mut low, mut high) = (1, most.max(1));
        while low < high {
            let middle = low + (high - low) / 2;
            if nanosecond(self.end(middle)) >= nanosecond(when) {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        low
    }

    fn host(&self, steps: u64) -> f64 {
        let n = steps as f64;
        if self.behind {
            n * self.first.exposed_host() - self.growth * n * (n - 1.0) / 2.0
        } else {
            n * self.first.exposed_host()
        }
    }

    /// Joules of the first `steps`.
    pub(super) fn energy(&self, steps: u64, watts: &Watts) -> f64 {
        let n = steps as f64;
        let parts = Parts {
            compute: n * self.first.compute,
            memory: n * self.first.memory + self.growth * n * (n - 1.0) / 2.0,
            ..self.first
        };
        watts.idle * self.length(steps) + watts.above_idle(&parts, self.host(steps), self.clock)
    }

    /// Joules until `when`, which lies in the first `steps`.
    pub(super) fn energy_until(&self, when: f64, steps: u64, watts: &Watts) -> f64 {
        let upper = self.steps_until(when, steps);
        let (from, to) = (self.end(upper - 1), self.end(upper));
        let before = self.energy(upper - 1, watts);
        let share = ((when - from) / (to - from)).clamp(0.0, 1.0);
        before + share * (self.energy(upper, watts) - before)
    }
}
