//! What the benches share: the router under test, and the two obvious ways to write it.
//!
//! All three do the same bookkeeping for a turn of a pinned conversation: find it, book its growth
//! on its decoder below the capacity, count the turn, and at the end turn the booking into what the
//! conversation holds.

#![allow(dead_code, reason = "each bench uses its part")]

use std::collections::HashMap;
use std::sync::Mutex;

use conserve::config::Config;
use conserve::event::Usage;
use conserve::fleet::{Role, WorkerSpec};
use conserve::router::{Begin, Router, TurnRequest};
use conserve::units::{Blocks, ConversationKey, Timestamp, Tokens};

pub const DECODERS: usize = 8;
pub const CAPACITY: u32 = 8_000_000;

/// A turn of one conversation: begins, and finishes at once.
pub trait Turns: Sync {
    fn name(&self) -> &'static str;
    fn turn(&self, key: u128, prompt: u32, output: u32, now: u64);
}

/// A well mixed key, as a keyed hash would give.
pub fn key(number: u64) -> u128 {
    let mix = |mut x: u64| {
        x = (x ^ x >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        x = (x ^ x >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        x ^ x >> 31
    };
    let high = mix(number.wrapping_mul(0x9E37_79B9_7F4A_7C15));
    u128::from(high) << 64 | u128::from(mix(high ^ 0x5555))
}

/// The prompt of a conversation's n-th turn: seven turns that grow, then a compacted one.
pub fn prompt(turn: u64) -> u32 {
    1_000 + u32::try_from(turn % 8).unwrap_or(0) * 150
}

pub const OUTPUT: u32 = 60;

pub fn router(decoders: usize) -> Router {
    let config = Config {
        max_conversations: 8_000_000,
        ..Config::default()
    };
    let router = Router::new(config).expect("valid");
    for number in 0..decoders {
        let spec = WorkerSpec::new(format!("http://d{number}:8000"), Role::Decoder)
            .with_kv_blocks(Blocks::new(CAPACITY.into()));
        router.join(spec, Timestamp(0)).expect("valid");
    }
    router
}

impl Turns for Router {
    fn name(&self) -> &'static str {
        "router"
    }

    fn turn(&self, key: u128, prompt: u32, output: u32, now: u64) {
        let request = TurnRequest {
            key: ConversationKey(key),
            prompt_tokens: Tokens(prompt),
            wait: None,
        };
        let Ok(Begin::Started(turn)) = self.begin(&request, Timestamp(now)) else {
            panic!("no room")
        };
        let usage = Usage {
            output: Some(Tokens(output)),
            ..Usage::default()
        };
        turn.finish(usage, Timestamp(now + 1));
    }
}

/// The same with the route looked at, as a door does.
pub struct Routed(pub Router);

impl Turns for Routed {
    fn name(&self) -> &'static str {
        "router_with_route"
    }

    fn turn(&self, key: u128, prompt: u32, output: u32, now: u64) {
        let request = TurnRequest {
            key: ConversationKey(key),
            prompt_tokens: Tokens(prompt),
            wait: None,
        };
        let Ok(Begin::Started(turn)) = self.0.begin(&request, Timestamp(now)) else {
            panic!("no room")
        };
        std::hint::black_box(turn.route());
        let usage = Usage {
            output: Some(Tokens(output)),
            ..Usage::default()
        };
        turn.finish(usage, Timestamp(now + 1));
    }
}

/// The same with metrics folded.
pub struct Metered(pub Router);

impl Turns for Metered {
    fn name(&self) -> &'static str {
        "router_with_metrics"
    }

    fn turn(&self, key: u128, prompt: u32, output: u32, now: u64) {
        self.0.turn(key, prompt, output, now);
    }
}

#[derive(Default, Clone, Copy)]
struct Row {
    decoder: usize,
    blocks: u32,
    turn: u32,
    in_flight: u32,
    first_seen: u64,
    last_used: u64,
}

#[derive(Default, Clone, Copy)]
struct Books {
    booked: u32,
    running: u32,
}

fn blocks(tokens: u32) -> u32 {
    tokens.div_ceil(16)
}

/// Everything behind one lock.
#[derive(Default)]
pub struct OneLock(Mutex<(HashMap<u128, Row>, [Books; DECODERS])>);

impl Turns for OneLock {
    fn name(&self) -> &'static str {
        "mutex_hashmap"
    }

    fn turn(&self, key: u128, prompt: u32, output: u32, now: u64) {
        let mut guard = self.0.lock().expect("no panic");
        let (map, books) = &mut *guard;
        let at = map.len() % DECODERS;
        let row = map.entry(key).or_insert_with(|| Row {
            decoder: at,
            first_seen: now,
            ..Row::default()
        });
        let growth = blocks(prompt).saturating_sub(row.blocks);
        let decoder = &mut books[row.decoder];
        assert!(decoder.booked + growth <= CAPACITY, "no room");
        decoder.booked += growth;
        decoder.running += 1;
        (row.in_flight, row.turn, row.last_used) = (row.in_flight + 1, row.turn + 1, now);
        drop(guard);

        let mut guard = self.0.lock().expect("no panic");
        let (map, books) = &mut *guard;
        let row = map.get_mut(&key).expect("in flight");
        let decoder = &mut books[row.decoder];
        let actual = blocks(prompt + output);
        decoder.booked = (decoder.booked - growth + actual - row.blocks).min(CAPACITY);
        decoder.running -= 1;
        (row.in_flight, row.blocks, row.last_used) = (row.in_flight - 1, actual, now + 1);
    }
}

/// 64 locked maps, and a lock for each decoder's books.
pub struct Sharded {
    shards: Vec<Mutex<HashMap<u128, Row>>>,
    books: Vec<Mutex<Books>>,
}

impl Default for Sharded {
    fn default() -> Self {
        Self {
            shards: (0..64).map(|_| Mutex::default()).collect(),
            books: (0..DECODERS).map(|_| Mutex::default()).collect(),
        }
    }
}

impl Turns for Sharded {
    fn name(&self) -> &'static str {
        "sharded_map"
    }

    fn turn(&self, key: u128, prompt: u32, output: u32, now: u64) {
        let shard = &self.shards[key as usize % 64];
        let growth = {
            let mut map = shard.lock().expect("no panic");
            let at = (key >> 70) as usize % DECODERS;
            let row = map.entry(key).or_insert_with(|| Row {
                decoder: at,
                first_seen: now,
                ..Row::default()
            });
            let growth = blocks(prompt).saturating_sub(row.blocks);
            let mut books = self.books[row.decoder].lock().expect("no panic");
            assert!(books.booked + growth <= CAPACITY, "no room");
            books.booked += growth;
            books.running += 1;
            (row.in_flight, row.turn, row.last_used) = (row.in_flight + 1, row.turn + 1, now);
            growth
        };
        let mut map = shard.lock().expect("no panic");
        let row = map.get_mut(&key).expect("in flight");
        let actual = blocks(prompt + output);
        let mut books = self.books[row.decoder].lock().expect("no panic");
        books.booked = (books.booked - growth + actual - row.blocks).min(CAPACITY);
        books.running -= 1;
        (row.in_flight, row.blocks, row.last_used) = (row.in_flight - 1, actual, now + 1);
    }
}

/// Where and on what a figure was measured, as the start of a JSON object.
pub fn provenance(bench: &str) -> serde_json::Map<String, serde_json::Value> {
    let run = |program: &str, args: &[&str]| {
        let output = std::process::Command::new(program)
            .args(args)
            .output()
            .ok()?;
        Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let cpu = cpu
        .lines()
        .find_map(|line| line.strip_prefix("model name\t: "))
        .unwrap_or("unknown");
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let cores = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
    let mut map = serde_json::Map::new();
    map.insert("bench".into(), bench.into());
    map.insert(
        "command".into(),
        format!("cargo bench --bench {bench}").into(),
    );
    map.insert(
        "commit".into(),
        run("git", &["rev-parse", "--short", "HEAD"]).into(),
    );
    map.insert(
        "dirty".into(),
        run("git", &["status", "--porcelain", "-uno"])
            .map(|s| !s.is_empty())
            .into(),
    );
    map.insert("rustc".into(), run("rustc", &["--version"]).into());
    map.insert("cpu".into(), cpu.into());
    map.insert("cores".into(), cores.into());
    map.insert("load_average_before".into(), load.trim().into());
    map
}

/// Writes a result file and says where.
pub fn write_result(bench: &str, result: &serde_json::Map<String, serde_json::Value>) {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/bench/results");
    let text = serde_json::to_string_pretty(result).expect("plain values");
    let file = format!("{path}/{bench}.json");
    std::fs::write(&file, text + "\n").expect("bench/results can be written");
    println!("{}", serde_json::to_string(result).expect("plain values"));
}

pub fn quantile(sorted: &[u64], q: f64) -> u64 {
    let last = sorted.len().saturating_sub(1);
    sorted[((last as f64) * q).round() as usize]
}
