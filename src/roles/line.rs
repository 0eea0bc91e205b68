//! A line through points that fade with time: how long a step takes by how many turns are in it.

use std::time::Duration;

/// Sums over the points, the latest first.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Line {
    weight: f64,
    x: f64,
    y: f64,
    xx: f64,
    xy: f64,
}

impl Line {
    /// With less than so many points' weight nothing is known: what there was is too old.
    const LEAST: f64 = 3.0;

    pub(super) fn add(&mut self, x: f64, y: f64) {
        self.weight += 1.0;
        self.x += x;
        self.y += y;
        self.xx += x * x;
        self.xy += x * y;
    }

    /// So much time passed, of which `half` takes half of their weight from the points.
    pub(super) fn fade(&mut self, passed: Duration, half: Duration) {
        let keeps = (-passed.as_secs_f64() / half.as_secs_f64()).exp2();
        for sum in [
            &mut self.weight,
            &mut self.x,
            &mut self.y,
            &mut self.xx,
            &mut self.xy,
        ] {
            *sum *= keeps;
        }
    }

    /// Where it starts and how it rises, never down; `None` with too few points, or none of late.
    pub(super) fn fit(&self) -> Option<(f64, f64)> {
        if self.weight < Self::LEAST {
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

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn it_is_that_of_the_points_and_never_falls() {
        let mut line = Line::default();
        for b in [4, 13] {
            assert!(line.fit().is_none());
            line.add(f64::from(b), 6.0 + 0.25 * f64::from(b));
        }
        line.add(8.0, 6.0 + 0.25 * 8.0);
        let (fixed, slope) = line.fit().expect("points");
        assert!((fixed - 6.0).abs() < 1e-9 && (slope - 0.25).abs() < 1e-9);
        let mut falls = Line::default();
        for _ in 0..5 {
            falls.add(1.0, 10.0);
            falls.add(9.0, 2.0);
        }
        let (fixed, slope) = falls.fit().expect("points");
        assert!(slope == 0.0 && fixed > 0.0);
    }

    #[test]
    fn old_points_count_less_and_in_the_end_not_at_all() {
        let (minute, mut line) = (Duration::from_secs(60), Line::default());
        for b in 0..6 {
            line.add(f64::from(b), 10.0);
        }
        line.fade(minute, minute);
        for b in 0..3 {
            line.add(f64::from(b), 20.0);
        }
        let mean = line.y / line.weight;
        assert!(
            (mean - 15.0).abs() < 1e-9,
            "as many points old as new: {mean}"
        );
        line.fade(minute, minute);
        assert!(line.fit().is_some(), "3 points' weight");
        line.fade(minute, minute);
        assert!(line.fit().is_none(), "1.5 points' weight");
    }
}
