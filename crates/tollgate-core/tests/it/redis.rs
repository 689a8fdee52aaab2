//! A real Redis of a test's own, and as much of its protocol as the tests need.

use std::fmt;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// A server on a socket in a folder of its own; both go when this is dropped.
pub(crate) struct Redis {
    server: Child,
    folder: PathBuf,
    stream: BufReader<UnixStream>,
}

/// Bytes that are mostly text, and shown as such.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Text(pub(crate) Vec<u8>);

impl fmt::Debug for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0.escape_ascii().to_string())
    }
}

/// An answer of the server. Statuses and strings are one here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    Nil,
    Integer(i64),
    Text(Text),
    Error(String),
    List(Vec<Reply>),
}

impl Reply {
    /// The same strings, as the server would list them.
    pub(crate) fn texts(texts: impl IntoIterator<Item = String>) -> Self {
        Self::List(texts.into_iter().map(|text| Self::Text(Text(text.into_bytes()))).collect())
    }

    /// The integers of a list of nothing else.
    pub(crate) fn integers(&self) -> Vec<i64> {
        let Self::List(replies) = self else { panic!("{self:?} is not a list") };
        let integer = |reply: &Self| match reply {
            Self::Integer(integer) => *integer,
            other => panic!("{other:?} is not an integer"),
        };
        replies.iter().map(integer).collect()
    }
}

impl Redis {
    /// Starts a server and waits until it listens.
    pub(crate) fn start() -> Self {
        static STARTED: AtomicU32 = AtomicU32::new(0);
        let number = STARTED.fetch_add(1, Ordering::Relaxed);
        let name = format!("tollgate-core-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        fs::create_dir_all(&folder).expect("a folder for temporary files");
        let socket = folder.join("redis.sock");
        let server = Command::new("redis-server")
            .args(["--port", "0", "--save", "", "--appendonly", "no", "--unixsocket"])
            .arg(&socket)
            .current_dir(&folder)
            .stdout(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| {
                panic!(
                    "redis-server is not installed; run `cargo xtask test`, which installs it \
                     ({error})"
                )
            });
        Self { server, stream: BufReader::new(connect(&socket)), folder }
    }

    /// Makes a script known and tells its name.
    pub(crate) fn load(&mut self, script: &str) -> String {
        match self.call(&["SCRIPT", "LOAD", script]) {
            Reply::Text(sha) => String::from_utf8(sha.0).expect("hexadecimal digits"),
            other => panic!("the script does not load: {other:?}"),
        }
    }

    pub(crate) fn call(&mut self, words: &[&str]) -> Reply {
        let mut request = Vec::new();
        write_command(&mut request, words);
        self.send(&request);
        self.receive()
    }

    /// Sends commands put together by [`write_command`]; each has an answer to be received.
    pub(crate) fn send(&mut self, commands: &[u8]) {
        self.stream.get_mut().write_all(commands).expect("the server takes commands");
    }

    pub(crate) fn receive(&mut self) -> Reply {
        let mut line = String::new();
        self.stream.read_line(&mut line).expect("the server answers");
        let (kind, rest) = line.trim_end().split_at(1);
        let length = || rest.parse::<i64>().expect("a length");
        match kind {
            ":" => Reply::Integer(rest.parse().expect("an integer")),
            "+" => Reply::Text(Text(rest.into())),
            "-" => Reply::Error(rest.to_owned()),
            "$" => usize::try_from(length()).map_or(Reply::Nil, |length| self.text(length)),
            "*" => Reply::List((0..length()).map(|_| self.receive()).collect()),
            _ => panic!("{line:?} is not a reply"),
        }
    }

    fn text(&mut self, length: usize) -> Reply {
        let mut bytes = vec![0; length + 2];
        self.stream.read_exact(&mut bytes).expect("as many bytes as were announced");
        bytes.truncate(length);
        Reply::Text(Text(bytes))
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        // A server that is gone already is as good as one that was stopped.
        let _ = self.server.kill();
        let _ = self.server.wait();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Appends one command to a pipeline.
pub(crate) fn write_command<W: AsRef<str>>(pipeline: &mut Vec<u8>, words: &[W]) {
    pipeline.extend_from_slice(format!("*{}\r\n", words.len()).as_bytes());
    for word in words.iter().map(AsRef::as_ref) {
        pipeline.extend_from_slice(format!("${}\r\n{word}\r\n", word.len()).as_bytes());
    }
}

fn connect(socket: &Path) -> UnixStream {
    for _ in 0..500 {
        if let Ok(stream) = UnixStream::connect(socket) {
            return stream;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    panic!("redis-server did not listen within ten seconds");
}
