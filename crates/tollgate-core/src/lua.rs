//! The Redis twins: the scripts as text, the arguments they take and the answers they give.
//!
//! Running them is a store's work; this module does no more than spell. The scripts are constants:
//! what callers say reaches them as keys and arguments only. What is said of one charge is one argument
//! in MessagePack: as an argument each, its ten values would be a quarter of all work the server does.
//!
//! The scripts and the states they keep are of format 1. States are read by every version of it, and
//! by none of another, so a format that differs must come with keys of its own.
//!
//! ```
//! use tollgate_core::{ChargeId, Cost, Limit, Quota, lua};
//!
//! let limit = Limit::sliding_window(Quota::per_minute(60));
//! let charge = lua::Charge::new(&limit, Cost::ONE, ChargeId(7));
//! // EVALSHA sha 1 KEY '' ARGUMENT
//! assert_eq!(charge.argument(), b"\x01\x01\x00\x00\xa17\x3c\xce\x03\x93\x87\x00\x00\x00\x00");
//!
//! let answer = lua::Answer::from_fields([0, 60, 59, 1, 1, -1, 0, 1, 0, 0]).expect("ten fields");
//! assert!(answer.decision.is_allowed());
//! ```

use crate::{ChargeId, Cost, Counter, Decision, Leasable, Lease, LeaseAnswer, LeaseCall, Limit};
use crate::{Logged, Micros, Outcome, Receipt, SlidingWindow, Timestamp, Word};

macro_rules! script {
    ($name:literal) => {
        concat!(
            include_str!("lua/prelude.lua"),
            include_str!("lua/token_bucket.lua"),
            include_str!("lua/leaky_bucket.lua"),
            include_str!("lua/fixed_window.lua"),
            include_str!("lua/sliding_window.lua"),
            include_str!("lua/held.lua"),
            include_str!("lua/sliding_log.lua"),
            include_str!("lua/concurrency.lua"),
            include_str!("lua/leases.lua"),
            include_str!("lua/limit.lua"),
            include_str!(concat!("lua/", $name)),
        )
    };
}

/// Decides the charges of one request and takes them, all or none.
///
/// `KEYS` are the states, one a charge; one that comes twice is charged twice, under one limit.
/// `ARGV` is the time in microseconds, empty for the server's own, and then the [`Charge::argument`]
/// of each. The reply is a flat list with the fields of an [`Answer`] for each.
pub const TAKE: &str = script!("take.lua");

/// Gives charges back, or starts their hold anew.
///
/// `KEYS` and the time are as in [`TAKE`], then comes the [`Return::argument`] of each. The reply
/// is a number for each: the units a log gave back, 1 for a counter that changed or a hold that was
/// started anew, 0 where there was nothing to be done.
pub const REFUND: &str = script!("refund.lua");

/// Brings one charge to what was really used, and tells what its limit says then.
///
/// `KEYS` is the state and the time is as in [`TAKE`], then comes the [`Settlement::argument`]. The
/// reply has the fields of an [`Answer`] to a peek; none if another algorithm has started afresh there,
/// which is left alone. A call that may have run must not be sent again: it would charge twice.
pub const SETTLE: &str = script!("settle.lua");

/// Decides one request, and hands out units ahead of their use.
///
/// `KEYS` is the state and the time is as in [`TAKE`], then comes the [`lease_argument`]. The reply is
/// what [`lease_answer`] reads. A call that may have run must not be sent again: it would hand out
/// units that nobody knows of.
pub const LEASE: &str = script!("lease.lua");

/// How many fields the reply of [`LEASE`] has.
pub const LEASE_FIELDS: usize = 8;

/// How many fields of the reply of [`TAKE`] make an [`Answer`].
pub const ANSWER_FIELDS: usize = 10;

/// What a charge's answer means to the verdict.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// A denial denies the request.
    #[default]
    Enforce,
    /// A denial is told, and denies nothing.
    Shadow,
    /// Charged whatever is left, past the end if need be.
    Force,
    /// Not charged: given back, if the request is allowed, after all that is charged; see
    /// [`Counter::credit`] and [`Logged::credit`]. Answered as a peek is, and denies nothing.
    Credit,
}

/// One charge, as [`TAKE`] wants it.
#[derive(Clone, Copy, Debug)]
pub struct Charge<'a> {
    /// What is enforced.
    pub limit: &'a Limit,
    /// How much is taken.
    pub cost: Cost,
    /// What a denial means.
    pub mode: Mode,
    /// Whether the limit is charged whatever the verdict. Logs know no such thing and ignore it.
    pub count_denied: bool,
    /// Names the charge in a log; no two charges of a key may share it.
    pub id: ChargeId,
}

impl<'a> Charge<'a> {
    /// An enforced charge.
    pub const fn new(limit: &'a Limit, cost: Cost, id: ChargeId) -> Self {
        Self { limit, cost, mode: Mode::Enforce, count_denied: false, id }
    }

    /// What [`TAKE`] is told of it.
    pub fn argument(&self) -> Vec<u8> {
        let mode = match self.mode {
            Mode::Enforce => 0,
            Mode::Shadow => 1,
            Mode::Force => 2,
            Mode::Credit => 3,
        };
        let count_denied = u64::from(self.count_denied);
        let values = [algorithm(self.limit), self.cost.get(), mode, count_denied];
        packed(&values, &[self.id], &self.limit.numbers())
    }
}

/// What [`TAKE`] answers to one charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The decision.
    pub decision: Decision,
    /// What was charged and can be given back: nothing if the request was denied.
    pub receipt: Receipt,
}

impl Answer {
    /// Reads it from the reply; `None` if these are no fields of ours.
    pub fn from_fields(fields: [i64; ANSWER_FIELDS]) -> Option<Self> {
        let [outcome, limit, remaining, reset, next, retry, delay, cost, at, debt_before] = fields;
        let micros = |field: i64| u64::try_from(field).ok().map(Micros::new);
        let outcome = match outcome {
            0 => Outcome::Allowed { delay: micros(delay)? },
            1 => Outcome::Denied { retry_after: micros(retry) },
            2 => Outcome::TooCostly,
            _ => return None,
        };
        let decision = Decision {
            outcome,
            limit: u32::try_from(limit).ok()?,
            remaining: u32::try_from(remaining).ok()?,
            reset_after: micros(reset)?,
            next_after: micros(next),
        };
        let receipt = Receipt {
            at: Timestamp::from_micros(u64::try_from(at).ok()?),
            cost: Cost::new(u32::try_from(cost).ok()?),
            debt_before: u64::try_from(debt_before).ok()?,
        };
        Some(Self { decision, receipt })
    }
}

/// What [`LEASE`] is told of a call.
pub fn lease_argument(limit: &Leasable, call: &LeaseCall) -> Vec<u8> {
    let limit = Limit::from(limit.counter());
    let (spent, returned) = (u64::from(call.spent), u64::from(call.returned));
    let (cost, want) = (call.cost.get(), u64::from(call.want));
    let values = [algorithm(&limit), call.id, spent, returned, cost, want];
    packed(&values, &[], &limit.numbers())
}

/// Reads the reply of [`LEASE`]; `None` if these are no fields of ours.
pub fn lease_answer(fields: [i64; LEASE_FIELDS]) -> Option<LeaseAnswer> {
    let [is_allowed, granted, leased, low, high, now, charged_at, debt_before] = fields;
    let moment = |field: i64| u64::try_from(field).ok().map(Timestamp::from_micros);
    Some(LeaseAnswer {
        is_allowed: is_allowed == 1,
        granted: u32::try_from(granted).ok()?,
        leased: u32::try_from(leased).ok()?,
        word: Word { low: u64::try_from(low).ok()?, high: u64::try_from(high).ok()? },
        now: moment(now)?,
        charged_at: moment(charged_at)?,
        debt_before: u64::try_from(debt_before).ok()?,
    })
}

/// What is given back, as [`REFUND`] wants it. The state may be under another quota by now, and is
/// left under that.
#[derive(Clone, Copy, Debug)]
pub enum Return<'a> {
    /// A charge of a counter. The receipt is used once.
    Refund {
        /// The limit the charge was made under.
        limit: &'a Counter,
        /// The charge.
        receipt: &'a Receipt,
    },
    /// Units of a charge of a log: a refund, or a release.
    GiveBack {
        /// The limit the charge was made under.
        limit: &'a Logged,
        /// The charge.
        id: ChargeId,
        /// The units the charge holds: what it cost, less what was given back before.
        held: Cost,
        /// How many of them are given back.
        units: Cost,
    },
    /// The hold of a charge of a log, started anew.
    Renew {
        /// The limit the charge was made under.
        limit: &'a Logged,
        /// The charge.
        id: ChargeId,
        /// The units the charge holds: what it cost, less what was given back before.
        held: Cost,
    },
}

impl Return<'_> {
    /// What [`REFUND`] is told of it.
    pub fn argument(&self) -> Vec<u8> {
        let (limit, [renew, units, at, debt_before], id, held) = match *self {
            Self::Refund { limit, receipt } => {
                let (units, at) = (receipt.cost.get(), receipt.at.as_micros());
                (Limit::from(*limit), [0, units, at, receipt.debt_before], ChargeId(0), Cost::PEEK)
            }
            Self::GiveBack { limit, id, held, units } => {
                (Limit::from(*limit), [0, units.get(), 0, 0], id, held)
            }
            Self::Renew { limit, id, held } => (Limit::from(*limit), [1, 0, 0, 0], id, held),
        };
        let [a, b, c, d, e] = limit.numbers();
        let values = [algorithm(&limit), renew, units, at, debt_before];
        packed(&values, &[id], &[held.get(), a, b, c, d, e])
    }
}

/// A charge, and what was really used, as [`SETTLE`] wants it. The state may be under another quota by
/// now, and is left under that.
#[derive(Clone, Copy, Debug)]
pub struct Settlement<'a> {
    /// The limit the charge was made under.
    pub limit: &'a Limit,
    /// The charge; of a log it says no more than what it cost.
    pub receipt: &'a Receipt,
    /// The charge's name in a log.
    pub id: ChargeId,
    /// What it really cost.
    pub cost: Cost,
    /// Names what is charged beyond the receipt in a log.
    pub more_id: ChargeId,
}

impl Settlement<'_> {
    /// What [`SETTLE`] is told of it.
    pub fn argument(&self) -> Vec<u8> {
        let Self { limit, receipt, id, cost, more_id } = *self;
        let rest = match limit {
            Limit::Counter(counter) => counter.rest(receipt, cost),
            Limit::Logged(_) => *receipt,
        };
        let more = cost.get().saturating_sub(receipt.cost.get());
        let back = receipt.cost.get().saturating_sub(cost.get());
        let at = receipt.at.as_micros();
        let [a, b, c, d, e] = limit.numbers();
        let values = [algorithm(limit), back, more, at, rest.debt_before];
        packed(&values, &[id, more_id], &[receipt.cost.get(), a, b, c, d, e])
    }
}

/// What the scripts keep under the key of a counter whose state, written under `limit`, is `word`;
/// nothing if that is [`Word::VACANT`].
///
/// It is MessagePack: the format's version and the algorithm's letter, the numbers of the limit that
/// give the counters their meaning, and the counters.
pub fn state_bytes(limit: &Counter, word: Word) -> Option<Vec<u8>> {
    if word == Word::VACANT {
        return None;
    }
    let two = [word.low, word.high];
    let three = SlidingWindow::counters(word);
    let numbers = Limit::from(*limit).numbers();
    let (letter, kept, counters) = match limit {
        Counter::SlidingWindow(_) => (b's', &numbers[1..2], &three[..]),
        Counter::TokenBucket(_) => (b't', &numbers[..2], &two[..]),
        Counter::LeakyBucket(_) => (b'l', &numbers[..2], &two[..]),
        Counter::FixedWindow(_) => (b'f', &numbers[1..3], &two[..]),
    };
    let mut bytes = vec![0xa2, b'1', letter];
    kept.iter().chain(counters).for_each(|&number| push_number(&mut bytes, number));
    Some(bytes)
}

/// What follows the bytes of [`state_bytes`] while units are out on lease.
pub fn leases_bytes(leases: &[Lease]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for lease in leases {
        let numbers = [lease.id, u64::from(lease.units), lease.ends_at.as_micros()];
        numbers.iter().for_each(|&number| push_number(&mut bytes, number));
    }
    bytes
}

/// Values in MessagePack, in this order. Names of charges have more digits than the scripts' numbers, so
/// they go as text.
fn packed(values: &[u64], ids: &[ChargeId], more: &[u64]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(64);
    values.iter().for_each(|&number| push_number(&mut bytes, number));
    for id in ids {
        let digits = id.0.to_string();
        bytes.push(0xa0 | digits.len() as u8);
        bytes.extend_from_slice(digits.as_bytes());
    }
    more.iter().for_each(|&number| push_number(&mut bytes, number));
    bytes
}

/// Appends a number as MessagePack writes it: in no more bytes than it needs.
fn push_number(bytes: &mut Vec<u8>, number: u64) {
    let (marker, length) = match number {
        0..=0x7f => (None, 1),
        0x80..=0xff => (Some(0xcc), 1),
        0x100..=0xffff => (Some(0xcd), 2),
        0x1_0000..=0xffff_ffff => (Some(0xce), 4),
        _ => (Some(0xcf), 8),
    };
    bytes.extend(marker);
    bytes.extend_from_slice(&number.to_be_bytes()[8 - length..]);
}

/// How the scripts call an algorithm.
const fn algorithm(limit: &Limit) -> u64 {
    match limit {
        Limit::Counter(Counter::SlidingWindow(_)) => 1,
        Limit::Counter(Counter::TokenBucket(_)) => 2,
        Limit::Counter(Counter::LeakyBucket(_)) => 3,
        Limit::Counter(Counter::FixedWindow(_)) => 4,
        Limit::Logged(Logged::SlidingLog(_)) => 5,
        Limit::Logged(Logged::Concurrency(_)) => 6,
    }
}
