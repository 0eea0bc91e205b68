//! Errors that a policy is given on purpose, as a share from 0 to 0.5 of its decisions or estimates.
//!
//! Promises: what is drawn depends on the seed, the conversation and its prompt alone: the same for every policy, and the same
//! when a policy is asked again. At 0 nothing changes.
//! Leaves to others: what the policy does with it (`misled`).

use super::scenario::ScenarioError;
use super::splitmix;
use crate::placement::TurnView;
use crate::placement::weigh::Weights;
use crate::units::Tokens;

/// How a policy is misled.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Errors {
    /// Share of later turns whose decision is inverted.
    pub(super) flip: f64,
    /// Share of later turns that stay by decision and go to a prefiller instead.
    to_remote: f64,
    /// Mean relative error of each estimated time.
    noise: f64,
    /// Mean relative error of the lengths that times are estimated from.
    length: f64,
    /// The policy sees the fleet as it was up to so many seconds ago.
    pub(super) stale_s: f64,
    seed: u64,
}

impl Default for Errors {
    fn default() -> Self {
        Self {
            flip: 0.0,
            to_remote: 0.0,
            noise: 0.0,
            length: 0.0,
            stale_s: 0.0,
            seed: 42,
        }
    }
}

/// What is drawn for; each has its own numbers.
#[derive(Clone, Copy)]
enum For {
    Flip,
    ToRemote,
    Local,
    Remote,
    Gap,
    Append,
    History,
}

impl Errors {
    /// Takes over an option if it is one of these.
    pub(super) fn set(&mut self, option: &str, value: &str) -> Result<bool, ScenarioError> {
        let refuse = |accepted: &str| {
            let problem = format!("{value} is out of range: {accepted}");
            ScenarioError::new(format!("policy.options.{option}"), problem)
        };
        let number = value.parse::<f64>().ok().filter(|value| *value >= 0.0);
        let share = || {
            number
                .filter(|share| *share <= 0.5)
                .ok_or_else(|| refuse("a share from 0 to 0.5"))
        };
        match option {
            "flip" => self.flip = share()?,
            "toremote" => self.to_remote = share()?,
            "noise" => self.noise = share()?,
            "length" => self.length = share()?,
            "stale_s" => {
                let seconds = number.filter(|seconds| *seconds <= 3600.0);
                self.stale_s = seconds.ok_or_else(|| refuse("seconds from 0 to 3600"))?;
            }
            "error_seed" => {
                self.seed = value.parse().map_err(|_| refuse("a whole number"))?;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Those that are not 0, as options.
    pub(super) fn parts(&self) -> Vec<String> {
        let knobs = [
            ("flip", self.flip),
            ("toremote", self.to_remote),
            ("noise", self.noise),
            ("length", self.length),
            ("stale_s", self.stale_s),
        ];
        let on = knobs.into_iter().filter(|(_, value)| *value > 0.0);
        on.map(|(key, value)| format!("{key}={value}")).collect()
    }

    /// Whether they bear on times that a policy estimates.
    pub(super) fn bear_on_times(&self) -> bool {
        self.noise > 0.0 || self.length > 0.0
    }

    /// Whether they bear on the choice between home and a prefiller.
    pub(super) fn bear_on_choice(&self) -> bool {
        self.flip > 0.0 || self.to_remote > 0.0
    }

    /// Whether the decision for a later turn is inverted, if it was to stay or to go.
    pub(super) fn inverts(&self, turn: &TurnView, stays: bool) -> bool {
        self.unit(turn, For::Flip) < self.flip
            || (stays && self.unit(turn, For::ToRemote) < self.to_remote)
    }

    /// Each time by its own factor, off by up to twice the share to either side.
    pub(super) fn blur(&self, turn: &TurnView, weights: Weights) -> Weights {
        if self.noise == 0.0 {
            return weights;
        }
        let factor = |what| 1.0 + self.noise * (4.0 * self.unit(turn, what) - 2.0);
        Weights {
            local: weights.local * factor(For::Local),
            remote: weights.remote * factor(For::Remote),
            gap: weights.gap * factor(For::Gap),
        }
    }

    /// The turn with what it brings and what lies at home each off by a log-normal factor whose mean is 1.
    pub(super) fn mistake(&self, turn: &TurnView) -> TurnView {
        if self.length == 0.0 {
            return *turn;
        }
        let sigma = sigma(self.length);
        let off = |tokens: u32, what| {
            let factor = (sigma * self.normal(turn, what) - sigma * sigma / 2.0).exp();
            (f64::from(tokens) * factor)
                .round()
                .min(f64::from(u32::MAX / 2)) as u32
        };
        let append = turn.prompt.0.saturating_sub(turn.resident.0);
        let append = off(append, For::Append).max(u32::from(append > 0));
        let resident = off(turn.resident.0, For::History);
        TurnView {
            prompt: Tokens(resident + append),
            resident: Tokens(resident),
            ..*turn
        }
    }

    /// From 0 to 1, of what it depends on.
    fn unit(&self, turn: &TurnView, what: For) -> f64 {
        let mut mixed = self.seed;
        for word in [turn.tie, u64::from(turn.prompt.0), what as u64] {
            mixed = splitmix::mixed(mixed ^ word);
        }
        splitmix::unit(mixed)
    }

    fn normal(&self, turn: &TurnView, what: For) -> f64 {
        let share = self.unit(turn, what).clamp(1e-12, 1.0 - 1e-12);
        quantile(share - 0.5)
    }
}

/// The spread of a log-normal with mean 1 whose mean distance from 1 is `share`: that is 2 (2 cdf(sigma / 2) - 1).
fn sigma(share: f64) -> f64 {
    2.0 * quantile(share / 4.0)
}

/// Where the normal distribution has `above` more than half to its left, by bisection.
fn quantile(above: f64) -> f64 {
    let (mut low, mut high) = (0.0, 8.0);
    for _ in 0..60 {
        let middle = 0.5 * (low + high);
        if beyond_half(middle) < above.abs() {
            low = middle;
        } else {
            high = middle;
        }
    }
    low.copysign(above)
}

/// The normal distribution from 0 to `x`: its series `density(x) (x + x^3/3 + x^5/(3 5) + ...)`.
fn beyond_half(x: f64) -> f64 {
    let (mut term, mut sum, mut odd) = (x, x, 1.0);
    while term > 1e-17 * sum {
        odd += 2.0;
        term *= x * x / odd;
        sum += term;
    }
    sum * (-0.5 * x * x).exp() / std::f64::consts::TAU.sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turn(tie: u64) -> TurnView {
        TurnView {
            tie,
            prompt: Tokens(30_000),
            home: None,
            resident: Tokens(20_000),
            returns: false,
        }
    }

    fn errors(option: &str, value: &str) -> Errors {
        let mut errors = Errors::default();
        assert_eq!(errors.set(option, value), Ok(true));
        errors
    }

    #[test]
    fn the_normal_distribution_is_the_tables() {
        assert!((beyond_half(1.0) - 0.341_344_746).abs() < 1e-9);
        assert!((quantile(0.475) - 1.959_963_985).abs() < 1e-8);
        assert!((quantile(-0.475) + 1.959_963_985).abs() < 1e-8);
    }

    #[test]
    fn each_knob_errs_by_its_share_on_average() {
        const DRAWS: u64 = 20_000;
        let mean = |of: &dyn Fn(&TurnView) -> f64| {
            (0..DRAWS).map(|tie| of(&turn(tie))).sum::<f64>() / DRAWS as f64
        };
        let near = |found: f64, expected: f64| {
            assert!((found - expected).abs() < 0.01, "{found} is not {expected}");
        };
        for (text, share) in [("0.1", 0.1), ("0.5", 0.5)] {
            let flip = errors("flip", text);
            near(mean(&|turn| f64::from(flip.inverts(turn, true))), share);
            near(mean(&|turn| f64::from(flip.inverts(turn, false))), share);
            let remote = errors("toremote", text);
            near(mean(&|turn| f64::from(remote.inverts(turn, true))), share);
            near(mean(&|turn| f64::from(remote.inverts(turn, false))), 0.0);
            let noise = errors("noise", text);
            let one = Weights {
                local: 1.0,
                remote: 1.0,
                gap: 1.0,
            };
            near(mean(&|turn| noise.blur(turn, one).remote), 1.0);
            near(
                mean(&|turn| (noise.blur(turn, one).local - 1.0).abs()),
                share,
            );
            let length = errors("length", text);
            let append = |turn: &TurnView| {
                let told = length.mistake(turn);
                f64::from(told.prompt.0 - told.resident.0) / 10_000.0
            };
            near(mean(&append), 1.0);
            near(mean(&|turn| (append(turn) - 1.0).abs()), share);
            near(
                mean(&|turn| (f64::from(length.mistake(turn).resident.0) / 20_000.0 - 1.0).abs()),
                share,
            );
        }
    }

    #[test]
    fn without_errors_nothing_changes_and_the_same_turn_errs_the_same() {
        let none = Errors::default();
        let weights = Weights {
            local: 1.0,
            remote: 2.0,
            gap: 3.0,
        };
        for tie in 0..100 {
            let turn = turn(tie);
            assert!(!none.inverts(&turn, true) && !none.inverts(&turn, false));
            assert_eq!(none.blur(&turn, weights), weights);
            assert_eq!(none.mistake(&turn), turn);
        }
        let length = errors("length", "0.3");
        assert_eq!(length.mistake(&turn(1)), length.mistake(&turn(1)));
        assert!(Errors::default().set("flip", "0.51").is_err());
        assert!(Errors::default().set("noise", "NaN").is_err());
        assert_eq!(Errors::default().set("rule", "min"), Ok(false));
    }
}
