//! What prompts cost the decodes beside them: the micro-benchmark of PPD (arXiv 2603.13358) in the simulator.
//!
//! Theirs: Llama-3.1-8B on an H100, sequences that decode 64 tokens behind one shared context of 2,048, and beside them
//! full prompts of 1,024 tokens or appends of 128 to the same context, all sent at once. Published: time per output token
//! +48 % and +2 %; how many prompts stood beside how many decodes is not said, their script takes 1, 2 and 4. Here an append
//! costs at most 1.4 % and a full prompt 8 to 27 times as much; but four of those cost 13 %, not 48.

use super::super::WorkloadColumns;
use super::support::run;

/// Qwen3-8B on the H200, with the memory rate of an H100.
const ENGINE: &str = r#"{"engines": [{"role": "both", "preset": "h200-8b",
    "cost": {"bytes_per_s": 2652e9}, "max_num_batched_tokens": 8192}], "router": {"gate": false}}"#;
const CONTEXT: u32 = 2_048;

fn one(columns: &mut WorkloadColumns, at_s: f64, append: u32, output: u32, shares: bool) {
    columns.arrival_s.push(at_s);
    columns.turns.push(1);
    columns.append.push(append);
    columns.output.push(output);
    columns.gap_s.push(0.0);
    columns.prefix_id.push(if shares { 0 } else { -1 });
    columns.prefix_tokens.push(if shares { CONTEXT } else { 0 });
}

/// Seconds between two tokens of the decodes, with `prompts` prompts of so many tokens beside them.
fn token_s(decodes: u32, prompts: u32, tokens: u32, shares: bool) -> f64 {
    let mut columns = WorkloadColumns::default();
    one(&mut columns, 0.0, CONTEXT + 1, 1, true);
    for _ in 0..decodes {
        one(&mut columns, 10.0, CONTEXT + 4, 64, true);
    }
    for _ in 0..prompts {
        let append = if shares { CONTEXT + tokens } else { tokens };
        one(&mut columns, 10.02, append, 64, shares);
    }
    let result = run(ENGINE, &columns);
    let gaps: Vec<f64> = result
        .turns
        .iter()
        .filter(|row| (1..=decodes as usize).contains(&row.conversation))
        .map(|row| row.gap_mean_s)
        .collect();
    assert_eq!(gaps.len(), decodes as usize);
    gaps.iter().sum::<f64>() / gaps.len() as f64
}

#[test]
fn an_append_costs_the_decodes_beside_it_an_order_of_magnitude_less_than_a_full_prompt() {
    for decodes in [16, 64] {
        for prompts in [1, 2, 4] {
            // As many sequences, none of which has a prompt to compute.
            let alone = token_s(decodes + prompts, 0, 0, false);
            let more = |tokens, shares| token_s(decodes, prompts, tokens, shares) / alone - 1.0;
            let (full, append) = (more(1_024, false), more(128, true));
            assert!(
                append < 0.02 && full > 8.0 * append,
                "{decodes} decodes, {prompts} prompts: full {full:+.3}, append {append:+.3}"
            );
        }
    }
}
