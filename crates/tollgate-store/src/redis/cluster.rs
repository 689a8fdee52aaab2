//! Which server of a Cluster has which slots.

use std::sync::Arc;

use tokio::task::JoinSet;

use super::bounds::{ASKED_MAX, NODES_MAX};
use super::call::Reply;
use super::client::{Address, Connection};
use super::node::{Node, Status};
use super::slots::SLOTS;
use super::words::Words;

/// Slots and the servers that have them. A map is never changed, but replaced.
#[derive(Clone, Default)]
pub(super) struct Map {
    nodes: Vec<(Address, Arc<Node>)>,
    /// The place in `nodes` of each slot's server, or [`NOBODY`]. Empty unless this is a Cluster.
    slots: Vec<u16>,
}

const NOBODY: u16 = u16::MAX;

/// Slots from the first to the last, and where they are.
#[derive(Debug)]
pub(super) struct Range {
    pub(super) first: u16,
    pub(super) last: u16,
    pub(super) address: Address,
}

impl Map {
    /// One server that has everything.
    pub(super) fn of_one(address: Address, node: Arc<Node>) -> Self {
        Self { nodes: vec![(address, node)], slots: Vec::new() }
    }

    /// Any server will do to begin with: the wrong one says where to go.
    pub(super) fn of_seeds(nodes: Vec<(Address, Arc<Node>)>) -> Self {
        let slots = (0..SLOTS).map(|slot| slot % nodes.len() as u16).collect();
        Self { nodes, slots }
    }

    /// The servers of these ranges, those we know already among them.
    pub(super) fn of_ranges(
        &self,
        ranges: &[Range],
        mut start: impl FnMut(&Address) -> Arc<Node>,
    ) -> Self {
        let mut map = Self { nodes: Vec::new(), slots: vec![NOBODY; usize::from(SLOTS)] };
        for range in ranges {
            let node = || self.find(&range.address).unwrap_or_else(|| start(&range.address));
            let Some(place) = map.place_of(&range.address, node) else { continue };
            map.slots[usize::from(range.first)..=usize::from(range.last)].fill(place);
        }
        map
    }

    /// The same map but for one slot.
    pub(super) fn with_moved(&self, slot: u16, address: &Address, node: Arc<Node>) -> Self {
        let mut map = self.clone();
        if let Some(place) = map.place_of(address, || node) {
            map.slots[usize::from(slot)] = place;
        }
        map
    }

    /// The same map with a server that has no slots yet.
    pub(super) fn with_node(&self, address: &Address, node: Arc<Node>) -> Self {
        let mut map = self.clone();
        map.place_of(address, || node);
        map
    }

    /// The server that has a slot.
    pub(super) fn route(&self, slot: u16) -> Option<&Arc<Node>> {
        let place = self.slots.get(usize::from(slot)).copied().unwrap_or(0);
        self.nodes.get(usize::from(place)).map(|(_, node)| node)
    }

    pub(super) fn find(&self, address: &Address) -> Option<Arc<Node>> {
        let place = self.nodes.iter().position(|(known, _)| known.is_place_of(address))?;
        Some(Arc::clone(&self.nodes[place].1))
    }

    /// Whether a server has any slot.
    pub(super) fn has_slots(&self, status: &Arc<Status>) -> bool {
        let is_it = |(_, node): &(Address, Arc<Node>)| Arc::ptr_eq(node.status(), status);
        let place = self.nodes.iter().position(is_it);
        place.is_some_and(|place| self.slots.contains(&(place as u16)))
    }

    pub(super) fn nodes(&self) -> impl Iterator<Item = &(Address, Arc<Node>)> {
        self.nodes.iter()
    }

    /// The place of a server, a new one if it has none and there is room.
    fn place_of(&mut self, address: &Address, node: impl FnOnce() -> Arc<Node>) -> Option<u16> {
        let known = self.nodes.iter().position(|(known, _)| known.is_place_of(address));
        let place = known.or_else(|| {
            (self.nodes.len() < NODES_MAX).then(|| {
                self.nodes.push((address.clone(), node()));
                self.nodes.len() - 1
            })
        });
        place.map(|place| place as u16)
    }
}

/// Asks servers for their view of the Cluster, a few at a time, and takes the first there is.
pub(super) async fn ask_for_ranges(servers: Vec<Address>) -> Result<Vec<Range>, String> {
    let mut why = "there is nobody to ask".to_owned();
    for some in servers.chunks(ASKED_MAX) {
        let mut asked: JoinSet<_> = some.iter().cloned().map(ask).collect();
        while let Some(answer) = asked.join_next().await {
            match answer {
                Ok(Ok(ranges)) => return Ok(ranges),
                Ok(Err(error)) => why = error,
                Err(error) => why = error.to_string(),
            }
        }
    }
    Err(why)
}

async fn ask(server: Address) -> Result<Vec<Range>, String> {
    let told = async {
        let connection = Connection::open(&server).await?;
        let question: Words = ["CLUSTER", "SLOTS"].iter().collect();
        let reply = connection.ask(&question).await??;
        ranges(&reply, &server).ok_or_else(|| "has no slots to tell of".to_owned())
    };
    told.await.map_err(|why: String| format!("{server}: {why}"))
}

/// Reads the reply to `CLUSTER SLOTS`: of each range its first and last slot, its master, and
/// replicas. `None` if it is none, or tells of no slots.
fn ranges(reply: &Reply, server: &Address) -> Option<Vec<Range>> {
    let Reply::List(ranges) = reply else { return None };
    let ranges: Option<Vec<Range>> = ranges.iter().map(|range| read_range(range, server)).collect();
    ranges.filter(|ranges| !ranges.is_empty())
}

fn read_range(range: &Reply, server: &Address) -> Option<Range> {
    let Reply::List(fields) = range else { return None };
    let [Reply::Integer(first), Reply::Integer(last), Reply::List(master), ..] = fields.as_slice()
    else {
        return None;
    };
    let [host, Reply::Integer(port), ..] = master.as_slice() else { return None };
    let slot = |slot: i64| u16::try_from(slot).ok().filter(|slot| *slot < SLOTS);
    let (first, last) = (slot(*first)?, slot(*last)?);
    let host = match host {
        Reply::Bytes(host) => str::from_utf8(host).ok()?,
        // A server that does not know its own name is where we found it.
        _ => "",
    };
    let address = server.neighbour(host, u16::try_from(*port).ok()?)?;
    (first <= last).then_some(Range { first, last, address })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(first: i64, last: i64, master: Vec<Reply>) -> Reply {
        Reply::List(vec![Reply::Integer(first), Reply::Integer(last), Reply::List(master)])
    }

    fn bytes(text: &str) -> Reply {
        Reply::Bytes(text.into())
    }

    fn read(told: Vec<Reply>) -> Option<Vec<String>> {
        let server = Address::parse("redis://10.0.0.9:7000").unwrap();
        let told = ranges(&Reply::List(told), &server)?;
        let text = |it: &Range| format!("{}-{} {}", it.first, it.last, it.address);
        Some(told.iter().map(text).collect())
    }

    #[test]
    fn ranges_and_their_masters_are_read() {
        let master = vec![bytes("10.0.0.1"), Reply::Integer(7_001), bytes("id")];
        let nameless = vec![bytes(""), Reply::Integer(7_002)];
        let unknown = vec![Reply::Nil, Reply::Integer(7_003)];
        let told =
            vec![range(0, 99, master), range(100, 100, nameless), range(101, 16_383, unknown)];
        let expected = ["0-99 10.0.0.1:7001", "100-100 10.0.0.9:7002", "101-16383 10.0.0.9:7003"];
        assert_eq!(read(told).unwrap(), expected);
    }

    #[test]
    fn what_is_no_map_of_slots_is_not_believed() {
        let master = || vec![bytes("10.0.0.1"), Reply::Integer(7_001)];
        for told in [
            vec![],
            vec![Reply::Nil],
            vec![range(0, 16_384, master())],
            vec![range(-1, 5, master())],
            vec![range(6, 5, master())],
            vec![range(0, 5, vec![bytes("10.0.0.1"), Reply::Integer(70_000)])],
            vec![range(0, 5, vec![])],
        ] {
            assert_eq!(read(told), None);
        }
    }
}
