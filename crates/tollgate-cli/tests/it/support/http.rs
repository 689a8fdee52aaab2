//! HTTP/1.1 as a client of tests speaks it: whatever bytes are asked for, over any stream.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// An answer.
#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) fields: Vec<(String, String)>,
    pub(crate) body: String,
}

impl Response {
    /// The value of a field, by its name in lower case.
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        self.fields.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// The body as JSON.
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

/// One request on a connection of its own.
pub(crate) fn request(
    address: SocketAddr,
    method: &str,
    path: &str,
    fields: &[(&str, &str)],
    body: &str,
) -> Response {
    let mut connection = Connection::open(address);
    let answer = connection.ask(method, path, fields, body);
    answer.unwrap_or_else(|error| panic!("{method} {path} at {address}: {error}"))
}

pub(crate) fn get(address: SocketAddr, path: &str, fields: &[(&str, &str)]) -> Response {
    request(address, "GET", path, fields, "")
}

/// A connection that is kept.
pub(crate) struct Connection<S>(BufReader<S>);

impl Connection<TcpStream> {
    pub(crate) fn open(address: SocketAddr) -> Self {
        Self::try_open(address).unwrap_or_else(|error| panic!("cannot reach {address}: {error}"))
    }

    pub(crate) fn try_open(address: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(Duration::from_secs(30)))?;
        Ok(Self(BufReader::new(stream)))
    }
}

impl<S: Read + Write> Connection<S> {
    pub(crate) fn over(stream: S) -> Self {
        Self(BufReader::new(stream))
    }

    /// Sends bytes as they are.
    pub(crate) fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.get_mut().write_all(bytes)
    }

    /// Sends a request and reads the answer.
    pub(crate) fn ask(
        &mut self,
        method: &str,
        path: &str,
        fields: &[(&str, &str)],
        body: &str,
    ) -> io::Result<Response> {
        let mut request = format!("{method} {path} HTTP/1.1\r\n");
        if !fields.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
            request += "Host: localhost\r\n";
        }
        for (name, value) in fields {
            request += &format!("{name}: {value}\r\n");
        }
        if !body.is_empty() {
            request += &format!("Content-Length: {}\r\n", body.len());
        }
        self.send(format!("{request}\r\n{body}").as_bytes())?;
        self.answer()
    }

    /// Reads one answer. An end before its first byte is `UnexpectedEof`.
    pub(crate) fn answer(&mut self) -> io::Result<Response> {
        let line = self.line()?;
        let status = line.split(' ').nth(1).and_then(|status| status.parse().ok());
        let status = status.ok_or_else(|| io::Error::other(format!("no status: {line:?}")))?;
        let mut fields = Vec::new();
        loop {
            let line = self.line()?;
            let Some((name, value)) = line.split_once(':') else { break };
            fields.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
        let mut response = Response { status, fields, body: String::new() };
        if response.field("transfer-encoding").is_some() {
            response.body = self.chunks()?;
        } else if let Some(length) = response.field("content-length") {
            let length = length.parse().map_err(io::Error::other)?;
            response.body = self.text(length)?;
        }
        Ok(response)
    }

    fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        if self.0.read_line(&mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(line.trim_end().to_owned())
    }

    fn text(&mut self, length: usize) -> io::Result<String> {
        let mut bytes = vec![0; length];
        self.0.read_exact(&mut bytes)?;
        String::from_utf8(bytes).map_err(io::Error::other)
    }

    fn chunks(&mut self) -> io::Result<String> {
        let mut text = String::new();
        loop {
            let length = self.line()?;
            let length = usize::from_str_radix(&length, 16).map_err(io::Error::other)?;
            text += &self.text(length)?;
            self.line()?;
            if length == 0 {
                return Ok(text);
            }
        }
    }
}

/// Asks over one connection after the other, until none is taken any more, and counts the answers, all
/// of which must be 200 with this body, if one is told. What is asked over a connection that has answered before, and did not say
/// that it would close, must not be lost; one that is closed before its first answer was never taken
/// in.
pub(crate) fn ask_until_turned_away(
    address: SocketAddr,
    (method, path, body): (&str, &str, &str),
    expected: Option<&str>,
    answered: &AtomicUsize,
) {
    while let Ok(mut connection) = Connection::try_open(address) {
        let mut is_in_use = false;
        loop {
            match connection.ask(method, path, &[], body) {
                Ok(answer) => {
                    assert_eq!(answer.status, 200, "{answer:?}");
                    assert!(expected.is_none_or(|expected| answer.body == expected), "{answer:?}");
                    answered.fetch_add(1, Ordering::Relaxed);
                    if answer.field("connection") == Some("close") {
                        break;
                    }
                }
                Err(error) => {
                    assert!(!is_in_use, "a request was lost: {error}");
                    break;
                }
            }
            is_in_use = true;
        }
    }
}
