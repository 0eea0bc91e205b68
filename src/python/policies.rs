//! The policies that there are, and one of them with its options.

use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::errors::policy_error;
use crate::config::{PolicyChoice, PolicyKind};

/// A policy's name, what it makes of prefillers, and its options with what they take.
type Row<'py> = (&'static str, &'static str, Bound<'py, PyDict>);

/// Each policy: its name, what it makes of workers that only compute prompts, its options with what they take.
#[pyfunction]
pub(super) fn policies(py: Python<'_>) -> PyResult<Vec<Row<'_>>> {
    let row = |kind: PolicyKind| {
        let options = PyDict::new(py);
        for (option, accepted) in kind.options() {
            options.set_item(option, accepted)?;
        }
        Ok((kind.as_str(), kind.prefillers().as_str(), options))
    };
    PolicyKind::ALL.into_iter().map(row).collect()
}

/// The policy of that name; values of options are read as they print.
pub(super) fn choice(
    py: Python<'_>,
    name: &str,
    options: Option<&Bound<'_, PyDict>>,
) -> PyResult<PolicyChoice> {
    let mut read: Vec<(String, String)> = Vec::new();
    for (option, value) in options.into_iter().flatten() {
        read.push((option.str()?.to_string(), value.str()?.to_string()));
    }
    let read = read.iter().map(|(option, value)| (&**option, &**value));
    PolicyChoice::new(name, read).map_err(|error| policy_error(py, &error))
}
