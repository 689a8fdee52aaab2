//! Where states are kept: one of the stores there are.

use std::sync::Arc;

use smallvec::SmallVec;
use tollgate_core::{Cost, Decision, Key, Limit, Timestamp};

use crate::asked::Asked;
use crate::charge::{Charge, Receipt, Taken};
use crate::clock::Clock;
use crate::enrolled::{Enrolled, TooManyLimits};
use crate::fingerprint::{Fingerprint, Named};
use crate::memory::MemoryStore;
#[cfg(feature = "redis")]
use crate::redis::RedisStore;

/// Holds states and charges them. The set of stores is ours, so this is no trait: a match is
/// readable, and the memory store's quick paths stay visible to who wants them.
#[derive(Clone, Debug)]
pub enum Store {
    /// In this process's memory: every answer is [`Asked::Ready`].
    Memory(Arc<MemoryStore>),
    /// In Redis or Valkey: an answer is nearly always [`Asked::Waiting`].
    #[cfg(feature = "redis")]
    Redis(RedisStore),
}

/// Charges of one request that need no allocation.
pub(crate) const INLINE: usize = 8;

/// What a store said to some charges, in their order.
#[derive(Clone, Debug, Default)]
pub struct Answers {
    pub(crate) taken: SmallVec<[Taken; INLINE]>,
    pub(crate) origin: Option<Arc<Origin>>,
}

/// What it takes to find the states of a request again, where a receipt alone does not tell: their
/// names in Redis.
#[derive(Debug)]
pub struct Origin {
    #[cfg(feature = "redis")]
    pub(crate) items: crate::redis::Items,
}

impl Answers {
    /// What it said to each.
    pub fn taken(&self) -> &[Taken] {
        &self.taken
    }

    /// What [`Claim::new`] takes.
    pub fn origin(&self) -> Option<&Arc<Origin>> {
        self.origin.as_ref()
    }
}

/// Names one charge wherever it was made, so that it can be given back, once.
#[derive(Clone, Debug)]
pub struct Claim {
    pub(crate) receipt: Receipt,
    /// Memory finds a charge by its receipt alone.
    #[cfg_attr(not(feature = "redis"), expect(dead_code))]
    pub(crate) origin: Option<(Arc<Origin>, usize)>,
}

impl Claim {
    /// The charge that `receipt` is of, which was at `place` among those that `origin` came with.
    pub fn new(receipt: Receipt, origin: Option<&Arc<Origin>>, place: usize) -> Self {
        Self { receipt, origin: origin.map(|origin| (Arc::clone(origin), place)) }
    }

    /// How much was charged.
    pub fn cost(&self) -> Cost {
        self.receipt.cost
    }
}

impl Store {
    /// The memory store, if it is that: what it alone can do, or does faster.
    #[inline]
    pub fn memory(&self) -> Option<&Arc<MemoryStore>> {
        match self {
            Self::Memory(store) => Some(store),
            #[cfg(feature = "redis")]
            Self::Redis(_) => None,
        }
    }

    /// The store in Redis, if this is it.
    #[cfg(feature = "redis")]
    pub fn redis(&self) -> Option<&RedisStore> {
        match self {
            Self::Memory(_) => None,
            Self::Redis(store) => Some(store),
        }
    }

    /// Makes a limit known, so that it can be charged. Equal limits are one.
    pub fn enroll(&self, limit: Limit) -> Result<Enrolled, TooManyLimits> {
        match self {
            Self::Memory(store) => store.enroll(limit),
            #[cfg(feature = "redis")]
            Self::Redis(store) => store.enroll(limit),
        }
    }

    /// The name of a limit as the keys of this store begin with it, if that saves its charges time.
    pub fn named(&self, limit: &str) -> Option<Named> {
        match self {
            Self::Memory(store) => Some(store.named(limit)),
            #[cfg(feature = "redis")]
            Self::Redis(_) => None,
        }
    }

    /// Takes all of `charges`, or none if one that is enforced is denied.
    pub fn take(&self, charges: &[Charge<'_>]) -> Asked<Answers> {
        match self {
            Self::Memory(store) => {
                Asked::Ready(Answers { taken: store.take(charges), origin: None })
            }
            #[cfg(feature = "redis")]
            Self::Redis(store) => store.take(charges),
        }
    }

    /// Takes each of `charges` on its own, whatever becomes of the others.
    pub fn take_each(&self, charges: &[Charge<'_>]) -> Asked<Answers> {
        match self {
            Self::Memory(store) => {
                let mut answers = Answers::default();
                store.take_each(charges, |taken| answers.taken.push(taken));
                Asked::Ready(answers)
            }
            #[cfg(feature = "redis")]
            Self::Redis(store) => store.take_each(charges),
        }
    }

    /// Gives back `cost` units of what a key has consumed; see [`MemoryStore::credit`].
    pub fn credit(&self, charge: &Charge<'_>) -> Asked<Taken> {
        match self {
            Self::Memory(store) => Asked::Ready(store.credit(charge)),
            #[cfg(feature = "redis")]
            Self::Redis(store) => store.credit(charge),
        }
    }

    /// Gives back what a charge took and time has not given back already; a lease is released by
    /// it. False if nothing was left of it, nothing if nobody can tell.
    pub fn refund(&self, claim: &Claim) -> Asked<Option<bool>> {
        match self {
            Self::Memory(store) => Asked::Ready(Some(store.refund(&claim.receipt))),
            #[cfg(feature = "redis")]
            Self::Redis(store) => store.refund(claim),
        }
    }

    /// Brings a charge to what was really used, and tells what its limit says then, as to a peek. What
    /// was used less is given back, as far as time has not done so already; what was used more is
    /// charged now, past the end of the limit if need be. Of one claim, call it once.
    ///
    /// It is made under the quota that the state is in. If the algorithm has changed since, the state
    /// started afresh and is left alone; then, and if nobody can tell, the answer is
    /// [`Taken::Uncounted`].
    pub fn settle(&self, claim: &Claim, cost: Cost) -> Asked<Taken> {
        match self {
            Self::Memory(store) => Asked::Ready(store.settle(&claim.receipt, cost)),
            #[cfg(feature = "redis")]
            Self::Redis(store) => store.settle(claim, cost),
        }
    }

    /// Starts the lease of a held slot anew; false if it has ended or was released, nothing if nobody
    /// can tell.
    pub fn renew(&self, claim: &Claim) -> Asked<Option<bool>> {
        match self {
            Self::Memory(store) => Asked::Ready(Some(store.renew(&claim.receipt))),
            #[cfg(feature = "redis")]
            Self::Redis(store) => store.renew(claim),
        }
    }

    /// Forgets what a key has consumed; false if nothing was known of it, nothing if nobody can tell.
    pub fn reset(&self, key: &Key<'_>) -> Asked<Option<bool>> {
        match self {
            Self::Memory(store) => Asked::Ready(Some(store.reset(key))),
            #[cfg(feature = "redis")]
            Self::Redis(store) => store.reset(key),
        }
    }

    /// The number that [`Taken::counted`] tells of a key.
    pub fn key_number(&self, key: &Key<'_>) -> u64 {
        self.fingerprint(key).number()
    }

    /// What somebody else decided about a key, so that the store is not asked and nothing is charged.
    pub fn decided_without(&self, key: &Key<'_>, limit: &Enrolled, decision: Decision) -> Taken {
        let receipt = Receipt::of_nothing(self.fingerprint(key), limit.number);
        Taken::Decided { decision, receipt }
    }

    fn fingerprint(&self, key: &Key<'_>) -> Fingerprint {
        match self {
            Self::Memory(store) => store.secret.fingerprint(key),
            #[cfg(feature = "redis")]
            Self::Redis(store) => store.fingerprint(key),
        }
    }

    /// A key as it may be shown, written to the end of `text`: secret values as a hash that only
    /// this store can make.
    pub fn write_key_text(&self, key: &Key<'_>, text: &mut String) {
        match self {
            Self::Memory(store) => store.write_key_text(key, text),
            #[cfg(feature = "redis")]
            Self::Redis(store) => store.write_key_text(key, text),
        }
    }

    /// The same as a text of its own.
    pub fn key_text(&self, key: &Key<'_>) -> String {
        let mut text = String::new();
        self.write_key_text(key, &mut text);
        text
    }

    /// Gives back what was taken in advance and not spent, at the end.
    pub fn close(&self) -> Asked<()> {
        match self {
            Self::Memory(_) => Asked::Ready(()),
            #[cfg(feature = "redis")]
            Self::Redis(store) => store.close(),
        }
    }

    /// What time it is for all that share this store: by this, what an operator allows for a while
    /// ends everywhere at once.
    pub fn shared_now(&self) -> Timestamp {
        match self {
            Self::Memory(store) => store.now(),
            #[cfg(feature = "redis")]
            Self::Redis(store) => store.shared_now(),
        }
    }

    /// What this node measures time by.
    #[inline]
    pub fn clock(&self) -> &Clock {
        match self {
            Self::Memory(store) => &store.clock,
            #[cfg(feature = "redis")]
            Self::Redis(store) => store.clock(),
        }
    }

    /// What time it is, to tell clients when something will be.
    pub fn now(&self) -> Timestamp {
        match self {
            Self::Memory(store) => store.now(),
            #[cfg(feature = "redis")]
            Self::Redis(store) => store.now(),
        }
    }
}

impl From<Arc<MemoryStore>> for Store {
    fn from(store: Arc<MemoryStore>) -> Self {
        Self::Memory(store)
    }
}

impl From<MemoryStore> for Store {
    fn from(store: MemoryStore) -> Self {
        Self::Memory(Arc::new(store))
    }
}

#[cfg(feature = "redis")]
impl From<RedisStore> for Store {
    fn from(store: RedisStore) -> Self {
        Self::Redis(store)
    }
}
