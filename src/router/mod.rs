//! Composes the parts: begin, settle, observe, sweep, close.
//!
//! Promises: every turn is settled once: finish, fail, or drop (I7). Turn n takes no lock: one map
//! read, one compare-exchange on its conversation, one on its decoder's books.
//! Leaves to others: moving bytes (`dispatch` and the doors), reading a clock.

mod engine;
mod evict;
mod grant;
mod helpers;
mod placing;
mod progress;
mod retain;
mod settle;
mod snapshot;
mod ticket;
mod turn;
mod upkeep;
mod waiting;

use std::sync::Arc;
use std::time::Duration;

pub(crate) use self::engine::Engine;
pub(crate) use self::grant::Grant;
pub use self::progress::Stalled;
pub use self::snapshot::{ConversationView, Discrepancy, Snapshot, Totals, WorkerRow};
pub use self::ticket::Ticket;
pub use self::turn::{Route, Turn};
pub use self::upkeep::Swept;
pub use crate::activity::{Doing, Work};
use crate::config::Config;
use crate::error::{ConfigError, JoinError, Rejected};
pub use crate::event::{FailReason, LostReason, Observer, Reason, TurnKind, Usage};
use crate::fleet::WorkerSpec;
pub use crate::fleet::{Health, Role, WorkerRef};
use crate::kv_events::Malformed;
pub use crate::pace::Gaps;
use crate::placement::Policy;
use crate::pulse::Pulse;
use crate::report::WorkerReport;
pub use crate::residency::Heard;
use crate::sync::{STRIPES, stripe};
#[cfg(feature = "sim")]
use crate::units::Blocks;
use crate::units::{ConversationKey, Timestamp, Tokens, WorkerId};

/// A turn that wants to begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TurnRequest {
    /// The conversation.
    pub key: ConversationKey,
    /// Tokens of the prompt, as well as is known.
    pub prompt_tokens: Tokens,
    /// How long to stand in the line; `None`: answer now.
    pub wait: Option<Duration>,
}

/// A turn that may begin now or later.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "most run at once: a box would be an allocation for each of them"
)]
pub enum Begin {
    /// It runs.
    Started(Turn),
    /// It stands in the line.
    Waiting(Ticket),
}

/// Keeps the engine alive for its turns. One for each stripe of threads, so that threads do
/// not count references on the same cache line.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Anchor(Arc<Engine>);

impl std::ops::Deref for Anchor {
    type Target = Engine;

    fn deref(&self) -> &Engine {
        &self.0
    }
}

/// Decides where conversations live. Every method takes `&self` and may be called from any thread.
///
/// See the [crate] for an example.
#[derive(Debug)]
pub struct Router {
    engine: Arc<Engine>,
    anchors: Box<[Arc<Anchor>]>,
}

impl Router {
    /// A router without workers.
    ///
    /// # Errors
    /// Names the first setting outside its range.
    pub fn new(config: Config) -> Result<Self, ConfigError> {
        let policy = crate::placement::policy(config.policy);
        Self::with_policy(config, policy)
    }

    /// A router with a policy of your own.
    ///
    /// # Errors
    /// Names the first setting outside its range.
    pub fn with_policy(config: Config, policy: Box<dyn Policy>) -> Result<Self, ConfigError> {
        config.validate()?;
        let engine = Arc::new(Engine::new(config, policy));
        let anchor = |_| Arc::new(Anchor(Arc::clone(&engine)));
        let anchors = (0..STRIPES).map(anchor).collect();
        Ok(Self { engine, anchors })
    }

    /// Adds somebody who hears every event from now on.
    #[must_use]
    pub fn with_observer(self, observer: Arc<dyn Observer>) -> Self {
        self.engine.observers.add(observer);
        self
    }

    fn anchor(&self) -> &Arc<Anchor> {
        &self.anchors[stripe()]
    }

    /// The settings.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.engine.config
    }

    /// Adds a worker; those who wait may be placed on it at once.
    ///
    /// # Errors
    /// If the URL or capacity is invalid, the URL is in the fleet already, or all ids were used.
    pub fn join(&self, spec: WorkerSpec, now: Timestamp) -> Result<WorkerId, JoinError> {
        self.engine.join(spec, now)
    }

    /// Begins a turn: it runs at once, or stands in the line if it is willing to wait.
    ///
    /// # Errors
    /// Says why the turn cannot run; then nothing is booked for it.
    pub fn begin(&self, request: &TurnRequest, now: Timestamp) -> Result<Begin, Rejected> {
        let anchor = self.anchor();
        self.engine.begin(
            request,
            now,
            |grant| Begin::Started(Turn::new(Arc::clone(anchor), grant)),
            |place| Begin::Waiting(Ticket::new(Arc::clone(anchor), place)),
        )
    }

    /// Ends a conversation and frees its blocks; turns in flight give theirs back when they settle,
    /// turns that wait are refused. `false` if there is no such conversation.
    #[expect(clippy::must_use_candidate, reason = "called for its effect")]
    pub fn close(&self, key: ConversationKey, now: Timestamp) -> bool {
        self.engine.close(key, now)
    }

    /// Gives up the pin of a conversation, so that its next turn is placed afresh. `false` if it
    /// has none.
    #[expect(clippy::must_use_candidate, reason = "called for its effect")]
    pub fn relocate(&self, key: ConversationKey, now: Timestamp) -> bool {
        self.engine.relocate(key, now)
    }

    /// Closes conversations that were idle for longer than the idle timeout.
    #[expect(clippy::must_use_candidate, reason = "called for its effect")]
    pub fn sweep(&self, now: Timestamp) -> Swept {
        self.engine.sweep(now)
    }

    /// A worker gets no new conversation; those pinned to it move at their next turn.
    pub fn drain(&self, worker: WorkerId, now: Timestamp) {
        self.engine.set_draining(worker, true, now);
    }

    /// Takes [`Router::drain`] back.
    pub fn undrain(&self, worker: WorkerId, now: Timestamp) {
        self.engine.set_draining(worker, false, now);
    }

    /// A worker is gone for good; if it comes back it joins as a new one.
    pub fn lose(&self, worker: WorkerId, why: LostReason, now: Timestamp) {
        self.engine.lose(worker, why, now);
    }

    /// A worker is doubted (it gets no new conversation) or trusted again.
    pub fn suspect(&self, worker: WorkerId, suspect: bool, now: Timestamp) {
        self.engine.set_suspect(worker, suspect, now);
    }

    /// Takes over what a worker says about itself.
    pub fn observe(&self, worker: WorkerId, report: &WorkerReport, now: Timestamp) {
        self.engine.observe(worker, report, now);
    }

    /// Takes in one batch of a worker's KV events, which the worker numbers from 0. One that is
    /// [`Heard::Missing`] others is not counted: bring those first, or [`Router::give_up_events`].
    ///
    /// # Errors
    /// The batch cannot be read; it is not counted.
    pub fn hear(
        &self,
        worker: WorkerId,
        number: u64,
        batch: &[u8],
        now: Timestamp,
    ) -> Result<Heard, Malformed> {
        self.engine.hear(worker, number, batch, now)
    }

    /// What [`Router::hear`] makes of a batch, for a worker that is simulated: these conversations lost these blocks.
    #[cfg(feature = "sim")]
    pub(crate) fn hear_evictions(
        &self,
        worker: WorkerId,
        lost: impl IntoIterator<Item = (ConversationKey, Blocks)>,
        now: Timestamp,
    ) {
        if let Some(known) = self.engine.fleet.get(worker) {
            known.note_told_evictions();
            self.engine.evicted(worker, lost, now);
        }
    }

    /// The batches of a worker's KV events before `number` are lost: what its cache holds is unknown
    /// until it is emptied.
    pub fn give_up_events(&self, worker: WorkerId, number: u64) {
        self.engine.give_up_events(worker, number);
    }

    /// Share of the prompt tokens computed in the last two minutes, by all workers, that an earlier
    /// turn had computed; `None` if none were computed. A few loads.
    #[must_use]
    pub fn recomputed_share(&self, now: Timestamp) -> Option<f64> {
        self.engine.recent.share_again(now)
    }

    /// Charges the turns that do this at a worker now, in equal parts, for energy it used; the
    /// microjoules that nobody was charged, to be charged later. Their conversations are told at
    /// the end of the task.
    #[must_use]
    pub fn charge(&self, worker: WorkerId, doing: Doing, microjoules: u64, now: Timestamp) -> u64 {
        self.engine.charge(worker, doing, microjoules, now)
    }

    /// What is known of a conversation.
    #[must_use]
    pub fn conversation(&self, key: ConversationKey) -> Option<ConversationView> {
        self.engine.conversation(key)
    }

    /// The state of the whole router in numbers.
    #[must_use]
    pub fn snapshot(&self, now: Timestamp) -> Snapshot {
        self.engine.snapshot(now)
    }

    /// Refuses those whose time in the line is up, and serves those who can be. Call it each second or more often: a longer
    /// pause is taken for a stop of the process, and handoffs read right after it count as old as the stop.
    pub fn tick(&self, now: Timestamp) {
        self.engine.pulse.beat(now);
        self.engine.tick(now);
    }

    #[cfg(all(test, not(loom)))]
    pub(crate) fn engine(&self) -> &Engine {
        &self.engine
    }

    /// The beats of this process.
    pub(crate) fn pulse(&self) -> &Pulse {
        &self.engine.pulse
    }

    /// Whether a worker is gone, or was doubted after `since` or before and still is.
    pub(crate) fn doubted_since(&self, worker: WorkerId, since: Timestamp) -> bool {
        self.engine
            .fleet
            .get(worker)
            .is_none_or(|worker| worker.doubted.get() > since.0 || worker.health() != Health::Ready)
    }

    /// What looked like a failed request of the worker was none.
    pub(crate) fn forgive(&self, worker: WorkerId) {
        if let Some(worker) = self.engine.fleet.get(worker) {
            worker.misses.forgive();
        }
    }

    /// Checks the accounting identity: the blocks booked on each decoder are those in the words of
    /// its conversations plus those reserved plus those that the engine keeps. Holds whenever no call is in progress.
    ///
    /// # Errors
    /// Names the first decoder whose books disagree.
    pub fn check(&self) -> Result<(), Discrepancy> {
        self.engine.check()
    }

    /// Checks that nobody waits for room that only idle conversations hold, unless the operator wants that (`tail_waits`
    /// without `evict_idle`) or engines keep it (`retention`). Holds whenever no call is in progress.
    ///
    /// # Errors
    /// Names a decoder that could serve a turn that waits.
    pub fn check_progress(&self) -> Result<(), Stalled> {
        self.engine.check_progress()
    }
}
