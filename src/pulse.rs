//! Whether this process has been running, told from the times of its own beats.
//!
//! A process that is stopped (SIGSTOP, a starved machine) reads late what came long ago, and its clock cannot tell. KV
//! that waits at a prefiller ages meanwhile (I10), so what is read right after a stop counts as old as the stop.
//!
//! Promises: an answer is never taken for younger than it is by more than `STOPPED`, as long as somebody beats each second.
//! Leaves to others: beating (`Router::tick`). Without a beat ever, nothing is assumed.

use std::time::Duration;

use crate::sync::Counter;
use crate::units::Timestamp;

/// No beat for longer than this: the process was stopped. Below the margin between our lease and the engine's.
const STOPPED: Duration = Duration::from_secs(3);
/// What came during a stop is read within this time after it.
const SETTLING: Duration = Duration::from_secs(5);

/// The beats of one process.
#[derive(Debug, Default)]
pub(crate) struct Pulse {
    /// The latest; 0 before the first.
    beat: Counter,
    stop_began: Counter,
    stop_ended: Counter,
}

impl Pulse {
    /// The process runs.
    pub(crate) fn beat(&self, now: Timestamp) {
        let before = Timestamp(self.beat.get());
        if before.0 != 0 && now.since(before) > STOPPED {
            self.stop_began.set(before.0);
            self.stop_ended.set(now.0);
        }
        self.beat.set(now.0.max(before.0));
    }

    /// The earliest time at which what is read now can have come, if it was not there before `asked`.
    pub(crate) fn came(&self, asked: Timestamp, now: Timestamp) -> Timestamp {
        let beat = Timestamp(self.beat.get());
        let ended = Timestamp(self.stop_ended.get());
        let earliest = if beat.0 == 0 {
            now
        } else if now.since(beat) > STOPPED {
            beat
        } else if ended.0 != 0 && now.since(ended) < SETTLING {
            Timestamp(self.stop_began.get())
        } else {
            now
        };
        earliest.max(asked)
    }

    /// Whether a stop ended after `since`, or has just ended and nobody has beaten yet.
    pub(crate) fn stopped_since(&self, since: Timestamp, now: Timestamp) -> bool {
        let beat = Timestamp(self.beat.get());
        self.stop_ended.get() > since.0 || (beat.0 != 0 && now.since(beat) > STOPPED)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Timestamp {
        Timestamp(seconds * 1_000_000_000)
    }

    #[test]
    fn a_process_that_beats_reads_what_has_just_come() {
        let pulse = Pulse::default();
        for second in 1..=20 {
            pulse.beat(at(second));
        }
        assert_eq!(pulse.came(at(2), at(21)), at(21));
        assert!(!pulse.stopped_since(at(2), at(21)));
    }

    #[test]
    fn after_a_stop_it_may_have_come_since_the_last_beat() {
        let pulse = Pulse::default();
        pulse.beat(at(10));
        assert_eq!(
            pulse.came(at(2), at(50)),
            at(10),
            "read before the first beat after the stop"
        );
        pulse.beat(at(50));
        assert_eq!(pulse.came(at(2), at(51)), at(10), "and shortly after it");
        assert_eq!(
            pulse.came(at(30), at(51)),
            at(30),
            "but not before it was asked for"
        );
        pulse.beat(at(52));
        pulse.beat(at(54));
        assert_eq!(
            pulse.came(at(2), at(56)),
            at(56),
            "six seconds later all is read"
        );
        assert!(pulse.stopped_since(at(49), at(56)));
        assert!(!pulse.stopped_since(at(51), at(56)));
    }

    #[test]
    fn nothing_is_assumed_of_a_process_that_never_beats() {
        let pulse = Pulse::default();
        assert_eq!(pulse.came(at(2), at(500)), at(500));
        assert!(!pulse.stopped_since(at(2), at(500)));
    }
}
