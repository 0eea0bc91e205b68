//! `Turn`: a turn that was let in, settled once.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;

use super::convert::{optional, tokens};
use super::errors::why_failed;
use super::route::PyRoute;
use super::router::WorkerName;
use super::shell::Shell;
use crate::event::{FailReason, Usage};
use crate::router::{Route, Turn};
use crate::units::Timestamp;

/// One turn that was let in: where it runs, and the bookings it holds until it is settled.
#[pyclass(name = "Turn", frozen, module = "conserve")]
pub(super) struct PyTurn {
    shell: Arc<Shell>,
    state: Mutex<State>,
}

enum State {
    Open {
        turn: Turn,
        first_token: Option<Timestamp>,
    },
    Settled(Route),
}

impl PyTurn {
    pub(super) fn new(shell: Arc<Shell>, turn: Turn) -> Self {
        Self {
            shell,
            state: Mutex::new(State::Open {
                turn,
                first_token: None,
            }),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets `work` use the open turn.
    fn open<T>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut Turn, &mut Option<Timestamp>, Timestamp) -> T,
    ) -> PyResult<T> {
        let done = self.shell.enter(py, |_, now| match &mut *self.lock() {
            State::Open { turn, first_token } => Some(work(turn, first_token, now)),
            State::Settled(_) => None,
        });
        done.ok_or_else(settled_already)
    }

    /// Settles the turn with `how`; false if it was settled before.
    fn settle(&self, py: Python<'_>, how: impl FnOnce(Turn, Timestamp)) -> bool {
        self.shell.enter(py, |_, now| {
            let mut state = self.lock();
            let State::Open { turn, .. } = &*state else {
                return false;
            };
            let settled = State::Settled(turn.route().clone());
            let open = std::mem::replace(&mut *state, settled);
            drop(state);
            if let State::Open { turn, .. } = open {
                how(turn, now);
            }
            true
        })
    }

    /// The end of a `with` block, left with `error` or without.
    pub(super) fn leave(&self, py: Python<'_>, error: Option<&Bound<'_, PyAny>>) {
        match error {
            None => self.settle(py, |turn, now| turn.finish(Usage::default(), now)),
            Some(error) => {
                let why = why_failed(error).unwrap_or(FailReason::Dropped);
                self.settle(py, |turn, now| turn.fail(why, now))
            }
        };
    }
}

#[pymethods]
#[expect(
    clippy::needless_pass_by_value,
    reason = "PyO3 extracts arguments to values"
)]
impl PyTurn {
    /// Where the turn runs. `reprefill` changes it.
    #[getter]
    fn route(&self) -> PyRoute {
        match &*self.lock() {
            State::Open { turn, .. } => PyRoute::from(turn.route()),
            State::Settled(route) => PyRoute::from(route),
        }
    }

    #[getter]
    fn settled(&self) -> bool {
        matches!(*self.lock(), State::Settled(_))
    }

    /// The prefill is done and the prompt had exactly so many tokens: correct the booking, unload the
    /// prefiller.
    #[pyo3(signature = (prompt_tokens, /))]
    fn prefilled(&self, py: Python<'_>, prompt_tokens: i64) -> PyResult<()> {
        let prompt = tokens(py, "prompt_tokens", prompt_tokens)?;
        self.open(py, |turn, _, now| turn.prefilled(prompt, now))
    }

    /// The decoder has the KV: the conversation is pinned, its other turns may go on. `finish`
    /// implies it.
    fn handed_over(&self, py: Python<'_>) -> PyResult<()> {
        self.open(py, |turn, _, now| turn.handed_over(now))
    }

    /// The prefiller failed: the route with the next one (not one of `avoid`) and the same decoder.
    #[pyo3(signature = (*, avoid = Vec::new()), text_signature = "($self, *, avoid=())")]
    fn reprefill(&self, py: Python<'_>, avoid: Vec<WorkerName>) -> PyResult<PyRoute> {
        let avoid = avoid
            .iter()
            .map(|worker| worker.find(&self.shell))
            .collect::<PyResult<Vec<_>>>()?;
        self.open(py, |turn, _, now| {
            turn.reprefill(&avoid, now);
            PyRoute::from(turn.route())
        })
    }

    /// The first token of the answer is here (time to first token).
    fn first_token(&self, py: Python<'_>) -> PyResult<()> {
        self.open(py, |turn, first_token, now| {
            first_token.get_or_insert(now);
            turn.first_token(now);
        })
    }

    /// The turn ended with an answer for the user, not with a tool call: its first token sets the
    /// TTFET.
    fn effective(&self, py: Python<'_>) -> PyResult<()> {
        self.open(py, |turn, first_token, now| {
            turn.effective(first_token.unwrap_or(now), now);
        })
    }

    /// The turn is done; what the worker's `usage` says corrects the booking.
    #[pyo3(signature = (*, output_tokens = None, prompt_tokens = None, cached_tokens = None))]
    fn finish(
        &self,
        py: Python<'_>,
        output_tokens: Option<i64>,
        prompt_tokens: Option<i64>,
        cached_tokens: Option<i64>,
    ) -> PyResult<()> {
        let usage = Usage {
            prompt: optional(py, "prompt_tokens", prompt_tokens, tokens)?,
            output: optional(py, "output_tokens", output_tokens, tokens)?,
            cached: optional(py, "cached_tokens", cached_tokens, tokens)?,
        };
        if self.settle(py, |turn, now| turn.finish(usage, now)) {
            Ok(())
        } else {
            Err(settled_already())
        }
    }

    /// The turn did not work out: what it booked is given back.
    #[pyo3(signature = (reason = "dropped"))]
    fn fail(&self, py: Python<'_>, reason: &str) -> PyResult<()> {
        let why = FailReason::ALL
            .into_iter()
            .find(|why| why.as_str() == reason)
            .ok_or_else(|| {
                let all = FailReason::ALL.map(FailReason::as_str).join(", ");
                PyValueError::new_err(format!("reason = {reason:?} is not one of {all}"))
            })?;
        if self.settle(py, |turn, now| turn.fail(why, now)) {
            Ok(())
        } else {
            Err(settled_already())
        }
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let settled = if self.settled() { "settled" } else { "open" };
        Ok(format!("<Turn {settled} {}>", self.route().__repr__(py)?))
    }
}

impl Drop for PyTurn {
    /// An open turn fails when Python lets go of it; who waits for its room hears of it at once.
    fn drop(&mut self) {
        let State::Open { .. } = self.state.get_mut().unwrap_or_else(PoisonError::into_inner)
        else {
            return;
        };
        // Python is there, except while the interpreter ends; then the core's own `Drop` settles the turn.
        Python::try_attach(|py| self.settle(py, |turn, now| turn.fail(FailReason::Dropped, now)));
    }
}

fn settled_already() -> PyErr {
    PyRuntimeError::new_err("this turn was settled already")
}
