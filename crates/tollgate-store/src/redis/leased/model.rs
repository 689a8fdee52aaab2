//! Every order of events that two nodes and a Redis can meet, tried out: requests, calls that are run
//! late or never, answers that are lost, late or come twice, nodes that crash or sleep past the end of
//! their lease, time that repays, windows that end. In none of them is more admitted than the limit,
//! in whatever interval: each admission is also charged to a state that nobody leases from, which must
//! never refuse it.
//!
//! A node that sleeps is one that does nothing while time goes on, so that needs no event of its own.
//! A charge that Redis made counts as an admission when it is made, even if nobody hears of it.

use std::collections::HashSet;

use tollgate_core::{
    Align, Cost, Leasable, LeaseAnswer, LeaseCall, LeasedState, Limit, Micros, Quota, Timestamp,
    Word,
};

use super::pool::Pool;

/// How far one event moves the clock. A lease lasts four of them, less the margin.
const STEP: Micros = Micros::from_millis(250);
const START: Timestamp = Timestamp::from_micros(1_000_000_000);
const NODES: usize = 2;

/// How much of everything one run may have.
#[derive(Clone, Copy)]
struct Extent {
    steps: u8,
    calls: u8,
    crashes: u8,
    losses: u8,
    doubles: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct World {
    now: Timestamp,
    redis: LeasedState,
    /// What is admitted, charged to one who leases nothing.
    judge: Word,
    nodes: [Pool; NODES],
    /// On their way to Redis, and back.
    calls: Vec<(usize, u64, LeaseCall)>,
    answers: Vec<(usize, u64, LeaseAnswer)>,
    /// The last call's.
    number: [u64; NODES],
    made: u8,
    crashes: u8,
    losses: u8,
    doubles: u8,
}

impl World {
    fn new(limit: &Leasable) -> Self {
        Self {
            now: START,
            redis: LeasedState::default(),
            judge: Word::VACANT,
            nodes: [const { () }; NODES].map(|()| Pool::new(*limit)),
            calls: Vec::new(),
            answers: Vec::new(),
            number: [0; NODES],
            made: 0,
            crashes: 0,
            losses: 0,
            doubles: 0,
        }
    }

    fn admit(&mut self, limit: &Leasable) {
        let admitted = limit.counter().decide(self.judge, self.now, Cost::ONE);
        assert!(admitted.decision.is_allowed(), "one too many: {self:#?}");
        self.judge = admitted.word;
    }

    fn send(&mut self, node: usize, call: LeaseCall) {
        self.calls.push((node, self.number[node], call));
        self.calls.sort_by_key(|(_, number, _)| *number);
        self.made += 1;
    }

    fn next_number(&mut self, node: usize) -> u64 {
        // Told apart by node, so that which node calls first makes no difference to the other.
        self.number[node] += 1 + 100 * u64::from(self.number[node] == 0) * (1 + node as u64);
        self.number[node]
    }

    /// All that can happen next.
    fn next(&self, limit: &Leasable, extent: Extent) -> Vec<Self> {
        let mut next = Vec::new();
        let mut add = |change: &dyn Fn(&mut Self)| {
            let mut world = self.clone();
            change(&mut world);
            next.push(world);
        };
        if self.now < START.plus(Micros::new(STEP.as_micros() * u64::from(extent.steps))) {
            add(&|world| world.now = world.now.plus(STEP));
        }
        for node in 0..NODES {
            add(&|world| world.request(limit, node, extent));
            if self.nodes[node].is_due(self.now) && self.made < extent.calls {
                add(&|world| {
                    let number = world.next_number(node);
                    let call = world.nodes[node].review(world.now, number);
                    world.send(node, call);
                });
            }
            if self.nodes[node].is_asking() && self.losses < extent.losses {
                add(&|world| {
                    world.losses += 1;
                    let number = world.number[node];
                    world.nodes[node].lost(number);
                });
            }
            if self.crashes < extent.crashes {
                add(&|world| {
                    world.crashes += 1;
                    world.nodes[node] = Pool::new(*limit);
                });
            }
        }
        for place in 0..self.calls.len() {
            add(&|world| {
                let (node, number, call) = world.calls.remove(place);
                let answer = limit.lease(&mut world.redis, world.now, &call);
                if answer.is_allowed && call.cost != Cost::PEEK {
                    world.admit(limit);
                }
                world.answers.push((node, number, answer));
            });
            add(&|world| {
                let (node, number, _) = world.calls.remove(place);
                world.nodes[node].not_sent(number);
            });
        }
        for place in 0..self.answers.len() {
            add(&|world| {
                let (node, number, answer) = world.answers.remove(place);
                world.nodes[node].answered(world.now, number, &answer);
            });
            if self.doubles < extent.doubles {
                add(&|world| {
                    world.doubles += 1;
                    let (node, number, answer) = world.answers[place];
                    world.nodes[node].answered(world.now, number, &answer);
                });
            }
        }
        next
    }

    fn request(&mut self, limit: &Leasable, node: usize, extent: Extent) {
        if self.nodes[node].spend(self.now, limit, Cost::ONE).is_some() {
            self.admit(limit);
        } else if !self.nodes[node].is_asking() && self.made < extent.calls {
            let number = self.next_number(node);
            let call = self.nodes[node].ask(self.now, limit, Cost::ONE, 2, number);
            self.send(node, call);
        }
    }
}

/// Tries everything out, and tells how many different worlds there are.
fn explore(limit: Limit, extent: Extent) -> usize {
    let limit = Leasable::of(&limit).expect("a limit that can be leased");
    let mut seen = HashSet::new();
    let mut open = vec![World::new(&limit)];
    while let Some(world) = open.pop() {
        for next in world.next(&limit, extent) {
            if seen.insert(next.clone()) {
                open.push(next);
            }
        }
    }
    seen.len()
}

#[test]
fn no_interval_admits_more_than_a_bucket_holds_and_time_repays() {
    let limit = Limit::token_bucket(Quota::per_second(4), 4).expect("a bucket");
    let extent = Extent { steps: 6, calls: 4, crashes: 1, losses: 1, doubles: 1 };
    let worlds = explore(limit, extent);
    println!("{worlds} worlds");
    assert!(worlds > 100_000, "{worlds} are too few to tell anything");
}

#[test]
fn no_window_admits_more_than_it_holds() {
    let quota = Quota::new(4, Micros::from_millis(500)).expect("a quota");
    let extent = Extent { steps: 4, calls: 4, crashes: 1, losses: 1, doubles: 1 };
    for align in [Align::Clock, Align::Key] {
        let worlds = explore(Limit::fixed_window(quota, align), extent);
        println!("{worlds} worlds");
        assert!(worlds > 50_000, "{worlds} are too few to tell anything");
    }
}
