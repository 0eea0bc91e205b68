//! Makes a failing run small: leaves out conversations, mishaps, faulty calls and turns as long as it still fails.

use std::sync::Arc;

use super::plan::{Plan, Without};
use super::world::World;

/// How a run ended.
pub struct Ran {
    pub wrong: Option<String>,
    pub history: Vec<String>,
    faults: Vec<[u64; 5]>,
}

/// Runs a plan; a panic inside counts as a failure.
pub fn run(plan: &Arc<Plan>, without: &Arc<Without>, tell: bool) -> Ran {
    let mut world = World::new(Arc::clone(plan), Arc::clone(without), tell);
    let ran = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| world.run()));
    let wrong = match ran {
        Ok(Ok(())) => None,
        Ok(Err(wrong)) => Some(wrong),
        Err(panic) => Some(format!(
            "panic: {}",
            panic
                .downcast_ref::<String>()
                .map(String::as_str)
                .or_else(|| panic.downcast_ref::<&str>().copied())
                .unwrap_or("without a message")
        )),
    };
    let faults = world.judge.faults();
    let history = world.history.take().unwrap_or_default();
    if wrong.is_some() {
        // Its guards belong to a run that failed: what their `Drop` would find says nothing.
        std::mem::forget(world);
    }
    Ran {
        wrong,
        history,
        faults,
    }
}

/// The smallest failing run that leaving out one part after the other leads to.
pub fn smallest(plan: &Arc<Plan>) -> Without {
    let mut without = Without::default();
    loop {
        let before = size(&without);
        for talk in 0..plan.talks.len() {
            keep_if_failing(plan, &mut without, |less| less.talks.insert(talk));
        }
        for number in 0..plan.mishaps.len() {
            keep_if_failing(plan, &mut without, |less| less.mishaps.insert(number));
        }
        for (talk, told) in plan.talks.iter().enumerate() {
            for turn in (1..told.turns.len()).rev() {
                keep_if_failing(plan, &mut without, |less| {
                    less.last_turns.insert((talk, turn))
                });
            }
        }
        for key in run(plan, &Arc::new(without.clone()), false).faults {
            keep_if_failing(plan, &mut without, |less| less.calls.insert(key));
        }
        if size(&without) == before {
            return without;
        }
    }
}

fn size(without: &Without) -> usize {
    without.talks.len() + without.mishaps.len() + without.calls.len() + without.last_turns.len()
}

fn keep_if_failing(
    plan: &Arc<Plan>,
    without: &mut Without,
    leave_out: impl FnOnce(&mut Without) -> bool,
) {
    let mut less = without.clone();
    if leave_out(&mut less) && run(plan, &Arc::new(less.clone()), false).wrong.is_some() {
        *without = less;
    }
}
