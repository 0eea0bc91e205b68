//! Finding a place for a conversation that has none, and taking it.
//!
//! A place is booked before the conversation's word names it; whoever loses the race for the word
//! gives the booking back.

use std::sync::Arc;

use super::engine::{Asking, Attempt, Engine, Lack};
use super::grant::{Grant, Queued};
use crate::activity::Doing;
use crate::admission::Queue;
use crate::conversation::{Conversation, State};
use crate::error::Rejected;
use crate::event::{Reason, TurnKind};
use crate::fleet::Worker;
use crate::occupancy::{Ceiling, Rank, Reservation};
use crate::placement::{Decision, Shortage, TurnView};
use crate::units::{Blocks, Timestamp, Tokens};

/// A place that is booked but not taken yet.
pub(crate) struct Booked<'a> {
    decoder: &'a Worker,
    prefiller: Option<&'a Worker>,
    /// Tokens queued at the prefiller.
    compute: Tokens,
    reservation: Reservation<'a>,
    reason: Reason,
}

/// Decisions to try while the books move under them.
const TRIES: usize = 16;

impl Engine {
    pub(super) fn attempt_new(&self, asking: &Asking, now: Timestamp) -> Attempt {
        if self.table.len() >= self.config.max_conversations {
            let retry_after = self.line.retry_after(self.line.newcomers(), now);
            return Attempt::Refuse(Rejected::Overloaded { retry_after });
        }
        self.place(None, asking, now)
    }

    /// Places a conversation whose KV is gone.
    pub(super) fn place_again(
        &self,
        conversation: &Arc<Conversation>,
        state: State,
        asking: &Asking,
        now: Timestamp,
    ) -> Attempt {
        let asking = Asking {
            from: state.decoder.or(asking.from),
            ..*asking
        };
        self.place(Some((conversation, state)), &asking, now)
    }

    /// Finds a place and takes it.
    pub(super) fn place(
        &self,
        known: Option<(&Arc<Conversation>, State)>,
        asking: &Asking,
        now: Timestamp,
    ) -> Attempt {
        let turn = TurnView {
            tie: asking.key.folded(),
            prompt: asking.prompt,
            home: None,
            resident: Tokens(0),
            returns: known.is_some_and(|(conversation, _)| conversation.was_pinned()),
        };
        if !asking.waited {
            self.note_work();
        }
        let mut booked = self.book(&turn, Blocks::ZERO, asking, now);
        if self.config.evict_idle
            && (asking.waited || self.line.newcomers() == 0)
            && let Err(Decision::Wait(Shortage::Blocks)) = booked
        {
            let spare = known.map(|(conversation, _)| conversation);
            let freed = self.make_room_somewhere(asking.prompt, spare, now);
            booked = self.book(&turn, Blocks::ZERO, asking, now);
            if freed.somebody_waits && !asking.waited {
                self.serve(now);
            }
        }
        match booked {
            Ok(booked) => self.take(known, booked, asking, now),
            Err(Decision::TooLong { limit }) => Attempt::Refuse(Rejected::PromptTooLong {
                tokens: asking.prompt,
                limit,
            }),
            Err(Decision::Wait(Shortage::Decoders)) => {
                Attempt::Wait(Queue::Newcomers, Lack::Decoders)
            }
            Err(Decision::Wait(_) | Decision::Stay | Decision::Queue | Decision::Place { .. }) => {
                Attempt::Wait(Queue::Newcomers, Lack::Room)
            }
        }
    }

    /// Books the place that the policy chooses; the decision that stands in the way otherwise. At its home, which holds
    /// `held` blocks of the conversation, only what it lacks.
    pub(super) fn book(
        &self,
        turn: &TurnView,
        held: Blocks,
        asking: &Asking,
        now: Timestamp,
    ) -> Result<Booked<'_>, Decision> {
        let mut decision = self.policy.place(turn, &self.observed(now));
        for _ in 0..TRIES {
            let Decision::Place {
                prefiller,
                decoder,
                compute,
                ceiling,
                alone,
                reason,
            } = decision
            else {
                return Err(decision);
            };
            // First come, first served: who is in the line was here before.
            if !asking.waited && turn.home.is_none() && self.line.newcomers() > 0 {
                return Err(Decision::Wait(Shortage::Prefill));
            }
            let decoder = self.fleet.worker(decoder);
            let prefiller = prefiller.map(|id| self.fleet.worker(id));
            let at_home = turn.home == Some(decoder.id);
            let need = decoder.block_size().blocks(turn.prompt);
            let need = if at_home { need.less(held) } else { need };
            let ceiling = Ceiling {
                shared: ceiling,
                alone,
            };
            // Arriving also for those from the line: a newcomer never takes what growth waits for.
            let rank = if at_home {
                asking.rank()
            } else {
                Rank::Arriving
            };
            let asked = decoder.occupancy.try_reserve(need, ceiling, rank);
            if asked.somebody_waits && !asking.waited {
                self.serve(now);
            }
            if let Some(reservation) = asked.reservation {
                // A conversation with a home is admitted already: the backlog's limit is not asked.
                let limit = |worker: &Worker| match turn.home {
                    Some(_) => Tokens(u32::MAX),
                    None => worker.backlog_limit,
                };
                let admits = |worker: &Worker| worker.backlog.try_add(compute, limit(worker));
                if prefiller.is_none_or(admits) {
                    return Ok(Booked {
                        decoder,
                        prefiller,
                        compute,
                        reservation,
                        reason,
                    });
                }
                self.give_back(reservation, asking.waited, now);
            }
            decision = self.policy.place(turn, &self.observed(now));
        }
        Err(Decision::Wait(Shortage::Prefill))
    }

    /// Moves the conversation to its booked place and makes the grant.
    pub(super) fn take(
        &self,
        known: Option<(&Arc<Conversation>, State)>,
        booked: Booked<'_>,
        asking: &Asking,
        now: Timestamp,
    ) -> Attempt {
        let Booked {
            decoder,
            prefiller,
            compute,
            reservation,
            reason,
        } = booked;
        let give_up = |reservation: Reservation<'_>| {
            let queued = prefiller.is_some_and(|worker| worker.backlog.done(compute));
            if (reservation.cancel() | queued) && !asking.waited {
                self.serve(now);
            }
        };
        // What its conversation holds there already, if the turn does not move it.
        let mut held = Blocks::ZERO;
        let (conversation, turn) = if let Some((conversation, state)) = known {
            let next = match state.place(decoder.id, asking.waited) {
                Ok(next) => next,
                Err(refused) => {
                    give_up(reservation);
                    return Self::refused(refused);
                }
            };
            if !conversation.replace(state, next) {
                give_up(reservation);
                return Attempt::Again;
            }
            if state.is_on(decoder.id) {
                held = state.blocks;
                decoder.occupancy.lend(held);
            } else {
                self.left(state, conversation.last_used(), asking.waited, now);
                decoder.conversations.add(1);
            }
            (Arc::clone(conversation), next.turn)
        } else {
            let born = State::born(Some(decoder.id));
            let conversation = Arc::new(Conversation::new(born, now));
            if !self.table.insert(asking.key, &conversation) {
                give_up(reservation);
                return Attempt::Again;
            }
            self.tally.own().opened.add(1);
            decoder.conversations.add(1);
            (conversation, born.turn)
        };
        conversation.touch(now);
        self.note_held(decoder, held, now);
        self.may_lose_room(decoder, asking.key, &conversation, now);
        let first = !conversation.was_pinned();
        let computes = prefiller.unwrap_or(decoder);
        let context = conversation.context();
        let grant = Grant {
            key: asking.key,
            conversation,
            decoder: decoder.id,
            prefiller: prefiller.map(|worker| worker.id),
            task: Some(computes.activity.begin(computes.id, Doing::Prefill, now)),
            queued: prefiller.map(|worker| Queued {
                prefiller: worker.id,
                tokens: compute,
                since: now,
            }),
            computing: match prefiller {
                None => {
                    let shared = self.shared_head.get().0;
                    self.computing(decoder, Tokens(asking.prompt.0.saturating_sub(shared)))
                }
                Some(_) => Tokens(0),
            },
            reserved: reservation.hand_to_turn().plus(held),
            lent: held,
            prompt: asking.prompt,
            context,
            turn: u32::from(turn),
            kind: if first {
                TurnKind::First
            } else {
                TurnKind::Relocated
            },
            reason,
            arrived: asking.arrived,
            started: now,
            first_token: None,
            last_token: None,
            counted: Tokens(0),
            handed_over: false,
            prefilled: None,
            from: asking.from,
        };
        self.line.admitted(now);
        self.count_placed(&grant);
        self.admitted(asking, grant.decoder, now);
        self.placed(&grant, now);
        self.turn_started(grant.key, grant.decoder, grant.turn, grant.kind, now);
        Attempt::Run(grant)
    }

    fn count_placed(&self, grant: &Grant) {
        let own = self.tally.own();
        let counter = match (grant.reason, grant.prefiller) {
            (Reason::Moved { .. }, _) => &own.placed_moved,
            (Reason::KvGone { .. }, _) => &own.placed_afresh,
            (_, Some(_)) => &own.placed_handoff,
            (_, None) => &own.placed_local,
        };
        counter.add(1);
    }

    /// A conversation left the decoder of `old`, which it used last at `used`: what it held there is given back.
    pub(super) fn left(&self, old: State, used: Timestamp, holds_line: bool, now: Timestamp) {
        let Some(id) = old.decoder else { return };
        let decoder = self.fleet.worker(id);
        decoder.conversations.sub(1);
        if self.let_go(decoder, old.blocks, used, now) && !holds_line {
            self.serve(now);
        }
    }
}
