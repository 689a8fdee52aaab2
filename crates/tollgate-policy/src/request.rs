//! What is asked of a policy, and what it answers.
//!
//! Nothing here owns a request's bytes: values are borrowed from the caller or from the policy, so
//! that asking costs no allocation.

use smallvec::SmallVec;
use tollgate_core::{Cost, Value};

use crate::address::CountedText;
use crate::attribute::AttributeId;
use crate::layer::Layer;
use crate::mistake::Place;
use crate::rule::Rule;

/// One request, as a door sees it.
#[derive(Clone, Copy, Debug)]
pub struct Request<'r> {
    /// What is known of it, by name: `client_ip`, `method`, `path`, `host`, `header:x-api-key`
    /// (header names in lower case), or anything a caller of the API sends. A name is expected
    /// once; of a name sent twice the first is used.
    pub attributes: &'r [(&'r str, &'r [u8])],
    /// What the caller says it costs. A limit's own cost beats it, except that a peek stays a peek.
    pub cost: Cost,
    /// What an attribute that is not there means to a limit that counts by it.
    pub missing: Missing,
    /// Whether its end will be told.
    pub end: End,
    /// What it is: a request, unless a door asks about something else.
    pub layer: Layer,
}

impl<'r> Request<'r> {
    /// A request that costs one, from a caller who chooses what it sends and tells when it ends.
    pub const fn new(attributes: &'r [(&'r str, &'r [u8])]) -> Self {
        let (missing, end, layer) = (Missing::Skip, End::Told, Layer::Request);
        Self { attributes, cost: Cost::ONE, missing, end, layer }
    }
}

/// Whether the door learns when a request ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum End {
    /// It does, and gives slots back then.
    #[default]
    Told,
    /// It never does: a slot would be held until its lease ends, so concurrency limits do not apply.
    Unknown,
}

/// What a limit does when an attribute it counts by is not there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Missing {
    /// All requests that lack it count as one, so that leaving a header out is no way around a
    /// limit: for doors that face clients.
    Shared,
    /// The limit does not apply: for callers of the API, who choose what they send.
    #[default]
    Skip,
}

/// Room for the one value that is neither the caller's nor the policy's: an address cut to its
/// prefix. Make one per request, with `Scratch::default()`.
#[derive(Clone, Debug)]
pub struct Scratch {
    pub(crate) text: CountedText,
}

impl Default for Scratch {
    fn default() -> Self {
        Self { text: CountedText::EMPTY }
    }
}

/// What a policy says of a request before anything is counted.
#[derive(Clone, Copy, Debug)]
pub enum Admission<'p, 'r> {
    /// It is on the `exempt` list: let it through, count nothing.
    Exempt(&'p ListEntry),
    /// It is on the `deny` list: refuse it, count nothing.
    Blocked(&'p ListEntry),
    /// It carries no key of the tenants file, and `tenants.unknown` is `refuse`.
    UnknownKey,
    /// The attribute that says what it costs does not hold a cost. A limit in shadow is skipped
    /// instead: it refuses nobody.
    BadCost {
        /// The limit that asks for it.
        rule: &'p Rule,
        /// The attribute.
        attribute: &'p str,
        /// What it holds.
        value: &'r [u8],
    },
    /// The limits that apply are to be charged; there may be none.
    Charged,
}

/// Charges of one request, in the order of the policy.
pub type Charges<'p, 'r> = SmallVec<[Charge<'p, 'r>; 8]>;

/// One limit that applies to a request: count so much, for these values.
#[derive(Clone, Debug)]
pub struct Charge<'p, 'r> {
    /// The limit as the policy names it.
    pub rule: &'p Rule,
    /// Which of [`Policy::rules`](crate::Policy::rules) that is.
    pub rule_index: usize,
    /// How much is allowed: which of [`Policy::limits`](crate::Policy::limits); of a limit that is
    /// split, a share.
    pub limit: usize,
    /// For which tier: which of [`Rule::tiers`], from one on; zero if for none of them.
    pub tier: u32,
    /// Whom it is counted for, in the order of [`Rule::per`], and behind that the shard, if the limit
    /// is split.
    pub values: Values<'r>,
    /// What the request costs under this limit.
    pub cost: Cost,
}

/// The values one charge is counted by.
pub type Values<'r> = SmallVec<[Value<'r>; 3]>;

/// An entry of `exempt` or `deny`.
#[derive(Clone, Debug)]
pub struct ListEntry {
    pub(crate) place: Place,
    pub(crate) text: String,
    /// What it asks about.
    pub(crate) attributes: Vec<AttributeId>,
}

impl ListEntry {
    /// Where it is written.
    pub fn place(&self) -> &Place {
        &self.place
    }

    /// Its conditions in one line, without values that may be credentials.
    pub fn text(&self) -> &str {
        &self.text
    }
}
