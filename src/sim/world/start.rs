//! The world before anything happens: router, engines and links of a scenario, and what is known to come.

use std::collections::VecDeque;
use std::sync::Arc;

use super::super::cost;
use super::super::engine::Engine;
use super::super::events::{Events, What};
use super::super::flight::Flight;
use super::super::link::Links;
use super::super::misroute::Declared;
use super::super::policy::Made;
use super::super::pool::Pool;
use super::super::record::Counters;
use super::super::scenario::{EngineRole, FlipSpec, FlipWait, Gate, Scenario, ScenarioError};
use super::super::workload::Workload;
use super::World;
use super::hears::Scribe;
use crate::config::Config;
use crate::event::Observer;
use crate::fleet::{Role, WorkerSpec};
use crate::placement::Policy;
use crate::router::Router;
use crate::units::{BlockSize, Blocks, ConversationKey, Timestamp, Tokens};

/// The seed decides how the router breaks ties, and nothing else.
fn key(seed: u64, conversation: usize) -> ConversationKey {
    let mut mixed = (seed ^ 0x51_7CC1_B727_220A)
        .wrapping_mul(0x9E37_79B9_7F4A_7C15)
        .wrapping_add(conversation as u64);
    mixed = (mixed ^ mixed >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^= mixed >> 31;
    ConversationKey(u128::from(conversation as u64) << 64 | u128::from(mixed))
}

fn router(scenario: &Scenario, policy: Box<dyn Policy>) -> Result<Router, ScenarioError> {
    let spec = &scenario.router;
    let config = Config {
        low_watermark: spec.low_watermark,
        prefill_backlog_tokens: Tokens(spec.prefill_backlog_tokens),
        evict_idle: spec.evict_idle,
        tail_waits: spec.tail_waits,
        evict_idle_below: spec.evict_idle_below,
        queue_limit: 1_000_000,
        idle_timeout: None,
        ..Config::default()
    };
    Router::with_policy(config, policy).map_err(|error| {
        let problem = format!("{} is out of range: {}", error.value, error.range);
        ScenarioError::new(format!("router.{}", error.key), problem)
    })
}

impl<'a> World<'a> {
    pub(in crate::sim) fn new(
        scenario: &'a Scenario,
        workload: &'a Workload,
        made: Made,
        seed: u64,
    ) -> Result<Self, ScenarioError> {
        let scribe = scenario.events.then(Arc::<Scribe>::default);
        let executes = |flip: &FlipSpec| flip.wait == FlipWait::Execute;
        let declared = (scenario.flip.as_ref().is_some_and(executes)).then(Declared::default);
        let policy = match &declared {
            Some(declared) => declared.around(made.policy),
            None => made.policy,
        };
        let mut router = router(scenario, policy)?;
        if let Some(scribe) = &scribe {
            router = router.with_observer(Arc::clone(scribe) as Arc<dyn Observer>);
        }
        let conversations = workload.len();
        let (mut workers, mut engines) = (Vec::new(), Vec::new());
        let (mut kv_bytes, mut limits) = (Vec::new(), Vec::new());
        for (at, spec) in scenario.engines.iter().enumerate() {
            let tokens = spec.kv_tokens.unwrap_or(spec.preset.constants().kv_tokens);
            let blocks = Blocks::new(tokens / u64::from(spec.block_size));
            let role = match spec.role {
                EngineRole::Prefiller => Role::Prefiller,
                EngineRole::Decoder => Role::Decoder,
                EngineRole::Both => Role::Both,
            };
            let told = match scenario.router.gate {
                Gate::On => blocks,
                Gate::Off => Blocks::MAX,
            };
            // An engine serves no context that its blocks could not hold.
            let holds = blocks.get().saturating_mul(spec.block_size);
            let limit = spec.max_model_len.map_or(holds, |len| len.min(holds));
            let worker = WorkerSpec {
                name: spec.name.clone(),
                block_size: BlockSize::new(spec.block_size),
                max_model_len: Some(Tokens(limit)),
                ..WorkerSpec::new(format!("http://engine-{at}"), role).with_kv_blocks(told)
            };
            let id = router
                .join(worker, Timestamp(0))
                .map_err(|error| ScenarioError::new(format!("engines[{at}]"), error.to_string()))?;
            let pool = Pool::new(
                blocks.get(),
                spec.block_size,
                conversations,
                workload.prefixes,
                spec.retention,
                spec.host_offload_bytes_per_s.is_some(),
            );
            workers.push(id);
            limits.push(limit);
            kv_bytes.push(cost::kv_bytes(spec));
            engines.push(Engine::new(
                spec,
                cost::of(spec),
                pool,
                scenario.fast_forward,
            ));
        }
        let count = engines.len();
        Ok(Self {
            scenario,
            workload,
            policy: router.snapshot(Timestamp(0)).policy,
            clock: made.clock,
            truth: made.truth,
            router,
            scribe,
            workers,
            engines,
            kv_bytes,
            limits,
            links: Links::new(scenario.link.clone(), count),
            events: Events::default(),
            now: 0.0,
            at: Timestamp(0),
            flights: (0..conversations).map(Flight::new).collect(),
            fetched: vec![0; conversations],
            keys: (0..conversations).map(|at| key(seed, at)).collect(),
            incoming: vec![VecDeque::new(); count],
            touched: vec![false; count],
            rung: Arc::default(),
            rows: Vec::with_capacity(workload.turns()),
            log: Vec::new(),
            counters: Counters::default(),
            ended: 0,
            refused: 0,
            next_arrival: 0,
            last_progress: 0.0,
            window: [Vec::new(), Vec::new()],
            pushed_s: scenario
                .flip
                .as_ref()
                .map_or_else(Vec::new, |flip| vec![0.0; flip.started_s.len()]),
            declared,
            news: VecDeque::new(),
        })
    }

    pub(super) fn schedule(&mut self) {
        if self.scenario.closed_loop.is_none() {
            for at in 0..self.workload.len() {
                let when = self.workload.conversations[at].arrival_s;
                self.events.push(when, What::Arrive(at));
            }
            self.next_arrival = self.workload.len();
        }
        for _ in 0..self.scenario.closed_loop.unwrap_or(0) {
            self.arrive_next();
        }
        if let Some((from, to)) = self.scenario.energy_window_s {
            self.events.push(from, What::Window(0));
            self.events.push(to, What::Window(1));
        }
        if let Some(horizon) = self.scenario.horizon_s {
            self.events.push(horizon, What::Horizon);
        }
        self.events.push(0.0, What::Report);
    }
}
