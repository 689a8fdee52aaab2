//! Answers as Envoy's rate limit service does, for the files of that service.
//!
//! This is what the service means, without how it is asked: the doors turn a message into a
//! [`Call`], and the [`Response`] into a message.
//!
//! ```
//! use tollgate::Limiter;
//! use tollgate::envoy::{Call, Descriptor, Descriptors};
//!
//! let files = [("shop.yaml", "
//! domain: shop
//! descriptors:
//!   - key: user
//!     rate_limit: { unit: hour, requests_per_unit: 2 }
//! ")];
//! let limiter = Limiter::from_yaml("limits: []")?;
//! limiter.replace_descriptors(Descriptors::parse(&files, false)?, &Default::default())?;
//!
//! let anna = [Descriptor { entries: &[("user", "anna")], ..Descriptor::default() }];
//! let call = Call { domain: "shop", descriptors: &anna, hits: 1 };
//! let over = [(); 3].map(|()| limiter.rate_limit(&call).map(|asked| asked.wait().is_over));
//! assert_eq!(over, [Ok(false), Ok(false), Ok(true)]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod engine;
mod tell;

use std::fmt;
use std::sync::Arc;

use smallvec::SmallVec;
use tollgate_store::{Asked, TooManyLimits};

pub use tollgate_policy::{Charging, DescriptorSettings, Descriptors, ResponseHeaders, Unit};

use crate::Policy;
use crate::bounds::{DESCRIPTORS_MAX, ENTRIES_MAX};
use crate::limiter::Limiter;

pub(crate) use engine::Engine;

/// One request for a decision.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    /// Whose descriptors they are.
    pub domain: &'a str,
    /// What is asked about; each is decided on its own.
    pub descriptors: &'a [Descriptor<'a>],
    /// What each descriptor costs that does not say so itself; zero counts as one.
    pub hits: u32,
}

/// A list of facts that together name one counter.
#[derive(Clone, Copy, Debug, Default)]
pub struct Descriptor<'a> {
    /// The facts, each a key and a value.
    pub entries: &'a [(&'a str, &'a str)],
    /// What the caller wants counted instead of what the files say.
    pub limit: Option<Override>,
    /// What it costs, if not what the call says; zero asks without taking.
    pub hits: Option<u64>,
    /// Whether the hits are given back rather than taken.
    pub is_negative_hits: bool,
}

/// A limit that came with the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Override {
    /// How many.
    pub requests_per_unit: u32,
    /// In what time.
    pub unit: Unit,
    /// In how many of that unit; zero counts as one.
    pub unit_multiplier: u32,
}

/// The answer to a [`Call`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Response {
    /// Whether any descriptor is over its limit.
    pub is_over: bool,
    /// The answer to each descriptor, in the order of the call.
    pub statuses: SmallVec<[Status; 4]>,
    /// Fields for the response to the client: none unless `response_headers` says so.
    pub headers: Vec<(Arc<str>, String)>,
    /// What Envoy may log or route by: nothing unless `dynamic_metadata` says so.
    pub metadata: Option<Metadata>,
}

/// A map of names to values, as Envoy's dynamic metadata is.
pub type Metadata = Vec<(&'static str, Value)>;

/// A value of [`Metadata`].
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// True or false.
    Bool(bool),
    /// A number.
    Number(f64),
    /// A text.
    Text(String),
    /// A list.
    List(Vec<Value>),
    /// A map.
    Map(Metadata),
}

/// The answer to one [`Descriptor`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// Whether it is over its limit.
    pub is_over: bool,
    /// The limit it is counted under; none if none applies.
    pub current_limit: Option<CurrentLimit>,
    /// What can still be taken.
    pub limit_remaining: u32,
    /// Whole seconds until the limit is whole again, or if it is over, until the same would be let
    /// through; none if no limit applies.
    pub seconds_until_reset: Option<u64>,
}

/// The limit a descriptor is counted under.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CurrentLimit {
    /// Its `name` in the files.
    pub name: Option<Arc<str>>,
    /// How many.
    pub requests_per_unit: u32,
    /// In what time.
    pub unit: Unit,
    /// In how many of that unit, if not one.
    pub unit_multiplier: Option<u32>,
}

/// Why a call has no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CallError {
    /// It names no domain.
    EmptyDomain,
    /// It asks about nothing.
    NoDescriptors,
    /// It asks about more than one call may.
    TooManyDescriptors,
    /// A descriptor has more entries than one may have.
    TooManyEntries,
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::EmptyDomain => "rate limit domain must not be empty",
            Self::NoDescriptors => "rate limit descriptor list must not be empty",
            Self::TooManyDescriptors => "too many descriptors in one call",
            Self::TooManyEntries => "too many entries in one descriptor",
        })
    }
}

impl std::error::Error for CallError {}

impl Limiter {
    /// Decides a call by the descriptors in force.
    pub fn rate_limit(&self, call: &Call<'_>) -> Result<Asked<Response>, CallError> {
        call.check()?;
        Ok(self.envoy().decide(self, call))
    }

    /// Puts other descriptors in force. Calls under way finish under those they began with; what
    /// was consumed stays consumed.
    pub fn replace_descriptors(
        &self,
        descriptors: Descriptors,
        settings: &DescriptorSettings,
    ) -> Result<(), TooManyLimits> {
        let prepared = self.envoy().prepare(self.store(), &self.counted, descriptors, settings)?;
        self.envoy().put_in_force(prepared);
        Ok(())
    }

    /// Puts another policy and the descriptors that belong to it in force, or neither.
    pub fn replace_all(
        &self,
        policy: Policy,
        descriptors: Descriptors,
    ) -> Result<(), TooManyLimits> {
        let settings = policy.settings().descriptors.clone().unwrap_or_default();
        let prepared = self.envoy().prepare(self.store(), &self.counted, descriptors, &settings)?;
        self.replace_policy(policy)?;
        self.envoy().put_in_force(prepared);
        Ok(())
    }
}

impl Call<'_> {
    fn check(&self) -> Result<(), CallError> {
        if self.domain.is_empty() {
            return Err(CallError::EmptyDomain);
        }
        if self.descriptors.is_empty() {
            return Err(CallError::NoDescriptors);
        }
        if self.descriptors.len() > DESCRIPTORS_MAX {
            return Err(CallError::TooManyDescriptors);
        }
        if self.descriptors.iter().any(|descriptor| descriptor.entries.len() > ENTRIES_MAX) {
            return Err(CallError::TooManyEntries);
        }
        Ok(())
    }
}
