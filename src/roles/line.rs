//! A line through points that fade: how long a step takes by how many turns are in it.

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
    const FADES: f64 = 0.99;

    pub(super) fn add(&mut self, x: f64, y: f64) {
        let fold = |sum: &mut f64, more: f64| *sum = Self::FADES * *sum + more;
        fold(&mut self.weight, 1.0);
        fold(&mut self.x, x);
        fold(&mut self.y, y);
        fold(&mut self.xx, x * x);
        fold(&mut self.xy, x * y);
    }

    /// Where it starts and how it rises, never down; `None` before the first point.
    pub(super) fn fit(&self) -> Option<(f64, f64)> {
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

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn it_is_that_of_the_points_and_never_falls() {
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
