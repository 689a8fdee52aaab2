//! What a policy says of one limit.

use std::fmt;
use std::sync::Arc;

use tollgate_core::{Algorithm, Cost, Shown, Value};

use crate::attribute::{AttributeId, Facts};
use crate::change::Base;
use crate::layer::Layer;
use crate::mistake::Place;
use crate::request::{End, Missing, Values};
use crate::select::Select;
use crate::shards::Shards;

/// One thing that is counted: a limit, or one of the several rates of a limit.
///
/// It fills one line of the processor's cache: of ten thousand rules, those that apply to a request
/// are each fetched at once.
#[derive(Clone, Debug)]
#[repr(align(64))]
pub struct Rule {
    pub(crate) name: Arc<str>,
    /// Rules that count by the same attributes share it.
    pub(crate) per: Arc<[Per]>,
    /// Which of the policy's limits.
    pub(crate) limit: Select<u32>,
    pub(crate) details: Box<Details>,
    pub(crate) algorithm: Algorithm,
    pub(crate) mode: Mode,
    pub(crate) on_store_failure: OnStoreFailure,
    pub(crate) count_denied: bool,
    pub(crate) sync: SyncMode,
    /// Whether the cost is not the caller's.
    pub(crate) has_own_cost: bool,
    /// Whether it is split, as the details say.
    pub(crate) is_sharded: bool,
}

const _: () = assert!(size_of::<Rule>() == 64);

/// What is not needed for every request.
#[derive(Clone, Debug)]
pub(crate) struct Details {
    pub(crate) place: Place,
    pub(crate) layer: Layer,
    pub(crate) on_denied: OnDenied,
    pub(crate) cost: CostOf,
    pub(crate) settle: Option<Settle>,
    pub(crate) on_exhausted: OnExhausted,
    pub(crate) shards: Option<Shards>,
    pub(crate) base: Base,
}

impl Rule {
    /// Its name in answers: `api`, and `api#2` for the second rate of `api`.
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// The name as the policy writes it: `api` for `api#2` as well.
    pub fn limit_name(&self) -> &str {
        // Only we write the sign: no name in a policy holds it.
        self.name.split_once('#').map_or(&self.name, |(name, _)| name)
    }

    /// How it counts.
    pub fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// Whether its denials count.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Whether a denied request is charged all the same.
    pub fn count_denied(&self) -> bool {
        self.count_denied
    }

    /// What to answer when the store cannot.
    pub fn on_store_failure(&self) -> OnStoreFailure {
        self.on_store_failure
    }

    /// How nodes that share a store agree.
    pub fn sync(&self) -> SyncMode {
        self.sync
    }

    /// How it is split over several keys, if it is. Then every charge has one more value than
    /// [`per`](Self::per) has entries: the shard.
    pub fn shards(&self) -> Option<&Shards> {
        self.details.shards.as_ref()
    }

    /// What it counts.
    pub fn layer(&self) -> Layer {
        self.details.layer
    }

    /// Whether it counts what is asked about there.
    pub(crate) fn is_asked_at(&self, layer: Layer) -> bool {
        let Details { layer: own, cost, .. } = &*self.details;
        let is_by_length = *own == Layer::Message && matches!(cost, CostOf::Attribute(_));
        layer == *own || layer == Layer::Fragment && is_by_length
    }

    /// What becomes of a WebSocket or a stream whose message it denies.
    pub fn on_denied(&self) -> OnDenied {
        self.details.on_denied
    }

    /// Where the response says what the request cost, if it does: then a charge is what is reserved
    /// for it, and is settled when the response ends.
    pub fn settle(&self) -> Option<&Settle> {
        self.details.settle.as_ref()
    }

    /// What becomes of a response that costs more than is left.
    pub fn on_exhausted(&self) -> OnExhausted {
        self.details.on_exhausted
    }

    /// Whether it says itself what a request costs, rather than the caller.
    pub fn has_own_cost(&self) -> bool {
        self.has_own_cost
    }

    /// What it counts by, in order; empty for one count over everybody.
    pub fn per(&self) -> &[Per] {
        &self.per
    }

    /// Where it is written.
    pub fn place(&self) -> &Place {
        &self.details.place
    }

    /// Which of [`Policy::limits`](crate::Policy::limits) it may put to a request, in order, each
    /// once: one, or several if it goes by tier or by the value of an attribute. Overrides of
    /// single tenants are not among them. Of a limit that is split they are the wholes, of which
    /// charges name a share.
    pub fn limits(&self) -> Vec<usize> {
        let mut limits: Vec<usize> =
            self.limit.amounts().into_iter().map(|limit| limit as usize).collect();
        limits.sort_unstable();
        limits.dedup();
        limits
    }

    /// The tiers for which the policy gives it an amount of their own, in the order of the policy; none
    /// if it does not go by tier.
    pub fn tiers(&self) -> Vec<String> {
        let text = |tier: &[u8]| String::from_utf8_lossy(tier).into_owned();
        self.limit.tiers().into_iter().map(text).collect()
    }

    /// Whom a request is counted for; the number of the `per` that the request lacks if it is not
    /// counted at all.
    #[inline]
    pub(crate) fn values<'r>(
        &self,
        asked: &Asked<'_, 'r>,
        values: &mut Values<'r>,
    ) -> Result<(), usize> {
        for (number, per) in self.per.iter().enumerate() {
            values.push(per.value(asked).ok_or(number)?);
        }
        Ok(())
    }

    /// What a request costs; nothing if it says something that is not a cost.
    #[inline]
    pub(crate) fn cost(&self, facts: &Facts<'_>, caller: Cost) -> Option<Cost> {
        // Whoever only looks is not charged, whatever the limit would charge.
        if !self.has_own_cost || caller == Cost::PEEK {
            return Some(caller);
        }
        self.details.cost.of(facts, caller)
    }
}

/// Whether a limit's denials count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Mode {
    /// They do.
    #[default]
    Enforce,
    /// It decides and counts, and never denies.
    Shadow,
}

impl Mode {
    /// Its name in a policy.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Enforce => "enforce",
            Self::Shadow => "shadow",
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// What a limit answers when the store fails.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OnStoreFailure {
    /// Let the request through.
    Allow,
    /// Refuse it.
    Deny,
    /// Enforce this node's share in its own memory.
    #[default]
    Local,
}

impl OnStoreFailure {
    /// Its name in a policy.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Deny => "deny",
            Self::Local => "local",
        }
    }
}

impl fmt::Display for OnStoreFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// How the nodes that share a store agree on a limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum SyncMode {
    /// Every request is decided at the store.
    #[default]
    Strict,
    /// A node takes a batch of units from the store and spends it by itself.
    Leased,
}

impl SyncMode {
    /// Its name in a policy.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Strict => "strict",
            Self::Leased => "leased",
        }
    }
}

impl fmt::Display for SyncMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// What becomes of a WebSocket or a stream when a limit denies one of its messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OnDenied {
    /// It is closed: a WebSocket with code 1008, a stream as its protocol ends one.
    #[default]
    Close,
    /// Nothing more is read from it until the message is allowed; if no wait helps, it is closed.
    Delay,
}

impl OnDenied {
    /// Its name in a policy.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Close => "close",
            Self::Delay => "delay",
        }
    }
}

impl fmt::Display for OnDenied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Where a response says what its request cost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Settle {
    /// In its JSON: a number, under these names from the outermost in. Of a streamed response, in
    /// the last event that has it.
    Json(Box<[Box<str>]>),
    /// In a header of this name, in small letters.
    Header(Box<str>),
    /// Nowhere: it costs the bytes of its body.
    Body,
}

/// What becomes of a response that costs more than its limit has left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OnExhausted {
    /// It is sent to its end, and the limit is past its own until time has made up for it.
    #[default]
    Finish,
    /// It ends there.
    Cut,
}

impl OnExhausted {
    /// Its name in a policy.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Finish => "finish",
            Self::Cut => "cut",
        }
    }
}

impl fmt::Display for OnExhausted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// One thing a limit counts by: an attribute, or the first of several that is there.
#[derive(Clone, Debug)]
pub struct Per {
    pub(crate) sources: Vec<Source>,
    /// Whether it is for us to say that a request has none, not for the caller: then all who have
    /// none count as one, whatever door they came through.
    pub(crate) always_shared: bool,
}

impl Per {
    /// The attributes, in the order they are tried; one unless `first` was written.
    pub fn sources(&self) -> &[Source] {
        &self.sources
    }

    #[inline]
    fn value<'r>(&self, asked: &Asked<'_, 'r>) -> Option<Value<'r>> {
        for (number, source) in self.sources.iter().enumerate() {
            if let Some(bytes) = asked.value(source.id) {
                let shown = if source.secret { Shown::AsHash } else { Shown::Plainly };
                return Some(Value { bytes: Some(bytes), source: number as u8, shown });
            }
        }
        let is_shared = self.always_shared || asked.missing == Missing::Shared;
        is_shared.then_some(Value::MISSING)
    }
}

/// An attribute that a limit may count or be split by.
#[derive(Clone, Debug)]
pub struct Source {
    pub(crate) name: Arc<str>,
    pub(crate) id: AttributeId,
    pub(crate) secret: bool,
}

impl Source {
    /// The attribute's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether its values must be shown and stored as a hash only: headers, cookies and API keys.
    pub fn is_secret(&self) -> bool {
        self.secret
    }
}

/// A request, by what it is counted.
pub(crate) struct Asked<'f, 'r> {
    pub(crate) facts: &'f Facts<'r>,
    pub(crate) missing: Missing,
    pub(crate) end: End,
    pub(crate) layer: Layer,
    /// The text by which the client's address is counted, if that is not the one that was sent.
    pub(crate) address: Option<(AttributeId, &'r [u8])>,
}

impl<'r> Asked<'_, 'r> {
    /// Whether a rule must pass the request by: nobody would give its slot back.
    #[inline]
    pub(crate) fn is_endless_for(&self, rule: &Rule) -> bool {
        self.end == End::Unknown && rule.algorithm == Algorithm::Concurrency
    }

    #[inline]
    pub(crate) fn value(&self, id: AttributeId) -> Option<&'r [u8]> {
        match self.address {
            Some((address, text)) if address == id => Some(text),
            _ => self.facts.value(id),
        }
    }
}

/// What a request costs under a limit.
#[derive(Clone, Debug)]
pub(crate) enum CostOf {
    Caller,
    Policy(Select<Cost>),
    Attribute(AttributeId),
}

impl CostOf {
    fn of(&self, facts: &Facts<'_>, caller: Cost) -> Option<Cost> {
        match self {
            Self::Caller => Some(caller),
            Self::Policy(select) => Some(select.pick(facts)),
            Self::Attribute(attribute) => match facts.value(*attribute) {
                None => Some(Cost::ONE),
                Some(value) => std::str::from_utf8(value).ok()?.parse().ok(),
            },
        }
    }
}
