//! What the tests share: stores on a clock that stands still, limits, keys, and random numbers that
//! are the same in every run.

use tollgate_core::{
    Algorithm, Align, Cost, Decision, Key, Limit, Micros, Quota, Timestamp, Value,
};
use tollgate_store::{
    Charge, Claim, Clock, Enrolled, MemoryStore, Mode, OnFailure, Receipt, Store, Taken,
};

/// Some time in 2025.
pub(crate) const START: Timestamp = Timestamp::from_micros(1_760_000_000_000_000);

/// A store under test, and the clock it goes by.
pub(crate) struct Subject<S = MemoryStore> {
    pub(crate) store: S,
    pub(crate) clock: Clock,
}

/// What tests ask of the memory store itself, and of any store.
pub(crate) trait Asked {
    fn enroll(&self, limit: Limit) -> Enrolled;
    fn take_one(&self, charge: &Charge<'_>) -> Taken;
    fn take(&self, charges: &[Charge<'_>]) -> Vec<Taken>;
    fn take_each(&self, charges: &[Charge<'_>]) -> Vec<Taken>;
    fn reset(&self, key: &Key<'_>) -> bool;
}

/// One charge as a test asks for it. It owns its key, which a [`Charge`] borrows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Order {
    pub(crate) key: u64,
    pub(crate) limit: Enrolled,
    pub(crate) cost: Cost,
    pub(crate) mode: Mode,
    pub(crate) count_denied: bool,
    pub(crate) on_failure: OnFailure,
}

impl Subject {
    /// A store in memory with room for everything a test keeps in it.
    pub(crate) fn in_memory() -> Self {
        Self::of_size(16 << 20)
    }

    /// A store in memory that is held to `max_bytes`.
    pub(crate) fn of_size(max_bytes: usize) -> Self {
        let clock = Clock::manual(START);
        let store = MemoryStore::with_max_bytes(clock.clone(), max_bytes).expect("a few megabytes");
        Self { store, clock }
    }

    /// What gives one order back.
    pub(crate) fn charge(&self, order: &Order) -> Receipt {
        let taken = self.take_one(order);
        taken.receipt().unwrap_or_else(|| panic!("nothing was charged: {taken:?}"))
    }
}

impl Subject<Store> {
    /// What gives one order back.
    pub(crate) fn charge(&self, order: &Order) -> Claim {
        let (taken, claim) = self.claim(&[*order]).remove(0);
        claim.unwrap_or_else(|| panic!("nothing was charged: {taken:?}"))
    }

    /// Takes all of `orders` or none; with what gives each back.
    pub(crate) fn claim(&self, orders: &[Order]) -> Vec<(Taken, Option<Claim>)> {
        let answers = with_charges(orders, |charges| self.store.take(charges).wait());
        let claim = |(place, taken): (usize, &Taken)| {
            let claim = |receipt| Claim::new(receipt, answers.origin(), place);
            (*taken, taken.receipt().map(claim))
        };
        answers.taken().iter().enumerate().map(claim).collect()
    }

    pub(crate) fn refund(&self, claim: &Claim) -> bool {
        self.store.refund(claim).wait() == Some(true)
    }

    pub(crate) fn renew(&self, claim: &Claim) -> bool {
        self.store.renew(claim).wait() == Some(true)
    }

    /// How many keys are stored, if the store tells.
    pub(crate) fn keys(&self) -> Option<usize> {
        match &self.store {
            Store::Memory(store) => Some(store.keys()),
            #[cfg(feature = "redis")]
            Store::Redis(_) => None,
        }
    }

    /// Whether the store knows by itself what is vacant. Redis does by its own clock, and these tests
    /// set another.
    pub(crate) fn forgets_what_is_vacant(&self) -> bool {
        matches!(self.store, Store::Memory(_))
    }
}

impl From<Subject> for Subject<Store> {
    fn from(Subject { store, clock }: Subject) -> Self {
        Self { store: store.into(), clock }
    }
}

impl<S: Asked> Subject<S> {
    pub(crate) fn enroll(&self, limit: Limit) -> Enrolled {
        self.store.enroll(limit)
    }

    pub(crate) fn take_one(&self, order: &Order) -> Taken {
        order.with_charge(|charge| self.store.take_one(charge))
    }

    /// Takes all of `orders` or none.
    pub(crate) fn take(&self, orders: &[Order]) -> Vec<Taken> {
        with_charges(orders, |charges| self.store.take(charges))
    }

    /// Takes each of `orders` on its own.
    pub(crate) fn take_each(&self, orders: &[Order]) -> Vec<Taken> {
        with_charges(orders, |charges| self.store.take_each(charges))
    }

    /// What one order is told.
    pub(crate) fn decide(&self, order: &Order) -> Decision {
        self.take_one(order).decision().expect("there is room")
    }

    /// The figures of a key, without a trace.
    pub(crate) fn peek(&self, order: &Order) -> Decision {
        self.decide(&order.costing(0))
    }

    /// What is left of a key.
    pub(crate) fn remaining(&self, order: &Order) -> u32 {
        self.peek(order).remaining
    }

    pub(crate) fn reset(&self, key: u64) -> bool {
        self.store.reset(&Key { limit: NAME, values: &[Value::new(&key.to_le_bytes())] })
    }

    pub(crate) fn advance(&self, by: Micros) {
        self.clock.advance(by);
    }
}

impl Asked for MemoryStore {
    fn enroll(&self, limit: Limit) -> Enrolled {
        self.enroll(limit).expect("a handful of limits")
    }

    fn take_one(&self, charge: &Charge<'_>) -> Taken {
        self.take_one(charge)
    }

    fn take(&self, charges: &[Charge<'_>]) -> Vec<Taken> {
        self.take(charges).into_vec()
    }

    fn take_each(&self, charges: &[Charge<'_>]) -> Vec<Taken> {
        let mut all = Vec::new();
        self.take_each(charges, |taken| all.push(taken));
        all
    }

    fn reset(&self, key: &Key<'_>) -> bool {
        self.reset(key)
    }
}

impl Asked for Store {
    fn enroll(&self, limit: Limit) -> Enrolled {
        self.enroll(limit).expect("a handful of limits")
    }

    fn take_one(&self, charge: &Charge<'_>) -> Taken {
        match self {
            // Memory has a quicker way for one charge, and it is tested here.
            Self::Memory(store) => store.take_one(charge),
            #[cfg(feature = "redis")]
            Self::Redis(store) => store.take(&[*charge]).wait().taken()[0],
        }
    }

    fn take(&self, charges: &[Charge<'_>]) -> Vec<Taken> {
        self.take(charges).wait().taken().to_vec()
    }

    fn take_each(&self, charges: &[Charge<'_>]) -> Vec<Taken> {
        self.take_each(charges).wait().taken().to_vec()
    }

    fn reset(&self, key: &Key<'_>) -> bool {
        self.reset(key).wait() == Some(true)
    }
}

/// The name under which every test limit has its keys.
const NAME: &str = "limit";

impl Order {
    /// One unit of an enforced limit.
    pub(crate) fn new(key: u64, limit: Enrolled) -> Self {
        Self {
            key,
            limit,
            cost: Cost::ONE,
            mode: Mode::Enforce,
            count_denied: false,
            on_failure: OnFailure::Local,
        }
    }

    pub(crate) fn costing(self, units: u32) -> Self {
        Self { cost: Cost::new(units), ..self }
    }

    /// Everything the limit holds.
    pub(crate) fn costing_all(self) -> Self {
        self.costing(self.limit.limit().capacity())
    }

    pub(crate) fn in_shadow(self) -> Self {
        Self { mode: Mode::Shadow, ..self }
    }

    pub(crate) fn counting_denied(self) -> Self {
        Self { count_denied: true, ..self }
    }

    pub(crate) fn denied_on_failure(self) -> Self {
        Self { on_failure: OnFailure::Deny, ..self }
    }

    #[cfg(feature = "redis")]
    pub(crate) fn allowed_on_failure(self) -> Self {
        Self { on_failure: OnFailure::Allow, ..self }
    }

    pub(crate) fn with_charge<T>(&self, give: impl FnOnce(&Charge<'_>) -> T) -> T {
        give(&self.charge(&[Value::new(&self.key.to_le_bytes())]))
    }

    fn charge<'a>(&'a self, values: &'a [Value<'a>]) -> Charge<'a> {
        let Self { cost, mode, count_denied, on_failure, .. } = *self;
        let charge = Charge::new(Key { limit: NAME, values }, &self.limit);
        Charge { cost, mode, count_denied, on_failure, ..charge }
    }
}

fn with_charges<T>(orders: &[Order], give: impl FnOnce(&[Charge<'_>]) -> T) -> T {
    let keys: Vec<[u8; 8]> = orders.iter().map(|order| order.key.to_le_bytes()).collect();
    let values: Vec<[Value<'_>; 1]> = keys.iter().map(|key| [Value::new(key)]).collect();
    let charges: Vec<Charge<'_>> =
        orders.iter().zip(&values).map(|(order, values)| order.charge(values)).collect();
    give(&charges)
}

/// A limit of `count` units a minute; a bucket or queue holds that much, a lease ends after that
/// time.
pub(crate) fn limit_of(algorithm: Algorithm, count: u32) -> Limit {
    limit_over(algorithm, count, Micros::from_secs(60))
}

/// A limit of `count` units a period.
pub(crate) fn limit_over(algorithm: Algorithm, count: u32, period: Micros) -> Limit {
    let quota = Quota::new(count, period).expect("a period that is allowed");
    let limit = match algorithm {
        Algorithm::SlidingWindow => Ok(Limit::sliding_window(quota)),
        Algorithm::TokenBucket => Limit::token_bucket(quota, count),
        Algorithm::LeakyBucket => Limit::leaky_bucket(quota, count, None),
        Algorithm::FixedWindow => Ok(Limit::fixed_window(quota, Align::Key)),
        Algorithm::SlidingLog => Limit::sliding_log(quota),
        Algorithm::Concurrency => Limit::concurrency(count, period),
    };
    limit.expect("a modest limit")
}

/// Whether a limit of this algorithm keeps a log.
pub(crate) fn is_logged(algorithm: Algorithm) -> bool {
    matches!(algorithm, Algorithm::SlidingLog | Algorithm::Concurrency)
}

/// Random numbers that are the same in every run: xorshift.
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Self {
        Self((seed + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15))
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// A number below `bound`, which is not zero.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    pub(crate) fn one_in(&mut self, many: u64) -> bool {
        self.below(many) == 0
    }

    pub(crate) fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize]
    }
}
