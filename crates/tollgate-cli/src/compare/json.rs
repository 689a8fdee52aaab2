//! A comparison for programs. Times are microseconds; arrivals count from the origin, which is the
//! end of a window.

use serde_json::{Value, json};
use tollgate_core::Micros;
use tollgate_sim::{Comparison, Event, Lane, Verdict};

pub(super) fn write(comparison: &Comparison) -> String {
    let scenario = comparison.scenario;
    let lanes: Vec<Value> =
        comparison.lanes.iter().map(|lane| lane_value(comparison, lane)).collect();
    let value = json!({
        "rate": scenario.quota.to_string(),
        "count": scenario.quota.count(),
        "period_micros": scenario.quota.period().as_micros(),
        "burst": scenario.burst,
        "traffic": scenario.traffic.name(),
        "seed": scenario.seed,
        "lanes": lanes,
    });
    format!("{value:#}\n")
}

fn lane_value(comparison: &Comparison, lane: &Lane) -> Value {
    let events: Vec<Value> =
        lane.events.iter().map(|event| event_value(comparison, event)).collect();
    json!({
        "algorithm": lane.algorithm.name(),
        "limit": lane.capacity,
        "admitted": lane.admitted,
        "delayed": lane.delayed,
        "denied": lane.denied,
        "most_in_any_window": lane.most_in_any_window,
        "bytes_per_key": lane.bytes_per_key,
        "events": events,
    })
}

fn event_value(comparison: &Comparison, event: &Event) -> Value {
    let at_micros = event.at.since(comparison.origin).as_micros();
    let client = event.client;
    match event.verdict {
        Verdict::Allowed => {
            json!({"at_micros": at_micros, "client": client, "verdict": "allowed"})
        }
        Verdict::Delayed { delay } => json!({
            "at_micros": at_micros,
            "client": client,
            "verdict": "delayed",
            "delay_micros": delay.as_micros(),
        }),
        Verdict::Denied { retry_after } => json!({
            "at_micros": at_micros,
            "client": client,
            "verdict": "denied",
            "retry_after_micros": retry_after.map(Micros::as_micros),
        }),
    }
}
