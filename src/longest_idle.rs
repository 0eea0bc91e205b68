//! The idle conversations of one decoder in the order in which they lose their room, as the last walk over the table found
//! them: whoever needs room takes from here, and walks only when these are used up.
//!
//! Promises: the longest idle first, if whoever makes a conversation idle without using it calls `forget`.
//! Leaves to others: whether one is still idle (`router`).

use std::collections::VecDeque;
use std::sync::Arc;

use crate::conversation::Conversation;
use crate::sync::Mutex;
use crate::units::{ConversationKey, Timestamp};

/// When it was used last, and which one it is.
pub(crate) type Candidate = (Timestamp, ConversationKey, Arc<Conversation>);

/// See the module. Locked last of all.
#[derive(Debug)]
pub(crate) struct LongestIdle(Mutex<VecDeque<Candidate>>);

impl LongestIdle {
    pub(crate) fn new() -> Self {
        Self(Mutex::new(VecDeque::new()))
    }

    /// What a walk at `now` found, in order. Those used at that very moment may have equals that come before them.
    pub(crate) fn walked(&self, found: impl Iterator<Item = Candidate>, now: Timestamp) {
        *self.0.lock() = found.take_while(|(used, ..)| *used < now).collect();
    }

    /// Calls `look` for one after the other until it says that it has enough; `None`: drop it, it is idle no more. Whether
    /// there were enough.
    pub(crate) fn until_enough(&self, mut look: impl FnMut(&Candidate) -> Option<bool>) -> bool {
        let mut list = self.0.lock();
        let mut at = 0;
        while let Some(candidate) = list.get(at) {
            match look(candidate) {
                None => drop(list.remove(at)),
                Some(true) => return true,
                Some(false) => at += 1,
            }
        }
        false
    }

    /// Another one became idle that was used before the last walk.
    pub(crate) fn forget(&self) {
        self.0.lock().clear();
    }
}
