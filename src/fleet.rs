//! Which workers exist, what each can hold, and whether it may be given work.
//!
//! Promises: a worker id is never reused; a restarted worker is a new worker, so old pins are stale
//! by construction (I4). A worker's books outlive its place in the fleet while turns hold them.
//! Leaves to others: finding out how a worker is (`watch`, `report`), choosing one (`placement`).

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use arc_swap::ArcSwap;

use crate::activity::Activity;
use crate::backlog::Backlog;
use crate::error::JoinError;
use crate::longest_idle::LongestIdle;
use crate::occupancy::{NEWCOMERS_WAIT, Occupancy};
use crate::pace::{StepTime, UsualWork};
use crate::report::WorkerReport;
use crate::residency::Residency;
use crate::retained::Retained;
use crate::sync::{Counter, Mutex, POCKETS, Padded, stripe};
use crate::units::{BlockSize, Blocks, Timestamp, Tokens, WorkerId};

/// What a worker is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    /// Computes prompts and hands their KV over.
    Prefiller,
    /// Holds conversations and generates.
    Decoder,
    /// Both at once.
    Both,
}

impl Role {
    /// Whether it computes prompts for others.
    #[must_use]
    pub const fn prefills(self) -> bool {
        matches!(self, Self::Prefiller | Self::Both)
    }

    /// Whether it holds conversations.
    #[must_use]
    pub const fn decodes(self) -> bool {
        matches!(self, Self::Decoder | Self::Both)
    }

    /// `"prefiller"`, `"decoder"` or `"both"`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Prefiller => "prefiller",
            Self::Decoder => "decoder",
            Self::Both => "both",
        }
    }
}

/// How a worker is, as last heard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Health {
    /// Takes work.
    Ready,
    /// Doubted: takes no new conversation, keeps those it has.
    Suspect,
    /// Gone for good, with the KV it held.
    Lost,
}

impl Health {
    /// `"ready"`, `"suspect"` or `"lost"`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::Suspect => "suspect",
            Self::Lost => "lost",
        }
    }
}

/// A worker that wants to join.
///
/// A decoder whose `kv_blocks` is `None` gets no conversation until
/// [`Router::observe`](crate::router::Router::observe) tells its capacity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerSpec {
    /// Where it listens, `http://` or `https://`.
    pub url: String,
    /// What it is for.
    pub role: Role,
    /// What people call it; by default `p0`, `d0`, `w0` and so on.
    pub name: Option<String>,
    /// Its class of GPU and power cap.
    pub tier: Option<String>,
    /// KV blocks it holds.
    pub kv_blocks: Option<Blocks>,
    /// Tokens in a block; by default the router's.
    pub block_size: Option<BlockSize>,
    /// The longest prompt plus answer it accepts.
    pub max_model_len: Option<Tokens>,
    /// Prompt tokens queued above which it gets no new conversation; by default the router's.
    pub prefill_backlog_tokens: Option<Tokens>,
}

impl WorkerSpec {
    /// A worker with nothing known but where it is and what it is for.
    ///
    /// ```
    /// use conserve::fleet::{Role, WorkerSpec};
    /// use conserve::units::Blocks;
    /// let spec = WorkerSpec::new("http://d0:8000", Role::Decoder).with_kv_blocks(Blocks::new(40_000));
    /// assert_eq!(spec.kv_blocks, Some(Blocks::new(40_000)));
    /// ```
    #[must_use]
    pub fn new(url: impl Into<String>, role: Role) -> Self {
        Self {
            url: url.into(),
            role,
            name: None,
            tier: None,
            kv_blocks: None,
            block_size: None,
            max_model_len: None,
            prefill_backlog_tokens: None,
        }
    }

    /// The same with a known capacity.
    #[must_use]
    pub fn with_kv_blocks(self, blocks: Blocks) -> Self {
        Self {
            kv_blocks: Some(blocks),
            ..self
        }
    }
}

/// A worker as an answer names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerRef {
    /// Its id.
    pub id: WorkerId,
    /// Where it listens.
    pub url: Arc<str>,
    /// What people call it.
    pub name: Arc<str>,
}

const SUSPECT: u64 = 1;
const DRAINING: u64 = 2;
const LOST: u64 = 4;

/// One worker. What turns write lies on other cache lines than what they read.
#[derive(Debug)]
pub(crate) struct Worker {
    pub(crate) id: WorkerId,
    pub(crate) url: Arc<str>,
    pub(crate) name: Arc<str>,
    pub(crate) role: Role,
    pub(crate) tier: Option<Arc<str>>,
    pub(crate) backlog_limit: Tokens,
    pub(crate) joined: Timestamp,
    standing: Counter,
    /// When it was doubted last; 0: never.
    pub(crate) doubted: Counter,
    pub(crate) misses: Misses,
    /// 1 while it computes prompts for others and holds conversations only when those have no room.
    pub(crate) helps: Counter,
    /// 0 while unknown.
    capacity: Counter,
    block_size: Counter,
    /// 0 while unknown.
    max_model_len: Counter,
    pub(crate) occupancy: Occupancy,
    pub(crate) backlog: Padded<Backlog>,
    pub(crate) throughput: Throughput,
    /// Prompt tokens that turns of its own conversations wait for or compute here. Each turn writes it.
    pub(crate) computing: Padded<Counter>,
    pub(crate) usual: UsualWork,
    pub(crate) steps: StepTime,
    pub(crate) activity: Activity,
    references: [OnceLock<WorkerRef>; POCKETS],
    /// Conversations whose word names this decoder.
    pub(crate) conversations: Counter,
    /// What it last said about itself, and when it last told its load.
    pub(crate) report: Mutex<Option<(WorkerReport, Option<Timestamp>)>>,
    pub(crate) residency: Mutex<Residency>,
    /// Blocks of idle conversations that it evicted.
    pub(crate) idle_evicted: Counter,
    /// Blocks that it keeps although no conversation holds them.
    pub(crate) retained: Retained,
    pub(crate) longest_idle: LongestIdle,
    /// 1 once it told what its cache took in or let go.
    told_evictions: Counter,
}

impl Worker {
    /// Prompt tokens that it waits for or computes for its own conversations.
    pub(crate) fn own_prompts(&self) -> Tokens {
        Tokens(u32::try_from(self.computing.get()).unwrap_or(u32::MAX))
    }

    pub(crate) fn helps(&self) -> bool {
        self.helps.get() != 0
    }

    fn standing(&self, bit: u64) -> bool {
        self.standing.get() & bit != 0
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.standing(LOST)
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.standing(DRAINING)
    }

    /// Neither lost nor draining: one load, on turn n.
    pub(crate) fn keeps_pins(&self) -> bool {
        !self.standing(LOST | DRAINING)
    }

    /// Takes new conversations.
    pub(crate) fn is_open(&self) -> bool {
        self.standing.get() == 0
    }

    pub(crate) fn health(&self) -> Health {
        if self.standing(LOST) {
            Health::Lost
        } else if self.standing(SUSPECT) {
            Health::Suspect
        } else {
            Health::Ready
        }
    }

    fn stand(&self, bit: u64, on: bool) -> bool {
        loop {
            let from = self.standing.get();
            let to = if on { from | bit } else { from & !bit };
            if from == to {
                return false;
            }
            if self.standing.replace(from, to) {
                return true;
            }
        }
    }

    pub(crate) fn set_suspect(&self, on: bool) -> bool {
        self.stand(SUSPECT, on)
    }

    pub(crate) fn set_draining(&self, on: bool) -> bool {
        self.stand(DRAINING, on)
    }

    pub(crate) fn set_lost(&self) -> bool {
        self.stand(LOST, true)
    }

    pub(crate) fn capacity(&self) -> Option<Blocks> {
        match self.capacity.get() {
            0 => None,
            blocks => Some(Blocks::new(blocks)),
        }
    }

    pub(crate) fn block_size(&self) -> BlockSize {
        let tokens = u32::try_from(self.block_size.get()).unwrap_or(0);
        BlockSize::new(tokens).unwrap_or_default()
    }

    pub(crate) fn max_model_len(&self) -> Option<Tokens> {
        match self.max_model_len.get() {
            0 => None,
            tokens => Some(Tokens(u32::try_from(tokens).unwrap_or(u32::MAX))),
        }
    }

    /// The largest prompt that this decoder could ever hold; `None` while its capacity is unknown.
    pub(crate) fn prompt_limit(&self) -> Option<Tokens> {
        let fits = self.block_size().tokens(self.capacity()?);
        Some(self.max_model_len().map_or(fits, |len| len.min(fits)))
    }

    /// Takes over what the worker says about itself. The block size is fixed once anything is
    /// booked: blocks of two sizes cannot be added.
    pub(crate) fn observe(&self, report: &WorkerReport, now: Timestamp) {
        let unused = self.occupancy.books() == crate::occupancy::Books::default();
        if let Some(size) = report.block_size
            && unused
        {
            self.block_size.set(u64::from(size.get()));
        }
        if let Some(blocks) = report.kv_blocks
            && blocks > Blocks::ZERO
        {
            self.capacity.set(u64::from(blocks.get()));
        }
        if let Some(len) = report.max_model_len {
            self.max_model_len.set(u64::from(len.0));
        }
        let mut kept = self.report.lock();
        let told = report.tells_load().then_some(now);
        *kept = Some(match kept.as_ref() {
            Some((old, before)) => (report.clone().or(old), told.or(*before)),
            None => (report.clone(), told),
        });
    }

    /// Whether it tells what it evicts.
    pub(crate) fn tells_evictions(&self) -> bool {
        self.told_evictions.get() > 0
    }

    pub(crate) fn note_told_evictions(&self) {
        self.told_evictions.set(1);
    }

    /// Blocks in its prefix cache, and batches of KV events missed for good.
    pub(crate) fn resident(&self) -> (Option<Blocks>, u64) {
        let residency = self.residency.lock();
        (residency.blocks(), residency.missed())
    }

    /// How an answer names this worker. Each stripe of threads has names of its own, so that
    /// threads do not count references on the same cache line.
    pub(crate) fn reference(&self) -> WorkerRef {
        let own = self.references[stripe() % POCKETS].get_or_init(|| WorkerRef {
            id: self.id,
            url: Arc::from(&*self.url),
            name: Arc::from(&*self.name),
        });
        own.clone()
    }
}

/// Requests that a worker failed although its probes succeed. It frees what was booked with each of them, so by room alone it
/// would be the best place for the next: for a while others are preferred, and longer if it fails the first one after that.
#[derive(Debug, Default)]
pub(crate) struct Misses {
    in_a_row: Counter,
    /// Until when others are preferred.
    until: Counter,
}

impl Misses {
    const FIRST: Duration = Duration::from_secs(1);
    /// The last doubling: 64 s.
    const DOUBLINGS: u64 = 6;

    pub(crate) fn others_first(&self, now: Timestamp) -> bool {
        now.0 < self.until.get()
    }

    /// Those that fail at the same time are one miss.
    pub(crate) fn missed(&self, now: Timestamp) {
        if !self.others_first(now) {
            let before = self.in_a_row.get().min(Self::DOUBLINGS);
            self.in_a_row.set(before + 1);
            self.until.set((now + Self::FIRST * (1 << before)).0);
        }
    }

    pub(crate) fn forgive(&self) {
        self.in_a_row.set(0);
        self.until.set(0);
    }

    /// What it serves meanwhile, its pinned turns say, tells nothing about the next newcomer.
    pub(crate) fn served(&self, now: Timestamp) {
        if self.in_a_row.get() > 0 && !self.others_first(now) {
            self.in_a_row.set(0);
        }
    }
}

/// Prompt tokens per second, as observed at one worker, over the last twenty prompts or so; what it does besides is in it.
#[derive(Debug, Default)]
pub(crate) struct Throughput {
    last_done: Counter,
    /// Bits of an `f64`: tokens, and the seconds that they took, each older prompt counting less.
    tokens: Counter,
    seconds: Counter,
    /// The same of long prompts alone.
    long_tokens: Counter,
    long_seconds: Counter,
}

impl Throughput {
    /// Shorter ones wait for a step under way and share theirs, which makes a worker look slower the more it decodes.
    const LONG: Tokens = Tokens(2_048);
    /// Shorter prompts tell about fixed costs, not about throughput.
    const TELLING: Tokens = Tokens(256);
    const FADES: f64 = 0.95;

    pub(crate) fn get(&self) -> Option<f64> {
        Self::rate(&self.tokens, &self.seconds)
    }

    /// The same of prompts that are long.
    pub(crate) fn of_long(&self) -> Option<f64> {
        Self::rate(&self.long_tokens, &self.long_seconds)
    }

    fn rate(tokens: &Counter, seconds: &Counter) -> Option<f64> {
        let seconds = f64::from_bits(seconds.get());
        (seconds > 0.0).then(|| f64::from_bits(tokens.get()) / seconds)
    }

    /// A prompt that was sent at `started` is computed. The worker was busy with it since then, or
    /// since it was done with the one before: of two that are done together the second took no time.
    pub(crate) fn done(&self, prompt: Tokens, started: Timestamp, now: Timestamp) {
        if prompt < Self::TELLING {
            return;
        }
        let before = Timestamp(self.last_done.get());
        self.last_done.set(now.0);
        let span = now.since(started.max(before)).as_secs_f64();
        let fold = |sum: &Counter, more: f64| {
            let sum_now = Self::FADES * f64::from_bits(sum.get()) + more;
            sum.set(sum_now.to_bits());
        };
        fold(&self.tokens, f64::from(prompt.0));
        fold(&self.seconds, span);
        if prompt >= Self::LONG {
            fold(&self.long_tokens, f64::from(prompt.0));
            fold(&self.long_seconds, span);
        }
    }
}

const CHUNK: usize = 32;
type Chunk = Box<[OnceLock<Box<Worker>>]>;

/// Every worker there ever was, at the place that its id names, and the live ones as a list.
#[derive(Debug)]
pub(crate) struct Fleet {
    chunks: Box<[OnceLock<Chunk>]>,
    live: ArcSwap<Vec<WorkerId>>,
    joining: Mutex<Joined>,
}

#[derive(Debug, Default)]
struct Joined {
    all: u16,
    prefillers: u16,
    decoders: u16,
    both: u16,
    newcomers_wait: bool,
}

impl Fleet {
    pub(crate) fn new() -> Self {
        let chunks = usize::from(WorkerId::LIMIT).div_ceil(CHUNK);
        Self {
            chunks: (0..chunks).map(|_| OnceLock::new()).collect(),
            live: ArcSwap::default(),
            joining: Mutex::new(Joined::default()),
        }
    }

    /// The worker with this id. Every id in a word, a route or an event came from `join`.
    pub(crate) fn worker(&self, id: WorkerId) -> &Worker {
        self.get(id)
            .expect("an id inside the router was given out by join")
    }

    /// The worker with this id, for ids that come from outside.
    pub(crate) fn get(&self, id: WorkerId) -> Option<&Worker> {
        let worker = self.chunks.get(id.index() / CHUNK)?.get()?[id.index() % CHUNK].get()?;
        Some(worker)
    }

    /// Calls `visit` with each worker that is not lost.
    pub(crate) fn for_each_live<'a>(&'a self, mut visit: impl FnMut(&'a Worker)) {
        for id in self.live.load().iter() {
            visit(self.worker(*id));
        }
    }

    /// Every worker there ever was.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Worker> {
        (0..).map_while(|id| WorkerId::new(id).and_then(|id| self.get(id)))
    }

    pub(crate) fn join(
        &self,
        spec: WorkerSpec,
        block_size: BlockSize,
        backlog_limit: Tokens,
        now: Timestamp,
    ) -> Result<&Worker, JoinError> {
        let url = valid_url(&spec.url)?;
        if let Some(blocks) = spec.kv_blocks
            && blocks == Blocks::ZERO
        {
            return Err(JoinError::Capacity { blocks });
        }
        let mut joined = self.joining.lock();
        let live = self.live.load_full();
        if let Some(id) = live.iter().find(|id| &*self.worker(**id).url == url) {
            return Err(JoinError::AlreadyJoined {
                url: url.to_owned(),
                worker: *id,
                name: self.worker(*id).name.to_string(),
            });
        }
        let id = WorkerId::new(joined.all).ok_or(JoinError::IdsExhausted)?;
        joined.all += 1;
        let (letter, count) = match spec.role {
            Role::Prefiller => ("p", &mut joined.prefillers),
            Role::Decoder => ("d", &mut joined.decoders),
            Role::Both => ("w", &mut joined.both),
        };
        let name = spec.name.unwrap_or_else(|| format!("{letter}{count}"));
        *count += 1;
        let worker = Worker {
            id,
            url: url.into(),
            name: name.into(),
            role: spec.role,
            tier: spec.tier.map(Into::into),
            backlog_limit: spec.prefill_backlog_tokens.unwrap_or(backlog_limit),
            joined: now,
            standing: Counter::default(),
            doubted: Counter::default(),
            misses: Misses::default(),
            helps: Counter::default(),
            capacity: Counter::of(spec.kv_blocks.map_or(0, |blocks| u64::from(blocks.get()))),
            block_size: Counter::of(u64::from(spec.block_size.unwrap_or(block_size).get())),
            max_model_len: Counter::of(spec.max_model_len.map_or(0, |len| u64::from(len.0))),
            occupancy: Occupancy::new(),
            backlog: Padded(Backlog::new()),
            throughput: Throughput::default(),
            computing: Padded::default(),
            usual: UsualWork::default(),
            steps: StepTime::default(),
            activity: Activity::new(),
            references: std::array::from_fn(|_| OnceLock::new()),
            conversations: Counter::default(),
            report: Mutex::new(None),
            residency: Mutex::new(Residency::default()),
            idle_evicted: Counter::default(),
            retained: Retained::new(),
            longest_idle: LongestIdle::of(id),
            told_evictions: Counter::default(),
        };
        worker.occupancy.flag(NEWCOMERS_WAIT, joined.newcomers_wait);
        worker.backlog.flag(joined.newcomers_wait);
        let chunk = self.chunks[id.index() / CHUNK]
            .get_or_init(|| (0..CHUNK).map(|_| OnceLock::new()).collect());
        let worker = chunk[id.index() % CHUNK].get_or_init(|| Box::new(worker));
        self.live
            .store(Arc::new(live.iter().copied().chain([id]).collect()));
        Ok(worker)
    }

    /// Takes a worker out of the list of live ones; `false` if it was lost before.
    pub(crate) fn lose(&self, worker: &Worker) -> bool {
        let joined = self.joining.lock();
        let first = worker.set_lost();
        let live = self.live.load();
        self.live.store(Arc::new(
            live.iter().copied().filter(|id| *id != worker.id).collect(),
        ));
        drop(joined);
        first
    }

    /// Tells every worker, also those that join later, whether newcomers stand in the line.
    pub(crate) fn flag_newcomers(&self, wait: bool) {
        let mut joined = self.joining.lock();
        joined.newcomers_wait = wait;
        self.for_each_live(|worker| {
            worker.occupancy.flag(NEWCOMERS_WAIT, wait);
            worker.backlog.flag(wait);
        });
    }
}

fn valid_url(url: &str) -> Result<&str, JoinError> {
    let trimmed = url.trim_end_matches('/');
    let host = trimmed
        .strip_prefix("http://")
        .or_else(|| trimmed.strip_prefix("https://"));
    match host {
        Some(host)
            if !host.is_empty()
                && !host.starts_with(['/', ':', '?', '#'])
                && !host.contains(|c: char| c.is_whitespace() || c.is_control()) =>
        {
            Ok(trimmed)
        }
        _ => Err(JoinError::InvalidUrl {
            url: url.to_owned(),
        }),
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn join(fleet: &Fleet, url: &str) -> Result<WorkerId, JoinError> {
        let spec = WorkerSpec::new(url, Role::Decoder).with_kv_blocks(Blocks::new(8));
        fleet
            .join(spec, BlockSize::DEFAULT, Tokens(1), Timestamp(0))
            .map(|worker| worker.id)
    }

    #[test]
    fn a_worker_that_comes_back_is_a_new_worker() {
        let fleet = Fleet::new();
        let first = join(&fleet, "http://d0:8000/").expect("valid");
        let twice = join(&fleet, "http://d0:8000");
        assert!(matches!(twice, Err(JoinError::AlreadyJoined { worker, .. }) if worker == first));
        assert!(fleet.lose(fleet.worker(first)));
        assert!(!fleet.lose(fleet.worker(first)), "lost once");
        let second = join(&fleet, "http://d0:8000").expect("the old one is lost");
        assert_ne!(first, second);
        assert_eq!(&*fleet.worker(second).name, "d1");
        let mut live = Vec::new();
        fleet.for_each_live(|worker| live.push(worker.id));
        assert_eq!(live, [second]);
        assert_eq!(
            fleet.all().count(),
            2,
            "the books of the lost one can still be settled"
        );
    }

    #[test]
    fn what_is_no_worker_url_is_refused() {
        for url in [
            "",
            "d0:8000",
            "http://",
            "http:///x",
            "ftp://d0",
            "http://a b",
            "http://:80",
        ] {
            assert!(
                matches!(join(&Fleet::new(), url), Err(JoinError::InvalidUrl { .. })),
                "{url}"
            );
        }
    }

    #[test]
    fn throughput_counts_busy_time_only() {
        let throughput = Throughput::default();
        assert_eq!(throughput.get(), None);
        let second = 1_000_000_000;
        throughput.done(Tokens(255), Timestamp(0), Timestamp(second));
        assert_eq!(throughput.get(), None, "255 < 256 tokens tell nothing");
        throughput.done(Tokens(1000), Timestamp(second), Timestamp(2 * second));
        assert_eq!(throughput.get(), Some(1000.0));
        // Sent together with the one before, worked on for the second after it: 1000 / 1 s again.
        throughput.done(Tokens(1000), Timestamp(second), Timestamp(3 * second));
        assert_eq!(throughput.get(), Some(1000.0));
        assert_eq!(
            throughput.of_long(),
            None,
            "1000 < 2048 tokens are not long"
        );
        throughput.done(Tokens(4000), Timestamp(0), Timestamp(5 * second));
        assert_eq!(
            throughput.of_long(),
            Some(2000.0),
            "4000 in the 2 s since the one before"
        );
    }
}
