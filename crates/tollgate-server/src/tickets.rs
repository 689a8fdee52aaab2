//! What callers over the network hold of us, by name.
//!
//! A caller holds a name of 128 random bits, which nobody can guess; we hold the thing. Each has an end,
//! after which its name means nothing and it is forgotten.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tollgate::Timestamp;

/// Ends of things that are gone already and not worth a look.
const ENDS_KEPT: usize = 1024;

/// Things by name.
#[derive(Debug)]
pub(crate) struct Tickets<T> {
    held: Mutex<Held<T>>,
    names: [RandomState; 2],
}

#[derive(Debug)]
struct Held<T> {
    things: HashMap<u128, Kept<T>>,
    /// When to look at whom, soonest first. What goes on for longer is looked at again later.
    ends: BinaryHeap<Reverse<(Timestamp, u128)>>,
    given: u64,
}

#[derive(Debug)]
struct Kept<T> {
    thing: T,
    ends_at: Timestamp,
}

impl<T> Tickets<T> {
    pub(crate) fn new() -> Self {
        let held = Held { things: HashMap::new(), ends: BinaryHeap::new(), given: 0 };
        Self { held: Mutex::new(held), names: [RandomState::new(), RandomState::new()] }
    }

    /// Keeps what `make` makes when it is told its name.
    pub(crate) fn keep(
        &self,
        now: Timestamp,
        ends_at: Timestamp,
        make: impl FnOnce(&str) -> T,
    ) -> String {
        let mut held = self.held();
        held.forget_ended(now);
        held.given += 1;
        let given = held.given;
        drop(held);
        let [high, low] = [0, 1].map(|half: usize| self.names[half].hash_one(given));
        let name = u128::from(high) << 64 | u128::from(low);
        let text = format!("{name:032x}");
        let thing = make(&text);
        let mut held = self.held();
        held.ends.push(Reverse((ends_at, name)));
        held.things.insert(name, Kept { thing, ends_at });
        text
    }

    /// Forgets some of what has ended. What is kept makes some go as well; whoever keeps nothing for want
    /// of room must ask for it.
    pub(crate) fn forget_ended(&self, now: Timestamp) {
        self.held().forget_ended(now);
    }

    /// How many things there are.
    pub(crate) fn count(&self) -> usize {
        self.held().things.len()
    }

    /// Takes a thing away, also one that has ended and is not forgotten yet.
    pub(crate) fn take(&self, name: &str) -> Option<T> {
        self.held().things.remove(&read(name)?).map(|kept| kept.thing)
    }

    /// Shows a thing and its end, which may be moved; nothing if it is unknown.
    pub(crate) fn with<R>(
        &self,
        name: &str,
        look: impl FnOnce(&mut T, &mut Timestamp) -> R,
    ) -> Option<R> {
        let name = read(name)?;
        let mut held = self.held();
        let Kept { thing, ends_at } = held.things.get_mut(&name)?;
        Some(look(thing, ends_at))
    }

    fn held(&self) -> MutexGuard<'_, Held<T>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Held<T> {
    fn forget_ended(&mut self, now: Timestamp) {
        // Each that comes makes two go, so that nobody waits for all that have ended.
        for _ in 0..2 {
            let Some(&Reverse((at, name))) = self.ends.peek() else { break };
            if at >= now {
                break;
            }
            self.ends.pop();
            match self.things.get(&name).map(|kept| kept.ends_at) {
                Some(ends_at) if ends_at < now => drop(self.things.remove(&name)),
                Some(ends_at) => self.ends.push(Reverse((ends_at, name))),
                None => {}
            }
        }
        // Most are taken away long before their end; their ends need not be waited for.
        if self.ends.len() > 2 * self.things.len() + ENDS_KEPT {
            let ends = self.things.iter().map(|(name, kept)| Reverse((kept.ends_at, *name)));
            self.ends = ends.collect();
        }
    }
}

fn read(name: &str) -> Option<u128> {
    let is_name = name.len() == 32 && name.bytes().all(|byte| byte.is_ascii_hexdigit());
    u128::from_str_radix(name, 16).ok().filter(|_| is_name)
}
