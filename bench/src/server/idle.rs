//! Memory of connections that say nothing.

use tollgate_bench::load::Link;
use tollgate_bench::question::Script;
use tollgate_bench::serve::{Protocol, Server};

use crate::contender::Contender;

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
