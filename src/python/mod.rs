//! The Python module `conserve._core`: one file for each class, conversions only.
//!
//! Promises: calls that take microseconds keep the GIL, what may scan a lot lets go of it; Python code never runs while
//! the core is at work (`wake`); nothing here decides anything.

#![expect(
    clippy::doc_markdown,
    reason = "the docs of Python classes are for Python's help()"
)]

mod action;
mod clock;
mod context;
mod convert;
mod dispatch;
mod dispatcher;
mod errors;
#[cfg(feature = "proxy")]
mod native;
mod policies;
mod route;
mod router;
mod shell;
#[cfg(feature = "sim")]
mod sim;
mod ticket;
mod turn;
mod views;
mod wake;
mod workers;

use pyo3::prelude::*;

#[pymodule(name = "_core", gil_used = false)]
mod core {
    #[pymodule_export]
    use super::action::{
        PyCall, PyCollect, PyFinish, PyListen, PyRelay, PyReply, PyStream, PyUpstream, PyWait,
    };
    #[pymodule_export]
    use super::clock::PyManualClock;
    #[pymodule_export]
    use super::context::PyTurnContext;
    #[pymodule_export]
    use super::dispatch::PyDispatch;
    #[pymodule_export]
    use super::dispatcher::PyDispatcher;
    #[cfg(feature = "proxy")]
    #[pymodule_export]
    use super::native::PyNativeDoor;
    #[pymodule_export]
    use super::policies::policies;
    #[pymodule_export]
    use super::route::PyRoute;
    #[pymodule_export]
    use super::router::PyRouter;
    #[cfg(feature = "sim")]
    #[pymodule_export]
    use super::sim::{PySimResult, PySimWorkload, run};
    #[pymodule_export]
    use super::turn::PyTurn;
    #[pymodule_export]
    use super::views::{PyAdvice, PyConversationView, PySnapshot, PySwept, PyWorkerView};
    #[pymodule_export]
    use super::workers::{PyDecoder, PyPrefiller, PyWorker};

    #[pymodule_export]
    const DEFAULT_POLICY: &str = crate::config::PolicyKind::DEFAULT.as_str();

    #[pymodule_export]
    #[expect(non_upper_case_globals, reason = "Python's name for it")]
    const __version__: &str = env!("CARGO_PKG_VERSION");
}
