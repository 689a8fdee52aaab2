//! Words that loom can watch, in place of mapped memory.

use std::io;
use std::ops::Range;

use crate::sync::AtomicU64;

pub(crate) struct Pages(Box<[AtomicU64]>);

impl Pages {
    pub(crate) fn reserve(words: usize) -> io::Result<Self> {
        Ok(Self((0..words).map(|_| AtomicU64::new(0)).collect()))
    }

    pub(crate) fn words(&self) -> &[AtomicU64] {
        &self.0
    }
}

pub(crate) fn fetch(_word: &AtomicU64, _bytes: Range<usize>) {}

pub(crate) fn fetch_to_write(_word: &AtomicU64, _bytes: Range<usize>) {}
