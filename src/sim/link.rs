//! Moving KV between engines: each has one way out and one way in, each first come, first served.

use super::scenario::LinkSpec;

/// The network.
#[derive(Debug)]
pub(super) struct Links {
    spec: LinkSpec,
    /// When each engine's way out, and its way in, are free.
    out: Vec<f64>,
    into: Vec<f64>,
    pub(super) bytes: f64,
    pub(super) busy_s: f64,
}

impl Links {
    pub(super) fn new(spec: LinkSpec, engines: usize) -> Self {
        Self {
            spec,
            out: vec![0.0; engines],
            into: vec![0.0; engines],
            bytes: 0.0,
            busy_s: 0.0,
        }
    }

    /// Seconds until both ways would be free.
    pub(super) fn backlog(&self, from: usize, to: usize, now: f64) -> f64 {
        (self.out[from].max(self.into[to]) - now).max(0.0)
    }

    /// Seconds that `bytes` take alone.
    pub(super) fn alone(&self, bytes: f64) -> f64 {
        self.spec.latency_s + bytes / self.spec.bytes_per_s
    }

    /// Seconds of sending `bytes` that computing them for so long could not hide. Layer by layer: what was sent while the
    /// prompt was computed need not be sent again, but the last layer is.
    pub(super) fn exposed(&self, bytes: f64, computing_s: f64) -> f64 {
        let alone = self.alone(bytes);
        if self.spec.overlap {
            (alone - computing_s).max(self.spec.latency_s)
        } else {
            alone
        }
    }

    /// Sends `bytes` that were computed since `computing_since`; when they are there.
    pub(super) fn send(
        &mut self,
        from: usize,
        to: usize,
        bytes: f64,
        computing_since: f64,
        now: f64,
    ) -> f64 {
        let start = now + self.backlog(from, to, now);
        let exposed = self.exposed(bytes, now - computing_since);
        let end = start + exposed;
        (self.out[from], self.into[to]) = (end, end);
        self.bytes += bytes;
        self.busy_s += exposed;
        end
    }
}
