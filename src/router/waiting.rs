//! Serving the line: who joins it, who is next, who leaves.
//!
//! A waiter is counted in its conversation's word, so whoever moves the conversation on learns from
//! the same atomic step that somebody waits for it. Everything here runs with the line locked;
//! tickets are locked after the line, never before.

use std::ops::Bound;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use super::engine::{Asking, Attempt, Begun, Engine};
use super::ticket::Place;
use crate::admission::{Answer, Cell, Queue, Queues, Waiter};
use crate::conversation::{Conversation, ConversationPhase, Refused, State};
use crate::error::Rejected;
use crate::event::{CloseReason, Event};
use crate::occupancy::GROWTH_WAITS;
use crate::units::{Blocks, ConversationKey, Timestamp, WorkerId};

/// A conversation that counts a waiter, and the decoder that it was on before.
type CountedIn = (Arc<Conversation>, Option<WorkerId>);

/// What became of a waiter that was looked at.
enum Look {
    /// Answered: granted or refused.
    Answered(Option<Waker>),
    /// Still waits, in this queue.
    Waits(Queue),
    /// Its ticket was given up meanwhile.
    Gone,
}

impl Engine {
    /// Puts a turn in the line, counted in its conversation, and serves the line once more: what
    /// was freed before anybody knew of this waiter is found now. `None`: look again from the start.
    pub(super) fn enqueue(
        &self,
        found: Option<&Arc<Conversation>>,
        queue: Queue,
        asking: &Asking,
        deadline: Timestamp,
        now: Timestamp,
    ) -> Result<Option<Begun>, Rejected> {
        self.latest.set(now.0);
        let cell = Arc::new(Cell::new());
        let number = self.line.with(|queues, wakers| {
            let standing = match queue {
                Queue::Newcomers | Queue::Returning => queues.newcomers.len(),
                Queue::Growth(_) | Queue::Followers => queues.tail_len(),
            };
            if standing >= self.config.queue_limit {
                let retry_after = self.line.retry_after(standing, now);
                return Err(Rejected::Overloaded { retry_after });
            }
            let Some((conversation, from)) = self.count_in(found, queue, asking, now)? else {
                return Ok(None);
            };
            let number = queues.ticket_number(queue);
            self.tally.own().waits(queue).add(1);
            let waiter = Waiter {
                key: asking.key,
                conversation,
                prompt: asking.prompt,
                arrived: asking.arrived,
                deadline,
                from,
                cell: Arc::clone(&cell),
            };
            self.tell_givers(queues, queue);
            queues.push(queue, number, waiter);
            let (key, ahead) = (asking.key, queues.ahead_of(number));
            self.observers.tell(|| Event::Queued {
                at: now,
                key,
                ahead,
            });
            self.pump(queues, wakers, now);
            Ok(Some(number))
        })?;
        let Some(number) = number else {
            return Ok(None);
        };
        let place = Place {
            number,
            cell,
            key: asking.key,
            deadline,
            arrived: now,
        };
        // Taken in one step: a cell that looked given up for a moment would be thrown out of the line.
        let answer = place.cell.with(|answer| match answer {
            Answer::Granted(_) | Answer::Refused(_) => std::mem::replace(answer, Answer::Gone),
            Answer::Waiting(_) | Answer::Gone => Answer::Waiting(None),
        });
        match answer {
            Answer::Granted(grant) => Ok(Some(Begun::Granted(*grant))),
            Answer::Refused(rejected) => Err(rejected),
            Answer::Waiting(_) | Answer::Gone => Ok(Some(Begun::Queued(place))),
        }
    }

    /// Counts a waiter in its conversation's word, from the state in which it has to wait.
    fn count_in(
        &self,
        found: Option<&Arc<Conversation>>,
        queue: Queue,
        asking: &Asking,
        now: Timestamp,
    ) -> Result<Option<CountedIn>, Rejected> {
        let Some(conversation) = found else {
            let conversation = Arc::new(Conversation::new(State::born(None), now));
            if !self.table.insert(asking.key, &conversation) {
                return Ok(None);
            }
            self.tally.own().opened.add(1);
            return Ok(Some((conversation, None)));
        };
        let state = conversation.state();
        let next = match (queue, state.phase, state.decoder) {
            (Queue::Growth(on), ConversationPhase::Pinned, Some(id)) if on == id => state.wait(),
            (Queue::Followers, ConversationPhase::Placing, _) => state.wait(),
            (Queue::Newcomers, ConversationPhase::Unpinned, _)
            | (Queue::Returning, ConversationPhase::Pinned, Some(_)) => state.seek(false),
            (Queue::Newcomers, ConversationPhase::Pinned, Some(id))
                if !Self::stays(self.fleet.worker(id), state, asking) =>
            {
                state.seek(false)
            }
            _ => return Ok(None),
        };
        let next = match next {
            Ok(next) => next,
            Err(Refused::Full) => {
                return Err(Rejected::Overloaded {
                    retry_after: Duration::from_secs(1),
                });
            }
            Err(Refused::Closed | Refused::Moved) => return Ok(None),
        };
        if !conversation.replace(state, next) {
            return Ok(None);
        }
        let moves = matches!(queue, Queue::Newcomers | Queue::Returning);
        if moves {
            self.left(state, conversation.last_used(), true, now);
        }
        let from = if moves { state.decoder } else { None };
        Ok(Some((Arc::clone(conversation), from)))
    }

    /// Makes those who give back see that somebody waits.
    fn tell_givers(&self, queues: &mut Queues, queue: Queue) {
        match queue {
            Queue::Newcomers | Queue::Returning => {
                if !queues.flagged {
                    queues.flagged = true;
                    self.fleet.flag_newcomers(true);
                }
            }
            Queue::Growth(decoder) => {
                if queues.growing.insert(decoder) {
                    self.fleet
                        .worker(decoder)
                        .occupancy
                        .flag(GROWTH_WAITS, true);
                }
            }
            Queue::Followers => {}
        }
    }

    /// Serves the line: something was freed.
    pub(crate) fn serve(&self, now: Timestamp) {
        self.latest.set(now.0);
        self.line
            .with(|queues, wakers| self.pump(queues, wakers, now));
    }

    /// The conversation moved on while turns wait for it.
    pub(crate) fn serve_those_of(&self, key: ConversationKey, now: Timestamp) {
        self.latest.set(now.0);
        self.line.with(|queues, wakers| {
            self.move_on(key, queues, wakers, now);
            self.pump(queues, wakers, now);
        });
    }

    /// Looks again at every waiter of one conversation.
    fn move_on(
        &self,
        key: ConversationKey,
        queues: &mut Queues,
        wakers: &mut Vec<Waker>,
        now: Timestamp,
    ) {
        for number in queues.of(key) {
            let Some((queue, waiter)) = queues.remove(number) else {
                continue;
            };
            let closed = waiter.conversation.state().phase == ConversationPhase::Closed;
            if queue == Queue::Newcomers && !closed {
                // It brings its conversation to a decoder itself, when it is its turn.
                queues.push(queue, number, waiter);
                continue;
            }
            let look = self.look(&waiter, now);
            self.file(queues, wakers, (number, queue, waiter), look, now);
        }
    }

    /// Serves whom it can: first those that grow, decoder by decoder, then newcomers.
    fn pump(&self, queues: &mut Queues, wakers: &mut Vec<Waker>, now: Timestamp) {
        loop {
            let mut moved = false;
            let mut next = queues.growth.keys().next().map(|(decoder, _)| *decoder);
            while let Some(decoder) = next {
                moved |= self.serve_growth(decoder, queues, wakers, now);
                let after = (Bound::Excluded((decoder, u64::MAX)), Bound::Unbounded);
                next = queues
                    .growth
                    .range(after)
                    .next()
                    .map(|((decoder, _), _)| *decoder);
            }
            self.tell_givers_less(queues);
            moved |= self.serve_newcomers(queues, wakers, now);
            if !moved {
                break;
            }
        }
        self.tell_givers_less(queues);
    }

    /// Lets those who give back know that nobody waits any more, where that is so.
    fn tell_givers_less(&self, queues: &mut Queues) {
        if queues.flagged && queues.newcomers.is_empty() {
            queues.flagged = false;
            self.fleet.flag_newcomers(false);
        }
        let Queues {
            growing, growth, ..
        } = queues;
        growing.retain(|decoder| {
            let waits = growth
                .range((*decoder, 0)..=(*decoder, u64::MAX))
                .next()
                .is_some();
            if !waits {
                self.fleet
                    .worker(*decoder)
                    .occupancy
                    .flag(GROWTH_WAITS, false);
            }
            waits
        });
    }

    fn serve_growth(
        &self,
        decoder: WorkerId,
        queues: &mut Queues,
        wakers: &mut Vec<Waker>,
        now: Timestamp,
    ) -> bool {
        let mut moved = false;
        let all = (decoder, 0)..=(decoder, u64::MAX);
        while let Some((_, number)) = queues.growth.range(all.clone()).next().map(|(at, _)| *at) {
            let Some(waiter) = queues.growth.remove(&(decoder, number)) else {
                break;
            };
            let look = self.look(&waiter, now);
            let waits_on = matches!(look, Look::Waits(Queue::Growth(on)) if on == decoder);
            self.file(
                queues,
                wakers,
                (number, Queue::Growth(decoder), waiter),
                look,
                now,
            );
            if waits_on {
                return moved;
            }
            moved = true;
        }
        moved
    }

    fn serve_newcomers(
        &self,
        queues: &mut Queues,
        wakers: &mut Vec<Waker>,
        now: Timestamp,
    ) -> bool {
        let mut moved = false;
        while let Some((number, waiter)) = queues.newcomers.pop_first() {
            let look = self.look_for_place(&waiter, now);
            let waits_on = matches!(look, Look::Waits(Queue::Newcomers));
            self.file(
                queues,
                wakers,
                (number, Queue::Newcomers, waiter),
                look,
                now,
            );
            if waits_on {
                break;
            }
            moved = true;
        }
        moved
    }

    /// Acts on what became of a waiter that was taken out of `queue`.
    fn file(
        &self,
        queues: &mut Queues,
        wakers: &mut Vec<Waker>,
        (number, queue, waiter): (u64, Queue, Waiter),
        look: Look,
        now: Timestamp,
    ) {
        match look {
            Look::Answered(waker) => {
                wakers.extend(waker);
                if waiter
                    .cell
                    .with(|answer| matches!(answer, Answer::Refused(_)))
                {
                    self.count_out(&waiter, queue, queues, wakers, now);
                }
            }
            Look::Waits(queue) => {
                self.tell_givers(queues, queue);
                queues.push(queue, number, waiter);
            }
            Look::Gone => self.count_out(&waiter, queue, queues, wakers, now),
        }
    }

    /// Looks whether a waiter may run where its conversation is now.
    fn look(&self, waiter: &Waiter, now: Timestamp) -> Look {
        Self::answering(waiter, |asking| {
            loop {
                let state = waiter.conversation.state();
                let homeless = match (state.phase, state.decoder) {
                    (ConversationPhase::Unpinned, _) => true,
                    (ConversationPhase::Pinned, Some(id)) => {
                        !Self::stays(self.fleet.worker(id), state, asking)
                    }
                    _ => false,
                };
                if !homeless {
                    match self.attempt(&waiter.conversation, asking, now) {
                        Attempt::Again => continue,
                        attempt => return attempt,
                    }
                }
                // It becomes the one that brings the conversation to its next decoder.
                if let Ok(next) = state.seek(true)
                    && waiter.conversation.replace(state, next)
                {
                    self.left(state, waiter.conversation.last_used(), true, now);
                    return Attempt::Wait(Queue::Newcomers, super::engine::Lack::Room);
                }
            }
        })
    }

    /// Looks whether the first in the line finds a place.
    fn look_for_place(&self, waiter: &Waiter, now: Timestamp) -> Look {
        Self::answering(waiter, |asking| {
            loop {
                let state = waiter.conversation.state();
                if state.phase == ConversationPhase::Closed {
                    return Attempt::Refuse(Rejected::Closed);
                }
                match self.place(Some((&waiter.conversation, state)), asking, now) {
                    Attempt::Again => {}
                    attempt => return attempt,
                }
            }
        })
    }

    /// Runs `attempt` while the ticket cannot be given up, and writes its answer.
    fn answering(waiter: &Waiter, attempt: impl FnOnce(&Asking) -> Attempt) -> Look {
        let asking = Asking {
            key: waiter.key,
            prompt: waiter.prompt,
            arrived: waiter.arrived,
            waited: true,
            patient: true,
            from: waiter.from,
        };
        waiter.cell.with(|answer| {
            let Answer::Waiting(waker) = answer else {
                return Look::Gone;
            };
            let (waker, next) = match attempt(&asking) {
                Attempt::Run(grant) => (waker.take(), Answer::Granted(Box::new(grant))),
                Attempt::Refuse(rejected) => (waker.take(), Answer::Refused(rejected)),
                Attempt::Wait(queue, _) => return Look::Waits(queue),
                Attempt::Again => unreachable!("both attempts repeat until they know"),
            };
            *answer = next;
            Look::Answered(waker)
        })
    }

    /// A waiter that did not get to run is no longer counted in its conversation.
    fn count_out(
        &self,
        waiter: &Waiter,
        queue: Queue,
        queues: &mut Queues,
        wakers: &mut Vec<Waker>,
        now: Timestamp,
    ) {
        let never_pinned = !waiter.conversation.was_pinned();
        let step = |state: State| -> Result<State, std::convert::Infallible> {
            let seeks = queue == Queue::Newcomers
                && state.phase == ConversationPhase::Placing
                && state.decoder.is_none();
            Ok(if !seeks {
                state.leave()
            } else if state.in_flight == 1 && never_pinned {
                state.close().map_or(state, State::leave)
            } else {
                state.unpin().leave()
            })
        };
        let Ok((before, after)) = waiter.conversation.update(step);
        if before.phase != ConversationPhase::Closed && after.phase == ConversationPhase::Closed {
            self.ended(
                waiter.key,
                &waiter.conversation,
                CloseReason::NeverPlaced,
                Blocks::ZERO,
                now,
            );
        } else if after.phase == ConversationPhase::Unpinned && after.in_flight > 0 {
            self.move_on(waiter.key, queues, wakers, now);
        }
    }

    /// A closed conversation leaves the table.
    pub(crate) fn ended(
        &self,
        key: ConversationKey,
        conversation: &Arc<Conversation>,
        why: CloseReason,
        blocks: Blocks,
        now: Timestamp,
    ) {
        self.table.remove(key, conversation);
        self.tally.own().closed.add(1);
        self.observers.tell(|| Event::Closed {
            at: now,
            key,
            why,
            blocks,
        });
    }

    /// The holder of this ticket gave it up.
    pub(crate) fn withdraw(&self, number: u64, now: Timestamp) {
        self.line.with(|queues, wakers| {
            if let Some((queue, waiter)) = queues.remove(number) {
                self.count_out(&waiter, queue, queues, wakers, now);
            }
            self.pump(queues, wakers, now);
        });
    }

    /// What a turn is told that waited in vain: room was missing, or whoever could have given it.
    pub(crate) fn in_vain(&self, retry_after: Duration) -> Rejected {
        let (mut decoders, mut draining) = (0, 0);
        self.fleet.for_each_live(|worker| {
            if worker.role.decodes() {
                decoders += 1;
                draining += u32::from(worker.is_draining());
            }
        });
        if decoders == 0 {
            Rejected::NoWorkers
        } else if decoders == draining {
            Rejected::Draining
        } else {
            Rejected::TimedOut { retry_after }
        }
    }

    pub(crate) fn tick(&self, now: Timestamp) {
        self.latest.set(now.0);
        self.expire_retained(now);
        self.advise(now);
        if self.line.newcomers() + self.line.tail() == 0 {
            return;
        }
        self.line.with(|queues, wakers| {
            // Who can be served now is not turned away for having waited long.
            self.pump(queues, wakers, now);
            for number in queues.due(now) {
                let ahead = queues.ahead_of(number);
                let Some((queue, waiter)) = queues.remove(number) else {
                    continue;
                };
                let retry_after = self.line.retry_after(ahead, now);
                let refused = Answer::Refused(self.in_vain(retry_after));
                if let Ok(waker) = waiter.cell.answer(refused) {
                    wakers.extend(waker);
                    self.tally.own().shed.add(1);
                    let key = waiter.key;
                    self.observers.tell(|| Event::Shed {
                        at: now,
                        key,
                        retry_after,
                    });
                }
                self.count_out(&waiter, queue, queues, wakers, now);
            }
            self.pump(queues, wakers, now);
        });
    }
}
