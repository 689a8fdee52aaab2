//! The clients: wrk for HTTP/1.1 and h2load for HTTP/2, both as fast as they are answered.

use std::net::SocketAddr;
use std::process::Command;

use tollgate_bench::question::KEY_FIELD;

use crate::Version;

/// Requests under way: connections of HTTP/1.1, or of HTTP/2 and streams on each.
pub const CONNECTIONS: usize = 50;
pub const CONNECTIONS_2: usize = 10;
pub const STREAMS: usize = 5;

/// What came of asking.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Answered {
    pub allowed: f64,
    pub refused: f64,
    pub seconds: f64,
}

/// Asks for so many whole seconds; neither client can do less.
pub fn ask(version: Version, address: SocketAddr, seconds: u32) -> Result<Answered, String> {
    let key = format!("{KEY_FIELD}: user:00000001");
    let url = format!("http://{address}/");
    let duration = seconds.to_string();
    let (mut command, read): (_, fn(&str) -> Option<Answered>) = match version {
        Version::Http1 => {
            let mut command = Command::new("wrk");
            command.args(["-t", "1", "-c", &CONNECTIONS.to_string(), "-d", &duration]);
            (command, of_wrk)
        }
        Version::Http2 => {
            let mut command = Command::new("h2load");
            command.args(["-t", "1", "-c", &CONNECTIONS_2.to_string(), "-D", &duration]);
            command.args(["-m", &STREAMS.to_string()]);
            (command, of_h2load)
        }
    };
    let output = command.args(["-H", &key, &url]).output();
    let output = output.map_err(|error| format!("{}: {error}", command.get_program().display()))?;
    let text = String::from_utf8_lossy(&output.stdout);
    read(&text).ok_or_else(|| {
        let said = String::from_utf8_lossy(&output.stderr);
        format!("{} said: {text}{said}", command.get_program().display())
    })
}

/// `18669 requests in 1.04s, 2.72MB read`, and what it did not like.
fn of_wrk(text: &str) -> Option<Answered> {
    let requests = number_before(text, " requests in ")?;
    let refused = text.split_once("Non-2xx or 3xx responses: ");
    let refused =
        refused.map_or(Some(0.0), |(_, rest)| rest.lines().next()?.trim().parse().ok())?;
    let seconds = requests / number_after(text, "Requests/sec:")?;
    let is_well = requests > 0.0 && !text.contains("Socket errors");
    is_well.then_some(Answered { allowed: requests - refused, refused, seconds })
}

/// `status codes: 25228 2xx, 0 3xx, 0 4xx, 0 5xx`, and that nothing else came of a request.
fn of_h2load(text: &str) -> Option<Answered> {
    let (allowed, refused) = (number_before(text, " 2xx,")?, number_before(text, " 4xx,")?);
    let seconds = number_after(text, "finished in")?;
    let is_well = allowed + refused > 0.0
        && number_before(text, " errored,")? == 0.0
        && number_before(text, " timeout\n")? == 0.0
        && number_before(text, " 5xx\n")? == 0.0;
    is_well.then_some(Answered { allowed, refused, seconds })
}

fn number_before(text: &str, mark: &str) -> Option<f64> {
    text.split_once(mark)?.0.rsplit(|next: char| !next.is_ascii_digit()).next()?.parse().ok()
}

fn number_after(text: &str, mark: &str) -> Option<f64> {
    let rest = text.split_once(mark)?.1.trim_start();
    rest.split(|next: char| !next.is_ascii_digit() && next != '.').next()?.parse().ok()
}
