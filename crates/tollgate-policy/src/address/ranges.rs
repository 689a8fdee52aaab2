//! Addresses as ranges, so that what several conditions ask of them can be told as one set.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::RangeInclusive;

/// A set of addresses: ranges in order, of which none meets or touches another of its kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ranges(Vec<RangeInclusive<IpAddr>>);

const V4: [IpAddr; 2] = [IpAddr::V4(Ipv4Addr::UNSPECIFIED), IpAddr::V4(Ipv4Addr::BROADCAST)];
const V6: [IpAddr; 2] =
    [IpAddr::V6(Ipv6Addr::UNSPECIFIED), IpAddr::V6(Ipv6Addr::from_bits(u128::MAX))];

impl Ranges {
    /// Every address.
    pub(crate) fn all() -> Self {
        Self::default().complement()
    }

    /// What lies in any of these, each from its first address to its last.
    pub(crate) fn of(ranges: impl IntoIterator<Item = RangeInclusive<IpAddr>>) -> Self {
        let mut ranges: Vec<RangeInclusive<IpAddr>> = ranges.into_iter().collect();
        ranges.sort_unstable_by_key(|range| *range.start());
        let mut joined: Vec<RangeInclusive<IpAddr>> = Vec::with_capacity(ranges.len());
        for range in ranges {
            match joined.last_mut() {
                Some(last) if reaches(last, &range) => {
                    let end = *last.end().max(range.end());
                    *last = *last.start()..=end;
                }
                _ => joined.push(range),
            }
        }
        Self(joined)
    }

    /// What is not in it.
    pub(crate) fn complement(&self) -> Self {
        let mut rest = Vec::new();
        for [first, last] in [V4, V6] {
            let mut next = Some(first);
            for range in self.0.iter().filter(|range| range.start().is_ipv4() == first.is_ipv4()) {
                if let (Some(start), Some(end)) = (next, before(*range.start()))
                    && start <= end
                {
                    rest.push(start..=end);
                }
                next = after(*range.end());
            }
            rest.extend(next.map(|start| start..=last));
        }
        Self(rest)
    }

    /// What is in one or the other.
    pub(crate) fn union(self, other: Self) -> Self {
        Self::of(self.0.into_iter().chain(other.0))
    }

    /// What is in both.
    pub(crate) fn intersection(&self, other: &Self) -> Self {
        self.complement().union(other.complement()).complement()
    }

    pub(crate) fn into_vec(self) -> Vec<RangeInclusive<IpAddr>> {
        self.0
    }
}

/// Whether a range that begins no earlier than another meets or touches it.
fn reaches(earlier: &RangeInclusive<IpAddr>, later: &RangeInclusive<IpAddr>) -> bool {
    later.start() <= earlier.end() || after(*earlier.end()) == Some(*later.start())
}

fn after(address: IpAddr) -> Option<IpAddr> {
    match address {
        IpAddr::V4(address) => address.to_bits().checked_add(1).map(|it| Ipv4Addr::from(it).into()),
        IpAddr::V6(address) => address.to_bits().checked_add(1).map(|it| Ipv6Addr::from(it).into()),
    }
}

fn before(address: IpAddr) -> Option<IpAddr> {
    match address {
        IpAddr::V4(address) => address.to_bits().checked_sub(1).map(|it| Ipv4Addr::from(it).into()),
        IpAddr::V6(address) => address.to_bits().checked_sub(1).map(|it| Ipv6Addr::from(it).into()),
    }
}
