//! Words by where they stand: the tables a request is looked up in.
//!
//! A policy of ten thousand limits does not fit the processor's nearest memory, so what a lookup
//! costs is how often it has to fetch. Here that is once for a word of up to twenty bytes: the word
//! lies in its slot, beside what it means.

use std::hash::Hasher;

use crate::hash::WordHasher;

/// From a place and a word to a number.
#[derive(Clone, Debug, Default)]
pub(crate) struct WordTable {
    /// Open addressing; a power of two of them, at most half of them taken.
    slots: Vec<Slot>,
    taken: usize,
    /// Words too long for their slot.
    long: Vec<u8>,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    /// [`NOTHING`] if the slot is free.
    meaning: u32,
    place: u32,
    length: u32,
    /// The word if it fits; otherwise its first bytes, and in the last four where it is.
    word: [u8; SHORT],
}

const SHORT: usize = 20;
const NOTHING: u32 = u32::MAX;
const FREE: Slot = Slot { meaning: NOTHING, place: 0, length: 0, word: [0; SHORT] };

impl WordTable {
    /// What a word means at a place.
    #[inline]
    pub(crate) fn get(&self, place: u32, word: &[u8]) -> Option<u32> {
        if self.slots.is_empty() {
            return None;
        }
        let meaning = self.slots[self.find(place, word)].meaning;
        (meaning != NOTHING).then_some(meaning)
    }

    /// Changes what a word means at a place, and answers what it means from now on.
    pub(crate) fn change(
        &mut self,
        place: u32,
        word: &[u8],
        change: impl FnOnce(Option<u32>) -> u32,
    ) -> u32 {
        if (self.taken + 1) * 2 > self.slots.len() {
            self.grow();
        }
        let found = self.find(place, word);
        let known = self.slots[found].meaning;
        let is_new = known == NOTHING;
        let meaning = change((!is_new).then_some(known));
        assert!(meaning != NOTHING, "numbers of limits and of nodes stay below the last one");
        if is_new {
            self.slots[found] = self.slot(place, word, meaning);
            self.taken += 1;
        }
        self.slots[found].meaning = meaning;
        meaning
    }

    /// The slot of a word, or the free one where it would go.
    #[inline]
    fn find(&self, place: u32, word: &[u8]) -> usize {
        let mask = self.slots.len() - 1;
        let mut at = hash(place, word) as usize & mask;
        loop {
            let slot = &self.slots[at];
            if slot.meaning == NOTHING || (slot.place == place && self.holds(slot, word)) {
                return at;
            }
            at = (at + 1) & mask;
        }
    }

    #[inline]
    fn holds(&self, slot: &Slot, word: &[u8]) -> bool {
        slot.length as usize == word.len() && self.word(slot) == word
    }

    #[inline]
    fn word<'s>(&'s self, slot: &'s Slot) -> &'s [u8] {
        let length = slot.length as usize;
        if length <= SHORT {
            return &slot.word[..length];
        }
        let start = slot.word.last_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes)) as usize;
        &self.long[start..start + length]
    }

    fn slot(&mut self, place: u32, word: &[u8], meaning: u32) -> Slot {
        let length = u32::try_from(word.len()).expect("a policy is shorter than 4 GiB");
        let mut slot = Slot { meaning, place, length, word: [0; SHORT] };
        if word.len() <= SHORT {
            slot.word[..word.len()].copy_from_slice(word);
        } else {
            let start = u32::try_from(self.long.len()).expect("a policy is shorter than 4 GiB");
            slot.word[SHORT - 4..].copy_from_slice(&start.to_le_bytes());
            self.long.extend_from_slice(word);
        }
        slot
    }

    fn grow(&mut self) {
        let bigger = vec![FREE; (self.slots.len() * 2).max(8)];
        let old = std::mem::replace(&mut self.slots, bigger);
        for slot in old.iter().filter(|slot| slot.meaning != NOTHING) {
            let mask = self.slots.len() - 1;
            let mut at = hash(slot.place, self.word(slot)) as usize & mask;
            while self.slots[at].meaning != NOTHING {
                at = (at + 1) & mask;
            }
            self.slots[at] = *slot;
        }
    }
}

/// Numbers filed under words, several under one if need be.
#[derive(Clone, Debug, Default)]
pub(crate) struct WordFile {
    /// A number, or with [`MANY`] the list of them.
    table: WordTable,
    lists: Vec<Vec<u32>>,
}

/// Marks a list. Numbers stay below it, as bounds see to.
const MANY: u32 = 1 << 31;

impl WordFile {
    pub(crate) fn is_empty(&self) -> bool {
        self.table.taken == 0
    }

    pub(crate) fn file(&mut self, word: &[u8], number: u32) {
        assert!(number < MANY - 1, "there are fewer limits than that");
        let lists = &mut self.lists;
        self.table.change(0, word, |known| match known {
            None => number,
            Some(list) if list & MANY != 0 => {
                lists[(list ^ MANY) as usize].push(number);
                list
            }
            Some(first) => {
                lists.push(vec![first, number]);
                MANY | (lists.len() as u32 - 1)
            }
        });
    }

    /// Calls `found` with every number filed under a word.
    #[inline]
    pub(crate) fn look_up(&self, word: &[u8], mut found: impl FnMut(u32)) {
        match self.table.get(0, word) {
            None => {}
            Some(list) if list & MANY != 0 => {
                self.lists[(list ^ MANY) as usize].iter().for_each(|number| found(*number));
            }
            Some(number) => found(number),
        }
    }
}

#[inline]
fn hash(place: u32, word: &[u8]) -> u64 {
    let mut hasher = WordHasher::default();
    hasher.write_u32(place);
    hasher.write(word);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_told_apart_by_place_and_by_every_byte() {
        let mut table = WordTable::default();
        let words: Vec<Vec<u8>> = (0..200u8)
            .flat_map(|last| [0usize, 1, 19, 20, 21, 40].map(|length| (last, length)))
            .map(|(last, length)| [vec![b'a'; length], vec![last]].concat())
            .collect();
        let entries = (0..3).flat_map(|place| words.iter().map(move |word| (place, word)));
        for (meaning, (place, word)) in entries.clone().enumerate() {
            assert_eq!(table.get(place, word), None);
            assert_eq!(table.change(place, word, |_| 7), 7);
            assert_eq!(
                table.change(place, word, |known| known.unwrap() - 7 + meaning as u32),
                meaning as u32
            );
        }
        for (meaning, (place, word)) in entries.enumerate() {
            assert_eq!(table.get(place, word), Some(meaning as u32));
        }
        assert_eq!(table.get(3, b"a"), None);
        assert_eq!(table.get(0, b""), None);
    }
}
