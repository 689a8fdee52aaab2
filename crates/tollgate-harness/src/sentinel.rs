//! A master, two replicas, and three Sentinels that watch them.

use crate::parts::Flavour;
use crate::server::{Role, Server, Setup, start_all};
use crate::wait::eventually;

const SERVERS: usize = 3;
const SENTINELS: usize = 3;

/// What the Sentinels call the master.
const MASTER: &str = "limits";

/// Sentinels and what they watch; all end when this is dropped.
#[derive(Debug)]
pub struct Sentinel {
    servers: Vec<Server>,
    sentinels: Vec<Server>,
}

impl Sentinel {
    /// Starts all and waits until the Sentinels know each other and the replicas.
    pub fn start(flavour: Flavour) -> Self {
        let servers = start_all(&vec![Setup::new(flavour); SERVERS]);
        let master = servers[0].port().to_string();
        for replica in &servers[1..] {
            replica.command(&["REPLICAOF", "127.0.0.1", &master]).ok();
        }
        // Two of them must find the master down. Were all three to find it at once, each could vote
        // for itself; were the second quicker, a busy machine would be taken for a dead one.
        let sentinels = [400, 1_000, 1_500].map(|down_after_millis| {
            Setup::new(flavour)
                .role(Role::Sentinel)
                .line(&format!("sentinel monitor {MASTER} 127.0.0.1 {master} 2"))
                .line(&format!("sentinel down-after-milliseconds {MASTER} {down_after_millis}"))
                .line(&format!("sentinel failover-timeout {MASTER} 4000"))
                .line(&format!("sentinel parallel-syncs {MASTER} {SERVERS}"))
        });
        let sentinels = start_all(&sentinels);
        let all = Self { servers, sentinels };
        // By themselves they introduce each other every two seconds, and look at the servers every
        // ten.
        all.set_periods(&["PUBLISH-PERIOD", "100", "INFO-PERIOD", "400", "ASK-PERIOD", "100"]);
        all.until_whole();
        // A server that turned master is made a replica again by Sentinels that are not told why
        // within four times the first; one not heard of for five times the second is no candidate.
        all.set_periods(&["PUBLISH-PERIOD", "700", "PING-PERIOD", "500"]);
        all
    }

    fn set_periods(&self, periods: &[&str]) {
        for sentinel in &self.sentinels {
            sentinel.command(&[&["SENTINEL", "DEBUG"], periods].concat()).ok();
        }
    }

    /// What the master is called.
    pub fn name(&self) -> &'static str {
        MASTER
    }

    /// The Sentinels as a client is told of them.
    pub fn urls(&self) -> Vec<String> {
        self.sentinels.iter().map(Server::url).collect()
    }

    /// The Sentinels.
    pub fn sentinels(&self) -> &[Server] {
        &self.sentinels
    }

    /// The master and its replicas. At first the master is at 0.
    pub fn servers(&self) -> &[Server] {
        &self.servers
    }

    /// Which server is the master, as it says itself and all live Sentinels say.
    pub fn master(&self) -> usize {
        eventually("the Sentinels agree on a master", || self.agreed_master())
    }

    /// Makes a replica the master, as an operator would, waits until the Sentinels agree, and
    /// returns which. The master before takes commands for a few seconds more, since it is only then
    /// made a replica: see [`until_whole`](Self::until_whole).
    pub fn failover(&self) -> usize {
        let before = self.master();
        let sentinel = &self.sentinels[0];
        eventually("a Sentinel makes another the master", || {
            // It gives up when it has not heard of a replica lately, and is to begin again then;
            // not sooner, or it would do so twice.
            let is_idle = field(sentinel, "flags").is_some_and(|flags| flags == "master");
            match self.agreed_master() {
                Some(master) if master != before => return Some(master),
                Some(_) if is_idle => drop(sentinel.command(&["SENTINEL", "FAILOVER", MASTER])),
                _ => {}
            }
            None
        })
    }

    /// Kills the master, waits until the Sentinels have made another, and returns which was killed.
    pub fn kill_master(&self) -> usize {
        let killed = self.master();
        self.servers[killed].kill();
        self.until_another_than(killed);
        killed
    }

    /// Waits until all live, the replicas follow the master, and every Sentinel knows all others.
    pub fn until_whole(&self) {
        eventually("master, replicas and Sentinels are whole", || {
            let master = self.agreed_master()?;
            let follows = |(place, server): (usize, &Server)| {
                place == master || server.info("master_link_status").as_deref() == Some("up")
            };
            let is_whole =
                self.servers.iter().enumerate().all(follows) && self.sentinels.iter().all(sees_all);
            is_whole.then_some(())
        });
    }

    fn until_another_than(&self, before: usize) -> usize {
        eventually("another master is agreed on", || {
            self.agreed_master().filter(|master| *master != before)
        })
    }

    fn agreed_master(&self) -> Option<usize> {
        let told = |sentinel: &Server| {
            let words = ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", MASTER];
            let address = sentinel.try_command(&words).ok()?;
            let port = address.list()[1].text();
            self.servers.iter().position(|server| server.port().to_string() == port)
        };
        let mut told = self.sentinels.iter().filter_map(told);
        let first = told.next()?;
        let is_agreed = told.all(|other| other == first);
        let is_master = self.servers[first].info("role").as_deref() == Some("master");
        (is_agreed && is_master).then_some(first)
    }
}

/// Whether a Sentinel knows the replicas and the other Sentinels, and finds nothing wrong.
fn sees_all(sentinel: &Server) -> bool {
    let is = |name: &str, value: &str| field(sentinel, name).is_some_and(|field| field == value);
    let others = (SENTINELS - 1).to_string();
    is("flags", "master") && is("num-slaves", &others) && is("num-other-sentinels", &others)
}

/// What a Sentinel says of the master.
fn field(sentinel: &Server, name: &str) -> Option<String> {
    let told = sentinel.try_command(&["SENTINEL", "MASTER", MASTER]).ok()?;
    let mut fields = told.list().chunks_exact(2);
    fields.find(|pair| pair[0].text() == name).map(|pair| pair[1].text())
}
