//! The files of Envoy's rate limit service: domains of nested descriptors, each with its limits.
//!
//! A request names a domain and a list of entries, each a key and a value. At every level one
//! descriptor is chosen, and there is no way back from it: the one with that very value, else the
//! first in the file whose wildcard fits, else the one without a value. What is chosen for the last
//! entry decides; if it has no limit, nothing is limited.

mod read;
mod wildcards;

use std::fmt;
use std::sync::Arc;

use tollgate_core::{Limit, Micros};

use crate::OnStoreFailure;
use crate::hash::WordMap;
use crate::mistake::{Mistakes, Warning};
use wildcards::Wildcards;

/// What the files of a folder say.
///
/// ```
/// use tollgate_policy::Descriptors;
/// let text = "
/// domain: shop
/// descriptors:
///   - key: user
///     rate_limit: { unit: minute, requests_per_unit: 10 }
/// ";
/// let descriptors = Descriptors::parse(&[("shop.yaml", text)], false)?;
/// let shop = descriptors.domain("shop").expect("it is in the file");
/// let rule = shop.find(&[("user", "anna")]).expect("any user has a limit");
/// assert_eq!(rule.limits()[0].requests_per_unit(), 10);
/// assert!(shop.find(&[("user", "anna"), ("path", "/")]).is_none());
/// # Ok::<(), tollgate_policy::Mistakes>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Descriptors {
    /// By name, each with its number.
    domains: WordMap<Box<str>, (usize, Level)>,
    rules: Vec<DescriptorRule>,
    limits: Vec<Limit>,
    warnings: Vec<Warning>,
}

impl Descriptors {
    /// Reads some files, each by its name and text; with everything that is wrong in any of them if
    /// anything is. Two files may speak of one domain if `merge_domains` says so.
    pub fn parse(files: &[(&str, &str)], merge_domains: bool) -> Result<Self, Mistakes> {
        read::read(files, merge_domains)
    }

    /// The descriptors of a domain.
    pub fn domain(&self, name: &str) -> Option<Domain<'_>> {
        let (number, level) = self.domains.get(name)?;
        Some(Domain { number: *number, level, rules: &self.rules })
    }

    /// The names of all domains, in the order of their numbers.
    pub fn domains(&self) -> Vec<&str> {
        let mut names: Vec<(usize, &str)> =
            self.domains.iter().map(|(name, (number, _))| (*number, &**name)).collect();
        names.sort_unstable();
        names.into_iter().map(|(_, name)| name).collect()
    }

    /// Every limit of the files, each once; a [`DescriptorLimit`] names one by its index.
    pub fn limits(&self) -> &[Limit] {
        &self.limits
    }

    /// What is allowed and probably not meant, file by file.
    pub fn warnings(&self) -> &[Warning] {
        &self.warnings
    }
}

/// The descriptors of one domain.
#[derive(Clone, Copy, Debug)]
pub struct Domain<'d> {
    number: usize,
    level: &'d Level,
    rules: &'d [DescriptorRule],
}

impl<'d> Domain<'d> {
    /// Which of [`Descriptors::domains`] it is.
    pub fn number(&self) -> usize {
        self.number
    }

    /// The rule for a list of entries; none if nothing is limited.
    pub fn find(&self, entries: &[(&str, &str)]) -> Option<&'d DescriptorRule> {
        let (last, above) = entries.split_last()?;
        let mut level = self.level;
        for entry in above {
            level = &level.choose(*entry)?.below;
        }
        let rule = level.choose(*last)?.rule?;
        Some(&self.rules[rule as usize])
    }
}

/// Descriptors beside each other, by their keys.
#[derive(Clone, Debug, Default)]
struct Level(WordMap<Box<str>, Values>);

/// Descriptors beside each other with the same key.
#[derive(Clone, Debug, Default)]
struct Values {
    exact: WordMap<Box<str>, Node>,
    wildcards: Wildcards<Node>,
    any: Option<Box<Node>>,
}

/// One descriptor: the number of its rule, and the descriptors below it.
#[derive(Clone, Debug, Default)]
struct Node {
    rule: Option<u32>,
    below: Level,
}

impl Level {
    #[inline]
    fn choose(&self, (key, value): (&str, &str)) -> Option<&Node> {
        let values = self.0.get(key)?;
        values.exact.get(value).or_else(|| values.wildcards.find(value)).or(values.any.as_deref())
    }
}

/// What a descriptor says of the requests it is chosen for.
#[derive(Clone, Debug)]
pub struct DescriptorRule {
    limits: Box<[DescriptorLimit]>,
    is_unlimited: bool,
    is_shadow: bool,
    is_quota: bool,
    replaces: Box<[Box<str>]>,
    shared: Box<[Option<Box<str>>]>,
}

impl DescriptorRule {
    /// Its limits: one unless `rate_limit` is a list, none if it is `unlimited`.
    pub fn limits(&self) -> &[DescriptorLimit] {
        &self.limits
    }

    /// Whether it says `unlimited`.
    pub fn is_unlimited(&self) -> bool {
        self.is_unlimited
    }

    /// Whether it is counted and never over.
    pub fn is_shadow(&self) -> bool {
        self.is_shadow
    }

    /// Whether it is a quota: a request is over only when all its quotas are.
    pub fn is_quota(&self) -> bool {
        self.is_quota
    }

    /// The names of the limits that do not count beside it.
    pub fn replaces(&self) -> &[Box<str>] {
        &self.replaces
    }

    /// What the entry at `index` is counted by instead of its value, if all that fit a wildcard
    /// share one counter.
    #[inline]
    pub fn shared(&self, index: usize) -> Option<&str> {
        self.shared.get(index)?.as_deref()
    }
}

/// One limit of a descriptor.
#[derive(Clone, Debug)]
pub struct DescriptorLimit {
    limit: usize,
    name: Option<Arc<str>>,
    requests_per_unit: u32,
    unit: Unit,
    unit_multiplier: u32,
    on_store_failure: OnStoreFailure,
}

impl DescriptorLimit {
    /// Its number among [`Descriptors::limits`].
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// Its name, by which others may replace it.
    pub fn name(&self) -> Option<&Arc<str>> {
        self.name.as_ref()
    }

    /// How many.
    pub fn requests_per_unit(&self) -> u32 {
        self.requests_per_unit
    }

    /// In what time.
    pub fn unit(&self) -> Unit {
        self.unit
    }

    /// In how many of that unit.
    pub fn unit_multiplier(&self) -> u32 {
        self.unit_multiplier
    }

    /// What happens when the store cannot count.
    pub fn on_store_failure(&self) -> OnStoreFailure {
        self.on_store_failure
    }
}

/// A unit of time, as these files and Envoy write it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unit {
    /// `second`.
    Second,
    /// `minute`.
    Minute,
    /// `hour`.
    Hour,
    /// `day`.
    Day,
    /// `week`.
    Week,
    /// `month`: 30 days.
    Month,
    /// `year`: 365 days.
    Year,
}

impl Unit {
    /// All of them, shortest first.
    pub const ALL: [Self; 7] =
        [Self::Second, Self::Minute, Self::Hour, Self::Day, Self::Week, Self::Month, Self::Year];

    /// Its name in the files.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Second => "second",
            Self::Minute => "minute",
            Self::Hour => "hour",
            Self::Day => "day",
            Self::Week => "week",
            Self::Month => "month",
            Self::Year => "year",
        }
    }

    /// How long it is.
    pub const fn period(self) -> Micros {
        const DAY: u64 = 86_400;
        Micros::from_secs(match self {
            Self::Second => 1,
            Self::Minute => 60,
            Self::Hour => 3_600,
            Self::Day => DAY,
            Self::Week => 7 * DAY,
            Self::Month => 30 * DAY,
            Self::Year => 365 * DAY,
        })
    }
}

impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
