//! The router as one would write it first: maps, lists, everything counted again each time.
//!
//! It shares no code with the router. Booked blocks are not kept but summed up from conversations
//! and turns, so the accounting identity holds here by construction.

use std::collections::BTreeMap;

use crate::conversation::ConversationPhase as Phase;

pub(super) const BLOCK: u32 = 4;

pub(super) fn blocks(tokens: u32) -> u32 {
    tokens.div_ceil(BLOCK)
}

#[derive(Debug, Clone)]
pub(super) struct Settings {
    pub(super) prefill_limit: Option<u32>,
    pub(super) queue_limit: usize,
    pub(super) evict_idle: bool,
    pub(super) tail_waits: bool,
    pub(super) evict_idle_below: f64,
    pub(super) idle_s: u64,
}

#[derive(Debug, Clone)]
pub(super) struct Decoder {
    pub(super) capacity: u32,
    pub(super) draining: bool,
    pub(super) lost: bool,
}

impl Decoder {
    fn low(&self) -> u32 {
        self.capacity * 4 / 5
    }
}

#[derive(Debug, Clone)]
pub(super) struct Conversation {
    pub(super) key: u8,
    pub(super) phase: Phase,
    pub(super) decoder: Option<usize>,
    pub(super) blocks: u32,
    pub(super) turn: u32,
    pub(super) pinned_once: bool,
    pub(super) last_used: u64,
}

#[derive(Debug, Clone)]
pub(super) struct Turn {
    pub(super) conversation: usize,
    pub(super) decoder: usize,
    pub(super) reserved: u32,
    pub(super) prompt: u32,
    pub(super) places: bool,
    pub(super) queued: u32,
    pub(super) handed_over: bool,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Queue {
    Newcomers,
    Growth(usize),
    Followers,
}

#[derive(Debug, Clone)]
pub(super) struct Waiter {
    conversation: usize,
    prompt: u32,
    deadline: u64,
    pub(super) queue: Queue,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum No {
    Overloaded,
    TooLong,
    Draining,
    Workers,
    TimedOut,
    Closed,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Answer {
    Run(usize),
    Wait(usize),
    No(No),
}

enum Attempt {
    Run(Turn),
    Wait(Queue, No),
    No(No),
}

/// Which of equally good decoders the router took.
pub(super) type Oracle<'a> = &'a dyn Fn(u8) -> Option<usize>;

#[derive(Debug, Clone)]
pub(super) struct Naive {
    pub(super) settings: Settings,
    pub(super) now: u64,
    /// Of what was computed lately, the share that had been computed before, as the router counts it.
    pub(super) again: f64,
    pub(super) decoders: Vec<Decoder>,
    pub(super) conversations: Vec<Conversation>,
    pub(super) turns: BTreeMap<usize, Turn>,
    pub(super) waiters: BTreeMap<usize, Waiter>,
    pub(super) answered: BTreeMap<usize, Answer>,
    next: usize,
}

impl Naive {
    pub(super) fn new(settings: Settings, capacities: &[u32]) -> Self {
        let decoder = |capacity: &u32| Decoder {
            capacity: *capacity,
            draining: false,
            lost: false,
        };
        Self {
            settings,
            now: 1,
            again: 0.0,
            decoders: capacities.iter().map(decoder).collect(),
            conversations: Vec::new(),
            turns: BTreeMap::new(),
            waiters: BTreeMap::new(),
            answered: BTreeMap::new(),
            next: 0,
        }
    }

    pub(super) fn find(&self, key: u8) -> Option<usize> {
        self.conversations
            .iter()
            .position(|c| c.key == key && c.phase != Phase::Closed)
    }

    pub(super) fn running(&self, conversation: usize) -> usize {
        self.turns
            .values()
            .filter(|turn| turn.conversation == conversation)
            .count()
    }

    pub(super) fn in_flight(&self, conversation: usize) -> usize {
        let waiting = self
            .waiters
            .values()
            .filter(|w| w.conversation == conversation)
            .count();
        self.running(conversation) + waiting
    }

    pub(super) fn reserved(&self, decoder: usize) -> u32 {
        self.turns
            .values()
            .filter(|turn| turn.decoder == decoder)
            .map(|turn| turn.reserved)
            .sum()
    }

    pub(super) fn booked(&self, decoder: usize) -> u32 {
        let here = self
            .conversations
            .iter()
            .filter(|c| c.decoder == Some(decoder));
        here.map(|c| c.blocks).sum::<u32>() + self.reserved(decoder)
    }

    pub(super) fn queued(&self) -> u32 {
        self.turns.values().map(|turn| turn.queued).sum()
    }

    pub(super) fn waiting(&self, queue: impl Fn(Queue) -> bool) -> Vec<usize> {
        self.waiters
            .iter()
            .filter(|(_, w)| queue(w.queue))
            .map(|(id, _)| *id)
            .collect()
    }

    fn growth_waits(&self, decoder: usize) -> bool {
        self.waiters
            .values()
            .any(|waiter| waiter.queue == Queue::Growth(decoder))
    }

    fn id(&mut self) -> usize {
        self.next += 1;
        self.next
    }

    // Deciding.

    /// The best decoders for a prompt, or why there is none and which to evict from, best first.
    fn decide(&self, prompt: u32) -> Result<Vec<usize>, (No, Vec<usize>)> {
        let need = blocks(prompt);
        let open = || {
            (0..self.decoders.len()).filter(|d| {
                let decoder = &self.decoders[*d];
                !decoder.draining && !decoder.lost
            })
        };
        if open().next().is_none() {
            let draining = self.decoders.iter().any(|d| d.draining && !d.lost);
            return Err((
                if draining { No::Draining } else { No::Workers },
                Vec::new(),
            ));
        }
        let able: Vec<_> = open()
            .filter(|d| prompt <= self.decoders[*d].capacity * BLOCK)
            .collect();
        if able.is_empty() {
            return Err((No::TooLong, Vec::new()));
        }
        let fits = |d: &usize| {
            let booked = self.booked(*d);
            !self.growth_waits(*d) && (booked == 0 || booked + need <= self.decoders[*d].low())
        };
        let free = |d: usize| self.decoders[d].low().saturating_sub(self.booked(d));
        let fitting: Vec<_> = able.iter().copied().filter(fits).collect();
        if self
            .settings
            .prefill_limit
            .is_some_and(|limit| self.queued() >= limit)
        {
            return Err((No::Overloaded, Vec::new()));
        }
        let Some(most) = fitting.iter().map(|d| free(*d)).max() else {
            let lack = |d: &usize| (self.booked(*d) + need).saturating_sub(self.decoders[*d].low());
            let mut lacking = able;
            lacking.sort_by_key(lack);
            return Err((No::Overloaded, lacking));
        };
        Ok(fitting.into_iter().filter(|d| free(*d) == most).collect())
    }

    fn is_quiet(&self, decoder: usize) -> bool {
        self.turns.values().all(|turn| turn.decoder != decoder)
    }

    fn may_evict(&self, decoder: usize) -> bool {
        let rests = self.again > self.settings.evict_idle_below;
        self.settings.evict_idle && (!rests || self.is_quiet(decoder))
    }

    /// Those that hold something on a decoder and run nothing, the longest idle first.
    fn idle_on(&self, decoder: usize, asks: Option<usize>) -> Vec<usize> {
        let mut idle: Vec<_> = (0..self.conversations.len())
            .filter(|c| {
                let it = &self.conversations[*c];
                it.decoder == Some(decoder)
                    && it.phase == Phase::Pinned
                    && it.blocks > 0
                    && Some(*c) != asks
                    && (self.in_flight(*c) == 0 || self.is_quiet(decoder))
            })
            .collect();
        idle.sort_by_key(|c| (self.conversations[*c].last_used, self.conversations[*c].key));
        idle
    }

    /// Takes up to `lack` blocks from them; they stay pinned.
    fn shrink(&mut self, idle: &[usize], mut lack: u32) {
        for c in idle {
            let it = &mut self.conversations[*c];
            let taken = it.blocks.min(lack);
            it.blocks -= taken;
            lack -= taken;
        }
    }

    fn evict(
        &mut self,
        decoder: usize,
        need: u32,
        shared: u32,
        asks: Option<usize>,
        waited: bool,
    ) -> bool {
        let capacity = self.decoders[decoder].capacity;
        if need > capacity || (self.growth_waits(decoder) && !waited) {
            return false;
        }
        let booked = self.booked(decoder);
        let lack = if need <= shared {
            (booked + need).saturating_sub(shared)
        } else {
            booked
        };
        let idle = self.idle_on(decoder, asks);
        if idle
            .iter()
            .map(|c| self.conversations[*c].blocks)
            .sum::<u32>()
            < lack
        {
            return false;
        }
        if !self.settings.tail_waits {
            self.shrink(&idle, lack);
            return true;
        }
        let mut freed = 0;
        for c in idle {
            if freed >= lack {
                break;
            }
            freed += self.conversations[c].blocks;
            self.unpin(c);
        }
        true
    }

    fn unpin(&mut self, c: usize) {
        let it = &mut self.conversations[c];
        (it.phase, it.decoder, it.blocks) = (Phase::Unpinned, None, 0);
    }

    fn place(
        &mut self,
        c: Option<usize>,
        key: u8,
        prompt: u32,
        waited: bool,
        oracle: Oracle,
    ) -> Attempt {
        let held_up = !waited && !self.waiting(|queue| queue == Queue::Newcomers).is_empty();
        let mut decision = self.decide(prompt);
        if let Err((_, lacking)) = &decision
            && self.settings.evict_idle
            && !held_up
        {
            for d in lacking.clone() {
                if self.may_evict(d)
                    && self.evict(d, blocks(prompt), self.decoders[d].low(), c, false)
                {
                    break;
                }
            }
            decision = self.decide(prompt);
        }
        let best = match decision {
            Ok(_) if held_up => return Attempt::Wait(Queue::Newcomers, No::Overloaded),
            Ok(best) => best,
            Err((No::TooLong, _)) => return Attempt::No(No::TooLong),
            Err((no, _)) => return Attempt::Wait(Queue::Newcomers, no),
        };
        let decoder = oracle(key).expect("the router placed it too");
        assert!(
            best.contains(&decoder),
            "placed on d{decoder}, most free blocks have {best:?}"
        );
        let c = c.unwrap_or_else(|| self.open(key));
        let now = self.now;
        let it = &mut self.conversations[c];
        (it.phase, it.decoder, it.blocks) = (Phase::Placing, Some(decoder), 0);
        (it.turn, it.last_used) = (it.turn + 1, now);
        let queued = if self.settings.prefill_limit.is_some() {
            prompt
        } else {
            0
        };
        let reserved = blocks(prompt);
        Attempt::Run(Turn {
            conversation: c,
            decoder,
            reserved,
            prompt,
            places: true,
            handed_over: false,
            queued,
        })
    }

    fn open(&mut self, key: u8) -> usize {
        self.conversations.push(Conversation {
            key,
            phase: Phase::Placing,
            decoder: None,
            blocks: 0,
            turn: 0,
            pinned_once: false,
            last_used: self.now,
        });
        self.conversations.len() - 1
    }

    fn stays(&self, c: usize, decoder: usize, waited: bool) -> bool {
        let it = &self.decoders[decoder];
        !it.lost && (!it.draining || self.in_flight(c) > usize::from(waited))
    }

    fn run_at_home(&mut self, c: usize, decoder: usize, prompt: u32, waited: bool) -> Attempt {
        let capacity = self.decoders[decoder].capacity;
        if prompt > capacity * BLOCK {
            return Attempt::No(No::TooLong);
        }
        let growth = blocks(prompt).saturating_sub(self.conversations[c].blocks);
        let fits = |naive: &Self| {
            let overtakes = !waited && naive.growth_waits(decoder);
            growth == 0 || (!overtakes && naive.booked(decoder) + growth <= capacity)
        };
        if !fits(self) && self.settings.tail_waits && self.may_evict(decoder) {
            self.evict(decoder, growth, capacity, Some(c), waited);
        }
        let mut growth = growth;
        if !fits(self) && !self.settings.tail_waits {
            let lack = (self.booked(decoder) + growth).saturating_sub(capacity);
            let idle = self.idle_on(decoder, Some(c));
            self.shrink(&idle, lack);
            growth = growth.min(capacity - self.booked(decoder));
        } else if !fits(self) {
            return Attempt::Wait(Queue::Growth(decoder), No::Overloaded);
        }
        let it = &mut self.conversations[c];
        (it.turn, it.last_used) = (it.turn + 1, self.now);
        let (reserved, places, queued, handed_over) = (growth, false, 0, true);
        Attempt::Run(Turn {
            conversation: c,
            decoder,
            reserved,
            prompt,
            places,
            queued,
            handed_over,
        })
    }

    // Doing.

    pub(super) fn begin(
        &mut self,
        key: u8,
        prompt: u32,
        wait: Option<u64>,
        oracle: Oracle,
    ) -> Answer {
        let found = self.find(key);
        let attempt = match found.map(|c| (c, self.conversations[c].clone())) {
            None => self.place(None, key, prompt, false, oracle),
            Some((c, it)) => match (it.phase, it.decoder) {
                (Phase::Pinned, Some(d)) if self.stays(c, d, false) => {
                    self.run_at_home(c, d, prompt, false)
                }
                (Phase::Pinned | Phase::Unpinned, _) => {
                    self.place(found, key, prompt, false, oracle)
                }
                (_, Some(d)) if wait.is_none() && !self.decoders[d].lost => {
                    self.run_at_home(c, d, prompt, false)
                }
                _ => Attempt::Wait(Queue::Followers, No::Overloaded),
            },
        };
        let answer = match (attempt, wait) {
            (Attempt::Run(turn), _) => {
                let id = self.id();
                self.turns.insert(id, turn);
                Answer::Run(id)
            }
            (Attempt::No(no), _) | (Attempt::Wait(_, no), None) => Answer::No(no),
            (Attempt::Wait(queue, _), Some(wait)) => {
                let newcomers = self.waiting(|queue| queue == Queue::Newcomers).len();
                let standing = match queue {
                    Queue::Newcomers => newcomers,
                    _ => self.waiters.len() - newcomers,
                };
                if standing >= self.settings.queue_limit {
                    return Answer::No(No::Overloaded);
                }
                let c = found.unwrap_or_else(|| self.open(key));
                if queue == Queue::Newcomers {
                    let it = &mut self.conversations[c];
                    (it.phase, it.decoder, it.blocks) = (Phase::Placing, None, 0);
                }
                let id = self.id();
                let deadline = self.now + wait;
                self.waiters.insert(
                    id,
                    Waiter {
                        conversation: c,
                        prompt,
                        deadline,
                        queue,
                    },
                );
                self.pump(oracle);
                self.answered.remove(&id).unwrap_or(Answer::Wait(id))
            }
        };
        self.pump(oracle);
        answer
    }

    fn look(&mut self, id: usize, oracle: Oracle) -> bool {
        let waiter = self.waiters[&id].clone();
        let c = waiter.conversation;
        let it = self.conversations[c].clone();
        let attempt = match (it.phase, it.decoder) {
            (Phase::Closed, _) => Attempt::No(No::Closed),
            (Phase::Placing, None) if waiter.queue == Queue::Newcomers => {
                self.place(Some(c), it.key, waiter.prompt, true, oracle)
            }
            (Phase::Placing, _) => Attempt::Wait(Queue::Followers, No::Overloaded),
            (Phase::Pinned, Some(d)) if self.stays(c, d, true) => {
                self.run_at_home(c, d, waiter.prompt, true)
            }
            _ => {
                let it = &mut self.conversations[c];
                (it.phase, it.decoder, it.blocks) = (Phase::Placing, None, 0);
                Attempt::Wait(Queue::Newcomers, No::Overloaded)
            }
        };
        match attempt {
            Attempt::Run(turn) => {
                self.waiters.remove(&id);
                let turn_id = self.id();
                self.turns.insert(turn_id, turn);
                self.answered.insert(id, Answer::Run(turn_id));
            }
            Attempt::No(no) => {
                self.answered.insert(id, Answer::No(no));
                self.leave_line(id, oracle);
            }
            Attempt::Wait(queue, _) => {
                let same = queue == waiter.queue;
                self.waiters.get_mut(&id).expect("just read").queue = queue;
                return !same;
            }
        }
        true
    }

    /// A waiter goes without having run.
    fn leave_line(&mut self, id: usize, oracle: Oracle) {
        let Some(waiter) = self.waiters.remove(&id) else {
            return;
        };
        let c = waiter.conversation;
        let it = &self.conversations[c];
        let sought = waiter.queue == Queue::Newcomers && it.phase == Phase::Placing;
        if !sought {
            return;
        }
        if self.in_flight(c) == 0 && !it.pinned_once {
            self.end(c);
        } else {
            self.unpin(c);
            self.move_on(c, oracle);
        }
    }

    fn move_on(&mut self, c: usize, oracle: Oracle) {
        let closed = self.conversations[c].phase == Phase::Closed;
        for id in self.waiting(|_| true) {
            if let Some(waiter) = self.waiters.get(&id)
                && waiter.conversation == c
                && (closed || waiter.queue != Queue::Newcomers)
            {
                self.look(id, oracle);
            }
        }
    }

    pub(super) fn pump(&mut self, oracle: Oracle) {
        loop {
            let mut moved = false;
            for d in 0..self.decoders.len() {
                while let Some(id) = self.waiting(|queue| queue == Queue::Growth(d)).first() {
                    if !self.look(*id, oracle) {
                        break;
                    }
                    moved = true;
                }
            }
            while let Some(id) = self.waiting(|queue| queue == Queue::Newcomers).first() {
                if !self.look(*id, oracle) {
                    break;
                }
                moved = true;
            }
            if !moved {
                return;
            }
        }
    }

    fn end(&mut self, c: usize) {
        let it = &mut self.conversations[c];
        (it.phase, it.decoder, it.blocks) = (Phase::Closed, None, 0);
    }

    /// `again`: the share once the prompt is counted.
    pub(super) fn prefilled(&mut self, id: usize, prompt: u32, again: f64, oracle: Oracle) {
        self.again = again;
        let turn = self.turns.get_mut(&id).expect("a running turn");
        turn.queued = 0;
        // The queue was served before the booking is made to fit.
        self.pump(oracle);
        let turn = self.turns[&id].clone();
        // More than the decoder holds cannot be true.
        if prompt > self.decoders[turn.decoder].capacity * BLOCK {
            return;
        }
        let it = &self.conversations[turn.conversation];
        let held = if it.decoder == Some(turn.decoder) {
            it.blocks
        } else {
            0
        };
        let wanted = blocks(prompt).saturating_sub(held);
        let room = self.decoders[turn.decoder]
            .capacity
            .saturating_sub(self.booked(turn.decoder));
        let turn = self.turns.get_mut(&id).expect("a running turn");
        turn.reserved = wanted.min(turn.reserved + room);
        turn.prompt = prompt;
        self.pump(oracle);
    }

    fn on_decoder(&self, turn: &Turn) -> bool {
        let it = &self.conversations[turn.conversation];
        it.decoder == Some(turn.decoder) && matches!(it.phase, Phase::Placing | Phase::Pinned)
    }

    pub(super) fn hand_over(&mut self, id: usize, oracle: Oracle) {
        let turn = self.turns[&id].clone();
        self.turns.get_mut(&id).expect("a running turn").handed_over = true;
        if !turn.handed_over
            && self.on_decoder(&turn)
            && self.conversations[turn.conversation].phase == Phase::Placing
        {
            let it = &mut self.conversations[turn.conversation];
            it.blocks += turn.reserved;
            (it.phase, it.pinned_once) = (Phase::Pinned, true);
            self.turns.get_mut(&id).expect("a running turn").reserved = 0;
            self.move_on(turn.conversation, oracle);
        }
        self.pump(oracle);
    }

    /// `again`: the share once the turn is counted.
    pub(super) fn finish(&mut self, id: usize, output: u32, again: f64, oracle: Oracle) {
        self.turns.get_mut(&id).expect("a running turn").queued = 0;
        self.pump(oracle);
        self.again = again;
        let turn = self.turns.remove(&id).expect("a running turn");
        let c = turn.conversation;
        let alone = self.in_flight(c) == 0;
        let on = self.on_decoder(&turn);
        let room = self.decoders[turn.decoder]
            .capacity
            .saturating_sub(self.booked(turn.decoder));
        let it = &mut self.conversations[c];
        it.last_used = self.now;
        if on {
            let limit = self.decoders[turn.decoder].capacity * BLOCK;
            let told = Some(turn.prompt + output).filter(|told| *told <= limit);
            let actual = blocks(told.unwrap_or(turn.prompt));
            let target = if alone { actual } else { actual.max(it.blocks) };
            it.blocks = target.min(it.blocks + turn.reserved.max(room));
            let was_placing = it.phase == Phase::Placing;
            (it.phase, it.pinned_once) = (Phase::Pinned, true);
            if was_placing {
                self.move_on(c, oracle);
            }
        }
        self.pump(oracle);
    }

    pub(super) fn fail(&mut self, id: usize, lost: bool, oracle: Oracle) {
        self.turns.get_mut(&id).expect("a running turn").queued = 0;
        self.pump(oracle);
        let turn = self.turns.remove(&id).expect("a running turn");
        let c = turn.conversation;
        let brings = !turn.handed_over && self.conversations[c].phase == Phase::Placing;
        if self.on_decoder(&turn) && (brings || lost) {
            if brings && !self.conversations[c].pinned_once && self.in_flight(c) == 0 {
                self.end(c);
            } else {
                self.unpin(c);
                self.move_on(c, oracle);
            }
        }
        self.pump(oracle);
    }

    pub(super) fn close(&mut self, key: u8, oracle: Oracle) -> bool {
        let Some(c) = self.find(key) else {
            return false;
        };
        self.end(c);
        // What it held is offered to others before those that wait for it are refused.
        self.pump(oracle);
        self.move_on(c, oracle);
        self.pump(oracle);
        true
    }

    pub(super) fn relocate(&mut self, key: u8, oracle: Oracle) -> bool {
        let Some(c) = self.find(key) else {
            return false;
        };
        if self.conversations[c].phase != Phase::Pinned {
            return false;
        }
        self.unpin(c);
        self.pump(oracle);
        self.move_on(c, oracle);
        self.pump(oracle);
        true
    }

    pub(super) fn cancel(&mut self, id: usize, oracle: Oracle) {
        self.leave_line(id, oracle);
        self.pump(oracle);
    }

    pub(super) fn tick(&mut self, oracle: Oracle) {
        self.pump(oracle);
        for id in self.waiting(|_| true) {
            if self
                .waiters
                .get(&id)
                .is_some_and(|waiter| waiter.deadline <= self.now)
            {
                self.answered.insert(id, Answer::No(self.in_vain()));
                self.leave_line(id, oracle);
            }
        }
        self.pump(oracle);
    }

    /// What was missing: decoders, decoders that stay, or room.
    fn in_vain(&self) -> No {
        let mut live = self.decoders.iter().filter(|d| !d.lost).peekable();
        if live.peek().is_none() {
            No::Workers
        } else if live.all(|d| d.draining) {
            No::Draining
        } else {
            No::TimedOut
        }
    }

    pub(super) fn sweep(&mut self, oracle: Oracle) -> usize {
        let mut swept = 0;
        for c in 0..self.conversations.len() {
            let it = &self.conversations[c];
            let idle = it.phase != Phase::Closed && self.in_flight(c) == 0;
            if idle && self.now - it.last_used > self.settings.idle_s {
                self.end(c);
                swept += 1;
            }
        }
        self.pump(oracle);
        swept
    }
}
