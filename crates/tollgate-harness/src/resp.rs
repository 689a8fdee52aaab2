//! As much of the servers' protocol as tests need: what a test asks with must not be what it tests.

use std::fmt;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;

use crate::bounds::REPLY_MAX;

/// A connection to a server.
#[derive(Debug)]
pub struct Client {
    stream: BufReader<Stream>,
}

/// An answer of a server. Statuses and strings are one here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// Nothing there.
    Nil,
    /// `:1`
    Integer(i64),
    /// `+OK` or `$2`
    Text(Text),
    /// `-ERR …`, without the dash.
    Error(String),
    /// `*2`
    List(Vec<Reply>),
}

/// Bytes that are mostly text, and shown as such.
#[derive(Clone, PartialEq, Eq)]
pub struct Text(pub Vec<u8>);

#[derive(Debug)]
enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Client {
    /// Connects by TCP, for what is to go through a [`Proxy`](crate::Proxy).
    pub fn tcp(address: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(REPLY_MAX))?;
        stream.set_nodelay(true)?;
        Ok(Self { stream: BufReader::new(Stream::Tcp(stream)) })
    }

    /// Connects by a socket in the file system.
    pub fn unix(path: &Path) -> io::Result<Self> {
        let stream = UnixStream::connect(path)?;
        stream.set_read_timeout(Some(REPLY_MAX))?;
        Ok(Self { stream: BufReader::new(Stream::Unix(stream)) })
    }

    /// Sends a command and returns its answer; panics when the connection breaks.
    pub fn command<W: AsRef<[u8]>>(&mut self, words: &[W]) -> Reply {
        self.try_command(words).expect("the server answers")
    }

    /// The same, for servers that may be gone.
    pub fn try_command<W: AsRef<[u8]>>(&mut self, words: &[W]) -> io::Result<Reply> {
        let mut request = Vec::new();
        write_command(&mut request, words);
        self.stream.get_mut().write_all(&request)?;
        self.read_reply()
    }

    /// Makes a script known and tells its name.
    pub fn load(&mut self, script: &str) -> String {
        match self.command(&["SCRIPT", "LOAD", script]) {
            sha @ Reply::Text(_) => sha.text(),
            other => panic!("the script does not load: {other:?}"),
        }
    }

    /// Sends commands put together by [`write_command`]; each has an answer to be received.
    pub fn send(&mut self, commands: &[u8]) {
        self.stream.get_mut().write_all(commands).expect("the server takes commands");
    }

    /// The answer to the first command sent that was not received yet.
    pub fn receive(&mut self) -> Reply {
        self.read_reply().expect("the server answers")
    }

    fn read_reply(&mut self) -> io::Result<Reply> {
        let mut line = String::new();
        if self.stream.read_line(&mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let (kind, rest) = line.trim_end().split_at(1);
        let number = || rest.parse::<i64>().map_err(io::Error::other);
        Ok(match kind {
            ":" => Reply::Integer(number()?),
            "+" => Reply::Text(Text(rest.into())),
            "-" => Reply::Error(rest.to_owned()),
            "$" => match usize::try_from(number()?) {
                Ok(length) => self.read_text(length)?,
                Err(_) => Reply::Nil,
            },
            "*" if rest.starts_with('-') => Reply::Nil,
            "*" => {
                Reply::List((0..number()?).map(|_| self.read_reply()).collect::<Result<_, _>>()?)
            }
            _ => return Err(io::Error::other(format!("{line:?} is not a reply"))),
        })
    }

    fn read_text(&mut self, length: usize) -> io::Result<Reply> {
        let mut bytes = vec![0; length + 2];
        self.stream.read_exact(&mut bytes)?;
        bytes.truncate(length);
        Ok(Reply::Text(Text(bytes)))
    }
}

impl Reply {
    /// The same strings, as the server would list them.
    pub fn texts(texts: impl IntoIterator<Item = String>) -> Self {
        Self::List(texts.into_iter().map(|text| Self::Text(Text(text.into_bytes()))).collect())
    }

    /// The integers of a list of nothing else.
    pub fn integers(&self) -> Vec<i64> {
        self.list().iter().map(Self::integer).collect()
    }

    /// The integer that it is.
    pub fn integer(&self) -> i64 {
        let Self::Integer(integer) = self else { panic!("{self:?} is not an integer") };
        *integer
    }

    /// The text that it is, made readable.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(self.bytes()).into_owned()
    }

    /// The text that it is, as it is.
    pub fn bytes(&self) -> &[u8] {
        let Self::Text(text) = self else { panic!("{self:?} is not a text") };
        &text.0
    }

    /// The list that it is.
    pub fn list(&self) -> &[Self] {
        let Self::List(replies) = self else { panic!("{self:?} is not a list") };
        replies
    }

    /// The error that it is.
    pub fn error(&self) -> &str {
        let Self::Error(error) = self else { panic!("{self:?} is not an error") };
        error
    }

    /// Nothing, if it is `OK`.
    pub fn ok(&self) {
        assert_eq!(*self, Self::Text(Text(b"OK".to_vec())));
    }
}

impl fmt::Debug for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0.escape_ascii().to_string())
    }
}

/// Appends one command to a pipeline.
pub fn write_command<W: AsRef<[u8]>>(pipeline: &mut Vec<u8>, words: &[W]) {
    pipeline.extend_from_slice(format!("*{}\r\n", words.len()).as_bytes());
    for word in words.iter().map(AsRef::as_ref) {
        pipeline.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        pipeline.extend_from_slice(word);
        pipeline.extend_from_slice(b"\r\n");
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read(buffer),
            Self::Unix(stream) => stream.read(buffer),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.write(bytes),
            Self::Unix(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.flush(),
            Self::Unix(stream) => stream.flush(),
        }
    }
}
