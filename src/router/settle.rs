//! How a turn ends: the one place where what it holds is given back or becomes its conversation's.
//!
//! Order: blocks are booked before the word names them and leave the word before they are given
//! back, so the books never show less than is held.

use super::engine::Engine;
use super::grant::Grant;
use crate::activity::Doing;
use crate::conversation::{ConversationPhase, State};
use crate::event::{CloseReason, Event, FailReason, TurnKind, Usage};
use crate::fleet::Worker;
use crate::occupancy::Occupancy;
use crate::units::{BlockSize, Blocks, Timestamp, Tokens, WorkerId};

/// A prompt that a prefiller computed, less what it had.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Prefilled {
    pub(crate) prompt: Tokens,
    pub(crate) cached: Tokens,
}

impl Engine {
    /// What the turn does from now on, and where; its conversation is charged for what it did before.
    pub(crate) fn work(&self, grant: &mut Grant, next: Option<(WorkerId, Doing)>, now: Timestamp) {
        let same = |task: crate::activity::Task| Some((task.worker, task.doing)) == next;
        if grant.task.is_some_and(same) {
            return;
        }
        if let Some(task) = grant.task.take() {
            let computing = std::mem::take(&mut grant.computing);
            if computing > Tokens(0) {
                let decoder = self.fleet.worker(grant.decoder);
                decoder.computing.sub(u64::from(computing.0));
            }
            let charge = self.fleet.worker(task.worker).activity.end(task, now);
            grant.conversation.charge(charge);
        }
        grant.task = next.map(|(id, doing)| self.fleet.worker(id).activity.begin(id, doing, now));
    }

    /// The decoder computed what counted as computed there: its first token is here.
    pub(crate) fn computed_at_home(&self, grant: &Grant, now: Timestamp) {
        if grant.computing > Tokens(0) {
            let decoder = self.fleet.worker(grant.decoder);
            let (tokens, since) = (grant.computing, grant.started);
            decoder.throughput.done(tokens, since, now);
        }
    }

    /// The prompt is computed, or will not be: it no longer counts as queued.
    pub(crate) fn dequeue(&self, grant: &mut Grant, computed: Option<Prefilled>, now: Timestamp) {
        let Some(queued) = grant.queued.take() else {
            return;
        };
        let prefiller = self.fleet.worker(queued.prefiller);
        if let Some(Prefilled { prompt, cached }) = computed {
            let tokens = Tokens(prompt.0.saturating_sub(cached.0));
            prefiller.throughput.done(tokens, queued.since, now);
            prefiller.misses.served(now);
            self.tally.own().placed_tokens.add(u64::from(tokens.0));
            prefiller.activity.handled(tokens, Tokens(0));
            self.recent.add(tokens, Tokens(0), now);
            grant.conversation.worked(tokens);
            let (key, took) = (grant.key, now.since(queued.since));
            self.observers.tell(|| Event::Prefilled {
                at: now,
                key,
                prefiller: queued.prefiller,
                prompt,
                took,
            });
        }
        if prefiller.backlog.done(queued.tokens) {
            self.serve(now);
        }
    }

    /// Makes the booking fit the exact size of the prompt, as far as there is room.
    pub(crate) fn true_up(&self, grant: &mut Grant, prompt: Tokens, now: Timestamp) {
        let decoder = self.fleet.worker(grant.decoder);
        if !can_hold(decoder, grant.prompt, prompt) {
            return;
        }
        grant.prompt = prompt;
        let state = grant.conversation.state();
        let held = if state.is_on(grant.decoder) {
            state.blocks
        } else {
            Blocks::ZERO
        };
        let wanted = decoder.block_size().blocks(prompt).less(held);
        if wanted == grant.reserved {
            return;
        }
        let capacity = decoder.capacity().unwrap_or_default();
        let (reserved, somebody_waits) = decoder.occupancy.resize(grant.reserved, wanted, capacity);
        grant.reserved = reserved;
        if reserved < wanted {
            self.overcommitted(grant, wanted.less(reserved), now);
        }
        if somebody_waits {
            self.serve(now);
        }
    }

    fn overcommitted(&self, grant: &Grant, blocks: Blocks, now: Timestamp) {
        let (key, decoder) = (grant.key, grant.decoder);
        self.tally.own().overcommitted.add(1);
        self.observers.tell(|| Event::Overcommitted {
            at: now,
            key,
            decoder,
            blocks,
        });
    }

    /// The decoder has the KV: the conversation is pinned and holds what was booked for its prompt,
    /// those that waited for it may run.
    pub(crate) fn hand_over(&self, grant: &mut Grant, now: Timestamp) {
        if std::mem::replace(&mut grant.handed_over, true) {
            return;
        }
        let (decoder, blocks) = (grant.decoder, grant.reserved);
        let moved = grant
            .conversation
            .update(|state| state.hand_over(decoder, blocks));
        if let Ok((_, after)) = moved {
            let worker = self.fleet.worker(decoder);
            worker.occupancy.keep(blocks);
            self.note_held(worker, after.blocks, grant.conversation.last_used());
            grant.reserved = Blocks::ZERO;
            // This turn is still in flight itself.
            self.pinned(grant, after.in_flight > 1, now);
        }
    }

    fn pinned(&self, grant: &Grant, others: bool, now: Timestamp) {
        grant.conversation.note_pinned();
        let (key, decoder, handoff) = (grant.key, grant.decoder, grant.prefiller.is_some());
        if handoff {
            self.tally.own().handoffs.add(1);
            if let Some(since) = grant.prefilled {
                self.link.observe(grant.prompt, now.since(since));
            }
        }
        let took = now.since(grant.started);
        self.observers.tell(|| Event::HandedOver {
            at: now,
            key,
            decoder,
            took,
            handoff,
        });
        if others {
            self.serve_those_of(key, now);
        }
    }

    pub(crate) fn finish(&self, grant: &mut Grant, usage: Usage, now: Timestamp) {
        self.dequeue(grant, None, now);
        self.work(grant, None, now);
        let decoder = self.fleet.worker(grant.decoder);
        let told = usage.prompt.unwrap_or(grant.prompt) + usage.output.unwrap_or_default();
        let used = if can_hold(decoder, grant.prompt, told) {
            told
        } else {
            grant.prompt
        };
        let actual = decoder.block_size().blocks(used);
        let settled = self.leave_blocks(grant, decoder, actual, usage, now);
        grant.conversation.touch(now);
        // Wherever the conversation is by now, it counts as used.
        if let Some(home) = settled.after.decoder {
            self.note_held(self.fleet.worker(home), settled.after.blocks, now);
        }
        let computed = computed_on_decoder(
            grant,
            usage,
            decoder.block_size().tokens(settled.before.blocks),
        );
        decoder.misses.served(now);
        let output = usage.output.unwrap_or_default();
        if grant.kind != TurnKind::Pinned {
            self.tally.own().placed_tokens.add(u64::from(computed.0));
        }
        let uncounted = Tokens(output.0.saturating_sub(grant.counted.0));
        decoder.activity.handled(computed, uncounted);
        self.recomputed(grant, usage, computed, now);
        if let (TurnKind::First, None, Some(cached)) = (grant.kind, grant.prefiller, usage.cached) {
            self.shared_head.observe(cached);
        }
        grant.conversation.set_context(used);
        grant.conversation.worked(computed + output);
        if settled.missing > Blocks::ZERO {
            self.overcommitted(grant, settled.missing, now);
        }
        if settled.before.phase == ConversationPhase::Placing
            && settled.after.phase == ConversationPhase::Pinned
        {
            self.pinned(grant, settled.after.in_flight > 0, now);
        }
        let Grant {
            key,
            decoder,
            turn,
            kind,
            ..
        } = *grant;
        self.tally.own().finished.add(1);
        let (took, blocks) = (now.since(grant.started), settled.after.blocks);
        let pace = grant.pace(usage, now);
        if let Some(gap) = pace.tbt.filter(|_| !self.sticky) {
            let gaps = usage.output.map_or(0, |output| output.0.saturating_sub(1));
            self.fleet.worker(decoder).steps.observe(gap, gaps);
        }
        self.observers.tell(|| Event::TurnFinished {
            at: now,
            key,
            decoder,
            turn,
            kind,
            usage,
            took,
            pace,
            blocks,
        });
        if settled.somebody_waits || self.may_help(settled.after, decoder) {
            self.serve(now);
        }
    }

    /// Counts what the turn computed on its decoder, and what of its prompt an earlier turn had computed already.
    fn recomputed(&self, grant: &Grant, usage: Usage, computed: Tokens, now: Timestamp) {
        let decoder = self.fleet.worker(grant.decoder);
        let again = computed_again(grant, usage, decoder.block_size());
        self.recent.add(computed, again, now);
        if again > Tokens(0) {
            self.tally.own().recomputed_tokens.add(u64::from(again.0));
            let (key, decoder, kind) = (grant.key, grant.decoder, grant.kind);
            self.observers.tell(|| Event::Recomputed {
                at: now,
                key,
                decoder,
                kind,
                tokens: again,
            });
        }
    }

    /// Whether somebody waits whom the end of a turn may let run although it gave nothing back: the
    /// next turn of the same conversation, which now needs less; one that may evict the conversation
    /// now that it is idle; the last one that leaves a draining decoder.
    /// They look at where the conversation is, which need not be where the turn was. Where the turn was, nothing may run any
    /// more: then what is idle there may be evicted, whatever is computed again. What it computed counts for that everywhere.
    fn may_help(&self, after: State, was_on: WorkerId) -> bool {
        let evicts = self.config.evict_idle;
        let home = after.decoder.filter(|_| after.in_flight > 0 || evicts);
        let left = Some(was_on).filter(|left| evicts && home != Some(*left));
        let waited_for = |id: &WorkerId| self.fleet.worker(*id).occupancy.somebody_waits();
        // Whoever waits does not wait for a lost one, so nobody is flagged there.
        let lost = || evicts && self.fleet.worker(was_on).is_lost();
        // Growth that waits is flagged where it waits alone.
        let growth = || evicts && self.config.tail_waits && self.line.tail() > 0;
        home.iter().chain(&left).any(waited_for) || lost() || growth()
    }

    /// Turns the reservation into blocks of the conversation. Alone in flight, the turn knows what
    /// the conversation holds; otherwise it holds at least what it held. What the engine keeps beside that stays booked too.
    fn leave_blocks(
        &self,
        grant: &Grant,
        decoder: &Worker,
        actual: Blocks,
        usage: Usage,
        now: Timestamp,
    ) -> Settled {
        let (books, capacity) = (&decoder.occupancy, decoder.capacity().unwrap_or_default());
        let mut reserved = Some(grant.reserved);
        let (mut held, mut waited_for) = (i64::from(grant.reserved.get()), false);
        loop {
            let before = grant.conversation.state();
            if !before.is_on(grant.decoder) {
                let after = before.leave();
                if grant.conversation.replace(before, after) {
                    // The conversation is gone from here, the turn is not: its engine keeps it.
                    let kept_until = self.kept_until(now, now);
                    let kept = if kept_until.is_some() { held } else { 0 };
                    let kept_blocks = Blocks::new(u64::try_from(kept).unwrap_or(0));
                    (decoder.retained).add(kept_blocks, kept_until.unwrap_or_default());
                    let somebody_waits =
                        waited_for | give_back(books, reserved, held, kept, capacity);
                    return Settled {
                        before,
                        after,
                        missing: Blocks::ZERO,
                        somebody_waits,
                    };
                }
                continue;
            }
            let target = if before.in_flight <= 1 {
                actual
            } else {
                actual.max(before.blocks)
            };
            let behind = self.stays_behind(grant, (before, target, actual), usage, now);
            let growth = i64::from(target.get()) - i64::from(before.blocks.get());
            let wanted = growth + i64::from(behind.blocks.get());
            if wanted > held {
                let (now_held, waits) = match reserved.take() {
                    Some(reserved) => books.settle(reserved, wanted, capacity),
                    None => grow(books, held, wanted, capacity),
                };
                held = now_held;
                waited_for |= waits;
            }
            let kept = wanted.min(held);
            let blocks = i64::from(before.blocks.get()) + kept.min(growth);
            let after = before.settle(Blocks::new(u64::try_from(blocks).unwrap_or(0)));
            if grant.conversation.replace(before, after) {
                let beside = Blocks::new(u64::try_from(kept - growth).unwrap_or(0));
                decoder.retained.add(beside, behind.until);
                let somebody_waits = waited_for | give_back(books, reserved, held, kept, capacity);
                let missing = Blocks::new(u64::try_from(wanted - kept).unwrap_or(0));
                return Settled {
                    before,
                    after,
                    missing,
                    somebody_waits,
                };
            }
        }
    }

    /// KV that was computed for this turn and not pulled stays at its prefiller until the engine's lease ends.
    pub(crate) fn forsake(&self, grant: &Grant, now: Timestamp) {
        let Some(prefiller) =
            (grant.prefiller).filter(|_| grant.queued.is_none() && !grant.handed_over)
        else {
            return;
        };
        let key = grant.key;
        self.observers.tell(|| Event::Orphaned {
            at: now,
            key,
            prefiller,
        });
    }

    pub(crate) fn fail(&self, grant: &mut Grant, why: FailReason, now: Timestamp) {
        let was_computed = grant.prefiller.is_some() && grant.queued.is_none();
        self.dequeue(grant, None, now);
        self.work(grant, None, now);
        let decoder = self.fleet.worker(grant.decoder);
        if matches!(why, FailReason::DecoderError | FailReason::Timeout) {
            decoder.misses.missed(now);
        }
        let never_pinned = !grant.conversation.was_pinned();
        let (brings, lost) = (!grant.handed_over, why == FailReason::DecoderLost);
        // What its conversation had at home before is there still, and may be found again there by a turn beside this one.
        let lent = grant.lent.min(grant.reserved);
        let step = |state: State| -> Result<State, std::convert::Infallible> {
            let brings = brings && state.phase == ConversationPhase::Placing;
            Ok(if !state.is_on(grant.decoder) {
                state.leave()
            } else if !lost && lent > Blocks::ZERO {
                state.settle(state.blocks.max(lent))
            } else if !(brings || lost) {
                state.leave()
            } else if brings && never_pinned && state.in_flight == 1 {
                state.close().map_or(state, State::leave)
            } else {
                state.unpin().leave()
            })
        };
        let Ok((before, after)) = grant.conversation.update(step);
        let freed = before.blocks.less(after.blocks);
        if after.is_on(grant.decoder) {
            self.note_held(decoder, after.blocks, grant.conversation.last_used());
        }
        let moved = before.phase != after.phase;
        if moved && after.phase != ConversationPhase::Pinned {
            decoder.conversations.sub(1);
        }
        let capacity = decoder.capacity().unwrap_or_default();
        // An engine that pins keeps what the conversation had, whatever became of the conversation.
        let had = if after.is_on(grant.decoder) {
            Blocks::ZERO
        } else {
            freed.plus(lent)
        };
        let kept_until = self
            .kept_until(grant.conversation.last_used(), now)
            .filter(|_| !decoder.is_lost());
        let stays = kept_until.map_or(Blocks::ZERO, |_| had);
        decoder.retained.add(stays, kept_until.unwrap_or_default());
        let held = |state: State| i64::from(state.blocks.get());
        let keep = held(after) + i64::from(stays.get()) - held(before);
        let (_, somebody_waits) = decoder.occupancy.settle(grant.reserved, keep, capacity);
        let Grant {
            key, decoder, turn, ..
        } = *grant;
        self.tally.own().failed.add(1);
        let took = now.since(grant.started);
        self.observers.tell(|| Event::TurnFailed {
            at: now,
            key,
            decoder,
            turn,
            why,
            took,
        });
        if was_computed
            && before.phase == ConversationPhase::Placing
            && let Some(prefiller) = grant.prefiller
        {
            self.observers.tell(|| Event::Orphaned {
                at: now,
                key,
                prefiller,
            });
        }
        if moved && after.phase == ConversationPhase::Closed {
            self.ended(
                key,
                &grant.conversation,
                CloseReason::NeverPlaced,
                freed,
                now,
            );
        } else if moved && after.in_flight > 0 {
            self.serve_those_of(key, now);
            return;
        }
        if somebody_waits || self.may_help(after, decoder) {
            self.serve(now);
        }
    }
}

/// Prompt tokens that the decoder computed: what the engine says, else what was not there before.
fn computed_on_decoder(grant: &Grant, usage: Usage, resident: Tokens) -> Tokens {
    let prompt = usage.prompt.unwrap_or(grant.prompt);
    let there = match (usage.cached, grant.kind) {
        // Handed over. What an engine then tells as cached is what its prefiller found.
        (_, TurnKind::First | TurnKind::Relocated) if grant.prefiller.is_some() => prompt,
        (Some(cached), _) => cached,
        (None, TurnKind::Pinned) => resident,
        (None, TurnKind::First | TurnKind::Relocated) => Tokens(0),
    };
    Tokens(prompt.0.saturating_sub(there.0))
}

/// Prompt tokens computed again. The KV of all tokens but the last was there, and whole blocks of it are found again; a
/// worker that does not say what it found, or a prompt shorter than what was there, tells nothing, unless the
/// conversation moved. A client that rewrites its history makes the worker compute again too, and is counted.
fn computed_again(grant: &Grant, usage: Usage, block: BlockSize) -> Tokens {
    let (prompt, context) = (usage.prompt.unwrap_or(grant.prompt), grant.context);
    let found = match grant.kind {
        TurnKind::First => return Tokens(0),
        TurnKind::Pinned if prompt < context => return Tokens(0),
        TurnKind::Pinned => match usage.cached {
            Some(found) => found,
            None => return Tokens(0),
        },
        TurnKind::Relocated => usage.cached.unwrap_or_default(),
    };
    // Of the prompt, too, the last token is always computed.
    let there = prompt.min(context).0.saturating_sub(1);
    Tokens((there - there % block.get()).saturating_sub(found.0))
}

/// Whether a count can be true. One above the longest context is a worker's mistake, and would book the whole decoder for
/// a conversation that has nothing there. Where no longest context is told, what the decoder holds bounds it, and how
/// far a count can be from what we `estimated`: a token is many bytes or few, and an answer has its length.
fn can_hold(decoder: &Worker, estimated: Tokens, counted: Tokens) -> bool {
    match (decoder.max_model_len(), decoder.prompt_limit()) {
        (Some(longest), _) => counted <= longest,
        (None, limit) => {
            let plausible = estimated.0.saturating_mul(16).saturating_add(65_536);
            counted <= limit.map_or(Tokens(plausible), |limit| limit.min(Tokens(plausible)))
        }
    }
}

/// What a finished turn left.
struct Settled {
    before: State,
    after: State,
    /// Blocks that the conversation has on the decoder and that the books had no room for.
    missing: Blocks,
    somebody_waits: bool,
}

/// Of `held` blocks, `kept` are the conversation's now; the rest goes. Whether somebody waits for it.
fn give_back(
    books: &Occupancy,
    reserved: Option<Blocks>,
    held: i64,
    kept: i64,
    capacity: Blocks,
) -> bool {
    match reserved {
        Some(reserved) => books.settle(reserved, kept, capacity).1,
        None => books.release(Blocks::new(u64::try_from(held - kept).unwrap_or(0))),
    }
}

/// From `held` blocks to `wanted`, as far as there is room; whether somebody waits.
fn grow(books: &Occupancy, held: i64, wanted: i64, capacity: Blocks) -> (i64, bool) {
    let more = Blocks::new(u64::try_from(wanted - held).unwrap_or(0));
    let (taken, somebody_waits) = books.grow(more, capacity);
    (held + i64::from(taken.get()), somebody_waits)
}
