//! The idle conversations of one decoder in the order in which they lose their room, as the last walk over the table found
//! them: whoever needs room takes from here, and walks only when these are used up.
//!
//! Promises: the longest idle first.
//! Leaves to others: whether one is still idle (`router`).

use std::collections::VecDeque;
use std::sync::Arc;

use crate::conversation::Conversation;
use crate::sync::Mutex;
use crate::units::{ConversationKey, Timestamp};

/// When it was used last, and which one it is.
pub(crate) type Candidate = (Timestamp, ConversationKey, Arc<Conversation>);

/// What to do after one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Look {
    /// It was used since, or is gone: it is looked at no more.
    Drop,
    Next,
    Stop,
}

/// How far it went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Looked {
    Stopped,
    /// All that were used last before that moment were looked at; `None`: nobody walked yet.
    All(Option<Timestamp>),
}

/// See the module. Locked last of all.
#[derive(Debug)]
pub(crate) struct LongestIdle(Mutex<Found>);

#[derive(Debug, Default)]
struct Found {
    list: VecDeque<Candidate>,
    walked: Option<Timestamp>,
}

impl LongestIdle {
    pub(crate) fn new() -> Self {
        Self(Mutex::new(Found::default()))
    }

    /// What a walk at `now` found, in order: those that are idle or may become so without being used. Those used at that very
    /// moment may have equals that come before them.
    pub(crate) fn walked(&self, found: impl Iterator<Item = Candidate>, now: Timestamp) {
        let list = found.take_while(|(used, ..)| *used < now).collect();
        let walked = Some(now);
        *self.0.lock() = Found { list, walked };
    }

    /// Calls `look` for one after the other until it stops.
    pub(crate) fn until(&self, mut look: impl FnMut(&Candidate) -> Look) -> Looked {
        let Found { list, walked } = &mut *self.0.lock();
        let mut at = 0;
        while let Some(candidate) = list.get(at) {
            match look(candidate) {
                Look::Drop => drop(list.remove(at)),
                Look::Next => at += 1,
                Look::Stop => return Looked::Stopped,
            }
        }
        Looked::All(*walked)
    }
}
