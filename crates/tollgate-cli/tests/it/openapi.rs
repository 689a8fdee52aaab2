//! What /openapi.json says is what the server does, as a schema-driven tester finds it.

use std::path::Path;

use crate::Folder;
use crate::support::parts;
use crate::support::server::Server;

const POLICY: &str = "
listen: { http: 127.0.0.1:0 }
limits:
  - { name: few, per: [user], rate: 5/hour }
  - { name: at-once, per: [user], concurrency: 100000 }
  - { name: all, rate: 1000000/hour, algorithm: token_bucket }
";

/// Where the tester's idea of HTTP is not ours.
const SETTINGS: &str = r#"
# Too many checks in one batch are too large a body.
[checks.negative_data_rejection]
expected-statuses = [400, 401, 404, 405, 413]

# A lease that nobody holds is not found, nor is a reservation, and who sends too much is denied.
[checks.positive_data_acceptance]
expected-statuses = ["2xx", 404, 429]

# It answers with the status that it is told to answer with, to any method.
[[operations]]
include-path = "/v1/forward-auth"
checks.not_a_server_error.enabled = false
checks.positive_data_acceptance.enabled = false
phases.coverage.unexpected-methods = []

# To a schema 1.0 is a whole number; here numbers are digits.
[[operations]]
include-method = "POST"
include-path-regex = "^/(v1/check|v1/check/batch|v1/reserve|v1/settle|json)$"
checks.positive_data_acceptance.enabled = false
"#;

#[test]
fn schemathesis_finds_nothing_that_the_document_does_not_say() {
    let folder = Folder::with(&[("schemathesis.toml", SETTINGS)]);
    let server = Server::start(Path::new(&folder.write("policy.yaml", POLICY)));
    let document = format!("http://{}/openapi.json", server.address("http"));
    let mut tester = parts::python("schemathesis");
    tester.args(["run", &document, "--max-examples", "20"]);
    tester.args(["--generation-deterministic", "--no-color", "--workers", "1"]);
    let output = tester.current_dir(&folder.0).output().expect("it starts");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
    assert_eq!(server.get("http", "/v1/check?user=1").status, 200, "it still answers");
}
