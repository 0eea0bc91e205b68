//! `TurnContext`: what `Router.turn` returns, entered once by `with` or `async with`.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pyo3::exceptions::{PyRuntimeError, PyStopIteration};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyString;

use super::errors::rejected;
use super::shell::Shell;
use super::ticket::PyTicket;
use super::turn::PyTurn;
use crate::router::{Begin, TurnRequest};
use crate::units::{ConversationKey, Tokens};

/// What `Router.turn` returns: enter it once with `with` or `async with` to get the `Turn`.
#[pyclass(name = "TurnContext", frozen, module = "conserve")]
pub(super) struct PyTurnContext {
    shell: Arc<Shell>,
    conversation: Py<PyString>,
    key: ConversationKey,
    prompt: Tokens,
    timeout: Option<Duration>,
    state: Mutex<State>,
}

enum State {
    Fresh,
    Entering,
    Entered(Py<PyTurn>),
    Left,
}

impl PyTurnContext {
    pub(super) fn new(
        shell: Arc<Shell>,
        conversation: Py<PyString>,
        key: ConversationKey,
        prompt: Tokens,
        timeout: Option<Duration>,
    ) -> Self {
        Self {
            shell,
            conversation,
            key,
            prompt,
            timeout,
            state: Mutex::new(State::Fresh),
        }
    }

    pub(super) const fn shell(&self) -> &Arc<Shell> {
        &self.shell
    }

    /// The core's refusal as an exception that names the conversation.
    pub(super) fn refused(&self, py: Python<'_>, refused: &crate::error::Rejected) -> PyErr {
        match self.conversation.bind(py).to_cow() {
            Ok(conversation) => rejected(py, refused, &conversation),
            Err(error) => error,
        }
    }

    /// Notes the turn that `__exit__` will settle.
    pub(super) fn entered(
        &self,
        py: Python<'_>,
        turn: crate::router::Turn,
    ) -> PyResult<Py<PyTurn>> {
        let turn = Py::new(py, PyTurn::new(Arc::clone(&self.shell), turn))?;
        *self.lock() = State::Entered(turn.clone_ref(py));
        Ok(turn)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `wait` of zero answers now.
    fn begin(&self, py: Python<'_>, wait: Option<Duration>) -> PyResult<Begin> {
        {
            let mut state = self.lock();
            if !matches!(*state, State::Fresh) {
                return Err(PyRuntimeError::new_err(
                    "this turn was entered already; call Router.turn for the next",
                ));
            }
            *state = State::Entering;
        }
        let wait = wait.filter(|wait| !wait.is_zero());
        let request = TurnRequest {
            key: self.key,
            prompt_tokens: self.prompt,
            wait,
        };
        self.shell
            .enter(py, |router, now| router.begin(&request, now))
            .map_err(|refused| self.refused(py, &refused))
    }

    fn leave(&self, py: Python<'_>, error: Option<&Bound<'_, PyAny>>) {
        let state = std::mem::replace(&mut *self.lock(), State::Left);
        match state {
            State::Entered(turn) => turn.get().leave(py, error),
            State::Fresh | State::Entering | State::Left => {}
        }
    }
}

#[pymethods]
impl PyTurnContext {
    fn __enter__(slf: &Bound<'_, Self>) -> PyResult<Py<PyTurn>> {
        let (py, this) = (slf.py(), slf.get());
        match this.begin(py, this.timeout)? {
            Begin::Started(turn) => this.entered(py, turn),
            Begin::Waiting(ticket) => {
                let ticket = PyTicket::new(slf.clone().unbind(), ticket);
                let wait = py.import(intern!(py, "conserve._wait"))?;
                let turn = wait.call_method1(intern!(py, "in_line_blocking"), (ticket,))?;
                Ok(turn.cast_into::<PyTurn>()?.unbind())
            }
        }
    }

    #[pyo3(signature = (_kind, error, _trace, /))]
    fn __exit__(
        &self,
        py: Python<'_>,
        _kind: &Bound<'_, PyAny>,
        error: Option<&Bound<'_, PyAny>>,
        _trace: &Bound<'_, PyAny>,
    ) {
        self.leave(py, error);
    }

    fn __aenter__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let (py, this) = (slf.py(), slf.get());
        match this.begin(py, Some(this.timeout.unwrap_or(this.shell.queue_timeout)))? {
            Begin::Started(turn) => {
                let turn = this.entered(py, turn)?;
                Ok(Bound::new(py, Ready::new(turn.into_any()))?.into_any())
            }
            Begin::Waiting(ticket) => {
                let ticket = PyTicket::new(slf.clone().unbind(), ticket);
                py.import(intern!(py, "conserve._wait"))?
                    .call_method1(intern!(py, "in_line"), (ticket,))
            }
        }
    }

    #[pyo3(signature = (_kind, error, _trace, /))]
    fn __aexit__(
        &self,
        py: Python<'_>,
        _kind: &Bound<'_, PyAny>,
        error: Option<&Bound<'_, PyAny>>,
        _trace: &Bound<'_, PyAny>,
    ) -> Ready {
        self.leave(py, error);
        Ready::new(py.None())
    }
}

/// An awaitable that has its answer already.
#[pyclass(name = "_Ready", frozen, module = "conserve._core")]
pub(super) struct Ready(Mutex<Option<Py<PyAny>>>);

impl Ready {
    const fn new(value: Py<PyAny>) -> Self {
        Self(Mutex::new(Some(value)))
    }
}

#[pymethods]
impl Ready {
    const fn __await__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    const fn __iter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __next__(&self) -> PyResult<()> {
        let value = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        match value {
            Some(value) => Err(PyStopIteration::new_err((value,))),
            None => Err(PyRuntimeError::new_err("this was awaited already")),
        }
    }
}
