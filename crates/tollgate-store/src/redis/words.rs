//! A list of byte strings in one buffer, since a call has a dozen of them and there are many calls.

use std::fmt;

/// The words of a command.
#[derive(Clone, Default)]
pub(crate) struct Words {
    /// Each word after its length, four bytes of it.
    bytes: Vec<u8>,
    count: usize,
}

const LENGTH_BYTES: usize = 4;

impl Words {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// An empty list with room for so many bytes of words and their lengths.
    pub(crate) fn with_capacity(bytes: usize) -> Self {
        Self { bytes: Vec::with_capacity(bytes), count: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.count
    }

    /// Bytes of all words, and a little more.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.len()
    }

    pub(crate) fn push(&mut self, word: &[u8]) {
        let length = u32::try_from(word.len()).expect("a word is bounded by what a request may be");
        self.bytes.extend_from_slice(&length.to_le_bytes());
        self.bytes.extend_from_slice(word);
        self.count += 1;
    }

    /// Adds a number in decimal.
    pub(crate) fn push_number(&mut self, mut number: u64) {
        const DIGITS_MAX: usize = 20;
        let mut digits = [0; DIGITS_MAX];
        let mut start = DIGITS_MAX;
        loop {
            start -= 1;
            digits[start] = b'0' + (number % 10) as u8;
            number /= 10;
            if number == 0 {
                return self.push(&digits[start..]);
            }
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &[u8]> {
        let mut rest = self.bytes.as_slice();
        std::iter::from_fn(move || {
            let (length, words) = rest.split_first_chunk::<LENGTH_BYTES>()?;
            let (word, after) = words.split_at(u32::from_le_bytes(*length) as usize);
            rest = after;
            Some(word)
        })
    }
}

impl<W: AsRef<[u8]>> FromIterator<W> for Words {
    fn from_iter<I: IntoIterator<Item = W>>(iterator: I) -> Self {
        let mut words = Self::new();
        iterator.into_iter().for_each(|word| words.push(word.as_ref()));
        words
    }
}

impl fmt::Debug for Words {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter().map(|word| word.escape_ascii().to_string())).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_come_back_as_they_were_pushed() {
        let long = vec![7; 70_000];
        let pushed: [&[u8]; 5] = [b"SET", b"", b"a\r\nb\0c", &long, b"1"];
        let words: Words = pushed.iter().collect();
        assert_eq!(words.len(), 5);
        assert!(words.iter().eq(pushed));
    }

    #[test]
    fn numbers_are_decimal() {
        let numbers = [0, 9, 10, 60_000_000, u64::MAX];
        let mut words = Words::with_capacity(64);
        numbers.iter().for_each(|number| words.push_number(*number));
        let texts: Vec<String> = numbers.iter().map(u64::to_string).collect();
        assert!(words.iter().eq(texts.iter().map(String::as_bytes)));
    }
}
