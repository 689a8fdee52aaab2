//! `tollgate keys`, asking a real server.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;

use serde_json::Value;

use crate::support::server::Server;
use crate::{Folder, Run, tollgate};

const POLICY: &str = "
listen:
  http: 127.0.0.1:0
  admin: { address: 127.0.0.1:0, token_file: token.txt }
limits:
  - { name: api, per: [user], rate: 10/day, algorithm: fixed_window, align: key }
  - { name: slots, per: [job], concurrency: 2 }
";

/// A server, and the command that asks it.
struct Asked {
    server: Server,
    folder: Folder,
}

impl Asked {
    fn new() -> Self {
        Self::of(POLICY)
    }

    fn of(policy: &str) -> Self {
        let folder = Folder::new();
        folder.write("token.txt", "s3cret");
        let server = Server::start(Path::new(&folder.write("policy.yaml", policy)));
        Self { server, folder }
    }

    fn keys(&self, arguments: &[&str]) -> Run {
        let address = format!("http://{}", self.server.address("admin"));
        let token = self.folder.path("token.txt");
        let door = ["--server", &address, "--token-file", &token];
        tollgate(&[&["keys"], arguments, &door].concat())
    }

    /// What it prints when it works.
    fn told(&self, arguments: &[&str]) -> String {
        let run = self.keys(arguments);
        assert_eq!(run.code, Some(0), "{arguments:?}: {}", run.stderr);
        run.stdout
    }

    fn spend(&self, attribute: &str, times: usize) -> Vec<Option<i32>> {
        let address = format!("http://{}", self.server.address("http"));
        let check = |_| tollgate(&["check", "--server", &address, attribute]).code;
        (0..times).map(check).collect()
    }
}

#[test]
fn a_key_is_looked_at_and_reset() {
    let asked = Asked::new();
    asked.spend("user=a:b", 3);
    let told = asked.told(&["get", "api:a%3Ab"]);
    // Until midnight, at which the server may have been asked.
    let (figures, wait) = told.split_once(" in ").expect("it is told when");
    assert_eq!(figures, "api:a%3Ab\n  10/day: 7 of 10 left, whole again");
    let is_time = |part: &str| part.trim_end_matches(['d', 'h', 'm', 's']).parse::<u8>().is_ok();
    assert!(wait.split_whitespace().all(is_time), "{told}");
    let json: Value =
        serde_json::from_str(&asked.told(&["get", "api:a%3Ab", "--output", "json"])).expect("JSON");
    assert_eq!(json["limits"][0]["remaining"], 7);
    assert_eq!(asked.told(&["reset", "api:a%3Ab"]), "api:a%3Ab begins anew\n");
    assert_eq!(asked.told(&["reset", "api:a%3Ab"]), "api:a%3Ab had consumed nothing\n");
    assert_eq!(asked.told(&["get", "api:a%3Ab"]), "api:a%3Ab\n  10/day: 10 of 10 left\n");
    assert_eq!(asked.told(&["get", "slots:x"]), "slots:x\n  at a time: 2 of 2 left\n");
}

#[test]
fn a_key_of_a_limit_that_its_caller_brought_along_is_looked_at_and_reset() {
    let asked = Asked::of(&POLICY.replace("listen:", "listen:\n  resp: 127.0.0.1:0"));
    let mut stream = TcpStream::connect(asked.server.address("resp")).expect("it listens");
    stream
        .write_all(b"CL.THROTTLE otto 9 10 86400 10\r\nCL.THROTTLE otto 9 10 86400\r\nQUIT\r\n")
        .unwrap();
    stream.read_to_end(&mut Vec::new()).expect("it answers");
    let listed = asked.told(&["list", "--denied"]);
    let key = listed.lines().nth(1).and_then(|line| line.split_whitespace().nth(1)).unwrap();
    let told = asked.told(&["get", key]);
    assert!(
        told.starts_with("%28CL.THROTTLE%29:otto\n  10/day: 0 of 10 left, whole again in "),
        "{told}"
    );
    let banned = asked.keys(&["ban", key]);
    assert_eq!(banned.code, Some(1));
    assert!(banned.stderr.contains("bring their limit along"), "{}", banned.stderr);
    assert_eq!(asked.told(&["reset", key]), format!("{key} begins anew\n"));
    assert_eq!(asked.told(&["get", key]), format!("{key}\n  10/day: 10 of 10 left\n"));
}

#[test]
fn the_keys_that_are_denied_most_are_listed() {
    let asked = Asked::new();
    asked.spend("user=anna", 12);
    let told = asked.told(&["list", "--denied"]);
    let lines: Vec<&str> = told.lines().collect();
    assert!(lines[0].starts_with("2 denied in the last "), "{told}");
    assert_eq!(lines[1..], ["         2  api:anna"]);
    for over in ["minute", "hour", "day"] {
        let told = asked.told(&["list", "--denied", "--over", over]);
        assert!(told.contains("         2  api:anna"), "{over}: {told}");
    }
    let told = asked.told(&["list", "--busy", "--over", "minute"]);
    assert!(told.contains(" requests in the last ") && told.contains("  api:anna\n"), "{told}");
    let json = asked.told(&["list", "--busy", "--output", "json"]);
    let json: Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(json["keys"][0]["limits"], serde_json::json!(["api"]));
}

#[test]
fn a_key_is_banned_for_a_while_or_until_that_is_taken_back() {
    let asked = Asked::new();
    let told = asked.told(&["ban", "api:anna", "--for", "1h"]);
    assert!(told.starts_with("api:anna\n  10/day: 0 of 10 left, whole again in "), "{told}");
    let ends = ["override: banned, ends in 1h\n", "override: banned, ends in 5"];
    assert!(ends.iter().any(|ends| told.contains(ends)), "{told}");
    assert_eq!(asked.spend("user=anna", 1), [Some(3)]);
    assert_eq!(asked.spend("user=ben", 1), [Some(0)]);
    let unbanned = asked.told(&["unban", "api:anna"]);
    assert_eq!(unbanned, "api:anna is allowed what the policy says\n");
    assert_eq!(asked.spend("user=anna", 1), [Some(0)]);
    let told = asked.told(&["ban", "slots:x"]);
    assert!(told.ends_with("  override: banned\n"), "{told}");
    assert_eq!(asked.told(&["list", "--overrides"]), "slots:x: banned\n");
}

#[test]
fn a_key_is_allowed_something_else_for_a_while_and_no_longer() {
    let asked = Asked::new();
    asked.spend("user=anna", 10);
    let told = asked.told(&["override", "api:anna", "--rate", "12/day", "--for", "1h"]);
    assert!(told.contains("  12/day: 2 of 12 left"), "{told}");
    assert!(told.contains("override: rate 12/day, ends in "), "{told}");
    assert_eq!(asked.spend("user=anna", 3), [Some(0), Some(0), Some(3)]);
    assert!(asked.told(&["list", "--overrides"]).starts_with("api:anna: rate 12/day, ends in "));
    let json = asked.told(&["list", "--overrides", "--output", "json"]);
    let json: Value = serde_json::from_str(&json).expect("JSON");
    assert!(json["overrides"][0]["until_ms"].is_u64(), "{json}");
    // Who is not banned keeps what it is allowed.
    let unbanned = asked.keys(&["unban", "api:anna"]);
    assert_eq!(unbanned.code, Some(1));
    let sentence = "api:anna is not banned; `keys override KEY --remove` ends its override";
    assert_eq!(unbanned.stderr, format!("error: {sentence}\n"));
    assert_eq!(asked.keys(&["unban", "api:ben"]).stderr, "error: api:ben is not banned\n");
    let told = asked.told(&["override", "api:anna", "--remove"]);
    assert_eq!(told, "api:anna is allowed what the policy says\n");
    assert_eq!(asked.told(&["list", "--overrides"]), "");
    let again = asked.keys(&["override", "api:anna", "--remove"]);
    assert_eq!(again.code, Some(1));
    assert!(again.stderr.contains("404 Not Found: api:anna has no override"), "{}", again.stderr);
}

#[test]
fn what_operators_do_is_logged_with_the_key_as_the_policy_has_it_shown() {
    for (observe, logged) in [("plain", "\"api:anna\""), ("hashed", "\"api:%h")] {
        let asked = Asked::of(&format!("observe: {{ keys: {observe} }}{POLICY}"));
        for arguments in [
            &["override", "api:anna", "--rate", "20/day"][..],
            &["override", "api:anna", "--remove"],
            &["reset", "api:anna"],
        ] {
            assert_eq!(asked.keys(arguments).code, Some(0), "{arguments:?}");
        }
        for said in ["an override was put", "an override was removed", "a key was reset"] {
            asked.server.says(said);
            let log = asked.server.log();
            let line = log.iter().find(|line| line.contains(said)).expect("it was said");
            assert!(line.contains(logged), "{line}");
        }
    }
}

#[test]
fn what_the_server_refuses_ends_with_1_and_its_sentence() {
    let asked = Asked::new();
    for (arguments, expected) in [
        (&["get", "none:a"][..], "the policy has no limit \"none\""),
        (&["reset", "api"], "counts by user, and the key has 0 values"),
        (&["override", "api:a", "--burst", "5"], "burst means nothing to it"),
    ] {
        let run = asked.keys(arguments);
        assert_eq!(run.code, Some(1), "{arguments:?}: {}", run.stderr);
        assert!(run.stderr.contains(expected) && run.stdout.is_empty(), "{}", run.stderr);
    }
    let address = format!("http://{}", asked.server.address("admin"));
    let run = tollgate(&["keys", "get", "api:a", "--server", &address]);
    assert_eq!(run.code, Some(1));
    assert!(run.stderr.contains("answered 401"), "{}", run.stderr);
}

#[test]
fn what_cannot_be_meant_ends_with_2() {
    for (arguments, expected) in [
        (&["get", "api:a%3ab"][..], "write api:a%3Ab"),
        (&["get", "api:%zz"], "is no part of a key"),
        (&["list"], "--denied"),
        (&["list", "--denied", "--overrides"], "--overrides"),
        (&["list", "--denied", "--busy"], "--busy"),
        (&["list", "--busy", "--over", "week"], "week"),
        (&["list", "--overrides", "--over", "day"], "--over"),
        (&["ban", "api:a", "--for", "soon"], "soon"),
        (&["ban", "api:a", "--rate", "5/day"], "--rate"),
        (&["unban"], "<KEY>"),
        (&["unban", "api:a", "--for", "1h"], "--for"),
        (&["override", "api:a"], "say what the key is allowed, for example --rate 900/minute"),
        (&["override", "api:a", "--for", "1h"], "say what the key is allowed"),
        (&["override", "api:a", "--rate", "5/minuet"], "5/minuet"),
        (&["override", "api:a", "--rate", "5/day", "--for", "soon"], "soon"),
        (&["override", "api:a", "--remove", "--rate", "5/day"], "--remove"),
        (&["get", "api:a", "--server", "localhost"], "is not http://HOST:PORT"),
    ] {
        let run = tollgate(&[&["keys"], arguments].concat());
        assert_eq!(run.code, Some(2), "{arguments:?}: {}", run.stderr);
        assert!(run.stderr.contains(expected), "{arguments:?}: {}", run.stderr);
    }
}
