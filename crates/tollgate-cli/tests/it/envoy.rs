//! The real Envoy asks, with examples/envoy as it is.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;

use crate::Folder;
use crate::support::app::App;
use crate::support::http::{self, Response};
use crate::support::parts;
use crate::support::process::Process;
use crate::support::server::Server;
use crate::support::{copy_folder, eventually, example_with_ports, free_port, local};

/// Envoy between a client and an application, asking a server.
struct Edge {
    server: Server,
    app: App,
    address: SocketAddr,
    _envoy: Process,
    _folder: Folder,
}

impl Edge {
    /// With a file of the example, changed by `edit`.
    fn start(file: &str, edit: fn(&str) -> String) -> Self {
        let folder = Folder::new();
        copy_folder(&crate::root().join("examples/envoy"), &folder.0);
        let ports = [(8080, 0), (8081, 0), (8082, 0)];
        let policy = folder.write("policy.yaml", example_with_ports("envoy/policy.yaml", &ports));
        let server = Server::start(Path::new(&policy));
        let app = App::start();
        let address = local(free_port());
        let (written, asked) = match file {
            "envoy.yaml" => (8081, server.address("grpc")),
            _ => (8080, server.address("http")),
        };
        let ports = [(10000, address.port()), (written, asked.port()), (3000, app.port)];
        let config = edit(&example_with_ports(&format!("envoy/{file}"), &ports));
        let config = folder.write(file, config);
        let mut envoy = parts::envoy();
        envoy.args(["--log-level", "warning", "--concurrency", "1"]);
        envoy.args(["--use-dynamic-base-id", "--config-path", &config]);
        let log = folder.0.join("envoy.log");
        let mut envoy = Process::start(envoy, &log);
        eventually("Envoy listens", || {
            let said = || fs::read_to_string(&log).unwrap_or_default();
            assert!(envoy.has_ended().is_none(), "Envoy ended: {}", said());
            std::net::TcpStream::connect(address).ok()
        });
        Self { server, app, address, _envoy: envoy, _folder: folder }
    }

    fn get(&self, path: &str, fields: &[(&str, &str)]) -> Response {
        http::get(self.address, path, fields)
    }

    /// Waits until Envoy has asked: as long as it has not connected to the server, it lets requests
    /// through uncounted.
    fn until_asked(&self) {
        eventually("Envoy asks", || {
            self.get("/", &[("x-user", "nobody")]).field("x-ratelimit-limit").map(drop)
        });
    }
}

fn unchanged(config: &str) -> String {
    config.to_owned()
}

fn denying(config: &str) -> String {
    config.replace("failure_mode_deny: false", "failure_mode_deny: true")
}

fn statuses(edge: &Edge, count: usize, path: &str, fields: &[(&str, &str)]) -> Vec<u16> {
    (0..count).map(|_| edge.get(path, fields).status).collect()
}

#[test]
fn envoy_denies_with_429_and_the_figures_that_tollgate_told() {
    let edge = Edge::start("envoy.yaml", unchanged);
    edge.until_asked();
    let first = edge.get("/", &[("x-user", "anna")]);
    assert_eq!(first.status, 200);
    // The stricter of the two limits that apply is told, with both beside it.
    assert_eq!(first.field("x-ratelimit-limit"), Some("5, 1000;w=3600, 5;w=3600"), "{first:?}");
    assert_eq!(first.field("x-ratelimit-remaining"), Some("4"));
    assert_eq!(statuses(&edge, 4, "/", &[("x-user", "anna")]), [200; 4]);
    let before = edge.app.requests();
    let denied = edge.get("/", &[("x-user", "anna")]);
    assert_eq!(denied.status, 429);
    assert_eq!(denied.field("x-envoy-ratelimited"), Some("true"));
    assert_eq!(denied.field("x-ratelimit-remaining"), Some("0"));
    let wait: u32 = denied.field("retry-after").expect("a wait is told").parse().unwrap();
    assert!((1..=720).contains(&wait), "one of 5 an hour comes back in 12 minutes, not {wait} s");
    assert_eq!(edge.app.requests(), before, "a denied request does not get through");
    assert_eq!(edge.get("/", &[("x-user", "ben")]).status, 200, "others are not denied");
}

#[test]
fn what_an_answer_costs_is_taken_when_the_stream_is_done() {
    let edge = Edge::start("envoy.yaml", unchanged);
    edge.until_asked();
    let remaining = || {
        let answer = edge.get("/completions", &[("x-user", "anna")]);
        (answer.status, answer.field("x-ratelimit-remaining").map(str::to_owned))
    };
    let left = |units: &str| (200, Some(units.to_owned()));
    // Looking takes nothing, and an answer that does not say what it costs takes nothing either.
    assert_eq!(remaining(), left("100"));
    assert_eq!(remaining(), left("100"));
    let costly = [("x-user", "anna"), ("x-reply-x-tokens-used", "30")];
    assert_eq!(edge.get("/completions", &costly).status, 200);
    eventually("30 are taken", || (remaining() == left("70")).then_some(()));
    // The last answer may cost more than is left; the next request is denied.
    let costly = [("x-user", "anna"), ("x-reply-x-tokens-used", "71")];
    assert_eq!(edge.get("/completions", &costly).status, 200);
    eventually("more than all are taken", || (remaining().0 == 429).then_some(()));
    assert_eq!(edge.get("/completions", &[("x-user", "ben")]).status, 200);
}

#[test]
fn what_is_given_back_can_be_taken_again() {
    let edge = Edge::start("envoy.yaml", unchanged);
    edge.until_asked();
    let order = |user: &str, refund: &[(&str, &str)]| {
        edge.get("/orders", &[&[("x-user", user)], refund].concat()).status
    };
    assert_eq!([(); 3].map(|()| order("anna", &[])), [200, 200, 429]);
    let refund = [("x-reply-x-refund", "1")];
    for number in 0..10 {
        // What was taken comes back a moment after the answer.
        eventually(&format!("order {number} fits"), || {
            (order("ben", &refund) == 200).then_some(())
        });
    }
}

#[test]
fn with_tollgate_stopped_failure_mode_deny_decides() {
    for (edit, expected) in [(unchanged as fn(&str) -> String, 200), (denying, 500)] {
        let mut edge = Edge::start("envoy.yaml", edit);
        edge.until_asked();
        edge.server.process.kill();
        let user = [("x-user", "anna")];
        assert_eq!(statuses(&edge, 10, "/", &user), [expected; 10]);
    }
}

#[test]
fn envoy_asks_over_http_with_its_external_authorization_filter() {
    let edge = Edge::start("ext-authz.yaml", unchanged);
    let first = edge.get("/search?q=1", &[]);
    assert_eq!(first.status, 200);
    assert_eq!(first.field("x-ratelimit-remaining"), Some("4"), "{first:?}");
    assert_eq!(first.body, "app");
    assert_eq!(statuses(&edge, 4, "/%73earch", &[("x-forwarded-for", "203.0.113.1")]), [200; 4]);
    let denied = edge.get("/other", &[("x-forwarded-for", "203.0.113.2")]);
    assert_eq!(denied.status, 429, "{denied:?}");
    assert!(denied.field("retry-after").is_some(), "{denied:?}");
    assert_eq!(denied.field("content-type"), Some("application/problem+json"));
    assert_eq!(denied.json()["violated-policies"], serde_json::json!(["by-address"]));
    assert_eq!(edge.app.requests(), 5);
}
