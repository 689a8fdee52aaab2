//! One limit split over several keys, for a count that is asked for too often to lie in one place.
//!
//! Each shard has its share, and the shares add up to the limit exactly. On which shard a caller is depends on the value of one
//! attribute and on nothing else: not on the node that asks, and not on the version of tollgate, since
//! two that disagree would let a caller have two shares.

use crate::rule::{Asked, Source};

/// How a limit is split.
#[derive(Clone, Debug)]
pub struct Shards {
    pub(crate) count: u16,
    pub(crate) by: Source,
}

impl Shards {
    /// Over how many keys: 2 to 256.
    pub fn count(&self) -> u16 {
        self.count
    }

    /// Whose value says on which of them a caller is.
    pub fn by(&self) -> &Source {
        &self.by
    }

    /// On which of them a request is. Those without the attribute are together on one.
    pub(crate) fn number(&self, asked: &Asked<'_, '_>) -> u8 {
        let value = asked.value(self.by.id).unwrap_or_default();
        (scattered(value) % u64::from(self.count)) as u8
    }
}

/// The part of `total` that one of `count` shards has: all have the same, and the first ones one more
/// until nothing is left.
pub(crate) fn share(total: u32, count: u16, number: u16) -> u32 {
    let count = u32::from(count);
    total / count + u32::from(u32::from(number) < total % count)
}

/// The limits of the shards of one whole: at most three, since a rate and a burst each have shards
/// with one more and shards without.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shares {
    /// How many shards have the first limit, and how many the first or the second.
    pub(crate) ends: [u16; 2],
    pub(crate) limits: [u32; 3],
}

impl Shares {
    pub(crate) fn limit(&self, number: u8) -> u32 {
        let [first, second] = self.ends;
        let number = u16::from(number);
        self.limits[usize::from(number >= first) + usize::from(number >= second)]
    }
}

/// FNV-1a of 64 bits, finished as MurmurHash3 finishes 64 bits: FNV alone leaves the bits of the last
/// bytes close together, and addresses differ there.
fn scattered(bytes: &[u8]) -> u64 {
    let mut hash = bytes.iter().fold(0xCBF2_9CE4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01B3)
    });
    hash = (hash ^ (hash >> 33)).wrapping_mul(0xFF51_AFD7_ED55_8CCD);
    hash = (hash ^ (hash >> 33)).wrapping_mul(0xC4CE_B9FE_1A85_EC53);
    hash ^ (hash >> 33)
}
