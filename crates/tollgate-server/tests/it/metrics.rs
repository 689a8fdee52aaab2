//! What the admin door tells Prometheus.

use tollgate_harness::{Flavour, Server as Redis};
use tollgate_server::Door;

use crate::gateway::upstream::{Exchange, Upstream};
use crate::server::{Running, eventually, with_doors};

const DOORS: &[&str] = &["http", "admin", "resp"];

const POLICY: &str = "limits: [{ name: api, per: [user], rate: 2/day, algorithm: fixed_window }]";

fn metrics(running: &Running) -> String {
    let answer = running.ask(Door::Admin, "GET /metrics", "");
    assert_eq!(answer.status, 200);
    answer.body
}

/// The value of a sample, by its name and labels as they are written.
fn value(text: &str, sample: &str) -> Option<f64> {
    let line = text.lines().find_map(|line| line.strip_prefix(sample)?.strip_prefix(' '))?;
    Some(line.parse().unwrap_or_else(|error| panic!("{error}: {line}")))
}

/// Says that a sample has this value.
fn check(text: &str, sample: &str, expected: f64) {
    assert_eq!(value(text, sample), Some(expected), "{sample} in:\n{text}");
}

#[test]
fn metrics_are_told_to_everybody_as_text() {
    let policy = "listen: { admin: { address: 127.0.0.1:0, token_file: token } }\nlimits: []";
    let running = Running::with_files(policy, &[("token", "a-token-of-some-length")]);
    let answer = running.ask(Door::Admin, "GET /metrics\nhost: evil.example", "");
    assert_eq!(answer.status, 200);
    assert_eq!(answer.field("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"));
    let version = env!("CARGO_PKG_VERSION");
    check(&answer.body, &format!("tollgate_build_info{{version=\"{version}\"}}"), 1.0);
    assert!(value(&answer.body, "process_start_time_seconds").is_some_and(|it| it > 1.7e9));
    assert_eq!(running.ask(Door::Admin, "POST /metrics", "").status, 405);
}

#[test]
fn without_a_token_metrics_are_told_under_an_address_or_localhost_alone() {
    let running = Running::start(&["admin"], "limits: []");
    let ask = |path: &str, field: &str| {
        running.ask(Door::Admin, &format!("GET {path}\n{field}"), "").status
    };
    for host in ["localhost", "127.0.0.1:8082", "[::1]:8082"] {
        assert_eq!(ask("/metrics", &format!("host: {host}")), 200, "{host}");
    }
    assert_eq!(ask("/metrics", "host: evil.example"), 403);
    assert_eq!(ask("/metrics", "origin: http://evil.example"), 403);
    assert_eq!(ask("/healthz", "host: evil.example"), 200);
    assert_eq!(ask("/readyz", "host: evil.example"), 200);
}

#[test]
fn decisions_of_every_door_are_counted() {
    let running = Running::start(DOORS, POLICY);
    for _ in 0..3 {
        running.ask(Door::Http, "GET /v1/check?user=a", "");
    }
    let mut resp = running.connect(Door::Resp);
    std::io::Write::write_all(
        &mut resp,
        b"TG.CHECK user a\r\nCL.THROTTLE a 0 1 60\r\nCL.THROTTLE a 0 1 60\r\nQUIT\r\n",
    )
    .expect("it reads");
    std::io::Read::read_to_end(&mut resp, &mut Vec::new()).expect("it answers");
    let text = metrics(&running);
    let of = |outcome: &str| {
        format!("tollgate_decisions_total{{limit=\"api\",tier=\"\",outcome=\"{outcome}\"}}")
    };
    check(&text, &of("allowed"), 2.0);
    check(&text, &of("denied"), 2.0);
    check(&text, &of("allowed").replace("api", "#callers"), 1.0);
    check(&text, &of("denied").replace("api", "#callers"), 1.0);
    check(&text, "tollgate_requests_total{layer=\"request\",ruling=\"denied\"}", 3.0);
    check(&text, "tollgate_store_keys", 2.0);
    assert!(value(&text, "tollgate_check_duration_seconds_count").is_some_and(|it| it >= 1.0));
}

#[test]
fn many_callers_make_no_more_series_and_no_secret_of_theirs_is_told() {
    let policy =
        "tenants: { file: tenants.yaml, from: \"header:x-api-key\", unknown: { tier: free } }
limits: [{ name: api, per: [\"header:x-api-key\"], rate: { free: 1/day, default: 2/day } }]";
    let policy = with_doors(DOORS, policy);
    let tenants = "keys: { a-secret-key: { tenant: acme, tier: pro } }";
    let running = Running::with_files(&policy, &[("tenants.yaml", tenants)]);
    let names = |text: &str| -> Vec<String> {
        let samples = text.lines().filter(|line| !line.starts_with('#'));
        samples.map(|line| line.rsplit_once(' ').expect("a value").0.to_owned()).collect()
    };
    let before = names(&metrics(&running));
    let key = |key: &str| format!(r#"{{"attributes": {{"header:x-api-key": "{key}"}}}}"#);
    let mut checks: Vec<String> = (0..2_000).map(|number| key(&format!("key-{number}"))).collect();
    checks.extend([key("a-secret-key"), key("\\\"} 1\\n<script>")]);
    for checks in checks.chunks(500) {
        let body = format!("[{}]", checks.join(","));
        let answer = running.ask(Door::Http, "POST /v1/check/batch", &body);
        assert_eq!(answer.status, 200, "{}", answer.body);
    }
    let text = metrics(&running);
    assert_eq!(names(&text), before);
    assert!(!text.contains("key-1") && !text.contains("secret") && !text.contains("script"));
    check(&text, "tollgate_requests_total{layer=\"request\",ruling=\"allowed\"}", 2_002.0);
}

#[test]
fn a_policy_that_is_wrong_is_told_of_and_counts_go_on() {
    let running = Running::start(DOORS, POLICY);
    running.ask(Door::Http, "GET /v1/check?user=a", "");
    running.folder.write("policy.yaml", &with_doors(DOORS, "limits: [{ name: api }]"));
    assert_eq!(running.ask(Door::Admin, "POST /v1/reload", "").status, 422);
    let text = metrics(&running);
    assert!(value(&text, "tollgate_policy_reloads_total{outcome=\"failed\"}") >= Some(1.0));
    check(&text, "tollgate_policy_rejected", 1.0);
    running.folder.write("policy.yaml", &with_doors(DOORS, &POLICY.replace("2/day", "9/day")));
    assert_eq!(running.ask(Door::Admin, "POST /v1/reload", "").status, 200);
    running.ask(Door::Http, "GET /v1/check?user=a", "");
    let text = metrics(&running);
    check(&text, "tollgate_policy_rejected", 0.0);
    check(&text, "tollgate_decisions_total{limit=\"api\",tier=\"\",outcome=\"allowed\"}", 2.0);
}

#[test]
fn connections_are_counted_by_door() {
    let running = Running::start(DOORS, POLICY);
    let open = || value(&metrics(&running), "tollgate_connections{door=\"resp\"}");
    let one = running.connect(Door::Resp);
    let other = running.connect(Door::Resp);
    eventually("both are open", || open() == Some(2.0));
    drop((one, other));
    eventually("both are closed", || open() == Some(0.0));
    let text = metrics(&running);
    check(&text, "tollgate_connections_accepted_total{door=\"resp\"}", 2.0);
    check(&text, "tollgate_connections{door=\"admin\"}", 1.0);
    check(&text, "tollgate_connections_refused_total{door=\"resp\"}", 0.0);
}

#[test]
fn slots_and_reservations_are_counted_while_they_are_held() {
    let running = Running::start(DOORS, "limits: [{ name: jobs, concurrency: 5 }]");
    let answer = running.ask(Door::Http, "GET /v1/check", "");
    let lease = answer.json()["lease"].as_str().expect("a lease").to_owned();
    let reserved = running.ask(Door::Http, "POST /v1/reserve", r#"{"cost": 1, "attributes": {}}"#);
    assert_eq!(reserved.status, 200, "{}", reserved.body);
    let text = metrics(&running);
    check(&text, "tollgate_reservations", 1.0);
    // What is reserved holds a slot as well.
    check(&text, "tollgate_leases", 2.0);
    let release = format!(r#"{{"lease": "{lease}"}}"#);
    assert_eq!(running.ask(Door::Http, "POST /v1/release", &release).status, 200);
    check(&metrics(&running), "tollgate_leases", 1.0);
}

#[test]
fn servers_behind_the_gateway_are_told_of_by_their_url() {
    let upstream = Upstream::start(Exchange::ok);
    let gone = tollgate_harness::free_port();
    let well = format!("http://{}", upstream.address);
    let failing = format!("http://127.0.0.1:{gone}");
    let policy = format!("upstream: [\"{well}\", \"{failing}\"]\nlimits: []");
    let running = Running::start(&["gateway", "admin"], &policy);
    let failures = |url: &str| format!("tollgate_upstream_failures_total{{upstream=\"{url}\"}}");
    let left_out = format!("tollgate_upstream_left_out{{upstream=\"{failing}\"}}");
    check(&metrics(&running), &failures(&failing), 0.0);
    eventually("it is left out", || {
        running.ask(Door::Gateway, "GET /", "");
        value(&metrics(&running), &left_out) == Some(1.0)
    });
    let text = metrics(&running);
    assert!(value(&text, &failures(&failing)) >= Some(3.0), "{text}");
    check(&text, &failures(&well), 0.0);
}

#[test]
fn requests_that_are_held_or_turned_away_are_counted() {
    let upstream = Upstream::start(Exchange::ok);
    let policy = format!(
        "upstream: http://{}\ngateway: {{ max_held: 1 }}\n\
         limits: [{{ name: slow, rate: 1/hour, algorithm: leaky_bucket, queue: 9 }}]",
        upstream.address
    );
    let running = Running::start(&["gateway", "admin"], &policy);
    let ask = "GET / HTTP/1.1\r\nhost: a\r\n\r\n";
    assert_eq!(running.ask(Door::Gateway, "GET /", "").status, 200);
    let mut held = running.connect(Door::Gateway);
    std::io::Write::write_all(&mut held, ask.as_bytes()).expect("it reads");
    eventually("one is held", || value(&metrics(&running), "tollgate_held_requests") == Some(1.0));
    assert_eq!(running.ask(Door::Gateway, "GET /", "").status, 503);
    check(&metrics(&running), "tollgate_shed_requests_total", 1.0);
    drop(held);
    eventually("it left", || value(&metrics(&running), "tollgate_held_requests") == Some(0.0));
    check(&metrics(&running), "tollgate_held_duration_seconds_count", 0.0);
}

#[test]
fn websockets_are_counted_while_they_are_open() {
    let upstream = Upstream::start(|exchange| {
        exchange.send(
            "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n",
        );
        exchange.wait_for_end();
        exchange.close();
    });
    let policy = format!("upstream: http://{}\nlimits: []", upstream.address);
    let running = Running::start(&["gateway", "admin"], &policy);
    let open = || value(&metrics(&running), "tollgate_websockets");
    assert_eq!(open(), Some(0.0));
    let mut socket = running.connect(Door::Gateway);
    let ask = "GET / HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
               sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
    std::io::Write::write_all(&mut socket, ask.as_bytes()).expect("it reads");
    eventually("it is open", || open() == Some(1.0));
    drop(socket);
    eventually("it is closed", || open() == Some(0.0));
}

#[test]
fn redis_is_told_of_server_by_server() {
    let redis = Redis::start(Flavour::Redis);
    let policy = format!(
        "store: {{ redis: {{ url: '{}', timeout: 10s }} }}
limits: [{{ name: api, per: [user], rate: 1/day, on_store_failure: deny }}]",
        redis.url()
    );
    let running = Running::start(DOORS, &policy);
    eventually("Redis is reached", || {
        running.ask(Door::Http, "GET /v1/check?user=nobody&cost=0", "").status == 200
    });
    for _ in 0..4 {
        running.ask(Door::Http, "GET /v1/check?user=a", "");
    }
    let text = metrics(&running);
    let sum = |text: &str, name: &str| -> f64 {
        let of = |line: &str| line.strip_prefix(name)?.rsplit(' ').next()?.parse::<f64>().ok();
        text.lines().filter_map(of).sum()
    };
    assert!(sum(&text, "tollgate_redis_calls_total{") >= 2.0, "{text}");
    assert!(sum(&text, "tollgate_redis_round_trips_total{") >= 2.0);
    assert!(sum(&text, "tollgate_redis_round_trip_seconds_total{") > 0.0);
    assert!(sum(&text, "tollgate_redis_denial_cache_hits_total ") >= 1.0, "{text}");
    assert_eq!(sum(&text, "tollgate_redis_breaker_open{"), 0.0);
    assert!(sum(&text, "tollgate_check_duration_seconds_count") >= 1.0);
    drop(redis);
    eventually("Redis is missed", || {
        running.ask(Door::Http, "GET /v1/check?user=b", "");
        sum(&metrics(&running), "tollgate_redis_breaker_open{") == 1.0
    });
    eventually("it is settled without", || {
        running.ask(Door::Http, "GET /v1/check?user=b", "");
        let text = metrics(&running);
        sum(&text, "tollgate_redis_settled_without_total ") > 0.0
            && sum(&text, "tollgate_redis_errors_total{") > 0.0
            && sum(
                &text,
                "tollgate_decisions_total{limit=\"api\",tier=\"\",outcome=\"store_failed\"}",
            ) > 0.0
    });
}
