//! One of something for each key, and not for more keys than there is room for.

use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::{Arc, Mutex, PoisonError};

use crate::bounds::KEYS_MAX;

/// Things by their key. When there is no room, those that nobody holds and that remember nothing are
/// forgotten; if there are none, a newcomer's is its own alone, and shared with nobody.
pub(crate) struct Keyed<T> {
    by_key: Mutex<HashMap<Box<str>, Arc<T>, Quick>>,
}

impl<T> Keyed<T> {
    pub(crate) fn new() -> Self {
        Self { by_key: Mutex::default() }
    }

    /// The thing of a key. `make` is told whether others will find what it makes.
    pub(crate) fn get(
        &self,
        key: &str,
        make: impl FnOnce(bool) -> T,
        is_idle: impl Fn(&T) -> bool,
    ) -> Arc<T> {
        let mut by_key = self.by_key.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = by_key.get(key) {
            return Arc::clone(known);
        }
        if by_key.len() >= KEYS_MAX {
            by_key.retain(|_, thing| Arc::strong_count(thing) > 1 || !is_idle(thing));
        }
        let is_kept = by_key.len() < KEYS_MAX;
        let made = Arc::new(make(is_kept));
        if is_kept {
            by_key.insert(key.into(), Arc::clone(&made));
        }
        made
    }
}

/// Hashes keys in a few instructions, differently in every process. Whoever found keys that collide nevertheless
/// would make a lookup among [`KEYS_MAX`] slower, and nothing else.
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
}
