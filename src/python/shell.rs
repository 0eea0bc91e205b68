//! What all Python objects of one router share: the core, its time, its names and its wake-ups.

use std::sync::Arc;
use std::time::Duration;

use pyo3::prelude::*;

use super::clock::Clock;
use super::wake::Wakes;
use crate::identity::Identity;
use crate::metrics::Metrics;
use crate::router::Router;
use crate::units::{ConversationKey, TenantKey, Timestamp};

pub(super) struct Shell {
    pub(super) router: Arc<Router>,
    pub(super) identity: Arc<Identity>,
    /// The tenant of callers that name none.
    pub(super) anonymous: TenantKey,
    pub(super) metrics: Arc<Metrics>,
    pub(super) clock: Clock,
    pub(super) wakes: Arc<Wakes>,
    pub(super) queue_timeout: Duration,
}

impl Shell {
    /// Lets `work` use the core, then delivers the wake-ups that it caused.
    pub(super) fn enter<T>(&self, py: Python<'_>, work: impl FnOnce(&Router, Timestamp) -> T) -> T {
        let done = work(&self.router, self.clock.now());
        self.wakes.deliver(py);
        done
    }

    pub(super) fn key(&self, conversation: &str, tenant: Option<&str>) -> ConversationKey {
        let tenant = tenant.map_or(self.anonymous, |name| {
            self.identity.tenant(Some(name.as_bytes()))
        });
        self.identity.explicit(tenant, conversation.as_bytes())
    }
}
