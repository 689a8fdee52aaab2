//! `tollgate check`: asks a running server.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use serde_json::{Map, Value, json};
use tollgate_core::Cost;

use crate::output::{self, Failure, Format, Palette, Tone};

const EXAMPLES: &str = "\
Examples:
  tollgate check user=42
  tollgate check --cost 500 tenant=acme path=/v1/chat/completions
  tollgate check --server http://10.0.0.5:8080 --token-file token.txt --output json user=42
  tollgate check user=42 && ./send-the-mail";

/// Ask a running server whether a request may go on
///
/// Ends with 0 if it may and with 3 if it may not.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// What is known of the request
    #[arg(value_name = "NAME=VALUE")]
    attributes: Vec<String>,
    /// Where the server takes decisions over HTTP
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8080")]
    server: String,
    /// What the request costs; 0 only looks
    #[arg(long, default_value = "1", allow_negative_numbers = true)]
    cost: Cost,
    /// The token that the server asks for
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// For whom to write
    #[arg(long, value_enum, default_value_t)]
    output: Format,
}

/// How long a server may take before we give up on it.
const PATIENCE: Duration = Duration::from_secs(10);

/// An answer longer than that is none of ours.
const ANSWER_BYTES_MAX: u64 = 16 << 20;

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let mut attributes = Map::new();
    for pair in &arguments.attributes {
        let named = pair.split_once('=').filter(|(name, _)| !name.is_empty());
        let (name, value) = named.ok_or_else(|| {
            Failure::Usage(format!("{pair:?} is not NAME=VALUE; write for example user=42"))
        })?;
        if attributes.insert(name.to_owned(), value.into()).is_some() {
            return Err(Failure::Usage(format!("{name:?} is given twice; once is enough")));
        }
    }
    let body = json!({"attributes": attributes, "cost": arguments.cost.units()}).to_string();
    let (status, answer) = ask(arguments, &body)?;
    let verdict: Value = serde_json::from_slice(&answer).unwrap_or_default();
    let Some(is_allowed) = verdict["allowed"].as_bool() else {
        let why = verdict["detail"].as_str().unwrap_or("what it answered is not a decision");
        let why = output::visible(why);
        return Err(Failure::Failed(format!("{} answered {status}: {why}", arguments.server)));
    };
    match arguments.output {
        Format::Text => output::data(in_words(&verdict))?,
        Format::Json => output::data(format!("{verdict:#}\n"))?,
    }
    if is_allowed { Ok(()) } else { Err(Failure::Denied) }
}

fn ask(arguments: &Arguments, body: &str) -> Result<(String, Vec<u8>), Failure> {
    let server = &arguments.server;
    let host = server.strip_prefix("http://").map(|rest| rest.trim_end_matches('/'));
    let host = host.filter(|host| !host.is_empty() && !host.contains(['/', '@', ' ']));
    let host = host.ok_or_else(|| {
        Failure::Usage(format!("{server:?} is not http://HOST:PORT, such as http://127.0.0.1:8080"))
    })?;
    let mut head = format!(
        "POST /v1/check HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n",
        body.len()
    );
    if let Some(file) = &arguments.token_file {
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
        .map_err(|error| Failure::Failed(format!("cannot ask {server}: {error}")))?;
    let not_http = || Failure::Failed(format!("{server} does not speak HTTP"));
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n").ok_or_else(not_http)?;
    let head = String::from_utf8_lossy(&answer[..end]);
    let line = head.lines().next().unwrap_or_default();
    let status = line.strip_prefix("HTTP/1.1 ").ok_or_else(not_http)?;
    Ok((output::visible(status), answer[end + 4..].to_vec()))
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

fn in_words(verdict: &Value) -> String {
    let palette = Palette::of_stdout();
    let is_allowed = verdict["allowed"] == true;
    let wait = |of: &Value| of["retry_after_ms"].as_u64().map(|wait| format!("in {wait} ms"));
    let said = match (is_allowed, verdict["reason"].as_str(), wait(verdict)) {
        (true, ..) => "allowed".to_owned(),
        (false, Some(reason), _) => format!("refused: {}", output::visible(reason)),
        (false, None, Some(wait)) => format!("denied; it would be allowed {wait}"),
        (false, None, None) => "denied".to_owned(),
    };
    let tone = if is_allowed { Tone::Good } else { Tone::Bad };
    let mut text = palette.paint(tone, &said) + "\n";
    for limit in verdict["limits"].as_array().into_iter().flatten() {
        let figure = |name: &str| limit[name].as_u64().map_or("?".into(), |it| it.to_string());
        let key = output::visible(limit["key"].as_str().unwrap_or_default());
        let mut line = format!("  {key}: {} of {} left", figure("remaining"), figure("limit"));
        if limit["allowed"] == false {
            line += if limit["shadow"] == true { ", would deny (shadow)" } else { ", denies" };
        }
        text += &format!("{line}\n");
    }
    if let Some(lease) = verdict["lease"].as_str() {
        text += &format!("  lease: {}\n", output::visible(lease));
    }
    text
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
