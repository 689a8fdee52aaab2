//! What a policy says of connections by their address alone, for those who enforce it where
//! nothing else is known.

use std::net::IpAddr;
use std::ops::RangeInclusive;

use tollgate_core::Cost;

use super::Policy;
use crate::address::Ranges;
use crate::compile::List;
use crate::condition::{Condition, Test};
use crate::layer::Layer;
use crate::rule::{CostOf, Rule};

/// Addresses, as ranges in order, of which none meets or touches another. IPv4 comes first.
type Clients = Vec<RangeInclusive<IpAddr>>;

impl Policy {
    /// From which addresses connections meet one of the [`rules`](Self::rules): ranges in order,
    /// none of which touches another, IPv4 first. None if it counts something else than
    /// connections.
    pub fn clients(&self, rule: usize) -> Option<Clients> {
        let is_of_connections = self.compiled.rules[rule].layer() == Layer::Connection;
        is_of_connections.then(|| clients(self.compiled.index.conditions(rule)).into_vec())
    }

    /// From which addresses connections are on the `deny` list, in the form of
    /// [`clients`](Self::clients).
    pub fn denied_clients(&self) -> Clients {
        self.listed_clients(&self.compiled.deny)
    }

    /// From which addresses connections are on the `exempt` list, in the form of
    /// [`clients`](Self::clients).
    pub fn exempt_clients(&self) -> Clients {
        self.listed_clients(&self.compiled.exempt)
    }

    /// The addresses of `client_ip.trusted_proxies`, in the form of [`clients`](Self::clients).
    pub fn trusted_proxies(&self) -> Clients {
        let blocks = self.settings.client_ip.trusted_proxies.iter();
        Ranges::of(blocks.map(|block| block.network()..=block.last())).into_vec()
    }

    fn listed_clients(&self, list: &List) -> Clients {
        let client_ip = self.attributes.find("client_ip");
        let of_address =
            |conditions: &&[Condition]| conditions.iter().all(|it| Some(it.attribute) == client_ip);
        let entries = (0..list.entries.len()).map(|entry| list.index.conditions(entry));
        let listed = entries.filter(of_address).map(clients);
        Ranges::of(listed.flat_map(Ranges::into_vec)).into_vec()
    }
}

impl Rule {
    /// What it says itself that a request costs, in order, each once: one, or several if that goes
    /// by the value of an attribute. None if the caller says it, or the request.
    pub fn costs(&self) -> Vec<Cost> {
        let CostOf::Policy(select) = &self.details.cost else { return Vec::new() };
        let mut costs = select.amounts();
        costs.sort_unstable();
        costs.dedup();
        costs
    }
}

/// The addresses for which all of these hold.
fn clients(conditions: &[Condition]) -> Ranges {
    let asked = conditions.iter().map(|condition| addresses(&condition.test));
    asked.fold(Ranges::all(), |all, asked| all.intersection(&asked))
}

fn addresses(test: &Test) -> Ranges {
    match test {
        Test::Cidr(blocks) => Ranges::of(blocks.ranges()),
        Test::Present => Ranges::all(),
        Test::Absent => Ranges::default(),
        Test::Not(test) => addresses(test).complement(),
        Test::OneOf(_) | Test::Method(_) | Test::Path(_) | Test::Host(_) => {
            unreachable!("an address is asked for as an address")
        }
    }
}
