//! What is deployed names what exists.

use std::fs;
use std::path::Path;

use crate::support::http;
use crate::support::server::Server;
use crate::support::{local, with_ports};
use crate::{Folder, root, tollgate};

fn read(file: &str) -> String {
    fs::read_to_string(root().join(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
}

/// Whether these arguments are understood, up to a policy that is not there.
fn check_arguments(arguments: &[&str]) {
    let run = tollgate(arguments);
    assert_eq!(run.code, Some(1), "{arguments:?}: {}", run.stderr);
    assert!(run.stderr.contains("policy.yaml cannot be read"), "{}", run.stderr);
}

#[test]
fn the_systemd_unit_starts_what_there_is() {
    let unit = read("deploy/tollgate.service");
    let start = unit.lines().find_map(|line| line.strip_prefix("ExecStart=")).unwrap();
    let (program, arguments) = start.split_once(' ').unwrap();
    assert_eq!(program, "/usr/bin/tollgate");
    check_arguments(&arguments.split(' ').collect::<Vec<_>>());
}

#[test]
fn the_image_starts_what_there_is() {
    let file = read("Dockerfile");
    let list = |instruction: &str| -> Vec<String> {
        let line = file.lines().find_map(|line| line.strip_prefix(instruction)).unwrap();
        serde_json::from_str(line.trim()).unwrap()
    };
    assert_eq!(list("ENTRYPOINT"), ["/usr/bin/tollgate"]);
    let arguments = list("CMD");
    check_arguments(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
}

#[test]
fn the_policy_of_the_kubernetes_example_is_served() {
    let manifest = read("examples/kubernetes/tollgate.yaml");
    let (_, data) = manifest.split_once("  policy.yaml: |\n").unwrap();
    let lines = data.lines().take_while(|line| *line != "---");
    let policy = lines.map(|line| line.strip_prefix("    ").unwrap_or(line).to_owned() + "\n");
    let policy: String = policy.collect();
    let folder = Folder::with(&[("token", "a-token-of-some-length\n")]);
    let policy = with_ports(&policy, &[(8080, 0), (8081, 0), (8082, 0)]);
    let policy = policy.replace("/etc/tollgate/secret/token", &folder.path("token"));
    let server = Server::start(Path::new(&folder.write("policy.yaml", policy)));
    let admin = local(server.address("admin").port());
    for line in manifest.lines().filter_map(|line| line.trim().strip_prefix("httpGet: { path: ")) {
        let path = line.split(',').next().unwrap();
        assert_eq!(http::get(admin, path, &[]).status, 200, "{path}");
    }
    let (_, arguments) = manifest.split_once("args: [").unwrap();
    let arguments = arguments.split_once(']').unwrap().0;
    check_arguments(&arguments.split(", ").collect::<Vec<_>>());
}
