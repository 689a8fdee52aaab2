//! A server of a test's own, and the plainest client there is.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use serde_json::Value;
use tokio::sync::oneshot;
use tollgate_server::{Door, Server, Source};

/// A server on free ports, until it is dropped.
pub(crate) struct Running {
    pub(crate) folder: Folder,
    addresses: Vec<(Door, SocketAddr)>,
    stop: Option<oneshot::Sender<()>>,
    serving: Option<JoinHandle<()>>,
}

impl Running {
    /// Serves `policy`, with some doors at free ports: `http`, `admin` …
    pub(crate) fn start(doors: &[&str], policy: &str) -> Self {
        Self::with_files(&with_doors(doors, policy), &[])
    }

    /// Serves `policy` as it is written, with other files beside it.
    pub(crate) fn with_files(policy: &str, files: &[(&str, &str)]) -> Self {
        let folder = Folder::new();
        for (name, text) in files {
            folder.write(name, text);
        }
        folder.write("policy.yaml", policy);
        Self::at(folder)
    }

    /// Serves the policy in `folder`.
    pub(crate) fn at(folder: Folder) -> Self {
        let server = Server::bind(Source::File(folder.path("policy.yaml")));
        let server = server.unwrap_or_else(|error| panic!("{error}"));
        let addresses = server.addresses().collect();
        let (stop, stopped) = oneshot::channel();
        let serving = thread::spawn(move || {
            let stopped = async { drop(stopped.await) };
            server.run_until(stopped).expect("it has threads");
        });
        Self { folder, addresses, stop: Some(stop), serving: Some(serving) }
    }

    pub(crate) fn address(&self, wanted: Door) -> SocketAddr {
        let found = self.addresses.iter().find(|(door, _)| *door == wanted);
        found.expect("the door is open").1
    }

    pub(crate) fn connect(&self, door: Door) -> TcpStream {
        let stream = TcpStream::connect(self.address(door)).expect("it listens");
        stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a time is set");
        stream
    }

    /// Sends one request and reads its answer. `head` is all of it but `Host` and what the body
    /// needs.
    pub(crate) fn ask(&self, door: Door, head: &str, body: &str) -> Answer {
        let mut stream = self.connect(door);
        let (line, fields) = head.split_once('\n').unwrap_or((head, ""));
        let fields: String = fields.lines().map(|field| format!("{}\r\n", field.trim())).collect();
        let is_host = |field: &str| field.to_ascii_lowercase().starts_with("host:");
        let host = if fields.lines().any(is_host) { "" } else { "host: localhost\r\n" };
        let length = body.len();
        let request = format!(
            "{line} HTTP/1.1\r\n{host}{fields}connection: close\r\ncontent-length: {length}\r\n\r\n{body}"
        );
        stream.write_all(request.as_bytes()).expect("it reads");
        Answer::read(&mut stream)
    }

    /// Tells it to stop, without waiting for that.
    pub(crate) fn begin_to_stop(&mut self) {
        drop(self.stop.take());
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.begin_to_stop();
        if let Some(serving) = self.serving.take()
            && serving.join().is_err()
            && !thread::panicking()
        {
            panic!("the server panicked");
        }
    }
}

/// Asks until it is so, or fails the test after far more questions than it ever takes. A question
/// is an exchange with the server, so a slow machine asks as seldom as it answers.
pub(crate) fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    const TRIES: u32 = 300_000;
    assert!((0..TRIES).any(|_| is_so()), "waited for long, and in vain: {what}");
}

/// A policy with a `listen` section in front.
pub(crate) fn with_doors(doors: &[&str], policy: &str) -> String {
    let doors: String = doors.iter().map(|door| format!("  {door}: 127.0.0.1:0\n")).collect();
    format!("listen:\n{doors}{policy}\n")
}

/// An answer over HTTP/1.1.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    head: String,
    pub(crate) body: String,
}

impl Answer {
    /// Reads to the end of the connection.
    pub(crate) fn read(stream: &mut TcpStream) -> Self {
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).expect("it answers");
        let text = String::from_utf8(bytes).expect("it is text");
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
        let status = status.unwrap_or_else(|| panic!("no status in {head:?}"));
        Self { status, head: head.to_owned(), body: body.to_owned() }
    }

    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        let mut fields = self.head.lines().skip(1).filter_map(|line| line.split_once(": "));
        fields.find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }
}

/// A folder that is gone when the test is over.
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("server-{}-{number}", std::process::id());
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        fs::create_dir_all(&folder).expect("a test may write there");
        Self(folder)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    pub(crate) fn write(&self, name: &str, text: &str) {
        let path = self.path(name);
        fs::create_dir_all(path.parent().expect("it is in the folder")).expect("it is ours");
        // Written aside and renamed, so that nobody sees half of it.
        let aside = path.with_extension("new");
        fs::write(&aside, text).expect("it is ours");
        fs::rename(aside, path).expect("it is ours");
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
