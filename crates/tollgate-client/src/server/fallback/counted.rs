//! A limit for each of many keys, in so much room and no more.
//!
//! A key has its place in one of many small sets; which one, its hash tells. In a full set a newcomer takes the place
//! of the key that is whole again soonest, but never of one that is used up: whoever is at its limit stays there,
//! however many others come.

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::str::FromStr;
use std::time::SystemTime;

use tokio::time::Instant;
use tollgate_core::{ChargeId, Cost, Limit, Outcome};

use crate::bounds::{FALLBACK_PLACES, FALLBACK_SETS};
use crate::local::Local;

pub(super) struct Counted {
    limit: Limit,
    began: Instant,
    date: SystemTime,
    sets: Vec<Vec<Place>>,
    /// Two, so that no two keys are taken for one; and different in every process, so that nobody can choose keys that
    /// crowd into one set.
    hashers: [RandomState; 2],
    /// Names the next charge, whosever it is.
    next: u64,
}

struct Place {
    key: Fingerprint,
    local: Local,
}

type Fingerprint = [u64; 2];

/// A slot of a concurrency limit. As a text it looks like no lease of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Slot {
    set: usize,
    id: ChargeId,
}

impl Counted {
    pub(super) fn new(limit: Limit, began: Instant, date: SystemTime) -> Self {
        let sets = (0..FALLBACK_SETS).map(|_| Vec::new()).collect();
        Self { limit, began, date, sets, hashers: Default::default(), next: 0 }
    }

    /// Takes so much of the limit of these values, if it is there. What counts those under way gives out a slot.
    pub(super) fn decide<'a>(
        &mut self,
        values: impl Iterator<Item = Option<&'a str>>,
        cost: Cost,
        now: Instant,
    ) -> (Outcome, Option<Slot>) {
        let values: Vec<Option<&str>> = values.collect();
        let key = [self.hashers[0].hash_one(&values), self.hashers[1].hash_one(&values)];
        let slot = Slot { set: key[0] as usize % FALLBACK_SETS, id: ChargeId(self.next) };
        self.next += 1;
        let set = &mut self.sets[slot.set];
        let known = set.iter_mut().find(|place| place.key == key);
        let (outcome, is_slot) = match known {
            Some(Place { local, .. }) => {
                (local.decide(cost, slot.id, now).outcome, local.counts_those_under_way())
            }
            None => {
                let mut local = Local::new(self.limit, self.began, self.date);
                let outcome = local.decide(cost, slot.id, now).outcome;
                let is_slot = local.counts_those_under_way();
                // Whoever took nothing needs no place.
                let is_placed = local.is_vacant(now) || put(set, Place { key, local }, now);
                (if is_placed { outcome } else { full(set, now) }, is_slot)
            }
        };
        let is_held = is_slot && outcome.is_allowed() && cost != Cost::PEEK;
        (outcome, is_held.then_some(slot))
    }

    /// False if it is not held any more.
    pub(super) fn release(&mut self, slot: Slot, now: Instant) -> bool {
        self.set(slot).iter_mut().any(|place| place.local.give_back(slot.id, now))
    }

    /// False if it is not held any more.
    pub(super) fn renew(&mut self, slot: Slot, now: Instant) -> bool {
        self.set(slot).iter_mut().any(|place| place.local.renew(slot.id, now))
    }

    fn set(&mut self, slot: Slot) -> &mut [Place] {
        self.sets.get_mut(slot.set).map_or(&mut [], Vec::as_mut_slice)
    }
}

/// Puts a newcomer into a set, if there is a place or one can be had.
fn put(set: &mut Vec<Place>, newcomer: Place, now: Instant) -> bool {
    if set.len() < FALLBACK_PLACES {
        set.push(newcomer);
        return true;
    }
    let has_some_left = |place: &&mut Place| place.local.peek(now).is_allowed();
    let soonest = set.iter_mut().filter(has_some_left).min_by_key(|place| place.local.vacant_at());
    match soonest {
        Some(place) => {
            *place = newcomer;
            true
        }
        None => false,
    }
}

/// What a newcomer is told where everybody has used all: until one of them has something, it has no place.
fn full(set: &[Place], now: Instant) -> Outcome {
    let waits = set.iter().filter_map(|place| place.local.peek(now).retry_after());
    Outcome::Denied { retry_after: waits.min() }
}

impl fmt::Debug for Counted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Counted").field("limit", &self.limit).finish_non_exhaustive()
    }
}

impl fmt::Display for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "fallback-{}-{}", self.set, self.id.0)
    }
}

impl FromStr for Slot {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let numbers = text.strip_prefix("fallback-").and_then(|rest| rest.split_once('-'));
        let (set, id) = numbers.ok_or(())?;
        let id = id.parse().map(ChargeId).map_err(drop)?;
        Ok(Self { set: set.parse().map_err(drop)?, id })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tollgate_core::Quota;

    use super::*;
    use crate::clock;

    fn of_two() -> (Counted, Instant) {
        let limit = Limit::token_bucket(Quota::per_hour(2), 2).expect("a limit");
        let now = clock::now();
        (Counted::new(limit, now, SystemTime::UNIX_EPOCH), now)
    }

    fn take(counted: &mut Counted, key: &str, cost: u32, now: Instant) -> Outcome {
        counted.decide([Some(key)].into_iter(), Cost::new(cost), now).0
    }

    fn places(counted: &Counted) -> usize {
        counted.sets.iter().map(Vec::len).sum()
    }

    #[test]
    fn one_that_is_used_up_stays_so_however_many_others_come() {
        let (mut counted, now) = of_two();
        assert!(take(&mut counted, "busy", 2, now).is_allowed());
        for number in 0..3 * FALLBACK_SETS * FALLBACK_PLACES {
            let key = number.to_string();
            assert!(take(&mut counted, &key, 1, now).is_allowed(), "there is room for {key}");
        }
        assert!(!take(&mut counted, "busy", 1, now).is_allowed());
        assert!(places(&counted) <= FALLBACK_SETS * FALLBACK_PLACES);
    }

    #[test]
    fn without_room_a_newcomer_is_denied_until_somebody_has_something_left() {
        let (mut counted, now) = of_two();
        let keys: Vec<String> =
            (0..2 * FALLBACK_SETS * FALLBACK_PLACES).map(|number| number.to_string()).collect();
        let is_refused = |key: &&String| !take(&mut counted, key, 2, now).is_allowed();
        let refused: Vec<&String> = keys.iter().filter(is_refused).collect();
        assert_eq!(places(&counted), keys.len() - refused.len(), "whoever took has a place");
        assert!(places(&counted) <= FALLBACK_SETS * FALLBACK_PLACES);
        let Outcome::Denied { retry_after: Some(wait) } = take(&mut counted, refused[0], 1, now)
        else {
            panic!("a wait is known")
        };
        let soon = now + Duration::from(wait) - Duration::from_micros(1);
        assert!(!take(&mut counted, refused[0], 1, soon).is_allowed());
        let then = now + Duration::from(wait);
        assert!(take(&mut counted, refused[0], 1, then).is_allowed());
    }

    #[test]
    fn who_looks_takes_no_place() {
        let (mut counted, now) = of_two();
        assert!(take(&mut counted, "a", 0, now).is_allowed());
        assert_eq!(take(&mut counted, "a", 3, now), Outcome::TooCostly);
        assert_eq!(places(&counted), 0);
    }

    #[test]
    fn values_are_told_apart_wherever_they_end() {
        let (mut counted, now) = of_two();
        let keys: [&[Option<&str>]; 5] = [
            &[Some("a"), Some("b")],
            &[Some("ab"), Some("")],
            &[None, Some("ab")],
            &[Some(""), Some("ab")],
            &[Some("ab"), None],
        ];
        for key in keys {
            let (outcome, _) = counted.decide(key.iter().copied(), Cost::new(2), now);
            assert!(outcome.is_allowed(), "{key:?}");
        }
    }

    #[test]
    fn a_slot_reads_as_it_was_written_and_a_lease_of_a_server_is_none() {
        let slot = Slot { set: 17, id: ChargeId(42) };
        assert_eq!(slot.to_string().parse(), Ok(slot));
        for other in
            ["", "0123456789abcdef0123456789abcdef", "fallback-", "fallback-1", "fallback-x-1"]
        {
            assert_eq!(other.parse::<Slot>(), Err(()));
        }
    }
}
