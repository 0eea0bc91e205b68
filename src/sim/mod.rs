//! A discrete-event simulator that drives the *real* [`Router`](crate::router::Router) on virtual time.
//!
//! Only workers, links and the clock are replaced. Policies meet the simulator through the router:
//! they see [`TurnView`](crate::placement::TurnView) and [`Observed`](crate::placement::Observed) and
//! nothing else, so lengths that have not happened yet are out of their reach by type.
//!
//! Promises: the same scenario, workload and seed give the same bytes; every token is computed and
//! generated once or counted as recomputed; blocks and energy are conserved (checked after every
//! event in debug builds); a run that cannot go on is reported as deadlocked, never cut short in silence.
//! Leaves to others: workloads, sweeps, statistics and reports (Python, `conserve.sim`).

#![expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "simulated tokens, blocks and nanoseconds stay far below 2^52, where floats are exact"
)]

mod cost;
mod diagnosis;
mod engine;
mod errors;
mod events;
mod flight;
mod flip;
mod gaps;
mod handoff;
mod link;
mod misled;
mod misroute;
mod oracle;
mod policy;
mod pool;
mod power;
mod preset;
mod ranges;
mod record;
mod scenario;
mod split;
mod splitmix;
#[cfg(test)]
mod tests;
mod workload;
mod world;

pub use self::diagnosis::{Diagnosis, Outcome};
pub use self::record::{ConversationRow, Counters, EngineRow, EventRow, SimResult, TurnRow};
pub use self::scenario::{Scenario, ScenarioError};
pub use self::workload::{Workload, WorkloadColumns, WorkloadError};

/// Runs one scenario over one workload to its end, its horizon, or a deadlock.
///
/// ```
/// use conserve::sim::{Scenario, Workload, WorkloadColumns, simulate};
///
/// let scenario = Scenario::from_json(r#"{"engines": [{"preset": "a40", "role": "both"}]}"#).unwrap();
/// let columns = WorkloadColumns::single(&[(4_000, 100), (200, 50)]);
/// let result = simulate(&scenario, &Workload::new(&columns).unwrap(), 1).unwrap();
/// assert_eq!(result.turns.len(), 2);
/// assert!(result.turns[1].first_token_s < result.turns[1].last_token_s);
/// ```
///
/// # Errors
/// If the scenario and the workload do not fit together, or the router refuses the settings.
pub fn simulate(
    scenario: &Scenario,
    workload: &Workload,
    seed: u64,
) -> Result<SimResult, ScenarioError> {
    let made = policy::Made::of(&scenario.chosen);
    world::World::new(scenario, workload, made, seed)?.run()
}

/// The same with a policy of your own in place of the one that the scenario names.
///
/// # Errors
/// If the scenario and the workload do not fit together, or the router refuses the settings.
pub fn simulate_with(
    scenario: &Scenario,
    workload: &Workload,
    policy: Box<dyn crate::placement::Policy>,
    seed: u64,
) -> Result<SimResult, ScenarioError> {
    let made = policy::Made::alone(policy);
    world::World::new(scenario, workload, made, seed)?.run()
}
