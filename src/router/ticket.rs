//! A place in the line, held by a turn that waits. No runtime is needed: a `Waker` or `take`.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use super::{Anchor, Turn};
use crate::admission::{Answer, Cell};
use crate::error::Rejected;
use crate::event::Event;
use crate::units::{ConversationKey, Timestamp};

/// What a ticket knows of its place.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) number: u64,
    pub(crate) cell: Arc<Cell>,
    pub(crate) key: ConversationKey,
    pub(crate) deadline: Timestamp,
    pub(crate) arrived: Timestamp,
}

/// A place in the line. Dropping it leaves the line; a turn that was granted meanwhile is given back.
///
/// It is a future, and it can be asked without one: [`Ticket::take`].
#[must_use = "dropping a ticket leaves the line"]
pub struct Ticket {
    anchor: Arc<Anchor>,
    place: Place,
}

impl fmt::Debug for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ticket")
            .field("number", &self.place.number)
            .finish_non_exhaustive()
    }
}

impl Ticket {
    pub(super) fn new(anchor: Arc<Anchor>, place: Place) -> Self {
        Self { anchor, place }
    }

    /// When the turn stops waiting.
    #[must_use]
    pub fn deadline(&self) -> Timestamp {
        self.place.deadline
    }

    /// How many stand before it in its queue.
    #[must_use]
    pub fn position(&self) -> usize {
        self.anchor
            .line
            .with(|queues, _| queues.ahead_of(self.place.number))
    }

    /// The turn, the refusal, or `None` while it waits. Past its deadline it is refused. After an
    /// answer was taken: `None`.
    #[must_use]
    pub fn take(&self, now: Timestamp) -> Option<Result<Turn, Rejected>> {
        let answer = self.place.cell.with(|answer| match answer {
            Answer::Waiting(_) if now < self.place.deadline => None,
            Answer::Waiting(_) | Answer::Granted(_) | Answer::Refused(_) | Answer::Gone => {
                Some(std::mem::replace(answer, Answer::Gone))
            }
        })?;
        match answer {
            Answer::Waiting(_) => {
                let retry_after = self.anchor.line.retry_after(self.position(), now);
                self.anchor.withdraw(self.place.number, now);
                let key = self.place.key;
                self.anchor.tally.own().shed.add(1);
                self.anchor.observers.tell(|| Event::Shed {
                    at: now,
                    key,
                    retry_after,
                });
                Some(Err(self.anchor.in_vain(retry_after)))
            }
            Answer::Granted(grant) => Some(Ok(Turn::new(Arc::clone(&self.anchor), *grant))),
            Answer::Refused(rejected) => Some(Err(rejected)),
            Answer::Gone => None,
        }
    }

    /// Has `waker` called once when there is an answer; at once if there is one. Deadlines are
    /// noticed by [`Router::tick`](super::Router::tick) and [`Ticket::take`].
    pub fn set_waker(&self, waker: Waker) {
        let ready = self.place.cell.with(|answer| match answer {
            Answer::Waiting(kept) => {
                *kept = Some(waker);
                None
            }
            Answer::Granted(_) | Answer::Refused(_) | Answer::Gone => Some(waker),
        });
        if let Some(waker) = ready {
            waker.wake();
        }
    }

    /// The answer, or `Pending` with the waker kept. After an answer was taken: `Pending` for good.
    pub fn poll(&self, context: &mut Context<'_>) -> Poll<Result<Turn, Rejected>> {
        let answer = self.place.cell.with(|answer| match answer {
            Answer::Waiting(kept) => {
                *kept = Some(context.waker().clone());
                Answer::Gone
            }
            Answer::Granted(_) | Answer::Refused(_) | Answer::Gone => {
                std::mem::replace(answer, Answer::Gone)
            }
        });
        match answer {
            Answer::Granted(grant) => Poll::Ready(Ok(Turn::new(Arc::clone(&self.anchor), *grant))),
            Answer::Refused(rejected) => Poll::Ready(Err(rejected)),
            Answer::Waiting(_) | Answer::Gone => Poll::Pending,
        }
    }
}

impl Future for Ticket {
    type Output = Result<Turn, Rejected>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Self::poll(&self, context)
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        match self
            .place
            .cell
            .with(|answer| std::mem::replace(answer, Answer::Gone))
        {
            Answer::Waiting(_) => {
                let now = self.place.arrived.max(Timestamp(self.anchor.latest.get()));
                self.anchor.withdraw(self.place.number, now);
            }
            // Dropped here, so the turn gives everything back.
            Answer::Granted(grant) => drop(Turn::new(Arc::clone(&self.anchor), *grant)),
            Answer::Refused(_) | Answer::Gone => {}
        }
    }
}
