//! Keeps wakes that say nothing new from scheduling a task again.
//!
//! One task polls a client's connection, the answer, the worker's socket and the timers. What one of them is woken for is no
//! news to the others, and a wake from within the poll that it asks for would cost another poll of the whole task, and often
//! the waking of another thread for it.
//!
//! Promises: a wake from another thread is passed on at once; one from within the poll is passed on too, at the poll's end,
//! unless by then the part was polled again. A part that nothing woke since it was pending is not polled.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};

/// How often in a row a poll that woke itself is done again before the task gives way to others.
const ROUNDS: usize = 4;

thread_local! {
    /// Its address tells threads apart.
    static HERE: u8 = const { 0 };
}

fn here() -> usize {
    HERE.with(|here| std::ptr::from_ref(here).addr())
}

/// What stands between a task's waker and those that the task polls.
#[derive(Default)]
pub(crate) struct Quiet(Option<(Arc<Ear>, Waker)>);

struct Ear {
    task: Waker,
    /// The thread that polls now; 0 while none does. Relaxed: a thread sees what it wrote itself, and no other writes its
    /// address.
    polled_on: AtomicUsize,
    /// Since the last poll began. Taken by an exchange, so that a poll sees what a wake that it takes was about, and a wake
    /// that it does not take stays for the next.
    was_woken: AtomicBool,
}

impl Wake for Ear {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // Release: pairs with the exchange in `poll`.
        self.was_woken.store(true, Ordering::Release);
        if self.polled_on.load(Ordering::Relaxed) != here() {
            self.task.wake_by_ref();
        }
    }
}

impl Quiet {
    /// Polls `part`. When it is pending although it woke itself, it is polled again, a few times at most.
    pub(crate) fn poll<T>(
        &mut self,
        context: &mut Context<'_>,
        mut part: impl FnMut(&mut Context<'_>) -> Poll<T>,
    ) -> Poll<T> {
        let (ear, waker) = self.between(context.waker());
        let mut quiet = Context::from_waker(waker);
        for _ in 0..ROUNDS {
            // AcqRel: Acquire pairs with the Release of a wake, whose cause `part` is to see.
            if !ear.was_woken.swap(false, Ordering::AcqRel) {
                return Poll::Pending;
            }
            ear.polled_on.store(here(), Ordering::Relaxed);
            let polled = part(&mut quiet);
            ear.polled_on.store(0, Ordering::Relaxed);
            if polled.is_ready() {
                // Whoever takes a result polls again before it sleeps. Relaxed: this thread says it to itself.
                ear.was_woken.store(true, Ordering::Relaxed);
                return polled;
            }
        }
        // Relaxed: another thread that wakes after this look wakes the task itself.
        if ear.was_woken.load(Ordering::Relaxed) {
            context.waker().wake_by_ref();
        }
        Poll::Pending
    }

    fn between(&mut self, task: &Waker) -> &(Arc<Ear>, Waker) {
        if self
            .0
            .as_ref()
            .is_none_or(|(ear, _)| !ear.task.will_wake(task))
        {
            let ear = Arc::new(Ear {
                task: task.clone(),
                polled_on: AtomicUsize::new(0),
                was_woken: AtomicBool::new(true),
            });
            let waker = Waker::from(Arc::clone(&ear));
            self.0 = Some((ear, waker));
        }
        self.0.as_ref().expect("it was made just now")
    }
}

#[cfg(test)]
#[expect(
    clippy::disallowed_methods,
    reason = "wakes come from real threads here"
)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// How often `part` was polled and the task woken by one poll.
    fn poll_once(mut part: impl FnMut(&Waker, usize) -> Poll<()>) -> (usize, usize) {
        let count = Arc::new(Count::default());
        let task = Waker::from(Arc::clone(&count));
        let mut polls = 0;
        let _ = Quiet::default().poll(&mut Context::from_waker(&task), |context| {
            polls += 1;
            part(context.waker(), polls)
        });
        (polls, count.0.load(Ordering::Relaxed))
    }

    #[test]
    fn a_part_that_wakes_itself_is_polled_again_at_once() {
        let heard = poll_once(|waker, polls| {
            if polls == 1 {
                waker.wake_by_ref();
            }
            Poll::Pending
        });
        assert_eq!(heard, (2, 0));
    }

    #[test]
    fn a_part_that_goes_on_waking_itself_gives_way_and_is_not_forgotten() {
        let heard = poll_once(|waker, _| {
            waker.wake_by_ref();
            Poll::Pending
        });
        assert_eq!(heard, (ROUNDS, 1));
    }

    #[test]
    fn a_result_needs_no_wake() {
        let heard = poll_once(|waker, _| {
            waker.wake_by_ref();
            Poll::Ready(())
        });
        assert_eq!(heard, (1, 0));
    }

    #[test]
    fn a_wake_from_elsewhere_is_passed_on_whenever_it_comes() {
        let heard = poll_once(|waker, _| {
            let other = waker.clone();
            std::thread::spawn(move || other.wake()).join().unwrap();
            Poll::Pending
        });
        assert_eq!(heard, (ROUNDS, ROUNDS + 1), "during the poll");

        let count = Arc::new(Count::default());
        let task = Waker::from(Arc::clone(&count));
        let mut quiet = Quiet::default();
        let mut polled = None;
        let _ = quiet.poll(&mut Context::from_waker(&task), |context| {
            polled = Some(context.waker().clone());
            Poll::<()>::Pending
        });
        polled.unwrap().wake();
        assert_eq!(count.0.load(Ordering::Relaxed), 1, "after it");
    }

    #[test]
    fn a_part_that_nothing_woke_is_not_polled() {
        let count = Arc::new(Count::default());
        let task = Waker::from(Arc::clone(&count));
        let mut context = Context::from_waker(&task);
        let mut quiet = Quiet::default();
        let mut part = None;
        let mut polls = 0;
        for turn in 0..6 {
            let polled = quiet.poll(&mut context, |context| {
                part = Some(context.waker().clone());
                polls += 1;
                if polls == 3 {
                    Poll::Ready(())
                } else {
                    Poll::Pending
                }
            });
            // At first, when woken (turns 2 and 3), and after a result (turn 4).
            let expected = [1, 1, 2, 3, 4, 4];
            assert_eq!(polls, expected[turn], "turn {turn}");
            assert_eq!(polled.is_ready(), turn == 3);
            if turn == 1 || turn == 2 {
                part.take().unwrap().wake();
            }
        }
    }

    struct Unpark(std::thread::Thread);

    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }

    #[test]
    fn no_wake_of_another_thread_is_lost() {
        const COUNT: usize = 20_000;
        let said = Arc::new(AtomicUsize::new(0));
        let heard = Arc::new(AtomicUsize::new(0));
        let waker = Arc::new(std::sync::Mutex::new(None::<Waker>));
        let other = std::thread::spawn({
            let (said, heard, waker) = (Arc::clone(&said), Arc::clone(&heard), Arc::clone(&waker));
            move || {
                for count in 1..=COUNT {
                    while heard.load(Ordering::Acquire) + 1 < count {
                        std::thread::yield_now();
                    }
                    said.store(count, Ordering::Release);
                    if let Some(waker) = waker.lock().unwrap().take() {
                        waker.wake();
                    }
                }
            }
        });
        let task = Waker::from(Arc::new(Unpark(std::thread::current())));
        let mut quiet = Quiet::default();
        for count in 1..=COUNT {
            let polled = |context: &mut Context<'_>| {
                *waker.lock().unwrap() = Some(context.waker().clone());
                if said.load(Ordering::Acquire) < count {
                    return Poll::Pending;
                }
                Poll::Ready(())
            };
            while quiet
                .poll(&mut Context::from_waker(&task), polled)
                .is_pending()
            {
                let began = std::time::Instant::now();
                std::thread::park_timeout(std::time::Duration::from_secs(20));
                let waited = began.elapsed();
                assert!(waited.as_secs() < 20, "the wake for {count} was lost");
            }
            heard.store(count, Ordering::Release);
        }
        other.join().unwrap();
    }

    #[test]
    fn another_task_is_woken_once_it_polls() {
        let (one, two) = (Arc::new(Count::default()), Arc::new(Count::default()));
        let mut quiet = Quiet::default();
        let mut last = None;
        for count in [&one, &two] {
            let task = Waker::from(Arc::clone(count));
            let _ = quiet.poll(&mut Context::from_waker(&task), |context| {
                last = Some(context.waker().clone());
                Poll::<()>::Pending
            });
        }
        last.unwrap().wake();
        let woken = [one, two].map(|count| count.0.load(Ordering::Relaxed));
        assert_eq!(woken, [0, 1]);
    }
}
