//! One of something for each key, and not for more keys than there is room for.

use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::bounds::{KEYS_LOOKED_AT_EVERY, KEYS_MAX, KEYS_OF_SOMEBODY_MAX};
use crate::whose::Whose;

/// What tells things apart: a name, and whose it is where that matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key<'a> {
    pub(crate) name: &'a str,
    pub(crate) whose: Whose,
}

impl Key<'_> {
    fn room(&self) -> usize {
        if self.whose == Whose::NOBODY { KEYS_MAX } else { KEYS_OF_SOMEBODY_MAX }
    }
}

/// Things by their key. When there is no room, those that nobody holds and that remember nothing are forgotten.
pub(crate) struct Keyed<T> {
    hasher: Quick,
    things: Mutex<Things<T>>,
}

struct Things<T> {
    by_hash: HashMap<u64, Entry<T>, Quick>,
    /// Newcomers with keys for whom it is not looked what can be forgotten, since that was done a moment ago.
    without_room: usize,
}

struct Entry<T> {
    name: Box<str>,
    whose: Whose,
    thing: Arc<T>,
}

impl<T> Keyed<T> {
    pub(crate) fn new() -> Self {
        let things = Things { by_hash: HashMap::default(), without_room: 0 };
        Self { hasher: Quick::default(), things: Mutex::new(things) }
    }

    /// The thing of a name. If there is no room for it, it is one of its own, and shared with nobody: `make` is told whether
    /// others will find what it makes.
    pub(crate) fn get(
        &self,
        name: &str,
        make: impl Fn(bool) -> T,
        is_idle: impl Fn(&T) -> bool,
    ) -> Arc<T> {
        let kept = self.get_kept(Key { name, whose: Whose::NOBODY }, || make(true), is_idle);
        kept.unwrap_or_else(|| Arc::new(make(false)))
    }

    /// The thing of a key, unless there is no room for it.
    pub(crate) fn get_kept(
        &self,
        key: Key<'_>,
        make: impl FnOnce() -> T,
        is_idle: impl Fn(&T) -> bool,
    ) -> Option<Arc<T>> {
        let mut things = self.things();
        let hash = self.hasher.hash_one(key);
        if let Some(known) = things.find(hash, key) {
            return Some(known);
        }
        // Two keys with one hash are as good as impossible. There is room for the first.
        if things.by_hash.contains_key(&hash) || !things.make_room(key, is_idle) {
            return None;
        }
        let made = Arc::new(make());
        let Key { name, whose } = key;
        let entry = Entry { name: name.into(), whose, thing: Arc::clone(&made) };
        things.by_hash.insert(hash, entry);
        Some(made)
    }

    /// The thing of a key, if there is one.
    #[cfg(any(feature = "reqwest", feature = "tower"))]
    pub(crate) fn find(&self, key: Key<'_>) -> Option<Arc<T>> {
        let things = self.things();
        if things.by_hash.is_empty() {
            return None;
        }
        things.find(self.hasher.hash_one(key), key)
    }

    fn things(&self) -> MutexGuard<'_, Things<T>> {
        self.things.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Things<T> {
    fn find(&self, hash: u64, key: Key<'_>) -> Option<Arc<T>> {
        let entry = self.by_hash.get(&hash)?;
        let is_it = *entry.name == *key.name && entry.whose == key.whose;
        is_it.then(|| Arc::clone(&entry.thing))
    }

    /// Whether there is room for another, after what is not needed was forgotten.
    fn make_room(&mut self, key: Key<'_>, is_idle: impl Fn(&T) -> bool) -> bool {
        if self.by_hash.len() < key.room() {
            return true;
        }
        // Keys are easily made up, and to look at all things costs too much to do it for each of them.
        if key.whose != Whose::NOBODY && self.without_room > 0 {
            self.without_room -= 1;
            return false;
        }
        let is_needed = |thing: &Arc<T>| Arc::strong_count(thing) > 1 || !is_idle(thing);
        self.by_hash.retain(|_, entry| is_needed(&entry.thing));
        let has_room = self.by_hash.len() < key.room();
        self.without_room = KEYS_LOOKED_AT_EVERY;
        has_room
    }
}

/// Hashes keys in a few instructions, differently in every process.
#[derive(Clone, Debug)]
struct Quick(u64);

impl Default for Quick {
    fn default() -> Self {
        Self(RandomState::new().hash_one(0))
    }
}

impl BuildHasher for Quick {
    type Hasher = Folding;

    fn build_hasher(&self) -> Folding {
        Folding(self.0)
    }
}

struct Folding(u64);

impl Hasher for Folding {
    fn write(&mut self, bytes: &[u8]) {
        // What follows the last whole word is filled up with zeroes, and may be zeroes itself.
        self.write_u64(bytes.len() as u64);
        let (words, rest) = bytes.as_chunks();
        for word in words {
            self.write_u64(u64::from_le_bytes(*word));
        }
        self.write_u64(rest.iter().fold(0, |word, byte| word << 8 | u64::from(*byte)));
    }

    fn write_u8(&mut self, byte: u8) {
        self.write_u64(byte.into());
    }

    fn write_u64(&mut self, word: u64) {
        const ODD: u128 = 0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835;
        let product = u128::from(self.0 ^ word).wrapping_mul(ODD);
        self.0 = (product >> 64) as u64 ^ product as u64;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

impl<T> fmt::Debug for Keyed<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keyed").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_keeps_its_thing_and_idle_ones_make_room() {
        let keyed: Keyed<u32> = Keyed::new();
        let get = |key: u32, thing| keyed.get(&key.to_string(), |_| thing, |thing| *thing == 0);
        let held = get(0, 0);
        for key in 1..KEYS_MAX as u32 {
            get(key, key % 2);
        }
        assert_eq!(*get(7, 9), 1, "what is known is not made again");
        assert_eq!(*get(5_000, 5), 5, "there is room, since half of them are idle");
        assert_eq!(*get(5_000, 6), 5);
        assert!(Arc::ptr_eq(&held, &get(0, 3)), "one that is held stays");
    }

    #[test]
    fn names_that_differ_by_zeroes_have_things_of_their_own() {
        let keyed: Keyed<usize> = Keyed::new();
        let names = [
            "",
            "\0",
            "\0\0",
            "a",
            "\0a",
            "a\0",
            "aaaaaaaa",
            "aaaaaaaa\0",
            "user-1234",
            "user-123\x004",
        ];
        for _ in 0..2 {
            for (thing, name) in names.iter().enumerate() {
                assert_eq!(*keyed.get(name, |_| thing, |_| false), thing, "{name:?}");
            }
        }
        assert_eq!(keyed.things().by_hash.len(), names.len());
    }

    #[test]
    fn without_room_a_newcomer_is_on_its_own() {
        let keyed: Keyed<u32> = Keyed::new();
        let get = |key: u32, thing| *keyed.get(&key.to_string(), |_| thing, |_| false);
        for key in 0..KEYS_MAX as u32 {
            get(key, 1);
        }
        assert_eq!(get(5_000, 2), 2);
        assert_eq!(get(5_000, 3), 3);
        assert_eq!(get(0, 4), 1);
    }

    #[test]
    fn however_many_keys_there_are_names_have_room_and_what_is_needed_stays() {
        let keyed: Keyed<u32> = Keyed::new();
        let get = |whose: u32| {
            let whose = Whose::called(&whose.to_string());
            keyed.get_kept(Key { name: "api", whose }, || 1, |_| false)
        };
        let first = get(0);
        for whose in 0..10 * KEYS_MAX as u32 {
            assert_eq!(get(whose).is_some(), whose < KEYS_OF_SOMEBODY_MAX as u32, "{whose}");
        }
        assert!(Arc::ptr_eq(&first.unwrap(), &get(0).unwrap()));
        assert_eq!(keyed.things().by_hash.len(), KEYS_OF_SOMEBODY_MAX);
        assert!(*keyed.get("api", u32::from, |_| false) == 1, "it is kept");
    }

    #[test]
    fn keys_that_nobody_needs_make_room_sooner_or_later() {
        let keyed: Keyed<u32> = Keyed::new();
        let get = |whose: u32, is_idle| {
            let whose = Whose::called(&whose.to_string());
            keyed.get_kept(Key { name: "api", whose }, || 1, |_| is_idle).is_some()
        };
        for whose in 0..KEYS_OF_SOMEBODY_MAX as u32 {
            assert!(get(whose, false));
        }
        assert!(!get(5_000, false));
        let refused = (0..KEYS_MAX as u32).take_while(|whose| !get(6_000 + whose, true)).count();
        assert_eq!(refused, KEYS_LOOKED_AT_EVERY);
    }
}
