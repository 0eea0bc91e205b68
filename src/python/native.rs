//! `NativeDoor`: the door over tokio and hyper, for a server whose control plane is in Python.

use std::collections::BTreeMap;
use std::path::PathBuf;

use pyo3::prelude::*;
use pyo3::types::PyList;

use super::convert::{count, headers_to_python, span};
use super::dispatcher::PyDispatcher;
use super::errors::out_of_range;
use crate::proxy::{Door, DoorConfig, Level, Line, TlsFiles};

/// Serves turns over HTTP in threads of its own, without Python; passes every other request on to
/// a Unix socket.
#[pyclass(name = "NativeDoor", frozen, weakref, module = "conserve._core")]
pub(super) struct PyNativeDoor {
    door: Door,
}

#[pymethods]
impl PyNativeDoor {
    #[new]
    #[pyo3(signature = (
        dispatcher, *, host, port, control, tls = None, worker_ca = None, max_connections = 0, threads = 0, body_timeout_s = 60.0, client_stall_timeout_s = 120.0,
        keep_alive_s = 75.0, verbose = true
    ))]
    #[expect(
        clippy::too_many_arguments,
        reason = "one for each keyword of the Python class"
    )]
    fn new(
        py: Python<'_>,
        dispatcher: &Bound<'_, PyDispatcher>,
        host: String,
        port: u16,
        control: PathBuf,
        tls: Option<(PathBuf, PathBuf)>,
        worker_ca: Option<PathBuf>,
        max_connections: i64,
        threads: i64,
        body_timeout_s: f64,
        client_stall_timeout_s: f64,
        keep_alive_s: f64,
        verbose: bool,
    ) -> PyResult<Self> {
        let dispatcher = dispatcher.get();
        let clock = dispatcher.shell().clock.machine_time().ok_or_else(|| {
            out_of_range(
                py,
                "clock",
                "ManualClock",
                "a router with the machine's clock",
            )
        })?;
        let config = DoorConfig {
            host,
            port,
            control,
            tls: tls.map(|(certificate, key)| TlsFiles { certificate, key }),
            worker_authorities: worker_ca,
            max_connections: count(py, "max_connections", max_connections)?,
            threads: count(py, "threads", threads)?,
            body_timeout: span(py, "body_timeout_s", body_timeout_s)?,
            client_stall_timeout: span(py, "client_stall_timeout_s", client_stall_timeout_s)?,
            keep_alive: span(py, "keep_alive_s", keep_alive_s)?,
            verbose,
        };
        let core = dispatcher.core().clone();
        let door = py.detach(|| Door::bind(core, config, clock))?;
        Ok(Self { door })
    }

    /// The port it listens on.
    #[getter]
    fn port(&self) -> u16 {
        self.door.address().port()
    }

    /// The address it listens on.
    #[getter]
    fn host(&self) -> String {
        self.door.address().ip().to_string()
    }

    /// Begin to serve. Once only; later calls do nothing.
    fn start(&self) {
        self.door.start();
    }

    /// Refuse new turns with 503 from now on; returns at once.
    fn refuse(&self) {
        self.door.refuse();
    }

    /// Refuse new turns, wait at most `deadline_s` for those under way, then end them with an error.
    #[pyo3(signature = (deadline_s, /))]
    fn drain(&self, py: Python<'_>, deadline_s: f64) -> PyResult<usize> {
        let limit = span(py, "deadline_s", deadline_s)?;
        Ok(py.detach(|| self.door.drain(limit)))
    }

    /// Close everything; what is under way is ended with an error. Blocks for two seconds at most,
    /// without the GIL.
    fn stop(&self, py: Python<'_>) {
        py.detach(|| self.door.stop());
    }

    /// Requests being served, waiting ones included.
    #[getter]
    fn in_flight(&self) -> usize {
        self.door.in_flight()
    }

    /// Requests answered, by path and status (499: the client left).
    #[getter]
    fn requests(&self) -> BTreeMap<(&'static str, u16), u64> {
        let rows = self.door.counted().requests.into_iter();
        rows.map(|(path, status, count)| ((path, status), count))
            .collect()
    }

    /// Requests whose client left, by what was under way.
    #[getter]
    fn client_gone(&self) -> BTreeMap<&'static str, u64> {
        self.door.counted().client_gone.into_iter().collect()
    }

    /// Exchanges with workers that broke, by kind.
    #[getter]
    fn upstream_failures(&self) -> BTreeMap<&'static str, u64> {
        self.door.counted().upstream_failures.into_iter().collect()
    }

    /// Bytes of streams taken from workers.
    #[getter]
    fn relayed_bytes(&self) -> u64 {
        self.door.counted().relayed_bytes
    }

    /// The next lines for the log, maybe none within `timeout_s`; None once stopped and all were given.
    #[pyo3(signature = (timeout_s, /))]
    fn lines<'py>(
        &self,
        py: Python<'py>,
        timeout_s: f64,
    ) -> PyResult<Option<Vec<Bound<'py, PyAny>>>> {
        let limit = span(py, "timeout_s", timeout_s)?;
        let lines = py.detach(|| self.door.lines(limit));
        lines
            .map(|lines| lines.into_iter().map(|line| to_python(py, line)).collect())
            .transpose()
    }

    fn __repr__(&self) -> String {
        format!("<NativeDoor {}>", self.door.address())
    }
}

fn to_python(py: Python<'_>, line: Line) -> PyResult<Bound<'_, PyAny>> {
    match line {
        Line::Answered {
            path,
            status,
            headers,
            body,
            reason,
        } => {
            let headers: Bound<'_, PyList> = headers_to_python(py, &headers)?;
            let reason = reason.map(|reason| reason.to_string());
            Ok((path, status, headers, body, reason)
                .into_pyobject(py)?
                .into_any())
        }
        Line::Text(level, text) => {
            let level = match level {
                Level::Info => "info",
                Level::Warning => "warning",
            };
            Ok((level, text).into_pyobject(py)?.into_any())
        }
    }
}
