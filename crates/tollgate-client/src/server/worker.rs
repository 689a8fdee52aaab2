//! One connection's worth of work: takes what waits, asks, and hands out the answers.

use std::sync::Arc;
use std::time::Duration;

use http::{HeaderValue, StatusCode};
use serde_json::{Value, json};
use tokio::sync::mpsc::Receiver;
use tokio::sync::{Mutex, oneshot};
use tokio::time::timeout;

use super::connection::Connection;
use super::wire;
use crate::bounds::{SERVER_BATCH_BYTES_MAX, SERVER_BATCH_MAX, SERVER_REASON_CHARS_MAX};

#[derive(Debug)]
pub(super) struct Reply {
    pub(super) status: StatusCode,
    pub(super) body: Value,
}

/// Who waits for an answer, or for the reason why there is none.
pub(super) type Waiting = oneshot::Sender<Result<Reply, String>>;

/// What is asked, and who waits for the answer.
#[derive(Debug)]
pub(super) enum Job {
    /// As JSON; may travel with others.
    Check {
        body: String,
        reply: Waiting,
    },
    Call {
        path: &'static str,
        body: String,
        reply: Waiting,
    },
    /// What nobody has come for.
    GiveBack(GiveBack),
}

/// The call that gives back what a reply holds.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct GiveBack {
    path: &'static str,
    body: String,
}

#[derive(Debug)]
pub(super) struct Worker {
    connection: Connection,
    /// How long one call may take.
    patience: Duration,
}

impl Worker {
    pub(super) fn new(host: &str, token: Option<HeaderValue>, patience: Duration) -> Self {
        Self { connection: Connection::new(host, token), patience }
    }

    /// Works until there are no clients any more.
    pub(super) async fn run(mut self, jobs: Arc<Mutex<Receiver<Job>>>) {
        loop {
            let Some(batch) = take(&mut *jobs.lock().await).await else { return };
            // Checks come first: each of the others is a call of its own. Whoever is there is not kept waiting for those
            // who are not.
            let (mut checks, mut calls, mut left) = (Vec::new(), Vec::new(), Vec::new());
            for job in batch {
                match job {
                    Job::Check { body, reply } => checks.push((body, reply)),
                    Job::Call { path, body, reply } => calls.push((path, body, reply)),
                    Job::GiveBack(call) => left.push(call),
                }
            }
            self.check(checks, &mut left).await;
            for (path, body, reply) in calls {
                if !reply.is_closed() {
                    let answer = self.ask(path, body).await;
                    left.extend(deliver(reply, answer));
                }
            }
            for GiveBack { path, body } in left {
                let _gone_or_back = self.ask(path, body).await;
            }
        }
    }

    /// Checks in one call; in two halves, if that is too much or if one of them is none. Nobody asks for those who
    /// have gone; what answers hold that come too late for them is `left` to be given back.
    async fn check(&mut self, checks: Vec<(String, Waiting)>, left: &mut Vec<GiveBack>) {
        let mut parts = vec![checks];
        while let Some(mut part) = parts.pop() {
            part.retain(|(_, reply)| !reply.is_closed());
            if part.is_empty() {
                continue;
            }
            match self.ask("/v1/check/batch", array(&part)).await {
                Ok(Reply { status: StatusCode::OK, body: Value::Array(answers) })
                    if answers.len() == part.len() =>
                {
                    let answers =
                        answers.into_iter().map(|body| Reply { status: StatusCode::OK, body });
                    let pairs = part.into_iter().zip(answers);
                    left.extend(pairs.flat_map(|((_, reply), answer)| deliver(reply, Ok(answer))));
                }
                // Nothing of it was decided.
                Ok(reply) if reply.is_wrong_question() && part.len() > 1 => {
                    let second = part.split_off(part.len() / 2);
                    parts.extend([second, part]);
                }
                Ok(Reply { status, body }) => {
                    // What it says may be long, and there may be many to say it to.
                    let why = body["detail"].as_str().unwrap_or_default();
                    let why: String = why.chars().take(SERVER_REASON_CHARS_MAX).collect();
                    for (_, reply) in part {
                        let body = json!({ "detail": why });
                        let _gone = reply.send(Ok(Reply { status, body }));
                    }
                }
                Err(why) => {
                    part.into_iter().for_each(|(_, reply)| drop(reply.send(Err(why.clone()))));
                }
            }
        }
    }

    async fn ask(&mut self, path: &str, body: String) -> Result<Reply, String> {
        let asked = timeout(self.patience, self.connection.ask(path, body)).await;
        asked.unwrap_or_else(|_| {
            // Its answer may come yet, and must not be taken for another's.
            self.connection.close();
            Err(format!("there was no answer within {} ms", self.patience.as_millis()))
        })
    }
}

impl Reply {
    /// Whether the server would answer another question: this one is none, or too long.
    pub(super) fn is_wrong_question(&self) -> bool {
        matches!(self.status, StatusCode::BAD_REQUEST | StatusCode::PAYLOAD_TOO_LARGE)
    }

    /// Whether tollgate says that what it was told is done.
    pub(super) fn is_done(&self) -> bool {
        ["settled", "released", "renewed"].iter().any(|done| self.body[done] == true)
    }

    /// Whether it is tollgate that does not know a reservation or a lease. At a wrong address, or at another door, nothing is
    /// found either.
    pub(super) fn is_unknown(&self) -> bool {
        let detail = self.body["detail"].as_str().unwrap_or_default();
        ["no such reservation ", "no such lease "].iter().any(|begins| detail.starts_with(begins))
    }

    /// What it holds until somebody gives it back: slots, and what was reserved.
    pub(super) fn held(&self) -> impl Iterator<Item = GiveBack> {
        let lease = self.body["lease"].as_str();
        let lease = lease.map(|lease| ("/v1/release", wire::lease_json(lease)));
        let reservation = self.body["reservation"].as_str();
        let reservation = reservation.map(|it| ("/v1/settle", wire::settle_json(it, 0)));
        lease.into_iter().chain(reservation).map(|(path, body)| GiveBack { path, body })
    }
}

/// Hands an answer to whoever waits for it. If nobody does any more, what it holds is left to be given back: nobody
/// else knows its name.
fn deliver(waiting: Waiting, answer: Result<Reply, String>) -> Vec<GiveBack> {
    match waiting.send(answer) {
        Err(Ok(reply)) => reply.held().collect(),
        Ok(()) | Err(Err(_)) => Vec::new(),
    }
}

/// The next job, and those that wait with it.
async fn take(jobs: &mut Receiver<Job>) -> Option<Vec<Job>> {
    let first = jobs.recv().await?;
    let mut bytes = first.bytes();
    let mut batch = vec![first];
    while batch.len() < SERVER_BATCH_MAX && bytes < SERVER_BATCH_BYTES_MAX {
        let Ok(next) = jobs.try_recv() else { break };
        bytes += next.bytes();
        batch.push(next);
    }
    Some(batch)
}

impl Job {
    fn bytes(&self) -> usize {
        match self {
            Self::Check { body, .. }
            | Self::Call { body, .. }
            | Self::GiveBack(GiveBack { body, .. }) => body.len(),
        }
    }
}

fn array(checks: &[(String, Waiting)]) -> String {
    let checks: Vec<&str> = checks.iter().map(|(check, _)| check.as_str()).collect();
    format!("[{}]", checks.join(","))
}
