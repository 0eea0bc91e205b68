//! The KV blocks of one engine: what each conversation holds, what is idle, who is evicted.
//!
//! Promises: used blocks are the sum of what conversations and shared prefixes hold, and never more than the
//! capacity; what a conversation holds is always a prefix of its history; idle KV is evicted from the tail
//! of the longest idle conversation.
//! Leaves to others: who needs blocks and what happens when there are none (`engine`).

use std::collections::BTreeMap;

use super::scenario::Retention;

/// What one conversation holds.
#[derive(Debug, Clone, Copy, Default)]
struct Held {
    /// Of its own; blocks of a shared prefix are not among them.
    blocks: u32,
    /// Computed tokens, shared prefix included.
    tokens: u32,
    /// The shared prefix that it builds on.
    prefix: Option<u32>,
    /// In use by a request, or by a handoff.
    active: bool,
    /// Its place among the idle.
    stamp: u64,
    /// Tokens that lie in host memory, counted from the start of the history.
    hosted: u32,
}

/// Blocks that several conversations build on.
#[derive(Debug, Clone, Copy, Default)]
struct Prefix {
    blocks: u32,
    /// Conversations that hold blocks after it.
    users: u32,
    stamp: u64,
    /// Where it stood among the idle before its one user came, until that user computed anything.
    place: Option<(u64, f64)>,
}

#[derive(Debug, Clone, Copy)]
enum Idle {
    Conversation(u32),
    Prefix(u32),
}

/// See the module.
#[derive(Debug)]
pub(super) struct Pool {
    block_size: u32,
    capacity: u32,
    used: u32,
    held: Vec<Held>,
    prefixes: Vec<Prefix>,
    /// By when they became idle; the time decides what a TTL still protects.
    idle: BTreeMap<u64, (f64, Idle)>,
    idle_blocks: u32,
    next: u64,
    retention: Retention,
    offloads: bool,
    pub(super) evicted_tokens: u64,
    /// Who lost how many blocks since somebody last asked.
    lost: Vec<(usize, u32)>,
}

impl Pool {
    pub(super) fn new(
        capacity: u32,
        block_size: u32,
        conversations: usize,
        prefixes: usize,
        retention: Retention,
        offloads: bool,
    ) -> Self {
        Self {
            block_size,
            capacity,
            used: 0,
            held: vec![Held::default(); conversations],
            prefixes: vec![Prefix::default(); prefixes],
            idle: BTreeMap::new(),
            idle_blocks: 0,
            next: 0,
            retention,
            offloads,
            evicted_tokens: 0,
            lost: Vec::new(),
        }
    }

    /// Who lost how many blocks since this was last asked.
    pub(super) fn take_lost(&mut self) -> Vec<(usize, u32)> {
        std::mem::take(&mut self.lost)
    }

    pub(super) fn capacity(&self) -> u32 {
        self.capacity
    }

    pub(super) fn used(&self) -> u32 {
        self.used
    }

    /// Blocks that requests and handoffs hold now.
    pub(super) fn active(&self) -> u32 {
        self.used - self.idle_blocks
    }

    /// Tokens of this conversation that are computed here.
    pub(super) fn tokens(&self, conversation: usize) -> u32 {
        self.held[conversation].tokens
    }

    /// Tokens of this conversation that host memory holds, from the start of its history.
    pub(super) fn hosted(&self, conversation: usize) -> u32 {
        self.held[conversation].hosted
    }

    /// Blocks that could be had: free ones, and idle ones that retention does not protect.
    pub(super) fn available(&self, now: f64) -> u32 {
        let free = self.capacity - self.used;
        free + match self.retention {
            Retention::Lru => self.idle_blocks,
            Retention::Pin => 0,
            Retention::Ttl { ttl_s } => {
                let old = self.idle.values().take_while(|(at, _)| at + ttl_s <= now);
                old.map(|(_, who)| self.idle_size(*who)).sum()
            }
        }
    }

    /// Whether so many blocks could be had, if need be with a shared prefix that nobody in use builds on: it goes once
    /// those that are idle have gone.
    pub(super) fn could_have(&self, blocks: u32, now: f64) -> bool {
        let available = self.available(now);
        if blocks <= available || self.prefixes.is_empty() || self.retention != Retention::Lru {
            return blocks <= available;
        }
        let mut used = vec![false; self.prefixes.len()];
        for held in self.held.iter().filter(|held| held.active) {
            if let Some(id) = held.prefix {
                used[id as usize] = true;
            }
        }
        let unused = self.prefixes.iter().zip(used);
        let unused = unused.filter(|(prefix, used)| !used && prefix.users > 0);
        blocks <= available + unused.map(|(prefix, _)| prefix.blocks).sum::<u32>()
    }

    /// When retention next lets go of something; `None` if time alone never does.
    pub(super) fn next_expiry(&self, now: f64) -> Option<f64> {
        let Retention::Ttl { ttl_s } = self.retention else {
            return None;
        };
        let ends = self.idle.values().map(|(at, _)| at + ttl_s);
        ends.filter(|end| *end > now).min_by(f64::total_cmp)
    }

    fn idle_size(&self, who: Idle) -> u32 {
        match who {
            Idle::Conversation(id) => self.held[id as usize].blocks,
            Idle::Prefix(id) => self.prefixes[id as usize].blocks,
        }
    }

    fn make_idle(&mut self, who: Idle, now: f64) -> u64 {
        self.next += 1;
        self.idle_blocks += self.idle_size(who);
        self.idle.insert(self.next, (now, who));
        self.next
    }

    fn unidle(&mut self, stamp: u64) {
        if let Some((_, who)) = self.idle.remove(&stamp) {
            self.idle_blocks -= self.idle_size(who);
        }
    }

    /// Takes the KV of a conversation into use, cut to the `valid` tokens of its history; `prefix` is the
    /// shared prefix that its prompt begins with, and how long that is. Returns the tokens found.
    pub(super) fn take(
        &mut self,
        conversation: usize,
        valid: u32,
        prefix: Option<(u32, u32)>,
        now: f64,
    ) -> u32 {
        let held = self.held[conversation];
        if held.stamp > 0 {
            self.unidle(held.stamp);
        }
        let held = &mut self.held[conversation];
        (held.active, held.stamp) = (true, 0);
        self.cut(conversation, valid, now);
        let held = self.held[conversation];
        if held.blocks == 0
            && held.prefix.is_none()
            && let Some((id, length)) = prefix
            && self.prefixes[id as usize].blocks > 0
        {
            let whole = self.prefixes[id as usize].blocks * self.block_size;
            if whole <= length {
                self.use_prefix(id);
                let held = &mut self.held[conversation];
                held.prefix = Some(id);
                held.tokens = whole;
            }
        }
        self.held[conversation].tokens
    }

    fn use_prefix(&mut self, id: u32) {
        let prefix = self.prefixes[id as usize];
        let mut place = None;
        if prefix.users == 0 && prefix.stamp > 0 {
            place = self
                .idle
                .get(&prefix.stamp)
                .map(|(at, _)| (prefix.stamp, *at));
            self.unidle(prefix.stamp);
        }
        let prefix = &mut self.prefixes[id as usize];
        prefix.stamp = 0;
        prefix.place = place;
        prefix.users += 1;
    }

    fn leave_prefix(&mut self, id: u32, now: f64) {
        self.prefixes[id as usize].users -= 1;
        if self.prefixes[id as usize].users == 0 {
            // Whoever only looked, and found no room, has not used it.
            let stamp = match self.prefixes[id as usize].place.take() {
                Some((stamp, at)) => {
                    self.idle_blocks += self.prefixes[id as usize].blocks;
                    self.idle.insert(stamp, (at, Idle::Prefix(id)));
                    stamp
                }
                None => self.make_idle(Idle::Prefix(id), now),
            };
            self.prefixes[id as usize].stamp = stamp;
        }
    }

    fn prefix_blocks(&self, held: &Held) -> u32 {
        held.prefix
            .map_or(0, |id| self.prefixes[id as usize].blocks)
    }

    /// Drops what lies behind the first `valid` tokens.
    fn cut(&mut self, conversation: usize, valid: u32, now: f64) {
        let held = self.held[conversation];
        if held.hosted > valid {
            self.held[conversation].hosted = valid;
        }
        if held.tokens <= valid {
            return;
        }
        let whole = valid / self.block_size;
        let shared = self.prefix_blocks(&held);
        if whole < shared {
            self.drop_kv(conversation, now);
            return;
        }
        let keep = (whole - shared).min(held.blocks);
        self.used -= held.blocks - keep;
        let held = &mut self.held[conversation];
        held.blocks = keep;
        held.tokens = held.tokens.min(whole * self.block_size);
    }

    fn drop_kv(&mut self, conversation: usize, now: f64) {
        let held = std::mem::take(&mut self.held[conversation]);
        self.used -= held.blocks;
        self.held[conversation].active = held.active;
        self.held[conversation].hosted = held.hosted;
        if let Some(id) = held.prefix {
            self.leave_prefix(id, now);
        }
    }

    /// Blocks that a conversation in use lacks to hold `tokens`.
    pub(super) fn lacks(&self, conversation: usize, tokens: u32) -> u32 {
        let held = &self.held[conversation];
        let have = held.blocks + self.prefix_blocks(held);
        tokens.div_ceil(self.block_size).saturating_sub(have)
    }

    /// Gives a conversation in use `blocks` more, evicting where needed; `false` if they cannot be had.
    pub(super) fn grow(&mut self, conversation: usize, blocks: u32, now: f64) -> bool {
        if !self.could_have(blocks, now) {
            return false;
        }
        let free = self.capacity - self.used;
        self.evict(blocks.saturating_sub(free), now);
        self.used += blocks;
        self.held[conversation].blocks += blocks;
        true
    }

    fn evict(&mut self, mut blocks: u32, now: f64) {
        while blocks > 0 {
            let Some((&stamp, &(_, who))) = self.idle.first_key_value() else {
                unreachable!("the caller asked what is available");
            };
            match who {
                Idle::Conversation(id) => {
                    blocks -= self.evict_tail(id as usize, stamp, blocks, now);
                }
                Idle::Prefix(id) => {
                    let prefix = &mut self.prefixes[id as usize];
                    let (gone, size) = (std::mem::take(prefix), self.block_size);
                    self.idle.remove(&stamp);
                    self.idle_blocks -= gone.blocks;
                    self.used -= gone.blocks;
                    self.evicted_tokens += u64::from(gone.blocks * size);
                    blocks = blocks.saturating_sub(gone.blocks);
                }
            }
        }
    }

    fn evict_tail(&mut self, id: usize, stamp: u64, most: u32, now: f64) -> u32 {
        let shared = self.prefix_blocks(&self.held[id]);
        let held = &mut self.held[id];
        let gone = held.blocks.min(most);
        let before = held.tokens;
        held.blocks -= gone;
        if gone > 0 {
            held.tokens = held.tokens.min((shared + held.blocks) * self.block_size);
        }
        if self.offloads {
            held.hosted = held.hosted.max(before);
        }
        self.evicted_tokens += u64::from(before - held.tokens);
        let empty = held.blocks == 0;
        self.used -= gone;
        self.idle_blocks -= gone;
        if gone > 0 {
            self.lost.push((id, gone));
        }
        if empty {
            self.idle.remove(&stamp);
            self.held[id].stamp = 0;
            self.drop_kv(id, now);
        }
        gone
    }

    /// `tokens` of a conversation in use are computed.
    pub(super) fn computed(&mut self, conversation: usize, tokens: u32) {
        self.held[conversation].tokens = tokens;
        if let Some(id) = self.held[conversation].prefix {
            self.prefixes[id as usize].place = None;
        }
    }

    /// The prompt of a conversation in use is computed: if nobody has its prefix of `length` tokens yet,
    /// others may build on it from now on.
    pub(super) fn share(&mut self, conversation: usize, id: u32, length: u32) {
        let whole = length / self.block_size;
        let held = &mut self.held[conversation];
        let prefix = &mut self.prefixes[id as usize];
        if prefix.blocks == 0 && held.prefix.is_none() && whole > 0 && held.blocks >= whole {
            *prefix = Prefix {
                blocks: whole,
                users: 1,
                stamp: 0,
                place: None,
            };
            held.blocks -= whole;
            held.prefix = Some(id);
        }
    }

    /// The conversation is no longer in use; what it holds may be evicted. Part of a block is no cache.
    pub(super) fn idle(&mut self, conversation: usize, now: f64) {
        let held = self.held[conversation];
        let shared = self.prefix_blocks(&held);
        let whole = held.tokens / self.block_size;
        let keep = whole.saturating_sub(shared).min(held.blocks);
        self.used -= held.blocks - keep;
        let held = &mut self.held[conversation];
        held.active = false;
        held.blocks = keep;
        held.tokens = held.tokens.min(whole * self.block_size);
        if keep == 0 {
            self.drop_kv(conversation, now);
        } else {
            let id = u32::try_from(conversation).expect("fewer than 2^32 conversations");
            let stamp = self.make_idle(Idle::Conversation(id), now);
            self.held[conversation].stamp = stamp;
        }
    }

    /// The conversation is no longer in use and leaves nothing.
    pub(super) fn forget(&mut self, conversation: usize, now: f64) {
        let stamp = self.held[conversation].stamp;
        if stamp > 0 {
            self.unidle(stamp);
        }
        self.drop_kv(conversation, now);
        self.held[conversation] = Held::default();
    }

    /// The history changed behind its first `valid` tokens: idle KV there is worth nothing. Whether blocks came free.
    pub(super) fn reset(&mut self, conversation: usize, valid: u32, now: f64) -> bool {
        let held = self.held[conversation];
        if held.active || held.tokens <= valid {
            return false;
        }
        let place = self.place(conversation);
        let found = self.take(conversation, valid, None, now);
        debug_assert!(found <= valid, "the tail was cut");
        self.idle(conversation, now);
        self.back_to(conversation, place);
        true
    }

    /// Where a conversation stands among the idle.
    pub(super) fn place(&self, conversation: usize) -> Option<(u64, f64)> {
        let stamp = self.held[conversation].stamp;
        self.idle.get(&stamp).map(|(at, _)| (stamp, *at))
    }

    /// Puts a conversation that is idle again where it stood before.
    pub(super) fn back_to(&mut self, conversation: usize, place: Option<(u64, f64)>) {
        let stamp = self.held[conversation].stamp;
        let Some((before, at)) = place else { return };
        if let Some((_, who)) = self.idle.remove(&stamp) {
            self.idle.insert(before, (at, who));
            self.held[conversation].stamp = before;
        }
    }

    /// Adds the books up; says what disagrees.
    pub(super) fn check(&self) -> Result<(), String> {
        let own: u32 = self.held.iter().map(|held| held.blocks).sum();
        let shared: u32 = self.prefixes.iter().map(|prefix| prefix.blocks).sum();
        let idle: u32 = self
            .idle
            .values()
            .map(|(_, who)| self.idle_size(*who))
            .sum();
        if own + shared != self.used || self.used > self.capacity || idle != self.idle_blocks {
            return Err(format!(
                "{own} own + {shared} shared blocks, {} used of {}, {idle} idle of {}",
                self.used, self.capacity, self.idle_blocks
            ));
        }
        for (id, held) in self.held.iter().enumerate() {
            let room = (held.blocks + self.prefix_blocks(held)) * self.block_size;
            if held.tokens > room || (!held.active && held.blocks > 0 && held.stamp == 0) {
                return Err(format!(
                    "conversation {id} has {} tokens in room for {room}",
                    held.tokens
                ));
            }
        }
        Ok(())
    }
}
