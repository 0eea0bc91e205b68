//! Samples in microseconds and what is said about them.

/// Samples of one kind.
#[derive(Default)]
pub(crate) struct Samples(Vec<u32>);

impl Samples {
    pub(crate) fn add_ns(&mut self, span: u64) {
        self.0.push(u32::try_from(span / 1000).unwrap_or(u32::MAX));
    }

    pub(crate) fn count(&self) -> usize {
        self.0.len()
    }

    /// The nearest-rank percentiles asked for, in microseconds; 0 without samples.
    pub(crate) fn percentiles<const N: usize>(&mut self, per_mille: [usize; N]) -> [u32; N] {
        self.0.sort_unstable();
        let last = self.0.len().saturating_sub(1);
        per_mille.map(|rank| self.0.get(last * rank / 1000).copied().unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_samples() {
        let mut samples = Samples::default();
        assert_eq!(samples.percentiles([500]), [0], "no samples");
        for us in (0..=100).rev() {
            samples.add_ns(us * 1000);
        }
        assert_eq!(samples.percentiles([0, 500, 990, 1000]), [0, 50, 99, 100]);
    }
}
