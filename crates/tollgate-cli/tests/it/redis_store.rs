//! `tollgate serve` with its states in Redis, as people run it: several processes, servers that come
//! and go, users with few rights. docs/redis.md says what must happen; its access rules are used here
//! as they are written there.

mod access;
mod nodes;
mod reach;

use std::path::Path;
use std::process::Command;

use serde_json::Value;
use tollgate_harness as harness;

use crate::support::eventually;
use crate::support::http::{self, Response};
use crate::support::server::Server;
use crate::{Folder, command};

const PAGE: &str = include_str!("../../../../docs/redis.md");

/// A node of several, with a policy of its own.
struct Node {
    server: Server,
    folder: Folder,
}

/// A store for servers that may be slow since they are busy with other tests.
fn patient(url: &str) -> String {
    format!("{{ redis: {{ url: '{url}', timeout: 5s }} }}")
}

/// A policy with these limits, and one that tells whether Redis is there.
fn policy(store: &str, limits: &str) -> String {
    format!(
        "listen: {{ http: 127.0.0.1:0, resp: 127.0.0.1:0, admin: 127.0.0.1:0 }}\n\
         store: {store}\n\
         limits:\n  \
         - {{ name: there, per: [there], rate: 1/second, on_store_failure: deny }}\n{limits}"
    )
}

impl Node {
    /// Starts one and waits until it reaches Redis.
    fn start(store: &str, limits: &str) -> Self {
        let node = Self::spawn(store, limits);
        node.until_redis_is_there();
        node
    }

    /// Starts one and waits for nothing.
    fn spawn(store: &str, limits: &str) -> Self {
        Self::spawn_in(Folder::new(), store, limits, |_| {})
    }

    /// The same with files that are there already, and changes to how it is started.
    fn spawn_in(
        folder: Folder,
        store: &str,
        limits: &str,
        change: impl FnOnce(&mut Command),
    ) -> Self {
        let path = folder.write("policy.yaml", policy(store, limits));
        // Everything there is to say, since some of these tests are about what must not be said.
        let mut serve = command(&["serve", "--log", "trace", "-c", &path]);
        change(&mut serve);
        Self { server: Server::follow(serve), folder }
    }

    /// The same policy in another process.
    fn again(&self) -> Self {
        let path = self.folder.path("policy.yaml");
        let text = std::fs::read_to_string(Path::new(&path)).expect("it was written");
        let folder = Folder::with(&[("policy.yaml", &text)]);
        let serve = command(&["serve", "-c", &folder.path("policy.yaml")]);
        let node = Self { server: Server::follow(serve), folder };
        node.until_redis_is_there();
        node
    }

    fn until_redis_is_there(&self) {
        eventually("Redis is reached", || self.reaches_redis().then_some(()));
    }

    fn reaches_redis(&self) -> bool {
        self.check("there=1&cost=0").status == 200
    }

    fn check(&self, query: &str) -> Response {
        self.server.get("http", &format!("/v1/check?{query}"))
    }

    fn statuses<const N: usize>(&self, query: &str) -> [u16; N] {
        [(); N].map(|()| self.check(query).status)
    }

    fn admin(&self, method: &str, path: &str, body: &str) -> Response {
        http::request(self.server.address("admin"), method, path, &[], body)
    }

    /// The warnings it has given, but for those of what the policy says.
    fn warnings(&self) -> Vec<Value> {
        let log = self.server.log();
        let events = log.iter().filter_map(|line| serde_json::from_str(line).ok());
        let is_of_policy = |event: &Value| {
            event["message"].as_str().is_some_and(|message| message.contains("warning["))
        };
        let is_told = |event: &Value| event["level"] == "WARN" && !is_of_policy(event);
        events.filter(is_told).collect()
    }

    /// Ends it as an operator does.
    fn stop(&mut self) {
        self.server.process.signal("TERM");
        assert_eq!(self.server.process.ended().code(), Some(0), "{:?}", self.server.log());
    }
}

/// Whether a server has a key, as somebody who looks would find out.
fn has_key(server: &harness::Server, key: &str) -> bool {
    server.command(&["EXISTS", key]).integer() == 1
}
