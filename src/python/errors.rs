//! The core's errors as the exceptions of `conserve.errors`. Codes and statuses come from the core (I8).

use pyo3::exceptions::PyTimeoutError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{IntoPyDict, PyDict};

use crate::config::PolicyError;
use crate::error::{ConfigError, JoinError, Rejected};
use crate::event::FailReason;

mod raised {
    use pyo3::import_exception;

    import_exception!(conserve.errors, ConfigError);
    import_exception!(conserve.errors, Draining);
    import_exception!(conserve.errors, NoWorkers);
    import_exception!(conserve.errors, Overloaded);
    import_exception!(conserve.errors, PromptTooLong);
    import_exception!(conserve.errors, Rejected);
    import_exception!(conserve.errors, WorkerError);
    import_exception!(conserve.errors, WorkerTimeout);
}

/// `conversation` is the id that the caller used.
pub(super) fn rejected(py: Python<'_>, refused: &Rejected, conversation: &str) -> PyErr {
    let fields = PyDict::new(py);
    let class = match refused {
        Rejected::Overloaded { retry_after } | Rejected::TimedOut { retry_after } => {
            if let Err(error) = fields.set_item("retry_after_s", retry_after.as_secs_f64()) {
                return error;
            }
            py.get_type::<raised::Overloaded>()
        }
        Rejected::PromptTooLong { tokens, limit } => {
            if let Err(error) = fields
                .set_item("tokens", tokens.0)
                .and_then(|()| fields.set_item("limit", limit.0))
            {
                return error;
            }
            py.get_type::<raised::PromptTooLong>()
        }
        Rejected::Draining => py.get_type::<raised::Draining>(),
        Rejected::NoWorkers => py.get_type::<raised::NoWorkers>(),
        Rejected::Closed => py.get_type::<raised::Rejected>(),
    };
    let codes = fields
        .set_item("code", refused.code())
        .and_then(|()| fields.set_item("status", refused.status()));
    let message = format!("conversation {conversation}: {refused}");
    match codes.and_then(|()| class.call((message,), Some(&fields))) {
        Ok(error) => PyErr::from_value(error),
        Err(error) => error,
    }
}

/// A `ConfigError` for `key`, as Python spells it.
pub(super) fn out_of_range(py: Python<'_>, key: &str, value: &str, range: &str) -> PyErr {
    config(
        py,
        &format!("{key} = {value} is out of range: {range}"),
        key,
        range,
    )
}

/// The core's own check of an option failed. Durations carry their unit in Python.
pub(super) fn config_error(py: Python<'_>, error: &ConfigError) -> PyErr {
    let key = match error.key {
        "queue_timeout" => "queue_timeout_s",
        "idle_timeout" => "idle_timeout_s",
        "prefill_timeout" => "prefill_timeout_s",
        "first_byte_timeout" => "first_byte_timeout_s",
        "answer_timeout" => "answer_timeout_s",
        "connect_timeout" => "connect_timeout_s",
        "lease" => "lease_s",
        key => key,
    };
    out_of_range(py, key, &error.value, error.range)
}

/// A policy, or an option of one, that there is not.
pub(super) fn policy_error(py: Python<'_>, error: &PolicyError) -> PyErr {
    let key = error.option().map_or_else(
        || "policy".to_owned(),
        |option| format!("policy_options.{option}"),
    );
    config(py, &error.to_string(), &key, error.accepted())
}

/// A scenario of the simulator that cannot be run.
#[cfg(feature = "sim")]
pub(super) fn scenario_error(py: Python<'_>, error: &crate::sim::ScenarioError) -> PyErr {
    config(py, &error.to_string(), &error.key, &error.problem)
}

/// A worker cannot join.
pub(super) fn join_error(py: Python<'_>, error: &JoinError) -> PyErr {
    let key = match error {
        JoinError::InvalidUrl { .. } | JoinError::AlreadyJoined { .. } => "url",
        JoinError::Capacity { .. } => "kv_blocks",
        JoinError::IdsExhausted => "",
    };
    config(py, &error.to_string(), key, "")
}

fn config(py: Python<'_>, message: &str, key: &str, accepted: &str) -> PyErr {
    let made = [("key", key), ("accepted", accepted)]
        .into_py_dict(py)
        .and_then(|fields| {
            py.get_type::<raised::ConfigError>()
                .call((message,), Some(&fields))
        });
    match made {
        Ok(error) => PyErr::from_value(error),
        Err(error) => error,
    }
}

/// What an exception that leaves a `with` block says about the turn.
pub(super) fn why_failed(error: &Bound<'_, PyAny>) -> PyResult<FailReason> {
    let py = error.py();
    if error.is_instance_of::<PyTimeoutError>() || error.is_instance_of::<raised::WorkerTimeout>() {
        return Ok(FailReason::Timeout);
    }
    if error.is_instance_of::<raised::WorkerError>() {
        let prefill = error.getattr(intern!(py, "phase"))?.eq("prefill")?;
        return Ok(if prefill {
            FailReason::PrefillFailed
        } else {
            FailReason::DecoderError
        });
    }
    // Where asyncio was never imported, nothing of it can have been raised.
    let modules = py
        .import(intern!(py, "sys"))?
        .getattr(intern!(py, "modules"))?;
    let cancelled = match modules.get_item(intern!(py, "asyncio.exceptions")) {
        Ok(module) => error.is_instance(&module.getattr(intern!(py, "CancelledError"))?)?,
        Err(_) => false,
    };
    Ok(if cancelled {
        FailReason::ClientGone
    } else {
        FailReason::Dropped
    })
}
