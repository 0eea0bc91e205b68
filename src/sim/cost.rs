//! How long a step takes: one interface, a closed form and a measured grid behind it.
//!
//! ```text
//! step = max(a * tokens, weights / rate)      linear layers
//!      + b * sum of n * (past + n/2)          attention of prompts
//!      + kv_bytes * contexts / rate           attention of decodes
//!      + kernel + host
//! ```
//! Promises: the time of a decode-only step is linear in the tokens that its contexts gained, for as many
//! steps as [`Stretch::steps`] says; so a run of them is summed in closed form.
//! Leaves to others: what is in a step (`engine`), clocks and watts (`power`).

use super::preset::Constants;
use super::scenario::{CostSpec, EngineSpec, GridSpec};

/// What one step computes.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Load {
    /// Prompt tokens, in chunks of more than one token.
    pub(super) prefill: f64,
    /// Their sum of `n * (past + n/2)`.
    pub(super) pairs: f64,
    /// Sequences that compute one token.
    pub(super) decodes: f64,
    /// Sum of their contexts.
    pub(super) context: f64,
}

impl Load {
    pub(super) fn add_chunk(&mut self, new: u32, past: u32) {
        let (new, past) = (f64::from(new), f64::from(past));
        if new > 1.0 {
            self.prefill += new;
            self.pairs += new * (past + new / 2.0);
        } else {
            self.decodes += 1.0;
            self.context += past;
        }
    }

    /// The same step after its decodes gained `steps` tokens each.
    fn later(self, steps: f64) -> Self {
        Self {
            context: self.context + steps * self.decodes,
            ..self
        }
    }
}

/// Seconds of a step by what limits it, at full clock.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Parts {
    pub(super) compute: f64,
    pub(super) memory: f64,
    pub(super) host: f64,
    /// The host works while the GPU does: only what is longer counts.
    pub(super) hidden: bool,
}

impl Parts {
    /// Seconds in which the host alone works.
    pub(super) fn exposed_host(&self) -> f64 {
        if self.hidden {
            (self.host - self.compute - self.memory).max(0.0)
        } else {
            self.host
        }
    }
}

/// Decode-only steps whose parts grow by the same amount each.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Stretch {
    pub(super) first: Parts,
    /// Memory seconds more each step.
    pub(super) growth: f64,
    /// For how many steps this holds.
    pub(super) steps: u64,
}

impl Stretch {
    /// One step.
    pub(super) const fn single(first: Parts) -> Self {
        Self {
            first,
            growth: 0.0,
            steps: 1,
        }
    }
}

/// A source of step times.
pub(super) trait StepCost: std::fmt::Debug + Send + Sync {
    /// One step.
    fn step(&self, load: &Load) -> Parts;

    /// Decode-only steps from `load` on.
    fn stretch(&self, load: &Load) -> Stretch;
}

/// The closed form.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct ClosedForm {
    pub(super) constants: Constants,
    pub(super) kv_read_factor: f64,
    pub(super) mixing_penalty: f64,
    pub(super) hidden: bool,
}

impl ClosedForm {
    pub(super) fn new(base: Constants, spec: &CostSpec) -> Self {
        let constants = Constants {
            token_s: spec.token_s.unwrap_or(base.token_s),
            pair_s: spec.pair_s.unwrap_or(base.pair_s),
            bytes_per_s: spec.bytes_per_s.unwrap_or(base.bytes_per_s),
            weight_bytes: spec.weight_bytes.unwrap_or(base.weight_bytes),
            kv_bytes_per_token: spec.kv_bytes_per_token.unwrap_or(base.kv_bytes_per_token),
            overhead_s: spec.overhead_s.unwrap_or(base.overhead_s),
            ..base
        };
        Self {
            constants,
            kv_read_factor: spec.kv_read_factor.unwrap_or(1.0),
            mixing_penalty: spec.mixing_penalty,
            hidden: spec.hide_overhead,
        }
    }

    fn context_s(&self) -> f64 {
        self.constants.kv_bytes_per_token * self.kv_read_factor / self.constants.bytes_per_s
    }
}

impl StepCost for ClosedForm {
    fn step(&self, load: &Load) -> Parts {
        let of = &self.constants;
        let linear = of.token_s * (load.prefill + load.decodes);
        let weights = of.weight_bytes / of.bytes_per_s;
        let (mut compute, mut memory) = if linear > weights {
            (linear, 0.0)
        } else {
            (0.0, weights)
        };
        compute += of.pair_s * load.pairs;
        if load.prefill > 0.0 && load.decodes > 0.0 {
            compute *= 1.0 + self.mixing_penalty;
        }
        memory += of.kernel_s + self.context_s() * load.context;
        Parts {
            compute,
            memory,
            host: of.overhead_s,
            hidden: self.hidden,
        }
    }

    fn stretch(&self, load: &Load) -> Stretch {
        Stretch {
            first: self.step(load),
            growth: self.context_s() * load.decodes,
            steps: u64::MAX,
        }
    }
}

/// A table with a value at each crossing of two rising axes, bilinear between them and carried on
/// with the last slope beyond.
#[derive(Debug, Clone, PartialEq)]
struct Table {
    rows: Vec<f64>,
    columns: Vec<f64>,
    values: Vec<Vec<f64>>,
}

/// The interval of `axis` that holds `at`, or the nearest one.
fn interval(axis: &[f64], at: f64) -> usize {
    axis.partition_point(|knot| *knot <= at)
        .clamp(1, axis.len() - 1)
        - 1
}

impl Table {
    fn at(&self, row: f64, column: f64) -> f64 {
        let (i, j) = (interval(&self.rows, row), interval(&self.columns, column));
        let share = |axis: &[f64], k: usize, at: f64| (at - axis[k]) / (axis[k + 1] - axis[k]);
        let (x, y) = (share(&self.rows, i, row), share(&self.columns, j, column));
        let along = |row: &[f64]| row[j] + y * (row[j + 1] - row[j]);
        let (low, high) = (along(&self.values[i]), along(&self.values[i + 1]));
        (low + x * (high - low)).max(0.0)
    }
}

/// Measured steps: decodes by batch and mean context, prompts by new tokens and tokens before them.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Grid {
    decode: Table,
    prefill: Table,
    shared_s: f64,
    overhead_s: f64,
    mixing_penalty: f64,
    hidden: bool,
}

impl Grid {
    pub(super) fn new(grid: &GridSpec, base: Constants, spec: &CostSpec) -> Self {
        let decode = Table {
            rows: grid.decode_batch.clone(),
            columns: grid.decode_context.clone(),
            values: grid.decode_s.clone(),
        };
        let prefill = Table {
            rows: grid.prefill_new.clone(),
            columns: grid.prefill_past.clone(),
            values: grid.prefill_s.clone(),
        };
        Self {
            decode,
            prefill,
            shared_s: grid.shared_s,
            overhead_s: spec.overhead_s.unwrap_or(base.overhead_s),
            mixing_penalty: spec.mixing_penalty,
            hidden: spec.hide_overhead,
        }
    }
}

impl StepCost for Grid {
    fn step(&self, load: &Load) -> Parts {
        let mut memory = if load.decodes > 0.0 {
            self.decode.at(load.decodes, load.context / load.decodes)
        } else {
            0.0
        };
        let mut compute = if load.prefill > 0.0 {
            // The pairs of all chunks as if they were one.
            let past = (load.pairs / load.prefill - load.prefill / 2.0).max(0.0);
            self.prefill.at(load.prefill, past)
        } else {
            0.0
        };
        if compute > 0.0 && memory > 0.0 {
            compute *= 1.0 + self.mixing_penalty;
            memory = (memory - self.shared_s).max(0.0);
        }
        Parts {
            compute,
            memory,
            host: self.overhead_s,
            hidden: self.hidden,
        }
    }

    fn stretch(&self, load: &Load) -> Stretch {
        let (first, next) = (self.step(load), self.step(&load.later(1.0)));
        let growth = next.memory - first.memory;
        let knots = &self.decode.columns;
        let mean = load.context / load.decodes;
        let ahead = knots[interval(knots, mean) + 1] - mean;
        // Each step adds one token to the mean context; beyond the last knot the slope stays.
        let mut steps = if ahead > 0.0 { ahead as u64 } else { u64::MAX };
        // Across a knot, or where the curve falls, steps are taken one by one.
        if steps == 0 || growth < 0.0 {
            steps = 1;
        }
        Stretch {
            first,
            growth,
            steps,
        }
    }
}

/// The step times of one engine.
pub(super) fn of(engine: &EngineSpec) -> Box<dyn StepCost> {
    let base = engine.preset.constants();
    match &engine.grid {
        Some(grid) => Box::new(Grid::new(grid, base, &engine.cost)),
        None => Box::new(ClosedForm::new(base, &engine.cost)),
    }
}

/// Bytes of KV of one token on this engine.
pub(super) fn kv_bytes(engine: &EngineSpec) -> f64 {
    let base = engine.preset.constants().kv_bytes_per_token;
    engine.cost.kv_bytes_per_token.unwrap_or(base)
}
