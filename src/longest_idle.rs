//! The conversations that may lose room on one decoder, in the order in which they lose it.
//!
//! Each stands where it was used last when somebody looked, so no later turn writes here: who comes to one that was used since
//! puts it back where it belongs. Nobody is noted before somebody needs room for the first time.
//!
//! Promises: the longest idle first; among them everyone who holds something there; as many as hold something, and at most as
//! many again who do not any more.
//! Leaves to others: whether one is idle (`router`), who is here before anybody needed room (`table`).

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use crate::conversation::{Conversation, State};
use crate::sync::Mutex;
use crate::units::{Blocks, ConversationKey, Timestamp, WorkerId};

/// When it was used last, and which one it is.
type At = (Timestamp, ConversationKey);

/// What to do after one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Look {
    Next,
    Stop,
}

/// See the module. Locked last of all.
#[derive(Debug)]
pub(crate) struct LongestIdle {
    decoder: WorkerId,
    known: Mutex<Option<Known>>,
    /// Conversations that were looked at.
    #[cfg(all(test, not(loom)))]
    pub(crate) looked: crate::sync::Counter,
}

#[derive(Debug)]
struct Known {
    /// Never later than they were used.
    by_use: BTreeMap<At, Arc<Conversation>>,
    /// Those are among them who were here before anybody needed room.
    all: bool,
    /// The last that was looked at to find those who left.
    cleaned: Bound<At>,
}

impl LongestIdle {
    pub(crate) fn of(decoder: WorkerId) -> Self {
        Self {
            decoder,
            known: Mutex::new(None),
            #[cfg(all(test, not(loom)))]
            looked: crate::sync::Counter::default(),
        }
    }

    /// Whether a conversation may lose something here, now or once its turns ended. One that may not is noted when its next
    /// turn begins.
    pub(crate) fn concerns(&self, state: State) -> bool {
        state.is_on(self.decoder) && (state.blocks > Blocks::ZERO || state.in_flight > 0)
    }

    fn concerned(&self, conversation: &Conversation) -> bool {
        #[cfg(all(test, not(loom)))]
        self.looked.add(1);
        self.concerns(conversation.state())
    }

    /// Where one that stands `at` belongs instead; `None`: there.
    fn belongs(&self, at: At, conversation: &Conversation) -> Option<Move> {
        let used = conversation.last_used();
        if !self.concerned(conversation) {
            return Some(Move::Away);
        }
        (used > at.0).then_some(Move::To(used))
    }

    /// A conversation came here, or holds something here again; its word tells so already.
    pub(crate) fn came(
        &self,
        key: ConversationKey,
        conversation: &Arc<Conversation>,
        now: Timestamp,
    ) {
        if let Some(known) = &mut *self.known.lock() {
            known.by_use.insert((now, key), Arc::clone(conversation));
            // Two for each that comes: those who left are soon fewer than those who are here.
            self.clean(known, 2);
        }
    }

    /// Calls `look` for one after the other until it stops. `false`: who was here before is not known, but whoever comes from
    /// now on is noted.
    pub(crate) fn until(
        &self,
        mut look: impl FnMut(Timestamp, ConversationKey, &Arc<Conversation>) -> Look,
    ) -> bool {
        let mut known = self.known.lock();
        let Known { by_use, all, .. } = known.get_or_insert_with(|| Known {
            by_use: BTreeMap::new(),
            all: false,
            cleaned: Bound::Unbounded,
        });
        if !*all {
            return false;
        }
        let mut after = Bound::Unbounded;
        loop {
            let mut moves = by_use
                .range((after, Bound::Unbounded))
                .map(|(at, conversation)| {
                    let step = self.belongs(*at, conversation).or_else(|| {
                        let stops = look(at.0, at.1, conversation) == Look::Stop;
                        stops.then_some(Move::Stop)
                    });
                    (*at, step)
                });
            let Some((at, Some(step))) = moves.find(|(_, step)| step.is_some()) else {
                return true;
            };
            if matches!(step, Move::Stop) {
                return true;
            }
            apply(by_use, at, step);
            after = Bound::Excluded(at);
        }
    }

    /// A walk over all conversations found these, after `until` asked for it.
    pub(crate) fn found(&self, found: Vec<(At, Arc<Conversation>)>) {
        let mut by_use: BTreeMap<_, _> = found.into_iter().collect();
        if let Some(known) = &mut *self.known.lock()
            && !known.all
        {
            by_use.extend(std::mem::take(&mut known.by_use));
            (known.by_use, known.all) = (by_use, true);
        }
    }

    /// Forgets those who left, in steps that nobody has to wait for.
    pub(crate) fn forget_who_left(&self) {
        if let Some(known) = &mut *self.known.lock() {
            known.cleaned = Bound::Unbounded;
        }
        while let Some(known) = &mut *self.known.lock()
            && self.clean(known, 1_000)
        {}
    }

    /// The decoder is lost: nobody looks for room there.
    pub(crate) fn forget_all(&self) {
        *self.known.lock() = None;
    }

    /// Looks whether the next `most` left, or were used since; whether there are more.
    fn clean(&self, known: &mut Known, most: usize) -> bool {
        for _ in 0..most {
            let next = known
                .by_use
                .range((known.cleaned, Bound::Unbounded))
                .next()
                .map(|(at, conversation)| (*at, self.belongs(*at, conversation)));
            let Some((at, step)) = next else {
                known.cleaned = Bound::Unbounded;
                return false;
            };
            if let Some(step) = step {
                apply(&mut known.by_use, at, step);
            }
            known.cleaned = Bound::Excluded(at);
        }
        true
    }
}

/// Moves one that stands `at`. One that was noted several times is there once again.
fn apply(by_use: &mut BTreeMap<At, Arc<Conversation>>, at: At, step: Move) {
    if let (Some(conversation), Move::To(used)) = (by_use.remove(&at), step) {
        by_use.insert((used, at.1), conversation);
    }
}

/// What becomes of one that was looked at.
enum Move {
    /// It left.
    Away,
    /// It was used since, last then.
    To(Timestamp),
    Stop,
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const D0: WorkerId = WorkerId::new(0).unwrap();

    /// Knows all from the start.
    fn list() -> LongestIdle {
        let list = LongestIdle::of(D0);
        assert!(
            !list.until(|_, _, _| Look::Next),
            "nobody walked yet, so it is not known who is here"
        );
        list.found(Vec::new());
        list
    }

    fn come(list: &LongestIdle, number: u64) -> Arc<Conversation> {
        let now = Timestamp(number);
        let conversation = Arc::new(Conversation::new(State::born(Some(D0)), now));
        list.came(ConversationKey(number.into()), &conversation, now);
        conversation
    }

    fn order(list: &LongestIdle) -> Vec<u128> {
        let mut order = Vec::new();
        let known = list.until(|_, key, _| {
            order.push(key.0);
            Look::Next
        });
        assert!(known);
        order
    }

    fn held(list: &LongestIdle) -> usize {
        let known = list.known.lock();
        known.as_ref().map_or(0, |known| known.by_use.len())
    }

    #[test]
    fn the_longest_idle_comes_first_whoever_came_first() {
        let list = list();
        let here: Vec<_> = (1..=4).map(|number| come(&list, number)).collect();
        here[0].touch(Timestamp(9));
        here[2].touch(Timestamp(7));
        assert_eq!(order(&list), [2, 4, 3, 1]);
        here[1].touch(Timestamp(8));
        assert_eq!(order(&list), [4, 3, 2, 1]);
    }

    #[test]
    fn those_who_came_while_somebody_walked_are_kept() {
        let list = LongestIdle::of(D0);
        assert!(!list.until(|_, _, _| Look::Next));
        let before = Arc::new(Conversation::new(State::born(Some(D0)), Timestamp(1)));
        let _came = come(&list, 2);
        list.found(vec![((Timestamp(1), ConversationKey(1)), before)]);
        list.found(Vec::new());
        assert_eq!(order(&list), [1, 2]);
    }

    #[test]
    fn one_that_comes_again_and_again_is_held_once() {
        let list = list();
        let conversation = come(&list, 0);
        for number in 1..1_000 {
            let now = Timestamp(number);
            conversation.touch(now);
            list.came(ConversationKey(0), &conversation, now);
        }
        assert!(held(&list) <= 2);
    }

    #[test]
    fn those_who_left_are_forgotten_as_others_come() {
        let list = list();
        let left = |conversation: Arc<Conversation>| {
            conversation.update(State::close).expect("open");
        };
        (0..1_000).map(|number| come(&list, number)).for_each(left);
        assert!(held(&list) <= 2, "each came when the one before had left");
        let here: Vec<_> = (0..100).map(|number| come(&list, number)).collect();
        here.into_iter().for_each(left);
        let here: Vec<_> = (100..200).map(|number| come(&list, number)).collect();
        assert!(held(&list) <= 100 + 2);
        here.into_iter().for_each(left);
        list.forget_who_left();
        assert_eq!(held(&list), 0);
    }
}
