//! `tollgate validate`

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::{Folder, command, example, tollgate, tollgate_reading};

const GOOD: &str = "limits:\n  - name: login\n    per: [client_ip]\n    rate: 5/minute\n";

const BAD: &str = "\
limits:
  - name: login
    per: [client_ip]
    rate: 5/minuet
  - name: search
    rate: 10/minute
    algorithm: token_bukket
    brust: 5
";

/// Allowed, and hardly meant: anybody can send another key with every request.
const ODD: &str = "limits:\n  - name: api\n    per: [header:x-api-key]\n    rate: 5/minute\n";

fn check(file: (&str, &str), code: i32, stdout: &str, stderr: &str) {
    let folder = Folder::with(&[file]);
    let run = folder.tollgate(&["validate", file.0]);
    assert_eq!(run.stdout, stdout);
    assert_eq!((run.code, run.stderr.as_str()), (Some(code), stderr));
}

fn json_of(folder: &Folder, files: &[&str]) -> (Option<i32>, Value) {
    let run = folder.tollgate(&[&["validate", "--output", "json"], files].concat());
    (run.code, serde_json::from_str(&run.stdout).expect("the output is JSON"))
}

#[test]
fn a_valid_policy_is_said_to_be_so() {
    check(("policy.yaml", GOOD), 0, "policy.yaml: valid, 1 limit\n", "");
}

#[test]
fn several_rates_of_one_limit_are_one_limit() {
    let policy = "limits: [{name: api, rate: [10/second, 500/minute]}, {name: b, rate: 1/hour}]";
    check(("policy.yaml", policy), 0, "policy.yaml: valid, 2 limits\n", "");
}

#[test]
fn every_mistake_is_shown_at_once_as_a_compiler_would() {
    let stdout = r#"policy.yaml:4:11: limit "login": rate "5/minuet" is not a rate; write for example 5/minute or 1000/90s
  |
4 |     rate: 5/minuet
  |           ^^^^^^^^
policy.yaml:7:16: limit "search": algorithm cannot be "token_bukket"; did you mean token_bucket?
  |
7 |     algorithm: token_bukket
  |                ^^^^^^^^^^^^
policy.yaml:8:5: limit "search": "brust" is not a field; did you mean burst?
  |
8 |     brust: 5
  |     ^^^^^
"#;
    check(("policy.yaml", BAD), 1, stdout, "error: the policy has mistakes\n");
}

#[test]
fn warnings_are_told_and_do_not_fail() {
    check(
        ("policy.yaml", ODD),
        0,
        "policy.yaml:3:11: warning[varies-at-will]: limit \"api\" counts by header:x-api-key, \
         which a client can change with every request to start afresh; count by client_ip, or by \
         tenant\npolicy.yaml: valid, 1 limit, 1 warning\n",
        "",
    );
}

#[test]
fn every_file_is_checked_whatever_is_wrong_with_those_before() {
    let folder = Folder::with(&[("bad.yaml", BAD), ("good.yaml", GOOD)]);
    let run = folder.tollgate(&["validate", "missing.yaml", "bad.yaml", "good.yaml"]);
    let told: Vec<&str> = run.stdout.lines().collect();
    assert!(told[0].starts_with("missing.yaml: cannot be read: No such file"), "{}", told[0]);
    assert!(told[1].starts_with("bad.yaml:4:11: limit \"login\""), "{}", told[1]);
    assert_eq!(told.last(), Some(&"good.yaml: valid, 1 limit"));
    assert_eq!(run.stderr, "error: 2 of 3 policies are not valid\n");
    assert_eq!(run.code, Some(1));
}

#[test]
fn json_has_a_report_for_each_file_with_every_mistake_and_warning() {
    let folder = Folder::with(&[("bad.yaml", BAD), ("odd.yaml", ODD)]);
    let (code, reports) = json_of(&folder, &["bad.yaml", "missing.yaml", "odd.yaml"]);
    assert_eq!(code, Some(1));
    let [bad, missing, odd] = &reports.as_array().expect("a list")[..] else {
        panic!("three files, so three reports: {reports:#}")
    };
    assert_eq!((&bad["file"], &bad["valid"]), (&json!("bad.yaml"), &json!(false)));
    assert_eq!(bad["mistakes"].as_array().map(Vec::len), Some(3));
    assert_eq!(bad["mistakes"][0]["at"], json!({"file": "bad.yaml", "line": 4, "column": 11}));
    assert_eq!(
        bad["mistakes"][0]["message"],
        "limit \"login\": rate \"5/minuet\" is not a rate; write for example 5/minute or 1000/90s"
    );
    assert_eq!((&missing["valid"], &missing["mistakes"]), (&json!(false), &json!([])));
    assert!(missing["unreadable"].as_str().is_some_and(|why| why.starts_with("No such file")));
    assert_eq!((&odd["valid"], &odd["unreadable"]), (&json!(true), &Value::Null));
    assert_eq!(odd["warnings"][0]["code"], "varies-at-will");
    assert_eq!(odd["warnings"][0]["at"], json!({"file": "odd.yaml", "line": 3, "column": 11}));
}

#[test]
fn a_file_that_is_wrong_from_end_to_end_is_told_up_to_a_bound() {
    let limits: String = (0..1_500).map(|n| format!("  - {{name: n{n}, rate: {n}}}\n")).collect();
    let folder = Folder::with(&[("long.yaml", &format!("limits:\n{limits}"))]);
    let (code, reports) = json_of(&folder, &["long.yaml"]);
    assert_eq!(code, Some(1));
    assert_eq!(reports[0]["mistakes"].as_array().map(Vec::len), Some(1_000));
    assert_eq!(reports[0]["more_mistakes"], 500);
    let text = folder.tollgate(&["validate", "long.yaml"]).stdout;
    assert!(text.ends_with("and 500 more mistakes\n"), "{}", &text[text.len() - 100..]);
}

#[test]
fn what_is_no_file_of_text_cannot_be_read() {
    let folder = Folder::with(&[]);
    folder.write("latin1.yaml", b"limits: [] # gr\xfc\xdfe\n");
    fs::create_dir(folder.path("folder.yaml")).unwrap();
    let check = |file: &str, why: &str| {
        let run = folder.tollgate(&["validate", file]);
        assert_eq!(
            (run.code, run.stderr.as_str()),
            (Some(1), "error: the policy cannot be read\n")
        );
        assert!(
            run.stdout.starts_with(&format!("{file}: cannot be read: {why}")),
            "{}",
            run.stdout
        );
    };
    check("latin1.yaml", "it is not UTF-8 text, at byte 16");
    check("folder.yaml", "Is a directory");
    check("missing.yaml", "No such file");
    check("latin1.yaml/policy.yaml", "Not a directory");
}

#[test]
fn a_file_without_end_is_not_read_to_its_end() {
    let run = tollgate(&["validate", "/dev/zero"]);
    assert_eq!((run.code, run.stderr.as_str()), (Some(1), "error: the policy cannot be read\n"));
    assert_eq!(run.stdout, "/dev/zero: cannot be read: it is longer than 33554432 bytes\n");
}

#[test]
fn an_empty_file_is_a_mistake_and_not_a_failure_to_read() {
    for (file, text) in [("empty.yaml", ""), ("list.yaml", "- a\n"), ("nul.yaml", "limits: \0\n")] {
        let folder = Folder::with(&[(file, text)]);
        let run = folder.tollgate(&["validate", file]);
        assert_eq!((run.code, run.stderr.as_str()), (Some(1), "error: the policy has mistakes\n"));
        assert!(run.stdout.starts_with(&format!("{file}:1:")), "{}", run.stdout);
    }
}

#[test]
fn files_that_a_policy_names_are_looked_for_beside_it() {
    let policy = "tenants: {from: header:x-api-key, file: keys.yaml, unknown: refuse}\n\
                  limits: [{name: api, per: [tenant], rate: 5/minute}]\n";
    let keys = "keys: {key-of-acme: {tenant: acme}}\n";
    let folder = Folder::with(&[("policy.yaml", policy), ("keys.yaml", keys)]);
    let check = |stdout: &str| {
        let file = folder.path("policy.yaml");
        let run = tollgate(&["validate", &file]);
        assert_eq!(run.stdout.replace(&file, "policy.yaml"), stdout);
    };
    check("policy.yaml: valid, 1 limit, 1 API key\n");
    fs::remove_file(folder.path("keys.yaml")).unwrap();
    check(
        "policy.yaml:1:41: tenants: \"keys.yaml\" cannot be read: No such file or directory (os \
         error 2)\n  |\n1 | tenants: {from: header:x-api-key, file: keys.yaml, unknown: refuse}\n  \
         |                                         ^^^^^^^^^\n",
    );
}

/// A policy that names every kind of file, beside a mistake of another kind.
const NAMING: &str = "\
listen:
  http: { address: 127.0.0.1:8080, token_file: http.token }
  grpc: { address: 127.0.0.1:8081, tls: { cert: a.pem, key: a.key, client_ca: clients.pem } }
  admin: { address: 127.0.0.1:8082, token_file: admin.token }
  gateway: { address: 127.0.0.1:8000, tls: { cert: a.pem, key: a.key } }
upstream: https://127.0.0.1:3000
gateway: { ca: servers.pem }
observe: { audit: log/audit.jsonl }
limits: [{ name: api, rate: 5/minute }]
";

/// The places and sentences that are told of it, without the lines of the policy.
fn told_of(folder: &Folder) -> Vec<String> {
    let run = folder.tollgate(&["validate", "policy.yaml"]);
    let is_told = |line: &&str| line.starts_with("policy.yaml:");
    run.stdout.lines().filter(is_told).map(str::to_owned).collect()
}

#[test]
fn every_file_that_a_server_could_not_use_is_a_mistake_where_it_is_named() {
    let folder = Folder::with(&[("policy.yaml", NAMING)]);
    let missing = "cannot be read: No such file or directory (os error 2)";
    assert_eq!(
        told_of(&folder),
        [
            format!("policy.yaml:2:48: listen.http: \"http.token\" {missing}"),
            format!("policy.yaml:3:49: listen.grpc.tls: \"a.pem\" {missing}"),
            format!("policy.yaml:3:61: listen.grpc.tls: \"a.key\" {missing}"),
            format!("policy.yaml:3:79: listen.grpc.tls: \"clients.pem\" {missing}"),
            format!("policy.yaml:4:49: listen.admin: \"admin.token\" {missing}"),
            format!("policy.yaml:5:52: listen.gateway.tls: \"a.pem\" {missing}"),
            format!("policy.yaml:5:64: listen.gateway.tls: \"a.key\" {missing}"),
            format!("policy.yaml:7:16: gateway: \"servers.pem\" {missing}"),
            "policy.yaml:8:19: observe: \"log/audit.jsonl\" cannot be written: there is no such \
             folder"
                .to_owned(),
        ]
    );
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let other = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    folder.write("http.token", " \n");
    folder.write("a.pem", made.cert.pem());
    folder.write("a.key", other.signing_key.serialize_pem());
    folder.write("clients.pem", "not a certificate\n");
    folder.write("admin.token", b"\xff");
    folder.write("servers.pem", made.cert.pem().replace('M', "?"));
    fs::create_dir_all(folder.path("log/audit.jsonl")).unwrap();
    let told = told_of(&folder);
    let expected = [
        "2:48: listen.http: \"http.token\" holds no token",
        "3:79: listen.grpc.tls: \"clients.pem\" holds no certificate in PEM form",
        "4:49: listen.admin: \"admin.token\" cannot be read: it is not UTF-8 text, at byte 1",
        "5:64: listen.gateway.tls: \"a.key\" does not fit a.pem: ",
        "7:16: gateway: \"servers.pem\" cannot be used: ",
        "8:19: observe: \"log/audit.jsonl\" cannot be written: Is a directory",
    ];
    for expected in expected {
        let expected = format!("policy.yaml:{expected}");
        assert!(told.iter().any(|told| told.starts_with(&expected)), "{expected}: {told:#?}");
    }
    folder.write("http.token", "s3cret\n");
    folder.write("a.key", made.signing_key.serialize_pem());
    folder.write("clients.pem", made.cert.pem());
    folder.write("admin.token", "s3cret\n");
    folder.write("servers.pem", made.cert.pem());
    fs::remove_dir(folder.path("log/audit.jsonl")).unwrap();
    let run = folder.tollgate(&["validate", "policy.yaml"]);
    assert_eq!((run.code, run.stdout.as_str()), (Some(0), "policy.yaml: valid, 1 limit\n"));
    assert!(!Path::new(&folder.path("log/audit.jsonl")).exists(), "who looks makes none");
}

#[test]
fn files_are_tried_whatever_else_is_wrong_and_no_secret_is_shown() {
    let policy = "\
listen: { http: { address: 127.0.0.1:8080, token_file: token } }
limits: [{ name: api, rate: 5/minuet }]
";
    let folder = Folder::with(&[("policy.yaml", policy)]);
    let told = told_of(&folder);
    assert!(told[0].starts_with("policy.yaml:1:56: listen.http: \"token\" cannot be"), "{told:?}");
    assert!(told[1].starts_with("policy.yaml:2:29: limit \"api\": rate"), "{told:?}");
    folder.write("token", b"s3cret\xff");
    let run = folder.tollgate(&["validate", "--output", "json", "policy.yaml"]);
    assert!(run.stdout.contains("not UTF-8") && !run.stdout.contains("s3cret"), "{}", run.stdout);
}

#[test]
fn an_audit_log_that_is_a_pipe_is_not_waited_for() {
    let folder = Folder::with(&[("policy.yaml", "observe: { audit: pipe }\nlimits: []\n")]);
    let made = Command::new("mkfifo").arg(folder.path("pipe")).status().unwrap();
    assert!(made.success());
    let said = "policy.yaml:1:19: observe: \"pipe\" cannot be written: it is a pipe, not a file";
    assert_eq!(told_of(&folder), [said]);
}

#[test]
fn a_gateway_in_front_of_itself_is_a_mistake() {
    let check = |listen: &str, upstream: &str, is_loop: bool| {
        let policy = format!("{listen}\nupstream: \"{upstream}\"\nlimits: []\n");
        let told = told_of(&Folder::with(&[("policy.yaml", &policy)]));
        let is_told = told.iter().any(|told| told.contains("is the gateway itself"));
        assert_eq!(is_told, is_loop, "{policy}{told:?}");
    };
    let at = |address: &str| format!("listen: {{ gateway: \"{address}\" }}");
    check("", "http://127.0.0.1:8000", true);
    check("", "http://localhost:8000", true);
    check("", "http://127.0.0.1:3000", false);
    check("listen: { http: 127.0.0.1:8080 }", "http://127.0.0.1:8000", false);
    check(&at("127.0.0.1:9000"), "https://127.0.0.1:9000", true);
    check(&at("127.0.0.1:9000"), "http://127.0.0.2:9000", false);
    check(&at("127.0.0.1:9000"), "http://backend:9000", false);
    check(&at("10.0.0.5:80"), "http://10.0.0.5", true);
    check(&at("0.0.0.0:9000"), "http://127.0.0.2:9000", true);
    check(&at("0.0.0.0:9000"), "http://[::1]:9000", false);
    check(&at("0.0.0.0:9000"), "http://10.0.0.5:9000", false);
    check(&at("[::]:9000"), "http://127.0.0.1:9000", true);
    check(&at("[::]:9000"), "http://[::1]:9000", true);
    check(&at("[::ffff:127.0.0.1]:9000"), "http://127.0.0.1:9000", true);
    check(&at("127.0.0.1:0"), "http://127.0.0.1:8000", false);
}

#[test]
fn a_mistake_in_a_tenants_file_does_not_show_the_keys_beside_it() {
    let policy = "tenants: {from: header:x-api-key, file: keys.yaml, unknown: refuse}\n\
                  limits: [{name: api, per: [tenant], rate: 5/minute}]\n";
    let keys = "keys: {s3cret-key: {tennant: acme}}\n";
    let folder = Folder::with(&[("policy.yaml", policy), ("keys.yaml", keys)]);
    for output in ["text", "json"] {
        let run = folder.tollgate(&["validate", "--output", output, "policy.yaml"]);
        assert_eq!(run.code, Some(1));
        assert!(run.stdout.contains("keys.yaml"), "{}", run.stdout);
        assert!(!run.stdout.contains("s3cret"), "{}", run.stdout);
    }
}

#[test]
fn nothing_in_a_policy_or_its_name_paints_the_terminal() {
    let paint = "limits:\n  - name: \"\\e[31mred\"\n    rate: \"\\e]0;title\\a 5/minute\"\n    \
                 \u{9b}2J: 1 # \u{202e}\n";
    let folder = Folder::with(&[("a\u{1b}[31m.yaml", paint), ("b\u{1b}[31m.yaml", GOOD)]);
    for output in ["text", "json"] {
        let files = ["a\u{1b}[31m.yaml", "b\u{1b}[31m.yaml", "c\u{1b}[31m.yaml"];
        let run = folder.tollgate(&[&["validate", "--output", output], &files[..]].concat());
        assert_eq!(run.code, Some(1));
        let told = run.stdout + &run.stderr;
        let painted = told.chars().find(|letter| letter.is_control() && *letter != '\n');
        assert_eq!(painted, None, "{told:?}");
    }
}

#[test]
fn a_name_that_is_not_text_is_still_a_file() {
    let folder = Folder::with(&[]);
    let name = OsStr::from_bytes(b"gr\xfc\xdfe.yaml");
    fs::write(folder.0.join(name), GOOD).unwrap();
    let output = command(&["validate"]).arg(name).current_dir(&folder.0).output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "gr��e.yaml: valid, 1 limit\n");
}

#[test]
fn without_a_file_or_with_an_unknown_option_it_is_a_mistake_in_usage() {
    for arguments in [&["validate"][..], &["validate", "--output", "xml", "a"], &["validate", "-x"]]
    {
        let run = tollgate(arguments);
        assert_eq!((run.code, run.stdout.as_str()), (Some(2), ""), "{arguments:?}");
    }
}

#[test]
fn the_files_of_the_examples_can_be_given_all_at_once() {
    let files = fs::read_dir(example("")).unwrap().map(|file| file.unwrap().file_name());
    let mut files: Vec<String> =
        files.map(|file| example(file.to_str().expect("names here are text"))).collect();
    files.sort();
    let files: Vec<&str> = files.iter().map(String::as_str).collect();
    let run = tollgate(&[&["validate"], &files[..]].concat());
    assert_eq!((run.code, run.stderr.as_str()), (Some(0), ""), "{}", run.stdout);
    for file in files {
        assert!(run.stdout.contains(&format!("{file}: valid, ")), "{}", run.stdout);
    }
}

#[test]
fn a_tenants_file_is_checked_with_the_policy_that_names_it() {
    let policy = "tenants: {from: header:x-api-key, file: keys.yaml, unknown: refuse}\n\
                  limits: [{name: api, per: [tenant], rate: 5/minute}]\n";
    let keys = "keys: {key-of-acme: {tenant: acme}}\n";
    let folder = Folder::with(&[("policy.yaml", policy), ("keys.yaml", keys), ("bad.yaml", BAD)]);
    let check = |files: &[&str], code: i32, told: &str, stderr: &str| {
        let run = folder.tollgate(&[&["validate"], files].concat());
        assert!(run.stdout.contains(told), "{}", run.stdout);
        assert_eq!((run.code, run.stderr.as_str()), (Some(code), stderr), "{}", run.stdout);
    };
    let said = "keys.yaml: valid, the tenants file of policy.yaml\n";
    check(&["keys.yaml", "policy.yaml"], 0, said, "");
    check(&["policy.yaml", "./keys.yaml"], 0, said, "");
    let stderr = "error: 1 of 2 policies are not valid\n";
    check(&["policy.yaml", "keys.yaml", "bad.yaml"], 1, said, stderr);
    let said = "keys.yaml:1:1: this is a tenants file; name it under tenants.file of a policy\n";
    check(&["keys.yaml"], 1, said, "error: the policy has mistakes\n");
    let (code, reports) = json_of(&folder, &["keys.yaml", "policy.yaml"]);
    assert_eq!((code, &reports[0]["valid"]), (Some(0), &json!(true)));
    folder.write("keys.yaml", "keys: {key-of-acme: {tennant: acme}}\n");
    let stderr = "error: 2 of 2 policies are not valid\n";
    check(&["policy.yaml", "keys.yaml"], 1, "keys.yaml:1:", stderr);
}

/// Every way through the questions of `tollgate choose`, as lines of answers.
fn ways_through_choose(rate: &str) -> Vec<String> {
    let mut ways = vec!["yes\n10\n".to_owned()];
    for yes_after in 0..=4 {
        let answers = "no\n".repeat(yes_after) + if yes_after < 4 { "yes\n" } else { "" };
        ways.push(format!("no\n{rate}\n{answers}"));
    }
    ways
}

#[test]
fn whatever_choose_recommends_is_a_valid_policy() {
    let folder = Folder::with(&[]);
    let names = ["api", "no", "1.5", "a-b_c.d", "-", "null"];
    let attributes = ["client_ip", "tenant", "header:x-api-key", "2024", "no", "query:q"];
    for rate in ["60/minute", "1/day", "1000/90s", "0/hour", "100000/1ms", "500/year"] {
        for ((answers, name), per) in ways_through_choose(rate).iter().zip(names).zip(attributes) {
            let flags = ["choose", &format!("--per={per}"), &format!("--name={name}")];
            let chosen = tollgate_reading(&flags, answers);
            assert_eq!(chosen.code, Some(0), "{answers:?}: {}", chosen.stderr);
            folder.write("chosen.yaml", &chosen.stdout);
            let run = folder.tollgate(&["validate", "chosen.yaml"]);
            assert_eq!(run.code, Some(0), "{}{}", chosen.stdout, run.stdout);
        }
    }
}
