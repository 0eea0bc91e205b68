//! The ranges of a scenario's values, each refusal with the path of its key.

use super::scenario::{EngineRole, EngineSpec, GridSpec, Retention, Scenario, ScenarioError};

fn refuse(
    key: impl Into<String>,
    value: impl std::fmt::Display,
    accepted: &str,
) -> Result<(), ScenarioError> {
    Err(ScenarioError::new(
        key,
        format!("{value} is out of range: {accepted}"),
    ))
}

fn within(
    key: &str,
    value: f64,
    accepted: &str,
    holds: impl Fn(f64) -> bool,
) -> Result<(), ScenarioError> {
    if value.is_finite() && holds(value) {
        return Ok(());
    }
    refuse(key, value, accepted)
}

fn positive(key: &str, value: Option<f64>) -> Result<(), ScenarioError> {
    value.map_or(Ok(()), |value| {
        within(key, value, "finite, above 0", |value| value > 0.0)
    })
}

fn at_least_zero(key: &str, value: Option<f64>) -> Result<(), ScenarioError> {
    value.map_or(Ok(()), |value| {
        within(key, value, "finite, at least 0", |value| value >= 0.0)
    })
}

/// Checks every value.
pub(super) fn check(scenario: &Scenario) -> Result<(), ScenarioError> {
    if scenario.engines.is_empty() || scenario.engines.len() > 1024 {
        return refuse("engines", scenario.engines.len(), "1 to 1024 engines");
    }
    let decodes = |engine: &EngineSpec| engine.role != EngineRole::Prefiller;
    if !scenario.engines.iter().any(decodes) {
        return refuse("engines", "no decoder", "at least one engine that decodes");
    }
    for (at, engine) in scenario.engines.iter().enumerate() {
        check_engine(&format!("engines[{at}]"), engine)?;
    }
    let router = &scenario.router;
    positive("router.queue_timeout_s", router.queue_timeout_s)?;
    positive("router.report_interval_s", Some(router.report_interval_s))?;
    at_least_zero("router.report_delay_s", Some(router.report_delay_s))?;
    positive("link.bytes_per_s", Some(scenario.link.bytes_per_s))?;
    at_least_zero("link.latency_s", Some(scenario.link.latency_s))?;
    at_least_zero("remote.wait_max_s", scenario.remote.wait_max_s)?;
    at_least_zero("round_trip_s", Some(scenario.round_trip_s))?;
    positive("horizon_s", scenario.horizon_s)?;
    if scenario.closed_loop == Some(0) {
        return refuse("closed_loop", 0, "at least 1");
    }
    if let Some((from, to)) = scenario.energy_window_s {
        at_least_zero("energy_window_s[0]", Some(from))?;
        within("energy_window_s[1]", to, "after the start", |to| to > from)?;
    }
    if let Some(flip) = &scenario.flip {
        if flip.started_s.len() != flip.ended_s.len() {
            let accepted = "as many entries as flip.started_s";
            return refuse("flip.ended_s", flip.ended_s.len(), accepted);
        }
        for (at, (from, to)) in flip.started_s.iter().zip(&flip.ended_s).enumerate() {
            let key = format!("flip.ended_s[{at}]");
            within(&key, *to, "finite, not before its start", |to| to >= *from)?;
        }
    }
    Ok(())
}

fn check_engine(path: &str, engine: &EngineSpec) -> Result<(), ScenarioError> {
    let key = |name: &str| format!("{path}.{name}");
    if engine.block_size == 0 || engine.block_size > 4096 {
        return refuse(key("block_size"), engine.block_size, "1 to 4096");
    }
    if let Some(tokens) = engine.kv_tokens {
        let most = u64::from(engine.block_size) * ((1 << 24) - 1);
        if tokens < u64::from(engine.block_size) || tokens > most {
            let accepted = format!("{} to {most}", engine.block_size);
            return refuse(key("kv_tokens"), tokens, &accepted);
        }
    }
    if engine.max_num_batched_tokens == 0 {
        return refuse(key("max_num_batched_tokens"), 0, "at least 1");
    }
    if engine.max_num_seqs == 0 || engine.max_num_seqs > engine.max_num_batched_tokens {
        let accepted = "1 to max_num_batched_tokens";
        return refuse(key("max_num_seqs"), engine.max_num_seqs, accepted);
    }
    if engine.max_model_len == Some(0) {
        return refuse(key("max_model_len"), 0, "at least 1");
    }
    within(
        &key("watermark"),
        engine.watermark,
        "0 to below 1",
        |value| (0.0..1.0).contains(&value),
    )?;
    positive(&key("chunk_target_s"), engine.chunk_target_s)?;
    positive(
        &key("host_offload_bytes_per_s"),
        engine.host_offload_bytes_per_s,
    )?;
    if let Retention::Ttl { ttl_s } = engine.retention {
        at_least_zero(&key("retention.ttl_s"), Some(ttl_s))?;
    }
    let cost = &engine.cost;
    for (name, value) in [
        ("cost.token_s", cost.token_s),
        ("cost.pair_s", cost.pair_s),
        ("cost.weight_bytes", cost.weight_bytes),
        ("cost.overhead_s", cost.overhead_s),
        ("cost.kv_read_factor", cost.kv_read_factor),
        ("cost.mixing_penalty", Some(cost.mixing_penalty)),
    ] {
        at_least_zero(&key(name), value)?;
    }
    positive(&key("cost.bytes_per_s"), cost.bytes_per_s)?;
    positive(&key("cost.kv_bytes_per_token"), cost.kv_bytes_per_token)?;
    check_power(&key, engine)?;
    engine
        .grid
        .as_ref()
        .map_or(Ok(()), |grid| check_grid(&key, grid))
}

fn check_power(key: &impl Fn(&str) -> String, engine: &EngineSpec) -> Result<(), ScenarioError> {
    let power = &engine.power;
    for (name, value) in [
        ("power.idle_w", power.idle_w),
        ("power.compute_w", power.compute_w),
        ("power.memory_w", power.memory_w),
        ("power.overhead_w", power.overhead_w),
        ("power.parked_w", power.parked_w),
        ("power.park_after_s", power.park_after_s),
        ("power.alpha", power.alpha),
        ("power.mu", power.mu),
    ] {
        at_least_zero(&key(name), value)?;
    }
    for (name, value) in [
        ("power.cap_w", power.cap_w),
        ("power.decode_cap_w", power.decode_cap_w),
        ("power.cap_window_s", power.cap_window_s),
    ] {
        positive(&key(name), value)?;
    }
    power.clock.map_or(Ok(()), |clock| {
        within(&key("power.clock"), clock, "0.25 to 1", |clock| {
            (0.25..=1.0).contains(&clock)
        })
    })
}

fn check_grid(key: &impl Fn(&str) -> String, grid: &GridSpec) -> Result<(), ScenarioError> {
    at_least_zero(&key("grid.shared_s"), Some(grid.shared_s))?;
    for (name, axis) in [
        ("grid.decode_batch", &grid.decode_batch),
        ("grid.decode_context", &grid.decode_context),
        ("grid.prefill_new", &grid.prefill_new),
        ("grid.prefill_past", &grid.prefill_past),
    ] {
        let rises = axis.windows(2).all(|pair| pair[0] < pair[1]);
        if axis.len() < 2 || !rises || axis.iter().any(|knot| !knot.is_finite()) {
            return refuse(key(name), format!("{axis:?}"), "two or more rising numbers");
        }
    }
    for (name, table, rows, columns) in [
        (
            "grid.decode_s",
            &grid.decode_s,
            &grid.decode_batch,
            &grid.decode_context,
        ),
        (
            "grid.prefill_s",
            &grid.prefill_s,
            &grid.prefill_new,
            &grid.prefill_past,
        ),
    ] {
        let fits = table.len() == rows.len() && table.iter().all(|row| row.len() == columns.len());
        if !fits {
            let accepted = format!("{} rows of {} numbers", rows.len(), columns.len());
            return refuse(key(name), "its shape", &accepted);
        }
        if let Some(value) = table
            .iter()
            .flatten()
            .find(|value| !(**value > 0.0 && value.is_finite()))
        {
            return refuse(key(name), value, "finite, above 0");
        }
    }
    Ok(())
}
