//! Single keys that are allowed something else, by an operator's word.
//!
//! They go with the policy: whatever is put in force, they are made into its limits anew. One that
//! means nothing to the policy in force is kept and has no effect, so that a policy that is put back
//! finds it again. What a key has consumed stays consumed.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::error;
use std::fmt;

use tollgate_core::{Key, KeyBuf, Quota, Timestamp};
use tollgate_policy::{Change, Mistakes, Policy};
use tollgate_store::{Enrolled, Store, TooManyLimits};

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
    places: HashMap<String, usize>,
    /// The rules that have any.
    rules: HashSet<usize>,
    made: Vec<Made>,
}

/// One, made into a limit.
#[derive(Debug)]
struct Made {
    rate: Option<Quota>,
    until: Option<Timestamp>,
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
            let Ok((limit, rate)) = policy.changed(named.rule, &one.change) else { continue };
            enrolled.push(store.enroll(limit)?);
            overrides.rules.insert(named.rule);
            overrides.places.insert(text.clone(), overrides.made.len());
            overrides.made.push(Made { rate, until: one.until });
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

    /// Which of them a key under a rule has.
    pub(crate) fn find(&self, rule: usize, key: &Key<'_>, store: &Store) -> Option<usize> {
        if !self.rules.contains(&rule) {
            return None;
        }
        let place = *self.places.get(&store.key_text(key))?;
        let is_over = self.made[place].until.is_some_and(|until| store.shared_now() >= until);
        (!is_over).then_some(place)
    }

    /// The rate of one, as it was written.
    pub(crate) fn rate(&self, place: usize) -> Option<Quota> {
        self.made[place].rate
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
