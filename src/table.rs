//! Conversation key -> [`Conversation`], without a lock.
//!
//! Promises: one live conversation for a key; a closed one found under a key can be removed without
//! touching its successor.
//! Leaves to others: what a conversation may do (`conversation`).

use std::hash::{BuildHasherDefault, Hash, Hasher};
use std::sync::Arc;

use papaya::{Compute, HashMap, Operation};

use crate::conversation::Conversation;
use crate::sync::Published;
use crate::units::ConversationKey;

/// A key in two halves: eight bytes less padding for each entry than a `u128`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Key([u64; 2]);

impl Key {
    #[expect(clippy::cast_possible_truncation, reason = "the two halves of a u128")]
    const fn of(key: ConversationKey) -> Self {
        Self([(key.0 >> 64) as u64, key.0 as u64])
    }

    const fn key(self) -> ConversationKey {
        ConversationKey((self.0[0] as u128) << 64 | self.0[1] as u128)
    }
}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.0[0].rotate_left(32) ^ self.0[1]);
    }
}

/// Keys are keyed hashes already, so one multiplication spreads even those that a test counts up.
#[derive(Debug, Default)]
pub(crate) struct Spread(u64);

impl Hasher for Spread {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u64(&mut self, word: u64) {
        let mixed = (self.0 ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        self.0 = mixed ^ mixed >> 32;
    }
}

type Map = HashMap<Key, Arc<Conversation>, BuildHasherDefault<Spread>>;

/// All live conversations.
#[derive(Debug, Default)]
pub(crate) struct Table {
    map: Map,
    published: Published,
    /// Entries that `for_each` came to.
    #[cfg(all(test, not(loom)))]
    pub(crate) visited: crate::sync::Counter,
}

impl Table {
    pub(crate) fn find(&self, key: ConversationKey) -> Option<Arc<Conversation>> {
        self.with(key, |found| found.map(Arc::clone))
    }

    /// Looks at the conversation under a key without counting a reference to it.
    pub(crate) fn with<R>(
        &self,
        key: ConversationKey,
        look: impl FnOnce(Option<&Arc<Conversation>>) -> R,
    ) -> R {
        let map = self.map.pin();
        let found = map.get(&Key::of(key));
        self.published.pass();
        look(found)
    }

    /// Puts a new conversation under a key that has none; `false` if it has one.
    pub(crate) fn insert(&self, key: ConversationKey, conversation: &Arc<Conversation>) -> bool {
        self.published.pass();
        self.map
            .pin()
            .try_insert(Key::of(key), Arc::clone(conversation))
            .is_ok()
    }

    /// Removes exactly this conversation; `false` if it was removed before.
    pub(crate) fn remove(&self, key: ConversationKey, conversation: &Arc<Conversation>) -> bool {
        let map = self.map.pin();
        let outcome = map.compute(Key::of(key), |found| match found {
            Some((_, there)) if Arc::ptr_eq(there, conversation) => Operation::Remove,
            Some(_) | None => Operation::Abort(()),
        });
        matches!(outcome, Compute::Removed(..))
    }

    pub(crate) fn len(&self) -> usize {
        self.map.len()
    }

    /// Calls `visit` with every conversation there is; those that come or go meanwhile may be missed.
    pub(crate) fn for_each(&self, mut visit: impl FnMut(ConversationKey, &Arc<Conversation>)) {
        for (key, conversation) in &self.map.pin() {
            self.published.pass();
            #[cfg(all(test, not(loom)))]
            self.visited.add(1);
            visit(key.key(), conversation);
        }
    }
}
