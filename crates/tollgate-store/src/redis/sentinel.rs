//! Finding the master that Sentinels watch over.

use std::collections::HashMap;
use std::fmt;
use std::pin::pin;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::sleep_until;

use super::bounds::{ABSENT_SENTINELS, ASKED_MAX};
use super::call::Reply;
use super::client::{Address, Connection};
use super::words::Words;
use crate::clock;

/// Sentinels and the name of the master they are asked for.
#[derive(Debug)]
pub(super) struct Sentinels {
    pub(super) master: String,
    pub(super) nodes: Vec<Address>,
}

impl Sentinels {
    /// Connects to the server that most Sentinels call the master, if it calls itself so too. What
    /// fewer of them name is not tried, also if that one does not answer: it may be a master that was
    /// cut off, and what it counts is lost.
    pub(super) async fn connect(&self, patience: Duration) -> Result<(Connection, String), String> {
        let mut why = String::new();
        for address in self.candidates(patience).await? {
            match connect_to_master(&address).await {
                Ok(connection) => return Ok((connection, address.to_string())),
                Err(error) => why = format!("{address}: {error}"),
            }
        }
        Err(why)
    }

    /// Whether the master is no longer where we think it is. One Sentinel is asked, each time another
    /// one, and the others only if it says so.
    pub(super) async fn is_elsewhere(&self, known: &str, turn: usize, patience: Duration) -> bool {
        let sentinel = self.nodes[turn % self.nodes.len()].clone();
        let told = ask(sentinel, self.question()).await;
        if told.is_ok_and(|address| address.to_string() != known) {
            let candidates = self.candidates(patience).await.unwrap_or_default();
            return !candidates.is_empty()
                && candidates.iter().all(|address| address.to_string() != known);
        }
        false
    }

    /// Where the master is by most of the Sentinels that answer: one place, or several if as many name
    /// each; otherwise what each of them says. Those that are missing may never answer: nobody waits
    /// for them once most Sentinels agree, or for long once one has spoken. Whoever goes by too few
    /// asks the server itself.
    async fn candidates(&self, patience: Duration) -> Result<Vec<Address>, String> {
        let question = self.question();
        let asking = |(place, node): (usize, &Address)| {
            let asked = ask(node.clone(), question.clone());
            async move { (place, asked.await) }
        };
        let mut asked: JoinSet<_> = self.nodes.iter().enumerate().map(asking).collect();
        let mut reasons = vec!["no answer".to_owned(); self.nodes.len()];
        let mut votes: HashMap<String, (usize, Address)> = HashMap::new();
        let (now, part) = (clock::moment(), patience / ABSENT_SENTINELS);
        let mut enough = pin!(sleep_until(now + part));
        let mut over = pin!(sleep_until(now + (patience - part)));
        loop {
            let answer = tokio::select! {
                biased;
                answer = asked.join_next() => answer,
                () = &mut enough, if !votes.is_empty() => break,
                () = &mut over => break,
            };
            let Some(answer) = answer else { break };
            match answer {
                Ok((_, Ok(address))) => {
                    let vote = votes.entry(address.to_string()).or_insert((0, address));
                    vote.0 += 1;
                    if vote.0 * 2 > self.nodes.len() {
                        break;
                    }
                }
                Ok((place, Err(why))) => reasons[place] = why,
                Err(_) => {}
            }
        }
        let most = votes.values().map(|(votes, _)| *votes).max();
        let named = votes.into_values().filter(|(votes, _)| Some(*votes) == most);
        let named: Vec<_> = named.map(|(_, address)| address).collect();
        if named.is_empty() { Err(self.unknown(&reasons)) } else { Ok(named) }
    }

    /// Nobody knows the master, and why.
    fn unknown(&self, reasons: &[String]) -> String {
        let told = self.nodes.iter().zip(reasons).take(ASKED_MAX);
        let told: Vec<String> = told.map(|(node, why)| format!("{node}: {why}")).collect();
        let more = match self.nodes.len() - told.len() {
            0 => String::new(),
            more => format!("; and {more} more"),
        };
        format!("no sentinel knows a master {:?} ({}{more})", self.master, told.join("; "))
    }

    fn question(&self) -> Words {
        ["SENTINEL", "get-master-addr-by-name", &self.master].iter().collect()
    }
}

impl fmt::Display for Sentinels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "master {:?}", self.master)
    }
}

/// Sentinels often have no users of their own, so what opens the master may not open them.
async fn ask(sentinel: Address, question: Words) -> Result<Address, String> {
    let connection = match Connection::open(&sentinel.plain(true)).await {
        Err(why) if sentinel.has_credentials() => {
            Connection::open(&sentinel.plain(false)).await.map_err(|_| why)?
        }
        opened => opened?,
    };
    match connection.ask(&question).await?? {
        Reply::Nil => Err("knows no master of that name".to_owned()),
        told => read_place(&told, &sentinel).ok_or_else(|| "names no host and port".to_owned()),
    }
}

fn read_place(told: &Reply, sentinel: &Address) -> Option<Address> {
    let Reply::List(place) = told else { return None };
    let [Reply::Bytes(host), Reply::Bytes(port)] = place.as_slice() else { return None };
    let port = str::from_utf8(port).ok()?.parse().ok()?;
    Some(sentinel.sibling(str::from_utf8(host).ok()?, port))
}

/// A Sentinel that was cut off may name a server that is a replica by now.
async fn connect_to_master(address: &Address) -> Result<Connection, String> {
    let connection = Connection::open(address).await?;
    match connection.ask(&["ROLE"].iter().collect()).await?? {
        Reply::List(role) if role.first() == Some(&Reply::Bytes(b"master".to_vec())) => {
            Ok(connection)
        }
        _ => Err("is no master".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use tokio::runtime::{Builder, Runtime};
    use tollgate_harness::{Flavour, Proxy, Sentinel, Server, free_port};

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(2);

    fn runtime() -> Runtime {
        Builder::new_current_thread().enable_all().build().expect("a runtime")
    }

    fn sentinels(master: &str, urls: &[String]) -> Sentinels {
        let nodes = urls.iter().map(|url| Address::parse(url).expect("a URL")).collect();
        Sentinels { master: master.to_owned(), nodes }
    }

    #[test]
    fn what_fewer_sentinels_call_the_master_is_not_used_when_the_master_is_gone() {
        let (most, few) = (Sentinel::start(Flavour::Redis), Sentinel::start(Flavour::Redis));
        let mut urls = most.urls();
        urls.truncate(2);
        urls.extend(few.urls().into_iter().take(1));
        let sentinels = sentinels(most.name(), &urls);
        // Nobody is slow here, but the machine may be.
        let patience = 10 * PATIENCE;
        let connect = || runtime().block_on(sentinels.connect(patience)).map(|(_, at)| at);
        let master = most.servers()[most.master()].address().to_string();
        assert_eq!(connect().unwrap(), master);
        // With no replica left there is none that could become the master.
        most.servers().iter().for_each(Server::kill);
        for _ in 0..5 {
            let why = connect().unwrap_err();
            assert!(why.starts_with(&format!("{master}: ")), "{why}");
        }
    }

    #[test]
    fn what_each_sentinel_said_is_told_if_none_knows_the_master() {
        let sentinel = Sentinel::start(Flavour::Redis);
        let server = Server::start(Flavour::Redis);
        let silent = Proxy::start(server.address());
        silent.hang();
        let nobody = format!("redis://127.0.0.1:{}", free_port());
        let urls = [nobody, sentinel.urls().remove(0), server.url(), silent.url()];
        let asked = sentinels("other", &urls);
        let why = runtime().block_on(asked.connect(PATIENCE)).map(|(_, at)| at).unwrap_err();
        let starts = [
            "Connection refused",
            "knows no master of that name",
            "ERR unknown command 'SENTINEL'",
            "no answer",
        ];
        let said: Vec<&str> = why.split_once(" (").expect("reasons").1.split("; ").collect();
        for ((url, start), said) in urls.iter().zip(starts).zip(&said) {
            let at = url.strip_prefix("redis://").expect("a URL");
            assert!(said.starts_with(&format!("{at}: ")) && said.contains(start), "{said}: {why}");
        }
        assert!(why.starts_with("no sentinel knows a master \"other\" ("), "{why}");

        let many: Vec<String> = urls[..1].iter().cloned().cycle().take(100).collect();
        let asked = sentinels("other", &many);
        let why = runtime().block_on(asked.connect(PATIENCE)).map(|(_, at)| at).unwrap_err();
        assert!(why.ends_with("; and 95 more)"), "{why}");
    }
}
