//! Asking a running server over HTTP.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use serde_json::Value;

use crate::output::{self, Failure};

/// How long a server may take before we give up on it.
const PATIENCE: Duration = Duration::from_secs(10);

/// An answer longer than that is none of ours.
const ANSWER_BYTES_MAX: u64 = 16 << 20;

/// Where a server is, and what it wants to see.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Server<'a> {
    /// `http://HOST:PORT`.
    pub(crate) url: &'a str,
    pub(crate) token_file: Option<&'a Path>,
}

/// The admin door of a server, as it is named on the command line.
#[derive(Clone, Debug, Args)]
pub(crate) struct AdminDoor {
    /// The server's admin door
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8082")]
    pub(crate) server: String,
    /// The token that the server asks for
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
}

impl AdminDoor {
    /// The JSON that a request is answered with, if it is answered well.
    pub(crate) fn ask(&self, request: &str, body: &str) -> Result<Value, Failure> {
        let server = Server { url: &self.server, token_file: self.token_file.as_deref() };
        let Reply { status, body } = server.ask(request, body)?;
        let told: Value = serde_json::from_slice(&body).unwrap_or_default();
        if status.starts_with("200 ") {
            return Ok(told);
        }
        let why = match (&self.token_file, told["detail"].as_str()) {
            (None, _) if status.starts_with("401 ") => {
                "it wants a token; name the file that holds it: --token-file FILE".to_owned()
            }
            (Some(file), _) if status.starts_with("401 ") => {
                format!("it does not take the token of {}", file.display())
            }
            (_, Some(why)) => output::visible(why),
            (_, None) => "what it answered is not ours; is that its admin door?".to_owned(),
        };
        Err(Failure::Failed(format!("{} answered {status}: {why}", self.server)))
    }
}

/// What it answered.
#[derive(Debug)]
pub(crate) struct Reply {
    /// The status with its words, made fit to be shown.
    pub(crate) status: String,
    pub(crate) body: Vec<u8>,
}

impl Server<'_> {
    /// Sends one request, such as `POST /v1/check`, and reads its answer.
    pub(crate) fn ask(&self, request: &str, body: &str) -> Result<Reply, Failure> {
        let (url, host) = (self.url, host(self.url)?);
        let mut head = format!(
            "{request} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n",
            body.len()
        );
        if let Some(file) = self.token_file {
            let token = std::fs::read_to_string(file).map_err(|error| {
                Failure::Failed(format!("{} cannot be read: {error}", file.display()))
            })?;
            let token = token.trim();
            if token.contains(char::is_control) {
                return Err(Failure::Failed(format!("{} holds no token", file.display())));
            }
            head += &format!("authorization: Bearer {token}\r\n");
        }
        let answer = exchange(&with_port(host), &format!("{head}\r\n{body}"))
            .map_err(|error| Failure::Failed(format!("cannot ask {url}: {error}")))?;
        let not_http = || Failure::Failed(format!("{url} does not speak HTTP"));
        let end = answer.windows(4).position(|four| four == b"\r\n\r\n").ok_or_else(not_http)?;
        let head = String::from_utf8_lossy(&answer[..end]);
        let line = head.lines().next().unwrap_or_default();
        let status = line.strip_prefix("HTTP/1.1 ").ok_or_else(not_http)?;
        Ok(Reply { status: output::visible(status), body: answer[end + 4..].to_vec() })
    }
}

/// The host, with its port if that is written, of a URL that has nothing else in it.
pub(crate) fn host(url: &str) -> Result<&str, Failure> {
    let host = url.strip_prefix("http://").map(|rest| rest.trim_end_matches('/'));
    let host = host.filter(|host| !host.is_empty() && !host.contains(['/', '@', ' ']));
    host.ok_or_else(|| {
        let sentence = format!("{url:?} is not http://HOST:PORT, such as http://127.0.0.1:8080");
        Failure::Usage(sentence)
    })
}

/// A host with its port, which is 80 unless written. The colons of an IPv6 address are in brackets.
fn with_port(host: &str) -> String {
    let has_port = !host.ends_with(']') && host.contains(':');
    if has_port { host.to_owned() } else { format!("{host}:80") }
}

/// Connects to the first address that answers.
fn connect(host: &str) -> io::Result<TcpStream> {
    let mut failed = io::Error::from(io::ErrorKind::NotFound);
    for address in host.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, PATIENCE) {
            Ok(stream) => return Ok(stream),
            Err(error) => failed = error,
        }
    }
    Err(failed)
}

fn exchange(host: &str, request: &str) -> io::Result<Vec<u8>> {
    let mut stream = connect(host)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.write_all(request.as_bytes())?;
    let mut answer = Vec::new();
    stream.take(ANSWER_BYTES_MAX).read_to_end(&mut answer)?;
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_without_a_port_is_at_port_80() {
        for (host, expected) in [
            ("example.org", "example.org:80"),
            ("example.org:8080", "example.org:8080"),
            ("127.0.0.1", "127.0.0.1:80"),
            ("[::1]", "[::1]:80"),
            ("[::1]:8080", "[::1]:8080"),
        ] {
            assert_eq!(with_port(host), expected);
            assert!(host.starts_with("example") || expected.to_socket_addrs().is_ok(), "{host}");
        }
    }
}
