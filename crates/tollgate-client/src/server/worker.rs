//! One connection's worth of work: takes what waits, asks, and hands out the answers.

use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use serde_json::Value;
use tokio::sync::mpsc::Receiver;
use tokio::sync::{Mutex, oneshot};
use tokio::time::timeout;

use super::connection::Connection;
use super::wire;
use crate::bounds::{SERVER_BATCH_BYTES_MAX, SERVER_BATCH_MAX};

#[derive(Debug)]
pub(super) enum Ask {
    /// As JSON; may travel with others.
    Check(String),
    Call {
        path: &'static str,
        body: String,
    },
}

#[derive(Debug)]
pub(super) struct Reply {
    pub(super) status: StatusCode,
    pub(super) body: Value,
}

/// Who waits for an answer, or for the reason why there is none.
type Waiting = oneshot::Sender<Result<Reply, String>>;

/// What is asked, and who waits for the answer.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) ask: Ask,
    pub(super) reply: Waiting,
}

#[derive(Debug)]
pub(super) struct Worker {
    connection: Connection,
    /// How long one call may take.
    patience: Duration,
}

impl Worker {
    pub(super) fn new(host: &str, token: Option<&str>, patience: Duration) -> Self {
        Self { connection: Connection::new(host, token), patience }
    }

    /// Works until there are no clients any more.
    pub(super) async fn run(mut self, jobs: Arc<Mutex<Receiver<Job>>>) {
        loop {
            let Some(batch) = take(&mut *jobs.lock().await).await else { return };
            let mut checks = Vec::new();
            for Job { ask, reply } in batch.into_iter().filter(|job| !job.reply.is_closed()) {
                match ask {
                    Ask::Check(check) => checks.push((check, reply)),
                    Ask::Call { path, body } => self.call(path, body, reply).await,
                }
            }
            self.check(checks).await;
        }
    }

    /// Checks in one call; in two halves, if that is too much or if one of them is none.
    async fn check(&mut self, checks: Vec<(String, Waiting)>) {
        let mut parts = vec![checks];
        while let Some(mut part) = parts.pop() {
            if part.is_empty() {
                continue;
            }
            let body = array(&part);
            match self.ask("/v1/check/batch", body).await {
                Ok(Reply { status: StatusCode::OK, body: Value::Array(answers) })
                    if answers.len() == part.len() =>
                {
                    for ((_, reply), body) in part.into_iter().zip(answers) {
                        self.deliver(reply, Ok(Reply { status: StatusCode::OK, body })).await;
                    }
                }
                // Nothing of it was decided.
                Ok(reply) if reply.status.is_client_error() && part.len() > 1 => {
                    let second = part.split_off(part.len() / 2);
                    parts.extend([second, part]);
                }
                Ok(reply) => {
                    let why = format!("it answered {} and no verdicts", reply.status);
                    part.into_iter().for_each(|(_, reply)| drop(reply.send(Err(why.clone()))));
                }
                Err(why) => {
                    part.into_iter().for_each(|(_, reply)| drop(reply.send(Err(why.clone()))));
                }
            }
        }
    }

    async fn call(&mut self, path: &'static str, body: String, reply: Waiting) {
        let answer = self.ask(path, body).await;
        self.deliver(reply, answer).await;
    }

    /// Hands an answer to whoever waits for it. If nobody does any more, what it holds is given back:
    /// nobody else knows its name.
    async fn deliver(&mut self, waiting: Waiting, answer: Result<Reply, String>) {
        let Err(Ok(Reply { body, .. })) = waiting.send(answer) else { return };
        if let Some(lease) = body["lease"].as_str() {
            let _gone_or_back = self.ask("/v1/release", wire::lease_json(lease)).await;
        }
        if let Some(reservation) = body["reservation"].as_str() {
            let _gone_or_back = self.ask("/v1/settle", wire::settle_json(reservation, 0)).await;
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
        match &self.ask {
            Ask::Check(body) | Ask::Call { body, .. } => body.len(),
        }
    }
}

fn array(checks: &[(String, Waiting)]) -> String {
    let checks: Vec<&str> = checks.iter().map(|(check, _)| check.as_str()).collect();
    format!("[{}]", checks.join(","))
}
