//! One conversation's life, in one word.
//!
//! Promises: a conversation has at most one pin (I1); a placement hands its KV over at most once,
//! turn numbers only grow, and `Closed` is final (I2). Each transition is a pure function of the
//! state; the loop that makes it atomic is written once.
//! Leaves to others: which decoder (`placement`), the decoder's books (`occupancy`), when (`router`).
//!
//! ```text
//!            place            hand_over / settle
//!  (new) ──► Placing ───────────► Pinned ◄─┐ begin, settle
//!              │  ▲                 │  └───┘
//!      abandon │  │ place     unpin │
//!              ▼  │                 ▼
//!             Unpinned ◄────────────┘          close, from anywhere: Closed
//! ```

use crate::sync::{AtomicU64, Counter, Ordering};
use crate::units::{Blocks, Timestamp, Tokens, WorkerId};

/// Where a conversation is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ConversationPhase {
    /// Its KV is on no decoder yet.
    Placing,
    /// Its KV is on its decoder.
    Pinned,
    /// Its KV is gone; the next turn places it again.
    Unpinned,
    /// It ended.
    Closed,
}

impl ConversationPhase {
    /// `"placing"`, `"pinned"`, `"unpinned"` or `"closed"`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Placing => "placing",
            Self::Pinned => "pinned",
            Self::Unpinned => "unpinned",
            Self::Closed => "closed",
        }
    }
}

/// Why a transition is not allowed from this state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refused {
    /// The conversation ended.
    Closed,
    /// The state is another one than the caller acted on.
    Moved,
    /// 255 turns are in flight.
    Full,
}

/// The decoded word: 2 bits phase, 14 decoder, 8 turns in flight, 16 turn number, 24 blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct State {
    pub(crate) phase: ConversationPhase,
    pub(crate) decoder: Option<WorkerId>,
    /// Turns that run plus turns that wait for this conversation.
    pub(crate) in_flight: u8,
    /// Turns begun so far, saturating.
    pub(crate) turn: u16,
    /// Blocks booked for what finished turns left on the decoder.
    pub(crate) blocks: Blocks,
}

const DECODER: u32 = 2;
const IN_FLIGHT: u32 = 16;
const TURN: u32 = 24;
const BLOCKS: u32 = 40;
const NO_DECODER: u64 = WorkerId::LIMIT as u64;

impl State {
    /// A conversation whose first turn runs on `decoder`, or waits for one.
    pub(crate) const fn born(decoder: Option<WorkerId>) -> Self {
        let turn = if decoder.is_some() { 1 } else { 0 };
        let phase = ConversationPhase::Placing;
        Self {
            phase,
            decoder,
            in_flight: 1,
            turn,
            blocks: Blocks::ZERO,
        }
    }

    #[expect(
        clippy::cast_possible_truncation,
        reason = "each field is masked to its width"
    )]
    fn unpack(word: u64) -> Self {
        let phase = match word & 3 {
            0 => ConversationPhase::Placing,
            1 => ConversationPhase::Pinned,
            2 => ConversationPhase::Unpinned,
            _ => ConversationPhase::Closed,
        };
        Self {
            phase,
            decoder: WorkerId::new((word >> DECODER) as u16 & WorkerId::LIMIT),
            in_flight: (word >> IN_FLIGHT) as u8,
            turn: (word >> TURN) as u16,
            blocks: Blocks::new(word >> BLOCKS),
        }
    }

    fn pack(self) -> u64 {
        let phase = match self.phase {
            ConversationPhase::Placing => 0,
            ConversationPhase::Pinned => 1,
            ConversationPhase::Unpinned => 2,
            ConversationPhase::Closed => 3,
        };
        let decoder = self.decoder.map_or(NO_DECODER, |id| u64::from(id.get()));
        phase
            | decoder << DECODER
            | u64::from(self.in_flight) << IN_FLIGHT
            | u64::from(self.turn) << TURN
            | u64::from(self.blocks.get()) << BLOCKS
    }

    fn live(self) -> Result<Self, Refused> {
        if self.phase == ConversationPhase::Closed {
            Err(Refused::Closed)
        } else {
            Ok(self)
        }
    }

    fn enter(self) -> Result<Self, Refused> {
        let in_flight = self.in_flight.checked_add(1).ok_or(Refused::Full)?;
        Ok(Self { in_flight, ..self })
    }

    /// A turn waits for this conversation.
    pub(crate) fn wait(self) -> Result<Self, Refused> {
        self.live()?.enter()
    }

    /// A turn that waited, or that ended without leaving anything, goes.
    pub(crate) fn leave(self) -> Self {
        Self {
            in_flight: self.in_flight.saturating_sub(1),
            ..self
        }
    }

    /// A turn begins where the conversation is; `waited` says that it is counted already.
    pub(crate) fn begin(self, waited: bool) -> Result<Self, Refused> {
        let entered = if waited {
            self.live()?
        } else {
            self.live()?.enter()?
        };
        if self.decoder.is_none() {
            return Err(Refused::Moved);
        }
        Ok(Self {
            turn: self.turn.saturating_add(1),
            ..entered
        })
    }

    /// A turn brings the conversation to `decoder`. What it held elsewhere is no longer its own.
    pub(crate) fn place(self, decoder: WorkerId, waited: bool) -> Result<Self, Refused> {
        let entered = if waited {
            self.live()?
        } else {
            self.live()?.enter()?
        };
        Ok(Self {
            phase: ConversationPhase::Placing,
            decoder: Some(decoder),
            turn: self.turn.saturating_add(1),
            blocks: Blocks::ZERO,
            ..entered
        })
    }

    /// A turn waits for a decoder to bring the conversation to.
    pub(crate) fn seek(self, waited: bool) -> Result<Self, Refused> {
        let entered = if waited {
            self.live()?
        } else {
            self.live()?.enter()?
        };
        let phase = ConversationPhase::Placing;
        Ok(Self {
            phase,
            decoder: None,
            blocks: Blocks::ZERO,
            ..entered
        })
    }

    /// `decoder` has the KV of a prompt that fills `blocks`.
    pub(crate) fn hand_over(self, decoder: WorkerId, blocks: Blocks) -> Result<Self, Refused> {
        let live = self.live()?;
        if self.phase != ConversationPhase::Placing || self.decoder != Some(decoder) {
            return Err(Refused::Moved);
        }
        Ok(Self {
            phase: ConversationPhase::Pinned,
            blocks: self.blocks.plus(blocks),
            ..live
        })
    }

    /// Whether a turn on `decoder` may still leave its blocks in this conversation.
    pub(crate) fn is_on(self, decoder: WorkerId) -> bool {
        self.decoder == Some(decoder)
            && matches!(
                self.phase,
                ConversationPhase::Placing | ConversationPhase::Pinned
            )
    }

    /// A turn on `decoder` ends and the conversation holds `blocks` there.
    pub(crate) fn settle(self, blocks: Blocks) -> Self {
        Self {
            phase: ConversationPhase::Pinned,
            blocks,
            ..self.leave()
        }
    }

    /// The decoder evicted `lost` of its blocks: they are not held any more.
    pub(crate) fn lose_blocks(self, lost: Blocks) -> Self {
        Self {
            blocks: self.blocks.less(lost),
            ..self
        }
    }

    /// The KV is gone or given up; the next turn places the conversation again.
    pub(crate) fn unpin(self) -> Self {
        Self {
            phase: ConversationPhase::Unpinned,
            decoder: None,
            blocks: Blocks::ZERO,
            ..self
        }
    }

    /// The conversation ends; turns in flight settle on their own.
    pub(crate) fn close(self) -> Result<Self, Refused> {
        let live = self.live()?;
        Ok(Self {
            phase: ConversationPhase::Closed,
            blocks: Blocks::ZERO,
            ..live
        })
    }
}

/// One conversation as the table holds it.
#[derive(Debug)]
pub(crate) struct Conversation {
    word: AtomicU64,
    first_seen: Timestamp,
    last_used: Counter,
    /// 0: never pinned; 1: pinned once; above: its TTFET in nanoseconds.
    milestone: Counter,
    /// Microjoules that its turns were charged.
    charged_uj: Counter,
    /// Prompt tokens computed and tokens generated for it.
    tokens: Counter,
    /// Tokens of its last finished turn, prompt and answer; 0 before the first.
    context: Counter,
    /// Of these, tokens whose KV its decoder did not say to have evicted.
    resident: Counter,
}

impl Conversation {
    pub(crate) fn new(state: State, now: Timestamp) -> Self {
        Self {
            word: AtomicU64::new(state.pack()),
            first_seen: now,
            last_used: Counter::of(now.0),
            milestone: Counter::default(),
            charged_uj: Counter::default(),
            tokens: Counter::default(),
            context: Counter::default(),
            resident: Counter::default(),
        }
    }

    pub(crate) fn context(&self) -> Tokens {
        Tokens(u32::try_from(self.context.get()).unwrap_or(u32::MAX))
    }

    pub(crate) fn resident(&self) -> Tokens {
        Tokens(u32::try_from(self.resident.get()).unwrap_or(u32::MAX))
    }

    /// Its decoder evicted so many.
    pub(crate) fn lose_resident(&self, tokens: Tokens) {
        let left = self.resident.get().saturating_sub(u64::from(tokens.0));
        self.resident.set(left);
    }

    pub(crate) fn set_context(&self, tokens: Tokens) {
        self.resident.set(u64::from(tokens.0));
        self.context.set(u64::from(tokens.0));
    }

    pub(crate) fn state(&self) -> State {
        // Acquire: pairs with the Release in `replace`: who reads a word may give back its blocks. SeqCst: whoever waits
        // looks at words after it closed the pockets, see `Pocket::is_closed`.
        State::unpack(self.word.load(Ordering::SeqCst))
    }

    /// Moves from exactly `from` to `to`; `false` if somebody else moved it first.
    pub(crate) fn replace(&self, from: State, to: State) -> bool {
        let (from, to) = (from.pack(), to.pack());
        // Release pairs with the Acquire in `state`; Acquire because the caller gives blocks back that an earlier turn
        // booked. SeqCst: whoever changed a word looks at its pocket after, see `Pocket::is_closed`.
        self.word
            .compare_exchange(from, to, Ordering::SeqCst, Ordering::Acquire)
            .is_ok()
    }

    /// Applies `transition` until nobody interferes; it may run more than once.
    pub(crate) fn update<E>(
        &self,
        mut transition: impl FnMut(State) -> Result<State, E>,
    ) -> Result<(State, State), E> {
        loop {
            let from = self.state();
            let to = transition(from)?;
            if self.replace(from, to) {
                return Ok((from, to));
            }
        }
    }

    pub(crate) fn first_seen(&self) -> Timestamp {
        self.first_seen
    }

    pub(crate) fn last_used(&self) -> Timestamp {
        Timestamp(self.last_used.get())
    }

    pub(crate) fn touch(&self, now: Timestamp) {
        self.last_used.set(now.0);
    }

    pub(crate) fn charge(&self, microjoules: u64) {
        if microjoules > 0 {
            self.charged_uj.add(microjoules);
        }
    }

    pub(crate) fn charged_uj(&self) -> u64 {
        self.charged_uj.get()
    }

    pub(crate) fn worked(&self, tokens: crate::units::Tokens) {
        if tokens.0 > 0 {
            self.tokens.add(u64::from(tokens.0));
        }
    }

    pub(crate) fn tokens(&self) -> u64 {
        self.tokens.get()
    }

    pub(crate) fn was_pinned(&self) -> bool {
        self.milestone.get() > 0
    }

    pub(crate) fn note_pinned(&self) {
        if self.milestone.get() == 0 {
            self.milestone.replace(0, 1);
        }
    }

    /// The time to the first effective token, once it is known.
    pub(crate) fn ttfet(&self) -> Option<std::time::Duration> {
        let nanos = self.milestone.get();
        (nanos > 1).then(|| std::time::Duration::from_nanos(nanos))
    }

    /// Records the TTFET; `true` for the one caller that did.
    pub(crate) fn record_ttfet(&self, span: std::time::Duration) -> bool {
        let nanos = u64::try_from(span.as_nanos()).unwrap_or(u64::MAX).max(2);
        self.milestone.replace(0, nanos) || self.milestone.replace(1, nanos)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const D0: WorkerId = WorkerId::new(0).unwrap();
    const D1: WorkerId = WorkerId::new(WorkerId::LIMIT - 1).unwrap();

    #[test]
    fn the_word_keeps_every_field_at_its_extremes() {
        for phase in [
            ConversationPhase::Placing,
            ConversationPhase::Pinned,
            ConversationPhase::Unpinned,
            ConversationPhase::Closed,
        ] {
            for decoder in [None, Some(D0), Some(D1)] {
                for (in_flight, turn, blocks) in [
                    (0, 0, Blocks::ZERO),
                    (u8::MAX, u16::MAX, Blocks::MAX),
                    (1, 2, Blocks::new(3)),
                ] {
                    let state = State {
                        phase,
                        decoder,
                        in_flight,
                        turn,
                        blocks,
                    };
                    assert_eq!(State::unpack(state.pack()), state);
                }
            }
        }
    }

    #[test]
    fn a_life_from_first_turn_to_close() {
        let placed = State::born(Some(D0));
        let pinned = placed.hand_over(D0, Blocks::new(4)).expect("placing on d0");
        assert_eq!(pinned.blocks, Blocks::new(4), "the prompt's KV is there");
        let idle = pinned.settle(Blocks::new(5));
        assert_eq!(
            (idle.in_flight, idle.turn, idle.blocks),
            (0, 1, Blocks::new(5))
        );
        let second = idle.begin(false).expect("pinned");
        assert_eq!(
            (second.in_flight, second.turn, second.blocks),
            (1, 2, Blocks::new(5))
        );
        let closed = second.close().expect("live");
        assert_eq!(
            closed.blocks,
            Blocks::ZERO,
            "closing takes the blocks out of the word"
        );
        assert_eq!(closed.begin(false), Err(Refused::Closed));
        assert_eq!(closed.close(), Err(Refused::Closed), "closed is final");
    }

    #[test]
    fn a_handover_to_another_decoder_or_a_second_one_is_refused() {
        let placed = State::born(Some(D0));
        assert_eq!(placed.hand_over(D1, Blocks::new(4)), Err(Refused::Moved));
        let pinned = placed.hand_over(D0, Blocks::new(4)).expect("placing on d0");
        assert_eq!(
            pinned.hand_over(D0, Blocks::new(4)),
            Err(Refused::Moved),
            "one handoff for a placement"
        );
    }

    #[test]
    fn the_256th_turn_in_flight_is_refused_and_turn_numbers_saturate() {
        let mut state = State::born(Some(D0)).settle(Blocks::ZERO);
        for _ in 0..255 {
            state = state.begin(false).expect("below 256");
        }
        assert_eq!(state.begin(false), Err(Refused::Full));
        state.turn = u16::MAX;
        assert_eq!(state.begin(true).expect("counted already").turn, u16::MAX);
    }

    #[test]
    fn ttfet_is_recorded_once() {
        let conversation = Conversation::new(State::born(Some(D0)), Timestamp(7));
        assert!(!conversation.was_pinned());
        conversation.note_pinned();
        assert!(conversation.was_pinned());
        assert_eq!(conversation.ttfet(), None);
        assert!(conversation.record_ttfet(std::time::Duration::from_nanos(9)));
        assert!(!conversation.record_ttfet(std::time::Duration::from_nanos(11)));
        assert_eq!(
            conversation.ttfet(),
            Some(std::time::Duration::from_nanos(9))
        );
    }
}
