//! `Dispatcher`: what all requests of a door share.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use super::convert::{Headers, count, span};
use super::dispatch::PyDispatch;
use super::errors::{config_error, out_of_range};
use super::router::PyRouter;
use super::shell::Shell;
use super::views::PyConversationView;
use crate::dispatch::{Connector, DispatchConfig, Dispatcher, Endpoint, Peer, Peers, Secret};

/// What to send to whom for one OpenAI request, when to retry, what to tell the client: no
/// sockets, no waiting.
#[pyclass(name = "Dispatcher", frozen, weakref, module = "conserve._core")]
pub(super) struct PyDispatcher {
    shell: Arc<Shell>,
    dispatcher: Dispatcher,
}

#[cfg(feature = "proxy")]
impl PyDispatcher {
    pub(super) const fn shell(&self) -> &Arc<Shell> {
        &self.shell
    }

    pub(super) const fn core(&self) -> &Dispatcher {
        &self.dispatcher
    }
}

#[pymethods]
#[expect(
    clippy::needless_pass_by_value,
    reason = "PyO3 extracts arguments to values"
)]
impl PyDispatcher {
    #[new]
    #[pyo3(signature = (
        router, *, connector = "nixl", shape = None, retain = false, peers = None, max_body_bytes = 33_554_432, max_answer_bytes = 67_108_864,
        max_depth = 512, max_messages = 65_536, max_conversation_id_bytes = 256,
        conversation_headers = vec!["x-conversation-id".to_owned(), "x-session-id".to_owned()], retries = 2,
        queue_timeout_s = None, prefill_timeout_s = 120.0, first_byte_timeout_s = 120.0, answer_timeout_s = 600.0,
        idle_timeout_s = 60.0, connect_timeout_s = 2.0, lease_s = 25.0, forward_authorization = false,
        worker_key = None, fingerprint = true
    ), text_signature = "(router, *, connector='nixl', shape=None, retain=False, peers=None, max_body_bytes=33554432, \
        max_answer_bytes=67108864, max_depth=512, max_messages=65536, max_conversation_id_bytes=256, \
        conversation_headers=('x-conversation-id', 'x-session-id'), retries=2, queue_timeout_s=None, \
        prefill_timeout_s=120.0, first_byte_timeout_s=120.0, answer_timeout_s=600.0, idle_timeout_s=60.0, \
        connect_timeout_s=2.0, lease_s=25.0, forward_authorization=False, worker_key=None, fingerprint=True)")]
    #[expect(
        clippy::too_many_arguments,
        reason = "one for each keyword of the Python class"
    )]
    fn new(
        py: Python<'_>,
        router: &Bound<'_, PyRouter>,
        connector: &str,
        shape: Option<(String, Option<String>, Option<String>)>,
        retain: bool,
        peers: Option<BTreeMap<String, (String, String)>>,
        max_body_bytes: i64,
        max_answer_bytes: i64,
        max_depth: i64,
        max_messages: i64,
        max_conversation_id_bytes: i64,
        conversation_headers: Vec<String>,
        retries: i64,
        queue_timeout_s: Option<f64>,
        prefill_timeout_s: f64,
        first_byte_timeout_s: f64,
        answer_timeout_s: f64,
        idle_timeout_s: f64,
        connect_timeout_s: f64,
        lease_s: f64,
        forward_authorization: bool,
        worker_key: Option<&str>,
        fingerprint: bool,
    ) -> PyResult<Self> {
        let shell = Arc::clone(router.get().shell());
        let queue_timeout = queue_timeout_s
            .map(|value| span(py, "queue_timeout_s", value))
            .transpose()?;
        let config = DispatchConfig {
            connector: match shape {
                Some((prefill, decode, retain)) => Connector::declared(prefill, decode, retain),
                None => Connector::from_name(connector).ok_or_else(|| {
                    out_of_range(py, "connector", connector, "nixl, mooncake, example, none")
                })?,
            },
            retain,
            peers: peers.into_iter().flatten().map(peer).collect::<Peers>(),
            max_body_bytes: count(py, "max_body_bytes", max_body_bytes)?,
            max_answer_bytes: count(py, "max_answer_bytes", max_answer_bytes)?,
            max_depth: count(py, "max_depth", max_depth)?,
            max_messages: count(py, "max_messages", max_messages)?,
            max_conversation_id_bytes: count(
                py,
                "max_conversation_id_bytes",
                max_conversation_id_bytes,
            )?,
            conversation_headers,
            retries: u32::try_from(retries)
                .map_err(|_| out_of_range(py, "retries", &retries.to_string(), "0 to 10"))?,
            queue_timeout: queue_timeout.unwrap_or(shell.queue_timeout),
            prefill_timeout: span(py, "prefill_timeout_s", prefill_timeout_s)?,
            first_byte_timeout: span(py, "first_byte_timeout_s", first_byte_timeout_s)?,
            answer_timeout: span(py, "answer_timeout_s", answer_timeout_s)?,
            idle_timeout: span(py, "idle_timeout_s", idle_timeout_s)?,
            connect_timeout: span(py, "connect_timeout_s", connect_timeout_s)?,
            lease: span(py, "lease_s", lease_s)?,
            forward_authorization,
            worker_key: worker_key.map(Secret::new),
            fingerprint,
        };
        let dispatcher = Dispatcher::new(
            Arc::clone(&shell.router),
            Arc::clone(&shell.identity),
            config,
        )
        .map_err(|error| config_error(py, &error))?;
        Ok(Self { shell, dispatcher })
    }

    /// A request that came to `path` (`/v1/chat/completions` or `/v1/completions`); ValueError for
    /// others.
    #[pyo3(signature = (path, headers, body, /))]
    fn open(&self, path: &str, headers: Headers, body: Bytes) -> PyResult<PyDispatch> {
        let endpoint = Endpoint::from_path(path).ok_or_else(|| {
            PyValueError::new_err(format!(
                "{path:?} is not /v1/chat/completions or /v1/completions"
            ))
        })?;
        let size = body.len();
        let dispatch = self
            .dispatcher
            .open(endpoint, headers.0, body, self.shell.clock.now());
        Ok(PyDispatch::new(Arc::clone(&self.shell), dispatch, size))
    }

    /// The conversation of the caller that sent `headers`, by the id it uses or by its key
    /// (`ConversationView.key`).
    #[pyo3(signature = (conversation, headers, /))]
    fn conversation(&self, conversation: &str, headers: Headers) -> Option<PyConversationView> {
        self.dispatcher
            .locate(&headers.0, conversation.as_bytes())
            .map(|located| PyConversationView::from(&located.view))
    }

    /// The key of what the caller that sent `headers` calls `conversation`, in the log too, whether
    /// there is such a conversation now or not.
    #[pyo3(signature = (conversation, headers, /))]
    fn key_of(&self, conversation: &str, headers: Headers) -> String {
        let key = (self.dispatcher).key_of(&headers.0, conversation.as_bytes());
        key.to_string()
    }

    /// Like `Router.close`, for the caller that sent `headers`.
    #[pyo3(signature = (conversation, headers, /))]
    fn close_conversation(&self, py: Python<'_>, conversation: &str, headers: Headers) -> bool {
        match self.dispatcher.locate(&headers.0, conversation.as_bytes()) {
            Some(located) => self
                .shell
                .enter(py, |router, now| router.close(located.key, now)),
            None => false,
        }
    }

    /// Refuse requests for other models with 404; an empty list lets every name pass, as at the
    /// start.
    #[pyo3(signature = (models, /))]
    fn set_models(&self, models: Vec<String>) {
        self.dispatcher.set_models(models);
    }

    /// What was done beyond the plain way (retries, refusals, cut streams), counted since the start.
    #[getter]
    fn counters(&self) -> BTreeMap<&'static str, u64> {
        self.dispatcher.counters().into_iter().collect()
    }

    fn __repr__(&self) -> String {
        format!("<Dispatcher {:?}>", self.dispatcher.config().connector)
    }
}

fn peer((url, (bootstrap_addr, engine_id)): (String, (String, String))) -> (String, Peer) {
    (
        url,
        Peer {
            bootstrap_addr,
            engine_id,
        },
    )
}
