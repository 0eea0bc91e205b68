//! The decision path: from a request to a grant, a place in the line, or a refusal.

use std::sync::Arc;
use std::time::Duration;

use super::TurnRequest;
use super::grant::Grant;
use super::helpers::Helpers;
use super::snapshot::Tally;
use super::ticket::Place;
use crate::activity::Doing;
use crate::admission::{Line, Queue};
use crate::config::Config;
use crate::conversation::{Conversation, ConversationPhase, Refused, State};
use crate::error::Rejected;
use crate::event::{Event, Observers, Reason, TurnKind};
use crate::fleet::{Fleet, Worker};
use crate::occupancy::{Asked, Ceiling, Rank, Reservation};
use crate::pace::{LinkTime, SharedHead};
use crate::placement::{Decision, Observed, Policy, TurnView, WorkerView};
use crate::pulse::Pulse;
use crate::recent::Recent;
use crate::roles::Advisor;
use crate::sync::{Counter, Mutex};
use crate::table::Table;
use crate::units::{Blocks, ConversationKey, Timestamp, Tokens, WorkerId};

/// Everything that turns share.
pub(crate) struct Engine {
    pub(crate) config: Config,
    pub(crate) policy: Box<dyn Policy>,
    pub(crate) sticky: bool,
    pub(crate) fleet: Fleet,
    pub(crate) table: Table,
    pub(crate) line: Line,
    pub(crate) observers: Observers,
    pub(crate) tally: Tally,
    /// What was computed lately, by all workers.
    pub(crate) recent: Recent,
    /// How long handoffs took.
    pub(crate) link: LinkTime,
    /// What new conversations found computed.
    pub(crate) shared_head: SharedHead,
    /// The latest time that a slow path was told: for what is dropped without being told one.
    pub(crate) latest: Counter,
    /// How many workers should only compute prompts.
    pub(crate) advisor: Mutex<Advisor>,
    /// Of the workers that do both, those that only compute prompts.
    pub(super) helpers: Helpers,
    /// Beats with every tick.
    pub(crate) pulse: Pulse,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let conversations = self.table.len();
        f.debug_struct("Engine")
            .field("conversations", &conversations)
            .finish_non_exhaustive()
    }
}

/// What became of a request.
#[derive(Debug)]
pub(crate) enum Begun {
    Granted(Grant),
    Queued(Place),
}

/// One try to get a turn running.
#[derive(Debug)]
pub(crate) enum Attempt {
    Run(Grant),
    Wait(Queue, Lack),
    Refuse(Rejected),
    /// The conversation moved meanwhile: look again.
    Again,
}

/// What an impatient turn is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lack {
    Room,
    Decoders,
}

/// The turn that asks, as the decision path sees it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Asking {
    pub(crate) key: ConversationKey,
    pub(crate) prompt: Tokens,
    pub(crate) arrived: Timestamp,
    /// It stands in the line and is counted in its conversation's word.
    pub(crate) waited: bool,
    /// It wants to wait if it must.
    pub(crate) patient: bool,
    /// Where its conversation was before it lost its place.
    pub(crate) from: Option<WorkerId>,
}

impl Asking {
    pub(super) fn rank(&self) -> Rank {
        if self.waited {
            Rank::FromLine
        } else {
            Rank::Arriving
        }
    }
}

impl Engine {
    pub(crate) fn new(config: Config, policy: Box<dyn Policy>) -> Self {
        Self {
            helpers: Helpers::of(policy.helpers()),
            config,
            sticky: policy.is_sticky(),
            policy,
            fleet: Fleet::new(),
            table: Table::default(),
            line: Line::new(),
            observers: Observers::default(),
            tally: Tally::default(),
            recent: Recent::default(),
            link: LinkTime::default(),
            shared_head: SharedHead::default(),
            advisor: Mutex::new(Advisor::default()),
            latest: Counter::default(),
            pulse: Pulse::default(),
        }
    }

    /// Begins a turn: `run` or `wait` takes what became of it, so that a grant is moved but once.
    pub(crate) fn begin<T>(
        &self,
        request: &TurnRequest,
        now: Timestamp,
        run: impl FnOnce(Grant) -> T,
        wait: impl FnOnce(Place) -> T,
    ) -> Result<T, Rejected> {
        let asking = Asking {
            key: request.key,
            prompt: request.prompt_tokens,
            arrived: now,
            waited: false,
            patient: request.wait.is_some(),
            from: None,
        };
        loop {
            // Borrowed from the table: only who has to wait needs to count a reference twice.
            let mut waits = None;
            let attempt = self.table.with(request.key, |found| match found {
                Some(conversation) => {
                    let attempt = self.attempt(conversation, &asking, now);
                    if matches!(attempt, Attempt::Wait(..)) {
                        waits = Some(Arc::clone(conversation));
                    }
                    attempt
                }
                None => self.attempt_new(&asking, now),
            });
            match attempt {
                Attempt::Run(grant) => return Ok(run(grant)),
                Attempt::Refuse(rejected) => return Err(self.shed(request.key, rejected, now)),
                Attempt::Again => {}
                Attempt::Wait(queue, lack) => {
                    let Some(patience) = request.wait else {
                        let rejected = self.no_room(lack, now);
                        return Err(self.shed(request.key, rejected, now));
                    };
                    match self.enqueue(waits.as_ref(), queue, &asking, now + patience, now) {
                        Ok(Some(Begun::Granted(grant))) => return Ok(run(grant)),
                        Ok(Some(Begun::Queued(place))) => return Ok(wait(place)),
                        Ok(None) => {}
                        Err(rejected) => return Err(self.shed(request.key, rejected, now)),
                    }
                }
            }
        }
    }

    fn shed(&self, key: ConversationKey, rejected: Rejected, now: Timestamp) -> Rejected {
        self.tally.own().shed.add(1);
        let retry_after = rejected.retry_after().unwrap_or(Duration::ZERO);
        self.observers.tell(|| Event::Shed {
            at: now,
            key,
            retry_after,
        });
        rejected
    }

    fn no_room(&self, lack: Lack, now: Timestamp) -> Rejected {
        match lack {
            Lack::Room => Rejected::Overloaded {
                retry_after: self.line.retry_after(self.line.newcomers(), now),
            },
            Lack::Decoders => {
                let mut draining = false;
                self.fleet.for_each_live(|worker| {
                    draining |= worker.role.decodes() && worker.is_draining();
                });
                if draining {
                    Rejected::Draining
                } else {
                    Rejected::NoWorkers
                }
            }
        }
    }

    /// Tries to run a turn of a conversation that exists.
    pub(crate) fn attempt(
        &self,
        conversation: &Arc<Conversation>,
        asking: &Asking,
        now: Timestamp,
    ) -> Attempt {
        let state = conversation.state();
        match (state.phase, state.decoder) {
            (ConversationPhase::Pinned, Some(id)) => {
                let decoder = self.fleet.worker(id);
                if Self::stays(decoder, state, asking) {
                    if self.sticky {
                        return self.run_at_home(conversation, state, decoder, asking, now);
                    }
                    return self.ask_policy(conversation, state, decoder, asking, now);
                }
                self.place_again(conversation, state, asking, now)
            }
            (ConversationPhase::Unpinned, _) => self.place_again(conversation, state, asking, now),
            // On a lost decoder the turn that places is about to fail; whoever may wait then places again.
            (ConversationPhase::Placing, Some(id))
                if !asking.patient && !asking.waited && !self.fleet.worker(id).is_lost() =>
            {
                self.run_at_home(conversation, state, self.fleet.worker(id), asking, now)
            }
            (ConversationPhase::Placing, _) => Attempt::Wait(Queue::Followers, Lack::Room),
            (ConversationPhase::Closed, _) if asking.waited => Attempt::Refuse(Rejected::Closed),
            // A pin without a decoder is never written; as good as closed.
            (ConversationPhase::Closed, _) | (ConversationPhase::Pinned, None) => {
                self.table.remove(asking.key, conversation);
                Attempt::Again
            }
        }
    }

    /// Whether a pinned conversation runs its next turn where it is: its decoder lives, and if it
    /// drains, other turns of the conversation still run there.
    pub(crate) fn stays(decoder: &Worker, state: State, asking: &Asking) -> bool {
        decoder.keeps_pins() || (!decoder.is_lost() && state.in_flight > u8::from(asking.waited))
    }

    fn ask_policy(
        &self,
        conversation: &Arc<Conversation>,
        state: State,
        home: &Worker,
        asking: &Asking,
        now: Timestamp,
    ) -> Attempt {
        let resident = if home.tells_evictions() {
            conversation.resident()
        } else {
            home.block_size().tokens(state.blocks)
        };
        let resident = resident.min(asking.prompt);
        // Most turns find their KV: nobody has to look at the whole fleet for them.
        if !self.policy.may_leave(asking.prompt, resident) {
            return self.run_at_home(conversation, state, home, asking, now);
        }
        let turn = TurnView {
            tie: asking.key.folded(),
            prompt: asking.prompt,
            home: Some(home.id),
            resident,
            returns: false,
        };
        match self.policy.place(&turn, &self.observed(now)) {
            // Who may not wait, or has waited for room already, or runs other turns at home, stays.
            Decision::Queue if asking.patient && !asking.waited && state.in_flight == 0 => {
                Attempt::Wait(Queue::Returning, Lack::Room)
            }
            // A pinned turn never stands in the newcomers' line: without a better place it stays.
            Decision::Stay | Decision::Queue | Decision::Wait(_) | Decision::TooLong { .. } => {
                self.run_at_home(conversation, state, home, asking, now)
            }
            Decision::Place { decoder, .. } => {
                let mut asking = *asking;
                asking.from = Some(home.id);
                let mut booked = self.book(&turn, state.blocks, &asking, now);
                if booked.is_err() && decoder == home.id && self.config.evict_idle {
                    let growth = (home.block_size().blocks(asking.prompt)).less(state.blocks);
                    let ceiling = Ceiling::capacity(home.capacity().unwrap_or_default());
                    let (rank, spare) = (asking.rank(), Some(conversation));
                    let freed = self.make_room(home, growth, ceiling, rank, spare, now);
                    booked = self.book(&turn, state.blocks, &asking, now);
                    if freed.somebody_waits && !asking.waited {
                        self.serve(now);
                    }
                }
                match booked {
                    Ok(booked) => self.take(Some((conversation, state)), booked, &asking, now),
                    Err(_) => self.run_at_home(conversation, state, home, &asking, now),
                }
            }
        }
    }

    /// Runs a turn on the decoder that its conversation is on.
    fn run_at_home(
        &self,
        conversation: &Arc<Conversation>,
        state: State,
        decoder: &Worker,
        asking: &Asking,
        now: Timestamp,
    ) -> Attempt {
        let (capacity, limit) = (
            decoder.capacity().unwrap_or_default(),
            decoder.prompt_limit(),
        );
        if let Some(limit) = limit.filter(|limit| asking.prompt > *limit) {
            return Attempt::Refuse(Rejected::PromptTooLong {
                tokens: asking.prompt,
                limit,
            });
        }
        let growth = decoder
            .block_size()
            .blocks(asking.prompt)
            .less(state.blocks)
            .plus(self.unshared(state, conversation.last_used(), now));
        let ceiling = Ceiling::capacity(capacity);
        let resident = decoder.block_size().tokens(state.blocks).0;
        let reserve = || {
            decoder
                .occupancy
                .try_reserve(growth, ceiling, asking.rank())
        };
        let Asked {
            mut reservation,
            mut somebody_waits,
        } = reserve();
        if reservation.is_none() {
            // Growth waits where the operator says so, or for what the engine keeps; else the turn runs, as its engine lets it.
            let waits = self.config.tail_waits || self.keeps_some(decoder, now);
            if waits && (!self.config.tail_waits || self.may_evict_idle(decoder, now)) {
                let (rank, spare) = (asking.rank(), Some(conversation));
                let freed = self.make_room(decoder, growth, ceiling, rank, spare, now);
                let asked = reserve();
                somebody_waits |= freed.somebody_waits | asked.somebody_waits;
                reservation = asked.reservation;
            } else if !waits {
                let asked = self.overbook(decoder, growth, conversation, now);
                somebody_waits |= asked.somebody_waits;
                reservation = asked.reservation;
            }
        }
        if somebody_waits && !asking.waited {
            self.serve(now);
        }
        let Some(reservation) = reservation else {
            return Attempt::Wait(Queue::Growth(decoder.id), Lack::Room);
        };
        let next = match state.begin(asking.waited) {
            Ok(next) => next,
            Err(refused) => {
                self.give_back(reservation, asking.waited, now);
                return Self::refused(refused);
            }
        };
        if !conversation.replace(state, next) {
            self.give_back(reservation, asking.waited, now);
            return Attempt::Again;
        }
        conversation.touch(now);
        self.note_held(decoder, state.blocks, now);
        if state.blocks == Blocks::ZERO {
            self.may_lose_room(decoder, asking.key, conversation, now);
        }
        let reason = match state.phase {
            ConversationPhase::Pinned => Reason::Pinned,
            ConversationPhase::Placing
            | ConversationPhase::Unpinned
            | ConversationPhase::Closed => Reason::Shared,
        };
        if asking.waited {
            self.admitted(asking, decoder.id, now);
        }
        let turn = u32::from(next.turn);
        self.turn_started(asking.key, decoder.id, turn, TurnKind::Pinned, now);
        Attempt::Run(Grant {
            key: asking.key,
            conversation: Arc::clone(conversation),
            decoder: decoder.id,
            prefiller: None,
            task: Some(decoder.activity.begin(decoder.id, Doing::Prefill, now)),
            queued: None,
            computing: self.computing(decoder, Tokens(asking.prompt.0.saturating_sub(resident))),
            reserved: reservation.hand_to_turn(),
            lent: Blocks::ZERO,
            prompt: asking.prompt,
            context: conversation.context(),
            turn,
            kind: TurnKind::Pinned,
            reason,
            arrived: asking.arrived,
            started: now,
            first_token: None,
            last_token: None,
            counted: Tokens(0),
            handed_over: true,
            prefilled: None,
            from: None,
        })
    }

    pub(super) fn refused(refused: Refused) -> Attempt {
        match refused {
            Refused::Full => Attempt::Refuse(Rejected::Overloaded {
                retry_after: Duration::from_secs(1),
            }),
            Refused::Closed | Refused::Moved => Attempt::Again,
        }
    }

    /// Undoes a reservation that nobody took; who looked meanwhile is served now. A caller that
    /// holds the line serves it itself.
    pub(super) fn give_back(&self, reservation: Reservation<'_>, holds_line: bool, now: Timestamp) {
        if reservation.cancel() && !holds_line {
            self.serve(now);
        }
    }

    /// Tells that a turn was let in that asked for a place or for room.
    pub(super) fn admitted(&self, asking: &Asking, decoder: WorkerId, now: Timestamp) {
        let (key, waited) = (asking.key, now.since(asking.arrived));
        self.observers.tell(|| Event::Admitted {
            at: now,
            key,
            decoder,
            waited,
        });
    }

    /// Tells where a turn was placed.
    pub(super) fn placed(&self, grant: &Grant, now: Timestamp) {
        let Grant {
            key,
            decoder,
            prefiller,
            kind,
            reason,
            ..
        } = *grant;
        self.observers.tell(|| Event::Placed {
            at: now,
            key,
            prefiller,
            decoder,
            kind,
            reason,
        });
        if kind == TurnKind::Relocated {
            self.tally.own().relocated.add(1);
            let (from, to) = (grant.from, decoder);
            self.observers.tell(|| Event::Relocated {
                at: now,
                key,
                from,
                to,
            });
        }
    }

    pub(super) fn turn_started(
        &self,
        key: ConversationKey,
        decoder: WorkerId,
        turn: u32,
        kind: TurnKind,
        now: Timestamp,
    ) {
        self.observers.tell(|| Event::TurnStarted {
            at: now,
            key,
            decoder,
            turn,
            kind,
        });
    }

    /// Counts prompt tokens that a decoder is given to compute for itself, if the policy may ask about them.
    pub(super) fn computing(&self, decoder: &Worker, tokens: Tokens) -> Tokens {
        if self.sticky {
            return Tokens(0);
        }
        decoder.computing.add(u64::from(tokens.0));
        tokens
    }

    /// Notes what a conversation that is being placed finds everywhere, if the policy may ask about it.
    pub(super) fn note_work(&self) {
        if !self.sticky {
            let found = |worker: &Worker| worker.backlog.queued() + worker.own_prompts();
            self.fleet
                .for_each_live(|worker| worker.usual.observe(found(worker)));
        }
    }

    /// The fleet as a policy sees it.
    pub(crate) fn observed(&self, now: Timestamp) -> Observed {
        let mut workers = Vec::new();
        self.fleet
            .for_each_live(|worker| workers.push(view(worker, now)));
        Observed {
            workers,
            low_watermark: self.config.low_watermark,
            recomputed_share: self.recent.share_again(now),
            link_ms_per_token: self.link.ms_per_token(),
            shared_head: self.shared_head.get(),
        }
    }
}

fn view(worker: &Worker, now: Timestamp) -> WorkerView {
    let books = worker.occupancy.books();
    WorkerView {
        id: worker.id,
        role: worker.role,
        helps: worker.helps(),
        open: worker.is_open(),
        others_first: worker.misses.others_first(now),
        capacity: worker.capacity(),
        block_size: worker.block_size(),
        booked: books.booked,
        running: books.running,
        growth_waits: books.growth_waits,
        queued: worker.backlog.queued(),
        computing: worker.own_prompts(),
        usual: worker.usual.get(),
        backlog_limit: worker.backlog_limit,
        tokens_per_s: worker.throughput.get(),
        step_ms: worker.steps.get(),
        max_model_len: worker.max_model_len(),
    }
}
