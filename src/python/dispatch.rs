//! `Dispatch`: one client request as a state machine.

use std::sync::{Arc, Mutex, PoisonError, TryLockError};

use bytes::Bytes;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use super::action::to_python;
use super::convert::Headers;
use super::shell::Shell;
use crate::dispatch::{Action, Dispatch, Failure};
use crate::units::Timestamp;

/// Bytes above which reading them lets go of the GIL: below, letting go costs more than it gives.
const LARGE_BYTES: usize = 64 << 10;

/// One client request as a state machine: each call says what happened and returns what to do
/// next.
#[pyclass(name = "Dispatch", frozen, module = "conserve._core")]
pub(super) struct PyDispatch {
    shell: Arc<Shell>,
    body_bytes: usize,
    /// `None` only while it is dropped.
    dispatch: Mutex<Option<Dispatch>>,
}

impl PyDispatch {
    pub(super) const fn new(shell: Arc<Shell>, dispatch: Dispatch, body_bytes: usize) -> Self {
        Self {
            shell,
            body_bytes,
            dispatch: Mutex::new(Some(dispatch)),
        }
    }

    /// Lets `work`, which reads `bytes` bytes, use the state machine; then delivers the wake-ups that it caused.
    fn enter<T: Send>(
        &self,
        py: Python<'_>,
        bytes: usize,
        work: impl FnOnce(&mut Dispatch, Timestamp) -> T + Send,
    ) -> PyResult<T> {
        let mut guard = match self.dispatch.try_lock() {
            Ok(guard) => guard,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => {
                return Err(PyRuntimeError::new_err(
                    "another thread is using this dispatch",
                ));
            }
        };
        let dispatch = guard.as_mut().expect("it is there until it is dropped");
        let now = self.shell.clock.now();
        let done = if bytes > LARGE_BYTES {
            py.detach(|| work(dispatch, now))
        } else {
            work(dispatch, now)
        };
        drop(guard);
        self.shell.wakes.deliver(py);
        Ok(done)
    }

    fn act<'py>(
        &self,
        py: Python<'py>,
        bytes: usize,
        work: impl FnOnce(&mut Dispatch, Timestamp) -> Action + Send,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (action, now) = self.enter(py, bytes, |dispatch, now| (work(dispatch, now), now))?;
        to_python(py, action, now)
    }
}

#[pymethods]
#[expect(
    clippy::needless_pass_by_value,
    reason = "PyO3 extracts arguments to values"
)]
impl PyDispatch {
    fn start<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.act(py, self.body_bytes, Dispatch::start)
    }

    /// A future of `loop` that is done when `admitted` is to be called: a place was granted, or time
    /// is up.
    #[pyo3(signature = (r#loop, /))]
    fn wait<'py>(
        slf: &Bound<'py, Self>,
        r#loop: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (py, this) = (slf.py(), slf.get());
        let waits = this.shell.clock.moves_by_itself();
        let remaining = this.enter(py, 0, |dispatch, now| {
            dispatch
                .ticket()
                .filter(|_| waits)
                .map(|ticket| ticket.deadline().since(now).as_secs_f64())
        })?;
        let on_ready = slf.getattr(intern!(py, "_on_ready"))?;
        py.import(intern!(py, "conserve._wait"))?
            .call_method1(intern!(py, "future"), (r#loop, on_ready, remaining))
    }

    #[pyo3(signature = (wake, /))]
    fn _on_ready(&self, py: Python<'_>, wake: Py<PyAny>) -> PyResult<()> {
        let waker = self.shell.wakes.waker(wake);
        self.enter(py, 0, |dispatch, _| dispatch.set_waker(waker))
    }

    fn admitted<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.act(py, self.body_bytes, Dispatch::admitted)
    }

    #[pyo3(signature = (status, headers, body, /))]
    fn answered<'py>(
        &self,
        py: Python<'py>,
        status: u16,
        headers: Headers,
        body: Bytes,
    ) -> PyResult<Bound<'py, PyAny>> {
        let bytes = body.len().max(self.body_bytes);
        self.act(py, bytes, |dispatch, now| {
            dispatch.answered(status, &headers.0, &body, now)
        })
    }

    #[pyo3(signature = (status, headers, /))]
    fn head<'py>(
        &self,
        py: Python<'py>,
        status: u16,
        headers: Headers,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.act(py, 0, |dispatch, now| {
            dispatch.head(status, &headers.0, now)
        })
    }

    /// A piece of the stream that is listened to; `b""` at its end.
    #[pyo3(signature = (data, /))]
    fn heard<'py>(&self, py: Python<'py>, data: Bytes) -> PyResult<Bound<'py, PyAny>> {
        let bytes = data.len().max(self.body_bytes);
        self.act(py, bytes, |dispatch, now| dispatch.heard(&data, now))
    }

    /// What to write to the client for a piece of the worker's stream; may be empty, may be `data`
    /// itself.
    #[pyo3(signature = (data, /))]
    fn chunk<'py>(&self, data: &Bound<'py, PyBytes>) -> PyResult<Bound<'py, PyBytes>> {
        let py = data.py();
        let bytes: Bytes = data.extract()?;
        let out = self.enter(py, bytes.len(), |dispatch, now| dispatch.chunk(&bytes, now))?;
        // Most pieces pass as they came: then the same object goes on, without a copy.
        if out.len() == bytes.len() && out.as_ptr() == bytes.as_ptr() {
            return Ok(data.clone());
        }
        Ok(PyBytes::new(py, &out))
    }

    /// The worker's stream has ended: what is still to be written. Settles the turn.
    fn end<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let out = self.enter(py, 0, Dispatch::end)?;
        Ok(PyBytes::new(py, &out))
    }

    #[pyo3(signature = (kind, /))]
    fn failed<'py>(&self, py: Python<'py>, kind: &str) -> PyResult<Bound<'py, PyAny>> {
        let failure = Failure::from_name(kind).ok_or_else(|| {
            PyValueError::new_err(format!("{kind:?} is not the name of a failure"))
        })?;
        self.act(py, self.body_bytes, |dispatch, now| {
            dispatch.failed(failure, now)
        })
    }

    /// The client went away: the turn is settled; the driver aborts what it has under way upstream.
    fn client_gone(&self, py: Python<'_>) -> PyResult<()> {
        self.enter(py, 0, Dispatch::client_gone)
    }

    /// The key of the conversation as its caller is told it, once `start` has read the request.
    #[getter]
    fn conversation(&self, py: Python<'_>) -> PyResult<Option<String>> {
        self.enter(py, 0, |dispatch, _| {
            dispatch.handle().map(|key| key.to_string())
        })
    }

    /// Why the turn runs where it runs, once its answer has begun.
    #[getter]
    fn reason(&self, py: Python<'_>) -> PyResult<Option<String>> {
        self.enter(py, 0, |dispatch, _| {
            dispatch.reason().map(|reason| reason.to_string())
        })
    }

    /// Whether nothing will follow.
    #[getter]
    fn over(&self, py: Python<'_>) -> PyResult<bool> {
        self.enter(py, 0, |dispatch, _| dispatch.is_over())
    }
}

impl Drop for PyDispatch {
    /// A turn under way fails; who waits for its room hears of it at once.
    fn drop(&mut self) {
        let dispatch = self
            .dispatch
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        Python::try_attach(|py| {
            drop(dispatch);
            self.shell.wakes.deliver(py);
        });
    }
}
