//! One running turn, and where it runs.

use std::fmt;
use std::sync::{Arc, OnceLock};

use super::{Anchor, FailReason, Grant, Reason, TurnKind, Usage};
use crate::activity::Doing;
use crate::event::Event;
use crate::fleet::WorkerRef;
use crate::placement::TurnView;
use crate::router::grant::Queued;
use crate::router::settle::Prefilled;
use crate::units::{ConversationKey, Timestamp, Tokens, WorkerId};

/// Where a turn runs, and why.
#[derive(Debug, Clone, PartialEq)]
pub struct Route {
    /// Computes the prompt and hands the KV over; `None`: the decoder computes it.
    pub prefiller: Option<WorkerRef>,
    /// Holds the conversation.
    pub decoder: WorkerRef,
    /// Whether KV is handed over: a prefiller is named.
    pub handoff: bool,
    /// Counts the conversation's turns from 1.
    pub turn: u32,
    /// How the turn came to its decoder.
    pub kind: TurnKind,
    /// Why there.
    pub reason: Reason,
}

/// One running turn. It is settled exactly once: by [`Turn::finish`], by [`Turn::fail`], or, if it
/// is dropped, as failed (I7).
pub struct Turn {
    anchor: Arc<Anchor>,
    grant: Grant,
    settled: bool,
    /// Made when asked for: most turns only settle.
    route: OnceLock<Box<Route>>,
    latest: Timestamp,
}

impl fmt::Debug for Turn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Turn")
            .field("grant", &self.grant)
            .finish_non_exhaustive()
    }
}

impl Turn {
    pub(super) fn new(anchor: Arc<Anchor>, grant: Grant) -> Self {
        let latest = grant.started;
        Self {
            anchor,
            grant,
            settled: false,
            route: OnceLock::new(),
            latest,
        }
    }

    /// Its conversation.
    #[must_use]
    pub fn key(&self) -> ConversationKey {
        self.grant.key
    }

    /// Tokens of the prompt, as well as is known by now.
    #[must_use]
    pub fn prompt_tokens(&self) -> Tokens {
        self.grant.prompt
    }

    /// Where it runs.
    #[must_use]
    pub fn route(&self) -> &Route {
        self.route.get_or_init(|| {
            let grant = &self.grant;
            let refer = |id| self.anchor.fleet.worker(id).reference();
            Box::new(Route {
                prefiller: grant.prefiller.map(refer),
                decoder: refer(grant.decoder),
                handoff: grant.prefiller.is_some(),
                turn: grant.turn,
                kind: grant.kind,
                reason: grant.reason,
            })
        })
    }

    /// The prefiller is done and counted `prompt` tokens: the booking is made to fit, and the
    /// prompt no longer counts as queued.
    pub fn prefilled(&mut self, prompt: Tokens, now: Timestamp) {
        self.prefilled_after(prompt, Tokens(0), now);
    }

    /// The same from a prefiller that had `cached` tokens of the prompt and computed the others.
    pub fn prefilled_after(&mut self, prompt: Tokens, cached: Tokens, now: Timestamp) {
        self.latest = now;
        let grant = &mut self.grant;
        let done = Prefilled { prompt, cached };
        self.anchor.dequeue(grant, Some(done), now);
        // A decoder that computes prompts of its own is late with what comes over: that says nothing about the link.
        let decoder = self.anchor.fleet.worker(grant.decoder);
        let is_quiet = decoder.own_prompts() == Tokens(0) && decoder.backlog.queued() == Tokens(0);
        grant.prefilled = is_quiet.then_some(now);
        self.anchor.true_up(grant, prompt, now);
        let next = Some((grant.decoder, Doing::Decode));
        self.anchor.work(grant, next, now);
    }

    /// The decoder has the KV: the conversation is pinned there and turns that waited for it run.
    /// Also to be called at the first byte of a turn that needs no handoff; later calls do nothing.
    pub fn handed_over(&mut self, now: Timestamp) {
        self.latest = now;
        self.anchor.hand_over(&mut self.grant, now);
    }

    /// The prefiller failed: the next one that is not in `avoid`, with the same decoder. `None`:
    /// none is left, and the decoder computes the prompt itself. [`Turn::route`] tells the same.
    pub fn reprefill(&mut self, avoid: &[WorkerId], now: Timestamp) -> Option<WorkerRef> {
        self.latest = now;
        self.leave_prefiller(now);
        let anchor = Arc::clone(&self.anchor);
        let grant = &mut self.grant;
        let turn = TurnView {
            tie: grant.key.folded(),
            prompt: grant.prompt,
            home: Some(grant.decoder),
            resident: Tokens(0),
            returns: false,
        };
        let next = anchor
            .policy
            .next_prefiller(&turn, &anchor.observed(now), avoid);
        // A worker that is the decoder too needs no handoff to itself.
        let next = next.filter(|(id, _)| *id != grant.decoder);
        (grant.prefiller, grant.reason) = match next {
            Some((id, reason)) => (Some(id), reason),
            None => (None, Reason::NoPrefillerLeft),
        };
        self.route = OnceLock::new();
        let computes = grant.prefiller.unwrap_or(grant.decoder);
        anchor.work(grant, Some((computes, Doing::Prefill)), now);
        let prefiller = anchor.fleet.worker(grant.prefiller?);
        // The conversation is admitted already, so the backlog's limit is not asked.
        prefiller.backlog.try_add(grant.prompt, Tokens(u32::MAX));
        grant.queued = Some(Queued {
            prefiller: prefiller.id,
            tokens: grant.prompt,
            since: now,
        });
        Some(prefiller.reference())
    }

    /// The decoder computes the prompt itself, because of `reason`. No other prefiller is asked, and none is blamed.
    pub(crate) fn prefill_at_decoder(&mut self, reason: Reason, now: Timestamp) {
        self.latest = now;
        self.leave_prefiller(now);
        let grant = &mut self.grant;
        (grant.prefiller, grant.reason) = (None, reason);
        self.route = OnceLock::new();
        let computes = grant.decoder;
        self.anchor
            .work(grant, Some((computes, Doing::Prefill)), now);
    }

    /// KV that waits at the prefiller is an orphan; a prefiller that has not computed it missed a turn.
    fn leave_prefiller(&mut self, now: Timestamp) {
        let grant = &mut self.grant;
        self.anchor.forsake(grant, now);
        if let Some(queued) = &grant.queued {
            let prefiller = self.anchor.fleet.worker(queued.prefiller);
            prefiller.misses.missed(now);
        }
        self.anchor.dequeue(grant, None, now);
    }

    /// The client got its first token.
    pub fn first_token(&mut self, now: Timestamp) {
        self.latest = now;
        self.anchor.computed_at_home(&self.grant, now);
        self.generating(now);
        let grant = &mut self.grant;
        grant.first_token.get_or_insert(now);
        let (key, decoder, kind) = (grant.key, grant.decoder, grant.kind);
        let ttft = now.since(grant.arrived);
        self.anchor.observers.tell(|| Event::FirstToken {
            at: now,
            key,
            decoder,
            kind,
            ttft,
        });
    }

    /// The decoder generates: nothing is left to prefill, or nobody will see where the prefill ends.
    pub fn generating(&mut self, now: Timestamp) {
        self.latest = now;
        let next = Some((self.grant.decoder, Doing::Decode));
        self.anchor.work(&mut self.grant, next, now);
    }

    /// The client got `tokens` more, together.
    pub fn more_tokens(&mut self, tokens: u32, now: Timestamp) {
        self.latest = now;
        let grant = &mut self.grant;
        let before = grant.last_token.replace(now).or(grant.first_token);
        let Some(before) = before.filter(|_| tokens > 0) else {
            return;
        };
        let (key, decoder, gap) = (grant.key, grant.decoder, now.since(before));
        self.anchor.observers.tell(|| Event::MoreTokens {
            at: now,
            key,
            decoder,
            tokens,
            gap,
        });
    }

    /// At least `tokens` have come so far: they count as the decoder's work before the turn ends.
    pub fn generated(&mut self, tokens: Tokens) {
        let grant = &mut self.grant;
        let more = Tokens(tokens.0.saturating_sub(grant.counted.0));
        grant.counted = grant.counted + more;
        let decoder = self.anchor.fleet.worker(grant.decoder);
        decoder.activity.handled(Tokens(0), more);
    }

    /// The turn ended without a tool call, and its first user-visible token came at `at`. The
    /// conversation's first such turn gives its TTFET; later ones change nothing.
    pub fn effective(&mut self, at: Timestamp, now: Timestamp) {
        self.latest = now;
        let grant = &self.grant;
        let ttfet = at.since(grant.conversation.first_seen());
        if grant.conversation.record_ttfet(ttfet) {
            let (key, decoder) = (grant.key, grant.decoder);
            self.anchor.observers.tell(|| Event::Effective {
                at: now,
                key,
                decoder,
                ttfet,
            });
        }
    }

    /// The turn is complete. What the engine did not count is taken as estimated.
    pub fn finish(mut self, usage: Usage, now: Timestamp) {
        self.settled = true;
        self.anchor.finish(&mut self.grant, usage, now);
    }

    /// The turn did not complete: its growth is given back; a first turn that never reached its
    /// decoder leaves nothing.
    pub fn fail(mut self, why: FailReason, now: Timestamp) {
        self.settled = true;
        self.anchor.fail(&mut self.grant, why, now);
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if !self.settled {
            let now = self.latest.max(Timestamp(self.anchor.latest.get()));
            self.anchor.fail(&mut self.grant, FailReason::Dropped, now);
        }
    }
}
