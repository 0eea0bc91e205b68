//! What one worker is given to do: how many turns prefill and decode there, for how many seconds,
//! over how many tokens; and what each running turn was charged for it.
//!
//! Promises: beginning and ending a task is one addition on a cache line of the thread's own.
//! Leaves to others: what the work cost in joules (`conserve.energy` measures it and calls
//! [`Router::charge`](crate::router::Router::charge)).

use std::time::Duration;

use crate::sync::{Counter, POCKETS, Padded, stripe};
use crate::units::{Timestamp, Tokens, WorkerId};

/// What a turn does at a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Doing {
    /// Its prompt, or what the prompt adds, is computed; or waits for it in the engine.
    Prefill,
    /// Its answer is generated, the pull of handed-over KV included.
    Decode,
}

impl Doing {
    const ALL: [Self; 2] = [Self::Prefill, Self::Decode];

    const fn index(self) -> usize {
        self as usize
    }
}

/// One turn at work at one worker, from `since` on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Task {
    pub(crate) worker: WorkerId,
    pub(crate) doing: Doing,
    since: Timestamp,
    /// What a turn that ran since ever would have been charged when this one began, in microjoules.
    charged_before: u64,
}

/// What a worker did so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Work {
    /// Turns whose prompt is computed there now.
    pub prefilling: u32,
    /// Turns whose answer is generated there now.
    pub decoding: u32,
    /// Turn-seconds of prefill: two turns for a second are two.
    pub prefill: Duration,
    /// Turn-seconds of decode.
    pub decode: Duration,
    /// Prompt tokens computed.
    pub prompt: u64,
    /// Tokens generated.
    pub output: u64,
}

/// Turns at work are counted in units of this; below it stand the milliseconds at which tasks ended
/// less those at which tasks began. One word, so that no reader finds a turn counted whose start is
/// missing, and one addition for each end of a task. It holds 8191 turns at once and 17 000
/// turn-years.
const ONE: i64 = 1 << 50;

#[derive(Debug, Default)]
struct Pocket {
    spans: [Counter; 2],
    prompt: Counter,
    output: Counter,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Activity {
    pockets: Box<[Padded<Pocket>]>,
    charged_uj: Padded<[Counter; 2]>,
}

impl Activity {
    pub(crate) fn new() -> Self {
        Self {
            pockets: (0..POCKETS).map(|_| Padded::default()).collect(),
            charged_uj: Padded::default(),
        }
    }

    fn own(&self) -> &Pocket {
        &self.pockets[stripe() % POCKETS]
    }

    pub(crate) fn begin(&self, worker: WorkerId, doing: Doing, now: Timestamp) -> Task {
        self.own().spans[doing.index()].add((ONE - millis(now)).cast_unsigned());
        Task {
            worker,
            doing,
            since: now,
            charged_before: self.charged_uj[doing.index()].get(),
        }
    }

    /// The microjoules that the turn is charged for the task.
    pub(crate) fn end(&self, task: Task, now: Timestamp) -> u64 {
        let kind = task.doing.index();
        let end = now.max(task.since);
        self.own().spans[kind].add((millis(end) - ONE).cast_unsigned());
        self.charged_uj[kind].get() - task.charged_before
    }

    /// Tokens of the prompt that were computed, and tokens that were generated.
    pub(crate) fn handled(&self, prompt: Tokens, output: Tokens) {
        let own = self.own();
        if prompt > Tokens(0) {
            own.prompt.add(u64::from(prompt.0));
        }
        if output > Tokens(0) {
            own.output.add(u64::from(output.0));
        }
    }

    /// Charges each turn that does this now an equal part of `microjoules`; what nobody is charged:
    /// all of it when none runs, else what the division leaves.
    pub(crate) fn charge(&self, doing: Doing, microjoules: u64, now: Timestamp) -> u64 {
        let (turns, _) = self.spans(doing, now);
        let turns = u64::from(turns);
        if turns == 0 {
            return microjoules;
        }
        self.charged_uj[doing.index()].add(microjoules / turns);
        microjoules % turns
    }

    /// Turns at it now, and the turn-seconds so far.
    fn spans(&self, doing: Doing, now: Timestamp) -> (u32, Duration) {
        let parts = self.pockets.iter().map(|pocket| &pocket.spans);
        let word = parts.fold(0, |word: u64, spans| {
            word.wrapping_add(spans[doing.index()].get())
        });
        let word = word.cast_signed();
        // What stands below is far from half a turn's unit, on either side.
        let turns = (word + ONE / 2).div_euclid(ONE);
        // A turn that ended in one pocket after its start in another was passed over: never below 0.
        let span = (turns * millis(now) + word - turns * ONE).max(0);
        (
            u32::try_from(turns).unwrap_or(0),
            Duration::from_millis(span.cast_unsigned()),
        )
    }

    pub(crate) fn work(&self, now: Timestamp) -> Work {
        let sum =
            |of: fn(&Pocket) -> &Counter| self.pockets.iter().map(|part| of(part).get()).sum();
        let [prefill, decode] = Doing::ALL.map(|doing| self.spans(doing, now));
        Work {
            prefilling: prefill.0,
            decoding: decode.0,
            prefill: prefill.1,
            decode: decode.1,
            prompt: sum(|part| &part.prompt),
            output: sum(|part| &part.output),
        }
    }
}

/// Milliseconds of a router's clock: summed over thousands of turns still far below `ONE`.
fn millis(at: Timestamp) -> i64 {
    (at.0 / 1_000_000).cast_signed()
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const W: WorkerId = WorkerId::new(0).unwrap();

    fn at(ms: u64) -> Timestamp {
        Timestamp(ms * 1_000_000)
    }

    #[test]
    fn turn_seconds_grow_while_turns_run_and_stay_when_they_ended() {
        let activity = Activity::new();
        let first = activity.begin(W, Doing::Decode, at(1_000));
        let second = activity.begin(W, Doing::Decode, at(1_500));
        let work = activity.work(at(2_000));
        assert_eq!(work.decoding, 2);
        assert_eq!(work.decode, Duration::from_millis(1_500), "1000 + 500 ms");
        activity.end(first, at(2_000));
        let work = activity.work(at(3_000));
        assert_eq!((work.decoding, work.prefilling), (1, 0));
        assert_eq!(work.decode, Duration::from_millis(2_500), "1000 + 1500 ms");
        activity.end(second, at(3_000));
        assert_eq!(
            activity.work(at(9_000)).decode,
            Duration::from_millis(2_500)
        );
        assert_eq!(activity.work(at(9_000)).prefill, Duration::ZERO);
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "a test may use threads")]
    fn a_turn_may_begin_and_end_on_different_threads() {
        let activity = Activity::new();
        let tasks: Vec<_> = (0..100)
            .map(|ms| activity.begin(W, Doing::Prefill, at(ms)))
            .collect();
        std::thread::scope(|scope| {
            for part in tasks.chunks(25) {
                let activity = &activity;
                scope.spawn(move || {
                    for task in part {
                        activity.end(*task, at(1_000));
                    }
                });
            }
        });
        let work = activity.work(at(5_000));
        assert_eq!(work.prefilling, 0);
        // 100 * 1000 - (0 + ... + 99) ms
        assert_eq!(work.prefill, Duration::from_millis(100_000 - 4_950));
    }

    #[test]
    fn a_charge_is_shared_by_those_who_run_and_the_rest_comes_back() {
        let activity = Activity::new();
        assert_eq!(activity.charge(Doing::Decode, 7, at(0)), 7, "nobody runs");
        let first = activity.begin(W, Doing::Decode, at(0));
        assert_eq!(activity.charge(Doing::Decode, 10, at(1)), 0);
        let second = activity.begin(W, Doing::Decode, at(1));
        assert_eq!(activity.charge(Doing::Decode, 11, at(2)), 1, "5 + 5 of 11");
        assert_eq!(activity.charge(Doing::Prefill, 3, at(2)), 3);
        assert_eq!(activity.end(first, at(3)), 15);
        assert_eq!(activity.end(second, at(3)), 5, "not for what was before it");
    }
}
