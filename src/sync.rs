//! Atomics and locks: the standard ones, or loom's when the core is model-checked.
//!
//! Promises: the same names either way. Counters that guard no memory stay the standard ones, so
//! that loom does not permute what nobody orders by.

#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicU64, Ordering};
#[cfg(not(loom))]
use std::sync::{Mutex as RawMutex, MutexGuard};

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicU64, Ordering};
#[cfg(loom)]
use loom::sync::{Mutex as RawMutex, MutexGuard};

/// Reads a word in the one order of all `SeqCst` accesses. Loom knows no such order: there a write stands in, which takes its
/// place in the order of the word's writes.
pub(crate) fn read_in_order(word: &AtomicU64) -> u64 {
    if cfg!(loom) {
        // AcqRel: see above.
        word.fetch_or(0, Ordering::AcqRel)
    } else {
        // SeqCst: see above.
        word.load(Ordering::SeqCst)
    }
}

/// A lock that outlives a panic: what it guards is left consistent at each step.
#[derive(Debug)]
pub(crate) struct Mutex<T>(RawMutex<T>);

impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(RawMutex::new(value))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// A number that guards no memory, and that whoever reads it may find a moment old.
#[derive(Debug, Default)]
pub(crate) struct Counter(std::sync::atomic::AtomicU64);

impl Counter {
    pub(crate) fn add(&self, n: u64) {
        // Relaxed: a counter; guards no memory.
        self.0.fetch_add(n, std::sync::atomic::Ordering::Relaxed);
    }

    pub(crate) fn sub(&self, n: u64) {
        // Relaxed: a counter; guards no memory.
        self.0.fetch_sub(n, std::sync::atomic::Ordering::Relaxed);
    }

    pub(crate) fn set(&self, n: u64) {
        // Relaxed: the latest wins; guards no memory.
        self.0.store(n, std::sync::atomic::Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        // Relaxed: a counter; guards no memory.
        self.0.load(std::sync::atomic::Ordering::Relaxed)
    }

    pub(crate) fn of(n: u64) -> Self {
        Self(std::sync::atomic::AtomicU64::new(n))
    }

    /// Writes `n` unless the counter is that high already.
    pub(crate) fn raise(&self, n: u64) {
        // Relaxed: the highest wins; guards no memory.
        self.0.fetch_max(n, std::sync::atomic::Ordering::Relaxed);
    }

    /// Writes `to` if the counter is exactly `from`.
    pub(crate) fn replace(&self, from: u64, to: u64) -> bool {
        let (ok, no) = (
            std::sync::atomic::Ordering::Relaxed,
            std::sync::atomic::Ordering::Relaxed,
        );
        // Relaxed: exactly one writer wins on the counter itself; guards no memory.
        self.0.compare_exchange(from, to, ok, no).is_ok()
    }
}

/// The table's own ordering of writers before readers, told to loom, which cannot see into the
/// table. Without loom it is nothing.
#[derive(Debug)]
pub(crate) struct Published {
    #[cfg(loom)]
    order: AtomicU64,
}

impl Published {
    pub(crate) fn new() -> Self {
        Self {
            #[cfg(loom)]
            order: AtomicU64::new(0),
        }
    }

    /// Before an entry is written and after one was read.
    #[cfg_attr(not(loom), expect(clippy::unused_self, reason = "only loom looks"))]
    pub(crate) fn pass(&self) {
        #[cfg(loom)]
        // AcqRel: pairs with itself.
        self.order.fetch_add(1, Ordering::AcqRel);
    }
}

impl Default for Published {
    fn default() -> Self {
        Self::new()
    }
}

/// Keeps what one thread writes away from what another reads: two cache lines, because
/// processors fetch them in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Padded<T>(pub(crate) T);

impl<T> std::ops::Deref for Padded<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

/// Pockets of one decoder, see `occupancy`. Loom's threads are one thread to `stripe`.
#[cfg(not(loom))]
pub(crate) const POCKETS: usize = 16;
#[cfg(loom)]
pub(crate) const POCKETS: usize = 1;

/// Parts into which what every thread writes is split.
pub(crate) const STRIPES: usize = 64;

/// The part that this thread writes: so far as there are no more threads than parts, its own. A
/// split by key would not do: a line that two threads write in turn is never in the right cache.
/// It decides nothing but where a count is kept.
pub(crate) fn stripe() -> usize {
    use std::sync::atomic::{AtomicUsize, Ordering};
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        // Relaxed: a counter; guards no memory.
        static STRIPE: usize = NEXT.fetch_add(1, Ordering::Relaxed) % STRIPES;
    }
    STRIPE.with(|stripe| *stripe)
}
