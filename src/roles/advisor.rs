//! Draws the measures together, once in a while, over the last minutes.
//!
//! Promises: a change follows only from minutes that were measured as a whole with the roles that there are. Measures have an
//! age: where too little was computed of late there is no advice, and the roles are those that the operator gave.
//! Leaves to others: what follows from the measures (`roles`), carrying it out (`router`).

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use super::calm::Calm;
use super::line::Line;
use super::{Advice, Measured};
use crate::activity::Work;
use crate::fleet::Role;
use crate::pace::Gaps;
use crate::router::WorkerRow;
use crate::units::{Timestamp, WorkerId};

/// What there is to see.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Look<'a> {
    /// The live workers, in the order in which they joined.
    pub(crate) workers: &'a [WorkerRow],
    /// Whether only workers that do both may change.
    pub(crate) acts: bool,
    /// Whether a prompt is computed at home where those that would compute it are busy.
    pub(crate) spares_the_busy: bool,
    /// Prompt tokens computed for conversations being placed, so far.
    pub(crate) placed: u64,
    pub(crate) low_watermark: f64,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Advisor {
    /// The looks of the last minutes, oldest first.
    looks: VecDeque<Sums>,
    /// What each worker had done at the last look.
    seen: BTreeMap<WorkerId, (Work, Gaps)>,
    steps: Line,
    /// Workers that only compute prompts whatever is chosen, at the last look.
    dedicated: u16,
    advice: Option<Advice>,
    changed: Timestamp,
    calm: Calm,
}

impl Default for Advisor {
    fn default() -> Self {
        Self {
            looks: VecDeque::new(),
            seen: BTreeMap::new(),
            steps: Line::default(),
            dedicated: 0,
            advice: None,
            changed: Timestamp(0),
            calm: Calm::of(Self::OVER),
        }
    }
}

/// Totals since the first look.
#[derive(Debug, Clone, Copy, Default)]
struct Sums {
    at: Timestamp,
    /// Seconds that workers spent on prompts.
    busy_s: f64,
    prompt: u64,
    placed: u64,
    output: u64,
}

impl Advisor {
    /// Between two looks: short against how load changes, long against a turn, or the turns that ended were not those that ran.
    pub(crate) const EVERY: Duration = Duration::from_secs(30);
    /// Measures are means over this time, and roles change no sooner after one another, or later (`Calm`).
    pub(crate) const OVER: Duration = Duration::from_secs(180);

    pub(crate) fn is_due(&self, now: Timestamp) -> bool {
        let last = self.looks.back();
        last.is_none_or(|last| now.since(last.at) >= Self::EVERY)
    }

    pub(crate) fn advice(&self) -> Option<Advice> {
        self.advice
    }

    pub(crate) fn look(&mut self, look: &Look<'_>, now: Timestamp) {
        let (both, dedicated) = (count(look, Role::Both), count(look, Role::Prefiller));
        let helpers = look.workers.iter().filter(|row| row.helps).count();
        let helpers = u16::try_from(helpers).unwrap_or(u16::MAX);
        let sums = self.add_up(look, now);
        self.looks.push_back(sums);
        while (self.looks.get(1)).is_some_and(|next| now.since(next.at) >= Self::OVER) {
            self.looks.pop_front();
        }
        self.dedicated = dedicated;
        let Some(line) = self.steps.fit() else {
            self.forget();
            return;
        };
        let Some(measured) = self.measured(line, look, dedicated + helpers, now) else {
            return;
        };
        let choices = if look.acts {
            dedicated..=dedicated + both
        } else {
            0..=measured.workers.saturating_sub(1)
        };
        self.advice = measured.advise(choices);
    }

    /// Nothing of what was measured counts any more.
    fn forget(&mut self) {
        self.advice = None;
        self.calm = Calm::of(Self::OVER);
        self.looks.drain(..self.looks.len() - 1);
    }

    /// How many of the workers that do both should only compute prompts from now on, if that is to change: one more or one
    /// less, because what is told of numbers further off was never measured. Then the measuring begins anew. With nothing
    /// measured, those that were given.
    pub(crate) fn due_change(&mut self, helpers: u16, given: u16, now: Timestamp) -> Option<u16> {
        if self.steps.fit().is_none() {
            return (helpers != given).then_some(given);
        }
        let oldest = self.looks.front()?;
        let changes = |advice: &Advice| advice.prefillers != advice.measured.prefillers;
        let advice = self.advice.filter(changes)?;
        let measured = now.since(oldest.at) >= Self::OVER;
        if !measured || now.since(self.changed) < self.calm.rest() {
            return None;
        }
        let before = advice.measured.prefillers;
        let after = if advice.prefillers > before {
            before + 1
        } else {
            before - 1
        };
        self.calm.changed(before, after, Self::OVER);
        self.changed = now;
        self.looks.drain(..self.looks.len() - 1);
        Some(after.saturating_sub(self.dedicated))
    }

    /// The totals with what was done since the last look, and the steps that were seen meanwhile.
    #[expect(clippy::cast_precision_loss, reason = "token counts far below 2^52")]
    fn add_up(&mut self, look: &Look<'_>, now: Timestamp) -> Sums {
        let before = self.looks.back().copied();
        let passed = before.map_or(Duration::ZERO, |before| now.since(before.at));
        let seconds = passed.as_secs_f64();
        self.steps.fade(passed, Self::OVER);
        let mut sums = before.unwrap_or_default();
        (sums.at, sums.placed) = (now, look.placed);
        let speed = fastest(look.workers);
        let before = std::mem::take(&mut self.seen);
        for row in look.workers {
            let (id, work) = (row.worker.id, &row.work);
            let (old, gaps) = before.get(&id).copied().unwrap_or_default();
            self.seen.insert(id, (row.work, row.gaps));
            if seconds <= 0.0 {
                continue;
            }
            let prompt = work.prompt.saturating_sub(old.prompt);
            sums.prompt += prompt;
            sums.output += work.output.saturating_sub(old.output);
            let busy_s = speed.map_or(0.0, |speed| prompt as f64 / speed);
            sums.busy_s += busy_s;
            let turns = work.decode.saturating_sub(old.decode).as_secs_f64() / seconds;
            let step = row.gaps.mean_ms_since(gaps).filter(|_| !row.helps);
            if let (Some(step), true) = (step, turns > 0.0) {
                // A step has a turn in it, however few there are on average.
                let alone = step * (1.0 - (busy_s / seconds).min(0.95));
                self.steps.add(turns.max(1.0), alone);
            }
        }
        sums
    }

    #[expect(clippy::cast_precision_loss, reason = "token counts far below 2^52")]
    fn measured(
        &self,
        (fixed_ms, slope_ms): (f64, f64),
        look: &Look<'_>,
        prefillers: u16,
        now: Timestamp,
    ) -> Option<Measured> {
        let (first, last) = (self.looks.front()?, self.looks.back()?);
        let seconds = now.since(first.at).as_secs_f64();
        if seconds <= 0.0 || fastest(look.workers).is_none() {
            return None;
        }
        let placed = last.placed.saturating_sub(first.placed) as f64;
        let prompt = (last.prompt - first.prompt) as f64;
        let prompts = (last.busy_s - first.busy_s) / seconds;
        let held = |row: &WorkerRow| {
            let all = row.capacity.map_or(0.0, |all| f64::from(all.get()));
            if all > 0.0 {
                f64::from(row.booked.get()) / all
            } else {
                0.0
            }
        };
        Some(Measured {
            workers: u16::try_from(look.workers.len()).unwrap_or(u16::MAX),
            prefillers,
            fixed_ms,
            slope_ms,
            prompts,
            movable: prompts * (placed / prompt.max(1.0)).min(1.0),
            tokens_per_ms: (last.output - first.output) as f64 / seconds / 1e3,
            held: look.workers.iter().map(held).sum(),
            low_watermark: look.low_watermark,
            spares_the_busy: look.acts && look.spares_the_busy,
        })
    }
}

/// Prompt tokens per second of equal workers: of the one that is disturbed least by what else it does.
fn fastest(workers: &[WorkerRow]) -> Option<f64> {
    let of = |speed: fn(&WorkerRow) -> Option<f64>| {
        let known = workers
            .iter()
            .filter_map(speed)
            .filter(|speed| *speed > 0.0);
        known.max_by(f64::total_cmp)
    };
    of(|row| row.long_tokens_per_s).or_else(|| of(|row| row.tokens_per_s))
}

fn count(look: &Look<'_>, role: Role) -> u16 {
    let alike = look.workers.iter().filter(|row| row.role == role);
    u16::try_from(alike.count()).unwrap_or(u16::MAX)
}
