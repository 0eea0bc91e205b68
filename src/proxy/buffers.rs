//! Memory for long bodies, used again: what is new to a process costs it a page fault for every 4 KiB that it writes.
//!
//! Promises: of a buffer only what was written since it was taken can be read; what lies here unused is bounded.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

/// The smallest and the largest buffer that is kept, in bytes.
const KEPT_FROM: usize = 64 << 10;
const KEPT_TO: usize = 2 << 20;
/// All that are kept, in bytes.
const KEPT_BYTES: usize = 8 << 20;

/// The buffers that nobody has, those that came last at the end.
#[derive(Debug, Default)]
pub(crate) struct Buffers(Mutex<VecDeque<Vec<u8>>>);

impl Buffers {
    /// An empty buffer with room for so many bytes.
    pub(crate) fn take(&self, bytes: usize) -> Vec<u8> {
        if !(KEPT_FROM / 2 + 1..=KEPT_TO).contains(&bytes) {
            return Vec::with_capacity(bytes);
        }
        // A conversation's next body is a little longer: it shall fit as well.
        let room = bytes.next_power_of_two();
        let mut kept = self.lock();
        // Not one that is far too large: what has the body holds all of it, maybe for long.
        let place = kept
            .iter()
            .rposition(|buffer| (room..=2 * room).contains(&buffer.capacity()));
        let found = place.and_then(|place| kept.remove(place));
        drop(kept);
        found.unwrap_or_else(|| Vec::with_capacity(room))
    }

    /// What was written into a buffer. It comes back when nobody reads it any more.
    pub(crate) fn lend(self: &Arc<Self>, buffer: Vec<u8>) -> Bytes {
        if (KEPT_FROM..=KEPT_TO).contains(&buffer.capacity()) {
            let home = Arc::clone(self);
            Bytes::from_owner(Lent { buffer, home })
        } else {
            buffer.into()
        }
    }

    fn keep(&self, mut buffer: Vec<u8>) {
        buffer.clear();
        let mut kept = self.lock();
        kept.push_back(buffer);
        let mut bytes: usize = kept.iter().map(Vec::capacity).sum();
        while bytes > KEPT_BYTES {
            bytes -= kept.pop_front().map_or(bytes, |oldest| oldest.capacity());
        }
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Vec<u8>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Lent {
    buffer: Vec<u8>,
    home: Arc<Buffers>,
}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        &self.buffer
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        self.home.keep(std::mem::take(&mut self.buffer));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lent(home: &Arc<Buffers>, bytes: usize) -> Bytes {
        let mut buffer = home.take(bytes);
        buffer.resize(bytes, b'x');
        home.lend(buffer)
    }

    #[test]
    fn memory_comes_back_when_the_last_reader_is_gone_and_shows_nothing_of_before() {
        let home = Arc::new(Buffers::default());
        let body = lent(&home, 500_000);
        let place = body.as_ptr();
        let part = body.slice(10..20);
        drop(body);
        assert!(home.lock().is_empty(), "somebody still reads");
        drop(part);
        let longer = home.take(510_000);
        assert_eq!(longer.as_ptr(), place, "a little more fits as well");
        assert!(longer.is_empty());
        assert!(home.lock().is_empty());
        drop(home.lend(longer));
        assert!(
            home.take(40_000).capacity() < 500_000,
            "it would hold far more than it is"
        );
        let shorter = home.take(200_000);
        assert_eq!(shorter.as_ptr(), place);
    }

    #[test]
    fn what_lies_unused_is_bounded_and_the_oldest_goes_first() {
        let home = Arc::new(Buffers::default());
        drop(lent(&home, 1_000));
        drop(lent(&home, KEPT_TO + 1));
        assert!(home.lock().is_empty(), "too small, too large");
        let held: Vec<Bytes> = (0..200).map(|_| lent(&home, 100_000)).collect();
        drop(held);
        let large = lent(&home, 1_000_000);
        let place = large.as_ptr();
        drop(large);
        let bytes: usize = home.lock().iter().map(Vec::capacity).sum();
        assert!(bytes <= KEPT_BYTES, "{bytes}");
        let again = home.take(1_000_000);
        assert_eq!(again.as_ptr(), place, "small ones made room");
    }
}
