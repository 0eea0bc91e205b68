//! The descriptions of workers that a user writes: `Prefiller`, `Decoder`, `Worker`.

use std::fmt::{Display, Write as _};

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;

use super::convert::{block_size, blocks, literal, optional, tokens};
use crate::fleet::{Role, WorkerSpec};

/// A worker that prefills the first turn of conversations: it computes the KV of a long prompt
/// and hands it over.
#[pyclass(name = "Prefiller", frozen, eq, hash, get_all, module = "conserve")]
#[derive(PartialEq, Eq, Hash)]
pub(super) struct PyPrefiller {
    url: String,
    name: Option<String>,
    tier: Option<String>,
    max_model_len: Option<i64>,
    prefill_backlog_tokens: Option<i64>,
}

/// A worker that keeps conversations: their KV stays with it and every later turn runs on it.
#[pyclass(name = "Decoder", frozen, eq, hash, get_all, module = "conserve")]
#[derive(PartialEq, Eq, Hash)]
pub(super) struct PyDecoder {
    url: String,
    kv_blocks: Option<i64>,
    block_size: Option<i64>,
    name: Option<String>,
    tier: Option<String>,
    max_model_len: Option<i64>,
}

/// A worker that is prefiller and decoder at once. It may prefill its own conversations without a
/// handoff.
#[pyclass(name = "Worker", frozen, eq, hash, get_all, module = "conserve")]
#[derive(PartialEq, Eq, Hash)]
pub(super) struct PyWorker {
    url: String,
    kv_blocks: Option<i64>,
    block_size: Option<i64>,
    name: Option<String>,
    tier: Option<String>,
    max_model_len: Option<i64>,
    prefill_backlog_tokens: Option<i64>,
}

#[pymethods]
impl PyPrefiller {
    #[new]
    #[pyo3(signature = (url, *, name = None, tier = None, max_model_len = None, prefill_backlog_tokens = None))]
    fn new(
        py: Python<'_>,
        url: String,
        name: Option<String>,
        tier: Option<String>,
        max_model_len: Option<i64>,
        prefill_backlog_tokens: Option<i64>,
    ) -> PyResult<Self> {
        let made = Self {
            url,
            name,
            tier,
            max_model_len,
            prefill_backlog_tokens,
        };
        made.spec(py).map(|_| made)
    }

    #[classattr]
    fn __match_args__() -> (&'static str,) {
        ("url",)
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let mut repr = Repr::new(py, "Prefiller", &self.url)?;
        repr.text("name", self.name.as_deref())?;
        repr.text("tier", self.tier.as_deref())?;
        repr.number("max_model_len", self.max_model_len);
        repr.number("prefill_backlog_tokens", self.prefill_backlog_tokens);
        Ok(repr.end())
    }
}

impl PyPrefiller {
    fn spec(&self, py: Python<'_>) -> PyResult<WorkerSpec> {
        let backlog = self.prefill_backlog_tokens;
        Ok(WorkerSpec {
            url: self.url.clone(),
            role: Role::Prefiller,
            name: self.name.clone(),
            tier: self.tier.clone(),
            kv_blocks: None,
            block_size: None,
            max_model_len: optional(py, "max_model_len", self.max_model_len, tokens)?,
            prefill_backlog_tokens: optional(py, "prefill_backlog_tokens", backlog, tokens)?,
        })
    }
}

#[pymethods]
impl PyDecoder {
    #[new]
    #[pyo3(signature = (url, *, kv_blocks = None, block_size = None, name = None, tier = None, max_model_len = None))]
    fn new(
        py: Python<'_>,
        url: String,
        kv_blocks: Option<i64>,
        block_size: Option<i64>,
        name: Option<String>,
        tier: Option<String>,
        max_model_len: Option<i64>,
    ) -> PyResult<Self> {
        let made = Self {
            url,
            kv_blocks,
            block_size,
            name,
            tier,
            max_model_len,
        };
        made.spec(py).map(|_| made)
    }

    #[classattr]
    fn __match_args__() -> (&'static str,) {
        ("url",)
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let mut repr = Repr::new(py, "Decoder", &self.url)?;
        repr.number("kv_blocks", self.kv_blocks);
        repr.number("block_size", self.block_size);
        repr.text("name", self.name.as_deref())?;
        repr.text("tier", self.tier.as_deref())?;
        repr.number("max_model_len", self.max_model_len);
        Ok(repr.end())
    }
}

impl PyDecoder {
    fn spec(&self, py: Python<'_>) -> PyResult<WorkerSpec> {
        Ok(WorkerSpec {
            url: self.url.clone(),
            role: Role::Decoder,
            name: self.name.clone(),
            tier: self.tier.clone(),
            kv_blocks: optional(py, "kv_blocks", self.kv_blocks, blocks)?,
            block_size: optional(py, "block_size", self.block_size, block_size)?,
            max_model_len: optional(py, "max_model_len", self.max_model_len, tokens)?,
            prefill_backlog_tokens: None,
        })
    }
}

#[pymethods]
impl PyWorker {
    #[new]
    #[pyo3(signature = (
        url, *, kv_blocks = None, block_size = None, name = None, tier = None, max_model_len = None,
        prefill_backlog_tokens = None
    ))]
    #[expect(
        clippy::too_many_arguments,
        reason = "one for each keyword of the Python class"
    )]
    fn new(
        py: Python<'_>,
        url: String,
        kv_blocks: Option<i64>,
        block_size: Option<i64>,
        name: Option<String>,
        tier: Option<String>,
        max_model_len: Option<i64>,
        prefill_backlog_tokens: Option<i64>,
    ) -> PyResult<Self> {
        let made = Self {
            url,
            kv_blocks,
            block_size,
            name,
            tier,
            max_model_len,
            prefill_backlog_tokens,
        };
        made.spec(py).map(|_| made)
    }

    #[classattr]
    fn __match_args__() -> (&'static str,) {
        ("url",)
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let mut repr = Repr::new(py, "Worker", &self.url)?;
        repr.number("kv_blocks", self.kv_blocks);
        repr.number("block_size", self.block_size);
        repr.text("name", self.name.as_deref())?;
        repr.text("tier", self.tier.as_deref())?;
        repr.number("max_model_len", self.max_model_len);
        repr.number("prefill_backlog_tokens", self.prefill_backlog_tokens);
        Ok(repr.end())
    }
}

impl PyWorker {
    fn spec(&self, py: Python<'_>) -> PyResult<WorkerSpec> {
        let backlog = self.prefill_backlog_tokens;
        Ok(WorkerSpec {
            url: self.url.clone(),
            role: Role::Both,
            name: self.name.clone(),
            tier: self.tier.clone(),
            kv_blocks: optional(py, "kv_blocks", self.kv_blocks, blocks)?,
            block_size: optional(py, "block_size", self.block_size, block_size)?,
            max_model_len: optional(py, "max_model_len", self.max_model_len, tokens)?,
            prefill_backlog_tokens: optional(py, "prefill_backlog_tokens", backlog, tokens)?,
        })
    }
}

/// Any of the three, as an argument.
pub(super) enum AnyWorker<'py> {
    Prefiller(Bound<'py, PyPrefiller>),
    Decoder(Bound<'py, PyDecoder>),
    Worker(Bound<'py, PyWorker>),
}

impl<'py> FromPyObject<'_, 'py> for AnyWorker<'py> {
    type Error = PyErr;

    fn extract(given: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        if let Ok(worker) = given.cast::<PyDecoder>() {
            Ok(Self::Decoder(worker.to_owned()))
        } else if let Ok(worker) = given.cast::<PyPrefiller>() {
            Ok(Self::Prefiller(worker.to_owned()))
        } else if let Ok(worker) = given.cast::<PyWorker>() {
            Ok(Self::Worker(worker.to_owned()))
        } else {
            let given = given.repr()?;
            Err(PyTypeError::new_err(format!(
                "a worker is Decoder(url), Prefiller(url) or Worker(url), not {given}"
            )))
        }
    }
}

impl AnyWorker<'_> {
    pub(super) fn spec(&self, py: Python<'_>) -> PyResult<WorkerSpec> {
        match self {
            Self::Prefiller(worker) => worker.get().spec(py),
            Self::Decoder(worker) => worker.get().spec(py),
            Self::Worker(worker) => worker.get().spec(py),
        }
    }
}

/// A call that would build an equal object.
struct Repr<'py> {
    py: Python<'py>,
    call: String,
}

impl<'py> Repr<'py> {
    fn new(py: Python<'py>, class: &str, url: &str) -> PyResult<Self> {
        Ok(Self {
            py,
            call: format!("{class}({}", literal(py, url)?),
        })
    }

    fn text(&mut self, key: &str, value: Option<&str>) -> PyResult<()> {
        if let Some(value) = value {
            let value = literal(self.py, value)?;
            self.append(key, value);
        }
        Ok(())
    }

    fn number(&mut self, key: &str, value: Option<i64>) {
        if let Some(value) = value {
            self.append(key, value);
        }
    }

    fn append(&mut self, key: &str, value: impl Display) {
        write!(self.call, ", {key}={value}").expect("a String takes any text");
    }

    fn end(mut self) -> String {
        self.call.push(')');
        self.call
    }
}
