//! The store in Redis or Valkey: one limit over many nodes.
//!
//! A request's charges are decided by one script call where their keys lie on one server; on a
//! Cluster by one call for each slot, in parallel, and what was taken is given back if one denies.
//! What Redis does not answer within the deadline each limit settles as it says:
//! [`OnFailure`](crate::OnFailure).

mod request;
mod returns;

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::slice;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, mpsc};
use std::time::Duration;

use smallvec::SmallVec;
use tokio::sync::{oneshot, watch};
use tokio::time::timeout;
use tollgate_core::lua;
use tollgate_core::{ChargeId, Cost, Key, Limit, Logged, Timestamp, Value};

pub(crate) use self::request::Items;
use self::request::{Gathering, Told};
use self::returns::Change;
use super::bounds::START_PATIENCE;
use super::denials::Denials;
use super::fleet::{Fleet, OpenError, Servers};
use super::house::{self, House};
use super::leased::{Leased, Payment};
use super::names::Names;
use super::node::Health;
use super::script::Script;
use super::shares::Shares;
use super::words::Words;
use crate::asked::Asked;
use crate::charge::{Charge, Kept, Receipt, Taken};
use crate::clock::Clock;
use crate::enrolled::{Enrolled, TooManyLimits};
use crate::fingerprint::Fingerprint;
use crate::memory::MemoryStore;
use crate::store::{Answers, Claim, Origin};

pub(super) static TAKE: LazyLock<Script> = LazyLock::new(|| Script::new(lua::TAKE));
static REFUND: LazyLock<Script> = LazyLock::new(|| Script::new(lua::REFUND));
static SETTLE: LazyLock<Script> = LazyLock::new(|| Script::new(lua::SETTLE));

/// What is said of a limit that did not answer, to somebody whose request is over.
const UNKNOWN: Taken = Taken::Uncounted { is_allowed: true };

/// What is done when Redis does not decide.
pub(super) const SETTLED: &str = "limits are settled by on_store_failure";

/// Where a store in Redis is, and how it is used.
#[derive(Clone, Debug)]
pub struct RedisSettings {
    /// The servers.
    pub servers: Servers,
    /// How long a check may take.
    pub timeout: Duration,
    /// What every key begins with.
    pub prefix: String,
    /// How many nodes share the limits while Redis does not answer; those last seen if not said.
    pub nodes: Option<u32>,
}

/// Holds states in Redis and charges them. Cheap to clone: all clones are one store.
#[derive(Clone)]
pub struct RedisStore(pub(super) Arc<Inner>);

pub(super) struct Inner {
    pub(super) fleet: Arc<Fleet>,
    leased: Arc<Leased>,
    pub(super) prefix: String,
    /// Counts when Redis does not, and numbers the limits.
    local: MemoryStore,
    shares: Shares,
    denials: Denials,
    /// Whether the clock is a test's, and so told to the scripts; which then answer everything.
    pub(super) is_virtual: bool,
    pub(super) clock: Clock,
    /// The last charge's. It starts anywhere, so that no two nodes give the same.
    last_id: AtomicU64,
    /// Requests that were settled without Redis.
    settled: AtomicU64,
    /// Requests that this node denied by what Redis had said before.
    denied_again: AtomicU64,
    /// Releases that wait to be tried again.
    releases: AtomicUsize,
    /// How much is being given back at the moment.
    underway: Arc<watch::Sender<usize>>,
    /// How long a check may take.
    timeout: Duration,
    pub(super) house: House,
}

impl RedisStore {
    /// A store at the servers that `settings` name. That they cannot be reached is no error: until
    /// they can, every limit is settled as it says. Blocks for a round trip or two, for half a second
    /// at most.
    pub fn open(settings: RedisSettings) -> Result<Self, OpenError> {
        Self::with_clock(settings, Clock::system(), false)
    }

    /// The same with a clock that a test sets, and that the scripts go by.
    #[doc(hidden)]
    pub fn open_at(settings: RedisSettings, clock: Clock) -> Result<Self, OpenError> {
        Self::with_clock(settings, clock, true)
    }

    fn with_clock(
        settings: RedisSettings,
        clock: Clock,
        is_virtual: bool,
    ) -> Result<Self, OpenError> {
        let RedisSettings { servers, timeout, prefix, nodes } = settings;
        if prefix.contains(['{', '}']) {
            return Err(OpenError::Prefix { prefix });
        }
        let local = MemoryStore::new(clock.clone()).map_err(OpenError::Memory)?;
        let fleet = Arc::new(Fleet::open(&servers, timeout, &prefix)?);
        let inner = Arc::new(Inner {
            leased: Leased::new(&fleet, clock.clone(), is_virtual, timeout),
            fleet,
            house: House::new(&prefix, nodes),
            prefix,
            local,
            shares: Shares::default(),
            denials: Denials::default(),
            is_virtual,
            clock,
            last_id: AtomicU64::new(RandomState::new().hash_one(0u8) >> 1),
            settled: AtomicU64::new(0),
            denied_again: AtomicU64::new(0),
            releases: AtomicUsize::new(0),
            underway: Arc::default(),
            timeout,
        });
        let (told, heard) = mpsc::sync_channel(1);
        inner.fleet.spawn(house::keep(Arc::downgrade(&inner), told));
        // Before Redis has told what secrets are hashed with they cannot be counted there. Redis that
        // does not answer is not waited for any longer.
        let _ = heard.recv_timeout(START_PATIENCE);
        Ok(Self(inner))
    }

    /// Makes a limit known, so that it can be charged. Equal limits are one.
    pub fn enroll(&self, limit: Limit) -> Result<Enrolled, TooManyLimits> {
        self.0.local.enroll(limit)
    }

    /// Takes all of `charges`, or none if one that is enforced is denied.
    pub fn take(&self, charges: &[Charge<'_>]) -> Asked<Answers> {
        let inner = &self.0;
        let asked_at = inner.clock.now();
        let origin = Arc::new(Origin { items: inner.items(charges) });
        if let Some(taken) = inner.denied_before(&origin.items, asked_at) {
            inner.denied_again.fetch_add(1, Ordering::Relaxed);
            return Asked::Ready(Answers { taken, origin: Some(origin) });
        }
        let mut told = Told::new();
        told.resize(charges.len(), None);
        let parts = inner.send_all(&origin, &mut told);
        if parts.is_empty() {
            return Asked::Ready(inner.settle(origin, told, asked_at));
        }
        let must_end = parts.len() > 1 || told.iter().any(Option::is_some);
        let inner = Arc::clone(inner);
        let gathering = Gathering { inner, origin, parts, told, asked_at, must_end };
        Asked::later(gathering.end())
    }

    /// Takes each of `charges` on its own, whatever becomes of the others. They cannot be given back.
    pub fn take_each(&self, charges: &[Charge<'_>]) -> Asked<Answers> {
        let each: Vec<_> =
            charges.iter().map(|charge| self.take(slice::from_ref(charge))).collect();
        Asked::later(async {
            let mut all = Answers::default();
            for asked in each {
                for mut taken in asked.await.taken {
                    taken.take_receipt();
                    all.taken.push(taken);
                }
            }
            all
        })
    }

    /// Gives back `cost` units of what a key has consumed; see [`MemoryStore::credit`].
    pub fn credit(&self, charge: &Charge<'_>) -> Asked<Taken> {
        let inner = Arc::clone(&self.0);
        let mut items = inner.items(slice::from_ref(charge));
        items.list[0].mode = lua::Mode::Credit;
        if items.list[0].is_private {
            return Asked::Ready(UNKNOWN);
        }
        let asked_at = inner.clock.now();
        inner.denials.forget(items.list[0].key, asked_at);
        let slot = inner.fleet.slot(items.names.get(0).as_bytes());
        let origin = Arc::new(Origin { items });
        let part = inner.send(&origin, slot, SmallVec::from_slice(&[0]), inner.fleet.deadline());
        let (parts, told) = (SmallVec::from_iter([part]), Told::from_slice(&[None]));
        let mut gathering = Gathering { inner, origin, parts, told, asked_at, must_end: false };
        Asked::later(async move {
            gathering.gather().await;
            // What is not given back, since nobody answers, is at least not taken.
            gathering.told[0].unwrap_or(UNKNOWN)
        })
    }

    /// Gives back what a charge took and time has not given back already; a slot is released by it.
    /// False if nothing was left of it, nothing if Redis does not answer: then a slot comes back when
    /// it does, or when its lease ends. What a bucket paid from units taken in advance stays spent once
    /// Redis knows of it.
    pub fn refund(&self, claim: &Claim) -> Asked<Option<bool>> {
        match (claim.receipt.kept, &claim.origin) {
            (Kept::Redis, Some((origin, place))) => {
                self.0.give_back(&origin.items, *place, &claim.receipt)
            }
            (Kept::Lease, _) => {
                let Receipt { key, .. } = claim.receipt;
                self.0.denials.forget(key, self.0.clock.now());
                Asked::Ready(Some(self.0.leased.give_back(key, held(&claim.receipt))))
            }
            _ => Asked::Ready(Some(self.0.local.refund(&claim.receipt))),
        }
    }

    /// Brings a charge to what was really used; see [`Store::settle`](crate::Store::settle). Nobody
    /// knows what became of it if Redis does not answer: it is not sent twice.
    pub fn settle(&self, claim: &Claim, cost: Cost) -> Asked<Taken> {
        let inner = &self.0;
        let Claim { receipt, origin } = claim;
        let less = receipt.cost.units().saturating_sub(cost.units());
        match (receipt.kept, origin) {
            (Kept::Redis, Some((origin, place))) => {
                inner.send_settlement(origin, *place, receipt, cost)
            }
            (Kept::Lease, Some((origin, place))) if cost <= receipt.cost => {
                let back = Payment::Held { mark: receipt.mark, units: less };
                inner.leased.give_back(receipt.key, back);
                inner.look_at_leased(origin, *place)
            }
            (Kept::Lease, Some((origin, place))) => {
                // What the lease paid is paid. What is more may be more than it holds.
                let paid = Receipt { cost: Cost::PEEK, ..*receipt };
                let more = Cost::new(cost.units() - receipt.cost.units());
                inner.send_settlement(origin, *place, &paid, more)
            }
            _ => Asked::Ready(inner.local.settle(receipt, cost)),
        }
    }

    /// Starts the lease of a held slot anew; false if it has ended or was released, nothing if Redis
    /// does not answer.
    pub fn renew(&self, claim: &Claim) -> Asked<Option<bool>> {
        let Receipt { kept, mark, cost, .. } = claim.receipt;
        let (Kept::Redis, Some((origin, place))) = (kept, &claim.origin) else {
            return Asked::Ready(Some(self.0.local.renew(&claim.receipt)));
        };
        let Limit::Logged(limit) = &origin.items.list[*place].limit.limit else {
            return Asked::Ready(Some(false));
        };
        let renewal = lua::Return::Renew { limit, id: ChargeId(mark), held: cost };
        self.0.send_back(&origin.items, *place, &renewal)
    }

    /// Forgets what a key has consumed, here and in Redis; false if nothing was known of it, nothing if
    /// Redis does not answer.
    pub fn reset(&self, key: &Key<'_>) -> Asked<Option<bool>> {
        let inner = &self.0;
        let mut names = Names::default();
        names.push(&inner.prefix, &self.key_text(key));
        let name = names.get(0);
        let key = inner.known_by(name);
        inner.leased.forget(key);
        inner.local.reset(&local_key(&[Value::new(name.as_bytes())]));
        let words = ["UNLINK", name].into_iter().collect();
        let slot = inner.fleet.slot(name.as_bytes());
        inner.change(Change { script: None, words, slot, denied: Some(key), held_for: None })
    }

    /// What a key is known by in this process.
    pub(crate) fn fingerprint(&self, key: &Key<'_>) -> Fingerprint {
        let mut names = Names::default();
        names.push(&self.0.prefix, &self.key_text(key));
        self.0.known_by(names.get(0))
    }

    /// A key as it may be shown, written to the end of `text`.
    pub fn write_key_text(&self, key: &Key<'_>, text: &mut String) {
        self.0.house.write_key_text(key, &self.0.local, text);
    }

    /// The same as a text of its own.
    pub fn key_text(&self, key: &Key<'_>) -> String {
        let mut text = String::new();
        self.write_key_text(key, &mut text);
        text
    }

    /// This node's time, to tell clients when something will be. Decisions go by that of Redis.
    pub fn now(&self) -> Timestamp {
        self.0.clock.now()
    }

    pub(crate) fn clock(&self) -> &Clock {
        &self.0.clock
    }

    /// Gives back what this node took in advance and has not spent, and waits for what is being given
    /// back already, for as long as a check may take. To be called at the end: what is not given back
    /// comes back later, by itself.
    pub fn close(&self) -> Asked<()> {
        let (returned, longest) = (self.0.leased.return_all(), self.0.timeout);
        let mut underway = self.0.underway.subscribe();
        let (told, closed) = oneshot::channel();
        self.0.fleet.spawn(async move {
            // What takes longer may not come back at all.
            let _ = timeout(longest, underway.wait_for(|count| *count == 0)).await;
            returned.await;
            // Whoever went away does not want to know.
            let _ = told.send(());
        });
        Asked::later(async { closed.await.unwrap_or_default() })
    }

    /// Requests that were settled without Redis, so far.
    pub fn settled(&self) -> u64 {
        self.0.settled.load(Ordering::Relaxed)
    }

    /// Requests that were denied without asking Redis, which had denied the same key just before.
    pub fn denied_again(&self) -> u64 {
        self.0.denied_again.load(Ordering::Relaxed)
    }

    /// The store in memory that counts while Redis does not answer.
    pub fn local(&self) -> &MemoryStore {
        &self.0.local
    }

    /// Every server in figures.
    pub fn health(&self) -> Vec<Health> {
        self.0.fleet.health()
    }
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStore")
            .field("prefix", &self.0.prefix)
            .field("settled", &self.settled())
            .finish_non_exhaustive()
    }
}

impl Inner {
    /// What a state is known by on this node.
    fn known_by(&self, name: &str) -> Fingerprint {
        self.local.secret.fingerprint(&local_key(&[Value::new(name.as_bytes())]))
    }

    /// Tells a script the time if it is a test's; in earnest it asks its own server.
    fn push_now(&self, words: &mut Words) {
        if self.is_virtual {
            words.push_number(self.clock.now().as_micros());
        } else {
            words.push(b"");
        }
    }
}

/// What was paid from a lease.
fn held(receipt: &Receipt) -> Payment {
    Payment::Held { mark: receipt.mark, units: receipt.cost.units() }
}

fn is_concurrency(limit: &Limit) -> bool {
    matches!(limit, Limit::Logged(Logged::Concurrency(_)))
}

/// What a state is called in this node's memory: by its name in Redis, which is all that is left of a
/// key when the answer does not come.
fn local_key<'v>(name: &'v [Value<'v>]) -> Key<'v> {
    Key { limit: "", values: name }
}
