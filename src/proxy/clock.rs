//! The time of the door: the machine's monotonic clock, counted from the router's origin.

use std::time::Duration;

use tokio::time::Instant;

use crate::units::Timestamp;

/// Where the door's `now` comes from. All that use one router count from the same origin.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    origin: Instant,
}

impl Clock {
    /// A clock that counts from `origin`.
    #[must_use]
    pub fn since(origin: std::time::Instant) -> Self {
        Self {
            origin: Instant::from_std(origin),
        }
    }

    pub(crate) fn now(self) -> Timestamp {
        let passed = Instant::now().duration_since(self.origin);
        Timestamp(u64::try_from(passed.as_nanos()).unwrap_or(u64::MAX))
    }

    /// The moment `at` for timers.
    pub(crate) fn instant(self, at: Timestamp) -> Instant {
        self.origin + Duration::from_nanos(at.0)
    }
}
