//! Memory of connections that say nothing.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::contender::Contender;
use crate::load::Link;
use crate::process::{Protocol, Server};
use crate::question::Script;

/// Lets us and the servers we start open as many connections as the system lets us at all.
pub fn raise_limits() -> Result<(), String> {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit })
        .map_err(|error| format!("raising the number of open files: {error}"))
}

/// KiB that the server grew by, per connection.
pub fn measure(
    server: &Server,
    contender: &Contender,
    protocol: Protocol,
    connections: usize,
) -> Result<f64, String> {
    let script = Script::new(contender.question);
    let open = || Link::open(server.address(protocol), &script);
    // What the first ones bring about is not theirs.
    let _first: Vec<Link> = (0..10).map(|_| open()).collect::<Result<_, _>>()?;
    let before = server.resident_kibibytes();
    let _links: Vec<Link> = (0..connections).map(|_| open()).collect::<Result<_, _>>()?;
    Ok((server.resident_kibibytes() - before) / connections as f64)
}
