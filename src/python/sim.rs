//! The simulator: a workload from columns, one run, its result as columns.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use super::errors::scenario_error;
use crate::sim::{
    ConversationRow, EngineRow, Scenario, SimResult, TurnRow, Workload, WorkloadColumns, simulate,
};

/// Conversations with their turns, in columns. Checked once; may be used in several runs at once.
#[pyclass(name = "SimWorkload", frozen, module = "conserve._core")]
pub(super) struct PySimWorkload(Workload);

#[pymethods]
impl PySimWorkload {
    #[new]
    #[pyo3(signature = (
        *, arrival_s, turns, append, output, gap_s, visible = None, reuse = None, flip = None,
        prefix_id = None, prefix_tokens = None
    ))]
    #[expect(clippy::too_many_arguments, reason = "one for each column")]
    fn new(
        arrival_s: Vec<f64>,
        turns: Vec<u32>,
        append: Vec<u32>,
        output: Vec<u32>,
        gap_s: Vec<f64>,
        visible: Option<Vec<bool>>,
        reuse: Option<Vec<i64>>,
        flip: Option<Vec<bool>>,
        prefix_id: Option<Vec<i64>>,
        prefix_tokens: Option<Vec<u32>>,
    ) -> PyResult<Self> {
        let columns = WorkloadColumns {
            arrival_s,
            turns,
            prefix_id: prefix_id.unwrap_or_default(),
            prefix_tokens: prefix_tokens.unwrap_or_default(),
            append,
            output,
            gap_s,
            visible: visible.unwrap_or_default(),
            reuse: reuse.unwrap_or_default(),
            flip: flip.unwrap_or_default(),
        };
        Workload::new(&columns)
            .map(Self)
            .map_err(|error| PyValueError::new_err(error.to_string()))
    }

    /// How many there are.
    #[getter]
    fn conversations(&self) -> usize {
        self.0.len()
    }

    /// Turns of all conversations.
    #[getter]
    fn turns(&self) -> usize {
        self.0.turns()
    }

    fn __len__(&self) -> usize {
        self.0.len()
    }

    fn __repr__(&self) -> String {
        format!(
            "<SimWorkload: {} conversations, {} turns>",
            self.0.len(),
            self.0.turns()
        )
    }
}

/// What one run left behind.
#[pyclass(name = "SimResult", frozen, module = "conserve._core")]
pub(super) struct PySimResult(SimResult);

type Columns<'py> = PyResult<Bound<'py, PyDict>>;

/// Sets a column for each named field of the rows.
macro_rules! columns {
    ($py:expr, $rows:expr; $($field:ident),* ; $($name:literal = $make:expr),*) => {{
        let (py, rows) = ($py, $rows);
        let columns = PyDict::new(py);
        $(columns.set_item(stringify!($field), PyList::new(py, rows.iter().map(|row| row.$field))?)?;)*
        $(columns.set_item($name, PyList::new(py, rows.iter().map($make))?)?;)*
        Ok(columns)
    }};
}

fn place(engine: Option<usize>) -> i64 {
    engine
        .and_then(|engine| i64::try_from(engine).ok())
        .unwrap_or(-1)
}

#[pymethods]
impl PySimResult {
    /// The turns, by column. Where the time to the first token went is in `line_s` to `transfer_s`; a gap is between tokens.
    fn turns<'py>(&self, py: Python<'py>) -> Columns<'py> {
        columns!(py, &self.0.turns;
            conversation, turn, ready_s, admitted_s, prefill_start_s, prefill_end_s, transfer_end_s,
            first_token_s, last_token_s, gap_mean_s, gap_p95_s, gap_max_s, moved, visible, prompt_tokens,
            output_tokens, cached_tokens, prefilled_tokens, recomputed_tokens, transferred_tokens,
            preemptions, line_s, engine_queue_s, handoff_wait_s, slept_s, compute_s, transfer_s;
            "prefiller" = |row: &TurnRow| place(row.prefiller),
            "decoder" = |row: &TurnRow| place(row.decoder)
        )
    }

    /// The conversations, by column.
    ///
    /// What `ttfet_s` was spent on is in `ttfet_tool_s` to `ttfet_decode_s`.
    fn conversations<'py>(&self, py: Python<'py>) -> Columns<'py> {
        let rows = &self.0.conversations;
        let made: Columns<'py> = columns!(py, rows;
            arrival_s, admitted_s, done_s, ttfet_s, tool_s, turns_done, handoffs, moves;
            "status" = |row: &ConversationRow| row.status
        );
        let made = made?;
        for (at, part) in ConversationRow::PARTS.iter().enumerate() {
            let seconds = PyList::new(py, rows.iter().map(|row| row.ttfet_parts_s[at]))?;
            made.set_item(format!("ttfet_{part}_s"), seconds)?;
        }
        Ok(made)
    }

    /// The engines, by column. `window_joules` is NaN without an energy window.
    fn engines<'py>(&self, py: Python<'py>) -> Columns<'py> {
        let rows = &self.0.engines;
        let made: Columns<'py> = columns!(py, rows;
            role, window_joules, steps, prefill_tokens, generated_tokens, recomputed_tokens, evicted_tokens,
            loaded_tokens, preemptions, queue_peak, kv_blocks;
            "name" = |row: &EngineRow| row.name.clone()
        );
        let made = made?;
        for (at, phase) in EngineRow::PHASES.iter().enumerate() {
            let joules = PyList::new(py, rows.iter().map(|row| row.joules[at]))?;
            let seconds = PyList::new(py, rows.iter().map(|row| row.seconds[at]))?;
            made.set_item(format!("{phase}_j"), joules)?;
            made.set_item(format!("{phase}_s"), seconds)?;
        }
        Ok(made)
    }

    /// Counts of the whole run.
    fn counters<'py>(&self, py: Python<'py>) -> Columns<'py> {
        let (counted, made) = (&self.0.counters, PyDict::new(py));
        for (name, count) in [
            ("events", counted.events),
            ("handoffs", counted.handoffs),
            ("fetches", counted.fetches),
            ("moves", counted.moves),
            ("abandoned_handoffs", counted.abandoned_handoffs),
            ("placed_local", counted.placed_local),
            ("placed_handoff", counted.placed_handoff),
            ("placed_afresh", counted.placed_afresh),
            ("placed_moved", counted.placed_moved),
            ("waits_room", counted.waits_room),
            ("waits_thrash", counted.waits_thrash),
            ("waits_growth", counted.waits_growth),
            ("flips", counted.flips),
        ] {
            made.set_item(name, count)?;
        }
        made.set_item("transferred_bytes", counted.transferred_bytes)?;
        made.set_item("link_busy_s", counted.link_busy_s)?;
        Ok(made)
    }

    /// What to know before believing the numbers.
    fn diagnosis<'py>(&self, py: Python<'py>) -> Columns<'py> {
        let (found, made) = (&self.0.diagnosis, PyDict::new(py));
        made.set_item("outcome", found.outcome.as_str())?;
        made.set_item("finished", found.finished)?;
        made.set_item("refused", found.refused)?;
        made.set_item("unfinished", found.unfinished)?;
        made.set_item("unstable", found.unstable)?;
        made.set_item("backlog_slope_per_s", found.backlog_slope_per_s)?;
        made.set_item("backlog_mean", found.backlog_mean)?;
        made.set_item("stuck", &found.stuck)?;
        Ok(made)
    }

    /// What happened, seconds and words, if the scenario asked for events.
    #[getter]
    fn events(&self) -> Vec<(f64, &str)> {
        let events = self.0.events.iter();
        events.map(|event| (event.at_s, &*event.what)).collect()
    }

    /// The policy that the router ran.
    #[getter]
    fn policy(&self) -> &str {
        &self.0.policy
    }

    /// When the run ended.
    #[getter]
    fn end_s(&self) -> f64 {
        self.0.end_s
    }

    fn __repr__(&self) -> String {
        format!(
            "<SimResult: {}, {} turns, {:.3} s>",
            self.0.diagnosis.outcome.as_str(),
            self.0.turns.len(),
            self.0.end_s
        )
    }
}

/// Runs `scenario`, a JSON document, over `workload`. Lets go of the GIL.
#[pyfunction]
#[pyo3(name = "simulate", signature = (scenario, workload, *, seed))]
pub(super) fn run(
    py: Python<'_>,
    scenario: &str,
    workload: &PySimWorkload,
    seed: u64,
) -> PyResult<PySimResult> {
    let scenario = Scenario::from_json(scenario).map_err(|error| scenario_error(py, &error))?;
    let result = py.detach(|| simulate(&scenario, &workload.0, seed));
    result
        .map(PySimResult)
        .map_err(|error| scenario_error(py, &error))
}
