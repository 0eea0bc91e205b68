//! The router's state in numbers, and the check of its books.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::engine::Engine;
use crate::activity::{Doing, Work};
use crate::admission::Queue;
use crate::config::Roles;
use crate::conversation::ConversationPhase;
use crate::event::Event;
use crate::fleet::{Health, Role, WorkerRef};
use crate::pace::Gaps;
use crate::report::WorkerReport;
use crate::roles::{Advice, Look};
use crate::sync::{Counter, Padded, STRIPES, stripe};
use crate::units::{BlockSize, Blocks, ConversationKey, Timestamp, Tokens, WorkerId};

/// One conversation as it is now.
#[derive(Debug, Clone, PartialEq)]
pub struct ConversationView {
    /// Its key.
    pub key: ConversationKey,
    /// Where it is in its life.
    pub phase: ConversationPhase,
    /// Where it is pinned or being brought to.
    pub decoder: Option<WorkerRef>,
    /// Turns begun.
    pub turn: u32,
    /// Turns that run or wait.
    pub in_flight: u32,
    /// Blocks booked for it between turns.
    pub blocks: Blocks,
    /// When its first turn arrived.
    pub first_seen: Timestamp,
    /// When a turn last began or finished.
    pub last_used: Timestamp,
    /// Time to its first user-visible answer, once there was one.
    pub ttfet: Option<Duration>,
    /// Microjoules that its ended work was charged.
    pub charged_uj: u64,
    /// Prompt tokens computed and tokens generated for it.
    pub tokens: u64,
}

/// One worker as it is now.
#[derive(Debug, Clone, PartialEq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "facts, each of which may hold without the others"
)]
pub struct WorkerRow {
    /// Id, address and name.
    pub worker: WorkerRef,
    /// What it is for.
    pub role: Role,
    /// It does both, but holds conversations only when no other has room, and computes prompts for the others.
    pub helps: bool,
    /// Its class of GPU and power cap.
    pub tier: Option<Arc<str>>,
    /// How it is.
    pub health: Health,
    /// It gets no new conversation, and those it has leave.
    pub draining: bool,
    /// It failed a request lately: new conversations prefer others.
    pub others_first: bool,
    /// KV blocks it holds; `None` while unknown.
    pub capacity: Option<Blocks>,
    /// Tokens in a block.
    pub block_size: BlockSize,
    /// Longest prompt plus answer.
    pub max_model_len: Option<Tokens>,
    /// Blocks booked.
    pub booked: Blocks,
    /// Of these, reserved by turns in flight.
    pub reserved: Blocks,
    /// Of these, held by no conversation: the engine keeps them until their time is up.
    pub retained: Blocks,
    /// Turns in flight.
    pub running: u32,
    /// Conversations pinned to it or being brought to it.
    pub conversations: u64,
    /// Prompt tokens queued at it.
    pub queued: Tokens,
    /// Prompt tokens per second observed.
    pub tokens_per_s: Option<f64>,
    /// The same of prompts of 2,048 tokens or more.
    pub long_tokens_per_s: Option<f64>,
    /// Milliseconds between two tokens of a turn observed, for a policy that asks about them.
    pub step_ms: Option<f64>,
    /// The same for all turns so far, added up.
    pub gaps: Gaps,
    /// What it was given to do so far.
    pub work: Work,
    /// What it last said about itself.
    pub report: Option<WorkerReport>,
    /// How long ago it last told its load; `None` if it never did.
    pub report_age: Option<Duration>,
    /// That is too long ago: what it told is left out.
    pub report_stale: bool,
    /// Blocks in its prefix cache, from its KV events; `None` while that is not known.
    pub resident: Option<Blocks>,
    /// Of these, in use by no running request, as far as it tells its usage.
    pub resident_idle: Option<Blocks>,
    /// Batches of KV events that were missed for good.
    pub events_missed: u64,
    /// Blocks of idle conversations pinned to it that it evicted.
    pub idle_evicted: u64,
    /// When it joined.
    pub joined: Timestamp,
}

/// What happened so far, in counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields are named after what they count")]
pub struct Totals {
    pub opened: u64,
    pub closed: u64,
    pub started: u64,
    pub finished: u64,
    pub failed: u64,
    pub shed: u64,
    pub handoffs: u64,
    pub relocated: u64,
    pub evicted: u64,
    pub overcommitted: u64,
    pub idle_evictions: u64,
    pub idle_evicted_blocks: u64,
    pub recomputed_tokens: u64,
    pub placed_tokens: u64,
    pub placed_local: u64,
    pub placed_handoff: u64,
    pub placed_afresh: u64,
    pub placed_moved: u64,
    pub waits_room: u64,
    pub waits_thrash: u64,
    pub waits_growth: u64,
    pub waits_placing: u64,
}

/// The whole router as it is now.
#[derive(Debug, Clone, PartialEq)]
pub struct Snapshot {
    /// The live workers in the order in which they joined, then the latest lost ones.
    pub workers: Vec<WorkerRow>,
    /// Conversations held.
    pub conversations: usize,
    /// New conversations that wait for a decoder.
    pub waiting: usize,
    /// Other turns that wait: to grow, or for their conversation to be placed.
    pub waiting_tail: usize,
    /// What happened so far.
    pub totals: Totals,
    /// Share of the prompt tokens computed in the last two minutes that had been computed before;
    /// `None` if none were computed.
    pub recomputed_share: Option<f64>,
    /// Milliseconds for each token of a handoff; `None` before the first that tells.
    pub link_ms_per_token: Option<f64>,
    /// How many workers should only compute prompts, by what was measured; `None` until enough was.
    pub advice: Option<Advice>,
    /// Workers that only compute prompts: prefillers, and those that are held back for it.
    pub prefillers: u16,
    /// Who decides about those that are held back.
    pub roles: Roles,
    /// The policy's name.
    pub policy: String,
}

/// The books of a decoder disagree with its conversations.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{worker} has {booked} blocks booked, but its conversations hold {held}, its turns {reserved} and the engine {retained}"
)]
pub struct Discrepancy {
    /// The decoder.
    pub worker: WorkerId,
    /// Blocks booked there.
    pub booked: u64,
    /// Blocks in the words of its conversations.
    pub held: u64,
    /// Blocks reserved by turns in flight.
    pub reserved: u64,
    /// Blocks that the engine keeps until their time is up.
    pub retained: u64,
}

/// Counts of one stripe of threads.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) opened: Counter,
    pub(crate) closed: Counter,
    pub(crate) finished: Counter,
    pub(crate) failed: Counter,
    pub(crate) shed: Counter,
    pub(crate) handoffs: Counter,
    pub(crate) relocated: Counter,
    pub(crate) evicted: Counter,
    pub(crate) overcommitted: Counter,
    pub(crate) idle_evictions: Counter,
    pub(crate) idle_evicted_blocks: Counter,
    pub(crate) recomputed_tokens: Counter,
    /// Prompt tokens computed for conversations being placed.
    pub(crate) placed_tokens: Counter,
    pub(crate) placed_local: Counter,
    pub(crate) placed_handoff: Counter,
    pub(crate) placed_afresh: Counter,
    pub(crate) placed_moved: Counter,
    waits_room: Counter,
    waits_thrash: Counter,
    waits_growth: Counter,
    waits_placing: Counter,
}

impl Counts {
    /// Turns that joined this queue.
    pub(crate) fn waits(&self, queue: Queue) -> &Counter {
        match queue {
            Queue::Newcomers => &self.waits_room,
            Queue::Returning => &self.waits_thrash,
            Queue::Growth(_) => &self.waits_growth,
            Queue::Followers => &self.waits_placing,
        }
    }
}

/// Counts striped by thread, so that threads write different cache lines.
#[derive(Debug)]
pub(crate) struct Tally(Box<[Padded<Counts>]>);

impl Default for Tally {
    fn default() -> Self {
        Self((0..STRIPES).map(|_| Padded::default()).collect())
    }
}

impl Tally {
    /// The counts that this thread writes.
    pub(crate) fn own(&self) -> &Counts {
        &self.0[stripe()]
    }

    fn totals(&self) -> Totals {
        let sum = |of: fn(&Counts) -> &Counter| self.0.iter().map(|counts| of(counts).get()).sum();
        Totals {
            opened: sum(|counts| &counts.opened),
            closed: sum(|counts| &counts.closed),
            started: 0,
            finished: sum(|counts| &counts.finished),
            failed: sum(|counts| &counts.failed),
            shed: sum(|counts| &counts.shed),
            handoffs: sum(|counts| &counts.handoffs),
            relocated: sum(|counts| &counts.relocated),
            evicted: sum(|counts| &counts.evicted),
            overcommitted: sum(|counts| &counts.overcommitted),
            idle_evictions: sum(|counts| &counts.idle_evictions),
            idle_evicted_blocks: sum(|counts| &counts.idle_evicted_blocks),
            recomputed_tokens: sum(|counts| &counts.recomputed_tokens),
            placed_tokens: sum(|counts| &counts.placed_tokens),
            placed_local: sum(|counts| &counts.placed_local),
            placed_handoff: sum(|counts| &counts.placed_handoff),
            placed_afresh: sum(|counts| &counts.placed_afresh),
            placed_moved: sum(|counts| &counts.placed_moved),
            waits_room: sum(|counts| &counts.waits_room),
            waits_thrash: sum(|counts| &counts.waits_thrash),
            waits_growth: sum(|counts| &counts.waits_growth),
            waits_placing: sum(|counts| &counts.waits_placing),
        }
    }
}

/// Lost workers shown.
const LOST_SHOWN: usize = 8;

impl Engine {
    pub(super) fn conversation(&self, key: ConversationKey) -> Option<ConversationView> {
        let conversation = self.table.find(key)?;
        let state = conversation.state();
        if state.phase == ConversationPhase::Closed {
            return None;
        }
        Some(ConversationView {
            key,
            phase: state.phase,
            decoder: state.decoder.map(|id| self.fleet.worker(id).reference()),
            turn: u32::from(state.turn),
            in_flight: u32::from(state.in_flight),
            blocks: state.blocks,
            first_seen: conversation.first_seen(),
            last_used: conversation.last_used(),
            ttfet: conversation.ttfet(),
            charged_uj: conversation.charged_uj(),
            tokens: conversation.tokens(),
        })
    }

    fn snapshot_without_advice(&self, now: Timestamp) -> Snapshot {
        let (mut live, mut lost, mut running) = (Vec::new(), Vec::new(), 0);
        for worker in self.fleet.all() {
            let books = worker.occupancy.books();
            running += u64::from(books.running);
            let (report, told) = worker.report.lock().clone().unzip();
            let report_age = told.flatten().map(|at| now.since(at));
            let report_stale = report_age.is_some_and(|age| age > self.config.report_stale_after);
            let report = if report_stale {
                report.map(WorkerReport::without_load)
            } else {
                report
            };
            let (resident, events_missed) = worker.resident();
            let usage = report.as_ref().and_then(|report| report.kv_usage);
            let in_use = usage
                .zip(worker.capacity())
                .map(|(share, all)| all.share(share));
            let row = WorkerRow {
                worker: worker.reference(),
                role: worker.role,
                helps: worker.helps(),
                tier: worker.tier.clone(),
                health: worker.health(),
                draining: worker.is_draining(),
                others_first: worker.misses.others_first(now),
                capacity: worker.capacity(),
                block_size: worker.block_size(),
                max_model_len: worker.max_model_len(),
                booked: books.booked,
                reserved: books.reserved,
                retained: worker.retained.blocks(),
                running: books.running,
                conversations: worker.conversations.get(),
                queued: worker.backlog.queued(),
                tokens_per_s: worker.throughput.get(),
                long_tokens_per_s: worker.throughput.of_long(),
                step_ms: worker.steps.get(),
                gaps: worker.steps.gaps(),
                work: worker.activity.work(now),
                report_age,
                report_stale,
                report,
                resident,
                resident_idle: resident.zip(in_use).map(|(all, used)| all.less(used)),
                events_missed,
                idle_evicted: worker.idle_evicted.get(),
                joined: worker.joined,
            };
            if worker.is_lost() {
                lost.push(row);
            } else {
                live.push(row);
            }
        }
        let alike = |role: Role| {
            let rows = live.iter().filter(|row: &&WorkerRow| row.role == role);
            u16::try_from(rows.count()).unwrap_or(u16::MAX)
        };
        let helpers = live.iter().filter(|row: &&WorkerRow| row.helps).count();
        let helpers = u16::try_from(helpers).unwrap_or(u16::MAX);
        let prefillers = alike(Role::Prefiller) + helpers;
        live.extend(lost.split_off(lost.len().saturating_sub(LOST_SHOWN)));
        // Not counted one by one: every turn that began has ended or runs.
        let mut totals = self.tally.totals();
        totals.started = totals.finished + totals.failed + running;
        Snapshot {
            workers: live,
            conversations: self.table.len(),
            waiting: self.line.newcomers(),
            waiting_tail: self.line.tail(),
            totals,
            recomputed_share: self.recent.share_again(now),
            link_ms_per_token: self.link.ms_per_token(),
            advice: None,
            prefillers,
            roles: self.policy.roles(),
            policy: self.policy.variant(),
        }
    }

    /// Looks, once in a while, at how many workers should only compute prompts, and changes that if the policy asks for it.
    pub(super) fn advise(&self, now: Timestamp) {
        let mut advisor = self.advisor.lock();
        if advisor.is_due(now) {
            let rows = self.snapshot_without_advice(now);
            let live = rows.workers.iter().filter(|row| row.health != Health::Lost);
            let live: Vec<_> = live.cloned().collect();
            let acts = self.policy.roles() == Roles::Auto;
            let has_prefillers = live.iter().any(|row| row.role == Role::Prefiller);
            let look = Look {
                workers: &live,
                acts,
                spares_the_busy: self.policy.spares_the_busy(has_prefillers),
                placed: rows.totals.placed_tokens,
                low_watermark: self.config.low_watermark,
            };
            advisor.look(&look, now);
            let before = self.helpers.wanted();
            let given = self.policy.helpers();
            if acts && let Some(helpers) = advisor.due_change(before, given, now) {
                self.set_helpers(helpers);
                self.observers.tell(|| Event::RolesChanged {
                    at: now,
                    before,
                    helpers,
                });
            }
        }
    }

    pub(super) fn snapshot(&self, now: Timestamp) -> Snapshot {
        Snapshot {
            advice: self.advisor.lock().advice(),
            ..self.snapshot_without_advice(now)
        }
    }

    pub(super) fn charge(
        &self,
        id: WorkerId,
        doing: Doing,
        microjoules: u64,
        now: Timestamp,
    ) -> u64 {
        self.fleet.get(id).map_or(microjoules, |worker| {
            worker.activity.charge(doing, microjoules, now)
        })
    }

    pub(super) fn check(&self) -> Result<(), Discrepancy> {
        let mut held: BTreeMap<WorkerId, u64> = BTreeMap::new();
        self.table.for_each(|_, conversation| {
            let state = conversation.state();
            if let (Some(decoder), true) = (state.decoder, state.phase != ConversationPhase::Closed)
            {
                *held.entry(decoder).or_default() += u64::from(state.blocks.get());
            }
        });
        for worker in self.fleet.all() {
            let books = worker.occupancy.books();
            let held = held.get(&worker.id).copied().unwrap_or(0);
            let (booked, reserved) = (
                u64::from(books.booked.get()),
                u64::from(books.reserved.get()),
            );
            let retained = u64::from(worker.retained.blocks().get());
            if booked != held + reserved + retained {
                return Err(Discrepancy {
                    worker: worker.id,
                    booked,
                    held,
                    reserved,
                    retained,
                });
            }
        }
        Ok(())
    }
}
