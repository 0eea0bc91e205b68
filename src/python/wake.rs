//! Wake-ups on their way from the core to Python.
//!
//! The core wakes a ticket while it works, maybe under a lock. Running Python there could hand the GIL to a thread that
//! waits for that very lock. So a wake-up is only noted there, and delivered by [`Wakes::deliver`] after the core has
//! returned; each binding that enters the core calls it. For the same reason no Python object dies inside the core.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Wake, Waker};

use pyo3::exceptions::PyKeyboardInterrupt;
use pyo3::prelude::*;

/// Wake-ups and dead callbacks of one router that Python has not seen yet.
#[derive(Default)]
pub(super) struct Wakes {
    any: AtomicBool,
    noted: Mutex<Noted>,
}

#[derive(Default)]
struct Noted {
    due: Vec<Arc<Callback>>,
    dead: Vec<Py<PyAny>>,
}

impl Wakes {
    /// A waker that has `callback` called by the next [`Wakes::deliver`].
    pub(super) fn waker(self: &Arc<Self>, callback: Py<PyAny>) -> Waker {
        Waker::from(Arc::new(Callback {
            wakes: Arc::clone(self),
            callback: Some(callback),
        }))
    }

    /// Calls what is due. Not to be called with a lock held.
    pub(super) fn deliver(&self, py: Python<'_>) {
        // Relaxed: what this thread noted it sees; what others noted they deliver themselves.
        while self.any.load(Ordering::Relaxed) {
            let Noted { due, dead } = self.take();
            for woken in &due {
                if let Some(callback) = &woken.callback {
                    call(callback.bind(py));
                }
            }
            drop((due, dead));
        }
    }

    fn take(&self) -> Noted {
        let mut noted = self.noted.lock().unwrap_or_else(PoisonError::into_inner);
        self.any.store(false, Ordering::Relaxed);
        std::mem::take(&mut *noted)
    }

    fn note(&self, what: impl FnOnce(&mut Noted)) {
        let mut noted = self.noted.lock().unwrap_or_else(PoisonError::into_inner);
        what(&mut noted);
        // Relaxed: written and cleared under the lock; the list itself is guarded by it.
        self.any.store(true, Ordering::Relaxed);
    }
}

fn call(callback: &Bound<'_, PyAny>) {
    let py = callback.py();
    let Err(mut error) = callback.call0() else {
        return;
    };
    // Ctrl-C came while the callback ran. Whoever waits is woken all the same, and the interrupt comes again when
    // the caller's own code goes on.
    if error.is_instance_of::<PyKeyboardInterrupt>(py) {
        let again = callback
            .call0()
            .and_then(|_| py.import("_thread")?.call_method0("interrupt_main"));
        let Err(second) = again else { return };
        error = second;
    }
    error.write_unraisable(py, Some(callback));
}

struct Callback {
    wakes: Arc<Wakes>,
    /// `None` only while it is dropped.
    callback: Option<Py<PyAny>>,
}

impl Wake for Callback {
    fn wake(self: Arc<Self>) {
        let wakes = Arc::clone(&self.wakes);
        wakes.note(|noted| noted.due.push(self));
    }
}

impl Drop for Callback {
    fn drop(&mut self) {
        if let Some(callback) = self.callback.take() {
            self.wakes.note(|noted| noted.dead.push(callback));
        }
    }
}
