//! To which requests a limit applies, whom it counts, and what it charges.

use tollgate_core::Cost;
use tollgate_policy::{Admission, Charges, Missing, Policy, Request, Scratch, Standing};

use crate::{ask, ask_api, ask_http, names, policy, policy_with};

/// Whether a limit with these conditions applies to a request with one attribute.
fn applies(when: &str, name: &str, value: &[u8]) -> bool {
    let policy =
        policy(&format!("limits:\n  - {{ name: it, when: {{ {when} }}, rate: 5/minute }}\n"));
    !names(&policy, &[(name, value)]).is_empty()
}

#[test]
fn all_conditions_must_hold() {
    let policy = policy(
        "limits:\n  - { name: login, when: { method: POST, path: /login }, rate: 5/minute }\n",
    );
    let post = ("method", b"POST" as &[u8]);
    let login = ("path", b"/login" as &[u8]);
    assert_eq!(names(&policy, &[post, login]), ["login"]);
    assert!(names(&policy, &[post]).is_empty());
    assert!(names(&policy, &[login]).is_empty());
    assert!(names(&policy, &[post, ("path", b"/logout")]).is_empty());
}

#[test]
fn a_limit_without_conditions_applies_to_every_request() {
    let policy = policy("limits:\n  - { name: everyone, rate: 5/minute }\n");
    assert_eq!(ask_api(&policy, &[]), "everyone 5/minute [] 1");
    assert_eq!(ask_api(&policy, &[("anything", b"at all")]), "everyone 5/minute [] 1");
}

#[test]
fn a_path_pattern_stands_for_the_paths_it_says() {
    let cases: [(&str, &[&str], &[&str]); 13] = [
        ("/login", &["/login", "login"], &["/login/", "/Login", "/login/x", "/", "", "/loginx"]),
        ("/", &["/", ""], &["//", "/a"]),
        ("/api/**", &["/api", "/api/", "/api/a", "/api/a/b/c"], &["/apix", "/", "/a/api"]),
        ("/api/*", &["/api/a", "/api/*"], &["/api", "/api/", "/api/a/b"]),
        ("/api/{id}", &["/api/a"], &["/api", "/api/", "/api/a/b"]),
        ("/a/*/c", &["/a/b/c"], &["/a/c", "/a//c", "/a/b/b/c"]),
        ("/a/**/c", &["/a/c", "/a/b/c", "/a/b/b/c", "/a/c/c"], &["/a", "/a/cc", "/a/c/d", "/c"]),
        ("/**", &["/", "/a", "/a/b", "", "*", "a"], &[]),
        ("/**/a", &["/a", "/b/a", "/a/a"], &["/", "/ab", "/a/b"]),
        ("/**/a/**", &["/a", "/b/a", "/a/b", "/b/a/b"], &["/", "/b", "/ab"]),
        ("/**/a/**/a", &["/a/a", "/b/a/b/a", "/a/a/a"], &["/a", "/a/b"]),
        ("/*/**", &["/a", "/a/b"], &["/", ""]),
        ("/dir/", &["/dir/", "/dir"], &["/dir//", "/dir;", "/"]),
    ];
    for (pattern, inside, outside) in cases {
        for path in inside {
            assert!(
                applies(&format!("path: \"{pattern}\""), "path", path.as_bytes()),
                "{pattern} {path}"
            );
        }
        for path in outside {
            assert!(
                !applies(&format!("path: \"{pattern}\""), "path", path.as_bytes()),
                "{pattern} {path}"
            );
        }
    }
}

/// The limits that apply to a path, of one for each pattern, named after its place.
fn limits_of(paths: &str, patterns: &[&str], path: &str) -> String {
    let limits = patterns.iter().enumerate().map(|(number, pattern)| {
        format!("  - {{ name: l{number}, when: {{ path: \"{pattern}\" }}, rate: 5/minute }}\n")
    });
    let policy = policy(&format!("paths: {paths}\nlimits:\n{}", limits.collect::<String>()));
    let attributes = [("path", path.as_bytes())];
    let found = names(&policy, &attributes);
    let request = Request::new(&attributes);
    assert_eq!(policy.rules_by_asking_each(&request).len(), found.len(), "{path}");
    found.join(" ")
}

#[test]
fn a_pattern_stands_for_its_one_form_and_for_what_is_written() {
    let same = "{ case: same }";
    let apart = "{ trailing_slash: apart, params: apart }";
    let patterns = ["/Login", "/login/", "/login;v=1/", "/Dir/{Id}/", "/a;b/**/", "/;a/%3b/x"];
    for (path, by_default, by_same, by_apart) in [
        ("/login", "l1 l2", "l0 l1 l2", ""),
        ("/Login", "l0", "l0", "l0"),
        // As callers of the API may send them.
        ("/login/", "l1", "l1", "l1"),
        ("/login;v=1/", "l2", "l2", "l2"),
        ("/login;v=1", "", "", ""),
        ("/dir/7", "", "l3", ""),
        ("/Dir/7", "l3", "", ""),
        ("/Dir/7/", "l3", "l3", "l3"),
        ("/a", "l4", "l4", ""),
        ("/a/x", "l4", "l4", ""),
        ("/a;b/x/", "l4", "l4", "l4"),
        ("/x", "l5", "l5", ""),
        ("/", "", "", ""),
    ] {
        assert_eq!(limits_of("{}", &patterns, path), by_default, "{path}");
        assert_eq!(limits_of(same, &patterns, path), by_same, "{path}, case: same");
        assert_eq!(limits_of(apart, &patterns, path), by_apart, "{path}, apart");
    }
}

#[test]
fn the_root_stays_the_root() {
    for paths in ["{}", "{ case: same }", "{ trailing_slash: apart }"] {
        assert_eq!(limits_of(paths, &["/", "/;a", "/**"], "/"), "l0 l1 l2");
    }
}

#[test]
fn an_amount_by_path_is_found_by_the_one_form_and_by_what_is_written() {
    let text = "limits: [{ name: it, rate: { by: path, values: { /A/: 2/minute, /a/*: 3/minute }, \
                default: 1/minute } }]";
    let check = |text: &str, path: &str, rate: u32| {
        let told = ask_http(&policy(text), &[("path", path.as_bytes())]);
        assert_eq!(told, format!("it {rate}/minute [] 1"), "{path}");
    };
    for (path, rate) in [("/A", 2), ("/A/", 2), ("/a", 1), ("/a/x", 3), ("/A/x", 1)] {
        check(text, path, rate);
    }
    let same = format!("paths: {{ case: same }}\n{text}");
    for (path, rate) in [("/a", 2), ("/A/", 2), ("/a/x", 3)] {
        check(&same, path, rate);
    }
}

#[test]
fn a_path_of_any_bytes_is_matched() {
    assert!(applies("path: /a/*", "path", b"/a/\xff\x00\x1b"));
    assert!(!applies("path: /a/b", "path", b"/a/b\x00"));
    let long = [b"/a".as_slice(), &b"/b".repeat(100_000)].concat();
    assert!(applies("path: /a/**/b", "path", &long));
    assert!(!applies("path: /a/**/c", "path", &long));
}

#[test]
fn a_method_is_the_same_in_any_case() {
    for method in ["GET", "get", "Get"] {
        assert!(applies("method: [GET, HEAD]", "method", method.as_bytes()));
        assert!(applies("method: get", "method", method.as_bytes()));
        assert!(!applies("method: { not: GET }", "method", method.as_bytes()));
    }
    assert!(!applies("method: GET", "method", b"FOO"));
    assert!(applies("method: { not: GET }", "method", b"FOO"));
    assert!(applies("method: M-SEARCH", "method", b"m-search"));
}

#[test]
fn a_host_is_the_same_in_any_case_and_with_any_port() {
    for host in
        ["example.com", "EXAMPLE.com", "example.com:8080", "example.com.", "example.com.:80"]
    {
        assert!(applies("host: Example.Com", "host", host.as_bytes()), "{host}");
        assert!(!applies("host: \"*.example.com\"", "host", host.as_bytes()), "{host}");
    }
    for host in ["a.example.com", "a.b.EXAMPLE.com:1"] {
        assert!(applies("host: \"*.example.com\"", "host", host.as_bytes()), "{host}");
        assert!(!applies("host: example.com", "host", host.as_bytes()), "{host}");
    }
    for host in ["badexample.com", ".example.com", "example.com.evil", "", ":80"] {
        assert!(
            !applies("host: [\"*.example.com\", example.com]", "host", host.as_bytes()),
            "{host}"
        );
    }
    for address in ["[2001:db8::1]", "[2001:DB8:0::1]:8080", "[2001:db8:0:0:0:0:0:1]:"] {
        for pattern in ["[2001:db8::1]", "[2001:Db8:0:0::1]"] {
            assert!(
                applies(&format!("host: \"{pattern}\""), "host", address.as_bytes()),
                "{address}"
            );
        }
    }
    assert!(!applies("host: example.com", "host", &b"a".repeat(100_000)));
}

#[test]
fn what_is_not_there_fulfils_only_absent_and_not() {
    for when in ["plan: free", "plan: [free]", "plan: present", "plan: { cidr: [10.0.0.0/8] }"] {
        assert!(!applies(when, "other", b"free"), "{when}");
    }
    for when in [
        "plan: absent",
        "plan: { not: free }",
        "plan: { not: present }",
        "client_ip: { not: { cidr: [10.0.0.0/8] } }",
    ] {
        assert!(applies(when, "other", b"free"), "{when}");
    }
    assert!(!applies("plan: absent", "plan", b""));
    assert!(applies("plan: present", "plan", b""));
    assert!(!applies("plan: { not: absent }", "other", b""));
    assert!(applies("plan: { not: { not: free } }", "plan", b"free"));
}

#[test]
fn values_are_compared_as_they_are_written() {
    assert!(applies("version: 2", "version", b"2"));
    assert!(!applies("version: 2", "version", b"2.0"));
    assert!(applies("beta: true", "beta", b"true"));
    assert!(!applies("beta: true", "beta", b"TRUE"));
    assert!(applies("code: 0x10", "code", b"0x10"));
    assert!(applies("word: \"present\"", "word", b"present"));
    assert!(!applies("word: \"present\"", "word", b"other"));
    assert!(applies("empty: \"\"", "empty", b""));
}

#[test]
fn header_names_have_no_case_in_a_policy() {
    assert!(applies("header:X-Beta: present", "header:x-beta", b"1"));
    assert!(applies("header:x-beta: present", "header:X-BETA", b"1"), "nor in what a caller sends");
    let policy = policy("limits:\n  - { name: it, per: [header:X-Key], rate: 5/minute }\n");
    assert_eq!(policy.attributes().collect::<Vec<_>>(), ["header:x-key"]);
}

#[test]
fn an_address_is_the_same_however_it_is_written() {
    for address in ["10.1.2.3", "::ffff:10.1.2.3", "::ffff:a01:203", "::FFFF:10.1.2.3"] {
        assert!(applies("client_ip: 10.1.2.3", "client_ip", address.as_bytes()), "{address}");
        assert!(
            applies("client_ip: \"::ffff:10.1.2.3\"", "client_ip", address.as_bytes()),
            "{address}"
        );
        assert!(
            applies("client_ip: { cidr: [10.0.0.0/8] }", "client_ip", address.as_bytes()),
            "{address}"
        );
        assert!(
            !applies("client_ip: { cidr: [\"::/0\"] }", "client_ip", address.as_bytes()),
            "{address}"
        );
    }
    assert!(applies(
        "client_ip: { cidr: [\"2001:db8::/32\", 10.0.0.0/8] }",
        "client_ip",
        b"2001:db8:ffff::1"
    ));
    for other in ["11.1.2.3", "2001:db9::1", "nobody", "", "10.1.2.3 ", "10.1.2.3:80"] {
        assert!(
            !applies(
                "client_ip: { cidr: [\"2001:db8::/32\", 10.0.0.0/8] }",
                "client_ip",
                other.as_bytes()
            ),
            "{other}"
        );
    }
}

#[test]
fn an_address_is_counted_once_however_it_is_written() {
    let policy = policy("limits:\n  - { name: it, per: [client_ip], rate: 5/minute }\n");
    for address in ["1.2.3.4", "::ffff:1.2.3.4", "::ffff:102:304"] {
        let told = ask_http(&policy, &[("client_ip", address.as_bytes())]);
        assert_eq!(told, "it 5/minute [1.2.3.4] 1");
    }
    let told = ask_http(&policy, &[("client_ip", b"::ffff:1.2.3.5")]);
    assert_eq!(told, "it 5/minute [1.2.3.5] 1");
    for address in ["2001:db8:0:1200::1", "2001:db8:0:12ff:ffff::", "2001:0DB8:0000:1234::"] {
        let told = ask_http(&policy, &[("client_ip", address.as_bytes())]);
        assert_eq!(told, "it 5/minute [2001:db8:0:1200::] 1");
    }
    let told = ask_http(&policy, &[("client_ip", b"unknown")]);
    assert_eq!(told, "it 5/minute [unknown] 1", "an odd key is still limited");
}

#[test]
fn the_prefix_of_ipv6_clients_is_the_policys() {
    let policy = policy(
        "client_ip: { ipv6_prefix: 64 }\nlimits:\n  - { name: it, per: [client_ip], rate: 5/minute }\n",
    );
    let told = ask_http(&policy, &[("client_ip", b"2001:db8:0:1234::1")]);
    assert_eq!(told, "it 5/minute [2001:db8:0:1234::] 1");
}

#[test]
fn what_is_no_address_is_never_counted_with_one() {
    for prefix in [32, 56, 64, 97, 112, 127, 128] {
        let policy = policy(&format!(
            "client_ip: {{ ipv6_prefix: {prefix} }}\nlimits:\n  - {{ name: it, per: [client_ip], \
             rate: 5/minute }}\n"
        ));
        let counted = |text: &str| ask_api(&policy, &[("client_ip", text.as_bytes())]);
        let client = counted("2001:db8:1:2ff:3:4:5:6");
        let block = client.split(['[', ']']).nth(1).unwrap();
        assert_eq!(counted(block), client, "the text of a prefix is an address of it");
        for other in [format!("{block}/{prefix}"), format!("{block} "), format!("[{block}]")] {
            assert_eq!(counted(&other), format!("it 5/minute [{other}] 1"));
        }
    }
}

#[test]
fn conditions_are_tested_on_the_whole_address_and_not_on_its_prefix() {
    let policy = policy(
        "limits:\n  - { name: it, when: { client_ip: \"2001:db8::7\" }, per: [client_ip], rate: 5/minute }\n",
    );
    let told = ask_http(&policy, &[("client_ip", b"2001:db8:0::7")]);
    assert_eq!(told, "it 5/minute [2001:db8:0:0::] 1");
    assert_eq!(ask_http(&policy, &[("client_ip", b"2001:db8::8")]), "");
}

#[test]
fn who_leaves_out_what_a_limit_counts_by_is_counted_with_all_who_do() {
    let policy = policy("limits:\n  - { name: it, per: [client_ip, user], rate: 5/minute }\n");
    let ip = ("client_ip", b"1.2.3.4" as &[u8]);
    assert_eq!(ask_http(&policy, &[ip]), "it 5/minute [1.2.3.4, -] 1");
    assert_eq!(ask_http(&policy, &[ip, ("user", b"")]), "it 5/minute [1.2.3.4, ] 1");
    assert_eq!(ask_http(&policy, &[]), "it 5/minute [-, -] 1");
    assert_eq!(ask_api(&policy, &[ip]), "", "over the API the limit does not apply");
    assert_eq!(ask_api(&policy, &[ip, ("user", b"")]), "it 5/minute [1.2.3.4, ] 1");
}

#[test]
fn the_first_attribute_that_is_there_counts_and_is_told_from_the_others() {
    let policy = policy(
        "limits:\n  - { name: it, per: [{ first: [header:x-api-key, user, client_ip] }], rate: 5/minute }\n",
    );
    let key = ("header:x-api-key", b"1.2.3.4" as &[u8]);
    let ip = ("client_ip", b"1.2.3.4" as &[u8]);
    assert_eq!(ask_api(&policy, &[ip, key]), "it 5/minute [*1.2.3.4] 1");
    assert_eq!(ask_api(&policy, &[ip]), "it 5/minute [21.2.3.4] 1");
    assert_eq!(ask_api(&policy, &[ip, ("user", b"1.2.3.4")]), "it 5/minute [11.2.3.4] 1");
    assert_eq!(ask_api(&policy, &[]), "");
    assert_eq!(ask_http(&policy, &[]), "it 5/minute [-] 1");
}

#[test]
fn headers_and_cookies_are_secret_and_the_rest_is_not() {
    let policy = policy(
        "limits:\n  - { name: it, per: [header:a, cookie:b, query:c, client_ip], rate: 5/minute }\n",
    );
    let secrets = policy.rules()[0].per().iter().map(|per| per.sources()[0].is_secret());
    assert_eq!(secrets.collect::<Vec<_>>(), [true, true, false, false]);
}

#[test]
fn a_value_outside_the_map_takes_the_default() {
    let policy = policy(
        "limits:
  - name: tier
    rate: { free: 60/minute, pro: 600/minute, default: 1/minute }
  - name: plan
    algorithm: token_bucket
    rate: { by: plan, values: { a: 10/minute, b: 20/minute }, default: 5/minute }
    burst: { by: plan, values: { a: 1, c: 3 }, default: 2 }
",
    );
    let rates = |attributes: &[(&str, &[u8])]| ask_api(&policy, attributes);
    assert_eq!(
        rates(&[("tier", b"pro"), ("plan", b"a")]),
        "tier 600/minute [] 1; plan 10/minute [] 1"
    );
    assert_eq!(
        rates(&[("tier", b"gold"), ("plan", b"z")]),
        "tier 1/minute [] 1; plan 5/minute [] 1"
    );
    assert_eq!(rates(&[]), "tier 1/minute [] 1; plan 5/minute [] 1");
    let burst = |plan: &[u8]| {
        let mut scratch = Scratch::default();
        let attributes = [("plan", plan)];
        let request = Request::new(&attributes);
        let mut charges = Charges::new();
        let Admission::Charged = policy.admit(&request, &mut scratch, &mut charges) else {
            panic!()
        };
        policy.limits()[charges[1].limit].capacity()
    };
    assert_eq!([burst(b"a"), burst(b"b"), burst(b"c"), burst(b"d")], [1, 2, 3, 2]);
}

#[test]
fn of_several_patterns_the_most_precise_decides() {
    let policy = policy(
        "limits:
  - name: it
    rate: 1000/minute
    cost:
      by: path
      values: { /**: 2, /a/**: 3, /a/**/z: 4, /a/*: 5, \"/a/{x}/c\": 6, /a/b: 7, /*/b: 8, /a/b/*: 9 }
      default: 1
",
    );
    let cost = |path: &str| {
        let told = ask_api(&policy, &[("path", path.as_bytes())]);
        told.rsplit(' ').next().unwrap().parse::<u32>().unwrap()
    };
    for (path, expected) in [
        ("/", 2),
        ("/x", 2),
        ("/a", 3),
        ("/a/x/y/z", 4),
        ("/a/x", 5),
        ("/a/z", 5),
        ("/a/x/c", 6),
        ("/a/b", 7),
        ("/x/b", 8),
        ("/a/b/c", 9),
    ] {
        assert_eq!(cost(path), expected, "{path}");
    }
    assert_eq!(ask_api(&policy, &[]), "it 1000/minute [] 1", "without a path the default counts");
}

#[test]
fn several_rates_are_several_rules_of_one_limit() {
    let policy = policy(
        "limits:
  - { name: api, algorithm: token_bucket, rate: [10/second, 500/minute], burst: [20, 600], per: [user] }
  - { name: last, rate: 1/minute }
",
    );
    let told = ask_api(&policy, &[("user", b"u")]);
    assert_eq!(told, "api 10/second [u] 1; api#2 500/minute [u] 1; last 1/minute [] 1");
    let limits: Vec<&str> = policy.rules().iter().map(tollgate_policy::Rule::limit_name).collect();
    assert_eq!(limits, ["api", "api", "last"]);
    let bursts: Vec<u32> = policy.limits().iter().map(tollgate_core::Limit::capacity).collect();
    assert_eq!(bursts, [20, 600, 1]);
}

#[test]
fn equal_limits_are_kept_once() {
    let policy = policy(
        "limits:
  - { name: a, rate: 5/minute }
  - { name: b, rate: 5/minute }
  - { name: c, rate: { x: 5/minute, y: 6/minute, default: 5/minute } }
",
    );
    assert_eq!(policy.limits().len(), 2);
    assert_eq!(policy.rules()[2].limits(), [0, 1]);
}

#[test]
fn a_limits_own_cost_beats_the_callers_but_a_peek_stays_a_peek() {
    let policy = policy(
        "limits:
  - { name: caller, rate: 100/minute }
  - { name: own, rate: 100/minute, cost: 5 }
  - { name: tokens, rate: 100/minute, cost: { attribute: tokens } }
",
    );
    let cost = |units: u32, attributes: &[(&str, &[u8])]| {
        let cost = Cost::new(units);
        ask(&policy, &Request { cost, ..Request::new(attributes) })
    };
    let tokens = ("tokens", b"70" as &[u8]);
    assert_eq!(
        cost(3, &[tokens]),
        "caller 100/minute [] 3; own 100/minute [] 5; tokens 100/minute [] 70"
    );
    assert_eq!(cost(3, &[]), "caller 100/minute [] 3; own 100/minute [] 5; tokens 100/minute [] 1");
    assert_eq!(
        cost(0, &[tokens]),
        "caller 100/minute [] 0; own 100/minute [] 0; tokens 100/minute [] 0"
    );
}

#[test]
fn what_is_not_a_cost_is_refused_and_not_guessed() {
    let policy = policy("limits:\n  - { name: it, rate: 5/minute, cost: { attribute: tokens } }\n");
    let bad: [&[u8]; 12] = [
        b"-1",
        b"NaN",
        b"1.5",
        b"1e400",
        b"0x10",
        b"18446744073709551615",
        b"4294967296",
        b"",
        b" 1",
        b"+1",
        b"1 ",
        b"\xff",
    ];
    for cost in bad {
        let attributes = [("tokens", cost)];
        let request = Request::new(&attributes);
        let mut scratch = Scratch::default();
        let mut charges = Charges::new();
        match policy.admit(&request, &mut scratch, &mut charges) {
            Admission::BadCost { rule, attribute, value } => {
                assert_eq!((&**rule.name(), attribute, value), ("it", "tokens", cost));
                assert!(charges.is_empty(), "nothing is charged");
            }
            other => panic!("{cost:?}: {other:?}"),
        }
    }
    assert_eq!(ask_api(&policy, &[("tokens", b"4294967295")]), "it 5/minute [] 4294967295");
}

#[test]
fn a_limit_in_shadow_is_skipped_where_the_cost_is_none() {
    let policy = policy(
        "limits:
  - { name: tried, rate: 5/minute, mode: shadow, cost: { attribute: tokens } }
  - { name: other, rate: 6/minute }
",
    );
    let good: [(&str, &[u8]); 1] = [("tokens", b"2")];
    assert_eq!(ask_api(&policy, &good), "tried 5/minute [] 2; other 6/minute [] 1");
    let bad: [(&str, &[u8]); 1] = [("tokens", b"many")];
    assert_eq!(ask_api(&policy, &bad), "other 6/minute [] 1");
    assert_eq!(
        reasons(&policy, &bad, Missing::Skip),
        [
            "its cost, tokens, is \"many\" and not a whole number from 0 to 4294967295: a \
             limit in shadow skips it",
            "6  1"
        ]
    );
}

#[test]
fn a_credential_that_is_taken_for_a_cost_is_not_repeated() {
    let policy =
        policy("limits: [{ name: it, rate: 5/minute, cost: { attribute: header:x-api-key } }]");
    assert_eq!(
        reasons(&policy, &[("header:x-api-key", b"S3CRET")], Missing::Skip),
        ["its cost, header:x-api-key, is … and not a whole number from 0 to 4294967295: the \
          request is refused"]
    );
}

#[test]
fn a_limit_that_does_not_apply_does_not_ask_for_a_cost() {
    let policy =
        policy("limits: [{ name: it, per: [user], rate: 5/minute, cost: { attribute: tokens } }]");
    let bad = ("tokens", b"many" as &[u8]);
    assert_eq!(ask_api(&policy, &[bad]), "");
    assert_eq!(
        reasons(&policy, &[bad], Missing::Skip),
        ["the request has no user, which it counts by"]
    );
    for told in [ask_http(&policy, &[bad]), ask_api(&policy, &[bad, ("user", b"a")])] {
        assert_eq!(told, "bad cost");
    }
    assert_eq!(
        reasons(&policy, &[bad], Missing::Shared),
        ["its cost, tokens, is \"many\" and not a whole number from 0 to 4294967295: the \
             request is refused"]
    );
}

#[test]
fn the_block_list_comes_before_the_allow_list() {
    let policy = policy(
        "exempt:
  - { client_ip: { cidr: [10.0.0.0/8] } }
  - { path: /health, method: GET }
deny:
  - { user: mallory }
  - { client_ip: 10.6.6.6 }
limits:
  - { name: everyone, rate: 5/minute }
",
    );
    let check = |attributes: &[(&str, &[u8])]| ask_api(&policy, attributes);
    assert_eq!(check(&[("client_ip", b"10.1.1.1")]), "exempt");
    assert_eq!(check(&[("client_ip", b"10.6.6.6")]), "blocked");
    assert_eq!(check(&[("client_ip", b"10.1.1.1"), ("user", b"mallory")]), "blocked");
    assert_eq!(check(&[("path", b"/health"), ("method", b"get")]), "exempt");
    assert_eq!(check(&[("path", b"/health"), ("method", b"POST")]), "everyone 5/minute [] 1");
    let attributes = [("client_ip", b"10.6.6.6" as &[u8])];
    let request = Request::new(&attributes);
    let mut scratch = Scratch::default();
    let mut charges = Charges::new();
    let Admission::Blocked(entry) = policy.admit(&request, &mut scratch, &mut charges) else {
        panic!()
    };
    assert_eq!(entry.place().to_string(), "policy.yaml:6:5");
    assert_eq!(entry.text(), "client_ip: {cidr: 10.6.6.6/32}");
}

#[test]
fn limits_beyond_the_eighth_are_charged_like_the_others() {
    let limits: String =
        (0..100).map(|n| format!("  - {{ name: l{n}, rate: 5/minute }}\n")).collect();
    let policy = policy(&format!("limits:\n{limits}"));
    let expected: Vec<String> = (0..100).map(|n| format!("l{n}")).collect();
    assert_eq!(names(&policy, &[]), expected);
}

#[test]
fn of_an_attribute_sent_twice_the_first_counts() {
    let policy = policy("limits:\n  - { name: it, per: [user], rate: 5/minute }\n");
    assert_eq!(ask_api(&policy, &[("user", b"a"), ("user", b"b")]), "it 5/minute [a] 1");
}

#[test]
fn a_policy_that_asks_about_many_attributes_finds_them_all() {
    let limits: String = (0..50)
        .map(|n| format!("  - {{ name: l{n}, when: {{ a{n}: x }}, rate: 5/minute }}\n"))
        .collect();
    let policy = policy(&format!("limits:\n{limits}"));
    let sent: Vec<String> = (0..50).map(|n| format!("a{n}")).collect();
    let attributes: Vec<(&str, &[u8])> =
        sent.iter().map(|name| (name.as_str(), b"x" as &[u8])).collect();
    assert_eq!(names(&policy, &attributes).len(), 50);
    assert_eq!(names(&policy, &attributes[40..41]), ["l40"]);
}

#[test]
fn a_policy_is_shared_between_threads() {
    fn shared<T: Send + Sync>() {}
    shared::<Policy>();
    shared::<Admission<'_, '_>>();
}

fn reasons(policy: &Policy, attributes: &[(&str, &[u8])], missing: Missing) -> Vec<String> {
    let request = Request { missing, ..Request::new(attributes) };
    let explanations = policy.explain(&request).into_iter();
    explanations
        .map(|explanation| match explanation.standing {
            Standing::DoesNotApply(reason) => reason,
            Standing::Applies { limit, values, cost, .. } => {
                let values = values.iter().map(|value| {
                    let bytes = value.bytes.as_deref().map(String::from_utf8_lossy);
                    format!("{}={}", value.attribute, bytes.unwrap_or("-".into()))
                });
                let values: Vec<String> = values.collect();
                format!(
                    "{} {} {}",
                    policy.limits()[limit].capacity(),
                    values.join(","),
                    cost.units()
                )
            }
        })
        .collect()
}

#[test]
fn explain_says_of_every_rule_why_it_does_not_apply() {
    let policy = policy(
        "exempt:
  - { user: root }
limits:
  - { name: login, when: { method: POST, path: /login }, per: [client_ip], rate: 5/minute }
  - { name: beta, when: { header:x-beta: [a, b] }, rate: 5/minute }
  - { name: user, per: [user], rate: 6/minute }
  - { name: cost, rate: 7/minute, cost: { attribute: tokens } }
",
    );
    let attributes: [(&str, &[u8]); 4] = [
        ("method", b"GET"),
        ("client_ip", b"2001:db8::1"),
        ("header:x-beta", b"secret"),
        ("tokens", b"many"),
    ];
    assert_eq!(
        reasons(&policy, &attributes, Missing::Skip),
        [
            "method is \"GET\", and POST is asked for",
            "header:x-beta is …, and […, …] is asked for",
            "the request has no user, which it counts by",
            "its cost, tokens, is \"many\" and not a whole number from 0 to 4294967295: the \
             request is refused",
        ]
    );
    let attributes: [(&str, &[u8]); 3] =
        [("method", b"POST"), ("path", b"/login"), ("client_ip", b"2001:db8::1")];
    assert_eq!(
        reasons(&policy, &attributes, Missing::Shared),
        [
            "5 client_ip=2001:db8:0:0:: 1",
            "the request has no header:x-beta, and […, …] is asked for",
            "6 user=- 1",
            "7  1",
        ]
    );
    let exempt = reasons(&policy, &[("user", b"root")], Missing::Shared);
    assert_eq!(exempt[0], "the request is exempt by user: root (policy.yaml:2:5)");
}

#[test]
fn a_credential_that_the_policy_asks_for_is_not_repeated() {
    let text = "
tenants: { from: query:key, file: tenants.yaml, unknown: { tier: free } }
deny: [{ header:x-api-key: S3CRET, path: /a }]
exempt: [{ query:key: { not: S3CRET }, path: /b }]
limits:
  - { name: not, when: { header:x-api-key: { not: S3CRET } }, rate: 5/minute }
  - { name: list, when: { cookie:session: [S3CRET, a, b, c, d, e, f] }, rate: 5/minute }
  - { name: block, when: { header:x-real-ip: { cidr: [192.0.2.0/24] } }, rate: 5/minute }
  - { name: key, when: { query:key: S3CRET }, rate: 5/minute }
  - { name: plain, when: { query:q: [x, y] }, rate: 5/minute }
";
    let policy = policy_with(text, "keys: { KEY: { tenant: acme } }");
    let key = ("header:x-api-key", b"S3CRET" as &[u8]);
    assert_eq!(
        reasons(&policy, &[key], Missing::Skip),
        [
            "header:x-api-key is …, and {not: …} is asked for",
            "the request has no cookie:session, and […, …, …, …, …, … 2 more] is asked for",
            "the request has no header:x-real-ip, and {cidr: …} is asked for",
            "the request has no query:key, and … is asked for",
            "the request has no query:q, and [x, y] is asked for",
        ]
    );
    let denied = reasons(&policy, &[key, ("path", b"/a")], Missing::Skip);
    assert_eq!(
        denied[0],
        "the request is denied by header:x-api-key: …, path: /a (policy.yaml:3:8)"
    );
    let exempt = reasons(&policy, &[("query:key", b"other"), ("path", b"/b")], Missing::Skip);
    assert_eq!(
        exempt[0],
        "the request is exempt by query:key: {not: …}, path: /b (policy.yaml:4:10)"
    );
}
