//! Taking the bookings of idle conversations for turns that need the room, where the operator allows.
//!
//! The longest idle go first, and none goes unless enough can go.

use std::sync::Arc;

use super::engine::Engine;
use crate::conversation::{Conversation, ConversationPhase, State};
use crate::event::Event;
use crate::fleet::Worker;
use crate::longest_idle::Look;
use crate::occupancy::{Asked, Ceiling, Rank};
use crate::units::{Blocks, ConversationKey, Timestamp, Tokens};

/// What an eviction brought.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Freed {
    /// The turn fits now.
    pub(super) enough: bool,
    /// Others wait for what was freed.
    pub(super) somebody_waits: bool,
}

/// One that may be evicted, and when it was used last.
type Idle = (Timestamp, ConversationKey, State, Arc<Conversation>);

/// Those found so far, and what they hold.
#[derive(Default)]
struct Taken {
    idle: Vec<Idle>,
    held: Blocks,
}

impl Engine {
    /// Whether idle conversations of `decoder` may lose their bookings now. One where nothing runs has no work to lose.
    pub(super) fn may_evict_idle(&self, decoder: &Worker, now: Timestamp) -> bool {
        let needed_again = |share| share > self.config.evict_idle_below;
        self.config.evict_idle
            && (!self.recent.share_again(now).is_some_and(needed_again) || is_quiet(decoder))
    }

    /// Makes room for a conversation that has no place, on the decoder that lacks least of those
    /// where it can be made. `spare` is the one that asks.
    pub(super) fn make_room_somewhere(
        &self,
        prompt: Tokens,
        spare: Option<&Arc<Conversation>>,
        now: Timestamp,
    ) -> Freed {
        let mut able = Vec::new();
        self.fleet.for_each_live(|worker| {
            let holds = worker.prompt_limit().is_some_and(|limit| prompt <= limit);
            let allowed = || self.may_evict_idle(worker, now);
            if worker.role.decodes() && worker.is_open() && holds && allowed() {
                let need = worker.block_size().blocks(prompt);
                let ceiling = self.newcomers_ceiling(worker);
                let lack = worker
                    .occupancy
                    .books()
                    .booked
                    .plus(need)
                    .less(ceiling.shared);
                able.push((lack, worker, need, ceiling));
            }
        });
        able.sort_by_key(|(lack, worker, ..)| (*lack, worker.id));
        let freed = able.into_iter().map(|(_, worker, need, ceiling)| {
            self.make_room(worker, need, ceiling, Rank::Arriving, spare, now)
        });
        freed
            .into_iter()
            .find(|freed| freed.enough)
            .unwrap_or_default()
    }

    fn newcomers_ceiling(&self, worker: &Worker) -> Ceiling {
        let capacity = worker.capacity().unwrap_or_default();
        Ceiling {
            shared: capacity.share(self.config.low_watermark),
            alone: capacity,
        }
    }

    /// Evicts idle conversations of `decoder` until `need` fits under `ceiling`.
    pub(super) fn make_room(
        &self,
        decoder: &Worker,
        need: Blocks,
        ceiling: Ceiling,
        rank: Rank,
        spare: Option<&Arc<Conversation>>,
        now: Timestamp,
    ) -> Freed {
        let books = decoder.occupancy.books();
        let others_first = books.growth_waits && rank == Rank::Arriving;
        if need > ceiling.alone || others_first {
            return Freed::default();
        }
        let lack = if need <= ceiling.shared {
            books.booked.plus(need).less(ceiling.shared)
        } else {
            books.booked // it fits alone only
        };
        let idle = self.longest_idle(decoder, lack, spare, now);
        let lack = u64::from(lack.get());
        let all: u64 = idle
            .iter()
            .map(|(_, _, state, _)| u64::from(state.blocks.get()))
            .sum();
        if all < lack {
            return Freed::default();
        }
        if !self.config.tail_waits {
            // What the engine evicts is for the engine to say: pins stay, and what is left of the KV is found again.
            let lack = Blocks::new(lack);
            let (freed, somebody_waits) = self.shrink(decoder, idle, lack, now);
            let enough = freed >= lack;
            return Freed {
                enough,
                somebody_waits,
            };
        }
        let (mut freed, mut somebody_waits) = (0, false);
        for (_, key, state, conversation) in idle {
            if freed >= lack {
                break;
            }
            // A turn that began since is in the word, and the exchange fails.
            if conversation.replace(state, state.unpin()) {
                decoder.conversations.sub(1);
                somebody_waits |= decoder.occupancy.release(state.blocks);
                freed += u64::from(state.blocks.get());
                self.tally.own().evicted.add(1);
                let (decoder, blocks) = (decoder.id, state.blocks);
                self.observers.tell(|| Event::Evicted {
                    at: now,
                    key,
                    decoder,
                    blocks,
                });
            }
        }
        Freed {
            enough: freed >= lack,
            somebody_waits,
        }
    }

    /// Books as much of `growth` as there is room for and lets the turn run with that: its engine finds the rest. Where the
    /// engine does not tell what it evicts, the longest idle lose what lacks, from their tails, as its LRU will have it.
    pub(super) fn overbook<'a>(
        &self,
        decoder: &'a Worker,
        growth: Blocks,
        spare: &Arc<Conversation>,
        now: Timestamp,
    ) -> Asked<'a> {
        let capacity = decoder.capacity().unwrap_or_default();
        let mut somebody_waits = false;
        if !decoder.tells_evictions() {
            let lack = decoder.occupancy.books().booked.plus(growth).less(capacity);
            let idle = self.longest_idle(decoder, lack, Some(spare), now);
            somebody_waits |= self.shrink(decoder, idle, lack, now).1;
        }
        let ceiling = Ceiling::capacity(capacity);
        let asked = decoder
            .occupancy
            .try_reserve(Blocks::ZERO, ceiling, Rank::FromLine);
        let reservation = asked.reservation.map(|reservation| {
            let (reservation, waits) = reservation.resized(growth, capacity);
            somebody_waits |= waits;
            reservation
        });
        Asked {
            reservation,
            somebody_waits,
        }
    }

    /// Takes up to `most` blocks from the bookings of `idle` ones in their order; how many it took, and whether
    /// somebody waits for them.
    fn shrink(
        &self,
        decoder: &Worker,
        idle: Vec<Idle>,
        most: Blocks,
        now: Timestamp,
    ) -> (Blocks, bool) {
        let (mut lack, mut somebody_waits) = (most, false);
        for (_, key, state, conversation) in idle {
            let blocks = state.blocks.min(lack);
            if blocks == Blocks::ZERO {
                break;
            }
            // A turn that began since is in the word, and the exchange fails.
            if conversation.replace(state, state.lose_blocks(blocks)) {
                somebody_waits |= decoder.occupancy.release(blocks);
                lack = lack.less(blocks);
                self.tally.own().evicted.add(1);
                let decoder = decoder.id;
                self.observers.tell(|| Event::Evicted {
                    at: now,
                    key,
                    decoder,
                    blocks,
                });
            }
        }
        (most.less(lack), somebody_waits)
    }

    /// Of the conversations of `decoder` none of whose turns runs, the longest idle ones that hold `lack` together, or all.
    fn longest_idle(
        &self,
        decoder: &Worker,
        lack: Blocks,
        spare: Option<&Arc<Conversation>>,
        now: Timestamp,
    ) -> Vec<Idle> {
        if lack == Blocks::ZERO {
            return Vec::new();
        }
        // Where nothing runs, turns in flight only wait: they would wait for each other's blocks for ever.
        let all = is_quiet(decoder);
        let mut taken = Taken::default();
        let mut look = |used, key, conversation: &Arc<Conversation>| {
            // What the engine keeps is no room for anybody else, nor is what was used later.
            if self.kept_until(used, now).is_some() {
                return Look::Stop;
            }
            let state = conversation.state();
            let is_idle = state.phase == ConversationPhase::Pinned
                && state.is_on(decoder.id)
                && state.blocks > Blocks::ZERO
                && (all || state.in_flight == 0);
            let asks = spare.is_some_and(|spare| Arc::ptr_eq(spare, conversation));
            if is_idle && !asks {
                taken.held = taken.held.plus(state.blocks);
                taken
                    .idle
                    .push((used, key, state, Arc::clone(conversation)));
            }
            if taken.held >= lack {
                Look::Stop
            } else {
                Look::Next
            }
        };
        let list = &decoder.longest_idle;
        if !list.until(&mut look) {
            let mut found = Vec::new();
            self.table.for_each(|key, conversation| {
                if list.concerns(conversation.state()) {
                    found.push(((conversation.last_used(), key), Arc::clone(conversation)));
                }
            });
            list.found(found);
            list.until(look);
        }
        taken.idle
    }

    /// A conversation came to `decoder`, or holds something there again: it may have to give it up.
    pub(super) fn may_lose_room(
        &self,
        decoder: &Worker,
        key: ConversationKey,
        conversation: &Arc<Conversation>,
        now: Timestamp,
    ) {
        if self.config.evict_idle || !self.config.tail_waits {
            decoder.longest_idle.came(key, conversation, now);
        }
    }
}

/// Whether no turn runs on `decoder`.
fn is_quiet(decoder: &Worker) -> bool {
    decoder.occupancy.books().running == 0
}
