//! What of a policy's limits nftables can count.

use std::cmp::Reverse;

use tollgate_core::Cost;
use tollgate_policy::{Layer, Mode, Policy, Rule};

use super::bucket::{Bucket, Exactness};
use super::{Addresses, Family};

/// A limit of the ruleset.
pub(super) struct Limit {
    /// Its name in the policy, harmless in a comment.
    pub(super) name: String,
    /// Which of the policy's, to tell sets apart whose names would be one.
    number: usize,
    /// From where connections meet it.
    pub(super) clients: Addresses,
    pub(super) measure: Measure,
    /// Whether it drops what is over, or only counts it.
    pub(super) is_enforced: bool,
    /// What is different from what the policy says.
    pub(super) notes: Vec<String>,
}

/// What is allowed to an address.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Measure {
    /// No connection at all.
    Nothing,
    /// So many that are open.
    Open(u32),
    /// New ones, by a bucket.
    New(Bucket),
}

/// A limit that is not in the ruleset, and why not.
pub(super) struct LeftOut {
    pub(super) name: String,
    pub(super) why: &'static str,
}

/// The limits of connections, in the order in which they are to be asked, and what had to be left
/// out.
///
/// What a limit denies must not count for another. nftables counts as it asks, so limits come first
/// that remember nothing of what they deny or let pass: those of open connections. Then rates, the
/// quickest first: what it counted in vain it has forgotten before it matters to the others. Those
/// that only watch come last.
pub(super) fn read(policy: &Policy) -> (Vec<Limit>, Vec<LeftOut>) {
    let mut limits = Vec::new();
    let mut left_out = Vec::new();
    for (number, rule) in policy.rules().iter().enumerate() {
        if rule.layer() != Layer::Connection {
            continue;
        }
        let name = harmless(rule.name());
        match Limit::new(policy, number, name.clone()) {
            Ok(limit) => limits.push(limit),
            Err(why) => left_out.push(LeftOut { name, why }),
        }
    }
    limits.sort_by_key(|limit| {
        let pace = match &limit.measure {
            Measure::Nothing | Measure::Open(_) => None,
            Measure::New(bucket) => Some(Reverse(bucket.weekly())),
        };
        (!limit.is_enforced, pace)
    });
    (limits, left_out)
}

impl Limit {
    fn new(policy: &Policy, number: usize, name: String) -> Result<Self, &'static str> {
        let rule = &policy.rules()[number];
        if rule.per().is_empty() {
            return Err("which counts all addresses together");
        }
        let cost = least_cost(rule)?;
        let mut notes = Vec::new();
        let measure = measure(policy, rule, cost, &mut notes)?;
        if rule.count_denied() {
            notes.push("looser here: what is denied here is not charged".to_owned());
        }
        let is_enforced = rule.mode() == Mode::Enforce;
        if !is_enforced {
            notes.push("in shadow: counted, and never dropped".to_owned());
        }
        let clients = policy.clients(number).expect("it is a limit of connections");
        Ok(Self { name, number: number + 1, clients, measure, is_enforced, notes })
    }

    /// What its set is called.
    pub(super) fn set(&self, family: Family) -> String {
        let name: String = self.name.chars().map(in_identifier).collect();
        format!("limit_{}_{name}_{}", self.number, family.name())
    }
}

/// The least that a connection costs, if it costs something.
fn least_cost(rule: &Rule) -> Result<u32, &'static str> {
    let least = match (rule.has_own_cost(), rule.costs().first()) {
        (false, _) => Cost::ONE,
        (true, Some(least)) => *least,
        (true, None) => return Err("whose cost the connection says"),
    };
    if least == Cost::PEEK { Err("which charges nothing") } else { Ok(least.units()) }
}

/// The most that any address is allowed.
fn measure(
    policy: &Policy,
    rule: &Rule,
    cost: u32,
    notes: &mut Vec<String>,
) -> Result<Measure, &'static str> {
    let amounts = rule.limits();
    if amounts.len() > 1 || rule.costs().len() > 1 {
        notes.push("looser here: each address has the most that any of them is allowed".to_owned());
    }
    let mut most = Measure::Nothing;
    let mut exactness = Exactness::default();
    for number in amounts {
        let limit = &policy.limits()[number];
        // Less than one connection.
        if limit.capacity() < cost {
            continue;
        }
        most = match (most, policy.rate(number)) {
            (Measure::Open(open), None) => Measure::Open(open.max(limit.capacity() / cost)),
            (_, None) => Measure::Open(limit.capacity() / cost),
            (most, Some(rate)) => {
                let (bucket, exact) = Bucket::covering(limit, rate, cost)
                    .ok_or("which allows more at once than nftables can count")?;
                exactness = exactness.and(exact);
                match most {
                    Measure::New(other) => Measure::New(bucket.joined(other)),
                    _ => Measure::New(bucket),
                }
            }
        };
    }
    match &most {
        Measure::Nothing => {}
        Measure::Open(_) => {
            notes.push("a connection is open until both ends have closed it".to_owned());
        }
        Measure::New(bucket) => notes.extend(exactness.notes(bucket)),
    }
    Ok(most)
}

/// A name that is only a name, in a comment and between quotes.
fn harmless(name: &str) -> String {
    let is_plain = |letter: &char| letter.is_ascii_alphanumeric() || "._~-#".contains(*letter);
    name.chars().map(|letter| if is_plain(&letter) { letter } else { '_' }).collect()
}

fn in_identifier(letter: char) -> char {
    if letter.is_ascii_alphanumeric() { letter } else { '_' }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_name_says_anything_to_nftables() {
        assert_eq!(harmless("conn-rate_1.a~b#2"), "conn-rate_1.a~b#2");
        let hostile = "a\" drop; }\n# \\{é";
        let name = harmless(hostile);
        assert_eq!(name, "a__drop____#____");
        let (clients, measure) = (Vec::new(), Measure::Nothing);
        let limit =
            Limit { name, number: 3, clients, measure, is_enforced: true, notes: Vec::new() };
        assert_eq!(limit.set(Family::V6), "limit_3_a__drop__________ipv6");
    }
}
