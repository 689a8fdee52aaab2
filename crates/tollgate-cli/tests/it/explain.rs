//! `tollgate explain`

use serde_json::{Value, json};

use crate::{Folder, example, tollgate};

/// What is printed for a request under an example policy.
fn explained(policy: &str, arguments: &[&str]) -> String {
    let run = tollgate(&[&["explain", "-c", &example(policy)], arguments].concat());
    assert_eq!((run.code, run.stderr.as_str()), (Some(0), ""));
    run.stdout.replace(&example(policy), policy)
}

/// The same under a policy of the test's own.
fn explained_by(policy: &str, arguments: &[&str]) -> String {
    let folder = Folder::with(&[("policy.yaml", policy)]);
    let run = folder.tollgate(&[&["explain", "-c", "policy.yaml"], arguments].concat());
    assert_eq!((run.code, run.stderr.as_str()), (Some(0), ""));
    run.stdout
}

fn json_of(policy: &str, arguments: &[&str]) -> Value {
    let text = explained_by(policy, &[&["--output", "json"], arguments].concat());
    serde_json::from_str(&text).expect("the output is JSON")
}

#[test]
fn each_limit_is_told_with_its_key_and_its_answer_or_why_it_does_not_apply() {
    let request = ["method=POST", "path=/login", "client_ip=203.0.113.7"];
    assert_eq!(
        explained("login.yaml", &request),
        "\
door api, layer request: as a caller of the API is told
login-address    5/minute, sliding_log
                 key login-address:203.0.113.7
                 allowed, 4 of 5 left
login-account    does not apply: the request has no account, and present is asked for
login-account#2  does not apply: the request has no account, and present is asked for
password-reset   does not apply: path is \"/login\", and [/password/forgot, /password/reset] is asked for
verdict: allowed
"
    );
}

#[test]
fn json_has_the_same_figures_as_an_answer_over_http() {
    let policy = "limits: [{name: login, per: [user], rate: 5/minute, algorithm: sliding_log}, \
                  {name: api, when: {path: /api}, rate: 1/hour}]";
    assert_eq!(
        json_of(policy, &["user=a:b", "--cost", "2"]),
        json!({
            "allowed": true,
            "ruling": "allowed",
            "retry_after_ms": null,
            "delay_ms": 0,
            "tenant": null,
            "tier": null,
            "door": "api",
            "layer": "request",
            "limits": [
                {
                    "name": "login",
                    "applies": true,
                    "key": "login:a%3Ab",
                    "note": null,
                    "allowed": true,
                    "limit": 5,
                    "remaining": 3,
                    "retry_after_ms": null,
                    "reset_after_ms": 60_000,
                    "next_after_ms": 60_000,
                    "delay_ms": 0,
                    "algorithm": "sliding_log",
                    "rate": "5/minute",
                    "shadow": false,
                },
                {
                    "name": "api",
                    "applies": false,
                    "why": "the request has no path, and /api is asked for",
                },
            ],
        })
    );
}

#[test]
fn an_exempt_request_is_allowed_and_the_entry_is_named() {
    let text = explained("login.yaml", &["method=POST", "path=/login", "client_ip=10.1.2.3"]);
    let reason = "the request is exempt by client_ip: {cidr: 10.0.0.0/8} (login.yaml:30:5)";
    assert_eq!(text.matches(reason).count(), 4, "{text}");
    assert!(text.ends_with("verdict: allowed: the request is on the exempt list\n"), "{text}");
}

#[test]
fn a_blocked_request_is_denied_and_the_entry_is_named() {
    let policy = "deny: [{user: mallory}]\nlimits: [{name: api, per: [user], rate: 5/minute}]\n";
    assert_eq!(
        explained_by(policy, &["user=mallory"]),
        "door api, layer request: as a caller of the API is told\n\
         api  does not apply: the request is denied by user: mallory (policy.yaml:1:8)\n\
         verdict: denied: the request is on the deny list\n"
    );
}

#[test]
fn an_unknown_key_is_refused_where_the_policy_says_so() {
    let text = explained("usage-plans.yaml", &["header:x-api-key=a-guess"]);
    assert!(text.contains("it carries no key of the tenants file"), "{text}");
    assert!(text.ends_with("verdict: denied: its API key is unknown\n"), "{text}");
}

#[test]
fn a_cost_above_the_limit_is_told_as_one_that_no_wait_helps() {
    let policy = "limits: [{name: tokens, rate: 100/minute, algorithm: token_bucket}]";
    assert_eq!(
        explained_by(policy, &["--cost", "101"]),
        "door api, layer request: as a caller of the API is told\n\
         tokens  100/minute, token_bucket, cost 101\n        key tokens\n        \
         denied: it costs more than the limit ever holds, 100 of 100 left\nverdict: denied\n"
    );
}

#[test]
fn a_cost_that_is_none_is_told_and_no_limit_claims_to_have_decided() {
    let request = ["path=/v1/chat/completions", "tenant=acme", "tokens=1e9"];
    let text = explained("llm-tokens.yaml", &request);
    assert!(
        text.contains(
            "tokens     does not apply: its cost, tokens, is \"1e9\" and not a whole number from 0 \
             to 4294967295: the request is refused\nrequests   500/minute, "
        ),
        "{text}"
    );
    assert!(
        text.ends_with("verdict: denied: what it says it costs is not a whole number\n"),
        "{text}"
    );
    assert!(!text.contains("allowed") && !text.contains("key "), "{text}");
}

#[test]
fn a_limit_that_some_doors_do_not_enforce_is_said_to_be_so() {
    let policy = "limits: [{name: slots, concurrency: 4}, \
                  {name: shape, rate: 10/second, algorithm: leaky_bucket, queue: 20}]";
    let text = explained_by(policy, &[]);
    assert!(text.contains("skipped by doors that never learn when a request ends"), "{text}");
    assert!(text.contains("other doors only say for how long to"), "{text}");
}

#[test]
fn a_limit_in_shadow_is_said_to_be_so() {
    let policy = "limits: [{name: api, rate: 0/minute, mode: shadow}]";
    assert_eq!(
        explained_by(policy, &[]),
        "door api, layer request: as a caller of the API is told\n\
         api  0/minute, sliding_window\n     key api\n     denied: it costs more than the limit \
         ever holds, 0 of 0 left (shadow: reported, not enforced)\nverdict: allowed\n"
    );
    assert_eq!(json_of(policy, &[])["limits"][0]["shadow"], true);
}

#[test]
fn a_request_that_no_limit_applies_to_is_allowed_and_said_to_be_so() {
    let text = explained("social.yaml", &["user=42", "action=read"]);
    assert!(text.ends_with("verdict: allowed: no limit applies\n"), "{text}");
}

#[test]
fn what_a_request_lacks_is_shared_at_a_door_that_faces_clients_and_skipped_over_the_api() {
    let policy = "limits: [{name: api, per: [user], rate: 5/minute, algorithm: token_bucket}]";
    assert_eq!(
        explained_by(policy, &[]),
        "door api, layer request: as a caller of the API is told\n\
         api  does not apply: the request has no user, which it counts by\n\
         verdict: allowed: no limit applies\n"
    );
    assert_eq!(
        explained_by(policy, &["--door", "http"]),
        "door http, layer request: as a client of the gateway is told\n\
         api  5/minute, token_bucket\n     key api:%\n     allowed, 4 of 5 left\n\
         verdict: allowed\n"
    );
}

#[test]
fn the_door_is_that_of_the_policy_unless_it_is_said() {
    let limits = "limits: [{name: api, per: [user], rate: 5/minute}]";
    let check = |policy: &str, arguments: &[&str], door: &str| {
        let json = json_of(&format!("{policy}\n{limits}"), arguments);
        assert_eq!((&json["door"], &json["layer"]), (&json!(door), &json!("request")), "{policy}");
        assert_eq!(json["limits"][0]["applies"], door == "http", "{policy}");
    };
    check("", &[], "api");
    check("listen: {http: 127.0.0.1:8080}", &[], "api");
    check("upstream: http://127.0.0.1:3000", &[], "http");
    check("listen: {gateway: 127.0.0.1:8000}", &[], "http");
    check("upstream: http://127.0.0.1:3000", &["--door", "api"], "api");
    check("", &["--door", "gateway"], "http");
    check("", &["--door", "http"], "http");
}

#[test]
fn limits_of_other_layers_are_explained_when_their_layer_is_asked_about() {
    let policy = "\
upstream: http://127.0.0.1:3000
limits:
  - {name: requests, per: [client_ip], rate: 5/minute}
  - {name: conns, when: {layer: connection}, per: [client_ip], rate: 5/minute}
  - {name: sockets, when: {layer: websocket}, per: [client_ip], concurrency: 5}
  - {name: messages, when: {layer: websocket}, per: [client_ip], rate: 5/minute}
  - {name: streams, when: {layer: stream}, per: [client_ip], rate: 5/minute}
";
    for (layer, expected) in [
        ("request", "requests"),
        ("connection", "conns"),
        ("websocket", "sockets"),
        ("message", "messages"),
        ("stream", "streams"),
    ] {
        let request = ["--layer", layer, "client_ip=192.0.2.1"];
        let json = json_of(policy, &request);
        assert_eq!((&json["door"], &json["layer"]), (&json!("http"), &json!(layer)));
        let limits = json["limits"].as_array().expect("a list").iter();
        let applied: Vec<_> = limits.filter(|limit| limit["applies"] == true).collect();
        assert_eq!(applied.len(), 1, "{json}");
        assert_eq!(applied[0]["name"], expected);
        let text = explained_by(policy, &request);
        let line = format!("door http, layer {layer}: as a client of the gateway is told");
        assert_eq!(text.lines().next(), Some(line.as_str()));
    }
}

#[test]
fn the_tenant_of_a_key_is_found_and_its_override_applied() {
    let request = ["method=GET", "path=/api/search", "client_ip=192.0.2.1"];
    let key = "header:x-api-key=key-of-globex";
    let text = explained("four-layers.yaml", &[&request[..], &[key]].concat());
    assert!(text.contains("9000/minute, 300 at once, token_bucket\n"), "{text}");
    assert!(text.contains("key tier:globex\n"), "{text}");
}

#[test]
fn whom_the_caller_is_taken_for_is_said() {
    let check = |policy: &str, request: &[&str], line: &str, tenant: Value, tier: Value| {
        let text = explained(policy, request);
        assert_eq!(text.lines().nth(1), Some(line));
        let text = explained(policy, &[&["--output", "json"], request].concat());
        let json: Value = serde_json::from_str(&text).expect("the output is JSON");
        assert_eq!((&json["tenant"], &json["tier"]), (&tenant, &tier), "{line}");
    };
    check(
        "four-layers.yaml",
        &["header:x-api-key=key-of-globex"],
        "caller: tenant globex, tier enterprise, by its key in the tenants file",
        json!("globex"),
        json!("enterprise"),
    );
    check(
        "four-layers.yaml",
        &["header:x-api-key=a-guess", "tenant=globex"],
        "caller: no tenant, tier free, as all without a key of the tenants file",
        Value::Null,
        json!("free"),
    );
    check(
        "usage-plans.yaml",
        &[],
        "caller: no tenant, no tier, as all without a key of the tenants file",
        Value::Null,
        Value::Null,
    );
    check(
        "llm-tokens.yaml",
        &["tenant=ac\u{1b}me"],
        "caller: tenant ac\\u{1b}me, no tier, as sent",
        json!("ac\u{1b}me"),
        Value::Null,
    );
}

#[test]
fn a_path_is_matched_without_its_query() {
    let policy = "limits: [{name: a, when: {path: /a}, per: [path, query:b], rate: 5/minute}]";
    for path in ["path=/a", "path=/a?b=1", "path=/a?b=/c?d"] {
        let key = &json_of(policy, &[path, "query:b=2?"])["limits"][0]["key"];
        assert_eq!(key, "a:%2Fa:2%3F", "{path}");
    }
}

#[test]
fn header_names_are_the_same_in_capitals() {
    let lower = explained("usage-plans.yaml", &["header:x-api-key=key-of-basic"]);
    let upper = explained("usage-plans.yaml", &["Header:X-API-Key=key-of-basic"]);
    assert!(lower.contains("key rate:small-shop\n"), "{lower}");
    assert_eq!(lower, upper);
}

#[test]
fn a_value_may_contain_an_equals_sign_and_be_empty() {
    let policy = "limits: [{name: api, per: [user], rate: 5/minute}]";
    assert_eq!(json_of(policy, &["user=a=b"])["limits"][0]["key"], "api:a%3Db");
    assert_eq!(json_of(policy, &["user="])["limits"][0]["key"], "api:");
}

/// Where a header that carries a credential can end up in an explanation.
const SECRETIVE: &str = "\
limits:
  - {name: per-key, per: [header:x-api-key], rate: 5/minute}
  - {name: first, per: [{first: [header:x-api-key, client_ip]}], rate: 5/minute}
  - {name: cookie, per: [cookie:session], rate: 5/minute}
  - {name: when, when: {header:x-api-key: absent}, rate: 5/minute}
  - {name: not, when: {header:x-api-key: {not: present}}, rate: 5/minute}
  - {name: one-of, when: {header:x-api-key: [another, more]}, rate: 5/minute}
  - {name: not-this, when: {header:x-api-key: {not: s3cret-one}}, rate: 5/minute}
";

#[test]
fn the_value_of_a_header_or_cookie_never_appears() {
    let request = ["header:x-api-key=s3cret-one", "cookie:session=s3cret-two"];
    for output in ["text", "json"] {
        let text = explained_by(SECRETIVE, &[&["--output", output], &request[..]].concat());
        assert!(text.contains("per-key:%h"), "{text}");
        assert!(text.contains("header:x-api-key is …"), "{text}");
        assert!(!text.contains("s3cret"), "{text}");
    }
}

#[test]
fn a_header_that_the_deny_list_names_never_appears() {
    let policy = format!("deny: [{{header:x-api-key: s3cret-one}}]\n{SECRETIVE}");
    for output in ["text", "json"] {
        let text = explained_by(&policy, &["--output", output, "header:x-api-key=s3cret-one"]);
        assert!(text.contains("denied by header:x-api-key: … (policy.yaml:1:8)"), "{text}");
        assert!(!text.contains("s3cret"), "{text}");
    }
}

#[test]
fn an_api_key_never_appears_whether_it_is_known_or_not() {
    for key in ["key-of-acme", "s3cret-guess"] {
        for output in ["text", "json"] {
            let header = format!("header:x-api-key={key}");
            let request = ["--output", output, "path=/api/items", "client_ip=192.0.2.1", &header];
            let text = explained("four-layers.yaml", &request);
            assert!(!text.contains(key), "{text}");
        }
    }
}

#[test]
fn nothing_in_a_request_or_a_policy_paints_the_terminal() {
    let policy = "\
limits:
  - {name: value, when: {plan: pro}, rate: 5/minute}
  - {name: word, when: {colour: \"\\e[31mred\\n\"}, rate: 5/minute}
  - {name: path, when: {path: \"/a\\u009b2J\"}, rate: 5/minute}
  - {name: key, per: [plan], rate: 5/minute}
exempt:
  - {colour: \"\\e[32mgreen\"}
";
    let paint = "plan=\u{1b}]0;title\u{7}\r\n\u{9b}31m";
    for request in [[paint, "colour=blue", "path=/"], [paint, "colour=\u{1b}[32mgreen", "path=/"]] {
        let text = explained_by(policy, &request);
        let painted = text.chars().find(|letter| letter.is_control() && *letter != '\n');
        assert_eq!(painted, None, "{text:?}");
        assert!(text.contains("\\u{1b}["), "it is written out instead: {text}");
    }
}

#[test]
fn a_policy_that_cannot_be_used_is_a_failure_with_every_mistake() {
    let folder = Folder::with(&[("policy.yaml", "limits: [{name: a, rate: 5}, {name: b}]\n")]);
    let run = folder.tollgate(&["explain", "-c", "policy.yaml", "user=1"]);
    assert_eq!((run.code, run.stdout.as_str()), (Some(1), ""));
    assert!(run.stderr.starts_with("error: policy.yaml:1:26: limit \"a\": rate"), "{}", run.stderr);
    assert!(run.stderr.contains("policy.yaml:1:30: limit \"b\""), "{}", run.stderr);
    let run = folder.tollgate(&["explain", "-c", "missing.yaml"]);
    assert_eq!((run.code, run.stdout.as_str()), (Some(1), ""));
    assert!(
        run.stderr.starts_with("error: missing.yaml cannot be read: No such"),
        "{}",
        run.stderr
    );
}

#[test]
fn what_cannot_be_asked_is_a_mistake_in_usage() {
    let policy = example("social.yaml");
    let check = |arguments: &[&str], sentence: &str| {
        let run = tollgate(&[&["explain"], arguments].concat());
        assert_eq!((run.code, run.stdout.as_str()), (Some(2), ""), "{arguments:?}");
        assert!(run.stderr.contains(sentence), "{}", run.stderr);
    };
    check(&["user=1"], "--config <FILE>");
    check(&["-c", &policy, "user"], "\"user\" is not NAME=VALUE; write for example path=/login");
    check(&["-c", &policy, "=x"], "\"=x\" is not NAME=VALUE; write for example path=/login");
    check(&["-c", &policy, "--door", "window"], "window");
    check(&["-c", &policy, "--layer", "fragment"], "fragment");
    check(
        &["-c", &policy, "--layer", "connection", "--door", "api"],
        "--layer connection is nothing that the API is asked about; leave --door api out",
    );
    for cost in ["-1", "1.5", "NaN", "1e400", "0x10", "18446744073709551615", ""] {
        check(&["-c", &policy, &format!("--cost={cost}")], "is not a whole number");
        check(&["-c", &policy, "--cost", cost], "is not a whole number");
    }
}

#[test]
fn a_limit_that_is_leased_or_split_is_told_to_be() {
    let policy = "\
store: redis://127.0.0.1:6379
limits:
  - name: everyone
    rate: 1005/second
    algorithm: token_bucket
    burst: 25
    sync: leased
    shards: { count: 10, by: client_ip }
";
    assert_eq!(
        explained_by(policy, &["client_ip=203.0.113.7"]),
        "\
door api, layer request: as a caller of the API is told
everyone  101/second, 3 at once, token_bucket, leased, shard 2 of 10 by client_ip
          key everyone:%s2
          allowed, 2 of 3 left
verdict: allowed
"
    );
    let told = json_of(policy, &["client_ip=203.0.113.7"]);
    let told = &told["limits"][0];
    assert_eq!(
        (&told["shard"], &told["sync"], &told["limit"]),
        (&json!(2), &json!("leased"), &json!(3))
    );
}
