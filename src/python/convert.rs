//! Python's numbers as the core's units, each refusal naming the option and the range.

use std::time::Duration;

use bytes::Bytes;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyTuple};

use super::errors::out_of_range;
use crate::dispatch::Header;
use crate::units::{BlockSize, Blocks, Tokens};

/// Header names and values, as ASGI has them. They are short and are copied.
pub(super) struct Headers(pub(super) Vec<Header>);

impl<'py> FromPyObject<'_, 'py> for Headers {
    type Error = PyErr;

    fn extract(pairs: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        let pairs = pairs.try_iter()?.map(|pair| {
            // ASGI says pairs; most servers send tuples, some lists.
            let pair = pair?;
            let (name, value) = match pair.extract::<(Bound<'_, PyBytes>, Bound<'_, PyBytes>)>() {
                Ok(pair) => pair,
                Err(_) => (
                    pair.get_item(0)?.cast_into()?,
                    pair.get_item(1)?.cast_into()?,
                ),
            };
            Ok((
                Bytes::copy_from_slice(name.as_bytes()),
                Bytes::copy_from_slice(value.as_bytes()),
            ))
        });
        pairs.collect::<PyResult<Vec<_>>>().map(Self)
    }
}

pub(super) fn tokens(py: Python<'_>, key: &str, value: i64) -> PyResult<Tokens> {
    u32::try_from(value)
        .map(Tokens)
        .map_err(|_| out_of_range(py, key, &value.to_string(), "0 to 4294967295"))
}

pub(super) fn blocks(py: Python<'_>, key: &str, value: i64) -> PyResult<Blocks> {
    match u64::try_from(value) {
        Ok(count) if count <= u64::from(Blocks::MAX.get()) => Ok(Blocks::new(count)),
        _ => Err(out_of_range(py, key, &value.to_string(), "0 to 16777215")),
    }
}

pub(super) fn block_size(py: Python<'_>, key: &str, value: i64) -> PyResult<BlockSize> {
    u32::try_from(value)
        .ok()
        .and_then(BlockSize::new)
        .ok_or_else(|| out_of_range(py, key, &value.to_string(), "1 to 4294967295"))
}

pub(super) fn count(py: Python<'_>, key: &str, value: i64) -> PyResult<usize> {
    usize::try_from(value).map_err(|_| out_of_range(py, key, &value.to_string(), "at least 0"))
}

pub(super) fn span(py: Python<'_>, key: &str, seconds: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(seconds)
        .map_err(|_| out_of_range(py, key, &seconds.to_string(), "seconds, finite, at least 0"))
}

/// `option` converted by `convert`, `None` kept.
pub(super) fn optional<T>(
    py: Python<'_>,
    key: &str,
    option: Option<i64>,
    convert: impl FnOnce(Python<'_>, &str, i64) -> PyResult<T>,
) -> PyResult<Option<T>> {
    option.map(|value| convert(py, key, value)).transpose()
}

pub(super) fn headers_to_python<'py>(
    py: Python<'py>,
    headers: &[Header],
) -> PyResult<Bound<'py, PyList>> {
    let pairs = headers
        .iter()
        .map(|(name, value)| PyTuple::new(py, [PyBytes::new(py, name), PyBytes::new(py, value)]));
    PyList::new(py, pairs.collect::<PyResult<Vec<_>>>()?)
}

/// `text` as a Python literal.
pub(super) fn literal(py: Python<'_>, text: &str) -> PyResult<String> {
    Ok(text.into_pyobject(py)?.repr()?.to_string())
}
