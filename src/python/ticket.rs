//! `Ticket`: a place in line, waited on by `conserve._wait`.

use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::prelude::*;

use super::context::PyTurnContext;
use super::turn::PyTurn;
use crate::router::Ticket;

#[pyclass(name = "Ticket", frozen, module = "conserve._core")]
pub(super) struct PyTicket {
    context: Py<PyTurnContext>,
    /// `None` once the turn was taken, refused or given up.
    ticket: Mutex<Option<Ticket>>,
}

impl PyTicket {
    pub(super) const fn new(context: Py<PyTurnContext>, ticket: Ticket) -> Self {
        Self {
            context,
            ticket: Mutex::new(Some(ticket)),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Ticket>> {
        self.ticket.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl PyTicket {
    #[pyo3(signature = (wake, /))]
    fn on_ready(&self, py: Python<'_>, wake: Py<PyAny>) {
        let shell = self.context.get().shell();
        let waker = shell.wakes.waker(wake);
        shell.enter(py, |_, _| {
            if let Some(ticket) = &*self.lock() {
                ticket.set_waker(waker);
            }
        });
    }

    fn take(&self, py: Python<'_>) -> PyResult<Option<Py<PyTurn>>> {
        let context = self.context.get();
        let taken = context.shell().enter(py, |_, now| {
            let mut ticket = self.lock();
            let taken = ticket.as_ref().and_then(|ticket| ticket.take(now));
            if taken.is_some() {
                *ticket = None;
            }
            taken
        });
        match taken {
            None => Ok(None),
            Some(Ok(turn)) => context.entered(py, turn).map(Some),
            Some(Err(refused)) => Err(context.refused(py, &refused)),
        }
    }

    fn remaining_s(&self) -> Option<f64> {
        let clock = &self.context.get().shell().clock;
        if !clock.moves_by_itself() {
            return None;
        }
        let ticket = self.lock();
        ticket
            .as_ref()
            .map(|ticket| ticket.deadline().since(clock.now()).as_secs_f64())
    }

    fn leave(&self, py: Python<'_>) {
        self.context.get().shell().enter(py, |_, _| {
            let left = self.lock().take();
            drop(left);
        });
    }
}

impl Drop for PyTicket {
    /// Who waits behind hears of the free place at once.
    fn drop(&mut self) {
        let Some(ticket) = self
            .ticket
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
        else {
            return;
        };
        Python::try_attach(|py| self.context.get().shell().enter(py, |_, _| drop(ticket)));
    }
}
