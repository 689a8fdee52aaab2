//! The part of a policy that is about the process.

use tollgate_core::{Algorithm, Micros, Quota};
use tollgate_policy::{
    Audit, Charging, ClientIp, EncodedSlash, ForwardedIn, Gateway, HeaderGeneration, Likeness,
    Mode, Observe, OnStoreFailure, Otlp, Paths, Policy, RedisServers, RedisStore, ResponseHeaders,
    Settings, ShownKeys, Store, SyncMode, Unknown,
};

use crate::{corpus, policy};

fn accepted(name: &str) -> tollgate_policy::Policy {
    let files = corpus::files("accepted");
    let file = files.iter().find(|(file, _)| *file == format!("{name}.yaml"));
    let (name, text) = file.expect("the corpus has it");
    corpus::parse(name, text).expect("it is accepted")
}

fn settings(name: &str) -> Settings {
    accepted(name).settings().clone()
}

#[test]
fn the_policy_of_the_design_says_what_it_says() {
    let policy = accepted("design");
    let settings = policy.settings();
    let listen = &settings.listen;
    let ports = [&listen.http, &listen.grpc, &listen.admin, &listen.gateway, &listen.resp]
        .map(|door| door.as_ref().unwrap().address.port());
    assert_eq!(ports, [8080, 8081, 8082, 8000, 6380]);
    let [route] = &settings.upstream[..] else { panic!() };
    assert_eq!(route.targets()[0].to_string(), "http://127.0.0.1:3000");
    assert_eq!(settings.store, Store::default());
    assert_eq!(settings.client_ip.trusted_proxies[0].to_string(), "10.0.0.0/8");
    assert_eq!(settings.client_ip.ipv6_prefix, 56);
    let tenants = settings.tenants.as_ref().unwrap();
    assert_eq!(
        (tenants.from.as_str(), tenants.file.as_str()),
        ("header:x-api-key", "tenants.yaml")
    );
    assert_eq!(tenants.unknown, Unknown::Tier("free".to_owned()));
    assert_eq!(settings.headers, [HeaderGeneration::Draft11, HeaderGeneration::XRateLimit]);
    let descriptors = settings.descriptors.as_ref().unwrap();
    assert_eq!(descriptors.path, "./envoy/");
    assert_eq!(descriptors.response_headers, None);

    let names: Vec<&str> = policy.rules().iter().map(|rule| &**rule.name()).collect();
    assert_eq!(names, ["login", "api", "daily", "in-flight", "everyone"]);
    let [login, api, daily, in_flight, everyone] = policy.rules() else { panic!() };
    assert_eq!(login.algorithm(), Algorithm::SlidingLog);
    assert_eq!(login.on_store_failure(), OnStoreFailure::Deny);
    assert_eq!(api.on_store_failure(), OnStoreFailure::Local);
    assert_eq!(daily.algorithm(), Algorithm::FixedWindow);
    assert_eq!(in_flight.algorithm(), Algorithm::Concurrency);
    assert_eq!((everyone.mode(), login.mode()), (Mode::Shadow, Mode::Enforce));
    assert!(everyone.per().is_empty());
    assert_eq!(login.place().to_string(), "design.yaml:23:11");
}

#[test]
fn a_policy_without_sections_has_their_defaults() {
    let settings = settings("minimal");
    assert!(!settings.listen.is_written && settings.listen.http.is_none());
    assert_eq!(settings.store, Store::default());
    assert_eq!(settings.client_ip.ipv6_prefix, 56);
    assert_eq!(settings.paths, Paths::default());
    let Paths { trailing_slash, params, case, encoded_slash, .. } = settings.paths;
    assert_eq!([trailing_slash, params, case], [Likeness::Same, Likeness::Same, Likeness::Apart]);
    assert_eq!(encoded_slash, EncodedSlash::Refuse);
    assert_eq!(settings.headers, [HeaderGeneration::Draft11, HeaderGeneration::XRateLimit]);
    assert!(settings.tenants.is_none() && settings.upstream.is_empty());
    assert_eq!(settings.gateway, Gateway::default());
    assert_eq!(settings.client_ip, ClientIp::default());
}

#[test]
fn every_word_about_paths_means_what_it_says() {
    let paths = settings("paths").paths;
    assert_eq!((paths.trailing_slash, paths.params), (Likeness::Apart, Likeness::Apart));
    assert_eq!((paths.case, paths.encoded_slash), (Likeness::Same, EncodedSlash::Keep));
    let words = "paths: { trailing_slash: same, params: same, case: apart, encoded_slash: refuse }\nlimits: []";
    assert_eq!(policy(words).settings().paths, Paths::default());
}

#[test]
fn a_listener_has_a_long_form() {
    let listen = settings("listen-long-form").listen;
    let http = listen.http.unwrap();
    assert_eq!(http.address.to_string(), "0.0.0.0:8080");
    let tls = http.tls.unwrap();
    assert_eq!((tls.cert.as_str(), tls.key.as_str()), ("a.pem", "a.key"));
    assert_eq!(tls.client_ca.as_deref(), Some("ca.pem"));
    assert_eq!(listen.grpc.unwrap().token_file.as_deref(), Some("t"));
}

#[test]
fn a_store_has_all_its_forms() {
    let Store::Memory(memory) = settings("store-memory-long").store else { panic!() };
    assert_eq!(memory.max_bytes, Some(1 << 30));
    assert_eq!(memory.snapshot.as_deref(), Some("state.tollgate"));

    let servers = |name: &str| {
        let Store::Redis(redis) = settings(name).store else { panic!("{name}") };
        assert_eq!((redis.timeout, redis.prefix.as_str()), (Micros::from_millis(10), "tollgate"));
        redis.servers
    };
    let local = "redis://127.0.0.1:6379".to_owned();
    assert_eq!(servers("store-redis"), RedisServers::Single(local.clone()));
    assert_eq!(servers("store-redis-long"), RedisServers::Single(local));
    let nodes = ["redis://10.0.0.1:6379", "redis://10.0.0.2:6379"].map(str::to_owned).to_vec();
    assert_eq!(servers("store-redis-cluster"), RedisServers::Cluster(nodes));
    let nodes = vec!["redis://10.0.0.1:26379".to_owned()];
    let master = "limits".to_owned();
    assert_eq!(servers("store-redis-sentinel"), RedisServers::Sentinel { master, nodes });
}

fn redis(name: &str) -> RedisStore {
    let Store::Redis(redis) = settings(name).store else { panic!("{name}") };
    redis
}

#[test]
fn a_server_is_found_by_host_or_by_socket() {
    let single = |name: &str| match redis(name).servers {
        RedisServers::Single(url) => url,
        other => panic!("{other:?}"),
    };
    assert_eq!(single("store-redis-unix"), "redis+unix:///run/redis/redis.sock?db=1");
    assert_eq!(
        single("store-redis-unix-login"),
        "unix:///run/redis.sock?db=0&user=tollgate&pass=s3cret"
    );
    assert_eq!(
        single("store-redis-database"),
        "rediss://tollgate:s3cret%2F@redis.example.com:6380/15"
    );
    let timeouts = ["store-redis-unix-login", "store-redis-database"].map(|it| redis(it).timeout);
    assert_eq!(timeouts, [Micros::from_millis(1), Micros::from_secs(10)]);
}

#[test]
fn no_password_is_shown_with_the_settings() {
    for name in ["store-redis-unix-login", "store-redis-database", "store-redis-sentinel-login"] {
        let policy = accepted(name);
        for shown in [format!("{policy:?}"), format!("{:?}", policy.settings())] {
            assert!(!shown.contains("s3cret"), "{shown}");
        }
    }
}

#[test]
fn how_nodes_agree_and_how_many_there_are_is_what_the_policy_says() {
    let policy = accepted("sync");
    let sync: Vec<SyncMode> = policy.rules().iter().map(tollgate_policy::Rule::sync).collect();
    assert_eq!(sync, [SyncMode::Leased, SyncMode::Leased, SyncMode::Strict, SyncMode::Strict]);
    assert_eq!((settings("nodes").nodes, settings("minimal").nodes), (Some(3), None));
    let shards = accepted("shards");
    let split: Vec<Option<(u16, &str)>> = shards
        .rules()
        .iter()
        .map(|rule| rule.shards().map(|shards| (shards.count(), shards.by().name())))
        .collect();
    assert_eq!(split[..2], [Some((10, "client_ip")); 2]);
    assert_eq!(split[2..], [Some((256, "user")), Some((2, "user")), Some((5, "user"))]);
    assert!(policy.rules().iter().all(|rule| rule.shards().is_none()));
}

#[test]
fn headers_can_be_switched_off() {
    assert!(settings("headers-off").headers.is_empty());
    assert!(settings("headers-off-in-a-list").headers.is_empty());
}

#[test]
fn descriptors_take_what_their_service_takes_from_its_environment() {
    let settings = |text: &str| {
        let descriptors = policy(&format!("limits: []\ndescriptors: {text}"));
        descriptors.settings().descriptors.clone().unwrap()
    };
    let short = settings("./envoy/");
    assert_eq!(short, settings("{ path: ./envoy/ }"));
    assert!(!(short.shadow || short.quota || short.merge_domains || short.dynamic_metadata));
    assert_eq!(short.charging, Charging::Every);
    let long = settings(
        "{ path: e, shadow: true, quota: true, merge_domains: true, response_headers: true, \
         dynamic_metadata: true, charging: unless_over }",
    );
    assert!(long.shadow && long.quota && long.merge_domains && long.dynamic_metadata);
    assert_eq!(long.response_headers, Some(ResponseHeaders::default()));
    assert_eq!(long.charging, Charging::UnlessOver);
    let named = settings("{ path: e, response_headers: [a, b, c], charging: all_or_nothing }");
    let [limit, remaining, reset] = ["a", "b", "c"].map(str::to_owned);
    assert_eq!(named.response_headers, Some(ResponseHeaders { limit, remaining, reset }));
    assert_eq!(named.charging, Charging::AllOrNothing);
    assert_eq!(settings("{ path: e, response_headers: false }").response_headers, None);
}

#[test]
fn how_proxies_say_for_whom_they_ask_is_what_the_policy_says() {
    let client_ip = settings("client-ip-forwarded").client_ip;
    assert_eq!((client_ip.header, client_ip.proxy_protocol), (ForwardedIn::Forwarded, true));
    assert_eq!((client_ip.trusted_proxies.len(), client_ip.ipv6_prefix), (1, 64));
    let words = "client_ip: { header: x-forwarded-for, proxy_protocol: off }\nlimits: []";
    assert_eq!(policy(words).settings().client_ip, ClientIp::default());
}

#[test]
fn every_field_of_the_gateway_means_what_it_says() {
    let gateway = settings("gateway").gateway;
    assert_eq!(gateway.connect_timeout, Micros::from_millis(500));
    assert_eq!(gateway.headers_timeout, Micros::from_secs(10));
    assert_eq!(gateway.idle_timeout, None);
    assert_eq!(gateway.total_timeout, Some(Micros::from_secs(300)));
    assert_eq!((gateway.max_held, gateway.request_id.as_deref()), (500, Some("x-trace-id")));
    let words = "gateway: { connect_timeout: 1s, headers_timeout: 30s, idle_timeout: 60s, \
                 total_timeout: off, max_held: 10000, request_id: x-request-id }\nlimits: []";
    assert_eq!(policy(words).settings().gateway, Gateway::default());
    let off = policy("gateway: { request_id: off }\nlimits: []");
    assert_eq!(off.settings().gateway.request_id, None);
    assert_eq!(settings("upstream-alone").gateway.ca.as_deref(), Some("ca.pem"));
}

#[test]
fn what_is_observed_is_said_in_short_or_at_length() {
    let long = settings("observe").observe;
    assert_eq!((long.keys, long.tenants), (ShownKeys::Hashed, true));
    let audit = long.audit.unwrap();
    assert_eq!((audit.file.as_str(), audit.sample), ("log/audit.jsonl", 5_000));
    assert_eq!(audit.rate, Quota::per_minute(1_000));
    let otlp = long.otlp.unwrap();
    assert_eq!(otlp.endpoint, "https://[2001:db8::1]:4318/otlp");
    assert_eq!((otlp.interval, otlp.traces), (Micros::from_secs(3_600), 10_000));

    let short = settings("observe-short").observe;
    assert_eq!((short.keys, short.tenants), (ShownKeys::Plain, false));
    assert_eq!(short.audit, Some(Audit::into_file("audit.jsonl".to_owned())));
    assert_eq!(short.otlp, Some(Otlp::to("http://127.0.0.1:4318".to_owned())));
    let words = "observe: { keys: plain, tenants: false, \
                 audit: { file: audit.jsonl, sample: 100%, rate: 100/second }, \
                 otlp: { endpoint: http://127.0.0.1:4318, interval: 10s, traces: 0% } }\nlimits: []";
    assert_eq!(policy(words).settings().observe, short, "as the defaults are documented");
    assert_eq!(settings("minimal").observe, Observe::default());
}

#[test]
fn a_gateway_is_opened_where_listen_says_or_on_loopback_and_only_in_front_of_something() {
    let check = |text: &str, expected: Option<&str>| {
        let listener = policy(&format!("{text}\nlimits: []")).settings().gateway_listener();
        let address = listener.map(|listener| listener.address.to_string());
        assert_eq!(address.as_deref(), expected, "{text}");
    };
    check("", None);
    check("upstream: http://127.0.0.1:3000", Some("127.0.0.1:8000"));
    check("listen: {}\nupstream: http://127.0.0.1:3000", None);
    check("listen: { gateway: 10.0.0.1:80 }", None);
    check("listen: { gateway: 10.0.0.1:80 }\nupstream: http://127.0.0.1:3000", Some("10.0.0.1:80"));
}

#[test]
fn a_file_that_cannot_be_used_is_a_mistake_wherever_it_is_named_and_once() {
    let text = "\
listen:
  http: { address: 127.0.0.1:8080, token_file: token }
  admin: { address: 127.0.0.1:8082, token_file: token }
limits: []
";
    let unusable = ("token".to_owned(), "holds no token".to_owned());
    let mut tried = |_: &Settings| vec![unusable.clone(), unusable.clone()];
    let no_files = &mut |_: &str| Err(String::new());
    let mistakes = Policy::parse_trying("p.yaml", text, no_files, &mut tried).unwrap_err();
    let told: Vec<String> = mistakes.iter().map(ToString::to_string).collect();
    assert_eq!(told.len(), 2, "{told:?}");
    assert!(
        told[0].starts_with("p.yaml:2:48: listen.http: \"token\" holds no token\n"),
        "{told:?}"
    );
    assert!(told[1].starts_with("p.yaml:3:49: listen.admin: \"token\" holds"), "{told:?}");
}
