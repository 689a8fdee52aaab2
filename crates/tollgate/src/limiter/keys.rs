//! The keys of a request, as they may be shown.

use crate::bounds::KEYS_BYTES_MAX;

/// The keys that a request was counted under, as they may be shown. One is used for many requests:
/// its room stays.
#[derive(Clone, Debug, Default)]
pub struct Keys {
    text: String,
    ends: Vec<usize>,
}

impl Keys {
    /// The key of the `number`th answer.
    pub fn get(&self, number: usize) -> Option<&str> {
        let end = *self.ends.get(number)?;
        let start = number.checked_sub(1).map_or(0, |before| self.ends[before]);
        Some(&self.text[start..end])
    }

    /// All of them, in the order of the answers.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &str> {
        (0..self.ends.len()).map(|number| self.at(number))
    }

    pub(super) fn clear(&mut self) {
        self.text.clear();
        self.ends.clear();
    }

    /// The same of one that is there.
    pub(crate) fn at(&self, number: usize) -> &str {
        self.get(number).expect("there is one for each answer")
    }

    /// Adds one, which is `write`'s to write at the end of what is there.
    pub(crate) fn push(&mut self, write: impl FnOnce(&mut String)) {
        if self.text.len() < KEYS_BYTES_MAX {
            write(&mut self.text);
        } else {
            self.text.push('…');
        }
        self.ends.push(self.text.len());
    }
}
