//! The dashboard, in a real browser on a real server.
//!
//! The checks are in `dashboard/checks.cjs`, since what drives a browser speaks JavaScript. One run
//! of it tries them all and tells each by its name.

use std::env;
use std::fs;
use std::path::Path;
use std::process::Command;

use crate::support::parts;
use crate::support::server::Server;
use crate::{Folder, root};

const POLICY: &str = "
listen:
  http: 127.0.0.1:0
  admin: { address: 127.0.0.1:0, token_file: token.txt }
limits:
  - { name: api, per: [user], rate: 5/hour, algorithm: token_bucket }
  - { name: daily, per: [user], rate: 1000/day, algorithm: fixed_window }
  - { name: everyone, rate: 1000000/second, mode: shadow }
";
const TOKEN: &str = "s3cret";

/// A server, and what runs a script on a browser that looks at it.
fn browser(folder: &Folder, policy: &str, script: &str) -> (Server, Command) {
    folder.write("token.txt", TOKEN);
    let policy = folder.write("policy.yaml", policy);
    let server = Server::start(Path::new(&policy));
    let address = |door| format!("http://{}", server.address(door));
    let mut node = parts::node();
    node.arg(root().join("crates/tollgate-cli/tests/it/dashboard").join(script))
        .env("TOLLGATE_ADMIN", address("admin"))
        .env("TOLLGATE_HTTP", address("http"))
        .env("TOLLGATE_POLICY", policy)
        .env("TOLLGATE_TOKEN", TOKEN)
        .env("TOLLGATE_CHROMIUM", parts::on_path("chromium").get_program());
    (server, node)
}

#[test]
fn the_dashboard_does_what_it_promises_in_a_browser() {
    let folder = Folder::new();
    let (_server, mut node) = browser(&folder, POLICY, "checks.cjs");
    let output = node.output().expect("node starts");
    let (told, said) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && told.contains("ok: "), "{told}{said}");
}

#[test]
fn the_page_needs_no_token_and_comes_under_a_strict_policy() {
    let folder = Folder::new();
    folder.write("token.txt", TOKEN);
    let server = Server::start(Path::new(&folder.write("policy.yaml", POLICY)));
    assert_eq!(server.get("admin", "/v1/live").status, 401);
    for (path, kind) in [
        ("/", "text/html; charset=utf-8"),
        ("/dashboard.js", "text/javascript; charset=utf-8"),
        ("/dashboard.css", "text/css; charset=utf-8"),
        ("/icon.svg", "image/svg+xml"),
    ] {
        let answer = server.get("admin", path);
        assert_eq!((answer.status, answer.field("content-type")), (200, Some(kind)), "{path}");
        assert_eq!(
            answer.field("content-security-policy"),
            Some(
                "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
                 img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
            ),
            "{path}"
        );
        assert_eq!(answer.field("x-content-type-options"), Some("nosniff"), "{path}");
        assert_eq!(answer.field("referrer-policy"), Some("no-referrer"), "{path}");
        assert_eq!(answer.field("cache-control"), Some("no-store"), "{path}");
        assert_eq!(server.post("admin", path, "{}").status, 405, "{path}");
    }
}

const PICTURED: &str = "
listen:
  http: 127.0.0.1:0
  admin: { address: 127.0.0.1:0, token_file: token.txt }
limits:
  - { name: login, when: { path: /login }, per: [client_ip], rate: 5/minute, algorithm: sliding_log }
  - name: api
    per: [tenant]
    rate: { enterprise: 6000/minute, pro: 600/minute, default: 60/minute }
    algorithm: token_bucket
    burst: { enterprise: 200, pro: 60, default: 30 }
  - name: daily
    per: [tenant]
    rate: { enterprise: 500000/day, pro: 50000/day, default: 1000/day }
    algorithm: fixed_window
  - { name: search, when: { path: /search }, per: [tenant], rate: 10/second }
  - { name: everyone, rate: 400/second, mode: shadow }
";

/// Where pictures are to go and after how many seconds of traffic, if anybody says so.
const PICTURES: &str = "TOLLGATE_PICTURES";
const SECONDS: &str = "TOLLGATE_SECONDS";
/// Pictures are looked at over the network.
const PICTURE_BYTES_MAX: u64 = 150_000;

#[test]
fn pictures_are_taken_that_are_small_enough_for_the_docs() {
    let folder = Folder::new();
    let (_server, mut node) = browser(&folder, PICTURED, "pictures.cjs");
    let place = env::var(PICTURES).unwrap_or_else(|_| folder.0.display().to_string());
    let seconds = env::var(SECONDS).unwrap_or_else(|_| "1".to_owned());
    let status = node.env(PICTURES, &place).env(SECONDS, seconds).status();
    assert!(status.expect("node starts").success());
    let files =
        fs::read_dir(&place).expect("it is a folder").map(|file| file.expect("it is there"));
    let pictures = files.filter(|file| file.file_name().to_string_lossy().starts_with("dashboard"));
    for picture in pictures {
        let bytes = picture.metadata().expect("it is there").len();
        assert!((1..PICTURE_BYTES_MAX).contains(&bytes), "{picture:?} has {bytes} bytes");
    }
}
