//! What is measured: anything that decides about a key.

use crate::{floor, governor, limitador, policy, throttlecrab, tollgate};

/// The quota of every contender: so large that nothing is ever denied, since a denial is a different and often
/// cheaper path, and over so long a window that no contender forgets a key while it is measured.
pub const QUOTA_COUNT: u32 = 1_000_000_000;
pub const QUOTA_SECONDS: u32 = 3600;

/// A rate limiter that holds its keys, shared between threads.
pub trait Contender: Sync {
    /// Whether one request of `key` is allowed now.
    #[expect(clippy::ptr_arg, reason = "governor can only be asked with a String")]
    fn decide(&self, key: &String) -> bool;

    /// Decides all of `keys` in order, and returns how many were allowed.
    ///
    /// This is what is timed. Being compiled once per contender it calls `decide` directly; a contender that
    /// decides in batches overrides it.
    fn decide_all(&self, keys: &[String]) -> usize {
        keys.iter().filter(|key| self.decide(key)).count()
    }

    /// The same keys decided in batches, where that can be asked for, and what the row of it is called. The states are
    /// the same too: two tables are never equally far from a core, and that is more than what is compared.
    fn in_batches(&self) -> Option<(&'static str, &dyn Contender)> {
        None
    }
}

/// A row of a table.
pub struct Entrant {
    pub name: &'static str,
    /// A contender that has already seen every one of the keys.
    pub build: fn(&[String]) -> Box<dyn Contender>,
}

/// One limit, keyed. Ratios are to `floor` and to `governor`.
pub const KEYED: &[Entrant] = &[
    Entrant { name: "floor", build: floor::build },
    Entrant { name: "tollgate, token_bucket", build: tollgate::build_token_bucket },
    Entrant { name: "tollgate, sliding_window", build: tollgate::build_sliding_window },
    Entrant { name: "governor", build: governor::build },
    Entrant { name: "limitador", build: limitador::build },
    Entrant { name: "throttlecrab", build: throttlecrab::build },
];

/// A policy of 50 limits, three of which apply; the key is the user. Ratios are to `limitador`.
pub const POLICIES: &[Entrant] = &[
    Entrant { name: "tollgate", build: tollgate::build_policy },
    Entrant { name: "limitador", build: policy::build_limitador },
    Entrant { name: "limitador, those 3 alone", build: policy::build_limitador_applying },
];
