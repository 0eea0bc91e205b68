//! What will happen in one run, drawn from its seed: workers, conversations, and what goes wrong.
//!
//! Promises: plain data; every part can be left out without changing another, so that a failing run can be made small.

use std::collections::BTreeSet;

use conserve::config::PolicyKind;

use super::draw::Draw;

/// Nanoseconds.
pub const MS: u64 = 1_000_000;
pub const SECOND: u64 = 1_000 * MS;

/// Purposes of draws.
pub const FOR_PLAN: u64 = 1;
pub const FOR_TALK: u64 = 2;
pub const FOR_MISHAP: u64 = 3;
pub const FOR_CALL: u64 = 4;
pub const FOR_PROBE: u64 = 5;
pub const FOR_CLIENT: u64 = 6;
pub const FOR_POLICY: u64 = 7;
pub const FOR_GATE: u64 = 8;

/// One run.
#[derive(Debug, Clone)]
pub struct Plan {
    pub seed: u64,
    pub policy: PolicyKind,
    /// Decoders compute prompts for others too.
    pub both: bool,
    pub prefillers: usize,
    pub decoders: usize,
    pub kv_blocks: u64,
    /// Percent of the calls to workers that go wrong.
    pub faulty_percent: u64,
    /// Idle conversations may lose their room as they do by default; if not, growth waits, and `evict_idle` says whether
    /// they lose their pins with it.
    pub default_gate: bool,
    pub evict_idle: bool,
    pub queue_limit: usize,
    pub talks: Vec<Talk>,
    pub mishaps: Vec<Mishap>,
}

/// One conversation.
#[derive(Debug, Clone)]
pub struct Talk {
    pub tenant: u8,
    /// The id in its header; several talks may use the same. `None`: recognised by its history.
    pub id: Option<u8>,
    pub starts: u64,
    pub turns: Vec<TurnPlan>,
}

#[derive(Debug, Clone)]
pub struct TurnPlan {
    /// Requests sent at once.
    pub branches: u64,
    pub stream: bool,
    pub text_bytes: usize,
    /// After the answer before it.
    pub gap: u64,
    /// The client leaves that long after it asked.
    pub leaves: Option<u64>,
}

/// What goes wrong with the fleet or the router at a given time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mishap {
    pub at: u64,
    pub what: Trouble,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Trouble {
    /// The worker's process dies; with `vanish` nobody even refuses connections. It may come back, empty.
    Kill {
        host: usize,
        vanish: bool,
        back: Option<u64>,
    },
    /// The worker stops for a while, as by SIGSTOP, and goes on.
    Stall {
        host: usize,
        lasts: u64,
    },
    /// Probes get no answer though the worker serves.
    Deaf {
        host: usize,
        lasts: u64,
    },
    /// An operator drains it, and takes that back.
    Drain {
        host: usize,
        lasts: Option<u64>,
    },
    /// An operator removes it.
    Remove {
        host: usize,
    },
    /// The router's process stops for a while; the world goes on.
    Pause {
        lasts: u64,
    },
    /// The router's clock jumps forward.
    Jump {
        by: u64,
    },
    Sweep,
}

/// What goes wrong with one call to a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallFault {
    /// No route.
    Unreachable,
    /// The connection is never accepted.
    NoConnect,
    /// The request is lost on the way, or the answer: half-open.
    Lost,
    /// The connection is reset when the request has arrived.
    ResetAtOnce,
    /// Reset, or silence for ever, after that share (in 1/256) of the answer.
    ResetAt(u8),
    SilentAt(u8),
    /// The worker begins that much later.
    Late(u64),
    /// It answers this instead.
    Says(u16),
    Garbage,
}

/// Parts of a plan that are left out, to make a failing run small.
#[derive(Debug, Clone, Default)]
pub struct Without {
    pub talks: BTreeSet<usize>,
    pub mishaps: BTreeSet<usize>,
    pub calls: BTreeSet<CallKey>,
    pub last_turns: BTreeSet<(usize, usize)>,
}

/// A call to a worker: talk, turn, try of the client, branch, and how many calls the request made before.
pub type CallKey = [u64; 5];

impl Plan {
    pub fn of(seed: u64) -> Self {
        let mut draw = Draw::of(seed, &[FOR_PLAN]);
        let prefillers = draw.pick(&[0, 1, 1, 1, 2, 3]);
        let decoders = draw.pick(&[1, 1, 2, 2, 3, 4]);
        let mut ruled = Draw::of(seed, &[FOR_POLICY]);
        let policy = if ruled.chance(50) {
            PolicyKind::Strict
        } else {
            ruled.pick(&PolicyKind::ALL)
        };
        let both = policy != PolicyKind::Strict && ruled.chance(50);
        let hosts = prefillers + decoders;
        let talks = draw.within(1, 14);
        let mishaps = draw.pick(&[0, 0, 1, 2, 4, 8]);
        Self {
            seed,
            policy,
            both,
            prefillers,
            decoders,
            kv_blocks: draw.pick(&[12, 40, 100, 400]),
            faulty_percent: draw.pick(&[0, 0, 3, 10, 30]),
            default_gate: Draw::of(seed, &[FOR_GATE]).chance(60),
            evict_idle: draw.chance(25),
            queue_limit: draw.pick(&[0_usize, 2, 64, 64]),
            talks: (0..talks).map(|talk| Talk::of(seed, talk)).collect(),
            mishaps: (0..mishaps)
                .map(|number| Mishap::of(seed, number, hosts))
                .collect(),
        }
    }

    /// What goes wrong with this call.
    pub fn fault(&self, key: &CallKey, without: &Without) -> Option<CallFault> {
        let mut draw = Draw::of(self.seed, &[&[FOR_CALL], &key[..]].concat());
        if !draw.chance(self.faulty_percent) || without.calls.contains(key) {
            return None;
        }
        let share = draw.bits().to_le_bytes()[0];
        Some(match draw.within(0, 12) {
            0 => CallFault::Unreachable,
            1 => CallFault::NoConnect,
            2 => CallFault::Lost,
            3 => CallFault::ResetAtOnce,
            4..=5 => CallFault::ResetAt(share),
            6 => CallFault::SilentAt(share),
            7..=8 => CallFault::Late(draw.span(100 * MS, 60 * SECOND)),
            9..=10 => CallFault::Says(draw.pick(&[400, 404, 429, 500, 500, 502, 503, 503, 302])),
            _ => CallFault::Garbage,
        })
    }
}

impl Talk {
    fn of(seed: u64, number: u64) -> Self {
        let mut draw = Draw::of(seed, &[FOR_TALK, number]);
        let turns = draw.within(1, 6);
        Self {
            tenant: draw.pick(&[0, 0, 1]),
            id: draw
                .chance(70)
                .then(|| draw.pick(&[0, 1, 2, 3, 4, 5, 6, 7])),
            starts: draw.span(MS, 20 * SECOND),
            turns: (0..turns)
                .map(|_| TurnPlan {
                    branches: draw.pick(&[1, 1, 1, 1, 2, 3]),
                    stream: draw.chance(60),
                    text_bytes: draw.span(16, 6_000) as usize,
                    gap: draw.span(MS, 20 * SECOND),
                    leaves: draw.chance(8).then(|| draw.span(MS, 10 * SECOND)),
                })
                .collect(),
        }
    }
}

impl Mishap {
    fn of(seed: u64, number: u64, hosts: usize) -> Self {
        let mut draw = Draw::of(seed, &[FOR_MISHAP, number]);
        let host = usize::try_from(draw.within(0, hosts as u64)).expect("a few");
        let lasts = draw.span(10 * MS, 60 * SECOND);
        let what = match draw.within(0, 12) {
            0..=3 => Trouble::Kill {
                host,
                vanish: draw.chance(30),
                back: draw.chance(70).then_some(lasts),
            },
            4..=5 => Trouble::Stall { host, lasts },
            6 => Trouble::Deaf { host, lasts },
            7 => Trouble::Drain {
                host,
                lasts: draw.chance(60).then_some(lasts),
            },
            8 => Trouble::Remove { host },
            9 => Trouble::Pause { lasts },
            10 => Trouble::Jump { by: lasts },
            _ => Trouble::Sweep,
        };
        Self {
            at: draw.span(10 * MS, 60 * SECOND),
            what,
        }
    }
}
