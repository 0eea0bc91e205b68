//! How many workers should only compute prompts, from what was measured.
//!
//! With `k` of `n` workers as prefillers, decodes run on the other `n - k`. A decode step with `b` turns takes
//! `fixed + slope b`; the share `u` of the time that prompts take there makes the gap between two tokens
//! `(fixed + slope b) / (1 - u)`, and `b` is the tokens generated meanwhile. With `g` tokens per millisecond on each worker:
//!
//! ```text
//! gap(k) = fixed / (1 - u(k) - slope g(k))    u(0) = all prompts / n, u(k) = (all - moved) / (n - k)
//! ```
//! What is movable is moved. Where a prompt is computed at home when prefillers are busy, they carry what they can; else they
//! have to carry all of it.
//!
//! Promises: pure; prefillers that could not carry the load, or leave too little room for the KV, are never advised; a
//! change is advised only where the gap falls by a tenth.
//! Leaves to others: drawing the measures together (`advisor`), acting on them (an operator, or the router where the policy
//! asks for it).

mod advisor;
mod calm;
mod line;

use std::fmt;
use std::ops::RangeInclusive;

pub(crate) use self::advisor::{Advisor, Look};

/// Prefillers that have to carry all that is movable are to be busy for at most this share of their time.
const BUSIEST: f64 = 0.6;
/// Those that need not are busy for about this share before others compute for themselves.
const FILLED: f64 = 0.8;
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
    /// What finds the prefillers busy is computed at home.
    pub spares_the_busy: bool,
}

/// What is advised, and what it follows from.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Advice {
    /// So many workers should only compute prompts.
    pub prefillers: u16,
    /// The gap between two tokens with them, in milliseconds.
    pub gap_ms: f64,
    /// The gap with those that there are; `None` if the load is more than they can carry.
    pub gap_now_ms: Option<f64>,
    /// The terms.
    pub measured: Measured,
}

impl Measured {
    /// The gap between two tokens with `prefillers`; `None` where they, or the others, could not carry the load.
    #[must_use]
    pub fn gap_ms(&self, prefillers: u16) -> Option<f64> {
        let decoders = f64::from(self.workers.checked_sub(prefillers)?);
        let k = f64::from(prefillers);
        if decoders < 1.0 {
            return None;
        }
        let most = if self.spares_the_busy {
            FILLED * k
        } else {
            BUSIEST * k
        };
        let carried = self.spares_the_busy || self.movable <= most;
        let has_room = self.held <= self.low_watermark * decoders;
        if prefillers > 0 && !(carried && has_room) {
            return None;
        }
        let stays = self.prompts - self.movable.min(most);
        let left = 1.0 - stays / decoders - self.slope_ms * self.tokens_per_ms / decoders;
        (left > 0.0).then(|| self.fixed_ms / left)
    }

    /// The gap with each number of prefillers, from none on.
    pub fn gaps_ms(&self) -> impl Iterator<Item = Option<f64>> {
        (0..self.workers).map(|prefillers| self.gap_ms(prefillers))
    }

    /// How many prefillers, out of `choices`, are best; `None` if no number of them carries the load.
    #[must_use]
    pub fn advise(&self, choices: RangeInclusive<u16>) -> Option<Advice> {
        let options = choices.filter_map(|k| Some((k, self.gap_ms(k)?)));
        let (best, gap_ms) = options.min_by(|a, b| a.1.total_cmp(&b.1))?;
        let gap_now_ms = self.gap_ms(self.prefillers);
        let (prefillers, gap_ms) = match gap_now_ms {
            Some(now) if gap_ms >= WORTH_A_CHANGE * now => (self.prefillers, now),
            _ => (best, gap_ms),
        };
        Some(Advice {
            prefillers,
            gap_ms,
            gap_now_ms,
            measured: *self,
        })
    }
}

impl fmt::Display for Advice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Measured {
            workers,
            prefillers,
            fixed_ms,
            slope_ms,
            prompts,
            movable,
            tokens_per_ms,
            held,
            low_watermark: _,
            spares_the_busy: _,
        } = self.measured;
        write!(
            f,
            "{} of {workers} workers should only compute prompts; measured with {prefillers}: \
             a decode step takes {fixed_ms:.2} ms and {slope_ms:.3} ms for each turn in it, \
             prompts take {prompts:.2} workers' time, {movable:.2} of it movable, \
             {tokens_per_ms:.2} tokens/ms, {held:.2} workers' KV is held; gap between tokens by their number:",
            self.prefillers
        )?;
        for (k, gap) in self.measured.gaps_ms().enumerate() {
            let sign = if k == 0 { " " } else { ", " };
            match gap {
                Some(ms) => write!(f, "{sign}{k}: {ms:.1} ms")?,
                None => write!(f, "{sign}{k}: not carried")?,
            }
        }
        Ok(())
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
        spares_the_busy: false,
    };

    fn advised(measured: &Measured) -> Option<u16> {
        measured.advise(0..=3).map(|advice| advice.prefillers)
    }

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
        assert_eq!(advised(&FLEET), Some(2), "10 < 0.9 x 11.4");
        let less = Measured {
            prompts: 0.4,
            movable: 0.4,
            ..FLEET
        };
        // k 0: 8 / (1 - 0.1 - 0.1) = 10; k 1: 8 / (1 - 0.1333) = 9.23 > 9
        assert_eq!(advised(&less), Some(0));
        let there = Measured {
            prefillers: 2,
            ..FLEET
        };
        assert_eq!(advised(&there), Some(2));
    }

    #[test]
    fn where_the_busy_are_spared_they_carry_what_they_can() {
        let spared = Measured {
            spares_the_busy: true,
            movable: 1.0,
            prompts: 1.1,
            ..FLEET
        };
        // 8 / (1 - (1.1 - 0.8)/3 - 0.1 x 4/3)
        let gap = spared.gap_ms(1).expect("the rest is computed at home");
        assert!((gap - 8.0 / (1.0 - 0.1 - 0.4 / 3.0)).abs() < 1e-12, "{gap}");
        // 8 / (1 - 0.1/2 - 0.1 x 4/2)
        let gap = spared.gap_ms(2).expect("they carry all of it");
        assert!((gap - 8.0 / 0.75).abs() < 1e-12, "{gap}");
    }

    #[test]
    fn a_little_more_to_move_changes_the_gap_a_little_where_the_busy_are_spared() {
        for k in 0..4 {
            let gap = |movable: f64| {
                let load = Measured {
                    spares_the_busy: true,
                    prompts: movable + 0.1,
                    movable,
                    ..FLEET
                };
                load.gap_ms(k)
            };
            for step in 0..200 {
                let movable = f64::from(step) / 100.0;
                let (Some(now), Some(more)) = (gap(movable), gap(movable + 0.01)) else {
                    continue;
                };
                assert!(
                    (more / now - 1.0).abs() < 0.05,
                    "{k} at {movable}: {now}, {more}"
                );
            }
        }
    }

    #[test]
    fn only_what_may_be_chosen_is_advised() {
        let none = FLEET.advise(0..=1).expect("no prefiller carries the load");
        assert_eq!(none.prefillers, 0, "one is too busy, two are not to be had");
    }

    #[test]
    fn prompts_that_cannot_be_moved_keep_the_workers_together() {
        let tail = Measured {
            movable: 0.0,
            ..FLEET
        };
        assert_eq!(advised(&tail), Some(0));
    }

    #[test]
    fn a_fleet_too_full_for_prefillers_is_advised_none() {
        let full = Measured {
            prefillers: 2,
            held: 3.5,
            ..FLEET
        };
        // 3.5 > 0.8 x 4 too, but with no prefiller there is no more room to be had.
        assert_eq!(advised(&full), Some(0));
    }

    #[test]
    fn a_load_that_nothing_carries_gives_no_advice() {
        let much = Measured {
            tokens_per_ms: 60.0,
            ..FLEET
        };
        assert_eq!(advised(&much), None, "0.1 x 60 / 4 > 1");
    }

    #[test]
    fn the_advice_says_its_terms() {
        let advice = FLEET.advise(0..=3).expect("it carries the load");
        assert_eq!(
            advice.to_string(),
            "2 of 4 workers should only compute prompts; measured with 0: a decode step takes 8.00 ms and 0.100 ms for each turn in it, \
             prompts take 0.80 workers' time, 0.80 of it movable, 4.00 tokens/ms, 1.00 workers' KV is held; \
             gap between tokens by their number: 0: 11.4 ms, 1: not carried, 2: 10.0 ms, 3: not carried"
        );
    }
}
