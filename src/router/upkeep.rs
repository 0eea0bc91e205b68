//! What operators and time do to conversations and workers.

use super::engine::Engine;
use crate::conversation::{Conversation, ConversationPhase, Refused, State};
use crate::error::JoinError;
use crate::event::{CloseReason, Event, LostReason};
use crate::fleet::WorkerSpec;
use crate::kv_events::{self, Malformed};
use crate::report::WorkerReport;
use crate::residency::Heard;
use crate::units::{Blocks, ConversationKey, Timestamp, WorkerId};

/// What a sweep did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Swept {
    /// Conversations closed.
    pub conversations: usize,
    /// Blocks given back.
    pub blocks: u64,
}

impl Engine {
    pub(super) fn join(&self, spec: WorkerSpec, now: Timestamp) -> Result<WorkerId, JoinError> {
        let (block_size, backlog) = (self.config.block_size, self.config.prefill_backlog_tokens);
        let worker = self.fleet.join(spec, block_size, backlog, now)?;
        let (id, role, tier) = (worker.id, worker.role, &worker.tier);
        self.observers.tell(|| Event::WorkerJoined {
            at: now,
            worker: id,
            role,
            tier: tier.clone(),
        });
        self.choose_helpers();
        self.serve(now);
        Ok(id)
    }

    pub(super) fn close(&self, key: ConversationKey, now: Timestamp) -> bool {
        let Some(conversation) = self.table.find(key) else {
            return false;
        };
        let Ok((before, _)) = conversation.update(State::close) else {
            return false;
        };
        self.ended(key, &conversation, CloseReason::Asked, before.blocks, now);
        self.left(before, conversation.last_used(), false, now);
        if before.in_flight > 0 {
            self.serve_those_of(key, now);
        }
        true
    }

    pub(super) fn relocate(&self, key: ConversationKey, now: Timestamp) -> bool {
        let Some(conversation) = self.table.find(key) else {
            return false;
        };
        let unpin = |state: State| match state.phase {
            ConversationPhase::Pinned => Ok(state.unpin()),
            ConversationPhase::Placing
            | ConversationPhase::Unpinned
            | ConversationPhase::Closed => Err(Refused::Moved),
        };
        let Ok((before, _)) = conversation.update(unpin) else {
            return false;
        };
        self.left(before, conversation.last_used(), false, now);
        if before.in_flight > 0 {
            self.serve_those_of(key, now);
        }
        true
    }

    /// Walks the whole table once; each conversation is closed on its own, so no turn waits for
    /// the walk.
    pub(super) fn sweep(&self, now: Timestamp) -> Swept {
        let mut swept = Swept::default();
        let Some(timeout) = self.config.idle_timeout else {
            return swept;
        };
        let is_idle = |conversation: &Conversation, state: State| {
            state.in_flight == 0 && now.since(conversation.last_used()) > timeout
        };
        let mut idle = Vec::new();
        self.table.for_each(|key, conversation| {
            if is_idle(conversation, conversation.state()) {
                idle.push(key);
            }
        });
        let mut somebody_waits = false;
        for key in idle {
            let Some(conversation) = self.table.find(key) else {
                continue;
            };
            let state = conversation.state();
            if !is_idle(&conversation, state) {
                continue;
            }
            let Ok(next) = state.close() else { continue };
            // A turn that began since is in the word, and the exchange fails.
            if !conversation.replace(state, next) {
                continue;
            }
            self.ended(key, &conversation, CloseReason::Idle, state.blocks, now);
            swept.conversations += 1;
            swept.blocks += u64::from(state.blocks.get());
            if let Some(decoder) = state.decoder {
                let decoder = self.fleet.worker(decoder);
                decoder.conversations.sub(1);
                let used = conversation.last_used();
                somebody_waits |= self.let_go(decoder, state.blocks, used, now);
            }
        }
        for worker in self.fleet.all() {
            worker.longest_idle.forget_who_left();
        }
        if somebody_waits {
            self.serve(now);
        }
        let Swept {
            conversations,
            blocks,
        } = swept;
        self.observers.tell(|| Event::Swept {
            at: now,
            conversations,
            blocks,
        });
        swept
    }

    pub(super) fn set_draining(&self, id: WorkerId, draining: bool, now: Timestamp) {
        let Some(worker) = self.fleet.get(id) else {
            return;
        };
        if worker.set_draining(draining) {
            self.observers.tell(|| Event::WorkerDraining {
                at: now,
                worker: id,
                draining,
            });
            self.choose_helpers();
            self.serve(now);
        }
    }

    pub(super) fn set_suspect(&self, id: WorkerId, suspect: bool, now: Timestamp) {
        let Some(worker) = self.fleet.get(id) else {
            return;
        };
        if suspect {
            worker.doubted.set(now.0);
        }
        if worker.set_suspect(suspect) {
            self.observers.tell(|| Event::WorkerSuspect {
                at: now,
                worker: id,
                suspect,
            });
            self.serve(now);
        }
    }

    pub(super) fn lose(&self, id: WorkerId, why: LostReason, now: Timestamp) {
        let Some(worker) = self.fleet.get(id) else {
            return;
        };
        if self.fleet.lose(worker) {
            worker.longest_idle.forget_all();
            self.observers.tell(|| Event::WorkerLost {
                at: now,
                worker: id,
                why,
            });
            self.choose_helpers();
            self.serve(now);
        }
    }

    /// One batch of a worker's KV events.
    pub(super) fn hear(
        &self,
        id: WorkerId,
        number: u64,
        batch: &[u8],
        now: Timestamp,
    ) -> Result<Heard, Malformed> {
        let Some(worker) = self.fleet.get(id) else {
            return Ok(Heard::Known);
        };
        let events = kv_events::decode(batch)?;
        let mut residency = worker.residency.lock();
        let heard = residency.expect(number);
        if heard != Heard::Counted {
            return Ok(heard);
        }
        let lost = residency.count(events);
        drop(residency);
        worker.note_told_evictions();
        self.evicted(id, lost, now);
        Ok(heard)
    }

    /// A worker lost these blocks of these conversations.
    pub(super) fn evicted(
        &self,
        id: WorkerId,
        lost: impl IntoIterator<Item = (ConversationKey, Blocks)>,
        now: Timestamp,
    ) {
        let mut somebody_waits = false;
        for (key, blocks) in lost {
            somebody_waits |= self.lost_kv(id, key, blocks, now);
        }
        if somebody_waits {
            self.serve(now);
        }
    }

    /// A decoder evicted blocks of a conversation. If it is idle there, its booking shrinks by what is gone: it needs as
    /// much again at its next turn, and until then the room is another's. Whether somebody waits for it.
    fn lost_kv(&self, id: WorkerId, key: ConversationKey, lost: Blocks, now: Timestamp) -> bool {
        let Some(conversation) = self.table.find(key) else {
            return false;
        };
        let state = conversation.state();
        let here = state.phase == ConversationPhase::Pinned && state.decoder == Some(id);
        if here {
            let size = self.fleet.worker(id).block_size();
            conversation.lose_resident(size.tokens(lost));
        }
        // A turn that began since is in the word, and the exchange fails: the turn settles what it finds.
        let next = state.lose_blocks(lost);
        let gone = state.blocks.less(next.blocks);
        if !here || state.in_flight > 0 || !conversation.replace(state, next) {
            return false;
        }
        let worker = self.fleet.worker(id);
        worker.idle_evicted.add(u64::from(lost.get()));
        let own = self.tally.own();
        own.idle_evictions.add(1);
        own.idle_evicted_blocks.add(u64::from(lost.get()));
        self.observers.tell(|| Event::KvLost {
            at: now,
            key,
            decoder: id,
            blocks: lost,
        });
        gone > Blocks::ZERO && worker.occupancy.release(gone)
    }

    /// The batches of a worker's KV events before `number` cannot be had any more.
    pub(super) fn give_up_events(&self, id: WorkerId, number: u64) {
        if let Some(worker) = self.fleet.get(id) {
            worker.residency.lock().give_up(number);
        }
    }

    pub(super) fn observe(&self, id: WorkerId, report: &WorkerReport, now: Timestamp) {
        let Some(worker) = self.fleet.get(id) else {
            return;
        };
        let before = (
            worker.capacity(),
            worker.max_model_len(),
            worker.block_size(),
        );
        worker.observe(report, now);
        if before
            != (
                worker.capacity(),
                worker.max_model_len(),
                worker.block_size(),
            )
        {
            self.serve(now);
        }
    }
}
