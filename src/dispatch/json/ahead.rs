//! The containers of an object, passed while its text arrives: each piece is looked at when the processor still has it at hand.
//!
//! Promises: what it says of a container is what `skip` would say, for every container that a reader by the grammar comes to.
//! What it does not know it does not say.

use super::skip::{Fault, Passed, Skip};

/// As many containers are remembered. An object with more of them is read as if nothing were known of the rest.
const MOST: usize = 64;

/// What is known of the containers in the object that a text is.
#[derive(Debug, Clone)]
pub(crate) struct Ahead {
    skip: Skip,
    /// So far the text was looked at.
    at: usize,
    found: Vec<Passed>,
    /// The text is too deep, or has too many containers.
    has_stopped: bool,
}

impl Ahead {
    /// Of a text that may have so many levels.
    pub(crate) fn new(max_depth: usize) -> Self {
        Self {
            skip: Skip::new(1, max_depth),
            at: 0,
            found: Vec::new(),
            has_stopped: false,
        }
    }

    /// The text has grown to this.
    pub(crate) fn grown(&mut self, text: &[u8]) {
        if self.has_stopped {
            return;
        }
        let found = &mut self.found;
        let passed = self.skip.blocks(text, self.at, |passed| {
            found.push(passed);
            found.len() < MOST
        });
        match passed {
            Ok(at) => self.at = at,
            Err(_) => self.has_stopped = true,
        }
        self.has_stopped |= self.found.len() >= MOST;
    }

    /// The container that begins at `start` of the text that has grown to this; `None` where that is not known.
    pub(super) fn container(&self, text: &[u8], start: usize) -> Option<Result<Passed, Fault>> {
        if let Ok(place) = self
            .found
            .binary_search_by_key(&start, |passed| passed.start)
        {
            return Some(Ok(self.found[place]));
        }
        let is_open = !self.has_stopped && self.skip.open() == Some(start);
        is_open.then(|| self.skip.clone().pass(text, self.at))
    }
}
