//! What all requests share: the router, the settings, the models served, the ratio of tokens to bytes, counters.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwap;
use bytes::Bytes;

use super::arrival::Arrival;
use super::config::DispatchConfig;
use super::estimate::Ratio;
use super::headers::{self, Header};
use super::peek::{self, Endpoint};
use super::refusal::Refusal;
use super::turn::Dispatch;
use crate::error::ConfigError;
use crate::identity::{ConversationKey, Identity};
use crate::router::{ConversationView, Router};
use crate::units::Timestamp;

/// Serves turns over HTTP, one [`Dispatch`] for each request.
///
/// ```
/// use std::sync::Arc;
/// use conserve::config::Config;
/// use conserve::dispatch::{Action, DispatchConfig, Dispatcher, Endpoint};
/// use conserve::identity::{Identity, IdentityLimits};
/// use conserve::router::Router;
/// use conserve::units::Timestamp;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let identity = Arc::new(Identity::new([7; 16], IdentityLimits::default()));
/// let router = Router::new(Config::default())?.with_observer(identity.clone());
/// let dispatcher = Dispatcher::new(Arc::new(router), identity, DispatchConfig::default())?;
/// let mut turn = dispatcher.open(Endpoint::Chat, Vec::new(), "not JSON".into(), Timestamp(0));
/// let Action::Reply { status, body, .. } = turn.start(Timestamp(0)) else { unreachable!() };
/// assert_eq!(status, 400);
/// assert!(body.starts_with(br#"{"error":{"message":"#));
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Dispatcher {
    shared: Arc<Shared>,
}

/// A conversation that a caller asked for.
#[derive(Debug)]
pub struct Located {
    /// The router's key for it.
    pub key: ConversationKey,
    /// How it stands, with the key as the caller is told it.
    pub view: ConversationView,
}

pub(crate) struct Shared {
    pub(crate) router: Arc<Router>,
    pub(crate) identity: Arc<Identity>,
    pub(crate) config: DispatchConfig,
    pub(crate) ratio: Ratio,
    pub(crate) counters: Counters,
    /// Empty while unknown.
    models: ArcSwap<BTreeSet<String>>,
    serial: AtomicU64,
}

impl Dispatcher {
    /// A dispatcher for this router. The identity must be an observer of the router, so that it forgets what is closed.
    ///
    /// # Errors
    /// Names the setting outside its range.
    pub fn new(
        router: Arc<Router>,
        identity: Arc<Identity>,
        config: DispatchConfig,
    ) -> Result<Self, ConfigError> {
        config.validate()?;
        let shared = Shared {
            router,
            identity,
            config,
            ratio: Ratio::new(),
            counters: Counters::default(),
            models: ArcSwap::default(),
            serial: AtomicU64::new(0),
        };
        Ok(Self {
            shared: Arc::new(shared),
        })
    }

    /// A client's request. Headers have lower-case names; `now` is when its body was complete.
    #[must_use]
    pub fn open(
        &self,
        endpoint: Endpoint,
        headers: Vec<Header>,
        body: Bytes,
        now: Timestamp,
    ) -> Dispatch {
        self.open_arrived(endpoint, headers, body, self.arrival(), now)
    }

    /// To be told how a body grows, for a door that gets it in pieces.
    #[must_use]
    pub fn arrival(&self) -> Arrival {
        Arrival::new(self.shared.config.max_depth)
    }

    /// As `open`, for a body whose arrival was told.
    #[must_use]
    pub fn open_arrived(
        &self,
        endpoint: Endpoint,
        headers: Vec<Header>,
        body: Bytes,
        arrival: Arrival,
        now: Timestamp,
    ) -> Dispatch {
        let shared = Arc::clone(&self.shared);
        Dispatch::new(shared, endpoint, headers, body, arrival, now)
    }

    /// The models that the workers serve; others are refused with 404. An empty set lets every name pass.
    pub fn set_models(&self, models: impl IntoIterator<Item = String>) {
        self.shared
            .models
            .store(Arc::new(models.into_iter().collect()));
    }

    /// The conversation that a caller means by `id`: its own name for it, or the key that it was told in
    /// `x-conserve-conversation`. A key told to another tenant names nothing (I9).
    #[must_use]
    pub fn locate(&self, headers: &[Header], id: &[u8]) -> Option<Located> {
        let tenant = self.shared.identity.tenant(headers::credential(headers));
        let found = |key: ConversationKey| {
            let mut view = self.shared.router.conversation(key)?;
            view.key = key.seen_by(tenant);
            Some(Located { key, view })
        };
        if let Some(named) = found(self.shared.identity.explicit(tenant, id)) {
            return Some(named);
        }
        let told: ConversationKey = std::str::from_utf8(id)
            .ok()
            .filter(|text| text.len() == 32)?
            .parse()
            .ok()?;
        found(told.seen_by(tenant))
    }

    /// The key by which a caller and the log know the conversation that the caller calls `id`, whether there is one now or not.
    #[must_use]
    pub fn key_of(&self, headers: &[Header], id: &[u8]) -> ConversationKey {
        let tenant = self.shared.identity.tenant(headers::credential(headers));
        self.shared.identity.explicit(tenant, id).seen_by(tenant)
    }

    /// The answer to a request whose body is above `max_body_bytes`, for doors that stop reading there.
    #[must_use]
    pub fn too_large(&self, bytes: usize) -> Refusal {
        peek::too_large(bytes, self.shared.config.max_body_bytes)
    }

    /// The settings.
    #[must_use]
    pub fn config(&self) -> &DispatchConfig {
        &self.shared.config
    }

    /// The router.
    #[must_use]
    pub fn router(&self) -> &Arc<Router> {
        &self.shared.router
    }

    /// What was counted, by name.
    #[must_use]
    pub fn counters(&self) -> [(&'static str, u64); 8] {
        self.shared.counters.read()
    }
}

impl Shared {
    pub(crate) fn serves(&self, model: &[u8]) -> bool {
        let models = self.models.load();
        models.is_empty() || std::str::from_utf8(model).is_ok_and(|model| models.contains(model))
    }

    pub(crate) fn models(&self) -> String {
        self.models
            .load()
            .iter()
            .map(String::as_str)
            .collect::<Vec<_>>()
            .join(", ")
    }

    /// A number that no other request of this process has.
    pub(crate) fn serial(&self) -> u64 {
        // Relaxed: a counter; guards no memory.
        self.serial.fetch_add(1, Ordering::Relaxed)
    }
}

/// What the dispatcher did beyond the plain way; the router's events count the rest.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) requests_refused: Count,
    pub(crate) prefills_retried: Count,
    pub(crate) prefills_on_decoder: Count,
    pub(crate) handoffs_recomputed: Count,
    pub(crate) handoffs_expired: Count,
    pub(crate) handoffs_malformed: Count,
    pub(crate) decodes_retried: Count,
    pub(crate) streams_cut: Count,
}

impl Counters {
    fn read(&self) -> [(&'static str, u64); 8] {
        [
            ("requests_refused", self.requests_refused.get()),
            ("prefills_retried", self.prefills_retried.get()),
            ("prefills_on_decoder", self.prefills_on_decoder.get()),
            ("handoffs_recomputed", self.handoffs_recomputed.get()),
            ("handoffs_expired", self.handoffs_expired.get()),
            ("handoffs_malformed", self.handoffs_malformed.get()),
            ("decodes_retried", self.decodes_retried.get()),
            ("streams_cut", self.streams_cut.get()),
        ]
    }
}

#[derive(Debug, Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    pub(crate) fn add(&self) {
        // Relaxed: a counter; guards no memory.
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
