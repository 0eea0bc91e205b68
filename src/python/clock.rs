//! The time of a router: the machine's monotonic clock, or one that a test moves.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::units::Timestamp;

/// Where `now` comes from.
pub(super) enum Clock {
    /// Nanoseconds since the router was built.
    Machine(Instant),
    /// Whatever the test says.
    Manual(Arc<AtomicU64>),
}

impl Clock {
    pub(super) fn machine() -> Self {
        #[expect(
            clippy::disallowed_methods,
            reason = "this is the shell: the core is handed the time from here"
        )]
        Self::Machine(Instant::now())
    }

    pub(super) fn now(&self) -> Timestamp {
        match self {
            #[expect(
                clippy::disallowed_methods,
                reason = "this is the shell: the core is handed the time from here"
            )]
            Self::Machine(origin) => Timestamp(nanos(Instant::now().duration_since(*origin))),
            // Acquire: pairs with the Release in `advance`, so that what a test did before is seen too.
            Self::Manual(now) => Timestamp(now.load(Ordering::Acquire)),
        }
    }

    /// The same time for the native door; `None` for a clock that a test moves.
    #[cfg(feature = "proxy")]
    pub(super) fn machine_time(&self) -> Option<crate::proxy::Clock> {
        match self {
            Self::Machine(origin) => Some(crate::proxy::Clock::since(*origin)),
            Self::Manual(_) => None,
        }
    }

    /// Whether waiting for real time makes this clock move.
    pub(super) const fn moves_by_itself(&self) -> bool {
        match self {
            Self::Machine(_) => true,
            Self::Manual(_) => false,
        }
    }
}

/// A clock that moves when told, for tests and simulations. Safe to share between threads.
#[pyclass(name = "ManualClock", frozen, module = "conserve")]
pub(super) struct PyManualClock {
    now: Arc<AtomicU64>,
}

impl PyManualClock {
    pub(super) fn clock(&self) -> Clock {
        Clock::Manual(Arc::clone(&self.now))
    }
}

#[pymethods]
impl PyManualClock {
    #[new]
    #[pyo3(signature = (now_s = 0.0))]
    fn new(now_s: f64) -> PyResult<Self> {
        Ok(Self {
            now: Arc::new(AtomicU64::new(nanos(span(now_s)?))),
        })
    }

    /// Seconds since the clock's origin.
    #[getter]
    fn now_s(&self) -> f64 {
        seconds(Timestamp(self.now.load(Ordering::Acquire)))
    }

    /// Move on by `seconds` (>= 0, else ValueError). Call `Router.tick` to expire what waits in line.
    fn advance(&self, seconds: f64) -> PyResult<()> {
        let span = nanos(span(seconds)?);
        // Release: pairs with the Acquire in `Clock::now`.
        self.now.fetch_add(span, Ordering::Release);
        Ok(())
    }

    fn __repr__(&self) -> String {
        format!("ManualClock({})", self.now_s())
    }
}

fn span(seconds: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(seconds).map_err(|_| {
        PyValueError::new_err(format!(
            "seconds = {seconds} is out of range: finite, at least 0"
        ))
    })
}

fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

/// A moment as Python sees it.
pub(super) fn seconds(at: Timestamp) -> f64 {
    Duration::from_nanos(at.0).as_secs_f64()
}
