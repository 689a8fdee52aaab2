//! Metrics and traces as OpenTelemetry's own package reads them.

use std::path::Path;

use serde_json::Value;

use crate::Folder;
use crate::support::process::Process;
use crate::support::server::Server;
use crate::support::{eventually, free_port, http, local, parts, until_open};

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const PARENT: &str = "b7ad6b7169203331";

/// Something that collects, at a port.
struct Collector {
    _process: Process,
    folder: Folder,
    port: u16,
}

impl Collector {
    fn start() -> Self {
        let (folder, port) = (Folder::with(&[("lines", "")]), free_port());
        let mut python = parts::python("python");
        python.arg(crate::root().join("crates/tollgate-cli/tests/it/otlp/collector.py"));
        python.arg(port.to_string()).arg(folder.0.join("lines"));
        let process = Process::start(python, &folder.0.join("log"));
        until_open(local(port));
        Self { _process: process, folder, port }
    }

    /// A server that sends to it.
    fn server(&self, more: &str) -> Server {
        let port = self.port;
        let policy = format!(
            "listen: {{ http: 127.0.0.1:0, admin: 127.0.0.1:0, gateway: 127.0.0.1:0 }}\n\
             upstream: http://127.0.0.1:{port}\n\
             limits: [{{ name: api, per: [user], rate: 2/hour }}]\n\
             observe: {{ otlp: {{ endpoint: 'http://127.0.0.1:{port}/under/', {more} }} }}\n"
        );
        Server::start(Path::new(&self.folder.write("policy.yaml", &policy)))
    }

    /// All messages so far that came to a path.
    fn messages(&self, path: &str) -> Vec<Value> {
        let lines = std::fs::read_to_string(self.folder.0.join("lines")).expect("it is there");
        let lines = lines.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        lines.filter(|line| line["path"] == path).collect()
    }

    /// The figures of a metric, by its attributes, as they were sent last.
    fn points(&self, name: &str) -> Vec<(Vec<String>, Value)> {
        let Some(last) = self.messages("/under/v1/metrics").pop() else { return Vec::new() };
        let scope = &last["message"]["resource_metrics"][0]["scope_metrics"][0];
        let metrics = scope["metrics"].as_array().expect("metrics");
        let Some(metric) = metrics.iter().find(|metric| metric["name"] == name) else {
            return Vec::new();
        };
        let data = ["sum", "gauge", "histogram"].iter().find_map(|kind| metric.get(kind));
        let points = data.and_then(|data| data["data_points"].as_array()).into_iter().flatten();
        points.map(|point| (attributes(point), point.clone())).collect()
    }
}

fn attributes(of: &Value) -> Vec<String> {
    let attributes = of["attributes"].as_array().into_iter().flatten();
    let text = |it: &Value| {
        let value = &it["value"];
        let value = value["string_value"].as_str().or(value["int_value"].as_str());
        format!("{}={}", it["key"].as_str().unwrap_or_default(), value.unwrap_or_default())
    };
    attributes.map(text).collect()
}

#[test]
fn metrics_are_sent_as_they_are_told_to_prometheus() {
    let collector = Collector::start();
    let server = collector.server("interval: 1s");
    for _ in 0..5 {
        server.get("http", "/v1/check?user=1");
    }
    let denied = ["limit=api", "tier=", "outcome=denied"];
    let point = eventually("three denials are told", || {
        let points = collector.points("tollgate_decisions_total");
        let (_, point) = points.into_iter().find(|(attributes, _)| attributes == &denied)?;
        (point["as_int"] == "3").then_some(point)
    });
    let (started, at) = (&point["start_time_unix_nano"], &point["time_unix_nano"]);
    assert!(started.as_str() < at.as_str(), "{point}");
    let last = collector.messages("/under/v1/metrics").pop().unwrap();
    assert_eq!(last["type"], "application/x-protobuf");
    let resource = &last["message"]["resource_metrics"][0]["resource"];
    assert_eq!(attributes(resource)[0], "service.name=tollgate");
    // Every metric of the text is there, and as what it is.
    let text = server.get("admin", "/metrics").body;
    let metrics = &last["message"]["resource_metrics"][0]["scope_metrics"][0]["metrics"];
    let kind = |name: &str| {
        let metric = metrics.as_array().unwrap().iter().find(|it| it["name"] == name);
        let metric = metric.unwrap_or_else(|| panic!("{name} is not sent"));
        let kinds = [("sum", "counter"), ("gauge", "gauge"), ("histogram", "histogram")];
        // A gauge of nothing is written as nothing.
        kinds.iter().find(|(field, _)| metric.get(field).is_some()).map_or("gauge", |it| it.1)
    };
    let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    let types: Vec<(&str, &str)> = types.filter_map(|line| line.split_once(' ')).collect();
    assert!(types.len() > 30, "{text}");
    for (name, expected) in types {
        assert_eq!(kind(name), expected, "{name}");
    }
    let (_, checks) = &collector.points("tollgate_check_duration_seconds")[0];
    let counts = checks["bucket_counts"].as_array().unwrap();
    let sum: u64 = counts.iter().map(|it| it.as_str().unwrap().parse::<u64>().unwrap()).sum();
    assert_eq!(checks["count"], sum.to_string());
    assert_eq!(counts.len(), checks["explicit_bounds"].as_array().unwrap().len() + 1);
}

#[test]
fn a_request_is_told_about_in_its_callers_trace_and_the_server_behind_is_told_so() {
    let collector = Collector::start();
    let server = collector.server("interval: 1s, traces: 0.0001%");
    let parent = format!("00-{TRACE}-{PARENT}-01");
    let unsampled = format!("00-{TRACE}-{PARENT}-00");
    // Whether requests are traced is heard of when the policy is first looked at.
    let spans = eventually("both doors tell", || {
        for traceparent in [&parent, &unsampled] {
            let fields = [("traceparent", &**traceparent)];
            http::get(server.address("http"), "/v1/check?user=1", &fields);
            http::get(server.address("gateway"), "/", &fields);
        }
        let messages = collector.messages("/under/v1/traces");
        let spans: Vec<Value> = messages
            .iter()
            .flat_map(|it| {
                it["message"]["resource_spans"][0]["scope_spans"][0]["spans"].as_array().cloned()
            })
            .flatten()
            .collect();
        let has = |name: &str| spans.iter().any(|span| span["name"] == name);
        (has("tollgate http") && has("tollgate gateway")).then_some(spans)
    });
    for span in &spans {
        // OpenTelemetry's JSON has ids in base 64 here, since this is protobuf's own.
        assert_eq!(span["trace_id"], "CvdlGRbNQ92ESOshHIAxnA==");
        assert_eq!(span["parent_span_id"], "t61rcWkgMzE=");
        assert_eq!(span["kind"], "SPAN_KIND_SERVER");
        let (start, end) = (&span["start_time_unix_nano"], &span["end_time_unix_nano"]);
        assert!(start.as_str() <= end.as_str(), "{span}");
        let told = attributes(span);
        assert!(told.contains(&"http.request.method=GET".to_owned()), "{told:?}");
    }
    let denied = spans
        .iter()
        .any(|span| attributes(span).contains(&"http.response.status_code=429".to_owned()));
    assert!(denied, "{spans:?}");
}

#[test]
fn what_came_up_to_the_end_is_sent_then() {
    let collector = Collector::start();
    let mut server = collector.server("interval: 1h");
    for _ in 0..5 {
        server.get("http", "/v1/check?user=1");
    }
    server.process.signal("TERM");
    assert!(server.process.ended().success());
    let points = collector.points("tollgate_decisions_total");
    let denied = ["limit=api", "tier=", "outcome=denied"];
    let point = points.iter().find(|(attributes, _)| attributes == &denied);
    assert_eq!(point.map(|(_, point)| &point["as_int"]), Some(&Value::from("3")), "{points:?}");
}

#[test]
fn a_collector_that_is_away_is_told_of_once_and_costs_no_request() {
    let collector = Collector::start();
    let port = free_port();
    let policy = format!(
        "listen: {{ http: 127.0.0.1:0, admin: 127.0.0.1:0 }}\n\
         limits: []\n\
         observe: {{ otlp: {{ endpoint: 'http://127.0.0.1:{port}', interval: 1s }} }}\n"
    );
    let server = Server::start(Path::new(&collector.folder.write("policy.yaml", &policy)));
    eventually("two attempts have failed", || {
        assert_eq!(server.get("http", "/v1/check?user=1").status, 200);
        let text = server.get("admin", "/metrics").body;
        let failed = "tollgate_otlp_exports_total{signal=\"metrics\",outcome=\"failed\"} 2";
        text.contains(failed).then_some(())
    });
    let log = server.log();
    let told = log.iter().filter(|line| line.contains("cannot send metrics")).count();
    assert_eq!(told, 1, "{log:?}");
    // Where it is sent changes with the policy, live.
    let policy = policy
        .replace(&format!("127.0.0.1:{port}"), &format!("127.0.0.1:{}/under", collector.port));
    collector.folder.write("policy.yaml", &policy);
    server.says("the collector answers again");
    assert!(!collector.messages("/under/v1/metrics").is_empty());
}
