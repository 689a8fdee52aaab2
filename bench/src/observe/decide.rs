//! Decisions in this process, and nothing else: the same code counts or does not, as this program was built.

use std::fmt::Write;
use std::hint::black_box;

use tollgate::{Limiter, Request};
use tollgate_bench::measure::on_core_nanos;

/// Users that are asked about, in turn.
const USERS: usize = 1_000;

/// Decisions in a turn: some milliseconds, so that some of many turns are left in peace.
const DECISIONS: usize = 20_000;

/// What is decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work {
    pub name: &'static str,
    pub title: &'static str,
    limits: usize,
    rate: &'static str,
}

/// No user is as good as new when asked about again, however slowly that comes round: one that is would be forgotten.
const SLOW: &str = "1000000/365d";

pub const WORKS: [Work; 3] = [
    Work { name: "allowed", title: "one limit, allowed", limits: 1, rate: SLOW },
    Work { name: "denied", title: "one limit, denied", limits: 1, rate: "1/day" },
    Work { name: "three", title: "three limits, allowed", limits: 3, rate: SLOW },
];

impl Work {
    pub fn named(name: &str) -> Self {
        WORKS.into_iter().find(|work| work.name == name).expect("a kind of work")
    }

    /// What a decision takes in the best of `turns`, in nanoseconds.
    pub fn time(self, turns: usize) -> f64 {
        let (limiter, users) = self.prepare();
        let mut best = f64::INFINITY;
        for turn in 0..turns {
            let users = users.iter().cycle().skip(turn * DECISIONS % USERS);
            let start = on_core_nanos();
            decide(&limiter, users, DECISIONS);
            best = best.min((on_core_nanos() - start) / DECISIONS as f64);
        }
        best
    }

    /// So many decisions, and nothing measured: for whoever counts from outside.
    pub fn run(self, decisions: usize) {
        let (limiter, users) = self.prepare();
        decide(&limiter, users.iter().cycle(), decisions);
    }

    /// Every user is known.
    fn prepare(self) -> (Limiter, Vec<String>) {
        let mut policy = String::from("limits:\n");
        for number in 0..self.limits {
            let rate = self.rate;
            writeln!(
                policy,
                "  - {{name: limit-{number}, per: [user], rate: {rate}, algorithm: token_bucket}}"
            )
            .expect("there is memory");
        }
        let limiter = Limiter::from_yaml(&policy).expect("a valid policy");
        let users: Vec<String> = (0..USERS).map(|n| format!("user-{n:08}")).collect();
        decide(&limiter, users.iter(), USERS);
        (limiter, users)
    }
}

fn decide<'u>(limiter: &Limiter, users: impl Iterator<Item = &'u String>, decisions: usize) {
    for user in users.take(decisions) {
        let verdict = limiter.check(&Request::new(&[("user", user.as_bytes())]));
        black_box(verdict.is_allowed());
    }
}
