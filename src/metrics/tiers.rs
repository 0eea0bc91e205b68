//! What clients felt, by the tier that served them: waiting, first tokens, gaps, goodput.
//!
//! Promises: a tier keeps its counts when its workers leave.
//! A worker without a tier counts under [`NO_TIER`]; tiers beyond the [`SLOTS`]th under [`OTHERS`].

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use super::{Histogram, KINDS, Text, kind};
use crate::event::{Pace, TurnKind, Usage};
use crate::sync::{Counter, Mutex, Padded, STRIPES, stripe};
use crate::units::WorkerId;

const NO_TIER: &str = "default";
const OTHERS: &str = "others";
const SLOTS: usize = 64;

/// What a turn must keep to count as goodput; `None`: any time will do.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Slo {
    /// The longest time to the first token, waiting included.
    pub ttft: Option<Duration>,
    /// The longest mean gap between tokens.
    pub tbt: Option<Duration>,
}

impl Slo {
    fn is_met_by(self, pace: Pace) -> bool {
        let keeps = |limit: Option<Duration>, span: Option<Duration>| {
            limit.is_none_or(|limit| span.is_none_or(|span| span <= limit))
        };
        keeps(self.ttft, pace.ttft) && keeps(self.tbt, pace.tbt)
    }
}

/// What one stripe of threads saw of one tier.
#[derive(Debug, Default)]
struct Felt {
    wait: Histogram,
    prefill: Histogram,
    ttft: [Histogram; 3],
    ttfet: Histogram,
    tbt: Histogram,
    /// Turns and tokens that missed the SLO, then those that met it.
    turns: [Counter; 2],
    tokens: [Counter; 2],
}

type Stripe = [OnceLock<Box<Felt>>; SLOTS];

/// See the module.
#[derive(Debug)]
pub(super) struct Tiers {
    slo: Slo,
    names: Mutex<Vec<Arc<str>>>,
    /// The slot of each worker's tier.
    slots: Box<[Counter]>,
    stripes: Box<[Padded<Stripe>]>,
}

impl Tiers {
    pub(super) fn new(slo: Slo) -> Self {
        let workers = 0..usize::from(WorkerId::LIMIT);
        let stripe = |_| Padded(std::array::from_fn(|_| OnceLock::new()));
        Self {
            slo,
            names: Mutex::new(vec![Arc::from(NO_TIER)]),
            slots: workers.map(|_| Counter::default()).collect(),
            stripes: (0..STRIPES).map(stripe).collect(),
        }
    }

    pub(super) fn joined(&self, worker: WorkerId, tier: Option<&Arc<str>>) {
        let name = tier.map_or_else(|| Arc::from(NO_TIER), Arc::clone);
        let mut names = self.names.lock();
        let slot = names.iter().position(|known| *known == name);
        let slot = slot.unwrap_or_else(|| {
            if names.len() < SLOTS {
                let last = names.len() == SLOTS - 1;
                names.push(if last { Arc::from(OTHERS) } else { name });
            }
            names.len() - 1
        });
        self.slots[worker.index()].set(slot as u64);
    }

    fn felt(&self, worker: WorkerId) -> &Felt {
        let slot = usize::try_from(self.slots[worker.index()].get()).unwrap_or(0);
        self.stripes[stripe()][slot].get_or_init(Box::default)
    }

    pub(super) fn waited(&self, worker: WorkerId, span: Duration) {
        self.felt(worker).wait.record(span);
    }

    pub(super) fn prefilled(&self, worker: WorkerId, span: Duration) {
        self.felt(worker).prefill.record(span);
    }

    pub(super) fn first_token(&self, worker: WorkerId, turn: TurnKind, ttft: Duration) {
        self.felt(worker).ttft[kind(turn)].record(ttft);
    }

    pub(super) fn more_tokens(&self, worker: WorkerId, tokens: u32, gap: Duration) {
        let each = gap.checked_div(tokens).unwrap_or_default();
        self.felt(worker).tbt.record_times(each, tokens);
    }

    pub(super) fn effective(&self, worker: WorkerId, ttfet: Duration) {
        self.felt(worker).ttfet.record(ttfet);
    }

    pub(super) fn finished(&self, worker: WorkerId, pace: Pace, usage: Usage) {
        let (felt, met) = (self.felt(worker), usize::from(self.slo.is_met_by(pace)));
        felt.turns[met].add(1);
        let output = usage.output.map_or(0, |tokens| u64::from(tokens.0));
        felt.tokens[met].add(output);
    }

    /// The tiers to show: the first one only if it has something to say.
    fn shown(&self) -> Vec<(usize, Arc<str>)> {
        let names = self.names.lock().clone();
        let used = |slot: usize| {
            self.stripes
                .iter()
                .any(|stripe| stripe[slot].get().is_some())
        };
        let others = names.len() > 1;
        let tiers = names.into_iter().enumerate();
        tiers
            .filter(|(slot, _)| *slot > 0 || !others || used(0))
            .collect()
    }

    fn sum(&self, slot: usize, of: impl Fn(&Felt) -> &Counter) -> u64 {
        let parts = self.stripes.iter().filter_map(|stripe| stripe[slot].get());
        parts.map(|felt| of(felt).get()).sum()
    }

    pub(super) fn render(&self, text: &mut Text) {
        let names = self.shown();
        let name = "conserve_ttft_seconds";
        text.head(
            name,
            "histogram",
            "Arrival of a turn to its first token, waiting included.",
        );
        for (slot, tier) in &names {
            for turn in KINDS {
                let labels = [("tier", &**tier), ("kind", turn.as_str())];
                text.histogram(name, &labels, |of| {
                    self.sum(*slot, |felt| of(&felt.ttft[kind(turn)]))
                });
            }
        }
        let histograms: [(&str, &str, HistogramOf); 4] = [
            (
                "conserve_ttfet_seconds",
                "First request to first user-visible token, waiting included.",
                |felt| &felt.ttfet,
            ),
            (
                "conserve_queue_wait_seconds",
                "Of these, the time in the line of turns that were admitted.",
                |felt| &felt.wait,
            ),
            (
                "conserve_prefill_seconds",
                "A prompt sent to a prefiller to its answer, its queue there included.",
                |felt| &felt.prefill,
            ),
            (
                "conserve_tbt_seconds",
                "Gaps between tokens of streams; tokens that come together share theirs.",
                |felt| &felt.tbt,
            ),
        ];
        for (name, help, which) in histograms {
            text.head(name, "histogram", help);
            for (slot, tier) in &names {
                text.histogram(name, &[("tier", &**tier)], |of| {
                    self.sum(*slot, |felt| of(which(felt)))
                });
            }
        }
        let counters: [(&str, &str, PairOf); 2] = [
            (
                "conserve_slo_turns_total",
                "Turns that finished, by whether they met the SLO.",
                |felt| &felt.turns,
            ),
            (
                "conserve_slo_output_tokens_total",
                "Tokens generated by turns that finished, by whether they met the SLO.",
                |felt| &felt.tokens,
            ),
        ];
        for (name, help, which) in counters {
            text.head(name, "counter", help);
            for (slot, tier) in &names {
                for (met, word) in ["no", "yes"].into_iter().enumerate() {
                    let count = self.sum(*slot, |felt| &which(felt)[met]);
                    text.line(name, &[("tier", &**tier), ("met", word)], count);
                }
            }
        }
    }
}

type HistogramOf = fn(&Felt) -> &Histogram;
type PairOf = fn(&Felt) -> &[Counter; 2];

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::units::Tokens;

    const MS: fn(u64) -> Duration = Duration::from_millis;

    fn worker(number: usize) -> WorkerId {
        WorkerId::new(u16::try_from(number).expect("small")).expect("in range")
    }

    fn text(tiers: &Tiers) -> String {
        let mut text = Text::default();
        tiers.render(&mut text);
        text.0
    }

    #[test]
    fn workers_of_one_tier_are_counted_together_and_apart_from_others() {
        let tiers = Tiers::new(Slo::default());
        let fast: Arc<str> = "fast".into();
        tiers.joined(worker(0), Some(&fast));
        tiers.joined(worker(1), Some(&fast));
        tiers.joined(worker(2), None);
        tiers.waited(worker(0), MS(1));
        tiers.waited(worker(1), MS(2));
        tiers.waited(worker(2), MS(3));
        tiers.more_tokens(worker(2), 4, MS(40));
        let text = text(&tiers);
        for line in [
            "conserve_queue_wait_seconds_count{tier=\"fast\"} 2",
            "conserve_queue_wait_seconds_sum{tier=\"fast\"} 0.003",
            "conserve_queue_wait_seconds_count{tier=\"default\"} 1",
            // 40 ms for four tokens that came together: four gaps of 10 ms.
            "conserve_tbt_seconds_bucket{tier=\"default\",le=\"0.005\"} 0",
            "conserve_tbt_seconds_bucket{tier=\"default\",le=\"0.01\"} 4",
            "conserve_tbt_seconds_sum{tier=\"default\"} 0.04",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} in\n{text}");
        }
    }

    #[test]
    fn goodput_takes_the_limit_itself_and_nothing_above_it() {
        let slo = Slo {
            ttft: Some(MS(500)),
            tbt: Some(MS(50)),
        };
        let pace = |ttft, tbt| Pace { ttft, tbt };
        assert!(slo.is_met_by(pace(Some(MS(500)), Some(MS(50)))));
        assert!(!slo.is_met_by(pace(Some(MS(501)), Some(MS(50)))));
        assert!(!slo.is_met_by(pace(Some(MS(500)), Some(MS(51)))));
        assert!(
            slo.is_met_by(pace(Some(MS(1)), None)),
            "one token has no gap"
        );
        assert!(Slo::default().is_met_by(pace(Some(MS(9_000)), Some(MS(9_000)))));

        let tiers = Tiers::new(slo);
        tiers.joined(worker(0), None);
        let usage = Usage {
            output: Some(Tokens(7)),
            ..Usage::default()
        };
        tiers.finished(worker(0), pace(Some(MS(1)), None), usage);
        tiers.finished(worker(0), pace(Some(MS(501)), None), usage);
        let text = text(&tiers);
        for met in ["yes", "no"] {
            let turns = format!("conserve_slo_turns_total{{tier=\"default\",met=\"{met}\"}} 1\n");
            let tokens =
                format!("conserve_slo_output_tokens_total{{tier=\"default\",met=\"{met}\"}} 7\n");
            assert!(text.contains(&turns) && text.contains(&tokens), "{text}");
        }
    }

    #[test]
    fn tiers_beyond_the_last_slot_are_counted_together() {
        let tiers = Tiers::new(Slo::default());
        for number in 0..SLOTS + 3 {
            let name: Arc<str> = format!("t{number}").into();
            tiers.joined(worker(number), Some(&name));
            tiers.waited(worker(number), MS(1));
        }
        let text = text(&tiers);
        let count = "conserve_queue_wait_seconds_count{tier=\"others\"} 5\n";
        assert!(text.contains(count), "{SLOTS} - 2 of its own, 5 others");
        assert!(text.contains("conserve_queue_wait_seconds_count{tier=\"t61\"} 1\n"));
    }
}
