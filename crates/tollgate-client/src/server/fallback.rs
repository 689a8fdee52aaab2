//! Who decides when the server does not.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::time::Instant;
use tollgate_core::{Cost, Limit};

use super::wire::Verdict;
use crate::clock;
use crate::keyed::Keyed;
use crate::local::{self, When};

/// Who decides when the server does not answer.
#[derive(Clone, Debug)]
pub enum Fallback {
    /// Everything is allowed.
    Allow,
    /// Nothing is allowed.
    Deny,
    /// A limit of this process. With so many processes as there are, so much more is admitted: make it
    /// that much smaller.
    Limit {
        /// How much.
        limit: Limit,
        /// For each value of these attributes; none, and it is one for all.
        per: Vec<String>,
    },
}

/// A fallback and what it remembers.
#[derive(Debug)]
pub(super) struct Local {
    fallback: Fallback,
    counted: Keyed<Mutex<local::Local>>,
}

impl Local {
    pub(super) fn new(fallback: Fallback) -> Self {
        Self { fallback, counted: Keyed::new() }
    }

    /// Decides about a request of which `value_of` tells the attributes.
    pub(super) fn decide<'a>(
        &self,
        value_of: impl Fn(&str) -> Option<&'a str>,
        cost: u32,
        now: Instant,
    ) -> Verdict {
        let Fallback::Limit { limit, per } = &self.fallback else {
            return Verdict::of_fallback(matches!(self.fallback, Fallback::Allow), None);
        };
        let make = || Mutex::new(local::Local::new(*limit, now, clock::date()));
        let counted = self.counted.get(&key(value_of, per), make, |it| unlocked(it).is_vacant(now));
        match unlocked(&counted).take(Cost::new(cost), now) {
            Ok(_) => Verdict::of_fallback(true, None),
            Err(When::Then(moment)) => {
                Verdict::of_fallback(false, Some(moment.saturating_duration_since(now)))
            }
            Err(When::Now | When::Later | When::Never) => Verdict::of_fallback(false, None),
        }
    }
}

fn unlocked(counted: &Mutex<local::Local>) -> MutexGuard<'_, local::Local> {
    counted.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The values, each with its length before it, so that no two lists are one text.
fn key<'a>(value_of: impl Fn(&str) -> Option<&'a str>, per: &[String]) -> String {
    let values = per.iter().map(|name| value_of(name));
    values
        .map(|value| value.map_or("-".to_owned(), |value| format!("{}:{value}", value.len())))
        .collect()
}
