//! Events folded into numbers, and the numbers written as Prometheus text.
//!
//! Promises: folding takes no lock and writes cache lines that no other thread writes; the text
//! has the same series in the same order each time.
//! Leaves to others: serving the text (the doors).

mod tiers;

use std::fmt::Write as _;
use std::time::Duration;

pub use self::tiers::Slo;
use self::tiers::Tiers;
use crate::event::{CloseReason, Event, FailReason, Observer, TurnKind, Usage};
use crate::router::{Snapshot, Totals, WorkerRow};
use crate::sync::{Counter, Padded, STRIPES, stripe};

/// Upper bounds in milliseconds.
const BOUNDS_MS: [u64; 19] = [
    1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 30_000, 60_000,
    120_000, 300_000, 600_000,
];

/// Counts of durations up to each bound, of all, and their sum in microseconds.
#[derive(Debug, Default)]
struct Histogram {
    buckets: [Counter; BOUNDS_MS.len() + 1],
    sum_us: Counter,
}

impl Histogram {
    fn record(&self, span: Duration) {
        self.record_times(span, 1);
    }

    fn record_times(&self, span: Duration, times: u32) {
        let (micros, times) = (
            u64::try_from(span.as_micros()).unwrap_or(u64::MAX),
            u64::from(times),
        );
        self.buckets[BOUNDS_MS.partition_point(|bound| bound * 1000 < micros)].add(times);
        self.sum_us.add(micros.saturating_mul(times));
    }
}

const KINDS: [TurnKind; 3] = [TurnKind::First, TurnKind::Pinned, TurnKind::Relocated];
const CLOSED: [(CloseReason, &str); 3] = [
    (CloseReason::Asked, "asked"),
    (CloseReason::Idle, "idle"),
    (CloseReason::NeverPlaced, "never_placed"),
];

const fn kind(kind: TurnKind) -> usize {
    kind as usize
}

/// What one stripe of threads saw.
#[derive(Debug, Default)]
struct Fold {
    started: [Counter; 3],
    finished: [Counter; 3],
    failed: [Counter; FailReason::ALL.len()],
    closed: [Counter; 3],
    shed: Counter,
    queued: Counter,
    handoffs: Counter,
    relocated: Counter,
    evicted: Counter,
    overcommitted: Counter,
    orphaned: Counter,
    idle_evictions: Counter,
    idle_evicted_blocks: Counter,
    recomputed_tokens: Counter,
    prompt_tokens: Counter,
    cached_tokens: Counter,
    output_tokens: Counter,
}

impl Fold {
    fn usage(&self, usage: Usage) {
        let tokens = |tokens: Option<crate::units::Tokens>| tokens.map_or(0, |n| u64::from(n.0));
        self.prompt_tokens.add(tokens(usage.prompt));
        self.cached_tokens.add(tokens(usage.cached));
        self.output_tokens.add(tokens(usage.output));
    }
}

type CounterOf = fn(&Fold) -> &Counter;
type GaugeOf = fn(&WorkerRow) -> Option<f64>;

/// Counters and histograms over every [`Event`].
///
/// ```
/// use std::sync::Arc;
/// use conserve::{config::Config, metrics::Metrics, router::Router, units::Timestamp};
/// let metrics = Arc::new(Metrics::new());
/// let router = Router::new(Config::default())?.with_observer(metrics.clone());
/// let text = metrics.render(&router.snapshot(Timestamp(0)));
/// assert!(text.contains("conserve_conversations 0\n"));
/// # Ok::<(), conserve::error::ConfigError>(())
/// ```
#[derive(Debug)]
pub struct Metrics {
    stripes: Box<[Padded<Fold>]>,
    tiers: Tiers,
    workers_joined: Counter,
    workers_lost: Counter,
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl Metrics {
    /// All zero; any turn that finishes is goodput.
    #[must_use]
    pub fn new() -> Self {
        Self::with_slo(Slo::default())
    }

    /// All zero; what keeps `slo` is goodput.
    #[must_use]
    pub fn with_slo(slo: Slo) -> Self {
        Self {
            stripes: (0..STRIPES).map(|_| Padded::default()).collect(),
            tiers: Tiers::new(slo),
            workers_joined: Counter::default(),
            workers_lost: Counter::default(),
        }
    }

    fn own(&self) -> &Fold {
        &self.stripes[stripe()]
    }

    fn sum(&self, of: impl Fn(&Fold) -> &Counter) -> u64 {
        self.stripes.iter().map(|fold| of(fold).get()).sum()
    }

    /// Everything as Prometheus text; gauges are read from `snapshot`.
    #[must_use]
    pub fn render(&self, snapshot: &Snapshot) -> String {
        let mut text = Text::default();
        self.render_turns(&mut text);
        self.render_conversations(&mut text);
        self.tiers.render(&mut text);
        render_placements(&mut text, &snapshot.totals);
        render_measures(&mut text, snapshot);
        render_gauges(&mut text, snapshot);
        render_reports(&mut text, snapshot);
        render_work(&mut text, snapshot);
        text.0
    }

    fn render_turns(&self, text: &mut Text) {
        text.head(
            "conserve_turns_started_total",
            "counter",
            "Turns that began.",
        );
        for turn in KINDS {
            let count = self.sum(|fold| &fold.started[kind(turn)]);
            text.line(
                "conserve_turns_started_total",
                &[("kind", turn.as_str())],
                count,
            );
        }
        text.head(
            "conserve_turns_finished_total",
            "counter",
            "Turns that finished.",
        );
        for turn in KINDS {
            let count = self.sum(|fold| &fold.finished[kind(turn)]);
            text.line(
                "conserve_turns_finished_total",
                &[("kind", turn.as_str())],
                count,
            );
        }
        text.head(
            "conserve_turns_failed_total",
            "counter",
            "Turns that did not finish.",
        );
        for why in FailReason::ALL {
            let count = self.sum(|fold| &fold.failed[why.index()]);
            text.line(
                "conserve_turns_failed_total",
                &[("reason", why.as_str())],
                count,
            );
        }
        let queued = self.sum(|fold| &fold.queued);
        text.one(
            "conserve_turns_queued_total",
            "counter",
            "Turns that joined the line.",
            queued,
        );
        let shed = self.sum(|fold| &fold.shed);
        text.one(
            "conserve_turns_shed_total",
            "counter",
            "Turns refused or timed out.",
            shed,
        );
    }

    fn render_conversations(&self, text: &mut Text) {
        text.head(
            "conserve_conversations_closed_total",
            "counter",
            "Conversations that ended.",
        );
        for (index, (_, why)) in CLOSED.iter().enumerate() {
            let count = self.sum(|fold| &fold.closed[index]);
            text.line(
                "conserve_conversations_closed_total",
                &[("reason", why)],
                count,
            );
        }
        let counters: [(&str, &str, CounterOf); 11] = [
            (
                "conserve_handoffs_total",
                "KV handoffs from prefiller to decoder.",
                |f| &f.handoffs,
            ),
            (
                "conserve_relocations_total",
                "Conversations placed again.",
                |f| &f.relocated,
            ),
            (
                "conserve_evictions_total",
                "Idle bookings taken under pressure.",
                |f| &f.evicted,
            ),
            (
                "conserve_overcommitted_blocks_total",
                "Blocks held by engines beyond the books.",
                |f| &f.overcommitted,
            ),
            (
                "conserve_orphaned_prefills_total",
                "Prefills that nobody pulled.",
                |f| &f.orphaned,
            ),
            (
                "conserve_idle_kv_evictions_total",
                "Times that a decoder evicted KV of an idle conversation pinned to it, as its KV events tell.",
                |f| &f.idle_evictions,
            ),
            (
                "conserve_idle_kv_evicted_blocks_total",
                "KV blocks evicted so.",
                |f| &f.idle_evicted_blocks,
            ),
            (
                "conserve_recomputed_tokens_total",
                "Prompt tokens that an earlier turn had computed and that were computed again.",
                |f| &f.recomputed_tokens,
            ),
            (
                "conserve_prompt_tokens_total",
                "Prompt tokens of finished turns.",
                |f| &f.prompt_tokens,
            ),
            (
                "conserve_cached_tokens_total",
                "Of these, found in a KV cache; what was handed over for the turn is not.",
                |f| &f.cached_tokens,
            ),
            (
                "conserve_output_tokens_total",
                "Tokens generated by turns that finished.",
                |f| &f.output_tokens,
            ),
        ];
        for (name, help, of) in counters {
            text.one(name, "counter", help, self.sum(of));
        }
        let joined = self.workers_joined.get();
        text.one(
            "conserve_workers_joined_total",
            "counter",
            "Workers that joined.",
            joined,
        );
        let lost = self.workers_lost.get();
        text.one(
            "conserve_workers_lost_total",
            "counter",
            "Workers lost for good.",
            lost,
        );
    }
}

fn millis(bound: u64) -> String {
    format!("{}", Duration::from_millis(bound).as_secs_f64())
}

fn render_placements(text: &mut Text, totals: &Totals) {
    let name = "conserve_placements_total";
    text.head(
        name,
        "counter",
        "Places given to conversations: the decoder computes the prompt, or takes it over, or KV was gone, or home was slow.",
    );
    for (how, count) in [
        ("local", totals.placed_local),
        ("handoff", totals.placed_handoff),
        ("afresh", totals.placed_afresh),
        ("moved", totals.placed_moved),
    ] {
        text.line(name, &[("how", how)], count);
    }
    let name = "conserve_turns_waited_total";
    text.head(
        name,
        "counter",
        "Turns that joined the line: for a place, for their growth, for their conversation's place, or because the fleet thrashes.",
    );
    for (why, count) in [
        ("room", totals.waits_room),
        ("growth", totals.waits_growth),
        ("placing", totals.waits_placing),
        ("thrash", totals.waits_thrash),
    ] {
        text.line(name, &[("why", why)], count);
    }
}

/// What the router measured of the fleet as a whole, and what it advises.
fn render_measures(text: &mut Text, snapshot: &Snapshot) {
    text.head(
        "conserve_recomputed_share",
        "gauge",
        "Share of the prompt tokens computed in the last two minutes that had been computed before.",
    );
    if let Some(share) = snapshot.recomputed_share {
        text.line("conserve_recomputed_share", &[], share);
    }
    text.head(
        "conserve_link_seconds_per_token",
        "gauge",
        "What a handoff takes for each token, as observed.",
    );
    if let Some(ms) = snapshot.link_ms_per_token {
        text.line("conserve_link_seconds_per_token", &[], ms / 1e3);
    }
    text.head(
        "conserve_recommended_prefillers",
        "gauge",
        "Of equal workers, how many should only compute prompts, by the gap between tokens that this would give.",
    );
    if let Some(advice) = snapshot.advice {
        text.line("conserve_recommended_prefillers", &[], advice.prefillers);
    }
    text.one(
        "conserve_acting_prefillers",
        "gauge",
        "Workers that only compute prompts now: prefillers, and those that `follow-kv` holds back for it.",
        snapshot.prefillers,
    );
}

fn render_gauges(text: &mut Text, snapshot: &Snapshot) {
    let held = snapshot.conversations;
    text.one(
        "conserve_conversations",
        "gauge",
        "Conversations held.",
        held,
    );
    text.head("conserve_waiting_turns", "gauge", "Turns in the line.");
    text.line(
        "conserve_waiting_turns",
        &[("queue", "newcomers")],
        snapshot.waiting,
    );
    text.line(
        "conserve_waiting_turns",
        &[("queue", "tail")],
        snapshot.waiting_tail,
    );
    let gauges: [(&str, &str, GaugeOf); 12] = [
        (
            "conserve_worker_up",
            "1 if the worker takes work, 0 if not.",
            |row| {
                Some(f64::from(u8::from(
                    row.health == crate::fleet::Health::Ready && !row.draining,
                )))
            },
        ),
        (
            "conserve_worker_failing",
            "1 if the worker failed a request lately and new conversations prefer others, 0 if not.",
            |row| Some(f64::from(u8::from(row.others_first))),
        ),
        (
            "conserve_kv_blocks",
            "KV blocks that the worker holds.",
            |row| row.capacity.map(|blocks| f64::from(blocks.get())),
        ),
        (
            "conserve_kv_blocks_booked",
            "KV blocks booked, idle conversations included.",
            |row| row.role.decodes().then(|| f64::from(row.booked.get())),
        ),
        (
            "conserve_kv_blocks_reserved",
            "Of these, reserved by turns in flight.",
            |row| row.role.decodes().then(|| f64::from(row.reserved.get())),
        ),
        (
            "conserve_kv_blocks_retained",
            "KV blocks of these that no conversation holds and the engine keeps until their time is up.",
            |row| row.role.decodes().then_some(f64::from(row.retained.get())),
        ),
        (
            "conserve_kv_usage",
            "Share of KV blocks in use as the worker reports it.",
            |row| row.report.as_ref().and_then(|report| report.kv_usage),
        ),
        (
            "conserve_worker_conversations",
            "Conversations on the worker.",
            |row| {
                #[expect(clippy::cast_precision_loss, reason = "far below 2^52 conversations")]
                row.role.decodes().then_some(row.conversations as f64)
            },
        ),
        (
            "conserve_worker_running_turns",
            "Turns in flight on the worker.",
            |row| row.role.decodes().then(|| f64::from(row.running)),
        ),
        (
            "conserve_prefill_queued_tokens",
            "Prompt tokens queued at the worker.",
            |row| row.role.prefills().then(|| f64::from(row.queued.0)),
        ),
        (
            "conserve_prefill_tokens_per_second",
            "Prefill throughput observed.",
            |row| row.tokens_per_s,
        ),
        (
            "conserve_worker_report_age_seconds",
            "Since the worker last told its load.",
            |row| row.report_age.map(|age| age.as_secs_f64()),
        ),
    ];
    for (name, help, of) in gauges {
        render_rows(text, (name, "gauge", help), of, snapshot);
    }
}

/// What workers tell, how old it is, and how it differs from the books.
fn render_reports(text: &mut Text, snapshot: &Snapshot) {
    let gauges: [(&str, &str, GaugeOf); 4] = [
        (
            "conserve_worker_report_stale",
            "1 if that is too long ago and what it told is not used, 0 if not.",
            |row| {
                let stale = f64::from(u8::from(row.report_stale));
                row.report_age.map(|_| stale)
            },
        ),
        (
            "conserve_kv_blocks_resident",
            "KV blocks in the worker's prefix cache, from its KV events.",
            |row| row.resident.map(|blocks| f64::from(blocks.get())),
        ),
        (
            "conserve_kv_blocks_resident_idle",
            "Of these, in use by no running request.",
            |row| row.resident_idle.map(|blocks| f64::from(blocks.get())),
        ),
        (
            "conserve_kv_blocks_booked_minus_resident",
            "KV blocks booked less those in the prefix cache.",
            |row| {
                let resident = row.resident.filter(|_| row.role.decodes())?;
                Some(f64::from(row.booked.get()) - f64::from(resident.get()))
            },
        ),
    ];
    for (name, help, of) in gauges {
        render_rows(text, (name, "gauge", help), of, snapshot);
    }
}

fn render_work(text: &mut Text, snapshot: &Snapshot) {
    let counters: [(&str, &str, GaugeOf); 6] = [
        (
            "conserve_worker_prefill_seconds_total",
            "Turn-seconds of prefill at the worker.",
            |row| Some(row.work.prefill.as_secs_f64()),
        ),
        (
            "conserve_worker_decode_seconds_total",
            "Turn-seconds of decode at the worker.",
            |row| Some(row.work.decode.as_secs_f64()),
        ),
        (
            "conserve_worker_prompt_tokens_total",
            "Prompt tokens that the worker computed.",
            #[expect(clippy::cast_precision_loss, reason = "far below 2^52 tokens")]
            |row| Some(row.work.prompt as f64),
        ),
        (
            "conserve_worker_output_tokens_total",
            "Tokens that the worker generated, of a stream as they come.",
            #[expect(clippy::cast_precision_loss, reason = "far below 2^52 tokens")]
            |row| Some(row.work.output as f64),
        ),
        (
            "conserve_worker_idle_kv_evicted_blocks_total",
            "KV blocks of idle conversations that the worker evicted.",
            #[expect(clippy::cast_precision_loss, reason = "far below 2^52 blocks")]
            |row| row.role.decodes().then_some(row.idle_evicted as f64),
        ),
        (
            "conserve_worker_kv_event_batches_missed_total",
            "Batches of KV events that were missed for good.",
            #[expect(clippy::cast_precision_loss, reason = "far below 2^52 batches")]
            |row| Some(row.events_missed as f64),
        ),
    ];
    for (name, help, of) in counters {
        render_rows(text, (name, "counter", help), of, snapshot);
    }
}

fn render_rows(text: &mut Text, head: (&str, &str, &str), of: GaugeOf, snapshot: &Snapshot) {
    let (name, kind, help) = head;
    text.head(name, kind, help);
    for row in &snapshot.workers {
        if let Some(value) = of(row) {
            let id = row.worker.id.to_string();
            let labels = [
                ("worker", &*row.worker.name),
                ("id", &id),
                ("role", row.role.as_str()),
            ];
            text.line(name, &labels, value);
        }
    }
}

/// Prometheus text as it grows.
#[derive(Default)]
struct Text(String);

impl Text {
    fn head(&mut self, name: &str, kind: &str, help: &str) {
        // Writing to a `String` cannot fail.
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn line(&mut self, name: &str, labels: &[(&str, &str)], value: impl std::fmt::Display) {
        self.0.push_str(name);
        for (index, (label, text)) in labels.iter().enumerate() {
            let text = text
                .replace('\\', "\\\\")
                .replace('"', "\\\"")
                .replace('\n', "\\n");
            let open = if index == 0 { '{' } else { ',' };
            let _ = write!(self.0, "{open}{label}=\"{text}\"");
        }
        if !labels.is_empty() {
            self.0.push('}');
        }
        let _ = writeln!(self.0, " {value}");
    }

    /// One histogram, whose counters `sum` adds up over all stripes.
    fn histogram(
        &mut self,
        name: &str,
        labels: &[(&str, &str)],
        sum: impl Fn(&dyn Fn(&Histogram) -> &Counter) -> u64,
    ) {
        let bounds = BOUNDS_MS.iter().map(|bound| millis(*bound));
        let mut total = 0;
        for (index, bound) in bounds.chain(["+Inf".to_owned()]).enumerate() {
            total += sum(&|histogram| &histogram.buckets[index]);
            let le = [("le", &*bound)];
            let labels: Vec<_> = labels.iter().copied().chain(le).collect();
            self.line(&format!("{name}_bucket"), &labels, total);
        }
        let micros = sum(&|histogram| &histogram.sum_us);
        let seconds = Duration::from_micros(micros).as_secs_f64();
        self.line(&format!("{name}_sum"), labels, seconds);
        self.line(&format!("{name}_count"), labels, total);
    }

    fn one(&mut self, name: &str, kind: &str, help: &str, value: impl std::fmt::Display) {
        self.head(name, kind, help);
        self.line(name, &[], value);
    }
}

impl Observer for Metrics {
    fn on(&self, event: &Event) {
        match *event {
            Event::Queued { .. } => self.own().queued.add(1),
            Event::Admitted {
                decoder, waited, ..
            } => self.tiers.waited(decoder, waited),
            Event::Prefilled {
                prefiller, took, ..
            } => self.tiers.prefilled(prefiller, took),
            Event::MoreTokens {
                decoder,
                tokens,
                gap,
                ..
            } => self.tiers.more_tokens(decoder, tokens, gap),
            Event::Shed { .. } => self.own().shed.add(1),
            Event::HandedOver { handoff: true, .. } => self.own().handoffs.add(1),
            Event::TurnStarted { kind: turn, .. } => self.own().started[kind(turn)].add(1),
            Event::FirstToken {
                decoder,
                kind: turn,
                ttft,
                ..
            } => self.tiers.first_token(decoder, turn, ttft),
            Event::Effective { decoder, ttfet, .. } => self.tiers.effective(decoder, ttfet),
            Event::TurnFinished {
                decoder,
                kind: turn,
                usage,
                pace,
                ..
            } => {
                self.tiers.finished(decoder, pace, usage);
                let fold = self.own();
                fold.finished[kind(turn)].add(1);
                fold.usage(usage);
            }
            Event::TurnFailed { why, .. } => self.own().failed[why.index()].add(1),
            Event::Relocated { .. } => self.own().relocated.add(1),
            Event::Overcommitted { blocks, .. } => {
                self.own().overcommitted.add(u64::from(blocks.get()));
            }
            Event::Closed { why, .. } => {
                let index = CLOSED
                    .iter()
                    .position(|(other, _)| *other == why)
                    .unwrap_or(0);
                self.own().closed[index].add(1);
            }
            Event::Evicted { .. } => self.own().evicted.add(1),
            Event::KvLost { blocks, .. } => {
                let fold = self.own();
                fold.idle_evictions.add(1);
                fold.idle_evicted_blocks.add(u64::from(blocks.get()));
            }
            Event::Recomputed { tokens, .. } => {
                self.own().recomputed_tokens.add(u64::from(tokens.0));
            }
            Event::WorkerJoined {
                worker, ref tier, ..
            } => {
                self.workers_joined.add(1);
                self.tiers.joined(worker, tier.as_ref());
            }
            Event::WorkerLost { .. } => self.workers_lost.add(1),
            Event::Orphaned { .. } => self.own().orphaned.add(1),
            // Placements and sweeps are counted by the events of their conversations; how workers
            // stand is a gauge.
            Event::Placed { .. }
            | Event::HandedOver { handoff: false, .. }
            | Event::Swept { .. }
            | Event::WorkerDraining { .. }
            | Event::RolesChanged { .. }
            | Event::WorkerSuspect { .. } => {}
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::tests::support::{ask, at, fleet, key};
    use crate::units::Tokens;

    #[test]
    fn a_duration_lands_in_the_bucket_whose_bound_it_does_not_pass() {
        let histogram = Histogram::default();
        for micros in [0, 1_000, 1_001, 600_000_000, 600_000_001] {
            histogram.record(Duration::from_micros(micros));
        }
        let counts: Vec<_> = histogram.buckets.iter().map(Counter::get).collect();
        assert_eq!(
            (counts[0], counts[1]),
            (2, 1),
            "0 and 1 ms up to 1 ms; 1.001 ms above"
        );
        assert_eq!((counts[18], counts[19]), (1, 1), "600 s is the last bound");
    }

    #[test]
    fn a_turn_shows_in_the_text() {
        let metrics = Arc::new(Metrics::new());
        let router = fleet(crate::config::Config::default(), 1, &[100])
            .with_observer(Arc::clone(&metrics) as Arc<dyn Observer>);
        let mut turn = ask(&router, 1, 10).expect("room");
        turn.first_token(at(3));
        turn.effective(at(3), at(4));
        let usage = Usage {
            output: Some(Tokens(7)),
            cached: Some(Tokens(5)),
            prompt: None,
        };
        turn.finish(usage, at(4));
        router.close(key(1), at(5));
        let text = metrics.render(&router.snapshot(at(5)));
        for line in [
            "conserve_turns_started_total{kind=\"first\"} 1",
            "conserve_turns_finished_total{kind=\"first\"} 1",
            "conserve_handoffs_total 1",
            "conserve_output_tokens_total 7",
            "conserve_cached_tokens_total 5",
            "conserve_conversations_closed_total{reason=\"asked\"} 1",
            "conserve_ttft_seconds_bucket{tier=\"default\",kind=\"first\",le=\"1\"} 0",
            "conserve_ttft_seconds_bucket{tier=\"default\",kind=\"first\",le=\"2\"} 1",
            "conserve_ttft_seconds_sum{tier=\"default\",kind=\"first\"} 2",
            "conserve_ttfet_seconds_count{tier=\"default\"} 1",
            "conserve_queue_wait_seconds_bucket{tier=\"default\",le=\"0.001\"} 1",
            "conserve_kv_blocks{worker=\"d0\",id=\"w1\",role=\"decoder\"} 100",
            "conserve_conversations 0",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} in\n{text}");
        }
        for line in text.lines().filter(|line| line.starts_with("# TYPE")) {
            assert_eq!(
                text.matches(line).count(),
                1,
                "each series is declared once: {line}"
            );
        }
    }

    #[test]
    fn label_values_are_escaped() {
        let mut text = Text::default();
        text.line("m", &[("name", "a\"b\\c\nd")], 1);
        assert_eq!(text.0, "m{name=\"a\\\"b\\\\c\\nd\"} 1\n");
    }
}
