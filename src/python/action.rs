//! What a door is asked to do next, as one class for each kind.

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

use super::convert::headers_to_python;
use crate::dispatch::{Action, Upstream};
use crate::units::Timestamp;

pub(super) fn to_python(
    py: Python<'_>,
    action: Action,
    now: Timestamp,
) -> PyResult<Bound<'_, PyAny>> {
    let upstream = |mut upstream: Upstream| {
        // The core's copy of the body, up to 32 MiB, goes as soon as Python has its own.
        let body = PyBytes::new(py, &std::mem::take(&mut upstream.body)).unbind();
        Py::new(py, PyUpstream { upstream, body })
    };
    Ok(match action {
        Action::Wait { deadline } => Bound::new(
            py,
            PyWait {
                timeout_s: deadline.since(now).as_secs_f64(),
            },
        )?
        .into_any(),
        Action::Call(request) => Bound::new(
            py,
            PyCall {
                upstream: upstream(request)?,
            },
        )?
        .into_any(),
        Action::Stream(request) => Bound::new(
            py,
            PyStream {
                upstream: upstream(request)?,
            },
        )?
        .into_any(),
        Action::Listen => Bound::new(py, PyListen {})?.into_any(),
        Action::Relay {
            status,
            headers,
            first,
        } => {
            let headers = headers_to_python(py, &headers)?.unbind();
            let first = PyBytes::new(py, &first).unbind();
            Bound::new(
                py,
                PyRelay {
                    status,
                    headers,
                    first,
                },
            )?
            .into_any()
        }
        Action::Collect { limit } => Bound::new(py, PyCollect { limit })?.into_any(),
        Action::Reply {
            status,
            headers,
            body,
        } => {
            let headers = headers_to_python(py, &headers)?.unbind();
            let body = PyBytes::new(py, &body).unbind();
            Bound::new(
                py,
                PyReply {
                    status,
                    headers,
                    body,
                },
            )?
            .into_any()
        }
        Action::Finish(data) => Bound::new(
            py,
            PyFinish {
                data: PyBytes::new(py, &data).unbind(),
            },
        )?
        .into_any(),
    })
}

/// One POST to a worker.
#[pyclass(name = "Upstream", frozen, module = "conserve._core")]
pub(super) struct PyUpstream {
    upstream: Upstream,
    body: Py<PyBytes>,
}

#[pymethods]
impl PyUpstream {
    #[getter]
    const fn worker(&self) -> u16 {
        self.upstream.worker.get()
    }

    #[getter]
    fn worker_name(&self) -> &str {
        &self.upstream.name
    }

    /// The full URL.
    #[getter]
    fn url(&self) -> &str {
        &self.upstream.url
    }

    #[getter]
    fn headers<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        headers_to_python(py, &self.upstream.headers)
    }

    #[getter]
    fn body<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        self.body.bind(py).clone()
    }

    #[getter]
    const fn connect_timeout_s(&self) -> f64 {
        self.upstream.connect_timeout.as_secs_f64()
    }

    #[getter]
    const fn first_byte_timeout_s(&self) -> f64 {
        self.upstream.first_byte_timeout.as_secs_f64()
    }

    #[getter]
    const fn idle_timeout_s(&self) -> f64 {
        self.upstream.idle_timeout.as_secs_f64()
    }

    /// The largest answer to a `Call`.
    #[getter]
    const fn max_answer_bytes(&self) -> usize {
        self.upstream.max_answer_bytes
    }

    #[getter]
    const fn phase(&self) -> &'static str {
        self.upstream.phase.as_str()
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        let bytes = self.body.bind(py).as_bytes().len();
        format!("<Upstream {} {} {bytes} bytes>", self.phase(), self.url())
    }
}

/// Declares an action: a frozen class with these fields, in this order for `match`.
macro_rules! action {
    ($(#[$doc:meta])* $class:ident $name:literal { $($field:ident: $kind:ty = $text:literal),* }) => {
        $(#[$doc])*
        #[pyclass(name = $name, frozen, get_all, module = "conserve._core")]
        pub(super) struct $class {
            $($field: $kind,)*
        }

        #[pymethods]
        impl $class {
            #[classattr]
            fn __match_args__() -> ($(action!(@text $field),)*) {
                ($($text,)*)
            }
        }
    };
    (@text $field:ident) => { &'static str };
}

action!(
    /// Wait for a place in line.
    PyWait "Wait" { timeout_s: f64 = "timeout_s" }
);
action!(
    /// Send a request and read the whole answer.
    PyCall "Call" { upstream: Py<PyUpstream> = "upstream" }
);
action!(
    /// Send a request and read the head of the answer.
    PyStream "Stream" { upstream: Py<PyUpstream> = "upstream" }
);
/// Read the next piece of the stream and pass it to `heard`; the client is told nothing yet.
#[pyclass(name = "Listen", frozen, module = "conserve._core")]
pub(super) struct PyListen {}

action!(
    /// Begin the client's answer with this head and `first`; the rest of the worker's stream follows.
    PyRelay "Relay" { status: u16 = "status", headers: Py<PyList> = "headers", first: Py<PyBytes> = "first" }
);
action!(
    /// Read the body of the answer that just began, at most `limit` bytes, and pass it to `answered`.
    PyCollect "Collect" { limit: usize = "limit" }
);
action!(
    /// Answer the client.
    PyReply "Reply" { status: u16 = "status", headers: Py<PyList> = "headers", body: Py<PyBytes> = "body" }
);
action!(
    /// Write the last bytes of a stream and end it.
    PyFinish "Finish" { data: Py<PyBytes> = "data" }
);
