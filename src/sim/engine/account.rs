//! The engine's accounts: seconds, joules and tokens by phase.

use super::super::power::{Phase, Span};
use super::Engine;

impl Engine {
    pub(super) fn account_steps(&mut self, span: &Span, steps: u64, chunks: &[u32], now: f64) {
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

    pub(super) fn account_idle(&mut self, now: f64) {
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
    pub(in crate::sim) fn joules_by(&self, now: f64) -> f64 {
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
    pub(in crate::sim) fn total_joules(&self) -> f64 {
        self.tally.joules.iter().sum()
    }

    /// Every second of virtual time is in one phase.
    pub(in crate::sim) fn check(&self, now: f64) -> Result<(), String> {
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
    pub(in crate::sim) fn stop(&mut self, now: f64) {
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
    pub(in crate::sim) fn describe(&self) -> String {
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
