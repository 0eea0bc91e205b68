//! What policies rank by: free blocks of decoders, work queued at prefillers.
//!
//! Promises: pure; equal workers come in a different order for each conversation.
//! Leaves to others: which of the two a turn needs (one file for each policy).

use super::{Decision, Observed, Shortage, TurnView, WorkerView};
use crate::event::Reason;
use crate::units::{Blocks, Tokens, WorkerId};

/// The decoder that a new conversation gets.
pub(super) struct DecoderChoice<'a> {
    pub(super) prompt: Tokens,
    pub(super) decoder: &'a WorkerView,
    pub(super) capacity: Blocks,
    pub(super) ceiling: Blocks,
    pub(super) compared: u16,
}

impl DecoderChoice<'_> {
    /// Blocks free under its ceiling.
    pub(super) fn free(&self) -> Blocks {
        self.ceiling.less(self.decoder.booked)
    }

    /// The decoder computes the prompt itself.
    pub(super) fn alone(&self) -> Decision {
        let (free, decoders) = (self.free(), self.compared);
        self.place(None, Reason::OnDecoder { free, decoders })
    }

    pub(super) fn place(&self, prefiller: Option<WorkerId>, reason: Reason) -> Decision {
        Decision::Place {
            prefiller,
            decoder: self.decoder.id,
            compute: self.prompt,
            ceiling: self.ceiling,
            alone: self.capacity,
            reason,
        }
    }
}

/// Whether a decoder has room for a new conversation.
pub(super) enum Room<'a> {
    /// It takes no conversations, or nobody knows how many blocks it has.
    Unfit,
    /// It could never hold the prompt: this much at most.
    TooSmall(Tokens),
    /// Not now.
    Full,
    /// Yes.
    Fits(DecoderChoice<'a>),
}

/// Under `most` of its blocks.
pub(super) fn room<'a>(turn: &TurnView, worker: &'a WorkerView, most: f64) -> Room<'a> {
    let (Some(fits), Some(capacity)) = (worker.prompt_limit(), worker.capacity) else {
        return Room::Unfit;
    };
    if !worker.role.decodes() || !worker.open {
        return Room::Unfit;
    }
    if turn.prompt > fits {
        return Room::TooSmall(fits);
    }
    let ceiling = capacity.share(most);
    let after = worker.booked.plus(worker.block_size.blocks(turn.prompt));
    let fits_now = after <= ceiling || worker.booked == Blocks::ZERO;
    if worker.growth_waits || !fits_now {
        return Room::Full;
    }
    Room::Fits(DecoderChoice {
        prompt: turn.prompt,
        decoder: worker,
        capacity,
        ceiling,
        compared: 1,
    })
}

/// The decoder with most free blocks under the low watermark; one that failed a request lately comes after all others.
pub(super) fn choose_decoder<'a>(
    turn: &TurnView,
    fleet: &'a Observed,
) -> Result<DecoderChoice<'a>, Decision> {
    choose_decoder_among(turn, fleet, fleet.low_watermark, |_| true)
}

/// The one with most free blocks under `most` of its blocks, of those that are `allowed`.
pub(super) fn choose_decoder_among<'a>(
    turn: &TurnView,
    fleet: &'a Observed,
    most: f64,
    allowed: impl Fn(&WorkerView) -> bool,
) -> Result<DecoderChoice<'a>, Decision> {
    let mut limit = None;
    let mut lacks_room = false;
    let mut best: Option<((bool, u32, u64), DecoderChoice<'a>)> = None;
    let mut compared = 0;
    for worker in fleet.workers.iter().filter(|worker| allowed(worker)) {
        match room(turn, worker, most) {
            Room::Unfit => {}
            Room::TooSmall(fits) => limit = limit.max(Some(fits)),
            Room::Full => lacks_room = true,
            Room::Fits(choice) => {
                compared += 1;
                let rank = (
                    !worker.others_first,
                    choice.free().get(),
                    tie(turn, worker.id),
                );
                if best.as_ref().is_none_or(|(most, _)| rank > *most) {
                    best = Some((rank, choice));
                }
            }
        }
    }
    match (best, limit) {
        (Some((_, choice)), _) => Ok(DecoderChoice { compared, ..choice }),
        (None, _) if lacks_room => Err(Decision::Wait(Shortage::Blocks)),
        (None, Some(limit)) => Err(Decision::TooLong { limit }),
        (None, None) => Err(Decision::Wait(Shortage::Decoders)),
    }
}

/// Workers that could compute the prompt for others.
pub(super) fn able_prefillers<'a>(
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
/// throughput was not observed yet counts as fast as the fastest that was; one that failed a request lately comes after all others.
pub(super) fn first_done<'a>(
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
        (a.others_first.cmp(&b.others_first))
            .then_with(|| done_in(a).total_cmp(&done_in(b)))
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
