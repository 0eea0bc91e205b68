//! How long roles stay as they are after a change: longer each time that they swing back.
//!
//! What is measured depends a little on the roles that there are; near the border two numbers can each advise the other.

use std::cmp::Ordering;
use std::time::Duration;

/// See the module.
#[derive(Debug)]
pub(super) struct Calm {
    rest: Duration,
    last: Ordering,
}

impl Calm {
    const LONGEST: Duration = Duration::from_secs(3_600);

    /// At least so long after every change, and before the first.
    pub(super) const fn of(least: Duration) -> Self {
        Self {
            rest: least,
            last: Ordering::Equal,
        }
    }

    pub(super) const fn rest(&self) -> Duration {
        self.rest
    }

    /// The number changed; `least` is how long that lasts unless it swung.
    pub(super) fn changed(&mut self, before: u16, after: u16, least: Duration) {
        let way = after.cmp(&before);
        self.rest = if self.last == way.reverse() {
            (2 * self.rest).min(Self::LONGEST)
        } else {
            least
        };
        self.last = way;
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_number_that_swings_changes_ever_more_rarely() {
        let least = Duration::from_secs(180);
        let mut calm = Calm::of(least);
        let mut rests = Vec::new();
        for (before, after) in [(0, 2), (2, 0), (0, 2), (2, 0), (0, 1), (1, 0), (0, 1)] {
            calm.changed(before, after, least);
            rests.push(calm.rest().as_secs());
        }
        assert_eq!(rests, [180, 360, 720, 1440, 2880, 3600, 3600]);
        calm.changed(1, 2, least);
        assert_eq!(calm.rest(), least, "on in the same direction");
    }
}
