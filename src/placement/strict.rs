//! The paper's rule: one placement, one handoff, pinned for life.
//!
//! A new conversation goes to the decoder with most free blocks; its prompt is computed by the
//! prefiller that would be done first. A pinned one never moves while its decoder lives.

use super::{Decision, Observed, Policy, Shortage, TurnView, WorkerView};
use crate::event::Reason;
use crate::units::{Blocks, Tokens, WorkerId};

/// See the module.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Strict;

impl Policy for Strict {
    fn name(&self) -> &'static str {
        "strict"
    }

    fn is_sticky(&self) -> bool {
        true
    }

    fn place(&self, turn: &TurnView, fleet: &Observed) -> Decision {
        if turn.home.is_some() {
            return Decision::Stay;
        }
        let able: Vec<_> = able_prefillers(turn, fleet, &[]).collect();
        let is_open = |worker: &&WorkerView| worker.queued < worker.backlog_limit;
        let choice = match choose_decoder(turn, fleet) {
            Ok(choice) => choice,
            // Room would not help yet.
            Err(Decision::Wait(Shortage::Blocks))
                if !able.is_empty() && !able.iter().any(is_open) =>
            {
                return Decision::Wait(Shortage::Prefill);
            }
            Err(instead) => return instead,
        };
        let place = |prefiller, reason| Decision::Place {
            prefiller,
            decoder: choice.decoder.id,
            ceiling: choice.ceiling,
            alone: choice.capacity,
            reason,
        };
        let (free, decoders) = (choice.ceiling.less(choice.decoder.booked), choice.compared);
        if able.is_empty() {
            return place(None, Reason::OnDecoder { free, decoders });
        }
        let open = able.iter().copied().filter(is_open);
        let Some((prefiller, prefillers)) = first_done(turn, open, Some(choice.decoder.id)) else {
            return Decision::Wait(Shortage::Prefill);
        };
        if prefiller.id == choice.decoder.id {
            return place(None, Reason::OnDecoder { free, decoders });
        }
        let (queued, tokens_per_s) = (prefiller.queued, prefiller.tokens_per_s);
        let reason = Reason::LeastWork {
            queued,
            tokens_per_s,
            prefillers,
            free,
            decoders,
        };
        place(Some(prefiller.id), reason)
    }

    fn next_prefiller(
        &self,
        turn: &TurnView,
        fleet: &Observed,
        avoid: &[WorkerId],
    ) -> Option<(WorkerId, Reason)> {
        // The decoder is chosen and waits: a long queue is no reason to give up the handoff.
        let (next, _) = first_done(turn, able_prefillers(turn, fleet, avoid), None)?;
        let (queued, tokens_per_s) = (next.queued, next.tokens_per_s);
        Some((
            next.id,
            Reason::NextPrefiller {
                queued,
                tokens_per_s,
            },
        ))
    }
}

struct DecoderChoice<'a> {
    decoder: &'a WorkerView,
    capacity: Blocks,
    ceiling: Blocks,
    compared: u16,
}

fn choose_decoder<'a>(turn: &TurnView, fleet: &'a Observed) -> Result<DecoderChoice<'a>, Decision> {
    let mut limit = None;
    let mut lacks_room = false;
    let mut best: Option<(u32, u64, DecoderChoice<'a>)> = None;
    let mut compared = 0;
    for worker in fleet
        .workers
        .iter()
        .filter(|worker| worker.role.decodes() && worker.open)
    {
        let (Some(fits), Some(capacity)) = (worker.prompt_limit(), worker.capacity) else {
            continue;
        };
        limit = limit.max(Some(fits));
        if turn.prompt > fits {
            continue;
        }
        let need = worker.block_size.blocks(turn.prompt);
        let ceiling = capacity.share(fleet.low_watermark);
        let after = worker.booked.plus(need);
        let fits_now = after <= ceiling || worker.booked == Blocks::ZERO;
        if worker.growth_waits || !fits_now {
            lacks_room = true;
            continue;
        }
        compared += 1;
        let free = ceiling.less(worker.booked).get();
        let tie = tie(turn, worker.id);
        if best
            .as_ref()
            .is_none_or(|(most, other, _)| (free, tie) > (*most, *other))
        {
            best = Some((
                free,
                tie,
                DecoderChoice {
                    decoder: worker,
                    capacity,
                    ceiling,
                    compared,
                },
            ));
        }
    }
    match (best, limit) {
        (Some((_, _, choice)), _) => Ok(DecoderChoice { compared, ..choice }),
        (None, _) if lacks_room => Err(Decision::Wait(Shortage::Blocks)),
        (None, Some(limit)) => Err(Decision::TooLong { limit }),
        (None, None) => Err(Decision::Wait(Shortage::Decoders)),
    }
}

fn able_prefillers<'a>(
    turn: &TurnView,
    fleet: &'a Observed,
    avoid: &[WorkerId],
) -> impl Iterator<Item = &'a WorkerView> {
    let prompt = turn.prompt;
    fleet.workers.iter().filter(move |worker| {
        worker.role.prefills()
            && worker.open
            && worker.max_model_len.is_none_or(|len| prompt <= len)
            && !avoid.contains(&worker.id)
    })
}

/// The worker that would be done with the prompt first, and how many were compared. One whose
/// throughput was not observed yet counts as fast as the fastest that was.
fn first_done<'a>(
    turn: &TurnView,
    workers: impl Iterator<Item = &'a WorkerView>,
    at_home: Option<WorkerId>,
) -> Option<(&'a WorkerView, u16)> {
    let workers: Vec<_> = workers.collect();
    let known = workers.iter().filter_map(|worker| worker.tokens_per_s);
    let fastest = known.fold(f64::NAN, f64::max);
    let fastest = if fastest > 0.0 { fastest } else { 1.0 };
    let done_in = |worker: &WorkerView| {
        let tokens = f64::from(worker.queued.0) + f64::from(turn.prompt.max(Tokens(1)).0);
        tokens / worker.tokens_per_s.unwrap_or(fastest)
    };
    let best = workers.iter().copied().min_by(|a, b| {
        let away = |worker: &WorkerView| Some(worker.id) != at_home;
        done_in(a)
            .total_cmp(&done_in(b))
            .then_with(|| away(a).cmp(&away(b)))
            .then_with(|| tie(turn, b.id).cmp(&tie(turn, a.id)))
    })?;
    Some((best, u16::try_from(workers.len()).unwrap_or(u16::MAX)))
}

/// A different order of equal workers for each conversation (splitmix64's finaliser).
fn tie(turn: &TurnView, worker: WorkerId) -> u64 {
    let mut mixed = turn.tie ^ (u64::from(worker.get()) + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    mixed = (mixed ^ mixed >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ mixed >> 31
}
