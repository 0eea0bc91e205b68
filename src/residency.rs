//! What a worker's prefix cache holds, folded from its KV events.
//!
//! Promises: batches count once each and in order, whatever a replay repeats; after a gap that cannot be filled the
//! total is unknown rather than wrong. A block is its latest user's: what conversations share is lost by one of them.
//! Leaves to others: fetching batches and replays (`watch`), what a loss means for a booking (`router`).

use std::collections::{BTreeMap, HashMap};

use crate::kv_events::KvEvent;
use crate::units::{Blocks, ConversationKey};

/// What became of a batch of KV events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Heard {
    /// It was next, and is counted.
    Counted,
    /// It was counted before.
    Known,
    /// Batches from this number on are missing: get them again and bring them in order, then this one.
    Missing {
        /// The first that is missing.
        from: u64,
    },
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Residency {
    blocks: HashMap<u64, Option<ConversationKey>>,
    /// The next batch's number.
    next: u64,
    /// Batches were missed for good since the cache was last known to be empty.
    partial: bool,
    missed: u64,
}

impl Residency {
    /// Whether the batch `number` is next. Number 0 out of turn is a publisher that started again, with nothing cached.
    pub(crate) fn expect(&mut self, number: u64) -> Heard {
        if number == 0 && self.next > 1 {
            *self = Self {
                missed: self.missed,
                ..Self::default()
            };
        }
        match number {
            _ if number == self.next => Heard::Counted,
            _ if number < self.next => Heard::Known,
            _ => Heard::Missing { from: self.next },
        }
    }

    /// Batches before `number` cannot be had any more.
    pub(crate) fn give_up(&mut self, number: u64) {
        let missed = number.saturating_sub(self.next);
        if missed > 0 {
            self.blocks.clear();
            self.next = number;
            self.partial = true;
            self.missed += missed;
        }
    }

    /// Counts the batch that was next; how many blocks each conversation lost.
    pub(crate) fn count(&mut self, events: Vec<KvEvent>) -> BTreeMap<ConversationKey, Blocks> {
        self.next += 1;
        let mut lost: BTreeMap<ConversationKey, u64> = BTreeMap::new();
        for event in events {
            match event {
                KvEvent::Stored { blocks, session } => {
                    self.blocks
                        .extend(blocks.into_iter().map(|block| (block, session)));
                }
                KvEvent::Removed { blocks } => {
                    for block in blocks {
                        if let Some(Some(key)) = self.blocks.remove(&block) {
                            *lost.entry(key).or_default() += 1;
                        }
                    }
                }
                KvEvent::Cleared => {
                    for key in self.blocks.drain().filter_map(|(_, key)| key) {
                        *lost.entry(key).or_default() += 1;
                    }
                    self.partial = false;
                }
            }
        }
        lost.into_iter()
            .map(|(key, blocks)| (key, Blocks::new(blocks)))
            .collect()
    }

    /// Blocks cached; `None` before the first batch and after a gap that was not filled.
    pub(crate) fn blocks(&self) -> Option<Blocks> {
        let known = self.next > 0 && !self.partial;
        known.then(|| Blocks::new(u64::try_from(self.blocks.len()).unwrap_or(u64::MAX)))
    }

    /// Batches missed for good.
    pub(crate) const fn missed(&self) -> u64 {
        self.missed
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const A: ConversationKey = ConversationKey(1);
    const B: ConversationKey = ConversationKey(2);

    fn stored(blocks: &[u64], key: ConversationKey) -> KvEvent {
        KvEvent::Stored {
            blocks: blocks.to_vec(),
            session: Some(key),
        }
    }

    fn removed(blocks: &[u64]) -> KvEvent {
        KvEvent::Removed {
            blocks: blocks.to_vec(),
        }
    }

    #[test]
    fn a_removed_block_is_lost_by_the_one_that_used_it_last() {
        let mut cache = Residency::default();
        assert_eq!(cache.blocks(), None, "nothing was heard yet");
        cache.count(vec![stored(&[1, 2, 3], A), stored(&[3, 4], B)]);
        assert_eq!(cache.blocks(), Some(Blocks::new(4)), "block 3 is shared");
        let lost = cache.count(vec![removed(&[2, 3, 99])]);
        let expected = BTreeMap::from([(A, Blocks::new(1)), (B, Blocks::new(1))]);
        assert_eq!(lost, expected, "2 was A's, 3 is B's now, 99 nobody's");
        assert_eq!(cache.blocks(), Some(Blocks::new(2)));
    }

    #[test]
    fn a_gap_is_asked_for_and_what_a_replay_repeats_counts_once() {
        let mut cache = Residency::default();
        assert_eq!(cache.expect(0), Heard::Counted);
        cache.count(vec![stored(&[1], A)]);
        assert_eq!(cache.expect(3), Heard::Missing { from: 1 });
        for number in 1..=3 {
            assert_eq!(cache.expect(number), Heard::Counted);
            cache.count(vec![stored(&[10 + number], A)]);
        }
        assert_eq!(cache.expect(2), Heard::Known);
        assert_eq!(cache.expect(3), Heard::Known);
        assert_eq!(cache.expect(4), Heard::Counted);
        assert_eq!(cache.blocks(), Some(Blocks::new(4)));
        assert_eq!(cache.missed(), 0);
    }

    #[test]
    fn a_gap_that_stays_makes_the_total_unknown_until_the_cache_is_empty() {
        let mut cache = Residency::default();
        cache.count(vec![stored(&[1], A)]);
        cache.give_up(5);
        assert_eq!(cache.missed(), 4, "1 to 4");
        assert_eq!(cache.expect(5), Heard::Counted);
        cache.count(vec![stored(&[2], B)]);
        assert_eq!(cache.blocks(), None, "1 may be there or not");
        let lost = cache.count(vec![removed(&[2])]);
        assert_eq!(lost.get(&B), Some(&Blocks::new(1)), "what was seen counts");
        cache.count(vec![KvEvent::Cleared]);
        assert_eq!(cache.blocks(), Some(Blocks::ZERO));
    }

    #[test]
    fn a_publisher_that_starts_again_has_nothing() {
        let mut cache = Residency::default();
        for block in 0..3 {
            cache.count(vec![stored(&[block], A)]);
        }
        assert_eq!(cache.expect(0), Heard::Counted);
        assert_eq!(cache.blocks(), None);
        cache.count(vec![stored(&[7], A)]);
        assert_eq!(cache.blocks(), Some(Blocks::new(1)));
    }
}
