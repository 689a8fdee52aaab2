//! Everything at once for a while, and then nothing is left of it.
//!
//! Clients of many kinds ask through the gateway while its servers are restarted and its policy is
//! loaded anew. Some go away in the middle, some never read. In the end no slot is held, memory is
//! what it was, and a request is answered. The suite does so for two seconds from a fixed seed,
//! `cargo xtask soak` for two minutes.

use std::env;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper::server::conn::http1 as http1_server;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::Folder;
use crate::support::server::Server;
use crate::support::{eventually, free_port};

/// So long it takes, if anybody says so.
const SECONDS: &str = "TOLLGATE_SOAK_SECONDS";

/// Slots of the limit that must not leak any.
const SLOTS: u64 = 16;

/// Clients of each kind.
const CLIENTS: u64 = 4;

/// So much larger the server may be in the end than it was when everything had happened once.
const GROWTH_KIB_MAX: u64 = 16 * 1024;

fn policy(ports: [u16; 2], rate: u32) -> String {
    let [one, other] = ports;
    format!(
        "listen: {{ gateway: 127.0.0.1:0, http: 127.0.0.1:0 }}
upstream: [http://127.0.0.1:{one}, http://127.0.0.1:{other}]
gateway: {{ headers_timeout: 2s, idle_timeout: 5s }}
limits:
  - {{ name: slots, per: [client_ip], concurrency: {SLOTS}, lease: 1h }}
  - {{ name: rate, per: [header:x-kind], rate: {rate}/second, algorithm: token_bucket }}
  - {{ name: queue, when: {{ path: /held }}, per: [client_ip], algorithm: leaky_bucket, rate: 200/second, queue: 20 }}
"
    )
}

/// Numbers that are always the same and look like none.
struct Dice(u64);

impl Dice {
    fn below(&mut self, most: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % most
    }
}

/// What the clients were told.
#[derive(Default)]
struct Told {
    passed: AtomicU64,
    refused: AtomicU64,
    failed: AtomicU64,
}

impl Told {
    fn note(&self, status: StatusCode) {
        let count = match status.as_u16() {
            200 => &self.passed,
            429 | 503 => &self.refused,
            502 | 504 => &self.failed,
            other => panic!("nobody should be told {other}"),
        };
        count.fetch_add(1, Ordering::Relaxed);
    }
}

/// A server that is gone now and then, with everything that is under way.
async fn upstream(port: u16, mut dice: Dice) {
    loop {
        let Ok(listener) = TcpListener::bind(("127.0.0.1", port)).await else {
            // The last one's port is not free yet.
            pause(10).await;
            continue;
        };
        let mut connections = JoinSet::new();
        let serving = async {
            while let Ok((stream, _)) = listener.accept().await {
                let connection = http1_server::Builder::new()
                    .serve_connection(TokioIo::new(stream), service_fn(answer));
                connections.spawn(connection);
            }
        };
        let _ = timeout(Duration::from_millis(300 + dice.below(700)), serving).await;
    }
}

/// As much as was sent, and a little later if that is asked for.
async fn answer(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, hyper::Error> {
    if request.uri().path() == "/slow" {
        pause(20).await;
    }
    Ok(Response::new(Full::new(request.into_body().collect().await?.to_bytes())))
}

async fn pause(milliseconds: u64) {
    tokio::time::sleep(Duration::from_millis(milliseconds)).await;
}

fn request(kind: &str, dice: &mut Dice) -> Request<Full<Bytes>> {
    let path = ["/", "/slow", "/held"][dice.below(3) as usize];
    let length = if dice.below(4) == 0 { dice.below(200_000) as usize } else { 0 };
    let method = if length == 0 { Method::GET } else { Method::POST };
    Request::builder()
        .method(method)
        .uri(format!("http://gateway{path}"))
        .header("host", "gateway")
        .header("x-kind", kind)
        .body(Full::new(vec![b'x'; length].into()))
        .expect("every part is one")
}

/// Asks over HTTP/1.1, one request after the other.
async fn one_by_one(gateway: SocketAddr, told: &Told, mut dice: Dice) {
    loop {
        let stream = TcpStream::connect(gateway).await.expect("it listens");
        let (mut requests, connection) =
            http1::handshake(TokioIo::new(stream)).await.expect("a connection");
        let connection = tokio::spawn(connection);
        for _ in 0..dice.below(50) {
            let mut request = request("one", &mut dice);
            *request.uri_mut() = request.uri().path().parse().expect("a path");
            let Ok(response) = requests.send_request(request).await else { break };
            told.note(response.status());
            if response.into_body().collect().await.is_err() || requests.ready().await.is_err() {
                break;
            }
        }
        connection.abort();
    }
}

/// Asks over HTTP/2, several at once, and takes some of it back.
async fn many_at_once(gateway: SocketAddr, told: &Told, mut dice: Dice) {
    loop {
        let stream = TcpStream::connect(gateway).await.expect("it listens");
        let (mut requests, connection) =
            http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
                .await
                .expect("a connection");
        let connection = tokio::spawn(connection);
        for _ in 0..dice.below(20) {
            if requests.ready().await.is_err() {
                break;
            }
            let mut streams = JoinSet::new();
            for _ in 0..1 + dice.below(8) {
                let sent = requests.send_request(request("many", &mut dice));
                streams.spawn(async move {
                    let response = sent.await.ok()?;
                    let status = response.status();
                    response.into_body().collect().await.ok()?;
                    Some(status)
                });
            }
            if dice.below(4) == 0 {
                pause(dice.below(10)).await;
                streams.abort_all();
            }
            while let Some(ended) = streams.join_next().await {
                ended.ok().flatten().into_iter().for_each(|status| told.note(status));
            }
        }
        connection.abort();
    }
}

/// Asks, and goes away in the middle of whatever happens then.
async fn leave_early(gateway: SocketAddr, mut dice: Dice) {
    let asked =
        "POST /slow HTTP/1.1\r\nhost: gateway\r\nx-kind: leaver\r\ncontent-length: 100000\r\n\r\n";
    loop {
        let mut stream = TcpStream::connect(gateway).await.expect("it listens");
        let whole = [asked.as_bytes(), &[b'x'; 100_000]].concat();
        let sent = dice.below(2 * whole.len() as u64) as usize;
        // It may be refused before it has said everything.
        let _ = stream.write_all(&whole[..sent.min(whole.len())]).await;
        let mut read = vec![0; 1 + dice.below(50_000) as usize];
        let patience = Duration::from_millis(dice.below(40));
        let _ = timeout(patience, stream.read_exact(&mut read)).await;
    }
}

#[test]
fn many_clients_restarts_and_reloads_leave_nothing_behind() {
    let seconds = env::var(SECONDS).ok().and_then(|it| it.parse().ok()).unwrap_or(2);
    let length = Duration::from_secs(seconds);
    let ports = [free_port(), free_port()];
    let folder = Folder::with(&[("policy.yaml", &policy(ports, 1_000))]);
    let server = Server::start(Path::new(&folder.path("policy.yaml")));
    let gateway = server.address("gateway");
    let told = Arc::<Told>::default();
    let runtime = Runtime::new().expect("a runtime");
    let mut before = 0;
    runtime.block_on(async {
        let mut all = JoinSet::new();
        for (seed, port) in (1..).zip(ports) {
            all.spawn(upstream(port, Dice(seed)));
        }
        for seed in 1..=CLIENTS {
            let (one, many) = (Arc::clone(&told), Arc::clone(&told));
            all.spawn(async move { one_by_one(gateway, &one, Dice(100 + seed)).await });
            all.spawn(async move { many_at_once(gateway, &many, Dice(200 + seed)).await });
            all.spawn(leave_early(gateway, Dice(300 + seed)));
        }
        for step in 0..20 {
            pause(length.as_millis() as u64 / 20).await;
            folder.write("policy.yaml", policy(ports, 1_000 + step));
            if step == 5 {
                before = server.process.resident_kib();
            }
            while let Some(ended) = all.try_join_next() {
                ended.expect("no client panics");
            }
        }
        all.shutdown().await;
    });
    drop(runtime);
    eventually("every slot is back", || {
        let asked = r#"{"attributes": {"client_ip": "127.0.0.1"}, "cost": 0}"#;
        let answer = server.post("http", "/v1/check", asked).json();
        let slots = answer["limits"].as_array()?.iter().find(|limit| limit["name"] == "slots")?;
        (slots["remaining"] == SLOTS).then_some(())
    });
    let after = server.process.resident_kib();
    assert!(after < before + GROWTH_KIB_MAX, "it grew from {before} KiB to {after} KiB");
    let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
    let (passed, refused, failed) =
        (count(&told.passed), count(&told.refused), count(&told.failed));
    assert!(passed > 10 * seconds, "{passed} passed, {refused} refused, {failed} failed");
    let log = server.log();
    let bug = log.iter().find(|line| line.contains("a bug of ours") || line.contains("panicked"));
    assert_eq!(bug, None);
    eprintln!(
        "{passed} passed, {refused} refused, {failed} failed; {before} KiB, then {after} KiB"
    );
}
