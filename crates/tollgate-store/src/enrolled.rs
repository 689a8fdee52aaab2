//! The limits a store has seen, numbered.
//!
//! A state names the limit it was written under by a number that lies with it in the table, so
//! that under another limit what was consumed can be carried over. Equal limits share a number.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Mutex, OnceLock};

use tollgate_core::Limit;

use crate::bounds::LIMITS_MAX;
use crate::table::Stamp;

/// A limit that a store knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Enrolled {
    pub(crate) limit: Limit,
    pub(crate) number: u32,
    pub(crate) stamp: Stamp,
}

impl Enrolled {
    fn new(limit: Limit, number: u32) -> Self {
        Self { limit, number, stamp: Stamp::of(number) }
    }

    /// The limit itself.
    pub fn limit(&self) -> &Limit {
        &self.limit
    }
}

/// More different limits than states can name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooManyLimits;

impl fmt::Display for TooManyLimits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the store has seen {LIMITS_MAX} different limits, and can tell no more apart")
    }
}

impl std::error::Error for TooManyLimits {}

/// All limits a store has seen. Reading waits for nobody: states are read while slots are locked.
#[derive(Debug)]
pub(crate) struct Register {
    /// Chunk `n` has room for 2^n limits, so that a limit once written never moves.
    chunks: [OnceLock<Chunk>; CHUNKS],
    numbers: Mutex<HashMap<Limit, u32>>,
}

type Chunk = Box<[OnceLock<Limit>]>;

const CHUNKS: usize = LIMITS_MAX.ilog2() as usize + 1;

impl Register {
    pub(crate) fn new() -> Self {
        Self { chunks: [const { OnceLock::new() }; CHUNKS], numbers: Mutex::default() }
    }

    pub(crate) fn enroll(&self, limit: Limit) -> Result<Enrolled, TooManyLimits> {
        let mut numbers = self.numbers.lock().expect("nothing under the register's lock panics");
        if let Some(number) = numbers.get(&limit) {
            return Ok(Enrolled::new(limit, *number));
        }
        if numbers.len() == LIMITS_MAX {
            return Err(TooManyLimits);
        }
        let number = numbers.len() as u32;
        let (chunk, place) = chunk_of(number);
        let empty = || (0..1 << chunk).map(|_| OnceLock::new()).collect();
        let written = self.chunks[chunk].get_or_init(empty)[place].set(limit);
        assert_eq!(written, Ok(()), "a number is given out once");
        numbers.insert(limit, number);
        Ok(Enrolled::new(limit, number))
    }

    /// The limit with this number. A vacant state may name one that was never given out.
    #[inline]
    pub(crate) fn get(&self, number: u32) -> Option<Limit> {
        let (chunk, place) = chunk_of(number);
        self.chunks.get(chunk)?.get()?.get(place)?.get().copied()
    }
}

fn chunk_of(number: u32) -> (usize, usize) {
    let from_one = number as usize + 1;
    let chunk = from_one.ilog2() as usize;
    (chunk, from_one - (1 << chunk))
}
