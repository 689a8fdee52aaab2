//! Finding the master that Sentinels watch over.

use std::collections::HashMap;
use std::fmt;
use std::pin::pin;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::sleep_until;

use super::bounds::ABSENT_SENTINELS;
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
    /// Connects to the server that most Sentinels call the master, if it calls itself so too.
    pub(super) async fn connect(&self, patience: Duration) -> Result<(Connection, String), String> {
        let mut why = format!("no sentinel knows a master {:?}", self.master);
        for address in self.candidates(patience).await {
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
        if told.is_none_or(|address| address.to_string() == known) {
            return false;
        }
        let most_likely = self.candidates(patience).await.into_iter().next();
        most_likely.is_some_and(|address| address.to_string() != known)
    }

    /// Where the master may be, the most likely place first. Those that are missing may never answer:
    /// nobody waits for them once most Sentinels agree, or for long once one has spoken. Whoever goes
    /// by too few asks the server itself.
    async fn candidates(&self, patience: Duration) -> Vec<Address> {
        let question = self.question();
        let mut asked: JoinSet<_> =
            self.nodes.iter().map(|node| ask(node.clone(), question.clone())).collect();
        let mut votes: HashMap<String, (usize, Address)> = HashMap::new();
        let mut enough = pin!(sleep_until(clock::moment() + patience / ABSENT_SENTINELS));
        loop {
            let answer = tokio::select! {
                biased;
                answer = asked.join_next() => answer,
                () = &mut enough, if !votes.is_empty() => break,
            };
            let Some(answer) = answer else { break };
            let Some(address) = answer.ok().flatten() else { continue };
            let vote = votes.entry(address.to_string()).or_insert((0, address));
            vote.0 += 1;
            if vote.0 * 2 > self.nodes.len() {
                break;
            }
        }
        let mut candidates: Vec<_> = votes.into_values().collect();
        candidates.sort_by_key(|(votes, _)| std::cmp::Reverse(*votes));
        candidates.into_iter().map(|(_, address)| address).collect()
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
async fn ask(sentinel: Address, question: Words) -> Option<Address> {
    let connection = match Connection::open(&sentinel.plain(true)).await {
        Err(_) if sentinel.has_credentials() => Connection::open(&sentinel.plain(false)).await,
        opened => opened,
    };
    let Reply::List(place) = connection.ok()?.ask(&question).await.ok()?.ok()? else { return None };
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
