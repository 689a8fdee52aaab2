//! The real Caddy asks with `forward_auth`, with examples/caddy as it is; and Traefik's questions,
//! with examples/traefik.

use std::fs;
use std::path::Path;

use crate::Folder;
use crate::support::app::App;
use crate::support::http;
use crate::support::parts;
use crate::support::process::Process;
use crate::support::server::Server;
use crate::support::{example_with_ports, free_port, local, until_open};

fn served(folder: &Folder, policy: &str) -> Server {
    let text = example_with_ports(policy, &[(8080, 0), (8082, 0)]);
    Server::start(Path::new(&folder.write("policy.yaml", text)))
}

#[test]
fn caddy_passes_denials_on_as_they_are() {
    let folder = Folder::new();
    let server = served(&folder, "caddy/policy.yaml");
    let app = App::start();
    let address = local(free_port());
    let ports = [(8000, address.port()), (8080, server.address("http").port()), (3000, app.port)];
    let config = folder.write("Caddyfile", example_with_ports("caddy/Caddyfile", &ports));
    let mut caddy = parts::on_path("caddy");
    caddy.args(["run", "--config", &config]).env("HOME", &folder.0);
    caddy.env("XDG_CONFIG_HOME", &folder.0).env("XDG_DATA_HOME", &folder.0);
    let _caddy = Process::start(caddy, &folder.0.join("caddy.log"));
    until_open(address);

    let host = format!("127.0.0.1:{}", address.port());
    let ask = |method: &str, claim: &str| {
        let fields = [("Host", host.as_str()), ("X-Forwarded-For", claim)];
        http::request(address, method, "/%73earch?q=1", &fields, "")
    };
    for claim in ["203.0.113.1", "203.0.113.2", "203.0.113.3", "203.0.113.4", "203.0.113.5"] {
        let answer = ask("DELETE", claim);
        assert_eq!((answer.status, answer.body.as_str()), (200, "app"), "{answer:?}");
    }
    let denied = ask("DELETE", "203.0.113.6");
    assert_eq!(denied.status, 429, "{denied:?}");
    let wait: u32 = denied.field("retry-after").expect("a wait is told").parse().unwrap();
    assert!((1..=940).contains(&wait), "one of 5 an hour comes back in 12 minutes, not {wait} s");
    assert_eq!(denied.field("content-type"), Some("application/problem+json"));
    assert_eq!(denied.json()["violated-policies"], serde_json::json!(["by-address"]));
    assert_eq!(app.requests(), 5, "a denied request does not get through");
}

#[test]
fn traefik_is_answered_where_the_example_makes_it_ask() {
    let folder = Folder::new();
    let server = served(&folder, "traefik/policy.yaml");
    let example = crate::root().join("examples/traefik/dynamic.yaml");
    let example = fs::read_to_string(example).unwrap();
    let (_, asked) = example.split_once("address: http://127.0.0.1:8080").unwrap();
    let path = asked.lines().next().unwrap();
    // What its forwardAuth middleware sends of a request.
    let fields = [
        ("X-Forwarded-Method", "POST"),
        ("X-Forwarded-Proto", "http"),
        ("X-Forwarded-Host", "shop.example.com"),
        ("X-Forwarded-Uri", "/cart?item=1"),
        ("X-Forwarded-For", "203.0.113.7"),
    ];
    let ask = || http::get(server.address("http"), path, &fields);
    assert_eq!([(); 5].map(|()| ask().status), [200; 5]);
    let denied = ask();
    assert_eq!(denied.status, 429);
    assert!(denied.field("retry-after").is_some());
}
