//! Slots of concurrency limits: back when the work ends, however it ends, and once.

use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex};

use crate::gateway::Gateway;
use crate::gateway::client::Client;
use crate::gateway::hostile::h2_floods::resets;
use crate::gateway::hostile::wire::{Outcome, Wire, plain, request};
use crate::gateway::upstream::{Exchange, Upstream};
use crate::grpc::frames::{END_STREAM, reset};
use crate::server::eventually;

/// A gateway where two requests may be at work, one of which is until the end.
struct House {
    /// Before the gateway, which would wait for it.
    _holder: Client,
    gateway: Gateway,
    /// Lets those go that are held.
    release: Sender<()>,
}

const TWO: &str = "limits: [{name: slots, per: [client_ip], concurrency: 2}]";

impl House {
    fn new(settings: &str) -> Self {
        let (release, held) = mpsc::channel();
        let held = Arc::new(Mutex::new(held));
        let upstream = Upstream::start(move |exchange| play(exchange, &held));
        let gateway = Gateway::around(upstream, &format!("{settings}\n{TWO}"));
        let mut holder = gateway.connect();
        holder.send(get("/hold"));
        assert_eq!(holder.head().expect("it begins").0, 200);
        Self { _holder: holder, gateway, release }
    }

    /// The other slot is back, once: one request more is let in, and no two.
    fn check(&self, what: &str) {
        eventually(what, || self.gateway.ask("GET /quick").status == 200);
        let mut one = self.gateway.connect();
        one.send(get("/hold"));
        assert_eq!(one.head().expect("it begins").0, 200, "{what}: there is room for one");
        for _ in 0..2 {
            assert_eq!(self.gateway.ask("GET /quick").status, 429, "{what}: there is for no more");
        }
        drop(one);
        eventually(what, || self.gateway.ask("GET /quick").status == 200);
    }
}

fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n")
}

/// What becomes of a request, by its path.
fn play(exchange: &mut Exchange, held: &Mutex<Receiver<()>>) {
    exchange.body();
    match &*exchange.request.target.clone() {
        // The response begins, and goes on until the client leaves or it is let go.
        "/hold" => {
            exchange.send("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\nx\r\n");
            exchange.wait_for_end();
        }
        "/release" => {
            let _ = held.lock().expect("no panic").recv();
            exchange.answer(200, "late");
        }
        "/silent" => exchange.wait_for_end(),
        "/half" => {
            exchange.send("HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf");
            exchange.close();
        }
        "/drop" => exchange.close(),
        "/nonsense" => {
            exchange.send("nonsense\r\n\r\n");
            exchange.close();
        }
        _ => exchange.answer(200, "ok"),
    }
}

/// Waits until the server has got a request for this path.
fn wait_for(gateway: &Gateway, path: &str) {
    gateway.upstream.wait(path, |log| log.requests.iter().any(|it| it.target == path));
}

#[test]
fn a_slot_is_back_when_the_response_has_ended() {
    let house = House::new("");
    house.check("nothing happened yet");
    let mut client = house.gateway.connect();
    for _ in 0..3 {
        client.send(get("/quick"));
        assert_eq!(client.answer().status, 200);
    }
    house.check("responses came to their end on a connection that stays open");
    client.send(get("/release"));
    wait_for(&house.gateway, "/release");
    assert_eq!(house.gateway.ask("GET /quick").status, 429, "it is not back before");
    house.release.send(()).unwrap();
    assert_eq!(client.answer().text(), "late");
    house.check("a response came late");
}

#[test]
fn a_slot_is_back_when_the_client_leaves() {
    let house = House::new("");
    let mut client = house.gateway.connect();
    client.send(get("/hold"));
    assert_eq!(client.head().unwrap().0, 200);
    drop(client);
    house.check("a client left in the middle of its response");
    let mut client = house.gateway.connect();
    client.send(get("/silent"));
    wait_for(&house.gateway, "/silent");
    drop(client);
    house.check("a client left before its response began");
    let mut client = house.gateway.connect();
    client.send("POST /upload HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\nhalf");
    wait_for(&house.gateway, "/upload");
    drop(client);
    house.check("a client left in the middle of its request");
}

#[test]
fn a_slot_is_back_when_a_client_leaves_that_has_sent_more_than_its_request() {
    // Nobody comes to an end by waiting.
    let house = House::new("gateway: {headers_timeout: 1h, idle_timeout: off}");
    let upload = "POST /silent HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello".to_owned();
    for request in [get("/silent"), get("/hold"), upload] {
        for more in ["G", "\r\n", &get("/quick").repeat(9)] {
            house.gateway.upstream.take_requests();
            let mut client = house.gateway.connect();
            client.send(format!("{request}{more}"));
            house.gateway.upstream.wait("it is at work", |log| !log.requests.is_empty());
            drop(client);
            house.check(&format!("a client left behind {more:?}"));
        }
    }
}

#[test]
fn a_slot_is_back_when_the_server_fails() {
    let house = House::new("");
    let mut client = house.gateway.connect();
    client.send(get("/half"));
    assert_eq!(client.head().unwrap().0, 200);
    assert_eq!(client.rest(), b"half");
    house.check("a server broke off");
    assert_eq!(house.gateway.ask("POST /drop").status, 502);
    house.check("a server did not answer");
    assert_eq!(house.gateway.ask("POST /nonsense").status, 502);
    house.check("a server answered nonsense");
    let bad = "POST /bad HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n";
    let mut client = house.gateway.connect();
    client.send(bad);
    assert_eq!(client.answer().status, 400);
    house.check("a request had no body that can be read");
}

#[test]
fn a_slot_is_back_when_time_is_up() {
    let house = House::new("gateway: {headers_timeout: 1s}");
    assert_eq!(house.gateway.ask("GET /silent").status, 504);
    house.check("a server did not answer in time");
}

#[test]
fn a_slot_is_back_when_a_stream_is_reset_or_its_connection_ends() {
    let house = House::new("");
    let mut wire = Wire::open(&house.gateway);
    wire.client.send(request(1, &plain("GET", "/hold"), END_STREAM));
    assert_eq!(wire.outcome(1), Outcome::Passed);
    wire.client.send(reset(1));
    house.check("a stream was reset in the middle of its response");
    wire.client.send(request(3, &plain("GET", "/silent"), END_STREAM));
    wait_for(&house.gateway, "/silent");
    wire.client.send(reset(3));
    house.check("a stream was reset before its response began");
    wire.client.send(request(5, &plain("GET", "/quick"), END_STREAM));
    assert_eq!(wire.outcome(5), Outcome::Passed);
    house.check("a response came to its end");
    wire.client.send(request(7, &plain("GET", "/hold"), END_STREAM));
    assert_eq!(wire.outcome(7), Outcome::Passed);
    drop(wire);
    house.check("a connection ended in the middle of a response");
}

#[test]
fn a_slot_is_back_when_a_response_stalls_or_takes_too_long() {
    for (settings, silent) in [("idle_timeout: 500ms", None), ("total_timeout: 500ms", Some(504))] {
        let upstream = Upstream::start(|exchange| play(exchange, &Mutex::new(mpsc::channel().1)));
        let policy = format!("gateway: {{{settings}}}\nlimits: [{{name: slots, concurrency: 1}}]");
        let gateway = Gateway::around(upstream, &policy);
        let mut client = gateway.connect();
        client.send(get("/hold"));
        assert_eq!(client.head().unwrap().0, 200);
        client.rest();
        eventually(settings, || gateway.ask("GET /quick").status == 200);
        if let Some(status) = silent {
            assert_eq!(gateway.ask("GET /silent").status, status);
            eventually(settings, || gateway.ask("GET /quick").status == 200);
        }
    }
}

#[test]
fn slots_are_back_after_a_flood_of_requests_that_are_reset() {
    let house = House::new("");
    let mut wire = Wire::open(&house.gateway);
    let _ = resets(2_000).all(|both| wire.client.try_send(both));
    house.check("requests were reset at once");
    drop(wire);
    house.check("their connection ended");
}

/// Whether a connection is let in.
fn is_let_in(client: &mut Client) -> bool {
    client.try_send(get("/")) && client.next().is_some_and(|answer| answer.status == 200)
}

#[test]
fn connections_are_let_in_so_many_at_a_time() {
    let gateway = Gateway::start(
        "limits: [{name: a, when: {layer: connection}, per: [client_ip], concurrency: 2}]",
    );
    let mut clients = [gateway.connect(), gateway.connect()];
    assert!(clients.iter_mut().all(is_let_in));
    for _ in 0..3 {
        assert!(!is_let_in(&mut gateway.connect()), "there are two");
    }
    let [first, mut second] = clients;
    drop(first);
    let mut third = None;
    eventually("one made room", || {
        let mut client = gateway.connect();
        let is_in = is_let_in(&mut client);
        third = is_in.then_some(client);
        is_in
    });
    assert!(!is_let_in(&mut gateway.connect()), "and for no more");
    assert!(is_let_in(&mut second), "who is in is not asked again");
}

#[test]
fn connections_are_let_in_so_many_in_a_time() {
    let gateway = Gateway::start(
        "limits: [{name: a, when: {layer: connection}, per: [client_ip], rate: 3/hour, algorithm: sliding_log}]",
    );
    let let_in = (0..10).filter(|_| is_let_in(&mut gateway.connect())).count();
    assert_eq!(let_in, 3);
    assert_eq!(gateway.upstream.requests().len(), 3);
}

#[test]
fn a_connection_is_that_of_whom_its_proxy_speaks_for() {
    let gateway = Gateway::start(
        "client_ip: {trusted_proxies: [127.0.0.1], proxy_protocol: on}
limits: [{name: a, when: {layer: connection}, per: [client_ip], concurrency: 1}]",
    );
    let connect = |source: &str| {
        let mut client = gateway.connect();
        let header = format!("PROXY TCP4 {source} 10.0.0.1 5000 80\r\n");
        client.send(header);
        is_let_in(&mut client).then_some(client)
    };
    let first = connect("203.0.113.7");
    assert!(first.is_some());
    assert!(connect("203.0.113.7").is_none(), "it has one");
    assert!(connect("203.0.113.8").is_some(), "another client of the same proxy");
    drop(first);
    eventually("it made room", || connect("203.0.113.7").is_some());
}
