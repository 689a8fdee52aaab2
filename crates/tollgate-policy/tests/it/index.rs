//! The index finds what asking every limit would find, and does not ask every limit.

use std::fmt::Write;

use tollgate_policy::{Admission, Charges, Layer, Missing, Policy, Request, Scratch};

use crate::{Random, policy};

const WORDS: [&str; 4] = ["a", "b", "c", "login"];

/// A random pattern over few words, so that many patterns meet many paths.
fn pattern(random: &mut Random) -> String {
    let segments = 1 + random.below(4);
    let mut text = String::new();
    for _ in 0..segments {
        let segment = random.one_of(&["a", "b", "c", "login", "*", "**", "{id}"]);
        let _ = write!(text, "/{segment}");
    }
    text
}

fn path(random: &mut Random) -> String {
    let segments = random.below(5);
    let mut text = String::new();
    for _ in 0..segments {
        let _ = write!(text, "/{}", random.one_of(&["a", "b", "c", "login", "x", ""]));
    }
    if random.chance(10) { text.trim_start_matches('/').to_owned() } else { text }
}

const HOSTS: [&str; 6] = ["a.com", "b.com", "*.a.com", "*.b.a.com", "x.a.com", "*.com"];
const BLOCKS: [&str; 7] =
    ["10.0.0.0/8", "10.1.0.0/16", "10.1.1.1", "0.0.0.0/0", "2001:db8::/32", "::/0", "2001:db8::1"];
const ADDRESSES: [&str; 7] =
    ["10.1.1.1", "10.2.2.2", "::ffff:10.1.1.1", "11.0.0.1", "2001:db8::1", "2001:db9::1", "nobody"];

/// One condition and what it is on.
fn condition(random: &mut Random, attribute: &str) -> String {
    let list = |random: &mut Random, one: &mut dyn FnMut(&mut Random) -> String| {
        let values: Vec<String> = (0..1 + random.below(3)).map(|_| one(random)).collect();
        format!("[{}]", values.join(", "))
    };
    let quoted = |text: &str| format!("\"{text}\"");
    let test = match attribute {
        "path" => list(random, &mut |random| quoted(&pattern(random))),
        "host" => list(random, &mut |random| quoted(random.one_of(&HOSTS))),
        "method" => list(random, &mut |random| random.one_of(&["GET", "post", "PUT"]).to_owned()),
        "client_ip" => {
            let blocks = list(random, &mut |random| quoted(random.one_of(&BLOCKS)));
            format!("{{ cidr: {blocks} }}")
        }
        _ => list(random, &mut |random| random.one_of(&WORDS).to_owned()),
    };
    match random.below(10) {
        0 => "present".to_owned(),
        1 => "absent".to_owned(),
        2 | 3 => format!("{{ not: {test} }}"),
        _ => test,
    }
}

const ATTRIBUTES: [&str; 6] = ["path", "host", "method", "client_ip", "plan", "header:x-beta"];

fn random_policy(random: &mut Random, limits: usize) -> Policy {
    let mut text = String::from("limits:\n");
    for number in 0..limits {
        let mut when = Vec::new();
        if random.chance(30) {
            when.push("layer: websocket".to_owned());
        }
        for attribute in ATTRIBUTES {
            if random.chance(30) {
                when.push(format!("{attribute}: {}", condition(random, attribute)));
            }
        }
        let rate = random.one_of(&["5/minute", "[5/minute, 6/hour]"]);
        let _ = writeln!(
            text,
            "  - {{ name: l{number}, when: {{ {} }}, rate: {rate} }}",
            when.join(", ")
        );
    }
    policy(&text)
}

/// The values of a random request; most attributes are there.
fn random_request(random: &mut Random) -> Vec<(&'static str, String)> {
    let mut request = Vec::new();
    for attribute in ATTRIBUTES {
        if random.chance(20) {
            continue;
        }
        let value = match attribute {
            "path" => path(random),
            "host" => {
                random.one_of(&["a.com", "X.a.com:80", "y.b.a.com", "b.com.", "com", ""]).to_owned()
            }
            "method" => random.one_of(&["GET", "get", "POST", "PUT", "FOO"]).to_owned(),
            "client_ip" => random.one_of(&ADDRESSES).to_owned(),
            _ => random.one_of(&WORDS).to_owned(),
        };
        request.push((attribute, value));
    }
    request
}

#[test]
fn the_index_finds_what_asking_every_limit_finds() {
    let mut random = Random(7);
    let mut applied = 0;
    for _ in 0..150 {
        let limits = 1 + random.below(40);
        let policy = random_policy(&mut random, limits);
        for _ in 0..40 {
            let values = random_request(&mut random);
            let attributes: Vec<(&str, &[u8])> =
                values.iter().map(|(name, value)| (*name, value.as_bytes())).collect();
            let layer = if random.chance(30) { Layer::Message } else { Layer::Request };
            let request = Request { missing: Missing::Shared, layer, ..Request::new(&attributes) };
            let mut scratch = Scratch::default();
            let mut charges = Charges::new();
            let Admission::Charged = policy.admit(&request, &mut scratch, &mut charges) else {
                panic!()
            };
            let found: Vec<usize> = charges.iter().map(|charge| charge.rule_index).collect();
            applied += found.len();
            assert_eq!(found, policy.rules_by_asking_each(&request), "{values:?}");
        }
    }
    assert!(applied > 5_000, "the requests meet limits: {applied}");
}

/// A policy of so many limits of one shape, and two that always apply.
fn wide_policy(limits: usize, when: &dyn Fn(usize) -> String) -> Policy {
    let mut text = String::from("limits:\n");
    for number in 0..limits {
        let _ = writeln!(
            text,
            "  - {{ name: l{number}, when: {{ {} }}, rate: 5/minute }}",
            when(number)
        );
    }
    text += "  - { name: everyone, rate: 100/minute }\n  - { name: ip, per: [client_ip], rate: 5/minute }\n";
    policy(&text)
}

/// The most work a request of `about` makes.
fn most_work(
    policy: &Policy,
    limits: usize,
    about: &dyn Fn(usize) -> [(&'static str, String); 5],
) -> usize {
    let most = (0..limits).step_by((limits / 10).max(1)).map(|number| {
        let values = about(number);
        let attributes: Vec<(&str, &[u8])> =
            values.iter().map(|(name, value)| (*name, value.as_bytes())).collect();
        let request = Request { missing: Missing::Shared, ..Request::new(&attributes) };
        let mut scratch = Scratch::default();
        let mut charges = Charges::new();
        let Admission::Charged = policy.admit(&request, &mut scratch, &mut charges) else {
            panic!()
        };
        assert_eq!(charges.len(), 3, "its own limit and the two that always apply");
        policy.work(&request)
    });
    most.max().expect("there are limits")
}

#[test]
fn many_limits_of_any_shape_make_no_more_work_than_ten() {
    let shapes: [(&str, &dyn Fn(usize) -> String); 10] = [
        ("literal paths", &|n| format!("method: POST, path: /svc{n}/login")),
        ("prefixes", &|n| format!("path: /svc{n}/**")),
        ("one segment open", &|n| format!("path: \"/{{service}}/login/x{n}\"")),
        ("suffixes", &|n| format!("path: /**/x{n}")),
        ("hosts", &|n| format!("host: h{n}.example.com, path: /**")),
        ("hosts below", &|n| format!("host: \"*.h{n}.example.com\"")),
        ("values", &|n| format!("plan: plan{n}, path: /**")),
        ("values and shared prefix", &|n| {
            format!("plan: [plan{n}], path: \"/svc{n}/login/*\", method: [GET, POST]")
        }),
        ("values beside what all fulfil", &|n| {
            format!(
                "plan: plan{n}, path: \"/**\", method: present, client_ip: {{ cidr: [0.0.0.0/0] }}"
            )
        }),
        ("blocks", &|n| format!("client_ip: {{ cidr: [10.{}.{}.0/24] }}", n / 256, n % 256)),
    ];
    for (shape, when) in shapes {
        let about = |number: usize| {
            [
                ("client_ip", format!("10.{}.{}.7", number / 256, number % 256)),
                ("method", "POST".to_owned()),
                (
                    "path",
                    match shape {
                        "literal paths" => format!("/svc{number}/login"),
                        _ => format!("/svc{number}/login/x{number}"),
                    },
                ),
                (
                    "host",
                    match shape {
                        "hosts below" => format!("a.h{number}.example.com"),
                        _ => format!("h{number}.example.com"),
                    },
                ),
                ("plan", format!("plan{number}")),
            ]
        };
        let few = most_work(&wide_policy(10, when), 10, &about);
        let many = most_work(&wide_policy(1_000, when), 1_000, &about);
        assert!(many * 2 <= few * 3, "{shape}: {few} steps among 10, {many} among 1,000");
    }
}

#[test]
fn ten_thousand_limits_make_no_more_work_than_ten() {
    let when = |n: usize| match n % 4 {
        0 => format!("method: POST, path: /svc{n}/login"),
        1 => format!("path: /svc{n}/**"),
        2 => format!("host: h{n}.example.com"),
        _ => format!("plan: plan{n}, path: /**"),
    };
    let about = |number: usize| {
        [
            ("client_ip", "203.0.113.7".to_owned()),
            ("method", "POST".to_owned()),
            ("path", format!("/svc{number}/login")),
            ("host", format!("h{number}.example.com")),
            ("plan", format!("plan{number}")),
        ]
    };
    let few = most_work(&wide_policy(10, &when), 10, &about);
    let many = most_work(&wide_policy(10_000, &when), 10_000, &about);
    assert!(many * 2 <= few * 3, "{few} steps among 10, {many} among 10,000");
}

#[test]
fn long_allow_and_block_lists_are_not_walked() {
    let mut text = String::from("deny:\n");
    for number in 0..10_000 {
        let _ = writeln!(text, "  - {{ client_ip: 10.0.{}.{} }}", number / 256, number % 256);
    }
    text += "exempt:\n";
    for number in 0..10_000 {
        let _ = writeln!(text, "  - {{ user: u{number} }}");
    }
    text += "limits:\n  - { name: everyone, rate: 5/minute }\n";
    let policy = policy(&text);
    let attributes: [(&str, &[u8]); 2] = [("client_ip", b"11.0.0.1"), ("user", b"nobody")];
    let request = Request { missing: Missing::Shared, ..Request::new(&attributes) };
    assert_eq!(policy.work(&request), 1);
    assert_eq!(crate::ask(&policy, &request), "everyone 5/minute [] 1");
    assert_eq!(crate::ask_http(&policy, &[("client_ip", b"10.0.39.15")]), "blocked");
    assert_eq!(crate::ask_http(&policy, &[("user", b"u9999")]), "exempt");
}
