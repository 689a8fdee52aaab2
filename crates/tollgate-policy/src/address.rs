//! Addresses: which block they lie in, and by what text they are counted.
//!
//! An IPv4 address is the same client however it is written, also inside IPv6
//! (`::ffff:203.0.113.7`); an IPv6 client owns a whole prefix and is counted by it, since it can
//! take a new address out of that prefix for every request.

mod ranges;

use std::cmp::Reverse;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::RangeInclusive;
use std::str::FromStr;

pub(crate) use ranges::Ranges;

/// A block of addresses. IPv4 addresses inside IPv6 count as IPv4.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Cidr {
    network: IpAddr,
    prefix: u8,
}

impl Cidr {
    /// The first address of the block.
    pub const fn network(&self) -> IpAddr {
        self.network
    }

    /// How many leading bits the addresses of the block share.
    pub const fn prefix(&self) -> u8 {
        self.prefix
    }

    /// Whether `address` lies in the block.
    pub fn contains(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        address.is_ipv4() == self.network.is_ipv4() && masked(address, self.prefix) == self.network
    }

    /// The last address of the block.
    pub(crate) fn last(&self) -> IpAddr {
        match self.network {
            IpAddr::V4(first) => {
                IpAddr::V4(Ipv4Addr::from_bits(first.to_bits() | !mask_v4(self.prefix)))
            }
            IpAddr::V6(first) => {
                IpAddr::V6(Ipv6Addr::from_bits(first.to_bits() | !mask_v6(self.prefix)))
            }
        }
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.network, self.prefix)
    }
}

impl FromStr for Cidr {
    type Err = CidrError;

    /// Reads `10.0.0.0/8`, `2001:db8::/32`, or one address.
    fn from_str(text: &str) -> Result<Self, CidrError> {
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix)),
            None => (text, None),
        };
        let written: IpAddr = address.parse().map_err(|_| CidrError::NotABlock)?;
        let width = if written.is_ipv4() { 32 } else { 128 };
        let prefix =
            prefix.map_or(Ok(width), |digits| whole(digits).ok_or(CidrError::NotABlock))?;
        if prefix > width {
            return Err(CidrError::PrefixTooLong { width });
        }
        // A block inside the IPv4 part of IPv6 is the IPv4 block it stands for.
        let (address, prefix) = match (written.to_canonical(), written) {
            (IpAddr::V4(inner), IpAddr::V6(_)) if prefix >= 96 => (IpAddr::V4(inner), prefix - 96),
            _ => (written, prefix),
        };
        let block = Self { network: masked(address, prefix), prefix };
        if block.network == address { Ok(block) } else { Err(CidrError::OutsidePrefix { block }) }
    }
}

/// Text that is not a block of addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CidrError {
    /// It does not read as one.
    NotABlock,
    /// The prefix is longer than an address.
    PrefixTooLong {
        /// How long an address of this kind is.
        width: u8,
    },
    /// The address has bits beyond its prefix.
    OutsidePrefix {
        /// What was probably meant.
        block: Cidr,
    },
}

impl fmt::Display for CidrError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotABlock => f.write_str(
                "is not a block of addresses; write for example 10.0.0.0/8 or 2001:db8::/32",
            ),
            Self::PrefixTooLong { width } => {
                write!(f, "has a prefix longer than the {width} bits of such an address")
            }
            Self::OutsidePrefix { block } => {
                write!(f, "has bits beyond its prefix; write {block} for the whole block")
            }
        }
    }
}

impl std::error::Error for CidrError {}

fn whole(digits: &str) -> Option<u8> {
    let plain = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    digits.parse().ok().filter(|_| plain)
}

/// The address with everything after its first `prefix` bits cleared.
pub(crate) fn masked(address: IpAddr, prefix: u8) -> IpAddr {
    match address {
        IpAddr::V4(address) => IpAddr::V4(Ipv4Addr::from_bits(address.to_bits() & mask_v4(prefix))),
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & mask_v6(prefix))),
    }
}

fn mask_v4(prefix: u8) -> u32 {
    u32::MAX.checked_shl(32 - u32::from(prefix)).unwrap_or(0)
}

fn mask_v6(prefix: u8) -> u128 {
    u128::MAX.checked_shl(128 - u32::from(prefix)).unwrap_or(0)
}

/// Reads an address as a caller sends it; IPv4 inside IPv6 is IPv4.
pub(crate) fn read_address(bytes: &[u8]) -> Option<IpAddr> {
    let address: IpAddr = std::str::from_utf8(bytes).ok()?.parse().ok()?;
    Some(address.to_canonical())
}

/// Many blocks, asked about as one in logarithmic time.
#[derive(Clone, Debug)]
pub(crate) struct CidrSet {
    blocks: Vec<Cidr>,
    /// First and last addresses, in order; none touches another.
    ranges: Vec<(IpAddr, IpAddr)>,
}

impl CidrSet {
    pub(crate) fn new(blocks: Vec<Cidr>) -> Self {
        let mut ranges: Vec<(IpAddr, IpAddr)> =
            blocks.iter().map(|block| (block.network, block.last())).collect();
        ranges.sort_unstable_by_key(|(first, last)| (*first, Reverse(*last)));
        // Of two blocks that meet, one holds the other: blocks of addresses never overlap partly.
        ranges.dedup_by(|later, earlier| later.1 <= earlier.1);
        Self { blocks, ranges }
    }

    pub(crate) fn blocks(&self) -> &[Cidr] {
        &self.blocks
    }

    /// From the first address to the last of what lies in the blocks.
    pub(crate) fn ranges(&self) -> impl Iterator<Item = RangeInclusive<IpAddr>> {
        self.ranges.iter().map(|(first, last)| *first..=*last)
    }

    pub(crate) fn contains(&self, address: IpAddr) -> bool {
        let after = self.ranges.partition_point(|(first, _)| *first <= address);
        after > 0 && address <= self.ranges[after - 1].1
    }
}

/// The longest text an IPv6 prefix is counted by: eight groups and the colons between them.
const COUNTED_BYTES_MAX: usize = 8 * 4 + 7;

/// The text by which an address is counted, written without an allocation.
#[derive(Clone, Debug)]
pub(crate) struct CountedText {
    bytes: [u8; COUNTED_BYTES_MAX],
    length: u8,
}

impl CountedText {
    pub(crate) const EMPTY: Self = Self { bytes: [0; COUNTED_BYTES_MAX], length: 0 };

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }

    /// Writes an IPv4 address as usual, and an IPv6 address as the first of its prefix:
    /// `2001:db8:0:100::`. One address always gives one text; runs of zeroes inside the prefix are
    /// written out.
    ///
    /// The text is itself an address of the prefix. What is no address is counted as it is, so it
    /// is never counted with one: `2001:db8:0:100::/56` would be.
    pub(crate) fn write(&mut self, address: IpAddr, ipv6_prefix: u8) {
        self.length = 0;
        match address {
            IpAddr::V4(address) => self.write_v4(address),
            IpAddr::V6(_) => self.write_v6(masked(address, ipv6_prefix), ipv6_prefix),
        }
    }

    fn write_v4(&mut self, address: Ipv4Addr) {
        for (number, octet) in address.octets().into_iter().enumerate() {
            if number > 0 {
                self.push(b'.');
            }
            self.push_decimal(octet);
        }
    }

    fn write_v6(&mut self, network: IpAddr, prefix: u8) {
        let IpAddr::V6(network) = network else { unreachable!("asked for IPv6 only") };
        let groups = usize::from(prefix.div_ceil(16));
        for (number, group) in network.segments()[..groups].iter().enumerate() {
            if number > 0 {
                self.push(b':');
            }
            self.push_hexadecimal(*group);
        }
        if groups < 8 {
            self.push(b':');
            self.push(b':');
        }
    }

    fn push(&mut self, byte: u8) {
        self.bytes[usize::from(self.length)] = byte;
        self.length += 1;
    }

    fn push_decimal(&mut self, number: u8) {
        for power in [100, 10] {
            if number >= power {
                self.push(b'0' + number / power % 10);
            }
        }
        self.push(b'0' + number % 10);
    }

    fn push_hexadecimal(&mut self, group: u16) {
        for shift in [12, 8, 4] {
            if group >> shift != 0 {
                self.push(hexadecimal_digit(group >> shift));
            }
        }
        self.push(hexadecimal_digit(group));
    }
}

fn hexadecimal_digit(number: u16) -> u8 {
    b"0123456789abcdef"[usize::from(number & 0xF)]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(address: &str, prefix: u8) -> String {
        let mut text = CountedText::EMPTY;
        text.write(read_address(address.as_bytes()).unwrap(), prefix);
        String::from_utf8(text.as_bytes().to_vec()).unwrap()
    }

    #[test]
    fn an_ipv4_address_has_one_text_however_it_is_written() {
        for address in ["1.2.3.4", "::ffff:1.2.3.4", "::ffff:102:304"] {
            assert_eq!(counted(address, 56), "1.2.3.4");
        }
        assert_eq!(counted("255.100.10.0", 56), "255.100.10.0");
    }

    #[test]
    fn an_ipv6_address_is_counted_by_its_prefix() {
        assert_eq!(counted("2001:db8:1:2ff:aaaa::1", 56), "2001:db8:1:200::");
        assert_eq!(counted("2001:db8:1:200::", 56), "2001:db8:1:200::");
        assert_eq!(counted("::1", 56), "0:0:0:0::");
        assert_eq!(counted("2001:db8::1", 32), "2001:db8::");
        assert_eq!(counted("2001:db8::1", 33), "2001:db8:0::");
        assert_eq!(counted("2001:db8::1", 128), "2001:db8:0:0:0:0:0:1");
        assert_eq!(
            counted("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", 127),
            "ffff:ffff:ffff:ffff:ffff:ffff:ffff:fffe"
        );
    }

    #[test]
    fn the_counted_text_is_an_address_of_the_prefix() {
        let address = read_address(b"2001:db8:ffff:eeee:dddd:cccc:bbbb:aaaa").unwrap();
        for prefix in 32..=128 {
            let text = counted(&address.to_string(), prefix);
            let read = read_address(text.as_bytes()).unwrap_or_else(|| panic!("{text}"));
            assert_eq!(read, masked(address, prefix), "{text}");
            assert_eq!(counted(&text, prefix), text);
        }
    }

    #[test]
    fn blocks_know_what_lies_in_them() {
        let set = CidrSet::new(
            ["10.0.0.0/8", "10.1.0.0/16", "192.168.1.1", "2001:db8::/32", "::ffff:172.16.0.0/108"]
                .iter()
                .map(|text| text.parse().unwrap())
                .collect(),
        );
        for inside in ["10.0.0.0", "10.255.255.255", "192.168.1.1", "2001:db8:5::", "172.17.0.1"] {
            assert!(set.contains(read_address(inside.as_bytes()).unwrap()), "{inside}");
        }
        for outside in ["9.255.255.255", "11.0.0.0", "192.168.1.2", "2001:db9::", "172.32.0.0"] {
            assert!(!set.contains(read_address(outside.as_bytes()).unwrap()), "{outside}");
        }
        let everything: Cidr = "0.0.0.0/0".parse().unwrap();
        assert!(everything.contains("1.2.3.4".parse().unwrap()));
        assert!(!everything.contains("2001:db8::".parse().unwrap()));
    }
}
