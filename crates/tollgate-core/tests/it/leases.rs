//! Leases in Redis are what the Rust functions say, and no trace of leases admits more than the
//! limit.

use tollgate_core::bounds::{LEASE_MICROS, LEASES_MAX};
use tollgate_core::lua::{self, Answer, Charge, Mode, Return};
use tollgate_core::{
    Algorithm, Align, ChargeId, Cost, Counter, Leasable, LeaseAnswer, LeaseCall, LeasedState,
    Limit, Micros, Quota, Receipt, Timestamp, Word,
};
use tollgate_harness::{Client, Flavour, Reply, Server, Text};

use crate::support::{Rng, START, random_cost, random_limit, random_step, span};
use crate::twin::{check_expiry, fields, is_alike, with_period_of};

#[test]
fn the_lease_script_answers_as_the_rust_function_does_on_redis() {
    compare_traces(Flavour::Redis);
}

#[test]
fn the_lease_script_answers_as_the_rust_function_does_on_valkey() {
    compare_traces(Flavour::Valkey);
}

/// Nodes of two versions on one server.
#[test]
fn the_first_scripts_of_the_format_and_these_lease_by_turns_as_one_of_them_alone() {
    let server = Server::start(Flavour::Redis);
    let mut twins = Twins::new(&server);
    let mut other = [
        twins.client.load(include_str!("v1/lease.lua")),
        twins.client.load(include_str!("v1/take.lua")),
        twins.client.load(include_str!("v1/refund.lua")),
    ];
    for seed in 0..40 {
        let mut trace = Trace::new(seed);
        for _ in 0..120 {
            let [lease, take, refund] = &mut other;
            std::mem::swap(&mut twins.lease, lease);
            std::mem::swap(&mut twins.take, take);
            std::mem::swap(&mut twins.refund, refund);
            trace.step(&mut twins);
        }
    }
    assert!(twins.seen.granted >= 100 && twins.seen.settled >= 20, "{:#?}", twins.seen);
}

fn compare_traces(flavour: Flavour) {
    let server = Server::start(flavour);
    let mut twins = Twins::new(&server);
    for seed in 0..150 {
        let mut trace = Trace::new(seed);
        for _ in 0..120 {
            trace.step(&mut twins);
        }
    }
    let seen = twins.seen;
    println!("{seen:#?}");
    let rare = [
        seen.granted,
        seen.denied,
        seen.settled,
        seen.returned,
        seen.unknown,
        seen.strict_beside_leases,
        seen.refunds,
        seen.carried_over,
        seen.back,
    ];
    assert!(rare.iter().all(|&times| times >= 100), "the traces are too tame: {seen:#?}");
}

/// What the traces came across.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    granted: u64,
    denied: u64,
    /// Leases that ended and became debt.
    settled: u64,
    returned: u64,
    /// Reports of more than the lease was known to hold.
    unknown: u64,
    /// Charges without a lease of a state that has some.
    strict_beside_leases: u64,
    refunds: u64,
    /// States with leases whose units were converted to another quota.
    carried_over: u64,
    /// Calls at a clock behind the last one.
    back: u64,
}

struct Trace {
    rng: Rng,
    now: Timestamp,
    key: String,
    limit: Limit,
    charged: Vec<(Counter, Receipt)>,
    windows: u64,
}

const LEASABLE: [Algorithm; 2] = [Algorithm::TokenBucket, Algorithm::FixedWindow];

impl Trace {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        // Most of what there is to get wrong is in buckets.
        let limit = random_limit(&mut rng, LEASABLE[usize::from(seed % 4 == 3)]);
        let start = match rng.below(12) {
            0 => rng.below(span(&limit) + 1),
            1 => Timestamp::END.as_micros() - rng.below(2 * span(&limit) + 1),
            _ => START + rng.below(1_000_000_000_000),
        };
        Self {
            now: Timestamp::from_micros(start),
            key: format!("{{{seed}}}:key"),
            rng,
            limit,
            charged: Vec::new(),
            windows: 0,
        }
    }

    fn step(&mut self, twins: &mut Twins) {
        let before = self.now;
        self.now = match self.rng.below(3) {
            0 => random_step(&mut self.rng, self.now, &self.limit),
            1 => self.now,
            _ => self.now.plus(Micros::new(self.rng.below(LEASE_MICROS.as_micros() / 2))),
        };
        twins.seen.back += u64::from(self.now < before);
        match self.rng.below(20) {
            0 => self.change(),
            1..=3 => self.take(twins),
            4 | 5 if !self.charged.is_empty() => self.refund(twins),
            _ => self.lease(twins),
        }
    }

    fn change(&mut self) {
        let algorithm = match self.rng.below(8) {
            0 => self.rng.pick(&LEASABLE),
            _ => self.limit.algorithm(),
        };
        self.limit = random_limit(&mut self.rng, algorithm);
    }

    fn lease(&mut self, twins: &mut Twins) {
        let limit = Leasable::of(&self.limit).expect("a limit that can be leased");
        let few = |rng: &mut Rng| rng.below_either(&[1, 3, 10]) as u32;
        let (spent, returned) = (few(&mut self.rng), few(&mut self.rng));
        let id = match limit {
            Leasable::TokenBucket(_) => 1 + self.rng.below(4),
            Leasable::FixedWindow(_) => self.windows,
        };
        let want = self.rng.below_either(&[2, 10, u64::from(u32::MAX)]) as u32;
        let cost = match self.rng.below(3) {
            0 => Cost::PEEK,
            1 => Cost::ONE,
            _ => random_cost(&mut self.rng, &self.limit),
        };
        let call = LeaseCall { id, spent, returned, cost, want };
        let answer = twins.lease(&self.key, &limit, self.now, &call);
        self.windows = answer.word.high;
        let receipt = answer.receipt(cost);
        if receipt.cost != Cost::PEEK {
            self.charged.push((limit.counter(), receipt));
        }
    }

    fn take(&mut self, twins: &mut Twins) {
        let mode = self.rng.pick(&[Mode::Enforce, Mode::Enforce, Mode::Force]);
        let cost = random_cost(&mut self.rng, &self.limit);
        let limit = Leasable::of(&self.limit).expect("a limit that can be leased");
        let receipt = twins.take(&self.key, &limit, self.now, mode, cost);
        if receipt.cost != Cost::PEEK {
            self.charged.push((limit.counter(), receipt));
        }
    }

    fn refund(&mut self, twins: &mut Twins) {
        let place = self.rng.below(self.charged.len() as u64) as usize;
        let (limit, receipt) = self.charged.swap_remove(place);
        twins.refund(&self.key, &limit, self.now, &receipt);
    }
}

/// A server, and what it should hold, kept by the Rust functions.
struct Twins {
    client: Client,
    lease: String,
    take: String,
    refund: String,
    /// The key, the limit its state was written under, and the state.
    stored: Option<(String, Leasable, LeasedState)>,
    seen: Seen,
}

/// A state as a limit sees it.
struct Loaded {
    state: LeasedState,
    is_carried: bool,
}

impl Twins {
    fn new(server: &Server) -> Self {
        let mut client = server.client();
        Self {
            lease: client.load(lua::LEASE),
            take: client.load(lua::TAKE),
            refund: client.load(lua::REFUND),
            client,
            stored: None,
            seen: Seen::default(),
        }
    }

    fn lease(
        &mut self,
        key: &str,
        limit: &Leasable,
        now: Timestamp,
        call: &LeaseCall,
    ) -> LeaseAnswer {
        let mut loaded = self.load(key, limit, now);
        let of_id = loaded.state.leases.iter().find(|lease| lease.id == call.id);
        let known = of_id.map_or(0, |lease| lease.units);
        let is_bucket = matches!(limit, Leasable::TokenBucket(_));
        self.seen.unknown += u64::from(is_bucket && call.spent > known);
        self.seen.returned += u64::from(is_bucket && call.spent < known && call.returned > 0);

        let answer = limit.lease(&mut loaded.state, now, call);
        self.seen.granted += u64::from(answer.granted > 0);
        self.seen.denied += u64::from(!answer.is_allowed);
        let asks_nothing = call.cost == Cost::PEEK && call.spent + call.returned == 0;
        let does_nothing = asks_nothing && answer.granted == 0;
        if !(loaded.is_carried && loaded.state.leases.is_empty() && does_nothing) {
            self.keep(key, *limit, loaded.state);
        }
        let reply = self.call(&self.lease.clone(), key, now, &lua::lease_argument(limit, call));
        assert_eq!(reply, lease_fields(&answer), "{limit:?} {call:?}");
        self.compare_state(key);
        answer
    }

    fn take(
        &mut self,
        key: &str,
        limit: &Leasable,
        now: Timestamp,
        mode: Mode,
        cost: Cost,
    ) -> Receipt {
        let counter = limit.counter();
        let mut loaded = self.load(key, limit, now);
        let before = loaded.state.word;
        let out: u64 = loaded.state.leases.iter().fold(0, |sum, lease| {
            let all = Word { low: 3 << 52, high: 0 };
            let price = all.low - limit.without(all, lease.units).low;
            (sum + price).min((1 << 53) - 1)
        });
        self.seen.strict_beside_leases += u64::from(out > 0);
        let peeked = counter.decide(before, now, Cost::PEEK).word;
        let mut transition = match mode {
            Mode::Force => counter.force(peeked, now, cost),
            Mode::Enforce | Mode::Shadow | Mode::Credit => counter.decide(peeked, now, cost),
        };
        transition.receipt.debt_before = transition.receipt.debt_before.saturating_sub(out);
        loaded.state.word = transition.word;
        if !(loaded.is_carried && transition.word == peeked) {
            self.keep(key, *limit, loaded.state);
        }
        let order = Limit::from(counter);
        let charge = Charge { mode, ..Charge::new(&order, cost, ChargeId(1)) };
        let reply = self.call(&self.take.clone(), key, now, &charge.argument());
        let answer = Answer { decision: transition.decision, receipt: transition.receipt };
        assert_eq!(reply, fields(&answer), "{charge:?}");
        self.compare_state(key);
        transition.receipt
    }

    fn refund(&mut self, key: &str, limit: &Counter, now: Timestamp, receipt: &Receipt) {
        let limit = Leasable::of(&Limit::from(*limit)).expect("a limit that can be leased");
        let (mut state, mut written_under, mut known) = (LeasedState::default(), limit, *receipt);
        if let Some(stored) = self.stored_under(key, &limit) {
            (written_under, state) = stored;
            if !is_alike(&written_under.counter(), &limit.counter()) {
                known.debt_before = 0;
            }
        }
        written_under.settle(&mut state, now);
        let before = state.word;
        state.word = written_under.counter().refund(before, now, &known);
        let is_changed = state.word != before;
        self.seen.refunds += u64::from(is_changed);
        self.keep(key, written_under, state);
        let counter = limit.counter();
        let argument = Return::Refund { limit: &counter, receipt }.argument();
        let reply = self.call(&self.refund.clone(), key, now, &argument);
        assert_eq!(reply, [i64::from(is_changed)]);
        self.compare_state(key);
    }

    /// What is under the key, if it is of this algorithm.
    fn stored_under(&self, key: &str, limit: &Leasable) -> Option<(Leasable, LeasedState)> {
        let (of, old, state) = self.stored.as_ref()?;
        if of != key || std::mem::discriminant(old) != std::mem::discriminant(limit) {
            return None;
        }
        let known_as = match is_alike(&old.counter(), &limit.counter()) {
            true => *limit,
            false => leasable(&with_period_of(&old.counter(), &limit.counter())),
        };
        Some((known_as, state.clone()))
    }

    fn load(&mut self, key: &str, limit: &Leasable, now: Timestamp) -> Loaded {
        let Some((written_under, mut state)) = self.stored_under(key, limit) else {
            let state = LeasedState::default();
            return Loaded { state, is_carried: false };
        };
        let before = state.leases.len();
        written_under.settle(&mut state, now);
        self.seen.settled += (before - state.leases.len()) as u64;
        let is_carried = !is_alike(&written_under.counter(), &limit.counter());
        if is_carried {
            state.word = limit.counter().carry_over(&written_under.counter(), state.word, now);
            limit.settle(&mut state, now);
            self.seen.carried_over += u64::from(!state.leases.is_empty());
        }
        Loaded { state, is_carried }
    }

    fn keep(&mut self, key: &str, limit: Leasable, state: LeasedState) {
        if state.word != Word::VACANT || !state.leases.is_empty() {
            self.stored = Some((key.to_owned(), limit, state));
        } else if self.stored_under(key, &limit).is_some() {
            self.stored = None;
        }
    }

    fn call(&mut self, sha: &str, key: &str, now: Timestamp, argument: &[u8]) -> Vec<i64> {
        let now = now.as_micros().to_string();
        let words: [&[u8]; 6] =
            [b"EVALSHA", sha.as_bytes(), b"1", key.as_bytes(), now.as_bytes(), argument];
        self.client.command(&words).integers()
    }

    fn compare_state(&mut self, key: &str) {
        let expected = match &self.stored {
            Some((of, limit, state)) if of == key => Reply::Text(Text(bytes(limit, state))),
            _ => Reply::Nil,
        };
        assert_eq!(self.client.command(&["GET", key]), expected, "{:?}", self.stored);
    }
}

fn leasable(counter: &Counter) -> Leasable {
    Leasable::of(&Limit::from(*counter)).expect("it was one before")
}

fn bytes(limit: &Leasable, state: &LeasedState) -> Vec<u8> {
    let word = state.word;
    let mut bytes = match lua::state_bytes(&limit.counter(), word) {
        Some(bytes) => bytes,
        // Zeroes are written as any number is, as long as there are leases to be kept.
        None => {
            let one = Word { low: 1, high: 0 };
            let mut bytes = lua::state_bytes(&limit.counter(), one).expect("it is not vacant");
            bytes.truncate(bytes.len() - 2);
            bytes.extend([0, 0]);
            bytes
        }
    };
    bytes.extend(lua::leases_bytes(&state.leases));
    bytes
}

fn lease_fields(answer: &LeaseAnswer) -> [i64; lua::LEASE_FIELDS] {
    let number = |number: u64| i64::try_from(number).expect("below 2^53");
    [
        i64::from(answer.is_allowed),
        answer.granted.into(),
        answer.leased.into(),
        number(answer.word.low),
        number(answer.word.high),
        number(answer.now.as_micros()),
        number(answer.charged_at.as_micros()),
        number(answer.debt_before),
    ]
}

/// What a node asks for that has no lease yet.
const fn first_call(id: u64, cost: u32, want: u32) -> LeaseCall {
    LeaseCall { id, spent: 0, returned: 0, cost: Cost::new(cost), want }
}

fn bucket(quota: Quota, burst: u32) -> Leasable {
    let limit = Limit::token_bucket(quota, burst).expect("a bucket");
    Leasable::of(&limit).expect("buckets can be leased")
}

const fn at(micros: u64) -> Timestamp {
    Timestamp::from_micros(START + micros)
}

#[test]
fn only_buckets_and_fixed_windows_are_leased() {
    let mut rng = Rng::new(1);
    for algorithm in Algorithm::ALL {
        let limit = random_limit(&mut rng, algorithm);
        assert_eq!(Leasable::of(&limit).is_some(), LEASABLE.contains(&algorithm), "{algorithm}");
    }
}

#[test]
fn half_of_what_is_left_is_left_to_others() {
    let window = Limit::fixed_window(Quota::per_minute(10), Align::Clock);
    for limit in [bucket(Quota::per_minute(10), 10), Leasable::of(&window).expect("a window")] {
        let mut state = LeasedState::default();
        let mut grants = Vec::new();
        loop {
            let answer = limit.lease(&mut state, at(0), &first_call(grants.len() as u64, 1, 100));
            if !answer.is_allowed {
                break;
            }
            grants.push(answer.granted);
        }
        // Each is charged one, and then given half, rounded up, of what is left.
        assert_eq!(grants, [5, 2, 0], "{limit:?}");
        let denied = limit.lease(&mut state, at(0), &first_call(9, 1, 100));
        let decision = denied.decision(&limit, Cost::ONE);
        assert!(!decision.is_allowed() && decision.remaining == 0 && denied.granted == 0);
    }
}

#[test]
fn units_out_on_lease_are_not_repaid_by_time_and_those_of_a_dead_node_only_from_the_end_on() {
    let limit = bucket(Quota::per_second(10), 10);
    let mut state = LeasedState::default();
    let taken = limit.lease(&mut state, at(0), &first_call(1, 0, 5));
    assert_eq!((taken.granted, taken.leased), (5, 5));
    let left = |state: &LeasedState, micros| {
        let mut state = state.clone();
        let peek = limit.lease(&mut state, at(micros), &first_call(2, 0, 0));
        peek.decision(&limit, Cost::PEEK).remaining
    };
    assert_eq!([left(&state, 0), left(&state, 900_000), left(&state, 999_999)], [5; 3]);
    assert_eq!([left(&state, 1_000_000), left(&state, 1_100_000)], [5, 6]);
    assert_eq!([left(&state, 1_499_999), left(&state, 1_500_000)], [9, 10]);

    // What is reported is repaid from then on, and what is returned is there at once.
    let report = LeaseCall { spent: 2, returned: 3, ..first_call(1, 0, 0) };
    assert_eq!(limit.lease(&mut state, at(500_000), &report).leased, 0);
    assert_eq!([left(&state, 500_000), left(&state, 600_000), left(&state, 700_000)], [8, 9, 10]);
}

#[test]
fn a_report_of_a_lease_that_is_not_known_is_charged_all_the_same() {
    let limit = bucket(Quota::per_second(10), 10);
    let mut state = LeasedState::default();
    let report = LeaseCall { spent: 4, returned: 3, ..first_call(1, 0, 0) };
    let answer = limit.lease(&mut state, at(0), &report);
    assert_eq!(answer.leased, 0);
    assert_eq!(answer.decision(&limit, Cost::PEEK).remaining, 6);
}

#[test]
fn units_of_a_window_that_is_over_are_not_given_back_to_the_next() {
    let window = Limit::fixed_window(Quota::per_minute(10), Align::Key);
    let limit = Leasable::of(&window).expect("a window");
    let mut state = LeasedState::default();
    let first = limit.lease(&mut state, at(0), &first_call(0, 0, 4));
    let back = LeaseCall { returned: 2, ..first_call(first.word.high, 0, 0) };
    let remaining = |answer: LeaseAnswer| answer.decision(&limit, Cost::PEEK).remaining;
    assert_eq!(remaining(limit.lease(&mut state, at(59_999_999), &back)), 8);
    limit.lease(&mut state, at(60_000_000), &first_call(0, 5, 0));
    assert_eq!(remaining(limit.lease(&mut state, at(60_000_000), &back)), 5);
}

#[test]
fn units_leased_under_a_changed_quota_are_used_under_it() {
    let server = Server::start(Flavour::Redis);
    let mut twins = Twins::new(&server);
    let minute = Limit::fixed_window(Quota::per_minute(10), Align::Clock);
    let hour = Limit::fixed_window(Quota::per_hour(10), Align::Clock);
    let [minute, hour] = [minute, hour].map(|limit| Leasable::of(&limit).expect("a window"));
    twins.lease("key", &minute, at(0), &first_call(0, 2, 0));
    assert_eq!(twins.lease("key", &hour, at(0), &first_call(0, 0, 4)).granted, 4);
    let peek = twins.lease("key", &hour, at(0), &first_call(0, 0, 0));
    assert_eq!(peek.decision(&hour, Cost::PEEK).remaining, 4);
}

#[test]
fn a_lease_of_a_window_ends_with_it() {
    let window = Limit::fixed_window(Quota::per_minute(10), Align::Key);
    let limit = Leasable::of(&window).expect("a window");
    let mut state = LeasedState::default();
    let mut lasts = |micros| {
        let answer = limit.lease(&mut state, at(micros), &first_call(0, 0, 1));
        limit.lasts(&answer)
    };
    assert_eq!(lasts(0), LEASE_MICROS);
    assert_eq!(lasts(59_500_000), Micros::from_millis(500));
    assert_eq!(lasts(59_999_999), Micros::new(1));
}

#[test]
fn a_key_with_as_many_leases_as_it_may_have_serves_others_without() {
    let server = Server::start(Flavour::Redis);
    let mut twins = Twins::new(&server);
    let limit = bucket(Quota::per_second(1_000_000), 1_000_000);
    let grants = |twins: &mut Twins, id| {
        let answer = twins.lease("key", &limit, at(id), &first_call(id, 1, 1));
        assert!(answer.is_allowed);
        answer.granted
    };
    for id in 0..LEASES_MAX as u64 {
        assert_eq!(grants(&mut twins, id), 1);
    }
    assert_eq!(grants(&mut twins, 1_000), 0, "there is no room for another");
    assert_eq!(grants(&mut twins, 0), 1, "a lease that is there can grow");
    let later = at(LEASE_MICROS.as_micros());
    assert_eq!(twins.lease("key", &limit, later, &first_call(1_000, 1, 1)).granted, 1);
}

#[test]
fn by_the_servers_own_clock_a_key_outlives_its_leases_and_their_debt() {
    let server = Server::start(Flavour::Redis);
    let mut client = server.client();
    let sha = client.load(lua::LEASE);
    let limit = bucket(Quota::per_minute(5), 5);
    let argument = lua::lease_argument(&limit, &first_call(1, 1, 2));
    let words: [&[u8]; 6] = [b"EVALSHA", sha.as_bytes(), b"1", b"key", b"", &argument];
    let fields = client.command(&words).integers().try_into().expect("the fields of one answer");
    let answer = lua::lease_answer(fields).expect("an answer");
    assert_eq!((answer.is_allowed, answer.granted), (true, 2));
    let owed = Micros::new(answer.word.low);
    check_expiry(&mut client, "key", answer.now.plus(LEASE_MICROS).plus(owed));
}
