//! What a network does.

use std::io::ErrorKind;
use std::time::Duration;

use tollgate_harness::{Client, Flavour, Proxy, Reply, Server, eventually, write_command};

use crate::text;

fn pair() -> (Server, Proxy, Client) {
    let server = Server::start(Flavour::Redis);
    let proxy = Proxy::start(server.address());
    let client = Client::tcp(proxy.address()).expect("the proxy listens");
    (server, proxy, client)
}

fn pong() -> Reply {
    text("PONG")
}

fn send(client: &mut Client, words: &[&str]) {
    let mut command = Vec::new();
    write_command(&mut command, words);
    client.send(&command);
}

/// How long something takes by the server's clock, which nothing here holds up.
fn micros(server: &Server, work: impl FnOnce()) -> i64 {
    let now = || {
        let time = server.command(&["TIME"]);
        let part = |place: usize| time.list()[place].text().parse::<i64>().expect("a number");
        part(0) * 1_000_000 + part(1)
    };
    let before = now();
    work();
    now() - before
}

#[test]
fn everything_goes_through_and_connections_are_counted() {
    let (server, proxy, mut client) = pair();
    let large = "x".repeat(1_000_000);
    client.command(&["SET", "key", &large]).ok();
    assert_eq!(client.command(&["GET", "key"]).text(), large);
    assert_eq!(proxy.url(), format!("redis://{}", proxy.address()));
    assert_eq!((proxy.dials(), proxy.open()), (1, 1));
    let other = Client::tcp(proxy.address()).unwrap();
    eventually("both are open", || (proxy.open() == 2).then_some(()));
    drop((client, other));
    eventually("both are gone", || (proxy.open() == 0).then_some(()));
    assert_eq!(proxy.dials(), 2);
    drop(server);
    let mut late = Client::tcp(proxy.address()).unwrap();
    assert!(late.try_command(&["PING"]).is_err(), "there is no server behind");
}

#[test]
fn a_delay_holds_in_its_direction_and_for_many_requests_at_once() {
    let (server, proxy, mut client) = pair();
    client.command(&["PING"]);
    let delay = Duration::from_millis(40);
    proxy.delay_replies(delay);
    let took = micros(&server, || {
        (0..50).for_each(|_| send(&mut client, &["INCR", "key"]));
        (1..=50).for_each(|count| assert_eq!(client.receive(), Reply::Integer(count)));
    });
    assert!(took >= 40_000, "{took} us");
    assert!(took < 50 * 40_000, "one by one it would be two seconds, and it was {took} us");
    proxy.delay_requests(delay);
    assert!(micros(&server, || assert_eq!(client.command(&["PING"]), pong())) >= 80_000);
    proxy.heal();
    assert_eq!(client.command(&["PING"]), pong());
}

#[test]
fn while_it_hangs_nothing_arrives_and_then_everything_does() {
    let (server, proxy, mut client) = pair();
    client.command(&["PING"]);
    proxy.hang();
    send(&mut client, &["SET", "key", "value"]);
    let mut second = Client::tcp(proxy.address()).unwrap();
    send(&mut second, &["PING"]);
    eventually("the second is open", || (proxy.open() == 2).then_some(()));
    assert_eq!(server.command(&["GET", "key"]), Reply::Nil);
    proxy.heal();
    client.receive().ok();
    assert_eq!(second.receive(), pong());
    assert_eq!(server.command(&["GET", "key"]).text(), "value");
}

#[test]
fn dropped_replies_never_come_though_the_commands_ran() {
    let (server, proxy, mut client) = pair();
    client.command(&["PING"]);
    proxy.drop_replies();
    send(&mut client, &["SET", "key", "1"]);
    eventually("it ran", || (server.command(&["GET", "key"]) != Reply::Nil).then_some(()));
    // Its reply has been dropped when a later one is seen to be.
    let seen = |server: &Server| server.command(&["STRLEN", "key"]).integer();
    eventually("another ran", || {
        send(&mut client, &["APPEND", "key", "1"]);
        (seen(&server) >= 50).then_some(())
    });
    proxy.cut();
    assert!(client.try_command(&["PING"]).is_err(), "nothing was answered");
    proxy.heal();
    assert_eq!(Client::tcp(proxy.address()).unwrap().command(&["PING"]), pong());
}

#[test]
fn a_cut_ends_what_is_open_and_nothing_else() {
    let (server, proxy, mut client) = pair();
    client.command(&["PING"]);
    proxy.cut();
    assert!(client.try_command(&["PING"]).is_err());
    assert_eq!(Client::tcp(proxy.address()).unwrap().command(&["PING"]), pong());
    eventually("the server sees the end of both", || {
        (server.info("connected_clients")? == "1").then_some(())
    });
}

#[test]
fn refused_connections_are_reset_and_counted() {
    let (_server, proxy, mut client) = pair();
    client.command(&["PING"]);
    proxy.refuse();
    for _ in 0..3 {
        // The connection is made before it is refused; which of the two sees it is a race.
        let refused = Client::tcp(proxy.address()).and_then(|mut it| it.try_command(&["PING"]));
        let kind = refused.unwrap_err().kind();
        assert!(matches!(kind, ErrorKind::ConnectionReset | ErrorKind::BrokenPipe), "{kind}");
    }
    assert_eq!((proxy.dials(), proxy.open()), (4, 1));
    assert_eq!(client.command(&["PING"]), pong(), "what is open stays open");
    proxy.heal();
    assert_eq!(Client::tcp(proxy.address()).unwrap().command(&["PING"]), pong());
}

#[test]
fn of_a_half_open_connection_only_the_server_sees_the_end() {
    let (server, proxy, mut client) = pair();
    client.command(&["PING"]);
    proxy.half_open();
    eventually("the server sees the end", || {
        (server.info("connected_clients")? == "1").then_some(())
    });
    (0..20).for_each(|_| send(&mut client, &["SET", "key", "value"]));
    assert_eq!(proxy.open(), 1, "the client is not told");
    assert_eq!(server.command(&["GET", "key"]), Reply::Nil);
    assert_eq!(Client::tcp(proxy.address()).unwrap().command(&["PING"]), pong());
    proxy.cut();
    assert!(client.try_command(&["PING"]).is_err());
}
