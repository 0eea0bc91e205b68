//! The policy that a scenario names.

use super::scenario::{PolicySpec, ScenarioError};
use crate::config::PolicyKind;
use crate::placement::Policy;

/// The same policies that `conserve serve` runs.
pub(super) fn named(spec: &PolicySpec) -> Result<Box<dyn Policy>, ScenarioError> {
    let Some(kind) = PolicyKind::from_name(&spec.name) else {
        let known = PolicyKind::ALL.map(PolicyKind::as_str).join(", ");
        let problem = format!("{:?} is no policy: {known}", spec.name);
        return Err(ScenarioError::new("policy.name", problem));
    };
    if let Some(key) = spec.options.keys().next() {
        let problem = format!("policy {} has no such option", spec.name);
        return Err(ScenarioError::new(format!("policy.options.{key}"), problem));
    }
    Ok(crate::placement::policy(kind))
}
