//! Single keys that are allowed something else, by an operator's word.
//!
//! They go with the policy: whatever is put in force, they are made into its limits anew. One that
//! means nothing to the policy in force is kept and has no effect, so that a policy that is put back
//! finds it again. What a key has consumed stays consumed.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::error;
use std::fmt;

use smallvec::SmallVec;
use tollgate_core::{Decision, Key, KeyBuf, Limit, Micros, Outcome, Quota, Timestamp};
use tollgate_policy::{Change, Mistakes, Mode, Policy};
use tollgate_store::{Enrolled, Store, Taken, TooManyLimits};

use crate::bounds::KEY_OVERRIDES_MAX;

/// What one key is allowed instead of what the policy says, for a while or until it is removed.
///
/// As text it is JSON, so that it can be kept and read back:
///
/// ```
/// use tollgate::Override;
/// let saved = r#"{"rate":"900/minute","burst":50,"until_ms":1760000000000}"#;
/// let one = Override::from_json("api:acme".parse()?, saved)?;
/// assert_eq!(one.to_string(), saved);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Override {
    /// Whose.
    pub key: KeyBuf,
    /// What.
    pub change: Change,
    /// Until when, by [`Store::shared_now`]; for ever if that is not said.
    pub until: Option<Timestamp>,
}

impl Override {
    /// Reads what was written by [`Display`](fmt::Display).
    pub fn from_json(key: KeyBuf, text: &str) -> Result<Self, Mistakes> {
        let (change, millis) = Change::parse(text, "until_ms")?;
        let until = millis.map(|millis| Timestamp::from_micros(millis.saturating_mul(1_000)));
        Ok(Self { key, change, until })
    }

    /// Whether it still counts.
    pub fn is_in_time(&self, now: Timestamp) -> bool {
        self.until.is_none_or(|until| now < until)
    }
}

impl fmt::Display for Override {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let change = self.change.to_string();
        match self.until {
            None => f.write_str(&change),
            Some(until) => {
                let fields = change.trim_end_matches('}');
                let comma = if fields == "{" { "" } else { "," };
                write!(f, "{fields}{comma}\"until_ms\":{}}}", until.as_micros().div_ceil(1_000))
            }
        }
    }
}

/// All of them, made into limits of a policy.
#[derive(Debug, Default)]
pub(crate) struct Overrides {
    list: BTreeMap<String, Override>,
    /// By the key's text, those that mean something to the policy.
    made: HashMap<String, Made>,
    /// The rules that have any.
    rules: HashSet<usize>,
    /// Of those that are limits, in their order.
    rates: Vec<Option<Quota>>,
}

/// One, made into what it means.
#[derive(Debug)]
struct Made {
    /// Which of the limits; none if it is a ban.
    limit: Option<usize>,
    until: Option<Timestamp>,
}

/// What a key has by an override.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Overridden {
    /// Another limit.
    Limit(usize),
    /// Nothing, for so long if that is known.
    Banned(Option<Micros>),
}

/// The keys of a request that are banned: which of its charges, and what is said to them.
#[derive(Debug, Default)]
pub(crate) struct Bans(SmallVec<[(usize, Taken); 1]>);

/// How long until the limit of a key is whole that is banned without an end.
pub(crate) const NEVER: Micros = Micros::new(u64::MAX);

impl Bans {
    #[inline]
    pub(crate) fn are_none(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds one that lasts for so long, if that is known.
    pub(crate) fn add(
        &mut self,
        place: usize,
        left: Option<Micros>,
        key: &Key<'_>,
        limit: &Enrolled,
        store: &Store,
    ) {
        let decision = Decision {
            outcome: Outcome::Denied { retry_after: left },
            limit: limit.limit().capacity(),
            remaining: 0,
            reset_after: left.unwrap_or(NEVER),
            next_after: left,
        };
        self.0.push((place, store.decided_without(key, limit, decision)));
    }

    /// Each of them, in the order of the charges.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &(usize, Taken)> {
        self.0.iter()
    }

    /// Puts denials in the place of what the limits said.
    pub(crate) fn apply(&self, taken: &mut [Taken]) {
        for &(place, mut denied) in &self.0 {
            // The key has all of its limit when the ban is over and what it consumed has come back.
            if let Taken::Decided { decision, .. } = &mut denied
                && let Some(said) = taken[place].decision()
            {
                decision.reset_after = decision.reset_after.max(said.reset_after);
            }
            taken[place] = denied;
        }
    }
}

/// What a change makes of one of the policy's rules: a limit with its rate, or none if it is a ban; or
/// why it means nothing to it.
pub(crate) fn changed(
    policy: &Policy,
    rule: usize,
    change: &Change,
) -> Result<Option<(Limit, Option<Quota>)>, String> {
    let banned = &policy.rules()[rule];
    match (change.is_ban, banned.mode()) {
        (false, _) => policy.changed(rule, change).map(Some),
        (true, Mode::Enforce) => Ok(None),
        (true, Mode::Shadow) => {
            Err(format!("override of {:?}: it is in shadow, and denies nobody", banned.name()))
        }
    }
}

impl Overrides {
    /// Makes what is in `list` into limits of `policy`, which are added to the `enrolled` ones.
    pub(crate) fn new(
        list: BTreeMap<String, Override>,
        policy: &Policy,
        store: &Store,
        enrolled: &mut Vec<Enrolled>,
    ) -> Result<Self, TooManyLimits> {
        let mut overrides = Self::default();
        for (text, one) in &list {
            let Ok(named) = policy.named(&one.key) else { continue };
            let limit = match changed(policy, named.rule, &one.change) {
                Ok(Some((limit, rate))) => {
                    enrolled.push(store.enroll(limit)?);
                    overrides.rates.push(rate);
                    Some(overrides.rates.len() - 1)
                }
                Ok(None) => None,
                Err(_) => continue,
            };
            overrides.rules.insert(named.rule);
            overrides.made.insert(text.clone(), Made { limit, until: one.until });
        }
        Ok(Self { list, ..overrides })
    }

    pub(crate) fn list(&self) -> &BTreeMap<String, Override> {
        &self.list
    }

    /// Whether no key has one, so that nobody needs to look.
    #[inline]
    pub(crate) fn are_none(&self) -> bool {
        self.made.is_empty()
    }

    /// What a key under a rule has by one of them.
    pub(crate) fn find(&self, rule: usize, key: &Key<'_>, store: &Store) -> Option<Overridden> {
        if !self.rules.contains(&rule) {
            return None;
        }
        let Made { limit, until } = self.made.get(&store.key_text(key))?;
        let left = until.map(|until| until.since(store.shared_now()));
        if left.is_some_and(Micros::is_zero) {
            return None;
        }
        Some(limit.map_or(Overridden::Banned(left), Overridden::Limit))
    }

    /// The one of a key that is written so, if it means something now.
    pub(crate) fn of(&self, text: &str, now: Timestamp) -> Option<&Override> {
        let one = self.list.get(text).filter(|one| one.is_in_time(now));
        one.filter(|_| self.made.contains_key(text))
    }

    /// The rate of one, as it was written.
    pub(crate) fn rate(&self, place: usize) -> Option<Quota> {
        self.rates[place]
    }
}

/// Why a key cannot be told of or changed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeyRefused {
    /// No request is ever counted under it.
    Unknown {
        /// Why, as a sentence.
        why: String,
    },
    /// The change means nothing to its limit.
    Change {
        /// Why, as a sentence.
        why: String,
    },
    /// Too many keys have limits of their own.
    TooMany,
    /// The store can tell no more limits apart.
    Limits(TooManyLimits),
}

impl fmt::Display for KeyRefused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown { why } | Self::Change { why } => f.write_str(why),
            Self::TooMany => write!(
                f,
                "{KEY_OVERRIDES_MAX} keys have an override, which is the most; remove one, or write \
                 those that stay into the tenants file"
            ),
            Self::Limits(error) => error.fmt(f),
        }
    }
}

impl error::Error for KeyRefused {}

impl From<TooManyLimits> for KeyRefused {
    fn from(error: TooManyLimits) -> Self {
        Self::Limits(error)
    }
}
