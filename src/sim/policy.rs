//! The policy that a scenario names: the same that `conserve serve` runs, and what only the simulator knows.
//!
//! Promises: what a policy takes about remote prefills is what the simulated workers do: said on either side, it holds for both.
//! A policy's name says everything that makes it differ.
//! Leaves to others: how a policy is misled (`misled`, `errors`), what is true (`oracle`).

use std::sync::{Arc, Mutex};

use serde_json::Value;

use super::errors::Errors;
use super::misled::{Inner, Misled};
use super::oracle::Truth;
use super::scenario::{EngineRole, QueueOrder, RemoteSpec, Scenario, ScenarioError};
use crate::config::{PolicyChoice, PolicyError, PolicyKind, Prefillers, Remote};
use crate::placement::Policy;
use crate::placement::ampd::Ampd;
use crate::placement::deflect::Deflect;
use crate::sync::Counter;

/// The paper's stand-in for AMPD: `strict`, and turns marked as flipped sleep for a recorded backlog.
const PAPER: &str = "ampd-paper";
/// `ampd` that is told the true times.
const ORACLE: &str = "oracle";
/// Of `ampd` and `oracle` here: prefillers reorder that many waiting prompts by their deadlines.
const REORDER: &str = "reorder";

/// The policy of a scenario, read.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Chosen {
    choice: PolicyChoice,
    name: String,
    errors: Errors,
    knows: bool,
}

/// A policy that can be run, and what it is told apart from the router.
pub(super) struct Made {
    pub(super) policy: Box<dyn Policy>,
    pub(super) clock: Arc<Counter>,
    pub(super) truth: Option<Arc<Truth>>,
}

impl Made {
    pub(super) fn alone(policy: Box<dyn Policy>) -> Self {
        Self {
            policy,
            clock: Arc::default(),
            truth: None,
        }
    }

    pub(super) fn of(chosen: &Chosen) -> Self {
        let clock = Arc::<Counter>::default();
        let truth = chosen.knows.then(Arc::<Truth>::default);
        let mut choice = chosen.choice;
        let policy = Misled {
            inner: match choice {
                PolicyChoice::Ampd(options) => Inner::Weighs(Box::new(Ampd(options))),
                PolicyChoice::Deflect(options) => Inner::Weighs(Box::new(Deflect(options))),
                other => Inner::Plain(crate::placement::policy(other)),
            },
            name: chosen.name.clone(),
            errors: chosen.errors,
            remote: choice.remote_mut().copied().unwrap_or_default(),
            clock: Arc::clone(&clock),
            truth: truth.clone(),
            seen: Mutex::default(),
        };
        Self {
            policy: Box::new(policy),
            clock,
            truth,
        }
    }
}

/// Reads the policy, and makes the engines do what it takes them to do.
pub(super) fn settle(scenario: &mut Scenario) -> Result<(), ScenarioError> {
    let spec = scenario.policy.clone();
    let knows = spec
        .name
        .split('(')
        .next()
        .is_some_and(|name| name.trim() == ORACLE);
    // The oracle takes the options of `ampd`.
    let text = if knows {
        spec.name.replacen(ORACLE, PolicyKind::Ampd.as_str(), 1)
    } else {
        spec.name.clone()
    };
    let (name, inline) = PolicyChoice::split(&text);
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
    let mut errors = Errors::default();
    let mut left = Vec::new();
    for (key, value) in options {
        if !errors.set(&key, &value)? {
            left.push((key, value));
        }
    }
    let reorder = if name == PolicyKind::Ampd.as_str() {
        take_reorder(&mut left)?
    } else {
        0
    };
    let borrowed = left.iter().map(|(key, value)| (&**key, &**value));
    let mut choice = PolicyChoice::new(name, borrowed).map_err(|error| refused(&error))?;
    refuse_idle(&choice, &errors, scenario)?;
    carry_out(scenario, &mut choice, &left);
    if reorder > 0 {
        reorder_prefillers(scenario, &choice, reorder);
    }
    let name = full_name(&choice, knows, &errors, reorder);
    scenario.chosen = Chosen {
        choice,
        name,
        errors,
        knows,
    };
    Ok(())
}

/// Errors that the policy has no use for on this fleet.
fn refuse_idle(
    choice: &PolicyChoice,
    errors: &Errors,
    scenario: &Scenario,
) -> Result<(), ScenarioError> {
    let weighs = matches!(choice, PolicyChoice::Ampd(_) | PolicyChoice::Deflect(_));
    let kind = choice.kind();
    let has_prefillers = || {
        let mut roles = scenario.engines.iter().map(|engine| engine.role);
        roles.any(|role| role == EngineRole::Prefiller)
    };
    let chooses = match kind.prefillers() {
        Prefillers::Needed => true,
        Prefillers::Used => has_prefillers(),
        Prefillers::Unused => false,
    };
    let problem = if errors.bear_on_times() && !weighs {
        "noise and length bear on estimated times, and it estimates none"
    } else if errors.bear_on_choice() && !chooses {
        "flip and toremote bear on the choice of a prefiller, and it uses none here"
    } else {
        return Ok(());
    };
    let problem = format!("policy {}: {problem}", kind.as_str());
    Err(ScenarioError::new("policy.options", problem))
}

/// Remote prefills are carried out as the policy takes them to be.
fn carry_out(scenario: &mut Scenario, choice: &mut PolicyChoice, options: &[(String, String)]) {
    let said = |key: &str| {
        options
            .iter()
            .any(|(said, _)| said.eq_ignore_ascii_case(key))
    };
    let mut others = Remote::default();
    // Turns that errors send away are carried out as the scenario says.
    let remote = choice.remote_mut().unwrap_or(&mut others);
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
    // The chunks in which a deflected prompt is taken to be computed.
    if let PolicyChoice::Deflect(options) = choice {
        for engine in &mut scenario.engines {
            if engine.role != EngineRole::Prefiller {
                engine.chunk_target_s.get_or_insert(options.tbt_ms / 1e3);
            }
        }
    }
}

fn reorder_prefillers(scenario: &mut Scenario, choice: &PolicyChoice, window: u32) {
    let PolicyChoice::Ampd(options) = choice else {
        return;
    };
    for engine in &mut scenario.engines {
        if engine.role == EngineRole::Prefiller {
            engine.order = QueueOrder::Slack {
                window,
                ttft_slo_s: options.ttft_ms / 1e3,
                ms_per_token: engine.preset.constants().token_s * 1e3,
            };
        }
    }
}

/// The policy's own name with its options, then what only the simulator knows.
fn full_name(choice: &PolicyChoice, knows: bool, errors: &Errors, reorder: u32) -> String {
    let own = choice.to_string();
    let own = if knows {
        own.replacen(choice.kind().as_str(), ORACLE, 1)
    } else {
        own
    };
    let mut more = Vec::new();
    if reorder > 0 {
        more.push(format!("{REORDER}={reorder}"));
    }
    more.extend(errors.parts());
    if more.is_empty() {
        return own;
    }
    let more = more.join(", ");
    match own.strip_suffix(')') {
        Some(open) => format!("{open}, {more})"),
        None => format!("{own}({more})"),
    }
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
        ..Chosen::default()
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
