//! `/metrics` of a running server, as Prometheus and the reader of docs/metrics.md see it.

use std::collections::BTreeSet;
use std::path::Path;

use crate::support::app::App;
use crate::support::parts::on_path;
use crate::support::server::Server;
use crate::{Folder, run};

const PAGE: &str = include_str!("../../../../docs/metrics.md");

/// A server with something to tell: a limit by tier whose name for a tier has to be escaped, and a
/// gateway.
fn start(folder: &Folder, upstream: &str) -> Server {
    let policy = format!(
        r#"listen: {{ http: 127.0.0.1:0, admin: 127.0.0.1:0, gateway: 127.0.0.1:0 }}
upstream: {upstream}
limits:
  - {{ name: api, per: [user], rate: {{ "a\"}} 1\\ \n": 1/hour, default: 2/hour }} }}
  - {{ name: slow, rate: 100/second, algorithm: leaky_bucket, queue: 100 }}
"#
    );
    Server::start(Path::new(&folder.write("policy.yaml", policy)))
}

#[test]
fn promtool_has_nothing_to_say_against_it() {
    let (folder, app) = (Folder::new(), App::start());
    let server = start(&folder, &format!("http://127.0.0.1:{}", app.port));
    for number in 0..200 {
        server.get("http", &format!("/v1/check?user={}", number % 7));
        server.get("gateway", "/");
    }
    let text = server.get("admin", "/metrics").body;
    let run = run(on_path("promtool").args(["check", "metrics"]), &text);
    assert_eq!((run.code, run.stdout.as_str(), run.stderr.as_str()), (Some(0), "", ""), "{text}");
}

#[test]
fn the_page_lists_what_is_served_and_nothing_else() {
    let (folder, app) = (Folder::new(), App::start());
    let server = start(&folder, &format!("http://127.0.0.1:{}", app.port));
    let text = server.get("admin", "/metrics").body;
    // A line of HELP, and one of TYPE, each with the name.
    let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    let served: BTreeSet<(&str, &str)> = types.filter_map(|line| line.split_once(' ')).collect();
    let rows = PAGE.lines().filter_map(|line| line.strip_prefix("| `"));
    let listed = rows.filter_map(|row| {
        let mut columns = row.split(" | ");
        let name = columns.next()?.trim_end_matches('`');
        Some((name, columns.next()?)).filter(|(name, _)| !name.contains(' '))
    });
    let kinds = ["counter", "gauge", "histogram"];
    let listed: BTreeSet<(&str, &str)> = listed.filter(|(_, kind)| kinds.contains(kind)).collect();
    assert_eq!(listed, served);
    let words = PAGE.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
    for word in words.filter(|word| word.starts_with("tollgate_")) {
        let parts = ["_bucket", "_sum", "_count"].iter().find_map(|end| word.strip_suffix(end));
        let is_served = |name: &str| served.iter().any(|(served, _)| *served == name);
        assert!(is_served(word) || parts.is_some_and(is_served), "{word} is not served");
    }
}
