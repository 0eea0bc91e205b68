//! The policy that a scenario names: the same that `conserve serve` runs, under its full name.
//!
//! Promises: what a policy takes about remote prefills is what the simulated workers do: said on either side, it holds for both.

use serde_json::Value;

use super::scenario::{EngineRole, QueueOrder, RemoteSpec, Scenario, ScenarioError};
use crate::config::{PolicyChoice, PolicyError, PolicyKind};
use crate::placement::Policy;

/// The paper's stand-in for AMPD: `strict`, and turns marked as flipped sleep for a recorded backlog.
const PAPER: &str = "ampd-paper";
/// Of `ampd` here: prefillers reorder that many waiting prompts by their deadlines.
const REORDER: &str = "reorder";

/// The policy of a scenario, read.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Chosen {
    pub(super) choice: PolicyChoice,
    /// In full, with what only the simulator knows.
    pub(super) name: String,
}

/// Reads the policy, and makes the engines carry out remote prefills as it takes them to.
pub(super) fn settle(scenario: &mut Scenario) -> Result<(), ScenarioError> {
    let spec = scenario.policy.clone();
    let (name, inline) = PolicyChoice::split(&spec.name);
    let mut options: Vec<(String, String)> = Vec::new();
    for (key, value) in inline {
        options.push((key.to_owned(), value.to_owned()));
    }
    for (key, value) in &spec.options {
        options.push((key.clone(), scalar(key, value)?));
    }
    if name == PAPER {
        return paper(scenario, &options);
    }
    let reorder = if name == PolicyKind::Ampd.as_str() {
        take_reorder(&mut options)?
    } else {
        0
    };
    let borrowed = options.iter().map(|(key, value)| (&**key, &**value));
    let mut choice = PolicyChoice::new(name, borrowed).map_err(|error| refused(&error))?;
    if let Some(remote) = choice.remote_mut() {
        let said = |key: &str| {
            options
                .iter()
                .any(|(said, _)| said.eq_ignore_ascii_case(key))
        };
        let RemoteSpec {
            prefiller_cache,
            fetch,
            delta,
            ..
        } = &mut scenario.remote;
        for (key, taken, done) in [
            ("pcache", &mut remote.prefix_cache, prefiller_cache),
            ("fetch", &mut remote.fetch, fetch),
            ("delta", &mut remote.delta, delta),
        ] {
            if said(key) {
                *done = *taken;
            } else {
                *taken = *done;
            }
        }
    }
    let mut name = choice.to_string();
    if let (PolicyChoice::Ampd(options), true) = (&choice, reorder > 0) {
        let ttft_slo_s = options.ttft_ms / 1e3;
        for engine in &mut scenario.engines {
            if engine.role == EngineRole::Prefiller {
                engine.order = QueueOrder::Slack {
                    window: reorder,
                    ttft_slo_s,
                    ms_per_token: engine.preset.constants().token_s * 1e3,
                };
            }
        }
        name.truncate(name.len() - 1);
        name = format!("{name}, {REORDER}={reorder})");
    }
    scenario.chosen = Chosen { choice, name };
    Ok(())
}

fn paper(scenario: &mut Scenario, options: &[(String, String)]) -> Result<(), ScenarioError> {
    if let Some((key, _)) = options.first() {
        let problem = format!("policy {PAPER} has no such option");
        return Err(ScenarioError::new(format!("policy.options.{key}"), problem));
    }
    if scenario.flip.is_none() {
        let problem =
            "null: policy ampd-paper needs the recorded prompts that a flipped turn waits for";
        return Err(ScenarioError::new("flip", problem));
    }
    scenario.chosen = Chosen {
        choice: PolicyChoice::Strict,
        name: PAPER.to_owned(),
    };
    Ok(())
}

fn take_reorder(options: &mut Vec<(String, String)>) -> Result<u32, ScenarioError> {
    let mut window = 0;
    for (key, value) in options.extract_if(.., |(key, _)| key == REORDER) {
        window = value.parse().map_err(|_| {
            let problem = format!("{value} is out of range: a whole number of prompts, 0 for none");
            ScenarioError::new(format!("policy.options.{key}"), problem)
        })?;
    }
    Ok(window)
}

fn scalar(key: &str, value: &Value) -> Result<String, ScenarioError> {
    match value {
        Value::String(text) => Ok(text.clone()),
        Value::Number(_) | Value::Bool(_) => Ok(value.to_string()),
        Value::Null | Value::Array(_) | Value::Object(_) => Err(ScenarioError::new(
            format!("policy.options.{key}"),
            "takes a text, a number or a truth value",
        )),
    }
}

fn refused(error: &PolicyError) -> ScenarioError {
    let key = error.option().map_or_else(
        || "policy.name".to_owned(),
        |option| format!("policy.options.{option}"),
    );
    ScenarioError::new(key, error.to_string())
}

/// The policy, under its full name.
pub(super) fn made(chosen: &Chosen) -> Box<dyn Policy> {
    crate::placement::policy(chosen.choice)
}
