//! What the door counts. The router's own metrics are the core's.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::dispatch::{Endpoint, Failure};

/// Statuses 100 to 599.
const STATUSES: usize = 500;

/// What is under way for a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum During {
    Start,
    Waiting,
    Prefill,
    Decode,
}

impl During {
    const ALL: [Self; 4] = [Self::Start, Self::Waiting, Self::Prefill, Self::Decode];

    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Waiting => "waiting",
            Self::Prefill => "prefill",
            Self::Decode => "decode",
        }
    }
}

/// Counters of one door. Each is Relaxed: a counter; guards no memory.
#[derive(Debug)]
pub(crate) struct Stats {
    requests: [Vec<AtomicU64>; 2],
    gone: [AtomicU64; During::ALL.len()],
    failures: [AtomicU64; Failure::NAMED.len()],
    relayed_bytes: AtomicU64,
    in_flight: AtomicUsize,
}

/// What a door counted so far.
#[derive(Debug, Clone, Default)]
pub struct Counted {
    /// Requests answered: path, status (499: the client left), how many.
    pub requests: Vec<(&'static str, u16, u64)>,
    /// Requests whose client left, by what was under way.
    pub client_gone: Vec<(&'static str, u64)>,
    /// Exchanges with workers that broke, by kind.
    pub upstream_failures: Vec<(&'static str, u64)>,
    /// Bytes of streams taken from workers.
    pub relayed_bytes: u64,
}

impl Stats {
    pub(crate) fn new() -> Self {
        let row = || (0..STATUSES).map(|_| AtomicU64::new(0)).collect();
        Self {
            requests: [row(), row()],
            gone: Default::default(),
            failures: Default::default(),
            relayed_bytes: AtomicU64::new(0),
            in_flight: AtomicUsize::new(0),
        }
    }

    pub(crate) fn answered(&self, route: Endpoint, status: u16) {
        let place = usize::from(status).saturating_sub(100).min(STATUSES - 1);
        self.requests[index(route)][place].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn client_gone(&self, during: During) {
        self.gone[during as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a failure; its name.
    pub(crate) fn failed(&self, failure: Failure) -> &'static str {
        let place = Failure::NAMED
            .iter()
            .position(|(_, known)| *known == failure)
            .expect("every failure has a name");
        self.failures[place].fetch_add(1, Ordering::Relaxed);
        Failure::NAMED[place].0
    }

    pub(crate) fn relayed(&self, bytes: usize) {
        self.relayed_bytes
            .fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(crate) fn entered(&self) {
        // SeqCst: with `in_flight`, so that a drain that began sees every request that saw the door open.
        self.in_flight.fetch_add(1, Ordering::SeqCst);
    }

    /// Whether the last one left.
    pub(crate) fn left(&self) -> bool {
        self.in_flight.fetch_sub(1, Ordering::SeqCst) == 1
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::SeqCst)
    }

    pub(crate) fn read(&self) -> Counted {
        let routes = [Endpoint::Chat, Endpoint::Completions];
        let requests = routes.into_iter().flat_map(|route| {
            let counts = (100..).zip(&self.requests[index(route)]);
            counts.map(move |(status, count)| (route.path(), status, count.load(Ordering::Relaxed)))
        });
        let gone = During::ALL.iter().map(|during| during.as_str());
        let failures = Failure::NAMED.iter().map(|(name, _)| *name);
        Counted {
            requests: requests.filter(|(_, _, count)| *count > 0).collect(),
            client_gone: counted(gone, &self.gone),
            upstream_failures: counted(failures, &self.failures),
            relayed_bytes: self.relayed_bytes.load(Ordering::Relaxed),
        }
    }
}

fn counted(
    names: impl Iterator<Item = &'static str>,
    counts: &[AtomicU64],
) -> Vec<(&'static str, u64)> {
    names
        .zip(counts.iter().map(|count| count.load(Ordering::Relaxed)))
        .filter(|(_, count)| *count > 0)
        .collect()
}

fn index(route: Endpoint) -> usize {
    match route {
        Endpoint::Chat => 0,
        Endpoint::Completions => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dispatch::TimeoutKind;

    #[test]
    fn what_was_counted_is_read_under_its_name() {
        let stats = Stats::new();
        stats.answered(Endpoint::Chat, 200);
        stats.answered(Endpoint::Chat, 200);
        stats.answered(Endpoint::Completions, 499);
        stats.client_gone(During::Decode);
        assert_eq!(
            stats.failed(Failure::Timeout(TimeoutKind::Idle)),
            "idle_timeout"
        );
        let counted = stats.read();
        assert_eq!(
            counted.requests,
            [
                ("/v1/chat/completions", 200, 2),
                ("/v1/completions", 499, 1)
            ]
        );
        assert_eq!(counted.client_gone, [("decode", 1)]);
        assert_eq!(counted.upstream_failures, [("idle_timeout", 1)]);
    }

    #[test]
    fn a_status_outside_http_is_counted_at_the_edge() {
        let stats = Stats::new();
        stats.answered(Endpoint::Chat, 7);
        stats.answered(Endpoint::Chat, 999);
        let statuses: Vec<_> = stats.read().requests.iter().map(|row| row.1).collect();
        assert_eq!(statuses, [100, 599]);
    }
}
