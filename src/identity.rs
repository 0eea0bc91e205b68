//! Which conversation a request belongs to.
//!
//! Promises: tenants never meet, because every key is a keyed hash over the tenant too (I9); an
//! index that recognises a conversation by its history is bounded and forgets what was closed. A
//! wrong guess can cost speed, never correctness.
//! Leaves to others: reading ids and hashing messages (`dispatch`), the secret (the shell).

use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use papaya::{Compute, HashMap, Operation};
use siphasher::sip128::{Hasher128, SipHasher24};

use crate::event::{Event, Observer};
use crate::sync::Counter;
use crate::table::Spread;
pub use crate::units::{ConversationKey, TenantKey};

/// What the fingerprint index may hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IdentityLimits {
    /// Conversations with a fingerprint; more are not recorded.
    pub conversations: usize,
    /// Conversations remembered under one fingerprint.
    pub candidates: usize,
}

impl Default for IdentityLimits {
    fn default() -> Self {
        Self {
            conversations: 4_000_000,
            candidates: 8,
        }
    }
}

/// The two latest fingerprints of one conversation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Latest {
    now: u64,
    before: u64,
}

/// Conversations that have this fingerprint, oldest first.
type Candidates = Arc<[ConversationKey]>;

type Map<K, V> = HashMap<K, V, BuildHasherDefault<Spread>>;

/// Names conversations.
#[derive(Debug)]
pub struct Identity {
    secret: [u8; 16],
    limits: IdentityLimits,
    fresh: AtomicU64,
    by_fingerprint: Map<u64, Candidates>,
    by_conversation: Map<ConversationKey, Latest>,
    not_recorded: Counter,
}

impl Identity {
    /// Hashes under `secret`, which the shell draws once.
    #[must_use]
    pub fn new(secret: [u8; 16], limits: IdentityLimits) -> Self {
        Self {
            secret,
            limits,
            fresh: AtomicU64::new(0),
            by_fingerprint: Map::default(),
            by_conversation: Map::default(),
            not_recorded: Counter::default(),
        }
    }

    /// A keyed hash; `domain` keeps hashes for different purposes apart.
    fn hash(&self, domain: u8, scope: u128, content: &[u8]) -> u128 {
        let mut hasher = SipHasher24::new_with_key(&self.secret);
        hasher.write(&[domain]);
        hasher.write(&scope.to_le_bytes());
        hasher.write(content);
        hasher.finish128().as_u128()
    }

    /// The tenant that presents this credential; without one, the anonymous tenant.
    #[must_use]
    pub fn tenant(&self, credential: Option<&[u8]>) -> TenantKey {
        match credential {
            Some(credential) => TenantKey(self.hash(0, 1, credential)),
            None => TenantKey(self.hash(0, 0, b"")),
        }
    }

    /// The conversation that this tenant calls `id`.
    ///
    /// ```
    /// use conserve::identity::{Identity, IdentityLimits};
    /// let identity = Identity::new([7; 16], IdentityLimits::default());
    /// let (a, b) = (identity.tenant(Some(b"key-a")), identity.tenant(Some(b"key-b")));
    /// assert_ne!(identity.explicit(a, b"task-42"), identity.explicit(b, b"task-42"));
    /// ```
    #[must_use]
    pub fn explicit(&self, tenant: TenantKey, id: &[u8]) -> ConversationKey {
        ConversationKey(self.hash(1, tenant.0, id))
    }

    /// A key for a conversation that nobody named; never given twice.
    #[must_use]
    pub fn fresh(&self, tenant: TenantKey) -> ConversationKey {
        // Relaxed: a counter; guards no memory.
        let number = self.fresh.fetch_add(1, Ordering::Relaxed);
        ConversationKey(self.hash(2, tenant.0, &number.to_le_bytes()))
    }

    fn fingerprint(&self, tenant: TenantKey, history: u128) -> u64 {
        #[expect(clippy::cast_possible_truncation, reason = "half of a hash is a hash")]
        let fingerprint = self.hash(3, tenant.0, &history.to_le_bytes()) as u64;
        fingerprint
    }

    /// The conversation whose history a request continues.
    ///
    /// `prefixes` are hashes of `messages[..k]` at each boundary before an assistant message,
    /// longest first.
    #[must_use]
    pub fn recognise(&self, tenant: TenantKey, prefixes: &[u128]) -> Option<ConversationKey> {
        self.recognise_idle(tenant, prefixes, |_| false)
    }

    /// The same, preferring conversations without a turn in flight: of several with the same
    /// history, one that waits for its client is the likelier one to be continued.
    #[must_use]
    pub fn recognise_idle(
        &self,
        tenant: TenantKey,
        prefixes: &[u128],
        is_busy: impl Fn(ConversationKey) -> bool,
    ) -> Option<ConversationKey> {
        let (candidates, latest) = (self.by_fingerprint.pin(), self.by_conversation.pin());
        prefixes.iter().find_map(|prefix| {
            let fingerprint = self.fingerprint(tenant, *prefix);
            let keys = candidates.get(&fingerprint)?;
            // The first of the best, so the oldest: the order is the same for the same inputs.
            keys.iter().copied().min_by_key(|key| {
                let is_latest = latest
                    .get(key)
                    .is_some_and(|latest| latest.now == fingerprint);
                (!is_latest, is_busy(*key))
            })
        })
    }

    /// Records that the conversation's history is now `whole`; all but its two latest fingerprints
    /// are forgotten. Called when a turn begins.
    pub fn remember(&self, tenant: TenantKey, whole: u128, key: ConversationKey) {
        let fingerprint = self.fingerprint(tenant, whole);
        let conversations = self.by_conversation.pin();
        if self.by_conversation.len() >= self.limits.conversations
            && !conversations.contains_key(&key)
        {
            self.not_recorded.add(1);
            return;
        }
        let outcome = conversations.compute(key, |found| match found {
            Some((_, latest)) if latest.now == fingerprint => Operation::Abort(()),
            Some((_, latest)) => Operation::Insert(Latest {
                now: fingerprint,
                before: latest.now,
            }),
            None => Operation::Insert(Latest {
                now: fingerprint,
                before: fingerprint,
            }),
        });
        match outcome {
            Compute::Inserted(..) => self.list(fingerprint, key),
            Compute::Updated { old: (_, old), .. } => {
                self.list(fingerprint, key);
                if old.before != old.now && old.before != fingerprint {
                    self.unlist(old.before, key);
                }
            }
            Compute::Removed(..) | Compute::Aborted(()) => {}
        }
    }

    /// Forgets a conversation.
    pub fn forget(&self, key: ConversationKey) {
        let removed = self.by_conversation.pin().remove(&key).copied();
        if let Some(latest) = removed {
            self.unlist(latest.now, key);
            if latest.before != latest.now {
                self.unlist(latest.before, key);
            }
        }
    }

    /// Conversations that can be recognised.
    #[must_use]
    pub fn len(&self) -> usize {
        self.by_conversation.len()
    }

    /// Whether none can.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.by_conversation.is_empty()
    }

    /// Conversations that were not recorded because the index was full.
    #[must_use]
    pub fn not_recorded(&self) -> u64 {
        self.not_recorded.get()
    }

    fn list(&self, fingerprint: u64, key: ConversationKey) {
        let most = self.limits.candidates.max(1);
        self.by_fingerprint
            .pin()
            .compute(fingerprint, |found| match found {
                Some((_, keys)) if keys.contains(&key) => Operation::Abort(()),
                Some((_, keys)) => {
                    let kept = &keys[keys.len().saturating_sub(most - 1)..];
                    Operation::Insert(kept.iter().copied().chain([key]).collect())
                }
                None => Operation::Insert(Arc::from([key])),
            });
    }

    fn unlist(&self, fingerprint: u64, key: ConversationKey) {
        let map = self.by_fingerprint.pin();
        // A map that only `compute` fills and empties never drops the tables that it outgrew (papaya
        // 0.2.5: 1 ms for each of 100,000 entries that came and went), so the usual case uses `remove_if`.
        if let Ok(Some(_) | None) = map.remove_if(&fingerprint, |_, keys| **keys == [key]) {
            return;
        }
        map.compute(fingerprint, |found| match found {
            Some((_, keys)) if **keys == [key] => Operation::Remove,
            Some((_, keys)) if keys.contains(&key) => {
                Operation::Insert(keys.iter().copied().filter(|other| *other != key).collect())
            }
            Some(_) | None => Operation::Abort(()),
        });
    }
}

impl Observer for Identity {
    fn on(&self, event: &Event) {
        if let Event::Closed { key, .. } = event {
            self.forget(*key);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn identity(candidates: usize, conversations: usize) -> (Identity, TenantKey) {
        let identity = Identity::new(
            [1; 16],
            IdentityLimits {
                conversations,
                candidates,
            },
        );
        let tenant = identity.tenant(None);
        (identity, tenant)
    }

    #[test]
    fn names_are_scoped_by_tenant_and_by_secret() {
        let (one, anonymous) = identity(4, 100);
        let other = Identity::new([2; 16], IdentityLimits::default());
        let empty = one.tenant(Some(b""));
        assert_ne!(
            anonymous, empty,
            "an empty credential is not the lack of one"
        );
        assert_eq!(one.explicit(empty, b"x"), one.explicit(empty, b"x"));
        assert_ne!(one.explicit(empty, b"x"), one.explicit(anonymous, b"x"));
        assert_ne!(
            one.explicit(anonymous, b"x"),
            other.explicit(other.tenant(None), b"x")
        );
        assert_ne!(one.fresh(anonymous), one.fresh(anonymous));
    }

    #[test]
    fn the_longest_known_prefix_wins() {
        let (identity, tenant) = identity(4, 100);
        let (a, b) = (identity.fresh(tenant), identity.fresh(tenant));
        identity.remember(tenant, 10, a);
        identity.remember(tenant, 20, b);
        assert_eq!(identity.recognise(tenant, &[30, 20, 10]), Some(b));
        assert_eq!(identity.recognise(tenant, &[30, 10]), Some(a));
        assert_eq!(identity.recognise(tenant, &[30]), None);
        let stranger = identity.tenant(Some(b"other"));
        assert_eq!(
            identity.recognise(stranger, &[10, 20]),
            None,
            "tenants never meet"
        );
    }

    #[test]
    fn equal_first_prompts_are_told_apart_by_who_is_at_it() {
        let (identity, tenant) = identity(4, 100);
        let (a, b) = (identity.fresh(tenant), identity.fresh(tenant));
        identity.remember(tenant, 1, a);
        identity.remember(tenant, 1, b);
        assert_eq!(identity.recognise(tenant, &[1]), Some(a));
        assert_eq!(
            identity.recognise_idle(tenant, &[1], |key| key == a),
            Some(b),
            "a is busy"
        );
        identity.remember(tenant, 2, a);
        assert_eq!(identity.recognise(tenant, &[1]), Some(b), "a has gone on");
    }

    #[test]
    fn two_fingerprints_are_kept_for_each_conversation() {
        let (identity, tenant) = identity(4, 100);
        let key = identity.fresh(tenant);
        for whole in 1..=3 {
            identity.remember(tenant, whole, key);
        }
        assert_eq!(identity.recognise(tenant, &[1]), None, "two turns ago");
        assert_eq!(
            identity.recognise(tenant, &[2]),
            Some(key),
            "a repeated turn"
        );
        assert_eq!(identity.recognise(tenant, &[3]), Some(key));
        assert_eq!(identity.by_fingerprint.len(), 2);
    }

    #[test]
    fn the_index_is_bounded_and_forgets() {
        let (identity, tenant) = identity(2, 3);
        let keys: Vec<_> = (0..4).map(|_| identity.fresh(tenant)).collect();
        for key in &keys {
            identity.remember(tenant, 1, *key);
        }
        assert_eq!((identity.len(), identity.not_recorded()), (3, 1));
        let listed: Vec<_> = identity
            .by_fingerprint
            .pin()
            .values()
            .flat_map(|k| k.to_vec())
            .collect();
        assert_eq!(listed, keys[1..3], "the two latest candidates");
        for key in &keys {
            identity.forget(*key);
        }
        assert!(
            identity.is_empty() && identity.by_fingerprint.is_empty(),
            "nothing leaks"
        );
    }
}
