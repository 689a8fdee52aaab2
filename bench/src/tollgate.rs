//! tollgate: the memory store alone, one by one and in batches, and the whole limiter.

use std::sync::Arc;

use ::tollgate::{Clock, Limiter, MemoryStore, Policy, Request};
use tollgate_core::{Key, Limit, Micros, Quota, Value};
use tollgate_store::{Charge, Enrolled, Named};

use crate::contender::{Contender, QUOTA_COUNT, QUOTA_SECONDS};
use crate::policy::{APPLY, LIMITS, METHOD, PATH, TIER};

/// Room for ten million keys, and for the three states of each of a million users.
const MAX_BYTES: usize = 1 << 30;

/// tollgate forgets a bucket that is full again, and the common quota refills one unit in four
/// microseconds. So slow a refill keeps every key in memory, as the others do.
const BUCKET: (Quota, u32) = (Quota::per_day(1_000), 30_000_000);

const BATCH: usize = 32;

pub fn build_token_bucket(keys: &[String]) -> Box<dyn Contender> {
    let keyed = Arc::new(Keyed::new(token_bucket(), keys));
    Box::new(Both { batch: Batch(Arc::clone(&keyed)), keyed })
}

pub fn build_sliding_window(keys: &[String]) -> Box<dyn Contender> {
    let period = Micros::from_secs(u64::from(QUOTA_SECONDS));
    let quota = Quota::new(QUOTA_COUNT, period).expect("an hour is a period");
    Box::new(Keyed::new(Limit::sliding_window(quota), keys))
}

pub fn build_policy(users: &[String]) -> Box<dyn Contender> {
    let applying = [
        format!("when: {{method: {METHOD}}}"),
        format!("when: {{path: {PATH}}}"),
        format!("when: {{tier: {TIER}}}"),
    ];
    let others = (APPLY..LIMITS).map(|n| format!("when: {{path: /v1/resource-{n}}}"));
    let mut yaml = String::from("limits:\n");
    for (number, when) in applying.into_iter().chain(others).enumerate() {
        let rate = format!("{QUOTA_COUNT}/{QUOTA_SECONDS}s");
        yaml += &format!("  - {{name: limit-{number}, {when}, per: [user], rate: {rate}}}\n");
    }
    let no_files = |_: &str| Err(String::from("this policy needs no other file"));
    let policy = Policy::parse("bench", &yaml, &mut { no_files }).expect("a valid policy");
    let limiter = Limiter::new(policy, Arc::new(store())).expect("few limits");
    let whole = Whole(limiter);
    assert_eq!(whole.decide_all(users), users.len());
    Box::new(whole)
}

fn store() -> MemoryStore {
    MemoryStore::with_max_bytes(Clock::system(), MAX_BYTES).expect("a gigabyte can be reserved")
}

fn token_bucket() -> Limit {
    let (quota, burst) = BUCKET;
    Limit::token_bucket(quota, burst).expect("a bucket that refills within a hundred years")
}

/// One limit, decided one by one.
struct Keyed {
    store: MemoryStore,
    limit: Enrolled,
    named: Named,
}

/// The name of the limit.
const NAME: &str = "api";

impl Keyed {
    fn new(limit: Limit, keys: &[String]) -> Self {
        let store = store();
        let limit = store.enroll(limit).expect("one limit");
        let named = store.named(NAME);
        let keyed = Self { store, limit, named };
        assert_eq!(keyed.decide_all(keys), keys.len());
        keyed
    }

    #[inline]
    fn charge<'a>(&'a self, values: &'a [Value<'a>]) -> Charge<'a> {
        let key = Key { limit: NAME, values };
        Charge { named: Some(self.named), ..Charge::new(key, &self.limit) }
    }
}

impl Contender for Keyed {
    #[inline(always)]
    fn decide(&self, key: &String) -> bool {
        self.store.allows(&self.charge(&[Value::new(key.as_bytes())]))
    }
}

/// One by one, and the same states in batches.
struct Both {
    keyed: Arc<Keyed>,
    batch: Batch,
}

impl Contender for Both {
    #[inline(always)]
    fn decide(&self, key: &String) -> bool {
        self.keyed.decide(key)
    }

    fn decide_all(&self, keys: &[String]) -> usize {
        self.keyed.decide_all(keys)
    }

    fn in_batches(&self) -> Option<(&'static str, &dyn Contender)> {
        Some(("tollgate, 32 at a time", &self.batch))
    }
}

/// 32 at a time.
struct Batch(Arc<Keyed>);

impl Contender for Batch {
    fn decide(&self, key: &String) -> bool {
        self.0.decide(key)
    }

    fn decide_all(&self, keys: &[String]) -> usize {
        let mut allowed = 0;
        for keys in keys.chunks(BATCH) {
            let values: [[Value<'_>; 1]; BATCH] = std::array::from_fn(|n| {
                [keys.get(n).map_or(Value::MISSING, |key| Value::new(key.as_bytes()))]
            });
            let charges: [Charge<'_>; BATCH] = std::array::from_fn(|n| self.0.charge(&values[n]));
            self.0.store.take_each(&charges[..keys.len()], |taken| {
                allowed += usize::from(taken.is_allowed());
            });
        }
        allowed
    }
}

/// Attributes in, verdict out.
struct Whole(Limiter);

impl Contender for Whole {
    #[inline(always)]
    fn decide(&self, user: &String) -> bool {
        let attributes: [(&str, &[u8]); 4] = [
            ("method", METHOD.as_bytes()),
            ("path", PATH.as_bytes()),
            ("tier", TIER.as_bytes()),
            ("user", user.as_bytes()),
        ];
        self.0.check(&Request::new(&attributes)).is_allowed()
    }
}
