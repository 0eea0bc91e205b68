//! How many workers should only compute prompts, from what was measured: advice, not a decision.
//!
//! With `k` of `n` workers as prefillers, decodes run on the other `n - k`. A decode step with `b` turns takes
//! `fixed + slope b`; the share `u` of the time that prompts take there makes the gap between two tokens
//! `(fixed + slope b) / (1 - u)`, and `b` is the tokens generated meanwhile. With `g` tokens per millisecond on each worker:
//!
//! ```text
//! gap(k) = fixed / (1 - u(k) - slope g(k))    u(0) = all prompts / n, u(k) = (all - movable) / (n - k)
//! ```
//! Promises: pure; a fleet that could not carry the load or the KV is never advised; a change is advised only where the gap
//! falls by a tenth.
//! Leaves to others: drawing the measures together (`Advisor`), acting on them (an operator).

use std::time::Duration;

use crate::router::WorkerRow;
use crate::units::Timestamp;

/// Prefillers are to be busy for at most this share of their time.
const BUSIEST: f64 = 0.6;
/// The gap must fall below this share of what it is.
const WORTH_A_CHANGE: f64 = 0.9;

/// What a fleet of equal workers does, as measured.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Measured {
    /// Workers that are up.
    pub workers: u16,
    /// Of these, those that only compute prompts.
    pub prefillers: u16,
    /// Milliseconds of a decode step without turns.
    pub fixed_ms: f64,
    /// More for each turn in it.
    pub slope_ms: f64,
    /// Seconds that workers spend on prompts, each second, over the fleet.
    pub prompts: f64,
    /// Of these, on prompts of conversations that are being placed: a prefiller could take them.
    pub movable: f64,
    /// Tokens generated in a millisecond, over the fleet.
    pub tokens_per_ms: f64,
    /// KV that conversations hold, in workers' worth of it.
    pub held: f64,
    /// Share of a worker's KV that new conversations may fill.
    pub low_watermark: f64,
}

/// What is advised, and the gaps that were compared.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Advice {
    /// So many workers should only compute prompts.
    pub prefillers: u16,
    /// The gap between two tokens with them, in milliseconds.
    pub gap_ms: f64,
    /// The gap with those that there are; `None` if the load is more than they can carry.
    pub gap_now_ms: Option<f64>,
}

impl Measured {
    /// The gap between two tokens with `prefillers`; `None` where they, or the others, could not carry the load.
    #[must_use]
    pub fn gap_ms(&self, prefillers: u16) -> Option<f64> {
        let decoders = f64::from(self.workers.checked_sub(prefillers)?);
        let k = f64::from(prefillers);
        if decoders < 1.0 || self.held > self.low_watermark * decoders {
            return None;
        }
        let stays = if prefillers == 0 {
            self.prompts
        } else {
            self.prompts - self.movable
        };
        if prefillers > 0 && self.movable > BUSIEST * k {
            return None;
        }
        let left = 1.0 - stays / decoders - self.slope_ms * self.tokens_per_ms / decoders;
        (left > 0.0).then(|| self.fixed_ms / left)
    }

    /// How many prefillers are best; `None` if no number of them carries the load.
    #[must_use]
    pub fn advise(&self) -> Option<Advice> {
        let options = (0..self.workers).filter_map(|k| Some((k, self.gap_ms(k)?)));
        let (best, gap_ms) = options.min_by(|a, b| a.1.total_cmp(&b.1))?;
        let gap_now_ms = self.gap_ms(self.prefillers);
        Some(match gap_now_ms {
            Some(now) if gap_ms >= WORTH_A_CHANGE * now => Advice {
                prefillers: self.prefillers,
                gap_ms: now,
                gap_now_ms,
            },
            _ => Advice {
                prefillers: best,
                gap_ms,
                gap_now_ms,
            },
        })
    }
}

/// A line through points that fade: how long a step takes by how many turns are in it.
#[derive(Debug, Clone, Copy, Default)]
struct Line {
    weight: f64,
    x: f64,
    y: f64,
    xx: f64,
    xy: f64,
}

impl Line {
    const FADES: f64 = 0.99;

    fn add(&mut self, x: f64, y: f64) {
        let fold = |sum: &mut f64, more: f64| *sum = Self::FADES * *sum + more;
        fold(&mut self.weight, 1.0);
        fold(&mut self.x, x);
        fold(&mut self.y, y);
        fold(&mut self.xx, x * x);
        fold(&mut self.xy, x * y);
    }

    /// Where it starts and how it rises, never down; `None` before the first point.
    fn fit(&self) -> Option<(f64, f64)> {
        if self.weight <= 0.0 {
            return None;
        }
        let (x, y) = (self.x / self.weight, self.y / self.weight);
        let spread = self.xx / self.weight - x * x;
        let slope = if spread > 1e-9 {
            ((self.xy / self.weight - x * y) / spread).clamp(0.0, y / x.max(1e-9))
        } else {
            0.0
        };
        Some((y - slope * x, slope))
    }
}

/// Draws the measures together, once in a while.
#[derive(Debug, Default)]
pub(crate) struct Advisor {
    before: Option<Sums>,
    steps: Line,
    advice: Option<Advice>,
}

/// Totals since the start.
#[derive(Debug, Clone, Copy, Default)]
struct Sums {
    at: Timestamp,
    prompt: u64,
    placed: u64,
    output: u64,
}

impl Advisor {
    /// Between two looks: long enough for a mean, short against how load changes.
    pub(crate) const EVERY: Duration = Duration::from_secs(10);

    pub(crate) fn is_due(&self, now: Timestamp) -> bool {
        self.before
            .is_none_or(|before| now.since(before.at) >= Self::EVERY)
    }

    pub(crate) fn advice(&self) -> Option<Advice> {
        self.advice
    }

    /// Looks at the live workers; `placed` are the prompt tokens computed for conversations being placed, so far.
    #[expect(clippy::cast_precision_loss, reason = "token counts far below 2^52")]
    pub(crate) fn look(
        &mut self,
        workers: &[WorkerRow],
        placed: u64,
        low_watermark: f64,
        now: Timestamp,
    ) {
        let sum = |of: fn(&WorkerRow) -> u64| workers.iter().map(of).sum::<u64>();
        let sums = Sums {
            at: now,
            prompt: sum(|row| row.work.prompt),
            placed,
            output: sum(|row| row.work.output),
        };
        let Some(before) = self.before.replace(sums) else {
            return;
        };
        let seconds = now.since(before.at).as_secs_f64();
        let fastest = workers
            .iter()
            .filter_map(|row| row.tokens_per_s)
            .fold(0.0, f64::max);
        if seconds <= 0.0 || fastest <= 0.0 {
            return;
        }
        let rate = |now: u64, before: u64| now.saturating_sub(before) as f64 / seconds;
        // Equal workers: one speed for all, the mean of those that were observed.
        let known: Vec<_> = workers.iter().filter_map(|row| row.tokens_per_s).collect();
        let speed = known.iter().sum::<f64>() / known.len() as f64;
        let prompts = rate(sums.prompt, before.prompt) / speed;
        let prefillers = workers.iter().filter(|row| !row.role.decodes()).count();
        let decoders = workers.len() - prefillers;
        let stays = if prefillers == 0 {
            prompts
        } else {
            prompts - rate(sums.placed, before.placed) / speed
        };
        let busy = (stays / decoders.max(1) as f64).clamp(0.0, 0.95);
        for row in workers.iter().filter(|row| row.work.decoding > 0) {
            if let Some(step) = row.step_ms {
                self.steps
                    .add(f64::from(row.work.decoding), step * (1.0 - busy));
            }
        }
        let Some((fixed_ms, slope_ms)) = self.steps.fit() else {
            return;
        };
        let held = |row: &WorkerRow| {
            let all = row.capacity.map_or(0.0, |all| f64::from(all.get()));
            if all > 0.0 {
                f64::from(row.booked.get()) / all
            } else {
                0.0
            }
        };
        let count = |n: usize| u16::try_from(n).unwrap_or(u16::MAX);
        let measured = Measured {
            workers: count(workers.len()),
            prefillers: count(prefillers),
            fixed_ms,
            slope_ms,
            prompts,
            movable: (rate(sums.placed, before.placed) / speed).min(prompts),
            tokens_per_ms: rate(sums.output, before.output) / 1e3,
            held: workers.iter().map(held).sum(),
            low_watermark,
        };
        self.advice = measured.advise();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Four workers, 0.8 of one busy with prompts, all of which could be moved.
    const FLEET: Measured = Measured {
        workers: 4,
        prefillers: 0,
        fixed_ms: 8.0,
        slope_ms: 0.1,
        prompts: 0.8,
        movable: 0.8,
        tokens_per_ms: 4.0,
        held: 1.0,
        low_watermark: 0.8,
    };

    #[test]
    fn the_gap_is_the_closed_form() {
        // 8 / (1 - 0.8/4 - 0.1 x 4/4) = 8 / 0.7
        let gap = FLEET.gap_ms(0).expect("it carries the load");
        assert!((gap - 8.0 / 0.7).abs() < 1e-12, "{gap}");
        assert_eq!(
            FLEET.gap_ms(1),
            None,
            "0.8 > 0.6: one prefiller is too busy"
        );
        // 8 / (1 - 0 - 0.1 x 4/2) = 8 / 0.8
        let gap = FLEET.gap_ms(2).expect("it carries the load");
        assert!((gap - 10.0).abs() < 1e-12, "{gap}");
        assert_eq!(FLEET.gap_ms(3), None, "a worker's worth of KV > 0.8");
        assert_eq!(FLEET.gap_ms(4), None, "nobody decodes");
    }

    #[test]
    fn a_change_is_advised_where_the_gap_falls_by_a_tenth() {
        let advice = FLEET.advise().expect("it carries the load");
        assert_eq!(advice.prefillers, 2, "10 < 0.9 x 11.4");
        let less = Measured {
            prompts: 0.4,
            movable: 0.4,
            ..FLEET
        };
        // k 0: 8 / (1 - 0.1 - 0.1) = 10; k 1: 8 / (1 - 0.1333) = 9.23 > 9
        assert_eq!(less.advise().map(|advice| advice.prefillers), Some(0));
        let there = Measured {
            prefillers: 2,
            ..FLEET
        };
        assert_eq!(there.advise().map(|advice| advice.prefillers), Some(2));
    }

    #[test]
    fn prompts_that_cannot_be_moved_keep_the_workers_together() {
        let tail = Measured {
            movable: 0.0,
            ..FLEET
        };
        assert_eq!(tail.advise().map(|advice| advice.prefillers), Some(0));
    }

    #[test]
    fn a_load_that_nothing_carries_gives_no_advice() {
        let much = Measured {
            tokens_per_ms: 60.0,
            ..FLEET
        };
        assert_eq!(much.advise(), None, "0.1 x 60 / 4 > 1");
    }

    #[test]
    fn the_line_is_that_of_the_points_and_never_falls() {
        let mut line = Line::default();
        assert!(line.fit().is_none());
        for b in [4.0, 8.0, 12.0] {
            line.add(b, 6.0 + 0.25 * b);
        }
        let (fixed, slope) = line.fit().expect("points");
        assert!((fixed - 6.0).abs() < 1e-9 && (slope - 0.25).abs() < 1e-9);
        let mut falls = Line::default();
        falls.add(1.0, 10.0);
        falls.add(9.0, 2.0);
        let (fixed, slope) = falls.fit().expect("points");
        assert!(slope == 0.0 && fixed > 0.0);
    }
}
