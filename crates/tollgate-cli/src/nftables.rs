//! `tollgate nftables`: the policy's connection limits as a ruleset of the kernel.
//!
//! The gateway enforces the same limits, exactly, on what the ruleset lets through. So the ruleset
//! may let through more than the policy allows, and must not refuse what the gateway would accept:
//! what nftables cannot say exactly is said more loosely, with a comment, or left out with one.
//!
//! Nothing of a policy is printed but numbers, addresses, and names of limits whose letters mean
//! nothing to nftables.

mod bucket;
mod limit;

use std::fmt::{self, Display};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::PathBuf;

use clap::Args;
use tollgate_policy::Policy;

use crate::bounds::NFTABLES_ADDRESSES_MAX;
use crate::output::{self, Failure};
use crate::policy_file;
use limit::{LeftOut, Limit, Measure};

const EXAMPLES: &str = "\
Examples:
  tollgate nftables -c policy.yaml
  tollgate nftables -c policy.yaml | sudo nft -f -
  sudo nft delete table inet tollgate              # and everything is as before";

/// Print an nftables ruleset for the policy's connection limits
///
/// It guards the port of the gateway, where `tollgate serve` opens it: new connections of an address beyond its limits are dropped by the kernel, before
/// they cost anything. It never refuses what the gateway behind it would accept for those who keep to
/// their limits; what it enforces less exactly is said in its comments.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// The policy
    #[arg(short = 'c', long = "config", value_name = "FILE")]
    config: PathBuf,
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let policy = policy_file::read_valid(&arguments.config)?;
    let gateway = gateway(&policy).map_err(|why| Failure::Failed(why.to_owned()))?;
    output::data(Ruleset::new(&policy, gateway).to_string())
}

/// Where connections that are to be limited arrive.
fn gateway(policy: &Policy) -> Result<SocketAddr, &'static str> {
    let Some(listener) = policy.settings().gateway_listener() else {
        return Err(
            "the policy opens no gateway, and connections are limited nowhere else; write \
                    for example upstream: http://127.0.0.1:3000 and listen: {gateway: 0.0.0.0:8000}",
        );
    };
    match listener.address.port() {
        0 => Err(
            "listen.gateway leaves its port to the system, and nftables must know it; write for \
                  example listen: {gateway: 0.0.0.0:8000}",
        ),
        _ => Ok(listener.address),
    }
}

/// Addresses, as ranges in order.
type Addresses = Vec<RangeInclusive<IpAddr>>;

/// A kind of addresses: nftables has sets and rules for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Family {
    V4,
    V6,
}

impl Family {
    /// Its name in names of ours.
    const fn name(self) -> &'static str {
        match self {
            Self::V4 => "ipv4",
            Self::V6 => "ipv6",
        }
    }

    /// The header whose addresses are of this kind.
    const fn header(self) -> &'static str {
        match self {
            Self::V4 => "ip",
            Self::V6 => "ip6",
        }
    }

    fn holds(self, range: &RangeInclusive<IpAddr>) -> bool {
        range.start().is_ipv4() == (self == Self::V4)
    }

    fn is_whole(self, range: &RangeInclusive<IpAddr>) -> bool {
        let [first, last]: [IpAddr; 2] = match self {
            Self::V4 => [Ipv4Addr::UNSPECIFIED.into(), Ipv4Addr::BROADCAST.into()],
            Self::V6 => [Ipv6Addr::UNSPECIFIED.into(), Ipv6Addr::from_bits(u128::MAX).into()],
        };
        *range == (first..=last)
    }
}

/// Which addresses of one kind a rule asks for.
enum Sources<'a> {
    None,
    Some(Vec<&'a RangeInclusive<IpAddr>>),
    All,
}

impl<'a> Sources<'a> {
    fn of(addresses: &'a Addresses, family: Family) -> Self {
        let ranges: Vec<_> = addresses.iter().filter(|range| family.holds(range)).collect();
        match &ranges[..] {
            [] => Self::None,
            [range] if family.is_whole(range) => Self::All,
            _ => Self::Some(ranges),
        }
    }
}

/// Everything that is printed.
struct Ruleset {
    gateway: SocketAddr,
    families: &'static [Family],
    /// How many bits of an IPv6 address tell clients apart.
    ipv6_prefix: u8,
    trusted: Addresses,
    denied: Addresses,
    exempt: Addresses,
    /// In the order in which connections meet them.
    limits: Vec<Limit>,
    left_out: Vec<LeftOut>,
}

impl Ruleset {
    fn new(policy: &Policy, gateway: SocketAddr) -> Self {
        let (limits, left_out) = limit::read(policy);
        let ip = gateway.ip().to_canonical();
        let families: &[Family] = match ip {
            IpAddr::V4(_) => &[Family::V4],
            // It takes IPv4 as well.
            IpAddr::V6(ip) if ip.is_unspecified() => &[Family::V4, Family::V6],
            IpAddr::V6(_) => &[Family::V6],
        };
        Self {
            gateway: SocketAddr::new(ip, gateway.port()),
            families,
            ipv6_prefix: policy.settings().client_ip.ipv6_prefix,
            trusted: policy.trusted_proxies(),
            denied: policy.denied_clients(),
            exempt: policy.exempt_clients(),
            limits,
            left_out,
        }
    }

    /// The lists of addresses, with what becomes of a connection from one of them and why.
    fn lists(&self) -> [(&'static str, &Addresses, &'static str, &'static str); 3] {
        let trusted = "Trusted proxies speak for many clients, so they are not limited here.";
        [
            ("trusted_proxies", &self.trusted, "accept", trusted),
            ("denied", &self.denied, "counter drop comment \"deny\"", "On the deny list."),
            ("exempt", &self.exempt, "accept", "On the exempt list."),
        ]
    }

    fn write_sets(&self, family: Family, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, addresses, _, why) in self.lists() {
            write_list(&format!("{name}_{}", family.name()), why, addresses, family, f)?;
        }
        for limit in &self.limits {
            let name = limit.set(family);
            let why = format!("Whom limit {} is for.", limit.name);
            write_list(&format!("{name}_for"), &why, &limit.clients, family, f)?;
            let timeout = match &limit.measure {
                _ if matches!(Sources::of(&limit.clients, family), Sources::None) => continue,
                Measure::Nothing => continue,
                // Who has no connection left is forgotten by itself.
                Measure::Open(_) => String::new(),
                Measure::New(bucket) => format!("; timeout {}s", bucket.idle_seconds()),
            };
            let flags = if timeout.is_empty() { "dynamic" } else { "dynamic, timeout" };
            writeln!(
                f,
                "\tset {name} {{ type {}_addr; size {NFTABLES_ADDRESSES_MAX}; flags {flags}{timeout}; }}",
                family.name()
            )?;
        }
        Ok(())
    }

    fn write_chain(&self, family: Family, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "\n\tchain {} {{", family.name())?;
        for (name, addresses, then, _) in self.lists() {
            let set = format!("{name}_{}", family.name());
            if let Some(from) = asked(&set, addresses, family) {
                writeln!(f, "\t\t{from}{then}")?;
            }
        }
        for limit in &self.limits {
            let set = limit.set(family);
            let Some(from) = asked(&format!("{set}_for"), &limit.clients, family) else { continue };
            limit.notes.iter().try_for_each(|note| writeln!(f, "\t\t# {}: {note}", limit.name))?;
            let client = self.client(family);
            let over = match &limit.measure {
                Measure::Nothing => String::new(),
                Measure::Open(most) => format!("add @{set} {{ {client} ct count over {most} }} "),
                Measure::New(bucket) => {
                    format!("update @{set} {{ {client} limit rate over {bucket} }} ")
                }
            };
            let drop = if limit.is_enforced { " drop" } else { "" };
            writeln!(f, "\t\t{from}{over}counter{drop} comment \"limit {}\"", limit.name)?;
        }
        writeln!(f, "\t}}")
    }

    /// By what a client is told apart from others.
    fn client(&self, family: Family) -> String {
        let address = format!("{} saddr", family.header());
        match (family, self.ipv6_prefix) {
            (Family::V4, _) | (Family::V6, 128..) => address,
            (Family::V6, prefix) => {
                let mask = Ipv6Addr::from_bits(!(u128::MAX >> prefix));
                format!("{address} & {mask}")
            }
        }
    }

    /// What tells the gateway's new connections from everything else.
    fn door(&self, family: Family) -> String {
        let at = match self.gateway.ip() {
            ip if ip.is_unspecified() => format!("meta nfproto {}", family.name()),
            ip => format!("{} daddr {ip}", family.header()),
        };
        // The flags as well: a connection that was open before the ruleset was loaded is new to it.
        let new = "tcp flags & (fin | syn | rst | ack) == syn ct state new";
        format!("{at} tcp dport {} {new}", self.gateway.port())
    }
}

impl Display for Ruleset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "# Connection limits of a policy, printed by tollgate nftables for the gateway at {}.",
            self.gateway
        )?;
        writeln!(
            f,
            "# Load it with nft -f, again and again if need be, and print it anew when the policy changes."
        )?;
        writeln!(
            f,
            "# The gateway enforces the same limits exactly; what is looser here is said beside it."
        )?;
        if self.limits.is_empty() {
            writeln!(f, "# The policy has no connection limit that could be enforced here.")?;
        }
        for LeftOut { name, why } in &self.left_out {
            writeln!(f, "# Left to the gateway: limit {name}, {why}.")?;
        }
        // It must be there to be deleted.
        writeln!(f, "\ntable inet tollgate\ndelete table inet tollgate\n")?;
        writeln!(f, "table inet tollgate {{")?;
        self.families.iter().try_for_each(|family| self.write_sets(*family, f))?;
        self.families.iter().try_for_each(|family| self.write_chain(*family, f))?;
        writeln!(f, "\n\tchain connections {{")?;
        // Last of all filters: what another one drops is not counted.
        writeln!(f, "\t\ttype filter hook input priority filter + 10; policy accept;")?;
        for family in self.families {
            writeln!(f, "		{} jump {}", self.door(*family), family.name())?;
        }
        writeln!(f, "\t}}\n}}")
    }
}

/// A set of addresses of one kind, unless there are none or it is all of them.
fn write_list(
    name: &str,
    why: &str,
    addresses: &Addresses,
    family: Family,
    f: &mut fmt::Formatter<'_>,
) -> fmt::Result {
    let Sources::Some(ranges) = Sources::of(addresses, family) else { return Ok(()) };
    writeln!(f, "\t# {why}")?;
    writeln!(f, "\tset {name} {{")?;
    writeln!(f, "\t\ttype {}_addr; flags interval;", family.name())?;
    let elements = ranges.iter().map(|range| match (range.start(), range.end()) {
        (first, last) if first == last => first.to_string(),
        (first, last) => format!("{first}-{last}"),
    });
    let elements: Vec<String> = elements.collect();
    writeln!(f, "\t\telements = {{ {} }}", elements.join(", "))?;
    writeln!(f, "\t}}")
}

/// What a rule for these addresses begins with; none if there are none of this kind.
fn asked(set: &str, addresses: &Addresses, family: Family) -> Option<String> {
    match Sources::of(addresses, family) {
        Sources::None => None,
        Sources::All => Some(String::new()),
        Sources::Some(_) => Some(format!("{} saddr @{set} ", family.header())),
    }
}
