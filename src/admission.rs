//! Who waits, in which order, and what they are told.
//!
//! Promises: the line is first in, first out; turns of pinned conversations that wait to grow are
//! served before newcomers, decoder by decoder (I6); a ticket can be cancelled by dropping it.
//! Leaves to others: what a waiter needs (`router`), who frees it (`occupancy` tells the giver).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use crate::conversation::Conversation;
use crate::error::Rejected;
use crate::router::Grant;
use crate::sync::{Counter, Mutex};
use crate::units::{ConversationKey, Timestamp, Tokens, WorkerId};

/// Which queue a turn stands in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Queue {
    /// For a decoder: new conversations, and those that lost theirs.
    Newcomers,
    /// The same, before all new ones: their KV is gone and the fleet is busy computing such again. Once in the line they
    /// are among the newcomers.
    Returning,
    /// For blocks on the decoder that the conversation is pinned to.
    Growth(WorkerId),
    /// For the turn that brings the conversation to its decoder.
    Followers,
}

/// What the holder of a ticket will find.
#[derive(Debug)]
pub(crate) enum Answer {
    Waiting(Option<Waker>),
    Granted(Box<Grant>),
    Refused(Rejected),
    /// Taken, or given up.
    Gone,
}

/// Where a ticket and the line meet. Locked after the line, never before.
#[derive(Debug)]
pub(crate) struct Cell(Mutex<Answer>);

impl Cell {
    pub(crate) fn new() -> Self {
        Self(Mutex::new(Answer::Waiting(None)))
    }

    pub(crate) fn with<R>(&self, look: impl FnOnce(&mut Answer) -> R) -> R {
        look(&mut self.0.lock())
    }

    /// Answers a waiting ticket; an answer that comes too late is handed back.
    pub(crate) fn answer(&self, answer: Answer) -> Result<Option<Waker>, Answer> {
        self.with(|current| match current {
            Answer::Waiting(waker) => {
                let waker = waker.take();
                *current = answer;
                Ok(waker)
            }
            Answer::Granted(_) | Answer::Refused(_) | Answer::Gone => Err(answer),
        })
    }
}

/// One turn in the line. It is counted in its conversation's word.
#[derive(Debug)]
pub(crate) struct Waiter {
    pub(crate) key: ConversationKey,
    pub(crate) conversation: Arc<Conversation>,
    pub(crate) prompt: Tokens,
    pub(crate) arrived: Timestamp,
    pub(crate) deadline: Timestamp,
    /// The decoder that the conversation was on before.
    pub(crate) from: Option<WorkerId>,
    pub(crate) cell: Arc<Cell>,
}

/// Tickets of those who return have lower numbers.
const AFTER_RETURNING: u64 = 1 << 62;

/// The queues, each in order of arrival; those who return come before all others.
#[derive(Debug, Default)]
pub(crate) struct Queues {
    next: u64,
    pub(crate) newcomers: BTreeMap<u64, Waiter>,
    pub(crate) growth: BTreeMap<(WorkerId, u64), Waiter>,
    pub(crate) followers: BTreeMap<(ConversationKey, u64), Waiter>,
    /// Whether the workers were told that newcomers wait.
    pub(crate) flagged: bool,
    /// The decoders that were told that somebody waits to grow on them.
    pub(crate) growing: BTreeSet<WorkerId>,
}

impl Queues {
    /// The number decides the order within a queue.
    pub(crate) fn ticket_number(&mut self, queue: Queue) -> u64 {
        self.next += 1;
        match queue {
            Queue::Returning => self.next,
            Queue::Newcomers | Queue::Growth(_) | Queue::Followers => AFTER_RETURNING + self.next,
        }
    }

    pub(crate) fn push(&mut self, queue: Queue, number: u64, waiter: Waiter) {
        match queue {
            Queue::Newcomers | Queue::Returning => self.newcomers.insert(number, waiter),
            Queue::Growth(decoder) => self.growth.insert((decoder, number), waiter),
            Queue::Followers => self.followers.insert((waiter.key, number), waiter),
        };
    }

    pub(crate) fn remove(&mut self, number: u64) -> Option<(Queue, Waiter)> {
        if let Some(waiter) = self.newcomers.remove(&number) {
            return Some((Queue::Newcomers, waiter));
        }
        let growth = self
            .growth
            .keys()
            .find(|(_, other)| *other == number)
            .copied();
        if let Some(at) = growth {
            return Some((Queue::Growth(at.0), self.growth.remove(&at)?));
        }
        let at = self
            .followers
            .keys()
            .find(|(_, other)| *other == number)
            .copied()?;
        Some((Queue::Followers, self.followers.remove(&at)?))
    }

    /// The numbers of all that wait for this conversation, in order of arrival.
    pub(crate) fn of(&self, key: ConversationKey) -> Vec<u64> {
        let newcomers = self
            .newcomers
            .iter()
            .filter(|(_, waiter)| waiter.key == key);
        let growth = self.growth.iter().filter(|(_, waiter)| waiter.key == key);
        let mut numbers: Vec<u64> = newcomers.map(|(number, _)| *number).collect();
        numbers.extend(growth.map(|((_, number), _)| *number));
        numbers.extend(
            self.followers
                .range((key, 0)..=(key, u64::MAX))
                .map(|((_, n), _)| *n),
        );
        numbers.sort_unstable();
        numbers
    }

    /// The numbers of all whose deadline has come.
    pub(crate) fn due(&self, now: Timestamp) -> Vec<u64> {
        let due = |waiter: &Waiter| waiter.deadline <= now;
        let mut numbers: Vec<u64> = self
            .newcomers
            .iter()
            .filter(|(_, waiter)| due(waiter))
            .map(|(n, _)| *n)
            .collect();
        numbers.extend(
            self.growth
                .iter()
                .filter(|(_, waiter)| due(waiter))
                .map(|((_, n), _)| *n),
        );
        numbers.extend(
            self.followers
                .iter()
                .filter(|(_, waiter)| due(waiter))
                .map(|((_, n), _)| *n),
        );
        numbers.sort_unstable();
        numbers
    }

    /// Turns of pinned or placing conversations that wait.
    pub(crate) fn tail_len(&self) -> usize {
        self.growth.len() + self.followers.len()
    }

    /// How many stand before this number in its own queue.
    pub(crate) fn ahead_of(&self, number: u64) -> usize {
        if self.newcomers.contains_key(&number) {
            return self.newcomers.range(..number).count();
        }
        match self.growth.keys().find(|(_, other)| *other == number) {
            Some((decoder, _)) => self.growth.range((*decoder, 0)..(*decoder, number)).count(),
            None => 0,
        }
    }
}

/// The line.
#[derive(Debug)]
pub(crate) struct Line {
    queues: Mutex<Queues>,
    /// Newcomers in the line: who arrives now does not overtake them.
    newcomers: Counter,
    tail: Counter,
    drain: DrainRate,
}

impl Line {
    pub(crate) fn new() -> Self {
        Self {
            queues: Mutex::new(Queues::default()),
            newcomers: Counter::default(),
            tail: Counter::default(),
            drain: DrainRate::default(),
        }
    }

    /// Opens the line to `work`; the wakers that it collects are called when the line is closed.
    pub(crate) fn with<R>(&self, work: impl FnOnce(&mut Queues, &mut Vec<Waker>) -> R) -> R {
        let mut wakers = Vec::new();
        let mut queues = self.queues.lock();
        let result = work(&mut queues, &mut wakers);
        self.newcomers.set(queues.newcomers.len() as u64);
        self.tail.set(queues.tail_len() as u64);
        drop(queues);
        wakers.into_iter().for_each(Waker::wake);
        result
    }

    /// Newcomers that wait, perhaps a moment ago.
    pub(crate) fn newcomers(&self) -> usize {
        usize::try_from(self.newcomers.get()).unwrap_or(usize::MAX)
    }

    /// Others that wait, perhaps a moment ago.
    pub(crate) fn tail(&self) -> usize {
        usize::try_from(self.tail.get()).unwrap_or(usize::MAX)
    }

    pub(crate) fn admitted(&self, now: Timestamp) {
        self.drain.admitted(now);
    }

    /// When somebody with `ahead` others before it may expect its turn.
    pub(crate) fn retry_after(&self, ahead: usize, now: Timestamp) -> Duration {
        self.drain.retry_after(ahead, now)
    }
}

/// How fast conversations are admitted, as observed.
#[derive(Debug, Default)]
struct DrainRate {
    last: Counter,
    /// Bits of an `f64`, seconds between admissions; 0 while unknown.
    interval: Counter,
}

impl DrainRate {
    const WEIGHT: f64 = 0.1;
    const LONGEST_S: f64 = 60.0;

    fn interval(&self) -> Option<f64> {
        match self.interval.get() {
            0 => None,
            bits => Some(f64::from_bits(bits)),
        }
    }

    fn admitted(&self, now: Timestamp) {
        let last = Timestamp(self.last.get());
        self.last.set(now.0);
        if last == Timestamp(0) || now <= last {
            return;
        }
        let sample = now.since(last).as_secs_f64();
        let interval = self
            .interval()
            .map_or(sample, |old| old + Self::WEIGHT * (sample - old));
        self.interval.set(interval.to_bits());
    }

    fn retry_after(&self, ahead: usize, now: Timestamp) -> Duration {
        let Some(interval) = self.interval() else {
            return Duration::from_secs(1);
        };
        // A line that stands still is slower than it was while it moved.
        let interval = interval.max(now.since(Timestamp(self.last.get())).as_secs_f64());
        let places = u32::try_from(ahead).unwrap_or(u32::MAX).saturating_add(1);
        let seconds = (f64::from(places) * interval)
            .ceil()
            .clamp(1.0, Self::LONGEST_S);
        Duration::from_secs_f64(seconds)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn retry_after_follows_the_observed_rate_within_bounds() {
        let drain = DrainRate::default();
        let wait = |ahead, at| drain.retry_after(ahead, Timestamp(at * SECOND)).as_secs();
        assert_eq!(wait(100, 0), 1, "nothing observed yet");
        for at in 1..=3 {
            drain.admitted(Timestamp(at * 2 * SECOND));
        }
        // One admission in 2 s: with four ahead, (4 + 1) * 2 s.
        assert_eq!(wait(4, 6), 10);
        assert_eq!(wait(1000, 6), 60, "at most a minute");
        assert_eq!(wait(0, 26), 20, "nobody was admitted for 20 s");
    }
}
