//! The policy that a scenario names.

use super::scenario::{PolicySpec, ScenarioError};
use crate::config::PolicyKind;
use crate::placement::Policy;

/// The same policies that `conserve serve` runs.
pub(super) fn named(spec: &PolicySpec) -> Result<Box<dyn Policy>, ScenarioError> {
    let kind = match spec.name.as_str() {
        "strict" => PolicyKind::Strict,
        other => {
            let problem = format!("{other:?} is no policy: strict");
            return Err(ScenarioError::new("policy.name", problem));
        }
    };
    if let Some(key) = spec.options.keys().next() {
        let problem = format!("policy {} has no such option", spec.name);
        return Err(ScenarioError::new(format!("policy.options.{key}"), problem));
    }
    Ok(crate::placement::policy(kind))
}
