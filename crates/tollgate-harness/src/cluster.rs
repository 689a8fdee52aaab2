//! A Cluster of six: three masters, and a replica of each.
//!
//! Nodes are told by their place in [`Cluster::nodes`]. What all live nodes say alike is believed;
//! what only some say is waited for.

use std::ops::RangeInclusive;

use crate::bounds::MIGRATE_MILLIS_MAX;
use crate::parts::Flavour;
use crate::resp::Reply;
use crate::server::{Role, Server, Setup, start_all};
use crate::wait::eventually;

const MASTERS: usize = 3;
const NODES: usize = 2 * MASTERS;
const SLOTS: usize = 16_384;

/// A running Cluster; its nodes end when this is dropped.
#[derive(Debug)]
pub struct Cluster {
    nodes: Vec<Server>,
    /// What the nodes call each other.
    ids: Vec<String>,
}

/// A slot on its way to another node, between the first step and the last: both nodes hold keys of
/// it, and clients are sent from the one to the other by `ASK`.
#[derive(Debug)]
pub struct Migration<'a> {
    cluster: &'a Cluster,
    slot: u16,
    from: usize,
    to: usize,
}

/// What one node says of another.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    node: usize,
    /// It has been met, and is not thought to have failed.
    is_well: bool,
    master: Option<usize>,
    slots: Vec<RangeInclusive<u16>>,
}

impl Cluster {
    /// Starts the nodes and waits until all of them say that the Cluster is whole.
    pub fn start(flavour: Flavour) -> Self {
        let setup = Setup::new(flavour)
            .role(Role::ClusterNode)
            .line("cluster-node-timeout 1000")
            // Which node is whose replica changes by what a test does, and not otherwise.
            .line("cluster-allow-replica-migration no");
        let nodes = start_all(&vec![setup; NODES]);
        let ids = nodes.iter().map(|node| node.command(&["CLUSTER", "MYID"]).text()).collect();
        let cluster = Self { nodes, ids };
        cluster.give_out_slots();
        cluster.introduce();
        cluster.until_whole();
        cluster
    }

    /// The nodes. At first those at 0 to 2 are masters, and 3 to 5 their replicas in that order.
    pub fn nodes(&self) -> &[Server] {
        &self.nodes
    }

    /// The nodes as a client is told of them.
    pub fn urls(&self) -> Vec<String> {
        self.nodes.iter().map(Server::url).collect()
    }

    /// The slot a key is in.
    pub fn slot(&self, key: &str) -> u16 {
        let mut live = self.nodes.iter();
        let slot = live.find_map(|node| node.try_command(&["CLUSTER", "KEYSLOT", key]).ok());
        let slot = slot.expect("some node lives").integer();
        u16::try_from(slot).expect("there are 16,384")
    }

    /// Which node all live nodes say serves a slot.
    pub fn master_of(&self, slot: u16) -> usize {
        eventually(&format!("one master of slot {slot} is agreed on"), || self.agreed_master(slot))
    }

    /// Kills the node that serves a slot, waits until its replica does, and returns which was
    /// killed.
    pub fn kill_master_of(&self, slot: u16) -> usize {
        let killed = self.master_of(slot);
        self.nodes[killed].kill();
        eventually("a replica takes over", || {
            let is_served = self.agreed_master(slot).is_some_and(|master| master != killed);
            (is_served && self.all_say_ok()).then_some(())
        });
        killed
    }

    /// Makes a replica the node that serves a slot, as an operator would, waits until all agree,
    /// and returns which it is.
    pub fn failover(&self, slot: u16) -> usize {
        let master = self.master_of(slot);
        let seen = self.seen_by(master).expect("it lives");
        let replica = seen.iter().find(|seen| seen.master == Some(master));
        let replica = replica.expect("the master has a replica").node;
        self.nodes[replica].command(&["CLUSTER", "FAILOVER"]).ok();
        eventually("the replica takes over", || {
            (self.agreed_master(slot) == Some(replica)).then_some(())
        });
        self.until_whole();
        replica
    }

    /// Begins to move a slot to another master.
    pub fn begin_migration(&self, slot: u16, to: usize) -> Migration<'_> {
        let from = self.master_of(slot);
        assert_ne!(from, to, "the slot is there already");
        let migration = Migration { cluster: self, slot, from, to };
        migration.set_slot(to, &["IMPORTING", &self.ids[from]]);
        migration.set_slot(from, &["MIGRATING", &self.ids[to]]);
        migration
    }

    /// Moves a slot to another master with all its keys.
    pub fn migrate_slot(&self, slot: u16, to: usize) {
        self.begin_migration(slot, to).finish();
    }

    /// Waits until all six live, agree on who is what, and all replicas follow their masters.
    pub fn until_whole(&self) {
        eventually("the Cluster is whole", || {
            let follows = |node: &Server| {
                node.info("role").as_deref() == Some("master")
                    || node.info("master_link_status").as_deref() == Some("up")
            };
            let views: Option<Vec<_>> = (0..NODES).map(|node| self.seen_by(node)).collect();
            let views = views?;
            let is_whole = self.all_say_ok()
                && views.iter().all(|view| is_whole(view) && *view == views[0])
                && self.nodes.iter().all(follows);
            is_whole.then_some(())
        });
    }

    fn give_out_slots(&self) {
        for (place, node) in self.nodes.iter().enumerate() {
            // Two nodes of one epoch would first have to find out who gives way.
            node.command(&["CLUSTER", "SET-CONFIG-EPOCH", &(place + 1).to_string()]).ok();
            if place < MASTERS {
                let first = place * SLOTS / MASTERS;
                let last = (place + 1) * SLOTS / MASTERS - 1;
                let range = [first.to_string(), last.to_string()];
                node.command(&["CLUSTER", "ADDSLOTSRANGE", &range[0], &range[1]]).ok();
            }
        }
    }

    /// Introduces every node to every other, since gossip takes its time.
    fn introduce(&self) {
        for (place, node) in self.nodes.iter().enumerate() {
            let port = node.port().to_string();
            let bus = node.command(&["CONFIG", "GET", "cluster-port"]).list()[1].text();
            for other in &self.nodes[..place] {
                other.command(&["CLUSTER", "MEET", "127.0.0.1", &port, &bus]).ok();
            }
        }
        for place in MASTERS..NODES {
            let master = &self.ids[place - MASTERS];
            eventually("the replica knows its master", || {
                let said = self.nodes[place].command(&["CLUSTER", "REPLICATE", master]);
                (!matches!(said, Reply::Error(_))).then_some(())
            });
        }
    }

    fn agreed_master(&self, slot: u16) -> Option<usize> {
        let views: Vec<_> = (0..NODES).filter_map(|node| self.seen_by(node)).collect();
        let master =
            |view: &Vec<Seen>| view.iter().find(|seen| seen.serves(slot)).map(|it| it.node);
        let first = master(views.first()?)?;
        views.iter().all(|view| master(view) == Some(first)).then_some(first)
    }

    /// Whether every live node says that the Cluster works.
    fn all_say_ok(&self) -> bool {
        let states = self.nodes.iter().filter_map(|it| it.try_command(&["CLUSTER", "INFO"]).ok());
        states.into_iter().all(|state| state.text().starts_with("cluster_state:ok"))
    }

    /// What a node says of all, itself included; nothing if it does not live.
    fn seen_by(&self, node: usize) -> Option<Vec<Seen>> {
        let text = self.nodes[node].try_command(&["CLUSTER", "NODES"]).ok()?.text();
        let mut seen: Vec<Seen> = text.lines().filter_map(|line| self.parse(line)).collect();
        seen.sort_by_key(|seen| seen.node);
        Some(seen)
    }

    /// `id address flags master ping pong epoch link slot…`; nothing of a node that has another id
    /// until the two have met.
    fn parse(&self, line: &str) -> Option<Seen> {
        let words: Vec<&str> = line.split(' ').collect();
        let place = |id: &str| self.ids.iter().position(|known| known == id);
        // What stands in brackets is on its way.
        let slots = words[8..].iter().filter(|word| !word.starts_with('['));
        let range = |word: &&str| {
            let (first, last) = word.split_once('-').unwrap_or((word, word));
            let number = |text: &str| text.parse().expect("the number of a slot");
            number(first)..=number(last)
        };
        Some(Seen {
            node: place(words[0])?,
            is_well: !words[2].contains("fail") && !words[2].contains("handshake"),
            master: place(words[3]),
            slots: slots.map(range).collect(),
        })
    }
}

impl Seen {
    fn serves(&self, slot: u16) -> bool {
        self.slots.iter().any(|slots| slots.contains(&slot))
    }
}

/// Whether all six are known and well, and half of them masters.
fn is_whole(view: &[Seen]) -> bool {
    let masters = view.iter().filter(|seen| seen.master.is_none()).count();
    view.len() == NODES && view.iter().all(|seen| seen.is_well) && masters == MASTERS
}

impl Migration<'_> {
    /// The node the slot leaves.
    pub fn from(&self) -> usize {
        self.from
    }

    /// Moves some of its keys, and returns how many there were to move.
    pub fn move_keys(&self, at_most: usize) -> usize {
        let Cluster { nodes, .. } = self.cluster;
        let (slot, count) = (self.slot.to_string(), at_most.to_string());
        let keys = nodes[self.from].command(&["CLUSTER", "GETKEYSINSLOT", &slot, &count]);
        let keys: Vec<&[u8]> = keys.list().iter().map(Reply::bytes).collect();
        if !keys.is_empty() {
            let port = nodes[self.to].port().to_string();
            let timeout = MIGRATE_MILLIS_MAX.to_string();
            let words = ["MIGRATE", "127.0.0.1", &port, "", "0", &timeout, "KEYS"];
            let command = [&words.map(str::as_bytes)[..], &keys].concat();
            let moved = nodes[self.from].command(&command).text();
            // Keys that expired meanwhile need not be moved.
            assert!(["OK", "NOKEY"].contains(&moved.as_str()), "{moved}");
        }
        keys.len()
    }

    /// Moves the keys that are left and makes the change known to all.
    pub fn finish(self) {
        while self.move_keys(100) > 0 {}
        let Cluster { ids, .. } = self.cluster;
        for node in [self.to, self.from] {
            self.set_slot(node, &["NODE", &ids[self.to]]);
        }
        let what = format!("all know that slot {} has moved", self.slot);
        eventually(&what, || {
            (self.cluster.agreed_master(self.slot) == Some(self.to)).then_some(())
        });
    }

    fn set_slot(&self, node: usize, words: &[&str]) {
        let slot = self.slot.to_string();
        let command = [&["CLUSTER", "SETSLOT", &slot], words].concat();
        self.cluster.nodes[node].command(&command).ok();
    }
}
