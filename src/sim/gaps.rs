//! The times between tokens of requests that decode together.
//!
//! Every running request gets one token from each step, so the engine keeps one log of step lengths and a
//! request remembers only from where on it took part.

/// Mean, 95th percentile (nearest rank) and largest gap, seconds; NaN without a second token.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct GapStats {
    pub(super) mean: f64,
    pub(super) p95: f64,
    pub(super) max: f64,
}

impl GapStats {
    pub(super) const NONE: Self = Self {
        mean: f64::NAN,
        p95: f64::NAN,
        max: f64::NAN,
    };

    fn of(mut gaps: Vec<f64>) -> Self {
        if gaps.is_empty() {
            return Self::NONE;
        }
        let count = gaps.len();
        let mean = gaps.iter().sum::<f64>() / count as f64;
        let rank = (count * 95).div_ceil(100) - 1;
        let (_, p95, above) = gaps.select_nth_unstable_by(rank, f64::total_cmp);
        let p95 = *p95;
        let max = above.iter().copied().fold(p95, f64::max);
        Self { mean, p95, max }
    }
}

/// Steps in a row: the length of the first, what each is longer, how many.
#[derive(Debug, Clone, Copy)]
struct Row {
    first: f64,
    growth: f64,
    steps: u64,
}

/// The log.
#[derive(Debug, Default)]
pub(super) struct StepLog {
    rows: Vec<Row>,
}

impl StepLog {
    pub(super) fn push(&mut self, first: f64, growth: f64, steps: u64) {
        self.rows.push(Row {
            first,
            growth,
            steps,
        });
    }

    /// Where the next step will be.
    pub(super) fn mark(&self) -> usize {
        self.rows.len()
    }

    /// The gaps of a request that took part since `mark`.
    pub(super) fn since(&self, mark: usize) -> impl Iterator<Item = f64> {
        self.rows[mark..].iter().flat_map(|row| {
            let gap = |step| row.first + step as f64 * row.growth;
            (0..row.steps).map(gap)
        })
    }

    /// What a request that took part since `mark` saw, `earlier` gaps included.
    pub(super) fn stats(&self, mark: usize, mut earlier: Vec<f64>) -> GapStats {
        earlier.extend(self.since(mark));
        GapStats::of(earlier)
    }
}
