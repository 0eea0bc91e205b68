//! `Router`: the core with a clock and names.

use std::sync::Arc;

use pyo3::exceptions::{PyAssertionError, PyKeyError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};

use super::clock::{Clock, PyManualClock, seconds};
use super::context::PyTurnContext;
use super::convert::{block_size, blocks, count, optional, span, tokens};
use super::errors::{config_error, join_error, out_of_range};
use super::policies::choice;
use super::shell::Shell;
use super::views::{PyConversationView, PySnapshot, PySwept};
use super::wake::Wakes;
use super::workers::{AnyWorker, PyPrefiller};
use crate::config::{Config, PolicyKind};
use crate::event::LostReason;
use crate::identity::{Identity, IdentityLimits};
use crate::metrics::{Metrics, Slo};
use crate::report::WorkerReport;
use crate::router::{Doing, Health, Heard, Router};
use crate::units::WorkerId;

/// Decides where each turn of each conversation runs, and whether there is room for it.
#[pyclass(name = "Router", frozen, weakref, module = "conserve")]
pub(super) struct PyRouter {
    shell: Arc<Shell>,
}

impl PyRouter {
    pub(super) const fn shell(&self) -> &Arc<Shell> {
        &self.shell
    }
}

/// A worker as an argument: its id, or its name, which means the worker of that name that joined last.
#[derive(FromPyObject)]
pub(super) enum WorkerName {
    Id(i64),
    Name(String),
}

impl WorkerName {
    pub(super) fn find(&self, shell: &Shell) -> PyResult<WorkerId> {
        let snapshot = shell.router.snapshot(shell.clock.now());
        let called = snapshot.workers.iter().filter(|row| match self {
            Self::Id(id) => i64::from(row.worker.id.get()) == *id,
            Self::Name(name) => *row.worker.name == **name,
        });
        let latest = called.max_by_key(|row| (row.health != Health::Lost, row.worker.id));
        latest.map(|row| row.worker.id).ok_or_else(|| match self {
            Self::Id(id) => PyKeyError::new_err(format!("no worker has the id {id}")),
            Self::Name(name) => PyKeyError::new_err(format!("no worker is called {name}")),
        })
    }
}

#[pymethods]
#[expect(
    clippy::needless_pass_by_value,
    reason = "PyO3 extracts arguments to values"
)]
impl PyRouter {
    #[new]
    #[pyo3(signature = (
        prefillers = Vec::new(), decoders = Vec::new(), *, policy = PolicyKind::DEFAULT.as_str(), policy_options = None, low_watermark = 0.8,
        prefill_backlog_tokens = 65536, queue_limit = 1024, queue_timeout_s = 30.0, idle_timeout_s = Some(3600.0),
        evict_idle = true, tail_waits = false, evict_idle_below = 0.1, max_conversations = 4_000_000, block_size = 16, slo_ttft_ms = None, slo_tbt_ms = None,
        report_stale_s = 10.0, retention_ttl_s = None, clock = None, secret = None
    ), text_signature = "(prefillers=(), decoders=(), *, policy='follow-kv', policy_options=None, low_watermark=0.8, \
        prefill_backlog_tokens=65536, queue_limit=1024, queue_timeout_s=30.0, idle_timeout_s=3600.0, \
        evict_idle=True, tail_waits=False, evict_idle_below=0.1, max_conversations=4000000, block_size=16, slo_ttft_ms=None, slo_tbt_ms=None, \
        report_stale_s=10.0, retention_ttl_s=None, clock=None, secret=None)")]
    #[expect(
        clippy::too_many_arguments,
        reason = "one for each keyword of the Python class"
    )]
    fn new(
        py: Python<'_>,
        prefillers: Vec<Bound<'_, PyPrefiller>>,
        decoders: Vec<AnyWorker<'_>>,
        policy: &str,
        policy_options: Option<&Bound<'_, PyDict>>,
        low_watermark: f64,
        prefill_backlog_tokens: i64,
        queue_limit: i64,
        queue_timeout_s: f64,
        idle_timeout_s: Option<f64>,
        evict_idle: bool,
        tail_waits: bool,
        evict_idle_below: f64,
        max_conversations: i64,
        block_size: i64,
        slo_ttft_ms: Option<f64>,
        slo_tbt_ms: Option<f64>,
        report_stale_s: f64,
        retention_ttl_s: Option<f64>,
        clock: Option<&Bound<'_, PyManualClock>>,
        secret: Option<&[u8]>,
    ) -> PyResult<Self> {
        let millis = |key, limit: Option<f64>| limit.map(|ms| span(py, key, ms / 1e3)).transpose();
        let config = Config {
            low_watermark,
            prefill_backlog_tokens: tokens(py, "prefill_backlog_tokens", prefill_backlog_tokens)?,
            queue_limit: count(py, "queue_limit", queue_limit)?,
            queue_timeout: span(py, "queue_timeout_s", queue_timeout_s)?,
            idle_timeout: idle_timeout_s
                .map(|value| span(py, "idle_timeout_s", value))
                .transpose()?,
            evict_idle,
            tail_waits,
            evict_idle_below,
            max_conversations: count(py, "max_conversations", max_conversations)?,
            block_size: self::block_size(py, "block_size", block_size)?,
            report_stale_after: span(py, "report_stale_s", report_stale_s)?,
            retention: retention_ttl_s
                .map(|value| span(py, "retention_ttl_s", value))
                .transpose()?,
            policy: choice(py, policy, policy_options)?,
            slo_ttft: millis("slo_ttft_ms", slo_ttft_ms)?,
            slo_tbt: millis("slo_tbt_ms", slo_tbt_ms)?,
        };
        let queue_timeout = config.queue_timeout;
        let slo = Slo {
            ttft: config.slo_ttft,
            tbt: config.slo_tbt,
        };
        let metrics = Arc::new(Metrics::with_slo(slo));
        let identity = Arc::new(Identity::new(
            self::secret(py, secret)?,
            IdentityLimits::default(),
        ));
        let router = Router::new(config)
            .map_err(|error| config_error(py, &error))?
            .with_observer(Arc::clone(&identity) as _)
            .with_observer(Arc::clone(&metrics) as _);
        let clock = clock.map_or_else(Clock::machine, |clock| clock.get().clock());
        let router = Arc::new(router);
        let wakes = Arc::new(Wakes::default());
        let anonymous = identity.tenant(None);
        let shell = Shell {
            router,
            identity,
            anonymous,
            metrics,
            clock,
            wakes,
            queue_timeout,
        };
        let made = Self {
            shell: Arc::new(shell),
        };
        for worker in prefillers {
            made.join(py, AnyWorker::Prefiller(worker))?;
        }
        for worker in decoders {
            made.join(py, worker)?;
        }
        Ok(made)
    }

    /// The next turn of `conversation`, to be entered with `with` or `async with`.
    #[pyo3(signature = (conversation, /, *, prompt_tokens, tenant = None, timeout_s = None))]
    fn turn(
        &self,
        conversation: &Bound<'_, PyString>,
        prompt_tokens: i64,
        tenant: Option<&str>,
        timeout_s: Option<f64>,
    ) -> PyResult<PyTurnContext> {
        let py = conversation.py();
        let prompt = tokens(py, "prompt_tokens", prompt_tokens)?;
        let timeout = timeout_s
            .map(|value| span(py, "timeout_s", value))
            .transpose()?;
        let key = self.shell.key(&conversation.to_cow()?, tenant);
        Ok(PyTurnContext::new(
            Arc::clone(&self.shell),
            conversation.clone().unbind(),
            key,
            prompt,
            timeout,
        ))
    }

    /// Forget the conversation and free its blocks; False if it was not known.
    #[pyo3(signature = (conversation, /, *, tenant = None))]
    fn close(&self, py: Python<'_>, conversation: &str, tenant: Option<&str>) -> bool {
        let key = self.shell.key(conversation, tenant);
        self.shell.enter(py, |router, now| router.close(key, now))
    }

    /// Unpin the conversation, so that its next turn is placed afresh; False if it was not pinned.
    #[pyo3(signature = (conversation, /, *, tenant = None))]
    fn relocate(&self, py: Python<'_>, conversation: &str, tenant: Option<&str>) -> bool {
        let key = self.shell.key(conversation, tenant);
        self.shell
            .enter(py, |router, now| router.relocate(key, now))
    }

    /// Free conversations that were idle longer than `idle_timeout_s`, and say how many and how much.
    fn sweep(&self, py: Python<'_>) -> PySwept {
        // A million idle conversations take a while: the GIL is free meanwhile.
        let swept = py.detach(|| self.shell.router.sweep(self.shell.clock.now()));
        self.shell.wakes.deliver(py);
        PySwept::from(&swept)
    }

    /// Expire what waited in line too long and let in what fits. Doors call this a few times a
    /// second.
    fn tick(&self, py: Python<'_>) {
        self.shell.enter(py, Router::tick);
    }

    /// Raise AssertionError unless the books balance; for tests, at a moment when no call is under
    /// way.
    fn check(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.shell.router.check())
            .map_err(|wrong| PyAssertionError::new_err(wrong.to_string()))
    }

    /// Add a worker; its id, which is never used again. Raises ConfigError if it cannot join.
    #[pyo3(signature = (worker, /))]
    fn join(&self, py: Python<'_>, worker: AnyWorker<'_>) -> PyResult<u16> {
        let spec = worker.spec(py)?;
        match self.shell.enter(py, |router, now| router.join(spec, now)) {
            Ok(id) => Ok(id.get()),
            Err(error) => Err(join_error(py, &error)),
        }
    }

    /// No new conversations for this worker; those pinned to it move at their next turn. KeyError if
    /// unknown.
    #[pyo3(signature = (worker, /))]
    fn drain(&self, py: Python<'_>, worker: WorkerName) -> PyResult<()> {
        let worker = worker.find(&self.shell)?;
        self.shell
            .enter(py, |router, now| router.drain(worker, now));
        Ok(())
    }

    /// Take back `drain`.
    #[pyo3(signature = (worker, /))]
    fn undrain(&self, py: Python<'_>, worker: WorkerName) -> PyResult<()> {
        let worker = worker.find(&self.shell)?;
        self.shell
            .enter(py, |router, now| router.undrain(worker, now));
        Ok(())
    }

    /// The worker is gone with its KV: its conversations are unpinned and relocate at their next
    /// turn.
    #[pyo3(signature = (worker, /, *, reason = "asked"))]
    fn lose(&self, py: Python<'_>, worker: WorkerName, reason: &str) -> PyResult<()> {
        let worker = worker.find(&self.shell)?;
        let all = [
            LostReason::Refused,
            LostReason::Silent,
            LostReason::Restarted,
            LostReason::Asked,
        ];
        let why = all
            .into_iter()
            .find(|why| why.as_str() == reason)
            .ok_or_else(|| {
                let all = all.map(LostReason::as_str).join(", ");
                PyValueError::new_err(format!("reason = {reason:?} is not one of {all}"))
            })?;
        self.shell
            .enter(py, |router, now| router.lose(worker, why, now));
        Ok(())
    }

    /// While suspected (it did not answer in time, say), a worker gets no new conversations.
    #[pyo3(signature = (worker, suspected, /))]
    fn suspect(&self, py: Python<'_>, worker: WorkerName, suspected: bool) -> PyResult<()> {
        let worker = worker.find(&self.shell)?;
        self.shell
            .enter(py, |router, now| router.suspect(worker, suspected, now));
        Ok(())
    }

    /// Take in what a worker said about itself. `kv_usage` is the share of its KV cache in use, 0 to
    /// 1.
    #[pyo3(signature = (
        worker, /, *, kv_blocks = None, block_size = None, kv_usage = None, running = None, waiting = None,
        max_model_len = None
    ))]
    #[expect(
        clippy::too_many_arguments,
        reason = "one for each keyword of the Python method"
    )]
    fn observe(
        &self,
        py: Python<'_>,
        worker: WorkerName,
        kv_blocks: Option<i64>,
        block_size: Option<i64>,
        kv_usage: Option<f64>,
        running: Option<u32>,
        waiting: Option<u32>,
        max_model_len: Option<i64>,
    ) -> PyResult<()> {
        if let Some(usage) = kv_usage.filter(|usage| !(0.0..=1.0).contains(usage)) {
            return Err(out_of_range(py, "kv_usage", &usage.to_string(), "0 to 1"));
        }
        let report = WorkerReport {
            kv_blocks: optional(py, "kv_blocks", kv_blocks, blocks)?,
            block_size: optional(py, "block_size", block_size, self::block_size)?,
            kv_usage,
            running,
            waiting,
            max_model_len: optional(py, "max_model_len", max_model_len, tokens)?,
            ..WorkerReport::default()
        };
        self.take_in(py, &worker, &report)
    }

    /// Like `observe`, from a worker's Prometheus page (vLLM's metric names).
    #[pyo3(signature = (worker, text, /))]
    fn observe_metrics(&self, py: Python<'_>, worker: WorkerName, text: &[u8]) -> PyResult<()> {
        self.take_in(py, &worker, &WorkerReport::parse(text))
    }

    /// Take in one batch of a worker's KV events (vLLM's `EventBatch` in MessagePack), which it numbers from 0.
    ///
    /// Gives None, or the number from which on batches are missing: this one is not counted then; bring those first, or
    /// say `give_up_events`. KeyError for an unknown worker, ValueError for what is no batch.
    #[pyo3(signature = (worker, number, batch, /))]
    fn observe_events(
        &self,
        py: Python<'_>,
        worker: WorkerName,
        number: u64,
        batch: &[u8],
    ) -> PyResult<Option<u64>> {
        let worker = worker.find(&self.shell)?;
        let heard = self
            .shell
            .enter(py, |router, now| router.hear(worker, number, batch, now));
        match heard.map_err(|malformed| PyValueError::new_err(malformed.to_string()))? {
            Heard::Counted | Heard::Known => Ok(None),
            Heard::Missing { from } => Ok(Some(from)),
        }
    }

    /// Batches of KV events before `number` are lost: what the worker's cache holds is unknown until it is emptied.
    ///
    /// `KeyError` for an unknown worker.
    #[pyo3(signature = (worker, number, /))]
    fn give_up_events(&self, worker: WorkerName, number: u64) -> PyResult<()> {
        let worker = worker.find(&self.shell)?;
        self.shell.router.give_up_events(worker, number);
        Ok(())
    }

    /// Charge the turns that prefill and those that decode at a worker now for energy it used, each
    /// an equal part.
    ///
    /// Gives the microjoules that nobody was charged, of both, to be charged later. KeyError for an
    /// unknown worker.
    #[pyo3(signature = (worker, /, *, prefill_uj = 0, decode_uj = 0))]
    fn charge(
        &self,
        py: Python<'_>,
        worker: i64,
        prefill_uj: i64,
        decode_uj: i64,
    ) -> PyResult<(u64, u64)> {
        let id = WorkerName::Id(worker).find(&self.shell)?;
        let joules = |key, value: i64| {
            u64::try_from(value).map_err(|_| out_of_range(py, key, &value.to_string(), "0 or more"))
        };
        let (prefill, decode) = (
            joules("prefill_uj", prefill_uj)?,
            joules("decode_uj", decode_uj)?,
        );
        let (router, now) = (&self.shell.router, self.shell.clock.now());
        Ok((
            router.charge(id, Doing::Prefill, prefill, now),
            router.charge(id, Doing::Decode, decode, now),
        ))
    }

    /// What is known about a conversation, or None.
    #[pyo3(signature = (conversation, /, *, tenant = None))]
    fn conversation(&self, conversation: &str, tenant: Option<&str>) -> Option<PyConversationView> {
        let key = self.shell.key(conversation, tenant);
        self.shell
            .router
            .conversation(key)
            .map(|view| PyConversationView::from(&view))
    }

    /// The fleet and the line as they are now. Cheap enough to poll.
    fn snapshot(&self) -> PySnapshot {
        PySnapshot::from(self.shell.router.snapshot(self.shell.clock.now()))
    }

    /// The same, with counters and histograms since the start, as Prometheus text.
    fn metrics(&self) -> String {
        self.shell
            .metrics
            .render(&self.shell.router.snapshot(self.shell.clock.now()))
    }

    /// The router's clock, seconds since its origin.
    #[getter]
    fn now_s(&self) -> f64 {
        seconds(self.shell.clock.now())
    }

    fn __repr__(&self) -> String {
        let snapshot = self.shell.router.snapshot(self.shell.clock.now());
        format!(
            "<Router {} workers, {} conversations>",
            snapshot.workers.len(),
            snapshot.conversations
        )
    }
}

impl PyRouter {
    fn take_in(&self, py: Python<'_>, worker: &WorkerName, report: &WorkerReport) -> PyResult<()> {
        let worker = worker.find(&self.shell)?;
        self.shell
            .enter(py, |router, now| router.observe(worker, report, now));
        Ok(())
    }
}

/// The key of the identity hash: what the user gave, or the system's randomness.
fn secret(py: Python<'_>, given: Option<&[u8]>) -> PyResult<[u8; 16]> {
    let key = match given {
        Some(given) => given.to_vec(),
        None => py.import("os")?.call_method1("urandom", (16,))?.extract()?,
    };
    let length = format!("{} bytes", key.len());
    key.try_into()
        .map_err(|_| out_of_range(py, "secret", &length, "16 bytes"))
}
