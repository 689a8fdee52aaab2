//! Running it: new policies, certificates and signals under load, and who may tell it what.

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use crate::support::eventually;
use crate::support::http::{self, Connection};
use crate::support::server::Server;
use crate::{Folder, command};

const DOORS: &str = "listen: { http: 127.0.0.1:0, admin: 127.0.0.1:0 }\n";

/// A policy with one limit of this name, and so many an hour.
fn policy(name: &str, count: u32) -> String {
    format!("{DOORS}limits: [{{ name: {name}, rate: {count}/hour, algorithm: token_bucket }}]\n")
}

fn start(folder: &Folder, policy: &str) -> Server {
    Server::start(Path::new(&folder.write("policy.yaml", policy)))
}

/// The names of the limits in force, as a peek is told.
fn in_force(server: &Server) -> Vec<String> {
    names(&server.get("http", "/v1/check?cost=0").json())
}

fn names(verdict: &serde_json::Value) -> Vec<String> {
    let limits = verdict["limits"].as_array().expect("a verdict lists limits");
    limits.iter().map(|limit| limit["name"].as_str().expect("they have names").to_owned()).collect()
}

/// Replaces a file as careful programs do: it is the old one or the new one, never half of it.
fn replace(folder: &Folder, file: &str, text: &str) {
    let new = folder.write("new", text);
    fs::rename(new, folder.path(file)).expect("the folder is ours");
}

/// Writes a file so that it looks as before: same length, same time, same place. Who looks for
/// changes sees none.
fn replace_unseen(folder: &Folder, file: &str, text: &str) {
    let before = fs::metadata(folder.path(file)).expect("the file is there");
    assert_eq!(before.len(), text.len() as u64);
    folder.write(file, text);
    let time = before.modified().expect("the file system keeps times");
    let file = File::options().append(true).open(folder.path(file)).expect("the file is ours");
    file.set_modified(time).expect("the file is ours");
}

#[test]
fn reloads_under_load_lose_and_misjudge_nothing() {
    const ALLOWED: usize = 2_000;
    let with = |other: &str| {
        // The window is a year, so nothing comes back meanwhile.
        let shared = format!("{{ name: shared, rate: {ALLOWED}/year, algorithm: fixed_window }}");
        let other = format!("{{ name: {other}, rate: 1000000/second }}");
        format!("{DOORS}limits: [{shared}, {other}]\n")
    };
    let folder = Folder::new();
    let server = start(&folder, &with("odd"));
    let address = server.address("http");
    let is_done = AtomicBool::new(false);
    let (asked, allowed) = (AtomicUsize::new(0), AtomicUsize::new(0));
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut connection = Connection::open(address);
                while !is_done.load(Ordering::Relaxed) {
                    let answer = connection.ask("GET", "/v1/check", &[], "").expect("an answer");
                    let names = names(&answer.json());
                    assert!(names == ["shared", "odd"] || names == ["shared", "even"], "{names:?}");
                    asked.fetch_add(1, Ordering::Relaxed);
                    match answer.status {
                        200 => allowed.fetch_add(1, Ordering::Relaxed),
                        429 => 0,
                        other => panic!("{other}: {answer:?}"),
                    };
                }
            });
        }
        let mut number = 0;
        while number < 20 || asked.load(Ordering::Relaxed) < 2 * ALLOWED {
            let other = if number % 2 == 0 { "even" } else { "odd" };
            replace(&folder, "policy.yaml", &with(other));
            let answer = server.post("admin", "/v1/reload", "");
            assert_eq!(answer.status, 200, "{answer:?}");
            assert_eq!(in_force(&server), ["shared", other]);
            number += 1;
        }
        is_done.store(true, Ordering::Relaxed);
    });
    assert_eq!(allowed.into_inner(), ALLOWED, "of {} that were asked for", asked.into_inner());
}

#[test]
fn sigterm_under_load_answers_whatever_was_taken_and_ends_with_0() {
    const ENOUGH: u64 = 4_000_000_000;
    let folder = Folder::new();
    let text = format!(
        "{DOORS}store: {{ memory: {{ snapshot: state.tollgate }} }}\n\
         limits: [{{ name: all, rate: {ENOUGH}/year, algorithm: fixed_window }}]\n"
    );
    let mut server = start(&folder, &text);
    let address = server.address("http");
    let mut admin = Connection::open(server.address("admin"));
    let ready = |admin: &mut Connection<_>| admin.ask("GET", "/readyz", &[], "");
    assert_eq!(ready(&mut admin).expect("an answer").status, 200);
    let answered = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                http::ask_until_turned_away(address, ("GET", "/v1/check", ""), None, &answered);
            });
        }
        eventually("there is load", || (answered.load(Ordering::Relaxed) > 1_000).then_some(()));
        server.process.signal("TERM");
        eventually("it says that it is not ready", || {
            (ready(&mut admin).expect("it says so while it still answers").status == 503)
                .then_some(())
        });
    });
    assert_eq!(server.process.ended().code(), Some(0), "{:?}", server.log());
    // What was taken is in the snapshot, and every unit of it was told to somebody.
    let server = Server::start(Path::new(&folder.path("policy.yaml")));
    let peek = server.get("http", "/v1/check?cost=0").json();
    let remaining = peek["limits"][0]["remaining"].as_u64().expect("it is a number");
    assert_eq!(ENOUGH - remaining, answered.into_inner() as u64);
}

#[test]
fn a_bad_policy_leaves_the_old_one_in_force_and_is_told() {
    let folder = Folder::new();
    let server = start(&folder, &policy("good", 5));
    replace(&folder, "policy.yaml", "limits: [{ name: bad, rate: 5/minuet }]\n");
    server.says("everything stays as it was");
    assert_eq!(in_force(&server), ["good"]);
    let told = server.get("admin", "/v1/policy").json();
    assert!(told["error"].as_str().is_some_and(|it| it.contains("5/minuet")), "{told}");
    let refused = server.post("admin", "/v1/reload", "");
    assert_eq!(refused.status, 422, "{refused:?}");
    assert!(refused.body.contains("5/minuet"), "{refused:?}");
    fs::remove_file(folder.path("policy.yaml")).unwrap();
    assert_eq!(server.post("admin", "/v1/reload", "").status, 422);
    assert_eq!(in_force(&server), ["good"]);
    replace(&folder, "policy.yaml", &policy("better", 5));
    eventually("the next good one is taken", || (in_force(&server) == ["better"]).then_some(()));
    assert!(server.get("admin", "/v1/policy").json()["error"].is_null());
}

#[test]
fn why_a_policy_was_not_taken_can_be_read_in_a_log_of_text() {
    let folder = Folder::new();
    let path = folder.write("policy.yaml", policy("good", 5));
    let server = Server::follow(command(&["serve", "--log-format", "text", "-c", &path]));
    server.says("listening");
    replace(&folder, "policy.yaml", "limits: [{ name: bad, rate: 5/minuet }]\n");
    server.says("1 | limits: [{ name: bad, rate: 5/minuet }]");
    let log = server.log();
    let line = log.iter().find(|line| line.contains("everything stays as it was")).unwrap();
    let reason =
        format!("everything stays as it was: {path}:1:29: limit \"bad\": rate \"5/minuet\"");
    assert!(line.contains(&reason), "{line}");
}

#[test]
fn a_policy_that_sends_requests_back_to_its_gateway_is_not_served() {
    let folder = Folder::new();
    let policy = "upstream: http://localhost:8000\nlimits: [{ name: a, rate: 5/hour }]\n";
    let path = folder.write("policy.yaml", policy);
    let mut server = Server::spawn(Path::new(&path));
    assert_eq!(server.process.ended().code(), Some(1));
    server.says("policy.yaml:1:11: upstream \"http://localhost:8000\" is the gateway itself");
}

#[test]
fn a_swapped_symlink_is_seen_as_kubernetes_swaps_it() {
    let folder = Folder::new();
    let version = |name: &str, text: &str| {
        fs::create_dir(folder.path(name)).unwrap();
        folder.write(&format!("{name}/policy.yaml"), text);
        symlink(name, folder.path("..data_tmp")).unwrap();
        fs::rename(folder.path("..data_tmp"), folder.path("..data")).unwrap();
    };
    version("..2026_01", &policy("first", 5));
    symlink("..data/policy.yaml", folder.path("policy.yaml")).unwrap();
    let server = Server::start(Path::new(&folder.path("policy.yaml")));
    assert_eq!(in_force(&server), ["first"]);
    version("..2026_02", &policy("second", 5));
    fs::remove_dir_all(folder.path("..2026_01")).unwrap();
    eventually("the second is in force", || (in_force(&server) == ["second"]).then_some(()));
}

#[test]
fn sighup_and_the_admin_api_reload_what_looks_unchanged() {
    let folder = Folder::new();
    let server = start(&folder, &policy("a", 5));
    replace_unseen(&folder, "policy.yaml", &policy("b", 5));
    server.process.signal("HUP");
    eventually("SIGHUP loads it", || (in_force(&server) == ["b"]).then_some(()));
    replace_unseen(&folder, "policy.yaml", &policy("c", 5));
    let answer = server.post("admin", "/v1/reload", "");
    assert_eq!((answer.status, answer.body.as_str()), (200, r#"{"reloaded":true}"#));
    assert_eq!(in_force(&server), ["c"]);
}

#[test]
fn a_limit_that_is_raised_keeps_what_was_used() {
    let folder = Folder::new();
    let server = start(&folder, &policy("a", 5));
    let ask = || server.get("http", "/v1/check").status;
    assert_eq!([(); 6].map(|()| ask()), [200, 200, 200, 200, 200, 429]);
    replace(&folder, "policy.yaml", &policy("a", 7));
    assert_eq!(server.post("admin", "/v1/reload", "").status, 200);
    assert_eq!([(); 3].map(|()| ask()), [200, 200, 429]);
}

#[test]
fn a_new_certificate_is_shown_without_a_restart() {
    let folder = Folder::new();
    let old = write_certificate(&folder);
    let server = start(
        &folder,
        "listen: { http: { address: 127.0.0.1:0, tls: { cert: cert.pem, key: key.pem } } }\n\
         limits: [{ name: a, rate: 5/hour }]\n",
    );
    let ask = |connection: &mut Connection<Tls>| connection.ask("GET", "/v1/check?cost=0", &[], "");
    let mut kept = tls(&server, &old);
    assert_eq!(ask(&mut kept).expect("it is trusted").status, 200);
    let new = write_certificate(&folder);
    eventually("the new one is shown", || ask(&mut tls(&server, &new)).ok());
    assert!(ask(&mut tls(&server, &old)).is_err(), "the old one is not shown any more");
    assert_eq!(ask(&mut kept).expect("a connection goes on as it began").status, 200);
    // A key that does not fit leaves what was.
    folder.write("key.pem", "not a key");
    server.says("everything stays as it was");
    assert_eq!(ask(&mut tls(&server, &new)).expect("it is still shown").status, 200);
}

type Tls = rustls::StreamOwned<rustls::ClientConnection, std::net::TcpStream>;

/// Writes a certificate for localhost and its key; tells whom a client must trust.
fn write_certificate(folder: &Folder) -> rustls::pki_types::CertificateDer<'static> {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("it is a name");
    folder.write("key.pem", made.signing_key.serialize_pem());
    folder.write("cert.pem", made.cert.pem());
    made.cert.into()
}

fn tls(server: &Server, trusted: &rustls::pki_types::CertificateDer<'static>) -> Connection<Tls> {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(trusted.clone()).expect("it is a certificate");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("ring knows them")
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = "localhost".try_into().expect("it is a name");
    let client = rustls::ClientConnection::new(Arc::new(config), name).expect("it is configured");
    let stream = std::net::TcpStream::connect(server.address("http")).expect("it listens");
    Connection::over(rustls::StreamOwned::new(client, stream))
}

#[test]
fn an_admin_door_open_to_others_without_a_token_is_not_opened() {
    let folder = Folder::new();
    let policy = "listen: { admin: 0.0.0.0:0 }\nlimits: [{ name: a, rate: 5/hour }]\n";
    let path = folder.write("policy.yaml", policy);
    let mut server = Server::spawn(Path::new(&path));
    assert_eq!(server.process.ended().code(), Some(1));
    server.says("token_file");
    assert!(!server.log().iter().any(|line| line.contains("listening")), "{:?}", server.log());
}

#[test]
fn the_admin_door_asks_for_its_token_and_for_nothing_else_when_asked_for_health() {
    let folder = Folder::with(&[("token", "correct-horse-battery-staple\n")]);
    let server = start(
        &folder,
        "listen: { admin: { address: 0.0.0.0:0, token_file: token } }\n\
         limits: [{ name: a, rate: 5/hour }]\n",
    );
    let port = server.address("admin").port();
    let ask = |path: &str, fields: &[(&str, &str)]| {
        http::get(crate::support::local(port), path, fields).status
    };
    let shown = |token: &'static str| [("Authorization", token)];
    assert_eq!(ask("/v1/policy", &[]), 401);
    for wrong in [
        "Bearer wrong",
        "Bearer correct-horse-battery-stapl",
        "Bearer correct-horse-battery-staple2",
        "Bearer",
        "Basic correct-horse-battery-staple",
        "correct-horse-battery-staple",
    ] {
        assert_eq!(ask("/v1/policy", &shown(wrong)), 401, "{wrong}");
    }
    assert_eq!(ask("/v1/policy", &shown("Bearer correct-horse-battery-staple")), 200);
    assert_eq!([ask("/healthz", &[]), ask("/readyz", &[])], [200, 200]);
    assert!(!server.log().iter().any(|line| line.contains("correct-horse")), "it is not logged");
    folder.write("token", "another-one-of-some-length\n");
    eventually("the new token is asked for", || {
        (ask("/v1/policy", &shown("Bearer another-one-of-some-length")) == 200).then_some(())
    });
    assert_eq!(ask("/v1/policy", &shown("Bearer correct-horse-battery-staple")), 401);
}

#[test]
fn pages_of_other_sites_cannot_speak_for_the_operator() {
    let folder = Folder::new();
    let server = start(&folder, &policy("a", 5));
    let address = server.address("admin");
    let reload =
        |fields: &[(&str, &str)]| http::request(address, "POST", "/v1/reload", fields, "").status;
    let own = address.to_string();
    let own_origin = format!("http://{own}");
    assert_eq!(reload(&[("Host", &own)]), 200);
    assert_eq!(reload(&[("Host", &own), ("Origin", &own_origin)]), 200);
    assert_eq!(reload(&[("Host", "evil.example")]), 403);
    assert_eq!(reload(&[("Host", &own), ("Origin", "http://evil.example")]), 403);
    assert_eq!(reload(&[("Host", &own), ("Origin", "null")]), 403);
    assert_eq!(reload(&[("Host", &own), ("Sec-Fetch-Site", "cross-site")]), 403);
    let health = http::get(address, "/healthz", &[("Host", "evil.example")]);
    assert_eq!(health.status, 200, "a probe asks under any name");
}

#[test]
fn a_server_whose_connections_are_all_taken_is_still_seen_to_live_and_stops() {
    let folder = Folder::new();
    let policy = folder.write("policy.yaml", policy("api", 5));
    let server = Server::spawn_under("ulimit -n 128", Path::new(&policy));
    let address = server.address("http");
    // More than it can have.
    let held: Vec<Connection<_>> = (0..200).map(|_| Connection::open(address)).collect();
    server.says("cannot take a connection");
    assert_eq!(server.get("admin", "/healthz").status, 200);
    assert_eq!(server.post("admin", "/v1/reload", "").status, 200);
    server.process.signal("TERM");
    let mut process = server.process;
    assert_eq!(process.ended().code(), Some(0));
    drop(held);
}

#[test]
fn a_file_that_takes_for_ever_to_be_read_is_not_waited_for() {
    let folder = Folder::new();
    let server = start(&folder, &policy("api", 5));
    // Whoever opens a pipe waits for somebody to write to it.
    fs::remove_file(folder.path("policy.yaml")).expect("the folder is ours");
    let pipe = folder.path("policy.yaml");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status().expect("mkfifo is there");
    assert!(made.success());
    server.process.signal("HUP");
    assert_eq!(server.get("http", "/v1/check?cost=0").status, 200);
    server.process.signal("TERM");
    let mut process = server.process;
    assert_eq!(process.ended().code(), Some(0));
}

#[test]
fn a_change_of_what_is_read_at_the_start_only_is_told() {
    let folder = Folder::new();
    let server = start(&folder, &policy("api", 5));
    let other = policy("api", 5).replace("http: 127.0.0.1:0", "http: 127.0.0.1:1");
    replace(&folder, "policy.yaml", &other);
    server.says("`listen` is read at the start only");
}
