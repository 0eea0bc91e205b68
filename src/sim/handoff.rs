//! A turn whose prompt is computed on another engine: fetch, prefill, room on the decoder, the link.
//!
//! Blocks on the decoder are taken before the transfer starts; the prefiller's are held until it ends.
//! Whoever waits for room too long gives up: the prefiller's KV is dropped and the decoder computes the
//! prompt itself, which breaks a hold-and-wait.

use super::engine::{Job, Work};
use super::events::What;
use super::flight::Stage;
use super::scenario::FirstToken;
use super::split::Part;
use super::world::World;
use crate::units::Tokens;

impl World<'_> {
    /// Starts a turn whose prompt `prefiller` computes.
    pub(super) fn start_remote(&mut self, conversation: usize, prefiller: usize) {
        let from = self.flights[conversation].home;
        if let Some(from) = from.filter(|from| self.scenario.remote.fetch && *from != prefiller)
            && self.start_fetch(conversation, prefiller, from)
        {
            return;
        }
        self.prefill_at(conversation, prefiller, None);
    }

    fn start_fetch(&mut self, conversation: usize, prefiller: usize, from: usize) -> bool {
        let valid = self.job(conversation).valid;
        let [there, here] = [from, prefiller].map(|engine| {
            let pool = self.engines[engine].books(self.now);
            pool.tokens(conversation).min(valid)
        });
        if there <= here {
            return false;
        }
        let (now, prefix) = (self.now, self.workload.conversations[conversation].prefix);
        let target = self.engines[prefiller].books(self.now);
        let found = target.take(conversation, valid, prefix, now);
        let lacks = target.lacks(conversation, there);
        if !target.grow(conversation, lacks, now) {
            target.idle(conversation, now);
            return false;
        }
        self.engines[from]
            .books(self.now)
            .take(conversation, valid, None, now);
        let bytes = f64::from(there - found) * self.kv_bytes[from];
        // What is held now may have been counted on by the steps under way.
        self.touch(from);
        self.touch(prefiller);
        let wait = self.links.backlog(from, prefiller, now);
        // Nothing is computed meanwhile that could hide the transfer.
        let end = self.links.send(from, prefiller, bytes, now, now);
        self.counters.fetches += 1;
        let flight = &mut self.flights[conversation];
        flight.row.transferred_tokens += there - found;
        flight.row.transfer_s += end - now;
        flight.ledger.spend(Part::HandoffWait, now + wait);
        flight.stage = Stage::Fetch { prefiller, from };
        flight.history = flight.history.max(there);
        self.fetched[conversation] = there;
        self.events.push(end, What::FetchEnd(conversation));
        true
    }

    pub(super) fn fetch_ended(&mut self, conversation: usize) {
        let Stage::Fetch { prefiller, from } = self.flights[conversation].stage else {
            return;
        };
        self.flights[conversation]
            .ledger
            .spend(Part::Transfer, self.now);
        self.engines[from]
            .books(self.now)
            .idle(conversation, self.now);
        let there = self.fetched[conversation];
        self.engines[prefiller]
            .books(self.now)
            .computed(conversation, there);
        self.touch(from);
        self.prefill_at(conversation, prefiller, Some(there));
    }

    fn prefill_at(&mut self, conversation: usize, prefiller: usize, received: Option<u32>) {
        let job = Job {
            output: 0,
            received,
            ..self.job(conversation)
        };
        self.flights[conversation].stage = Stage::Prefill { prefiller };
        self.submit(prefiller, job);
    }

    /// A prefiller is done with a prompt.
    pub(super) fn prefilled(&mut self, conversation: usize, work: &Work) {
        let now = self.now;
        let told = self.told(conversation).0;
        let emits = self.scenario.remote.first_token == FirstToken::Prefiller;
        let flight = &mut self.flights[conversation];
        let Stage::Prefill { prefiller } = flight.stage else {
            return;
        };
        flight.computing_since = work.started_s;
        flight.row.prefill_end_s = now;
        flight.row.compute_s += now - work.started_s;
        flight.stage = Stage::MoveIn {
            prefiller: Some(prefiller),
        };
        flight.attempt += 1;
        let attempt = flight.attempt;
        if emits {
            flight.emitted_at = Some(now);
            flight.until_first = flight.ledger.spent();
            flight.row.first_token_s = now;
        }
        if let Some(turn) = flight.running.as_mut() {
            let cached = Tokens(told.0.saturating_sub(work.computed));
            turn.prefilled_after(told, cached, self.at);
            if emits {
                turn.first_token(self.at);
            }
        }
        let decoder = flight.decoder;
        self.incoming[decoder].push_back(conversation);
        self.touch(decoder);
        if let Some(wait) = self.scenario.remote.wait_max_s {
            let what = What::GiveUp {
                conversation,
                attempt,
            };
            self.events.push(now + wait, what);
        }
    }

    /// Lets those in that fit, first come, first served.
    pub(super) fn admit_incoming(&mut self, decoder: usize) {
        while let Some(conversation) = self.incoming[decoder].front().copied() {
            if !self.move_in(conversation, decoder) {
                return;
            }
            self.incoming[decoder].pop_front();
        }
    }

    fn move_in(&mut self, conversation: usize, decoder: usize) -> bool {
        let Stage::MoveIn { prefiller } = self.flights[conversation].stage else {
            return true;
        };
        let (now, job) = (self.now, self.job(conversation));
        let emitted = self.flights[conversation].emitted_at.is_some();
        let pool = self.engines[decoder].books(self.now);
        let place = pool.place(conversation);
        let found = pool.take(conversation, job.valid, job.prefix, now);
        // With the first token sent, the next one needs a slot.
        let slots = u32::from(emitted && job.output > 1);
        let lacks = pool.lacks(conversation, job.prompt + slots);
        if !pool.grow(conversation, lacks, now) {
            pool.idle(conversation, now);
            pool.back_to(conversation, place);
            return false;
        }
        let Some(prefiller) = prefiller else {
            self.flights[conversation]
                .ledger
                .spend(Part::HandoffWait, now);
            self.arrived(conversation);
            return true;
        };
        let moved = if self.scenario.remote.delta {
            job.prompt - found
        } else {
            job.prompt
        };
        let bytes = f64::from(moved) * self.kv_bytes[prefiller];
        let since = self.flights[conversation].computing_since;
        let since = since.min(self.flights[conversation].row.prefill_end_s);
        // What was waited for room cannot hide the transfer: only computing did.
        let hidden_since = now - (self.flights[conversation].row.prefill_end_s - since);
        let wait = self.links.backlog(prefiller, decoder, now);
        let end = self
            .links
            .send(prefiller, decoder, bytes, hidden_since, now);
        let flight = &mut self.flights[conversation];
        flight.row.handoff_wait_s += now - flight.row.prefill_end_s + wait;
        flight.row.transfer_s += end - now - wait;
        flight.row.transferred_tokens += moved;
        flight.ledger.spend(Part::HandoffWait, now + wait);
        flight.stage = Stage::Moving { prefiller };
        self.events.push(end, What::TransferEnd(conversation));
        true
    }

    pub(super) fn transfer_ended(&mut self, conversation: usize) {
        let Stage::Moving { prefiller } = self.flights[conversation].stage else {
            return;
        };
        self.release_at(prefiller, conversation);
        self.counters.handoffs += 1;
        let flight = &mut self.flights[conversation];
        flight.conversation.handoffs += 1;
        flight.row.transfer_end_s = self.now;
        flight.ledger.spend(Part::Transfer, self.now);
        flight.row.prefiller = Some(prefiller);
        self.arrived(conversation);
    }

    fn release_at(&mut self, prefiller: usize, conversation: usize) {
        let pool = self.engines[prefiller].books(self.now);
        if self.scenario.remote.prefiller_cache {
            pool.idle(conversation, self.now);
        } else {
            pool.forget(conversation, self.now);
        }
        self.touch(prefiller);
    }

    /// The KV of the whole prompt is on the decoder: it goes on from there.
    fn arrived(&mut self, conversation: usize) {
        let job = self.job(conversation);
        let flight = &mut self.flights[conversation];
        let (decoder, emitted_at) = (flight.decoder, flight.emitted_at);
        flight.stage = Stage::Run;
        self.engines[decoder]
            .books(self.now)
            .computed(conversation, job.prompt);
        if let Some(at) = emitted_at.filter(|_| job.output == 1) {
            self.engines[decoder]
                .books(self.now)
                .idle(conversation, self.now);
            self.touch(decoder);
            let gaps = super::gaps::GapStats::NONE;
            return self.turn_ended(conversation, at, gaps);
        }
        // The last token of the prompt is computed again, to have the next one from it.
        let received = if emitted_at.is_some() {
            job.prompt
        } else {
            job.prompt - 1
        };
        let job = Job {
            received: Some(received),
            emitted_at,
            ..job
        };
        self.submit(decoder, job);
    }

    /// A handoff waited for room too long.
    pub(super) fn give_up(&mut self, conversation: usize, attempt: u64) {
        let flight = &self.flights[conversation];
        let Stage::MoveIn {
            prefiller: Some(prefiller),
        } = flight.stage
        else {
            return;
        };
        if flight.attempt != attempt {
            return;
        }
        let decoder = flight.decoder;
        self.incoming[decoder].retain(|other| *other != conversation);
        self.release_at(prefiller, conversation);
        self.counters.abandoned_handoffs += 1;
        let flight = &mut self.flights[conversation];
        flight.row.handoff_wait_s += self.now - flight.row.prefill_end_s;
        flight.ledger.spend(Part::HandoffWait, self.now);
        flight.stage = Stage::Run;
        let job = Job {
            emitted_at: flight.emitted_at,
            ..self.job(conversation)
        };
        self.submit(decoder, job);
    }
}
