//! One server.

use std::net::TcpStream;

use tollgate_harness::{Client, Flavour, Reply, Server, Setup, eventually, write_command};

use crate::{is_there, text};

#[test]
fn both_flavours_are_of_the_versions_that_the_docs_name() {
    for (flavour, version) in [(Flavour::Redis, "7."), (Flavour::Valkey, "9.1.")] {
        let server = Server::start(flavour);
        assert!(server.version().starts_with(version), "{flavour:?} is {}", server.version());
    }
}

#[test]
fn a_server_answers_and_is_gone_when_dropped() {
    for flavour in Flavour::ALL {
        let server = Server::start(flavour);
        server.command(&["SET", "key", "value"]).ok();
        assert_eq!(server.command(&["GET", "key"]), text("value"));
        assert_eq!(server.command(&["GET", "other"]), Reply::Nil);
        assert_eq!(
            server.command(&["MGET", "key", "b"]),
            Reply::List(vec![text("value"), Reply::Nil])
        );
        assert!(server.command(&["NONSENSE"]).error().starts_with("ERR unknown command"));
        assert_eq!(server.url(), format!("redis://127.0.0.1:{}", server.port()));
        let mut tcp = Client::tcp(server.address()).unwrap();
        assert_eq!(tcp.command(&["GET", "key"]), text("value"));
        let (id, folder, address) =
            (server.process_id(), server.folder().to_owned(), server.address());
        assert!(is_there(id) && folder.exists());
        drop(server);
        assert!(!is_there(id) && !folder.exists());
        assert!(TcpStream::connect(address).is_err());
    }
}

#[test]
fn a_server_of_a_test_that_panics_is_gone_too() {
    let (sender, receiver) = std::sync::mpsc::channel();
    let test = std::thread::spawn(move || {
        let server = Server::start(Flavour::Redis);
        sender.send(server.process_id()).unwrap();
        panic!("as a failed assertion does");
    });
    assert!(test.join().is_err());
    assert!(!is_there(receiver.recv().unwrap()));
}

#[test]
fn a_stopped_server_takes_connections_and_answers_when_it_goes_on() {
    for flavour in Flavour::ALL {
        let server = Server::start(flavour);
        server.stop();
        let mut client = Client::tcp(server.address()).unwrap();
        let mut ping = Vec::new();
        write_command(&mut ping, &["PING"]);
        client.send(&ping);
        server.cont();
        assert_eq!(client.receive(), text("PONG"));
    }
}

#[test]
fn a_killed_server_comes_back_at_its_port_with_what_it_saved() {
    for flavour in Flavour::ALL {
        let server = Setup::new(flavour).line("appendonly yes").line("appendfsync always").start();
        let port = server.port();
        server.command(&["SET", "key", "value"]).ok();
        server.kill();
        assert!(server.try_command(&["PING"]).is_err());
        assert!(TcpStream::connect(server.address()).is_err());
        server.restart();
        assert_eq!(server.port(), port);
        eventually("it has loaded", || {
            (server.command(&["GET", "key"]) == text("value")).then_some(())
        });
        Client::tcp(server.address()).unwrap();
    }
}

#[test]
fn a_password_is_asked_for() {
    for flavour in Flavour::ALL {
        let server = Setup::new(flavour).password("secret").start();
        assert_eq!(server.url(), format!("redis://:secret@127.0.0.1:{}", server.port()));
        assert_eq!(server.command(&["PING"]), text("PONG"));
        let mut stranger = Client::tcp(server.address()).unwrap();
        assert!(stranger.command(&["GET", "key"]).error().starts_with("NOAUTH"));
        stranger.command(&["AUTH", "secret"]).ok();
        assert_eq!(stranger.command(&["GET", "key"]), Reply::Nil);
    }
}

#[test]
fn users_may_do_what_their_list_says() {
    for flavour in Flavour::ALL {
        let users = "user default off\nuser anna on >secret ~tollgate:* +get +set";
        let server = Setup::new(flavour).users(users).start();
        server.command(&["SET", "other", "value"]).ok();
        let mut anna = Client::tcp(server.address()).unwrap();
        anna.command(&["AUTH", "anna", "secret"]).ok();
        anna.command(&["SET", "tollgate:a", "value"]).ok();
        assert!(anna.command(&["GET", "other"]).error().starts_with("NOPERM"));
    }
}

#[test]
fn lines_of_the_configuration_hold() {
    for flavour in Flavour::ALL {
        let server = Setup::new(flavour).line("maxmemory 1").line("databases 3").start();
        assert_eq!(server.command(&["CONFIG", "GET", "databases"]).list()[1], text("3"));
        assert!(server.command(&["SET", "key", "value"]).error().starts_with("OOM"));
    }
}

#[test]
fn a_server_with_tls_speaks_nothing_else_by_tcp() {
    let server = Setup::new(Flavour::Redis).tls().start();
    assert!(server.url().starts_with("rediss://127.0.0.1:"));
    let mut plain = Client::tcp(server.address()).unwrap();
    assert!(plain.try_command(&["PING"]).is_err());
    let certificates = server.certificates().unwrap();
    let asked = std::process::Command::new("redis-cli")
        .args(["--tls", "-h", "localhost", "-p", &server.port().to_string(), "--cacert"])
        .arg(&certificates.authority)
        .arg("--cert")
        .arg(&certificates.client)
        .arg("--key")
        .arg(&certificates.client_key)
        .arg("PING")
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&asked.stdout), "PONG\n", "{asked:?}");
}
