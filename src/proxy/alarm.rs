//! A time limit that is set again and again and costs no timer each time.
//!
//! Promises: never goes off early. The timer below is moved only when it goes off too early, or when the limit becomes
//! shorter: a stream of a thousand pieces moves it a few times.

use std::future::Future;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::task::unconstrained;
use tokio::time::{Instant, Sleep, sleep_until};

use super::quiet::Quiet;

#[derive(Default)]
pub(crate) struct Alarm {
    due: Option<Instant>,
    timer: Option<Pin<Box<Sleep>>>,
    /// Only a timer that went off is looked at again, or one that was moved.
    quiet: Quiet,
}

impl Alarm {
    /// Nobody is waited for.
    pub(crate) fn rest(&mut self) {
        self.due = None;
    }

    /// Ready when the present wait, which began with the first call after `rest`, took longer than `limit`.
    pub(crate) fn poll(&mut self, limit: Duration, context: &mut Context<'_>) -> Poll<()> {
        let due = *self.due.get_or_insert_with(|| Instant::now() + limit);
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(due)));
        if timer.deadline() > due {
            timer.as_mut().reset(due);
            self.quiet = Quiet::default();
        }
        self.quiet.poll(context, |context| {
            // Whoever never stops talking uses up the task's budget, without which a timer says nothing.
            while pin!(unconstrained(timer.as_mut())).poll(context).is_ready() {
                if timer.deadline() >= due {
                    return Poll::Ready(());
                }
                timer.as_mut().reset(due);
            }
            Poll::Pending
        })
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    /// In real time, because tokio's virtual one is a feature that would reach every build; hence milliseconds.
    fn with_timers(test: impl Future<Output = ()>) {
        tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .unwrap()
            .block_on(test);
    }

    const LONG: Duration = Duration::from_secs(1_000);
    const SHORT: Duration = Duration::from_millis(2);

    #[test]
    fn it_goes_off_after_its_limit() {
        with_timers(async {
            let mut alarm = Alarm::default();
            let began = Instant::now();
            poll_fn(|context| alarm.poll(SHORT, context)).await;
            assert!(began.elapsed() >= SHORT);
        });
    }

    #[test]
    fn it_goes_off_though_others_use_up_the_budget() {
        with_timers(async {
            let mut alarm = Alarm::default();
            let task = tokio::spawn(poll_fn(move |context| {
                while pin!(tokio::task::consume_budget()).poll(context).is_ready() {}
                alarm.poll(SHORT, context)
            }));
            let limit = tokio::time::timeout(Duration::from_secs(20), task);
            limit.await.expect("it went off").unwrap();
        });
    }

    #[test]
    fn a_shorter_limit_moves_the_timer_back() {
        with_timers(async {
            let mut alarm = Alarm::default();
            let waits = poll_fn(|context| Poll::Ready(alarm.poll(LONG, context).is_pending()));
            assert!(waits.await);
            alarm.rest();
            poll_fn(|context| alarm.poll(SHORT, context)).await;
        });
    }

    #[test]
    fn a_timer_that_goes_off_too_early_is_moved_on() {
        with_timers(async {
            let mut alarm = Alarm::default();
            poll_fn(|context| alarm.poll(SHORT, context)).await;
            alarm.rest();
            let waits = poll_fn(|context| Poll::Ready(alarm.poll(LONG, context).is_pending()));
            assert!(waits.await, "the timer was for the wait before this one");
        });
    }
}
