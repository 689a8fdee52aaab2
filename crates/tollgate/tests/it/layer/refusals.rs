//! Who is refused, as whom, and how it is told.

use std::net::IpAddr;

use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE, HOST};
use http::{Request, StatusCode, Version};
use http_body_util::Full;
use tollgate::http::{Peer, TollgateLayer};
use tollgate::{Clock, Limiter, MemoryStore};

use super::{Answer, Door, ONE_A_MINUTE, from, get};
use crate::{MIDNIGHT, parse_with};

type Sent = Request<Full<Bytes>>;

fn built(request: http::request::Builder) -> Sent {
    request.body(Full::default()).expect("a request")
}

fn from_peer(peer: &str) -> Sent {
    let mut request = get("/");
    let address: IpAddr = peer.parse().expect("an address");
    request.extensions_mut().insert(Peer((address, 80).into()));
    request
}

#[tokio::test]
async fn a_refusal_is_a_problem_document() {
    let door = Door::new(ONE_A_MINUTE);
    assert_eq!(door.get("/").await.status, StatusCode::OK);
    let answer = door.get("/").await;
    assert_eq!(answer.status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(answer.field("content-type"), "application/problem+json");
    assert_eq!(answer.json()["violated-policies"], serde_json::json!(["api"]));
    assert_eq!(answer.json()["status"], 429);
    let waits = [60, 78].map(|seconds| seconds * 1_000);
    let told: u64 = answer.field("retry-after-ms").parse().unwrap();
    assert!((waits[0]..=waits[1]).contains(&told), "{told}");
}

#[tokio::test]
async fn a_refusal_has_the_form_that_the_client_accepts() {
    let door = Door::new("limits: [{name: api, rate: 0/minute}]");
    let answer = door.ask(built(from("/").header(ACCEPT, "text/plain"))).await;
    assert_eq!(answer.field("content-type"), "text/plain; charset=utf-8");
    assert_eq!(answer.text, "the request costs more than limit \"api\" ever allows\n");
    let answer = door.ask(built(from("/%00").header(ACCEPT, "text/plain"))).await;
    assert_eq!(answer.field("content-type"), "text/plain; charset=utf-8");
    assert!(answer.text.starts_with("the path "), "{}", answer.text);
}

#[tokio::test]
async fn the_status_says_why() {
    let policy = "
        deny: [{client_ip: 192.0.2.1}]
        tenants: {from: header:x-api-key, file: tenants.yaml, unknown: refuse}
        limits: [{name: jobs, per: [tenant], rate: 10/minute, cost: {attribute: query:n}}]";
    let tenants = "keys: {secret: {tenant: acme}}";
    let store = MemoryStore::with_max_bytes(Clock::manual(MIDNIGHT), 1 << 20).unwrap();
    let limiter = std::sync::Arc::new(Limiter::new(parse_with(policy, tenants), store).unwrap());
    let layer = TollgateLayer::new(limiter);
    let ask = async |request| {
        super::send(&mut tower_layer::Layer::layer(&layer, super::Yes), request).await
    };
    let with_key = |path| built(from(path).header("x-api-key", "secret"));
    assert_eq!(ask(with_key("/")).await.status, StatusCode::OK);
    assert_eq!(ask(get("/")).await.status, StatusCode::UNAUTHORIZED);
    assert_eq!(ask(from_peer("192.0.2.1")).await.status, StatusCode::FORBIDDEN);
    assert_eq!(ask(with_key("/?n=x")).await.status, StatusCode::BAD_REQUEST);
    let too_much = ask(with_key("/?n=11")).await;
    assert_eq!(too_much.status, StatusCode::TOO_MANY_REQUESTS);
    assert!(!too_much.headers.contains_key("retry-after"), "no wait helps");
}

#[tokio::test]
async fn what_cannot_be_counted_and_must_be_is_our_own_trouble() {
    let policy = "limits: [{name: api, per: [client_ip], rate: 1/day, algorithm: fixed_window, \
                  on_store_failure: deny}]";
    let door = Door::of_size(policy, 64 << 10);
    let mut last = StatusCode::OK;
    for address in 0..20_000u32 {
        let address = IpAddr::from((address + (10 << 24)).to_be_bytes());
        last = door.ask(from_peer(&address.to_string())).await.status;
        if last != StatusCode::OK {
            break;
        }
    }
    assert_eq!(last, StatusCode::SERVICE_UNAVAILABLE);
    let answer = door.ask(from_peer("192.0.2.1")).await;
    let kind = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity";
    assert_eq!(answer.json()["type"], kind);
    assert_eq!(answer.field("ratelimit-policy"), "\"api\";q=1;w=86400");
}

// Whose request it is.

#[tokio::test]
async fn a_request_is_counted_for_its_peer_and_its_own_word_is_not_believed() {
    let door = Door::new(ONE_A_MINUTE);
    let spoofed =
        |number: u32| built(from("/").header("x-forwarded-for", format!("10.0.0.{number}")));
    assert_eq!(door.ask(spoofed(1)).await.status, StatusCode::OK);
    assert_eq!(door.ask(spoofed(2)).await.status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(door.ask(from_peer("192.0.2.1")).await.status, StatusCode::OK);
    for mapped in ["::ffff:192.0.2.1", "::ffff:c000:201"] {
        assert_eq!(door.ask(from_peer(mapped)).await.status, StatusCode::TOO_MANY_REQUESTS);
    }
}

#[tokio::test]
async fn behind_a_trusted_proxy_a_request_is_counted_for_its_client() {
    let policy = format!("client_ip: {{trusted_proxies: [203.0.113.0/24]}}\n{ONE_A_MINUTE}");
    let door = Door::new(&policy);
    let via = |list: &str| built(from("/").header("x-forwarded-for", list));
    assert_eq!(door.ask(via("spoofed, 192.0.2.1")).await.status, StatusCode::OK);
    assert_eq!(door.ask(via("other, 192.0.2.1")).await.status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(door.ask(via("192.0.2.2, 203.0.113.9")).await.status, StatusCode::OK);
    assert_eq!(door.ask(via(&["192.0.2.3"; 65].join(","))).await.status, StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn a_trusted_proxy_is_believed_what_it_says_in_the_header_of_the_policy_only() {
    let trusted = "{trusted_proxies: [203.0.113.0/24], header: forwarded}";
    let door = Door::new(&format!("client_ip: {trusted}\n{ONE_A_MINUTE}"));
    let via = |said: &str, spoofed: &str| {
        built(from("/").header("forwarded", said).header("x-forwarded-for", spoofed))
    };
    let one = "for=spoofed, for=192.0.2.1;proto=https";
    assert_eq!(door.ask(via(one, "10.0.0.1")).await.status, StatusCode::OK);
    assert_eq!(door.ask(via(one, "10.0.0.2")).await.status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(door.ask(via("for=192.0.2.2", "10.0.0.3")).await.status, StatusCode::OK);
    let many = ["for=192.0.2.3"; 65].join(",");
    assert_eq!(door.ask(via(&many, "10.0.0.4")).await.status, StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn the_peer_is_looked_for_where_the_service_says() {
    #[derive(Clone)]
    struct Socket(IpAddr);
    let mut door = Door::new(ONE_A_MINUTE);
    door.layer = door.layer.peer(|parts| parts.extensions.get().map(|&Socket(address)| address));
    let mut request = get("/");
    assert_eq!(door.ask(request.clone()).await.status, StatusCode::INTERNAL_SERVER_ERROR);
    request.extensions_mut().insert(Socket([192, 0, 2, 1].into()));
    assert_eq!(door.ask(request.clone()).await.status, StatusCode::OK);
    assert_eq!(door.ask(request).await.status, StatusCode::TOO_MANY_REQUESTS);
}

#[tokio::test]
async fn nobody_asks_for_a_peer_that_no_limit_counts_by() {
    let door = Door::new("limits: [{name: api, per: [header:x-api-key], rate: 1/minute}]");
    let request = || built(Request::get("/").header(HOST, "example.com"));
    assert_eq!(door.ask(request()).await.status, StatusCode::OK);
    assert_eq!(
        door.ask(request()).await.status,
        StatusCode::TOO_MANY_REQUESTS,
        "all who leave the key out count as one"
    );
}

// What has more than one meaning.

#[tokio::test]
async fn a_request_that_can_be_understood_in_two_ways_is_refused() {
    let door = Door::new(
        "limits: [{name: api, when: {host: example.com}, per: [header:x-api-key], rate: 100/minute}]",
    );
    let no_host = || Request::get("/").extension(Peer(([192, 0, 2, 1], 80).into()));
    let cases = [
        ("no Host", no_host()),
        ("two Hosts", from("/").header(HOST, "example.com")),
        ("another Host", no_host().uri("http://example.com/").header(HOST, "example.org")),
        ("no text", no_host().header(HOST, &b"\xff"[..])),
        ("no host", no_host().header(HOST, "a b")),
        ("a key twice", from("/").header("x-api-key", "a").header("x-api-key", "b")),
        ("an encoded slash", from("/a%2fb")),
        ("an encoded backslash", from("/a%5cb")),
        ("a NUL", from("/a%00")),
        ("overlong", from("/a%c0%af")),
        ("CONNECT", no_host().method("CONNECT").uri("example.com:443")),
    ];
    for (name, request) in cases {
        let answer = door.ask(built(request)).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{name}");
        assert_eq!(answer.json()["status"], 400, "{name}: {}", answer.text);
    }
    for (name, request) in [
        ("agreed", no_host().uri("http://Example.com/").header(HOST, "example.com")),
        ("only :authority", no_host().uri("http://example.com/").version(Version::HTTP_2)),
        ("HTTP/1.0", no_host().version(Version::HTTP_10)),
        ("about the server", no_host().method("OPTIONS").uri("*").header(HOST, "example.com")),
    ] {
        assert_eq!(door.ask(built(request)).await.status, StatusCode::OK, "{name}");
    }
}

#[tokio::test]
async fn ways_to_write_a_path_or_a_method_share_one_budget() {
    let door =
        Door::new("limits: [{name: login, when: {method: POST, path: /login}, rate: 1/minute}]");
    let post = |path: &str| built(from(path).method("POST"));
    assert_eq!(door.ask(post("/login")).await.status, StatusCode::OK);
    for path in ["/%6cogin", "//login", "/./login", "/x/../login", "/login/", "/login;a=1"] {
        assert_eq!(door.ask(post(path)).await.status, StatusCode::TOO_MANY_REQUESTS, "{path}");
    }
    let in_small = built(from("/login").method("post"));
    assert_eq!(door.ask(in_small).await.status, StatusCode::TOO_MANY_REQUESTS);
}

// What the service knows.

#[tokio::test]
async fn the_service_adds_what_it_knows_of_a_request() {
    let mut door = Door::new("limits: [{name: api, per: [user], rate: 1/minute}]");
    door.layer = door.layer.attributes(|parts, added| {
        if let Some(user) = parts.headers.get("x-user") {
            added.add("user", user);
        }
    });
    let of = |user| built(from("/").header("x-user", user));
    assert_eq!(door.ask(of("ada")).await.status, StatusCode::OK);
    assert_eq!(door.ask(of("bob")).await.status, StatusCode::OK);
    assert_eq!(door.ask(of("ada")).await.status, StatusCode::TOO_MANY_REQUESTS);
}

#[tokio::test]
async fn what_the_service_adds_replaces_nothing_that_the_request_says() {
    let mut door = Door::new(
        "limits: [{name: api, when: {path: /a}, per: [client_ip, header:x-key], rate: 1/minute}]",
    );
    door.layer = door.layer.attributes(|parts, added| {
        added.add("path", "/b");
        added.add("client_ip", parts.uri.query().unwrap_or_default());
        added.add("header:x-key", parts.uri.query().unwrap_or_default());
    });
    let request = |path: &str| built(from(path).header("x-key", "k"));
    assert_eq!(door.ask(request("/a?1")).await.status, StatusCode::OK);
    assert_eq!(door.ask(request("/a?2")).await.status, StatusCode::TOO_MANY_REQUESTS);
}

// gRPC.

async fn grpc(door: &Door, path: &str) -> Answer {
    let request = from(path).method("POST").header(CONTENT_TYPE, "application/grpc+proto");
    door.ask(built(request)).await
}

#[tokio::test]
async fn a_call_of_grpc_is_refused_in_grpc() {
    let door = Door::new("limits: [{name: api, when: {path: /a}, rate: 0/minute}]");
    let answer = grpc(&door, "/a").await;
    assert_eq!((answer.status, answer.text.as_str()), (StatusCode::OK, ""));
    assert_eq!(answer.field("content-type"), "application/grpc");
    assert_eq!(answer.field("grpc-status"), "8");
    let message = "the request costs more than limit \"api\" ever allows";
    assert_eq!(answer.field("grpc-message"), message);
    assert!(answer.headers.contains_key("ratelimit-policy"));
    assert_eq!(grpc(&door, "/b").await.text, "yes", "others are the service's to answer");
    let json = built(from("/a").header(CONTENT_TYPE, "application/grpc-web"));
    assert_eq!(door.ask(json).await.status, StatusCode::TOO_MANY_REQUESTS);
}

#[tokio::test]
async fn a_message_of_grpc_is_printable_whatever_it_names() {
    let door = Door::new("limits: [{name: api, per: ['query:50%ü'], rate: 1/minute}]");
    let answer = grpc(&door, "/?50%25%C3%BC=1&50%25%c3%bc=2").await;
    assert_eq!(answer.field("grpc-status"), "3");
    let message = "the query parameter \"50%25%C3%BC\" is sent more than once";
    assert_eq!(answer.field("grpc-message"), message);
}

#[tokio::test]
async fn a_store_that_fails_is_unavailable_in_grpc() {
    let policy = "limits: [{name: api, per: [path], rate: 1/day, algorithm: fixed_window, \
                  on_store_failure: deny}]";
    let door = Door::of_size(policy, 64 << 10);
    for number in 0..20_000 {
        let answer = grpc(&door, &format!("/{number}")).await;
        if answer.field("grpc-status") == "14" {
            return;
        }
        assert_eq!(answer.text, "yes");
    }
    panic!("memory has no bound");
}
