//! Every order of events that two nodes and a Redis can meet, tried out: requests, calls that are run
//! late or never, answers that are lost, late or come twice, nodes that crash or sleep past the end of
//! their lease, requests that are given back at once or late, time that repays, windows that end. In none of them is more admitted than the limit,
//! in whatever interval: each admission is also charged to a state that nobody leases from, which must
//! never refuse it.
//!
//! A node that sleeps is one that does nothing while time goes on, so that needs no event of its own.
//! A charge that Redis made counts as an admission when it is made, even if nobody hears of it.
//! A node may report at any time and not only when it is due.

use std::collections::HashSet;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};

use tollgate_core::{
    Align, Cost, Leasable, LeaseAnswer, LeaseCall, LeasedState, Limit, Micros, Quota, Receipt,
    Timestamp, Word,
};

use super::pool::{Payment, Pool};

/// How far one event moves the clock: a lease can be spent for less than two of them.
const STEP: Micros = Micros::from_millis(500);
const START: Timestamp = Timestamp::from_micros(1_000_000_000);
const NODES: usize = 2;
/// What their calls are numbered from.
const FIRST: [u64; NODES] = [100, 200];

/// Units that are wanted beyond the request at hand.
const WANT: u32 = 2;

/// How much of everything one run may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Extent {
    steps: u8,
    calls: u8,
    /// Crashes, calls that a node gives up on or that are not sent, answers that come twice.
    faults: u8,
    /// Requests that are given back.
    refunds: u8,
}

/// A request that a node paid for, and will be given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Paid {
    node: usize,
    mark: u64,
    /// When the judge charged it, and what it was owed before.
    at: Timestamp,
    debt_before: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct World {
    now: Timestamp,
    redis: LeasedState,
    /// What is admitted, charged to one who leases nothing.
    judge: Word,
    nodes: [Pool; NODES],
    /// The last call's.
    numbers: [u64; NODES],
    /// On their way to Redis, and back.
    calls: Vec<(usize, u64, LeaseCall)>,
    answers: Vec<(usize, u64, LeaseAnswer)>,
    /// Was delivered, and will be once more.
    double: Option<(usize, u64, LeaseAnswer)>,
    paid: Option<Paid>,
    left: Extent,
}

impl World {
    fn new(limit: &Leasable, left: Extent) -> Self {
        Self {
            now: START,
            redis: LeasedState::default(),
            judge: Word::VACANT,
            nodes: [Pool::new(*limit), Pool::new(*limit)],
            numbers: FIRST,
            calls: Vec::new(),
            answers: Vec::new(),
            double: None,
            paid: None,
            left,
        }
    }

    /// All that can happen next.
    fn next(&self, limit: &Leasable) -> Vec<Self> {
        let mut next = Vec::new();
        let mut add = |change: &dyn Fn(&mut Self)| {
            let mut world = self.clone();
            change(&mut world);
            next.push(world);
        };
        if self.left.steps > 0 {
            add(&|world| world.pass());
        }
        for node in 0..NODES {
            if self.nodes[node].clone().spend(self.now, limit, Cost::ONE).is_some() {
                add(&|world| _ = world.spend(limit, node));
                if self.left.refunds > 0 && self.paid.is_none() {
                    add(&|world| world.spend_for_now(limit, node));
                }
            }
            // Which of the two is the first to call makes no difference.
            let is_turn = node == 0 || self.numbers[0] > FIRST[0];
            if is_turn && self.left.calls > 0 && !self.nodes[node].is_asking() {
                let ask =
                    |pool: &mut Pool, now, number| pool.ask(now, limit, Cost::ONE, WANT, number);
                add(&|world| world.call(node, ask));
                if self.nodes[node].has_to_tell(self.now) {
                    add(&|world| world.call(node, Pool::review));
                }
            }
            if self.left.faults > 0 && self.nodes[node] != Pool::new(*limit) {
                add(&|world| world.lose(node));
                add(&|world| world.crash(limit, node));
            }
        }
        for place in 0..self.calls.len() {
            add(&|world| world.run(limit, place));
            if self.left.faults > 0 {
                add(&|world| world.do_not_send(place));
            }
        }
        for place in 0..self.answers.len() {
            add(&|world| world.deliver(place));
            if self.left.faults > 0 {
                add(&|world| world.deliver_twice(place));
            }
        }
        if self.paid.is_some() {
            add(&|world| world.give_back(limit));
        }
        if self.double.is_some() {
            add(&|world| world.deliver_again());
        }
        next
    }

    fn pass(&mut self) {
        self.left.steps -= 1;
        self.now = self.now.plus(STEP);
    }

    fn spend(&mut self, limit: &Leasable, node: usize) -> Paid {
        let paid = self.nodes[node].spend(self.now, limit, Cost::ONE);
        let Some((_, Payment::Held { mark, .. })) = paid else { panic!("it had one: {paid:?}") };
        let Receipt { at, debt_before, .. } = self.admit(limit);
        Paid { node, mark, at, debt_before }
    }

    fn spend_for_now(&mut self, limit: &Leasable, node: usize) {
        self.left.refunds -= 1;
        self.paid = Some(self.spend(limit, node));
    }

    /// What the node takes back, the judge does not count either, as far as time has not repaid it.
    fn give_back(&mut self, limit: &Leasable) {
        if let Some(Paid { node, mark, at, debt_before }) = self.paid.take()
            && self.nodes[node].give_back(mark, 1)
        {
            let receipt = Receipt { at, cost: Cost::ONE, debt_before };
            self.judge = limit.counter().refund(self.judge, self.now, &receipt);
        }
    }

    fn admit(&mut self, limit: &Leasable) -> Receipt {
        let admitted = limit.counter().decide(self.judge, self.now, Cost::ONE);
        assert!(admitted.decision.is_allowed(), "one too many: {self:#?}");
        self.judge = admitted.word;
        admitted.receipt
    }

    fn call(&mut self, node: usize, ask: impl Fn(&mut Pool, Timestamp, u64) -> LeaseCall) {
        self.left.calls -= 1;
        self.numbers[node] += 1;
        let number = self.numbers[node];
        let call = ask(&mut self.nodes[node], self.now, number);
        self.calls.push((node, number, call));
    }

    /// The node gives up on its call, which may yet be run.
    fn lose(&mut self, node: usize) {
        self.left.faults -= 1;
        self.nodes[node].lost(self.numbers[node]);
    }

    fn crash(&mut self, limit: &Leasable, node: usize) {
        self.left.faults -= 1;
        self.nodes[node] = Pool::new(*limit);
    }

    fn run(&mut self, limit: &Leasable, place: usize) {
        let (node, number, call) = self.calls.remove(place);
        let answer = limit.lease(&mut self.redis, self.now, &call);
        if answer.is_allowed && call.cost != Cost::PEEK {
            self.admit(limit);
        }
        self.answers.push((node, number, answer));
    }

    fn do_not_send(&mut self, place: usize) {
        self.left.faults -= 1;
        let (node, number, _) = self.calls.remove(place);
        self.nodes[node].not_sent(number);
    }

    fn deliver(&mut self, place: usize) {
        let (node, number, answer) = self.answers[place];
        self.nodes[node].answered(self.now, number, &answer);
    }

    fn deliver_twice(&mut self, place: usize) {
        self.left.faults -= 1;
        self.double = Some(self.answers[place]);
        self.deliver(place);
    }

    fn deliver_again(&mut self) {
        if let Some((node, number, answer)) = self.double.take() {
            self.nodes[node].answered(self.now, number, &answer);
        }
    }

    /// The same world with less to remember: what makes no difference to what follows. An answer that
    /// nobody waits for must make none.
    fn plain(mut self, limit: &Leasable) -> Self {
        let Self { now, nodes, answers, .. } = &mut self;
        answers.retain(|(node, number, answer)| {
            let mut pool = nodes[*node].clone();
            let is_awaited = pool.answered(*now, *number, answer);
            assert!(is_awaited || pool == nodes[*node], "{pool:#?}");
            is_awaited
        });
        nodes.iter_mut().for_each(|pool| pool.forget_figures(*now));
        self.calls.sort_by_key(|(_, number, _)| *number);
        self.answers.sort_by_key(|(_, number, _)| *number);
        limit.settle(&mut self.redis, self.now);
        self
    }
}

/// Tries everything out, and tells how many different worlds there are.
fn explore(limit: Limit, extent: Extent) -> usize {
    let limit = Leasable::of(&limit).expect("a limit that can be leased");
    let hasher = BuildHasherDefault::<DefaultHasher>::default();
    let mut seen = HashSet::new();
    let mut open = vec![World::new(&limit, extent)];
    while let Some(world) = open.pop() {
        for next in world.next(&limit) {
            let next = next.plain(&limit);
            if seen.insert(hasher.hash_one(&next)) {
                open.push(next);
            }
        }
    }
    seen.len()
}

/// Much of everything but one, by turns: all of it at once is more than can be tried out.
const EXTENTS: [Extent; 3] = [
    Extent { steps: 3, calls: 3, faults: 1, refunds: 0 },
    Extent { steps: 2, calls: 2, faults: 2, refunds: 1 },
    Extent { steps: 2, calls: 3, faults: 0, refunds: 1 },
];

fn explore_all(limit: Limit) {
    for extent in EXTENTS {
        let worlds = explore(limit, extent);
        println!("{worlds} worlds");
        assert!(worlds > 10_000, "{worlds} are too few to tell anything");
    }
}

#[test]
fn no_interval_admits_more_than_a_bucket_holds_and_time_repays() {
    explore_all(Limit::token_bucket(Quota::per_second(2), 3).expect("a bucket"));
}

#[test]
fn no_window_admits_more_than_it_holds() {
    explore_all(Limit::fixed_window(Quota::per_second(2), Align::Clock));
}
