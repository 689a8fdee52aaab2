//! Asking a running server over HTTP.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::bounds::{ANSWER_BYTES_MAX, ANSWER_MAX};
use crate::output::{self, Failure};

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
        let body = self.asked(request, body)?;
        Ok(serde_json::from_slice(&body).unwrap_or_default())
    }

    /// What `T` has room for of the JSON that a request is answered with, and nothing else of it.
    pub(crate) fn told<T: DeserializeOwned>(&self, request: &str) -> Result<T, Failure> {
        let body = self.asked(request, "")?;
        serde_json::from_slice(&body).map_err(|error| {
            let sentence = format!("{} answers in another way than expected: {error}", self.server);
            Failure::Failed(sentence)
        })
    }

    /// The body that a request is answered with, if it is answered well.
    fn asked(&self, request: &str, body: &str) -> Result<Vec<u8>, Failure> {
        let server = Server { url: &self.server, token_file: self.token_file.as_deref() };
        let Reply { status, body } = server.ask(request, body)?;
        if status.starts_with("200 ") {
            return Ok(body);
        }
        let told: Problem = serde_json::from_slice(&body).unwrap_or_default();
        let why = match (&self.token_file, told.detail.as_deref()) {
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

/// Why something was not answered well.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Problem {
    detail: Option<String>,
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
        let request = format!("{head}\r\n{body}");
        let mut answer = exchange(&with_port(host), &request, ANSWER_MAX)
            .map_err(|error| Failure::Failed(format!("cannot ask {url}: {error}")))?;
        let not_http = || Failure::Failed(format!("{url} does not speak HTTP"));
        let end = answer.windows(4).position(|four| four == b"\r\n\r\n").ok_or_else(not_http)?;
        let head = String::from_utf8_lossy(&answer[..end]);
        let line = head.lines().next().unwrap_or_default();
        let status = output::visible(line.strip_prefix("HTTP/1.1 ").ok_or_else(not_http)?);
        answer.drain(..end + 4);
        Ok(Reply { status, body: answer })
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

/// Sends a request, and reads all of its answer, in so much time in all: a server that sends a byte now
/// and then is not waited for any longer than one that sends none.
fn exchange(host: &str, request: &str, patience: Duration) -> io::Result<Vec<u8>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let exchanged = runtime.block_on(async { timeout(patience, converse(host, request)).await });
    // A name that takes for ever to be looked up is not waited for.
    runtime.shutdown_background();
    exchanged.unwrap_or_else(|_| {
        let sentence = format!("it has not answered within {}s", patience.as_secs_f32());
        Err(io::Error::new(io::ErrorKind::TimedOut, sentence))
    })
}

async fn converse(host: &str, request: &str) -> io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(host).await?;
    stream.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    stream.take(ANSWER_BYTES_MAX).read_to_end(&mut answer).await?;
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, ToSocketAddrs};
    use std::thread;

    use super::*;

    #[test]
    fn a_server_that_sends_a_byte_now_and_then_is_not_waited_for_longer_than_another() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let host = listener.local_addr().unwrap().to_string();
        let server = thread::spawn(move || {
            let (mut client, _) = listener.accept().unwrap();
            client.set_read_timeout(Some(Duration::from_millis(5))).unwrap();
            // As long as somebody listens, a byte each time that nothing was heard of them.
            while client.write_all(b"H").is_ok() && !matches!(client.read(&mut [0; 64]), Ok(0)) {}
        });
        let error =
            exchange(&host, "GET / HTTP/1.1\r\n\r\n", Duration::from_millis(100)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert_eq!(error.to_string(), "it has not answered within 0.1s");
        server.join().unwrap();
    }

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
