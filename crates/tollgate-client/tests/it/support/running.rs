//! A real tollgate server, over a network that fails when it is told to.

use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tokio::sync::oneshot;
use tollgate_client::{Client, Connect};
use tollgate_harness::Proxy;
use tollgate_server::{Door, Server, Source};

/// A lease is longer than any test: a slot that comes back was given back.
const POLICY: &str = "\
listen: { http: LISTEN, grpc: LISTEN }
descriptors: ./envoy/
limits:
  - { name: api, per: [user], rate: 3/hour, algorithm: token_bucket }
  - { name: jobs, per: [worker], concurrency: 1, lease: 1h }
  - { name: many, per: [many], rate: 5000/hour }
  - { name: quick, per: [quick], rate: 40/second, burst: 5, algorithm: token_bucket }
";

const DESCRIPTORS: &str = "\
domain: shop
descriptors:
  - key: user
    rate_limit: { name: calm, unit: hour, requests_per_unit: 3, algorithm: token_bucket }
  - key: many
    rate_limit: { unit: year, requests_per_unit: 1000, algorithm: token_bucket }
";

/// Longer than any answer takes on the slowest machine.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// A server behind proxies, until it is dropped.
pub(crate) struct Running {
    folder: PathBuf,
    http: SocketAddr,
    pub(crate) proxy: Proxy,
    pub(crate) grpc: Proxy,
    stop: Option<oneshot::Sender<()>>,
    serving: Option<JoinHandle<()>>,
}

impl Running {
    pub(crate) fn start() -> Self {
        Self::listening("\"127.0.0.1:0\"")
    }

    /// One that asks for the token `sesame` at both doors.
    pub(crate) fn with_token() -> Self {
        Self::listening("{ address: \"127.0.0.1:0\", token_file: token }")
    }

    fn listening(listen: &str) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("tollgate-client-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        fs::create_dir_all(folder.join("envoy")).expect("there is room for a folder");
        let policy = folder.join("policy.yaml");
        let text = POLICY.replace("LISTEN", listen);
        fs::write(&policy, text).expect("there is room for a policy");
        fs::write(folder.join("token"), "sesame\n").expect("there is room for a token");
        fs::write(folder.join("envoy/shop.yaml"), DESCRIPTORS).expect("there is room for a file");
        let server = Server::bind(Source::File(policy));
        let server = server.unwrap_or_else(|error| panic!("{error}"));
        let address = |door| {
            let mut addresses = server.addresses();
            addresses.find(|(it, _)| *it == door).expect("the door is open").1
        };
        let http = address(Door::Http);
        let (proxy, grpc) = (Proxy::start(http), Proxy::start(address(Door::Grpc)));
        let (stop, stopped) = oneshot::channel::<()>();
        let serving = thread::spawn(move || {
            server.run_until(async { drop(stopped.await) }).expect("it has threads");
        });
        Self { folder, http, proxy, grpc, stop: Some(stop), serving: Some(serving) }
    }

    /// How to ask it over HTTP.
    pub(crate) fn client(&self) -> Connect {
        connect(self.proxy.address())
    }

    /// The same over a network where nothing fails.
    pub(crate) fn direct_client(&self) -> Connect {
        connect(self.http)
    }

    /// How to ask it over gRPC.
    pub(crate) fn grpc_client(&self) -> Connect {
        connect(self.grpc.address())
    }
}

fn connect(address: SocketAddr) -> Connect {
    Client::connect(&format!("http://{address}")).expect("an address").deadline(LONG)
}

impl Drop for Running {
    fn drop(&mut self) {
        // A client that nobody runs any more does not hang up by itself, and a server waits for that.
        self.proxy.cut();
        self.grpc.cut();
        drop(self.stop.take());
        let _stopped = self.serving.take().map(JoinHandle::join);
        let _gone = fs::remove_dir_all(&self.folder);
    }
}
