//! What deploy/ has for Prometheus and Grafana, tried on Prometheus itself.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::Path;

use serde_json::Value;

use crate::support::app::App;
use crate::support::http::{self, Connection};
use crate::support::parts::on_path;
use crate::support::process::Process;
use crate::support::server::Server;
use crate::support::{copy_folder, eventually, free_port, local, until_open, with_ports};
use crate::{Folder, root, run, tollgate};

const RULES: &str = include_str!("../../../../deploy/prometheus/alerts.yml");
const RULE_TESTS: &str = include_str!("../../../../deploy/prometheus/alerts_test.yml");
const CONFIGURATION: &str = include_str!("../../../../deploy/prometheus/prometheus.yml");
const DASHBOARD: &str = include_str!("../../../../deploy/grafana/tollgate.json");
const PAGE: &str = include_str!("../../../../docs/metrics.md");

/// A server with a limit that a client can meet, and with something behind its gateway.
fn start(folder: &Folder, app: &App) -> Server {
    let policy = format!(
        "listen: {{ http: 127.0.0.1:0, admin: 127.0.0.1:0, gateway: 127.0.0.1:0 }}
upstream: http://127.0.0.1:{}
limits:
  - {{ name: api, per: [user], rate: 1/hour }}
  - {{ name: tried, rate: 1/hour, mode: shadow }}
",
        app.port
    );
    Server::start(Path::new(&folder.write("policy.yaml", policy)))
}

fn promtool(arguments: &[&str]) {
    let run = run(on_path("promtool").args(arguments).current_dir(root()), "");
    assert_eq!(run.code, Some(0), "promtool {arguments:?}:\n{}{}", run.stdout, run.stderr);
}

fn dashboard() -> Value {
    serde_json::from_str(DASHBOARD).expect("it is JSON")
}

/// What panels and notes ask Prometheus, as Grafana asks it when everything is chosen.
fn queries() -> Vec<String> {
    let dashboard = dashboard();
    let each = |list: &Value| list.as_array().expect("it is a list").clone();
    let targets = each(&dashboard["panels"]).into_iter().filter(|panel| panel["type"] != "row");
    let targets = targets.flat_map(|panel| each(&panel["targets"]));
    let notes = each(&dashboard["annotations"]["list"]);
    let variables = [("$__rate_interval", "1m"), ("$job", ".*"), ("$instance", ".*")];
    let asked = |target: Value| {
        let query = target["expr"].as_str().expect("it asks something").replace("$limit", ".*");
        variables.iter().fold(query, |query, (name, value)| query.replace(name, value))
    };
    targets.chain(notes).map(asked).collect()
}

/// The names of metrics in PromQL, or in YAML that holds it.
fn names(text: &str) -> BTreeSet<&str> {
    let words = text.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
    let is_name = |word: &&str| word.starts_with("tollgate_") || word.starts_with("process_");
    words.filter(is_name).collect()
}

/// The names of all alerts.
fn alerts() -> Vec<&'static str> {
    RULES.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect()
}

#[test]
fn promtool_accepts_the_configuration_and_the_rules_and_what_they_were_tried_on() {
    promtool(&["check", "config", "deploy/prometheus/prometheus.yml"]);
    promtool(&["check", "rules", "deploy/prometheus/alerts.yml"]);
    promtool(&["test", "rules", "deploy/prometheus/alerts_test.yml"]);
}

#[test]
fn every_alert_is_tried_listed_and_says_how_bad_it_is_and_what_to_do() {
    for alert in alerts() {
        assert!(RULE_TESTS.contains(&format!("alertname=\"{alert}\"")), "{alert} is not tried");
        assert!(PAGE.contains(&format!("\n| `{alert}` | ")), "{alert} is not in docs/metrics.md");
    }
    let count = |text: &str| RULES.matches(text).count();
    assert!(alerts().len() > 10);
    assert_eq!(count("severity: critical }") + count("severity: warning }"), alerts().len());
    assert_eq!((count("summary: "), count("description: >-")), (alerts().len(), alerts().len()));
    // What to do is said in commands that there are.
    let commands = RULES.split("`tollgate ").skip(1).filter_map(|rest| rest.split('`').next());
    let commands: Vec<&str> = commands.collect();
    assert!(commands.len() > 3, "{commands:?}");
    for command in commands {
        let words: Vec<&str> = command.split(' ').chain(["--help"]).collect();
        assert_eq!(tollgate(&words).code, Some(0), "tollgate {command}");
    }
}

#[test]
fn prometheus_understands_what_the_dashboard_asks() {
    let mut rules = "groups:\n  - name: queries\n    rules:\n".to_owned();
    for (number, query) in queries().into_iter().enumerate() {
        // A string of JSON is one of YAML.
        rules += &format!("      - {{ record: query_{number}, expr: {} }}\n", Value::from(query));
    }
    let folder = Folder::new();
    let file = folder.write("queries.yml", rules);
    promtool(&["check", "rules", &file]);
}

#[test]
fn every_metric_that_is_asked_for_is_served() {
    let (folder, app) = (Folder::new(), App::start());
    let server = start(&folder, &app);
    let text = server.get("admin", "/metrics").body;
    let served: BTreeSet<&str> =
        text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect();
    let queries = queries().join("\n");
    let asked = [RULES, RULE_TESTS, &queries].map(names);
    assert!(asked.iter().all(|names| names.len() > 10), "{asked:?}");
    for name in asked.iter().flatten() {
        let parts = ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end));
        let is_served = served.contains(name) || parts.is_some_and(|name| served.contains(name));
        assert!(is_served, "{name} is not served");
    }
    // And the other way: what is served is shown.
    let shown = names(&queries);
    for name in &served {
        let is_shown =
            shown.iter().any(|asked| asked.strip_suffix("_bucket").unwrap_or(asked) == *name);
        assert!(is_shown, "no panel shows {name}");
    }
}

#[test]
fn panels_have_numbers_of_their_own_do_not_overlap_and_ask_the_chosen_source() {
    let dashboard = dashboard();
    let panels = dashboard["panels"].as_array().unwrap();
    let ids: BTreeSet<u64> = panels.iter().map(|panel| panel["id"].as_u64().unwrap()).collect();
    assert_eq!(ids.len(), panels.len());
    let mut taken = BTreeSet::new();
    for panel in panels {
        let side = |name: &str| panel["gridPos"][name].as_u64().unwrap();
        assert!(side("x") + side("w") <= 24, "{panel}");
        for x in side("x")..side("x") + side("w") {
            for y in side("y")..side("y") + side("h") {
                assert!(taken.insert((x, y)), "{} lies on another", panel["title"]);
            }
        }
        let source = panel["type"] == "row" || panel["datasource"]["uid"] == "${datasource}";
        assert!(source, "{}", panel["title"]);
    }
    assert_eq!(dashboard["templating"]["list"][0]["type"], "datasource");
}

/// Prometheus with the configuration of deploy/, but for the server's port and a shorter pause.
struct Prometheus {
    _process: Process,
    address: SocketAddr,
}

impl Prometheus {
    fn start(folder: &Folder, server: &Server) -> Self {
        copy_folder(&root().join("deploy/prometheus"), &folder.0);
        assert_eq!(CONFIGURATION.matches("15s").count(), 2);
        let configuration = CONFIGURATION.replace("15s", "500ms");
        let configuration = with_ports(&configuration, &[(8082, server.address("admin").port())]);
        let file = folder.write("prometheus.yml", configuration);
        let address = local(free_port());
        let mut command = on_path("prometheus");
        command.arg(format!("--config.file={file}"));
        command.arg(format!("--storage.tsdb.path={}", folder.path("data")));
        command.arg(format!("--web.listen-address={address}"));
        let process = Process::start(command, Path::new(&folder.path("prometheus.log")));
        until_open(address);
        Self { _process: process, address }
    }

    /// What it answers to a query: the series.
    fn ask(&self, query: &str) -> Vec<Value> {
        let byte = |byte: u8| format!("%{byte:02X}");
        let query: String = query.bytes().map(byte).collect();
        let form = [("content-type", "application/x-www-form-urlencoded")];
        let body = format!("query={query}");
        let answer = http::request(self.address, "POST", "/api/v1/query", &form, &body);
        // It does not answer so before it has read what it stored.
        if answer.status == 503 {
            return Vec::new();
        }
        assert_eq!(answer.status, 200, "{}", answer.body);
        answer.json()["data"]["result"].as_array().expect("they are a list").clone()
    }

    /// The alerts that fire, once there are any.
    fn firing(&self) -> Vec<Value> {
        eventually("an alert fires", || {
            let answer = http::get(self.address, "/api/v1/alerts", &[]);
            let alerts = (answer.status == 200).then(|| answer.json()["data"]["alerts"].clone())?;
            let alerts = alerts.as_array()?.iter().filter(|alert| alert["state"] == "firing");
            Some(alerts.cloned().collect::<Vec<_>>()).filter(|firing| !firing.is_empty())
        })
    }
}

#[test]
fn prometheus_fires_the_storm_alert_on_a_client_that_does_not_wait_and_fills_every_panel() {
    let (folder, app) = (Folder::new(), App::start());
    let server = start(&folder, &app);
    let data = Folder::new();
    let prometheus = Prometheus::start(&data, &server);
    let mut client = Connection::open(server.address("http"));
    let mut denied = 0;
    for _ in 0..300 {
        let answer = client.ask("GET", "/v1/check?user=anna", &[], "").unwrap();
        denied += usize::from(answer.field("retry-after").is_some());
        server.get("gateway", "/");
    }
    assert!(denied > 290, "it was told to wait, and did not: {denied}");
    let firing = prometheus.firing();
    assert_eq!(firing.len(), 1, "{firing:?}");
    let alert = &firing[0];
    assert_eq!(alert["labels"]["alertname"], "TollgateRetryStorm");
    let instance = server.address("admin");
    let summary = format!("Clients of {instance} come back before the wait they were told");
    assert_eq!(alert["annotations"]["summary"], summary.as_str());
    // There is neither Redis nor a tenant here, and no policy was loaded anew.
    let absent = ["tollgate_redis_", "tollgate_tenant_", "changes("];
    let is_empty = |query: &str| absent.iter().any(|word| query.contains(word));
    for query in queries().iter().filter(|query| !is_empty(query)) {
        eventually(&format!("there is an answer to {query}"), || {
            (!prometheus.ask(query).is_empty()).then_some(())
        });
    }
    let early = prometheus.ask(r#"tollgate_early_returns_total{limit="api"}"#);
    let count: f64 = early[0]["value"][1].as_str().unwrap().parse().unwrap();
    assert!(count > 100.0, "{early:?}");
}
