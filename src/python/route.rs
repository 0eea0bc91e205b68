//! `Route`: where a turn runs, and why.

use pyo3::prelude::*;

use super::convert::literal;
use crate::router::Route;

/// Where a turn runs, and why.
#[pyclass(name = "Route", frozen, eq, hash, module = "conserve")]
#[derive(PartialEq, Eq, Hash)]
pub(super) struct PyRoute {
    prefiller: Option<Place>,
    decoder: Place,
    turn: u32,
    kind: &'static str,
    reason: String,
}

#[derive(PartialEq, Eq, Hash)]
struct Place {
    id: u16,
    url: std::sync::Arc<str>,
    name: std::sync::Arc<str>,
}

impl From<&crate::router::WorkerRef> for Place {
    fn from(worker: &crate::router::WorkerRef) -> Self {
        Self {
            id: worker.id.get(),
            url: worker.url.clone(),
            name: worker.name.clone(),
        }
    }
}

impl From<&Route> for PyRoute {
    fn from(route: &Route) -> Self {
        Self {
            prefiller: route.prefiller.as_ref().map(Place::from),
            decoder: Place::from(&route.decoder),
            turn: route.turn,
            kind: route.kind.as_str(),
            reason: route.reason.to_string(),
        }
    }
}

#[pymethods]
impl PyRoute {
    /// URL, None if there is no handoff.
    #[getter]
    fn prefiller(&self) -> Option<&str> {
        self.prefiller.as_ref().map(|place| &*place.url)
    }

    #[getter]
    fn prefiller_name(&self) -> Option<&str> {
        self.prefiller.as_ref().map(|place| &*place.name)
    }

    #[getter]
    fn prefiller_id(&self) -> Option<u16> {
        self.prefiller.as_ref().map(|place| place.id)
    }

    /// URL.
    #[getter]
    fn decoder(&self) -> &str {
        &self.decoder.url
    }

    #[getter]
    fn decoder_name(&self) -> &str {
        &self.decoder.name
    }

    #[getter]
    const fn decoder_id(&self) -> u16 {
        self.decoder.id
    }

    #[getter]
    const fn handoff(&self) -> bool {
        self.prefiller.is_some()
    }

    /// 1 for the first.
    #[getter]
    const fn turn(&self) -> u32 {
        self.turn
    }

    #[getter]
    const fn kind(&self) -> &'static str {
        self.kind
    }

    /// One line with the numbers compared.
    #[getter]
    fn reason(&self) -> &str {
        &self.reason
    }

    pub(super) fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let prefiller = self
            .prefiller()
            .map_or_else(|| Ok("None".to_owned()), |url| literal(py, url))?;
        Ok(format!(
            "Route(prefiller={prefiller}, decoder={}, turn={}, kind='{}', reason={})",
            literal(py, self.decoder())?,
            self.turn,
            self.kind,
            literal(py, &self.reason)?
        ))
    }
}
