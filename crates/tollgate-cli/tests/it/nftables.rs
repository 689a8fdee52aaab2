//! `tollgate nftables`: what it prints is a ruleset, and limits connections.

mod network;

use network::{Network, PORT, checked};

use crate::{Folder, Run, root, run};

/// What the command makes of a policy.
fn nftables(policy: &str) -> Run {
    Folder::with(&[("policy.yaml", policy)]).tollgate(&["nftables", "-c", "policy.yaml"])
}

/// The ruleset of a policy with a gateway and this besides.
fn ruleset(rest: &str) -> String {
    ruleset_at("[::]:8000", rest)
}

fn ruleset_at(gateway: &str, rest: &str) -> String {
    let policy =
        format!("listen: {{ gateway: \"{gateway}\" }}\nupstream: http://127.0.0.1:3000\n{rest}");
    let run = nftables(&policy);
    assert_eq!((run.code, run.stderr.as_str()), (Some(0), ""), "{policy}");
    run.stdout
}

/// A limit of connections with these fields.
fn limit(fields: &str) -> String {
    format!(
        "limits: [{{ name: conns, when: {{ layer: connection }}, per: [client_ip], {fields} }}]"
    )
}

/// The rule of the limit `conns` for IPv4, with what is said of it.
fn rule_of(fields: &str) -> String {
    let ruleset = ruleset(&limit(fields));
    let (_, chain) = ruleset.split_once("\tchain ipv4 {\n").expect("there is a chain");
    let (chain, _) = chain.split_once("\t}\n").expect("it ends");
    chain.lines().map(|line| format!("{}\n", line.trim_start())).collect()
}

fn check_refused(policy: &str, sentence: &str) {
    let run = nftables(policy);
    assert_eq!((run.code, run.stdout.as_str()), (Some(1), ""));
    assert_eq!(run.stderr, format!("error: {sentence}\n"));
}

#[test]
fn without_a_port_to_guard_there_is_no_ruleset() {
    check_refused(
        "limits: [{ name: a, rate: 1/second }]",
        "the policy opens no gateway, and connections are limited nowhere else; write for example \
         upstream: http://127.0.0.1:3000 and listen: {gateway: 0.0.0.0:8000}",
    );
    check_refused(
        "listen: { gateway: 127.0.0.1:0 }\nupstream: http://127.0.0.1:3000\n\
         limits: [{ name: a, rate: 1/second }]",
        "listen.gateway leaves its port to the system, and nftables must know it; write for example \
         listen: {gateway: 0.0.0.0:8000}",
    );
}

#[test]
fn without_a_listen_section_the_gateway_is_guarded_where_it_is_opened() {
    let run = nftables(&format!("upstream: http://127.0.0.1:3000\n{}", limit("concurrency: 5")));
    assert_eq!((run.code, run.stderr.as_str()), (Some(0), ""));
    assert!(run.stdout.contains("ip daddr 127.0.0.1 tcp dport 8000 "), "{}", run.stdout);
}

#[test]
fn a_policy_with_a_mistake_is_refused() {
    let run = nftables("limits: [{ name: a, rate: 1/secund }]");
    assert_eq!((run.code, run.stdout.as_str()), (Some(1), ""));
    assert!(
        run.stderr.contains("policy.yaml:1:27: limit \"a\": rate \"1/secund\""),
        "{}",
        run.stderr
    );
}

#[test]
fn only_the_address_and_port_of_the_gateway_are_guarded() {
    let check = |gateway: &str, guarded: &[[&str; 2]]| {
        let ruleset = ruleset_at(gateway, &limit("concurrency: 5"));
        let jumps = ruleset.lines().filter(|line| line.contains(" jump ")).map(str::trim_start);
        let new = "tcp flags & (fin | syn | rst | ack) == syn ct state new";
        let expected = guarded.iter().map(|[at, to]| format!("{at} {new} jump {to}"));
        assert_eq!(jumps.collect::<Vec<&str>>(), expected.collect::<Vec<String>>(), "{gateway}");
        assert_eq!(checked(&ruleset), "", "{ruleset}");
    };
    let [v4, v6] = ["meta nfproto ipv4 tcp dport 8000", "meta nfproto ipv6 tcp dport 8000"];
    check("[::]:8000", &[[v4, "ipv4"], [v6, "ipv6"]]);
    check("0.0.0.0:8000", &[[v4, "ipv4"]]);
    check("127.0.0.1:80", &[["ip daddr 127.0.0.1 tcp dport 80", "ipv4"]]);
    check("[2001:db8::5]:80", &[["ip6 daddr 2001:db8::5 tcp dport 80", "ipv6"]]);
}

#[test]
fn what_nftables_has_is_said_exactly_and_the_rest_more_loosely() {
    let check = |fields: &str, expected: &str| assert_eq!(rule_of(fields), expected, "{fields}");
    let rate = |over: &str| {
        format!(
            "update @limit_1_conns_ipv4 {{ ip saddr limit rate over {over} packets }} counter drop \
             comment \"limit conns\"\n"
        )
    };
    check("rate: 5/minute, algorithm: token_bucket, burst: 8", &rate("5/minute burst 8"));
    check(
        "concurrency: 7",
        "# conns: a connection is open until both ends have closed it\n\
         add @limit_1_conns_ipv4 { ip saddr ct count over 7 } counter drop comment \"limit conns\"\n",
    );
    check(
        "concurrency: 7, cost: 2, mode: shadow",
        "# conns: a connection is open until both ends have closed it\n\
         # conns: in shadow: counted, and never dropped\n\
         add @limit_1_conns_ipv4 { ip saddr ct count over 3 } counter comment \"limit conns\"\n",
    );
    check("rate: 0/minute", "counter drop comment \"limit conns\"\n");
    check("concurrency: 0", "counter drop comment \"limit conns\"\n");
    check("concurrency: 2, cost: 3", "counter drop comment \"limit conns\"\n");
    let windows = "# conns: looser here: as many as two windows allow may come at once, as they may \
                   around the end of one\n";
    check("rate: 5/minute", &format!("{windows}{}", rate("5/minute burst 10")));
    check(
        "rate: 5/minute, count_denied: true",
        &format!(
            "{windows}# conns: looser here: what is denied here is not charged\n{}",
            rate("5/minute burst 10")
        ),
    );
    check(
        "rate: 5/minute, algorithm: sliding_log",
        &format!(
            "# conns: looser here: a bucket that refills, so up to twice as many in one period\n{}",
            rate("5/minute burst 5")
        ),
    );
    check(
        "rate: 5/month, algorithm: token_bucket",
        &format!(
            "# conns: looser here: rounded up to a rate that nftables knows\n\
             # conns: looser here: an address that was idle for an hour starts afresh\n{}",
            rate("2/week burst 5")
        ),
    );
    check(
        "rate: { by: client_ip, values: { 192.0.2.1: 9/minute }, default: 2/second }, \
         algorithm: token_bucket",
        &format!(
            "# conns: looser here: each address has the most that any of them is allowed\n{}",
            rate("2/second burst 9")
        ),
    );
}

#[test]
fn limits_that_keep_no_count_of_what_others_refuse_come_first() {
    let ruleset = ruleset(
        "limits:
  - { name: watched, when: { layer: connection }, per: [client_ip], rate: 1/second, mode: shadow }
  - { name: rates, when: { layer: connection }, per: [client_ip], rate: [5/hour, 3/second] }
  - { name: open, when: { layer: connection }, per: [client_ip], concurrency: 9 }",
    );
    let rules = ruleset.lines().filter_map(|line| line.split_once("comment \"limit "));
    let order: Vec<&str> = rules.map(|(_, name)| name.trim_end_matches('"')).collect();
    assert_eq!(order[..4], ["open", "rates#2", "rates", "watched"]);
    assert_eq!(order[..4], order[4..], "IPv6 as well");
}

#[test]
fn what_cannot_be_counted_by_address_is_left_to_the_gateway() {
    let ruleset = ruleset(
        "limits:
  - { name: all, when: { layer: connection }, rate: 1000/second }
  - { name: free, when: { layer: connection }, per: [client_ip], rate: 5/second, cost: 0 }
  - { name: told, when: { layer: connection }, per: [client_ip], rate: 5/second, cost: { attribute: client_ip } }
  - { name: vast, when: { layer: connection }, per: [client_ip], rate: 4294967295/second }
  - { name: requests, per: [client_ip], rate: 5/second }",
    );
    let said = ruleset
        .lines()
        .filter(|line| line.starts_with("# Left") || line.starts_with("# The policy"));
    assert_eq!(
        said.collect::<Vec<&str>>(),
        [
            "# The policy has no connection limit that could be enforced here.",
            "# Left to the gateway: limit all, which counts all addresses together.",
            "# Left to the gateway: limit free, which charges nothing.",
            "# Left to the gateway: limit told, whose cost the connection says.",
            "# Left to the gateway: limit vast, which allows more at once than nftables can count.",
        ]
    );
    assert!(!ruleset.contains("comment"), "{ruleset}");
    assert_eq!(checked(&ruleset), "");
}

#[test]
fn nft_understands_every_ruleset() {
    let everything = "
client_ip: { trusted_proxies: [10.0.0.0/8, 10.1.0.0/16, \"fd00::/8\"], ipv6_prefix: 64 }
deny: [{ client_ip: 192.0.2.66 }, { client_ip: { cidr: [198.51.100.0/24, 198.51.101.0/24] } }, { client_ip: { cidr: [\"2001:db8:dead::/48\"] } }]
exempt: [{ client_ip: { not: { cidr: [0.0.0.0/1, \"::/1\"] } } }]
limits:
  - { name: a~b, when: { layer: connection, client_ip: { cidr: [203.0.113.0/24] } }, per: [client_ip], rate: [5/second, 7/13s, 1/year] }
  - { name: a.b, when: { layer: connection, client_ip: { not: { cidr: [203.0.113.0/24, \"::/0\"] } } }, per: [client_ip], concurrency: 100000 }
  - { name: counter, when: { layer: connection }, per: [client_ip], rate: 4294967295/1ms, algorithm: token_bucket, burst: 4294967295 }
  - { name: 0-0, when: { layer: connection }, per: [client_ip], rate: 1/year, algorithm: token_bucket, burst: 100 }
  - { name: shadow, when: { layer: connection }, per: [client_ip], rate: 1/year, algorithm: fixed_window, mode: shadow }
";
    let all = "client_ip: { trusted_proxies: [0.0.0.0/0, \"::/0\"], ipv6_prefix: 32 }\n";
    let list = "deny: [{ client_ip: present }]\nexempt: [{ client_ip: absent }]\n";
    let one = limit("concurrency: 1");
    let exact = format!("client_ip: {{ ipv6_prefix: 128 }}\n{one}");
    for rest in [everything, &format!("{all}{one}"), &format!("{list}{one}"), &one, &exact] {
        let ruleset = ruleset(rest);
        assert_eq!(checked(&ruleset), "", "{ruleset}");
    }
    for file in std::fs::read_dir(root().join("examples/policies")).expect("there are examples") {
        let file = file.expect("the folder can be listed").path();
        let mut command = crate::command(&["nftables", "-c"]);
        let printed = run(command.arg(&file), "");
        if printed.code == Some(0) {
            assert_eq!(checked(&printed.stdout), "", "{}", file.display());
        }
    }
}

#[test]
fn an_address_gets_its_rate_and_another_has_its_own() {
    let ruleset = ruleset(&limit("rate: 3/hour, algorithm: token_bucket, burst: 5"));
    let [one, other, third] = ["198.18.0.2", "198.18.0.3", "198.18.0.4"];
    let mut network = Network::new(&ruleset, &[one, other, third]);
    for number in 0..5 {
        network.open(&format!("one-{number}"), one);
    }
    network.refused(one);
    network.refused(one);
    network.open("other", other);
    let listed = network.listed();
    assert!(listed.contains("counter packets 2 "), "both were counted: {listed}");
    // What is open stays open, and what was counted is forgotten, when it is loaded again.
    network.load(&ruleset);
    network.open("again", one);
    network.close("one-0");
    network.open("third", third);
}

#[test]
fn an_address_holds_so_many_connections_at_a_time() {
    let ruleset = ruleset(&limit("concurrency: 3"));
    let [one, other] = ["198.18.0.2", "198.18.0.3"];
    let mut network = Network::new(&ruleset, &[one, other]);
    for number in 0..3 {
        network.open(&format!("one-{number}"), one);
    }
    network.refused(one);
    network.open("other", other);
    network.close("one-1");
    network.open("one-3", one);
    network.refused(one);
}

#[test]
fn what_one_limit_refuses_is_not_charged_to_another() {
    let ruleset = ruleset(
        "limits:
  - { name: rate, when: { layer: connection }, per: [client_ip], rate: 1/hour, algorithm: token_bucket, burst: 3 }
  - { name: open, when: { layer: connection }, per: [client_ip], concurrency: 2 }",
    );
    let one = "198.18.0.2";
    let mut network = Network::new(&ruleset, &[one]);
    network.open("first", one);
    network.open("second", one);
    network.refused(one);
    network.close("first");
    network.open("third", one);
}

#[test]
fn addresses_of_one_ipv6_prefix_share_a_budget() {
    let ruleset = ruleset(&limit("rate: 3/hour, algorithm: token_bucket, burst: 3"));
    let [one, neighbour, stranger] =
        ["2001:db8:0:100::2", "2001:db8:0:1ff::3", "2001:db8:0:200::2"];
    let mut network = Network::new(&ruleset, &[one, neighbour, stranger]);
    network.open("1", one);
    network.open("2", neighbour);
    network.open("3", one);
    network.refused(one);
    network.refused(neighbour);
    network.open("4", stranger);
}

#[test]
fn open_connections_of_one_ipv6_prefix_are_counted_together() {
    let ruleset = ruleset(&limit("concurrency: 2"));
    let [one, neighbour, stranger] =
        ["2001:db8:0:100::2", "2001:db8:0:1ff::3", "2001:db8:0:200::2"];
    let mut network = Network::new(&ruleset, &[one, neighbour, stranger]);
    network.open("1", one);
    network.open("2", neighbour);
    network.refused(one);
    network.open("3", stranger);
    network.close("2");
    network.open("4", one);
}

#[test]
fn lists_and_trusted_proxies_come_before_limits() {
    let rest = format!(
        "client_ip: {{ trusted_proxies: [198.18.1.0/24] }}\n\
         deny: [{{ client_ip: {{ cidr: [198.18.2.0/24, 198.18.1.66/32, \"2001:db8:bad::/48\"] }} }}]\n\
         exempt: [{{ client_ip: {{ cidr: [198.18.3.0/24, 198.18.2.0/25] }} }}]\n{}",
        limit("concurrency: 1")
    );
    let [proxy, denied, exempt] = ["198.18.1.66", "198.18.2.5", "198.18.3.5"];
    let [limited, denied_v6] = ["198.18.4.5", "2001:db8:bad::5"];
    let addresses = [proxy, denied, exempt, limited, denied_v6];
    let mut network = Network::new(&ruleset(&rest), &addresses);
    network.open("limited", limited);
    network.refused(limited);
    network.refused(denied);
    network.refused(denied_v6);
    for number in 0..3 {
        network.open(&format!("exempt-{number}"), exempt);
        network.open(&format!("proxy-{number}"), proxy);
    }
}

#[test]
fn conditions_of_a_limit_hold_and_shadows_drop_nothing() {
    let ruleset = ruleset(
        "limits:
  - { name: some, when: { layer: connection, client_ip: { not: { cidr: [198.18.1.0/24] } } }, per: [client_ip], concurrency: 1 }
  - { name: seen, when: { layer: connection }, per: [client_ip], rate: 1/hour, algorithm: token_bucket, mode: shadow }",
    );
    let [meant, not_meant] = ["198.18.0.2", "198.18.1.2"];
    let mut network = Network::new(&ruleset, &[meant, not_meant]);
    network.open("meant", meant);
    network.refused(meant);
    for number in 0..3 {
        network.open(&format!("not-meant-{number}"), not_meant);
    }
    let listed = network.listed();
    let shadow = listed.lines().find(|line| line.contains("limit seen")).expect("it is there");
    // The first of each address is within the rate, and what was refused is not seen.
    assert!(shadow.contains("counter packets 2 "), "{shadow}");
}

#[test]
fn other_ports_are_not_limited() {
    let ruleset = ruleset_at(&format!("[::]:{}", PORT + 1), &limit("concurrency: 0"));
    let one = "198.18.0.2";
    let mut network = Network::new(&ruleset, &[one]);
    network.open("other-port", one);
}
