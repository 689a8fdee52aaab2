//! Servers of others, each a process of its own on a port of its own.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use tollgate_harness::{eventually, free_port};

/// A server until it is dropped.
pub(crate) struct Peer {
    process: Child,
    folder: PathBuf,
    address: SocketAddr,
}

/// As one process: workers would outlive a master that is killed.
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
    limit_req_zone $binary_remote_addr zone=all:1m rate=20r/s;
    limit_req_status STATUS;
    server {
        listen ADDRESS;
        root html;
        location / { limit_req zone=all burst=5 nodelay; }
    }
}
";

const EXPRESS: &str = "
const [address, headers, limit, windowMs] = process.argv.slice(2);
const { rateLimit } = require('express-rate-limit');
const app = require('express')();
const legacyHeaders = headers === 'legacy';
const standardHeaders = legacyHeaders ? false : headers;
app.use(rateLimit({ limit: +limit, windowMs: +windowMs, legacyHeaders, standardHeaders }));
app.get('/', (request, response) => response.send('hello'));
app.listen(+address.split(':')[1], '127.0.0.1');
";

impl Peer {
    /// nginx with `limit_req`: 20 a second and 5 more, refused with this status and nothing else.
    pub(crate) fn nginx(status: u16) -> Self {
        Self::start("nginx", |folder, address| {
            fs::create_dir_all(folder.join("html")).expect("there is room for a folder");
            fs::write(folder.join("html/index.html"), "hello").expect("there is room for a page");
            let config = NGINX.replace("STATUS", &status.to_string());
            let config = config.replace("ADDRESS", &address.to_string());
            fs::write(folder.join("nginx.conf"), config).expect("there is room for a file");
            // Debian keeps servers where only root looks.
            let path = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin";
            let mut command = Command::new("nginx");
            command.env("PATH", path).args(["-e", "stderr", "-c", "nginx.conf", "-p"]).arg(folder);
            command
        })
    }

    /// An Express app under express-rate-limit, which tells of it by these headers.
    pub(crate) fn express(headers: &str, limit: u32, window_ms: u32) -> Self {
        Self::start(headers, |folder, address| {
            let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent();
            let packages =
                target.expect("it is in a target folder").join("parts/node/node_modules");
            let is_there = packages.join("express-rate-limit").is_dir();
            assert!(is_there, "express-rate-limit is not there; `cargo xtask test` installs it");
            let app = folder.join("app.js");
            fs::write(&app, EXPRESS).expect("there is room for a file");
            let mut command = Command::new("node");
            command.env("NODE_PATH", packages).arg(app).arg(address.to_string());
            command.args([headers, &limit.to_string(), &window_ms.to_string()]);
            command
        })
    }

    fn start(name: &str, command: impl FnOnce(&Path, SocketAddr) -> Command) -> Self {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()));
        let name = format!("tollgate-client-{name}-{}-{}", std::process::id(), address.port());
        let folder = std::env::temp_dir().join(name);
        fs::create_dir_all(&folder).expect("there is room for a folder");
        let mut command = command(&folder, address);
        let process = command.stdin(Stdio::null()).stderr(Stdio::null()).spawn();
        let process = process.unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let peer = Self { process, folder, address };
        eventually("a server that listens", || TcpStream::connect(address).ok());
        peer
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}/", self.address)
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ended = self.process.kill();
        let _seen = self.process.wait();
        let _gone = fs::remove_dir_all(&self.folder);
    }
}
