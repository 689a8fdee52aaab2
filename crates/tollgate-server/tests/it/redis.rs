//! The doors of servers whose states are in Redis.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;
use tollgate_harness::{Flavour, Proxy, Server, free_port};
use tollgate_server::Door;

use crate::grpc::client::{client, request, stop};
use crate::server::{Answer, Running, eventually, with_doors};

const DESCRIPTORS: &str = "
domain: shop
descriptors:
  - { key: user, rate_limit: { unit: day, requests_per_unit: 2 } }
  - { key: path, rate_limit: { unit: day, requests_per_unit: 9 } }
";

/// A server that keeps its states at `url`, and is there.
fn start(url: &str) -> Running {
    // The deadline is for machines that are busy with other tests.
    start_within(url, "10s")
}

/// The same with another deadline.
fn start_within(url: &str, timeout: &str) -> Running {
    // Refusals are for those whose store is not reached yet.
    let policy = format!(
        "store: {{ redis: {{ url: '{url}', timeout: {timeout} }} }}
limits:
  - {{ name: api, per: [user], rate: 5/day, algorithm: fixed_window, on_store_failure: deny }}
  - {{ name: login, when: {{ path: /login }}, per: [client_ip], rate: 1/day, on_store_failure: deny }}
  - {{ name: jobs, per: [worker], concurrency: 1, on_store_failure: deny }}
descriptors: ./envoy/"
    );
    let policy = with_doors(&["http", "grpc", "resp", "admin"], &policy);
    let running = Running::with_files(&policy, &[("envoy/shop.yaml", DESCRIPTORS)]);
    eventually("Redis is reached", || {
        running.ask(Door::Http, "GET /v1/check?user=nobody&cost=0", "").status == 200
    });
    running
}

fn left(running: &Running, user: &str) -> (u16, Value) {
    let answer = running.ask(Door::Http, &format!("GET /v1/check?user={user}"), "");
    (answer.status, answer.json()["limits"][0]["remaining"].clone())
}

/// What is read before the connection is silent, of which the length is known.
fn expect(stream: &mut TcpStream, expected: &str) {
    let mut read = vec![0; expected.len()];
    stream.read_exact(&mut read).expect("replies");
    assert_eq!(str::from_utf8(&read).expect("text"), expected);
}

#[test]
fn servers_that_share_a_redis_share_what_is_counted() {
    for flavour in [Flavour::Redis, Flavour::Valkey] {
        let redis = Server::start(flavour);
        let servers = [start(&redis.url()), start(&redis.url())];
        for used in 0..5 {
            assert_eq!(left(&servers[used % 2], "42"), (200, json!(4 - used)), "{flavour:?}");
        }
        for server in &servers {
            assert_eq!(left(server, "42"), (429, json!(0)), "{flavour:?}");
        }
    }
}

#[test]
fn every_door_counts_in_the_same_place() {
    let redis = Server::start(Flavour::Redis);
    let running = start(&redis.url());
    assert_eq!(left(&running, "42"), (200, json!(4)));
    let mut stream = running.connect(Door::Resp);
    stream.write_all(b"TG.CHECK user 42\r\n").unwrap();
    expect(&mut stream, "*7\r\n:1\r\n:5\r\n:3\r\n:-1\r\n");
    let two = json!([{"attributes": {"user": "42"}}, {"attributes": {"user": "42"}, "cost": 2}]);
    let answer = running.ask(Door::Http, "POST /v1/check/batch", &two.to_string());
    let answers = answer.json();
    let remaining = |index: usize| answers[index]["limits"][0]["remaining"].clone();
    assert_eq!([remaining(0), remaining(1)], [json!(2), json!(0)], "{answers}");
    assert_eq!(left(&running, "42"), (429, json!(0)));
    let login = "GET /v1/forward-auth\nX-Forwarded-Method: GET\nX-Forwarded-Uri: /login\n\
                 X-Forwarded-Host: shop.example\nX-Forwarded-For: 203.0.113.7";
    let statuses = [(); 2].map(|()| running.ask(Door::Http, login, "").status);
    assert_eq!(statuses, [200, 429]);
}

#[test]
fn a_slot_in_redis_is_held_until_it_is_released() {
    let redis = Server::start(Flavour::Redis);
    let servers = [start(&redis.url()), start(&redis.url())];
    let check = |server: &Running| server.ask(Door::Http, "GET /v1/check?worker=7", "");
    let held = check(&servers[0]);
    let lease = json!({ "lease": held.json()["lease"] }).to_string();
    assert_eq!((held.status, check(&servers[1]).status), (200, 429));
    let tell = |what: &str| servers[0].ask(Door::Http, &format!("POST /v1/{what}"), &lease).status;
    assert_eq!((tell("renew"), tell("release")), (200, 200));
    assert_eq!((tell("renew"), tell("release")), (404, 404));
    // Another server may have been told that it is refused, and believes it for a second.
    eventually("the slot is free", || check(&servers[1]).status == 200);
}

#[tokio::test]
async fn calls_of_envoy_are_counted_in_redis_by_grpc_and_json_alike() {
    let redis = Server::start(Flavour::Redis);
    let running = start(&redis.url());
    let entry = |key: &str| json!({"entries": [{"key": key, "value": "x"}]});
    let call = json!({"domain": "shop", "descriptors": [entry("user"), entry("path")]});
    let client = client(&running).await;
    let mut told = Vec::new();
    for _ in 0..2 {
        let over_grpc = client.should_rate_limit(request(&call)).await.response();
        let over_json = running.ask(Door::Http, "POST /json", &call.to_string()).json();
        told.extend([over_grpc, over_json]);
    }
    let codes: Vec<&str> = told.iter().map(|it| it["overallCode"].as_str().unwrap()).collect();
    assert_eq!(codes, ["OK", "OK", "OVER_LIMIT", "OVER_LIMIT"]);
    let left = |index: usize| told[index]["statuses"][1]["limitRemaining"].clone();
    assert_eq!([0, 1, 2, 3].map(left), [json!(8), json!(7), json!(6), json!(5)]);
    stop(running).await;
}

#[tokio::test]
async fn a_pipeline_is_asked_as_a_whole_and_answered_in_order() {
    let redis = Server::start(Flavour::Redis);
    let proxy = Proxy::start(redis.address());
    let running = start(&proxy.url());
    let delay = Duration::from_millis(100);
    proxy.delay_replies(delay);
    let mut asked = String::new();
    for number in 0..100 {
        let user = format!("u{number}");
        asked += &format!("TG.CHECK user {user}\r\nECHO {number:03}\r\nTG.CHECK\r\n");
        asked += &format!("CL.THROTTLE {user} 1 1 86400\r\nTG.CHECK user\r\n");
    }
    asked += "QUIT\r\n";
    let mut replies = String::new();
    let exchange = async {
        let mut stream = tokio::net::TcpStream::connect(running.address(Door::Resp)).await.unwrap();
        stream.write_all(asked.as_bytes()).await.unwrap();
        stream.read_to_string(&mut replies).await.unwrap();
    };
    timeout(50 * delay, exchange).await.expect("one after the other it would be 200 times as long");
    let told: Vec<&str> = replies.split_inclusive("\r\n").collect();
    let mut rest = &told[..];
    for number in 0..100 {
        // Seven integers and a name, an echo, seven of no limit, five of a bucket, a complaint.
        let (these, others) = rest.split_at(9 + 2 + 9 + 6 + 1);
        assert_eq!(these[..4], ["*7\r\n", ":1\r\n", ":5\r\n", ":4\r\n"], "{number}");
        assert_eq!(these[6..8], ["$3\r\n", "api\r\n"]);
        assert_eq!(these[9..11].concat(), format!("$3\r\n{number:03}\r\n"));
        assert_eq!(these[17..19].concat(), "$6\r\n(none)\r\n");
        assert_eq!(these[20..24], ["*5\r\n", ":0\r\n", ":2\r\n", ":1\r\n"]);
        assert!(these[26].starts_with("-ERR "), "{}", these[26]);
        rest = others;
    }
    assert_eq!(rest, ["+OK\r\n"]);
    stop(running).await;
}

#[test]
fn who_waits_for_redis_holds_nobody_else_up() {
    let redis = Server::start(Flavour::Redis);
    let proxy = Proxy::start(redis.address());
    let running = start(&proxy.url());
    proxy.hang();
    let mut waiting: Vec<TcpStream> = (0..8)
        .map(|_| {
            let mut stream = running.connect(Door::Resp);
            stream.write_all(b"PING\r\nTG.CHECK user 42\r\n").unwrap();
            stream
        })
        .collect();
    for _ in 0..10 {
        let mut other = running.connect(Door::Resp);
        other.write_all(b"PING\r\n").unwrap();
        expect(&mut other, "+PONG\r\n");
        assert_eq!(running.ask(Door::Http, "GET /openapi.json", "").status, 200);
    }
    proxy.heal();
    for stream in &mut waiting {
        expect(stream, "+PONG\r\n*7\r\n:");
    }
}

#[test]
fn a_server_whose_redis_is_absent_starts_and_settles_each_limit_as_it_says() {
    let policy = format!(
        "store: redis://127.0.0.1:{}
limits:
  - {{ name: open, per: [open], rate: 1/day, on_store_failure: allow }}
  - {{ name: shut, per: [shut], rate: 1/day, on_store_failure: deny }}
  - {{ name: own, per: [own], rate: 1/day, on_store_failure: local }}",
        free_port()
    );
    let running = Running::start(&["http"], &policy);
    let statuses = |name: &str| {
        let ask = || running.ask(Door::Http, &format!("GET /v1/check?{name}=1"), "").status;
        [ask(), ask()]
    };
    assert_eq!(statuses("open"), [200, 200]);
    assert_eq!(statuses("shut"), [503, 503]);
    assert_eq!(statuses("own"), [200, 429]);
}

fn admin(running: &Running, head: &str, body: &str) -> Answer {
    running.ask(Door::Admin, head, body)
}

/// The rate that a user is allowed.
fn rate_of(running: &Running, user: &str) -> Value {
    admin(running, &format!("GET /v1/keys/api:{user}"), "").json()["limits"][0]["rate"].clone()
}

fn put(running: &Running, user: &str, rate: &str) -> Answer {
    let body = json!({ "rate": rate }).to_string();
    admin(running, &format!("PUT /v1/overrides/api:{user}"), &body)
}

/// The overrides that a server knows of.
fn overrides(running: &Running) -> Vec<Value> {
    let told = admin(running, "GET /v1/overrides", "").json();
    told["overrides"].as_array().expect("a list").clone()
}

#[test]
fn overrides_that_redis_loses_are_put_again_by_who_knows_them() {
    for flavour in [Flavour::Redis, Flavour::Valkey] {
        let redis = Server::start(flavour);
        let servers = [start(&redis.url()), start(&redis.url())];
        assert_eq!(put(&servers[0], "anna", "7/day").status, 200);
        assert_eq!(put(&servers[0], "ben", "8/day").status, 200);
        // Not by asking for one of them, which is then heard of alone.
        eventually("the other knows", || overrides(&servers[1]).len() == 2);
        redis.command(&["FLUSHALL"]);
        // What is put after the loss is newer than what anybody knew.
        assert_eq!(put(&servers[1], "ben", "9/day").status, 200);
        eventually("it is there again", || {
            let kept = redis.command(&["HGET", "tollgate:{%}:%overrides", "api:anna"]);
            format!("{kept:?}").contains("7/day")
        });
        for server in &servers {
            eventually("both are in force", || {
                rate_of(server, "anna") == "7/day" && rate_of(server, "ben") == "9/day"
            });
        }
        let third = start(&redis.url());
        eventually("a newcomer hears of them", || {
            rate_of(&third, "anna") == "7/day" && rate_of(&third, "ben") == "9/day"
        });
    }
}

#[test]
fn bans_that_are_lifted_one_after_the_other_stay_lifted() {
    const BANS: usize = 400;
    let redis = Server::start(Flavour::Redis);
    let servers = [start(&redis.url()), start(&redis.url())];
    let path = |number: usize| format!("/v1/overrides/api:{number}");
    for number in 0..BANS {
        let banned = admin(&servers[0], &format!("PUT {}", path(number)), r#"{"ban": true}"#);
        assert_eq!(banned.status, 200, "{}", banned.body);
    }
    eventually("the other knows", || overrides(&servers[1]).len() == BANS);
    // For a while, so that nodes hear of some of it, and read more than they heard of.
    for number in 0..BANS {
        let lifted = admin(&servers[0], &format!("DELETE {}", path(number)), "");
        assert_eq!(lifted.status, 200, "{number}: {}", lifted.body);
    }
    let kept = || redis.command(&["ZCARD", "tollgate:{%}:%override-ends"]).integer();
    assert_eq!(kept(), 0);
    for server in &servers {
        eventually("both know", || overrides(server).is_empty());
    }
    assert_eq!(put(&servers[0], "last", "7/day").status, 200);
    for server in &servers {
        eventually("both know the last", || rate_of(server, "last") == "7/day");
        assert_eq!(overrides(server).len(), 1, "{:?}", overrides(server));
    }
    assert_eq!(kept(), 1);
    let restored = redis.command(&["HEXISTS", "tollgate:{%}:%overrides", "%restored"]);
    assert_eq!(restored.integer(), 0, "nobody believes that any were lost");
}

#[test]
fn a_ban_is_seen_and_lifted_through_another_node_as_soon_as_it_is_put() {
    let redis = Server::start(Flavour::Redis);
    let servers = [start(&redis.url()), start(&redis.url())];
    for number in 0..10 {
        let [here, there] = [0, 1].map(|turn: usize| &servers[(number + turn) % 2]);
        let banned = admin(here, "PUT /v1/overrides/api:anna", r#"{"ban": true}"#);
        assert_eq!(banned.status, 200, "{}", banned.body);
        let seen = admin(there, "GET /v1/keys/api:anna", "").json();
        assert_eq!(seen["override"], json!({"ban": true}), "{seen}");
        let lifted = admin(there, "DELETE /v1/overrides/api:anna", "");
        assert_eq!(lifted.status, 200, "{}", lifted.body);
        let kept = redis.command(&["HEXISTS", "tollgate:{%}:%overrides", "api:anna"]);
        assert_eq!(kept.integer(), 0);
    }
}

#[test]
fn an_override_that_may_have_been_put_is_not_said_to_be_unchanged() {
    let redis = Server::start(Flavour::Redis);
    let proxy = Proxy::start(redis.address());
    let running = start_within(&proxy.url(), "1s");
    let detail = |answer: &Answer| answer.json()["detail"].as_str().unwrap_or_default().to_owned();
    proxy.drop_replies();
    let unknown = put(&running, "anna", "7/day");
    assert_eq!(unknown.status, 503, "{}", unknown.body);
    assert!(detail(&unknown).contains("may have been changed"), "{}", unknown.body);
    proxy.refuse();
    eventually("Redis is known to be away", || {
        detail(&put(&running, "anna", "7/day")).contains("nothing was changed")
    });
    proxy.heal();
    eventually("it can be put", || put(&running, "anna", "7/day").status == 200);
}

#[test]
fn what_nobody_can_tell_while_redis_is_away_is_not_made_up() {
    let redis = Server::start(Flavour::Redis);
    let proxy = Proxy::start(redis.address());
    let running = start_within(&proxy.url(), "1s");
    assert_eq!(left(&running, "42"), (200, json!(4)));
    let held = running.ask(Door::Http, "GET /v1/check?worker=7", "");
    let lease = json!({ "lease": held.json()["lease"] }).to_string();
    proxy.refuse();
    proxy.cut();
    let look = || admin(&running, "GET /v1/keys/api:42", "");
    eventually("Redis is away", || look().status != 200);
    assert_eq!(look().status, 503, "not what this node counts meanwhile");
    let store = admin(&running, "GET /v1/policy", "").json()["store"].clone();
    assert_eq!(store["servers"][0]["is_well"], false, "{store}");
    assert_eq!(store["servers"][0]["address"], proxy.address().to_string(), "{store}");
    assert!(store["settled_without"].as_u64() > Some(0), "{store}");
    let reset = admin(&running, "DELETE /v1/keys/api:42", "");
    assert_eq!(reset.status, 503, "{}", reset.body);
    let tell = |what: &str| running.ask(Door::Http, &format!("POST /v1/{what}"), &lease);
    let (renewed, released) = (tell("renew"), tell("release"));
    assert_eq!((renewed.status, released.status), (503, 503), "{}", released.body);
    proxy.heal();
    eventually("Redis is back", || look().status == 200);
    let store = admin(&running, "GET /v1/policy", "").json()["store"].clone();
    assert_eq!(store["servers"][0]["is_well"], true, "{store}");
    assert_eq!(look().json()["limits"][0]["remaining"], 4, "what was consumed is known again");
    eventually("the slot is back", || {
        running.ask(Door::Http, "GET /v1/check?worker=7", "").status == 200
    });
}
