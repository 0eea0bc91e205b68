//! The presets beside the kernel times that they were fitted to, and beside measured runs.

use super::super::cost::{ClosedForm, Load, StepCost};
use super::super::preset::Preset;
use super::super::scenario::CostSpec;

fn form(preset: Preset) -> ClosedForm {
    // Kernel times contain no host.
    let spec = CostSpec {
        overhead_s: Some(0.0),
        ..CostSpec::default()
    };
    ClosedForm::new(preset.constants(), &spec)
}

fn seconds(form: &ClosedForm, load: Load) -> f64 {
    let parts = form.step(&load);
    parts.compute + parts.memory + parts.exposed_host()
}

fn prefill(form: &ClosedForm, new: u32, past: u32) -> f64 {
    let mut load = Load::default();
    load.add_chunk(new, past);
    seconds(form, load)
}

fn decode(form: &ClosedForm, batch: u32, context: u32) -> f64 {
    let mut load = Load::default();
    for _ in 0..batch {
        load.add_chunk(1, context);
    }
    seconds(form, load)
}

#[test]
fn fitted_presets_are_near_the_tables_of_aiconfigurator() {
    let tables = [
        (
            Preset::L40s,
            [9.2, 34.9, 86.0, 54.0],
            [2.4, 25.4, 48.7, 85.9],
        ),
        (
            Preset::A100,
            [9.3, 36.7, 85.5, 60.0],
            [2.0, 13.4, 24.5, 42.1],
        ),
        (Preset::H200, [4.1, 12.1, 27.5, 17.7], [1.6, 5.2, 8.1, 14.8]),
        (
            Preset::L40sLarge,
            [72.0, 320.0, 729.0, 246.0],
            [21.7, 51.5, 84.0, 132.0],
        ),
        (
            Preset::A100Large,
            [66.0, 261.0, 568.0, 237.0],
            [12.0, 27.1, 41.4, 64.7],
        ),
    ];
    for (preset, prefills_ms, decodes_ms) in tables {
        let form = form(preset);
        let shapes = [(1_024, 0), (4_096, 0), (8_192, 0), (2_048, 16_384)];
        for ((new, past), ms) in shapes.into_iter().zip(prefills_ms) {
            let error = prefill(&form, new, past) * 1e3 / ms - 1.0;
            assert!(
                error.abs() < 0.12,
                "{preset:?}, {new} on {past}: {error:.3}"
            );
        }
        let shapes = [(1, 1_024), (32, 4_096), (32, 8_192), (64, 8_192)];
        for ((batch, context), ms) in shapes.into_iter().zip(decodes_ms) {
            let error = decode(&form, batch, context) * 1e3 / ms - 1.0;
            assert!(
                error.abs() < 0.10,
                "{preset:?}, {batch} at {context}: {error:.3}"
            );
        }
    }
}

#[test]
fn the_eager_a40_is_near_the_cells_of_the_artifact() {
    // Seconds of a prefill in chunks of 2,944 and the hit after it, 300 W.
    let cells = [
        (10_000, 0.37),
        (12_000, 0.46),
        (16_000, 0.70),
        (20_000, 0.98),
        (24_000, 1.31),
        (28_000, 1.67),
        (32_000, 2.10),
        (40_000, 3.07),
        (48_000, 4.26),
        (56_000, 5.67),
        (64_000, 7.10),
    ];
    let form = ClosedForm::new(Preset::A40Eager.constants(), &CostSpec::default());
    for (tokens, measured) in cells {
        let (mut past, mut span) = (0, 0.0145);
        while past < tokens {
            let chunk = (tokens - past).min(2_944);
            span += prefill(&form, chunk, past);
            past += chunk;
        }
        let error = span / measured - 1.0;
        assert!(
            error.abs() < 0.09,
            "{tokens} tokens: {span:.3} s, {error:.3}"
        );
    }
}

#[test]
fn the_a40_with_an_8b_model_is_near_vidurs_kernels() {
    // One layer of Llama-2-7B on an A40 in Vidur's profiles: matrix products of 4,096 tokens 15.2 ms, of one token 0.727 ms
    // for 405 MB; the other operations of a layer add 10 to 14 %.
    const LAYER: f64 = 202.4e6;
    let per_parameter = |preset: Preset, parameters: f64| {
        let of = preset.constants();
        let many = 4_096.0 * of.token_s / parameters * LAYER;
        let single = 2.0 * LAYER / of.bytes_per_s;
        (many / (15.2e-3 * 1.12) - 1.0, single / 0.727e-3 - 1.0)
    };
    // Without the embeddings, which a prompt does not multiply with.
    let (many, single) = per_parameter(Preset::A40Large, 6.95e9);
    assert!(
        many.abs() < 0.15 && single.abs() < 0.15,
        "{many:.3} {single:.3}"
    );
    // The small model's matrices are a quarter as wide and keep the GPU less busy: slower by parameter, as one expects.
    let (many, single) = per_parameter(Preset::A40, 0.44e9);
    assert!(
        (0.15..0.30).contains(&many) && single.abs() < 0.15,
        "{many:.3} {single:.3}"
    );
}
