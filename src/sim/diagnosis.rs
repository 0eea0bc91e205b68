//! How a run ended, and whether what it measured means anything.

use super::record::ConversationRow;

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Every conversation ended.
    Finished,
    /// Nothing could happen any more while conversations waited.
    Deadlocked,
    /// It was cut at its horizon.
    Horizon,
}

impl Outcome {
    /// A stable slug.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Finished => "finished",
            Self::Deadlocked => "deadlocked",
            Self::Horizon => "horizon",
        }
    }
}

/// What to know before believing the numbers.
#[derive(Debug, Clone, PartialEq)]
pub struct Diagnosis {
    /// How it ended.
    pub outcome: Outcome,
    /// Conversations that ended in full, that were refused, and that did not end.
    pub finished: usize,
    /// Refused by the router.
    pub refused: usize,
    /// Still going, or stuck.
    pub unfinished: usize,
    /// The backlog grew while conversations arrived: percentiles are transients.
    pub unstable: bool,
    /// Conversations in the system, more each second, over the last three quarters of the arrivals.
    pub backlog_slope_per_s: f64,
    /// Mean number in the system over that span.
    pub backlog_mean: f64,
    /// For a deadlock: who waits for what.
    pub stuck: Vec<String>,
}

const SLICES: usize = 12;

/// Slope and mean of the number of conversations in the system, and whether it grew.
///
/// The span of arrivals less its first quarter is cut into slices; the mean number in the system of each
/// is regressed on time. Unstable: the slope is more than three of its standard errors, and the growth over
/// the span is more than half of the mean and more than two conversations.
pub(super) fn backlog(rows: &[ConversationRow], end: f64) -> (f64, f64, bool) {
    let arrived = rows
        .iter()
        .map(|row| row.arrival_s)
        .filter(|at| !at.is_nan());
    let last = arrived.clone().fold(f64::NAN, f64::max);
    let first = arrived.fold(f64::NAN, f64::min);
    let span = last - first;
    if rows.len() < 2 * SLICES || span.is_nan() || span <= 0.0 {
        return (0.0, 0.0, false);
    }
    let (from, width) = (first + 0.25 * span, 0.75 * span / SLICES as f64);
    let mean_in = |slice: usize| {
        let (low, high) = (
            from + slice as f64 * width,
            from + (slice + 1) as f64 * width,
        );
        let inside = rows
            .iter()
            .filter(|row| !row.arrival_s.is_nan())
            .map(|row| {
                let done = if row.done_s.is_nan() { end } else { row.done_s };
                (done.min(high) - row.arrival_s.max(low)).max(0.0)
            });
        inside.sum::<f64>() / width
    };
    let means: Vec<f64> = (0..SLICES).map(mean_in).collect();
    let n = SLICES as f64;
    let mean = means.iter().sum::<f64>() / n;
    let middle = (n - 1.0) / 2.0;
    let (mut xy, mut xx) = (0.0, 0.0);
    for (slice, value) in means.iter().enumerate() {
        let x = slice as f64 - middle;
        xy += x * (value - mean);
        xx += x * x;
    }
    let slope = xy / xx;
    let residual = means.iter().enumerate().map(|(slice, value)| {
        let off = value - mean - slope * (slice as f64 - middle);
        off * off
    });
    let error = (residual.sum::<f64>() / (n - 2.0) / xx).sqrt();
    let growth = slope * n;
    let unstable = slope > 3.0 * error && growth > 0.5 * mean && growth > 2.0;
    (slope / width, mean, unstable)
}
