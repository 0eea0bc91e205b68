//! What all connections of one door share.

use std::sync::Arc;

use tokio::sync::{Notify, watch};

use super::buffers::Buffers;
use super::clock::Clock;
use super::config::DoorConfig;
use super::log::Log;
use super::pool::Pool;
use super::stats::Stats;
use crate::dispatch::Dispatcher;

use tokio_rustls::TlsConnector;

/// How far the door is on its way to the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Stage {
    /// Every request is served.
    Serving,
    /// New turns are refused.
    Draining,
    /// Those under way are ended with an error.
    Ending,
    /// Connections are closed.
    Stopped,
}

pub(crate) struct Shared {
    pub(crate) dispatcher: Dispatcher,
    pub(crate) config: DoorConfig,
    pub(crate) clock: Clock,
    pub(crate) stats: Stats,
    pub(crate) log: Log,
    pub(crate) pool: Pool,
    pub(crate) buffers: Arc<Buffers>,
    pub(crate) tls: TlsConnector,
    pub(crate) stage: watch::Sender<Stage>,
    /// Told when the last request left.
    pub(crate) idle: Notify,
}

impl Shared {
    pub(crate) fn new(
        dispatcher: Dispatcher,
        config: DoorConfig,
        clock: Clock,
        tls: TlsConnector,
    ) -> Self {
        Self {
            log: Log::new(config.verbose),
            dispatcher,
            config,
            clock,
            stats: Stats::new(),
            pool: Pool::default(),
            buffers: Arc::default(),
            tls,
            stage: watch::Sender::new(Stage::Serving),
            idle: Notify::new(),
        }
    }

    /// Goes on to `stage`, never back.
    pub(crate) fn advance(&self, stage: Stage) {
        self.stage.send_if_modified(|now| {
            let is_later = stage > *now;
            if is_later {
                *now = stage;
            }
            is_later
        });
    }

    pub(crate) fn is_draining(&self) -> bool {
        *self.stage.borrow() > Stage::Serving
    }

    /// Done once `stage` is reached.
    pub(crate) fn reached(&self, stage: Stage) -> impl Future<Output = ()> + Send + use<> {
        let mut receiver = self.stage.subscribe();
        async move {
            // An error means that the door itself is gone.
            let _ = receiver.wait_for(|now| *now >= stage).await;
        }
    }

    /// Done once no request is being served.
    pub(crate) async fn emptied(&self) {
        while self.stats.in_flight() > 0 {
            self.idle.notified().await;
        }
    }
}
