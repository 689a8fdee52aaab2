//! The gateway of the real binary: the first minute, in front of nginx, and while it is told to change
//! or to stop.

use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use crate::Folder;
use crate::support::app::App;
use crate::support::http::{self, Connection};
use crate::support::parts::on_path;
use crate::support::process::Process;
use crate::support::server::Server;
use crate::support::{eventually, free_port, local, until_open};

#[test]
fn the_first_minute_shows_five_answers_and_then_what_a_refusal_is() {
    // In a network of its own, where its ports are free whatever else runs here.
    let mut serve = on_path("unshare");
    serve.args(["--net", "sh", "-c", "ip link set lo up && exec \"$0\" serve --log info"]);
    serve.arg(env!("CARGO_BIN_EXE_tollgate"));
    let mut server = Server::follow(serve);
    assert_eq!(server.address("gateway"), local(8000));
    let mut curl = on_path("nsenter");
    curl.arg(format!("--net=/proc/{}/ns/net", server.process.id()));
    curl.args(["sh", "-c", "for i in $(seq 8); do curl -i localhost:8000/; done"]);
    let seen = crate::run(&mut curl, "").stdout;
    let answers: Vec<&str> = seen.split("HTTP/1.1 ").skip(1).collect();
    assert_eq!(answers.len(), 8, "{seen}");
    for (number, answer) in answers.iter().enumerate() {
        let has = |text: &str| assert!(answer.contains(text), "{text} is not in {answer}");
        has("ratelimit-policy: \"user\";q=5;w=60");
        if number < 5 {
            has("200 OK\r\n");
            has(&format!("x-ratelimit-remaining: {}\r\n", 4 - number));
            has("You asked for GET /\n");
            has("\nhost: localhost:8000\n");
            has("\nx-forwarded-for: 127.0.0.1\n");
        } else {
            has("429 Too Many Requests\r\n");
            has("retry-after: ");
            has("content-type: application/problem+json\r\n");
            has("#quota-exceeded\"");
        }
    }
    server.process.signal("TERM");
    assert_eq!(server.process.ended().code(), Some(0), "{:?}", server.log());
    let log = server.log();
    assert!(!log.iter().any(|line| line.contains("cut off")), "nobody is busy: {log:?}");
}

fn start(folder: &Folder, policy: &str) -> Server {
    Server::start(Path::new(&folder.write("policy.yaml", policy)))
}

fn policy(upstream: &str) -> String {
    format!(
        "listen: {{ gateway: 127.0.0.1:0, admin: 127.0.0.1:0 }}\nupstream: {upstream}\n\
         limits: [{{ name: all, rate: 4000000000/year, algorithm: fixed_window }}]\n"
    )
}

#[test]
fn sigterm_under_load_loses_nothing_that_was_passed_on() {
    let (folder, app) = (Folder::new(), App::start());
    let mut server = start(&folder, &policy(&format!("http://{}", local(app.port))));
    let address = server.address("gateway");
    let answered = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let asked = ("POST", "/", "hello");
                http::ask_until_turned_away(address, asked, Some("app"), &answered);
            });
        }
        eventually("there is load", || (answered.load(Ordering::Relaxed) > 500).then_some(()));
        server.process.signal("TERM");
    });
    assert_eq!(server.process.ended().code(), Some(0), "{:?}", server.log());
    assert_eq!(
        answered.into_inner(),
        app.requests(),
        "every request that got through was answered"
    );
}

#[test]
fn a_request_under_way_is_answered_after_sigterm() {
    let folder = Folder::new();
    let app = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let url = format!("http://{}", app.local_addr().expect("it is bound"));
    let mut server = start(&folder, &policy(&url));
    let mut client = Connection::open(server.address("gateway"));
    client.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").expect("it reads");
    let (stream, _) = app.accept().expect("it is passed on");
    let mut stream = Connection::over(stream);
    let mut admin = Connection::open(server.address("admin"));
    server.process.signal("TERM");
    eventually("it says that it is not ready", || {
        let answer = admin.ask("GET", "/readyz", &[], "").expect("it still answers");
        (answer.status == 503).then_some(())
    });
    stream.send(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nlate").expect("it reads");
    let answer = client.answer().expect("an answer");
    assert_eq!((answer.status, &*answer.body), (200, "late"));
    assert_eq!(server.process.ended().code(), Some(0), "{:?}", server.log());
}

#[test]
fn a_new_policy_sends_requests_elsewhere_and_loses_none() {
    let (folder, apps) = (Folder::new(), [App::start(), App::start()]);
    let policies = apps.each_ref().map(|app| policy(&format!("http://{}", local(app.port))));
    let server = start(&folder, &policies[0]);
    let address = server.address("gateway");
    let (answered, is_done) = (AtomicUsize::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut connection = Connection::open(address);
                while !is_done.load(Ordering::Relaxed) {
                    let answer = connection.ask("POST", "/", &[], "hello").expect("an answer");
                    assert_eq!(answer.status, 200, "{answer:?}");
                    answered.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        for number in 1..=10 {
            let new = folder.write("new", &policies[number % 2]);
            fs::rename(new, folder.path("policy.yaml")).expect("the folder is ours");
            assert_eq!(server.post("admin", "/v1/reload", "").status, 200);
            let before = apps[number % 2].requests();
            eventually("requests come to the other", || {
                (apps[number % 2].requests() > before + 20).then_some(())
            });
        }
        is_done.store(true, Ordering::Relaxed);
    });
    let seen: usize = apps.iter().map(App::requests).sum();
    assert_eq!(seen, answered.into_inner());
}

/// nginx, which closes connections after a few requests, over HTTP/1.1 and HTTP/2.
const NGINX: &str = "
daemon off;
master_process off;
pid nginx.pid;
events {}
http {
    access_log off;
    client_body_temp_path body;
    proxy_temp_path proxy;
    fastcgi_temp_path fastcgi;
    uwsgi_temp_path uwsgi;
    scgi_temp_path scgi;
    keepalive_requests 3;
    client_max_body_size 1k;
    server {
        listen 127.0.0.1:3001;
        listen 127.0.0.1:3002 http2;
        root files;
        location /said { return 200 \"$request_method $uri for $http_x_forwarded_for of $host\"; }
        location /moved { return 302 /said; }
    }
}
";

#[test]
fn nginx_behind_the_gateway_serves_as_if_it_were_asked_itself() {
    let folder = Folder::new();
    let ports = [3001, 3002].map(|written| (written, free_port()));
    let config = folder.write("nginx.conf", crate::support::with_ports(NGINX, &ports));
    let file: String = (0..200_000).map(|line| format!("{line}\n")).collect();
    fs::create_dir(folder.path("files")).expect("the folder is ours");
    folder.write("files/lines.txt", &file);
    let mut nginx = on_path("nginx");
    nginx.args(["-e", "stderr", "-p", &folder.path(""), "-c", &config]);
    let _nginx = Process::start(nginx, &folder.0.join("nginx.log"));
    for (scheme, (_, port)) in ["http", "h2c"].into_iter().zip(ports) {
        until_open(local(port));
        let server = start(&folder, &policy(&format!("{scheme}://{}", local(port))));
        let address = server.address("gateway");
        let mut kept = Connection::open(address);
        for number in 0..20 {
            let (method, body) = if number % 2 == 0 { ("GET", "") } else { ("POST", "hello") };
            let answer = kept.ask(method, "/x/../said", &[("Host", "shop.example")], body);
            let answer = answer.expect("an answer");
            let said = format!("{method} /said for 127.0.0.1 of shop.example");
            assert_eq!((answer.status, &*answer.body), (200, &*said), "{scheme}: {answer:?}");
        }
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    let mut kept = Connection::open(address);
                    for _ in 0..50 {
                        let answer = kept.ask("POST", "/said", &[], "hello").expect("an answer");
                        assert_eq!(answer.status, 200, "{scheme}: {answer:?}");
                    }
                });
            }
        });
        let whole = http::get(address, "/lines.txt", &[]);
        assert_eq!((whole.status, whole.body.len()), (200, file.len()), "{scheme}");
        assert!(whole.body == file, "{scheme}: every line as it is");
        let part = http::get(address, "/lines.txt", &[("Range", "bytes=0-3")]);
        assert_eq!((part.status, &*part.body), (206, "0\n1\n"), "{scheme}");
        let tag = whole.field("etag").expect("nginx gives one");
        assert_eq!(http::get(address, "/lines.txt", &[("If-None-Match", tag)]).status, 304);
        assert_eq!(http::get(address, "/moved", &[]).status, 302, "{scheme}: not followed");
        assert_eq!(http::get(address, "/nothing", &[]).status, 404, "{scheme}");
        let much = "x".repeat(1 << 20);
        let refused = http::request(address, "POST", "/said", &[], &much);
        assert_eq!(refused.status, 413, "{scheme}: said before all of it was sent");
    }
}
