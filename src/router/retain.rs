//! What engines that pin finished turns (`retention`) keep although no conversation holds it any more, in the books.
//!
//! Without `retention` nothing is kept and nothing here costs anything.

use super::engine::Engine;
use super::grant::Grant;
use crate::conversation::State;
use crate::event::{TurnKind, Usage};
use crate::fleet::Worker;
use crate::units::{Blocks, Timestamp, Tokens};

/// What of a turn's blocks its decoder keeps beside those that the conversation holds.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Behind {
    pub(super) blocks: Blocks,
    pub(super) until: Timestamp,
}

impl Engine {
    /// Until when an engine keeps what was in use at `used`; `None`: it may give it away.
    pub(super) fn kept_until(&self, used: Timestamp, now: Timestamp) -> Option<Timestamp> {
        let until = used + self.config.retention?;
        (until > now).then_some(until)
    }

    /// A conversation that was used at `used` holds `blocks` of `decoder`.
    pub(super) fn note_held(&self, decoder: &Worker, blocks: Blocks, used: Timestamp) {
        if let Some(span) = self.config.retention.filter(|_| blocks > Blocks::ZERO) {
            decoder.retained.held(used + span);
        }
    }

    /// Whether the engine of `decoder` keeps KV that it will give away only later: the router cannot hand it out, nor can a
    /// turn that runs make the engine evict it.
    pub(crate) fn keeps_some(&self, decoder: &Worker, now: Timestamp) -> bool {
        self.config.retention.is_some() && decoder.retained.any(now)
    }

    /// A conversation that used `decoder` last at `used` holds `blocks` there no more. They are given back, now or as soon as
    /// the engine does; whether somebody waits for them.
    pub(super) fn let_go(
        &self,
        decoder: &Worker,
        blocks: Blocks,
        used: Timestamp,
        now: Timestamp,
    ) -> bool {
        match self.kept_until(used, now) {
            Some(until) => {
                decoder.retained.add(blocks, until);
                false
            }
            None => decoder.occupancy.release(blocks),
        }
    }

    /// What a turn needs beyond its growth: the last block of the turn before is kept, and as it was not full, not shared.
    pub(super) fn unshared(&self, state: State, used: Timestamp, now: Timestamp) -> Blocks {
        match self.kept_until(used, now) {
            Some(_) if state.blocks > Blocks::ZERO => Blocks::new(1),
            Some(_) | None => Blocks::ZERO,
        }
    }

    /// A turn ends that leaves its conversation with `after` blocks and has `actual` itself. It found blocks of before, shares
    /// them and took the rest anew; what was there before and is not shared is kept beside.
    pub(super) fn stays_behind(
        &self,
        grant: &Grant,
        (before, after, actual): (State, Blocks, Blocks),
        usage: Usage,
        now: Timestamp,
    ) -> Behind {
        // Alone in flight, all that is not shared is of turns that ended before this one began.
        let used = if before.in_flight <= 1 {
            grant.started
        } else {
            now
        };
        let Some(until) = self.kept_until(used, now) else {
            return Behind::default();
        };
        if grant.kind != TurnKind::Pinned {
            return Behind::default();
        }
        let size = self.fleet.worker(grant.decoder).block_size();
        // Whole blocks are found, and of the last token nothing was computed.
        let whole =
            |tokens: Tokens| Blocks::new(u64::from(tokens.0.saturating_sub(1) / size.get()));
        let found = usage
            .cached
            .map_or_else(|| whole(grant.context), |cached| size.blocks(cached));
        let there = before.blocks.plus(actual.less(found));
        Behind {
            blocks: there.less(after),
            until,
        }
    }

    /// Gives back what engines kept until now, and serves who waited for it.
    pub(super) fn expire_retained(&self, now: Timestamp) {
        if self.config.retention.is_none() {
            return;
        }
        let mut somebody_waits = false;
        for worker in self.fleet.all() {
            let expired = worker.retained.expire(now);
            somebody_waits |= expired > Blocks::ZERO && worker.occupancy.release(expired);
        }
        if somebody_waits {
            self.serve(now);
        }
    }
}
