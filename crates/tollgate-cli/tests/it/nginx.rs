//! The real nginx asks with `auth_request`, with examples/nginx as it is.

use std::path::Path;

use crate::Folder;
use crate::support::app::App;
use crate::support::http;
use crate::support::parts;
use crate::support::process::Process;
use crate::support::server::Server;
use crate::support::{example_with_ports, free_port, local, until_open};

/// What Debian's nginx.conf has around it, with every path in a folder of ours, and as one process:
/// workers would outlive a master that is killed.
const AROUND: &str = "
daemon off;
master_process off;
pid nginx.pid;
events {}
http {
    access_log off;
    client_body_temp_path body;
    proxy_temp_path proxy;
    fastcgi_temp_path fastcgi;
    uwsgi_temp_path uwsgi;
    scgi_temp_path scgi;
    include tollgate.conf;
}
";

#[test]
fn nginx_lets_through_what_may_go_on_and_answers_the_rest_with_429() {
    let folder = Folder::new();
    let ports = [(8080, 0), (8082, 0)];
    let policy = folder.write("policy.yaml", example_with_ports("nginx/policy.yaml", &ports));
    let mut server = Server::start(Path::new(&policy));
    let app = App::start();
    let address = local(free_port());
    let ports = [(8000, address.port()), (8080, server.address("http").port()), (3000, app.port)];
    folder.write("tollgate.conf", example_with_ports("nginx/tollgate.conf", &ports));
    let config = folder.write("nginx.conf", AROUND);
    let mut nginx = parts::on_path("nginx");
    nginx.args(["-e", "stderr", "-p", &folder.path(""), "-c", &config]);
    let _nginx = Process::start(nginx, &folder.0.join("nginx.log"));
    until_open(address);

    let login = || http::request(address, "POST", "/login?next=/", &[], "name=anna&password=x");
    assert_eq!([login().status, login().status], [200, 200]);
    let denied = login();
    assert_eq!(denied.status, 429, "{denied:?}");
    assert_eq!(denied.field("content-type"), Some("application/problem+json"));
    let wait: u32 = denied.field("retry-after").expect("a wait is told").parse().unwrap();
    assert!((1..=2340).contains(&wait), "one of 2 an hour comes back in 30 minutes, not {wait} s");
    assert!(denied.field("ratelimit").is_some_and(|it| it.contains("\"login\";r=0")), "{denied:?}");
    assert_eq!(app.requests(), 2, "a denied request does not get through");

    // Denied logins were not charged to the other limit, and claims of clients change nothing.
    let get = |claim: &str| http::get(address, "/", &[("X-Forwarded-For", claim)]);
    let answers = [get("203.0.113.1"), get("203.0.113.2"), get("203.0.113.3"), get("203.0.113.4")];
    assert_eq!(answers.each_ref().map(|answer| answer.status), [200, 200, 200, 429]);
    assert!(answers[0].field("ratelimit").is_some_and(|it| it.contains("\"by-address\";r=2")));

    server.process.kill();
    assert_eq!(get("203.0.113.5").status, 200, "with tollgate gone, requests go through");
}
