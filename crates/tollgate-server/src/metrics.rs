//! What a server tells about itself, for Prometheus to collect.
//!
//! Every name is always there, also where there is nothing to count: what is asked for does not come and
//! go with the policy. Labels are words of the policy and our own, so that nobody who sends us traffic
//! decides how much there is to tell. `docs/metrics.md` lists all of it.

mod doors;
pub(crate) mod sheet;
mod text;

use std::collections::BTreeMap;

use tollgate::Layer;
use tollgate::metrics::{LimitCount, Metrics, TenantCount};
use tollgate::redis::{Health, RedisStore};

use crate::audit;
use crate::gate::Gate;
use sheet::Kind::{Counter, Gauge, Histogram};
use sheet::Sheet;
use text::Text;

pub(crate) use doors::{DoorCounts, One, Open};

/// What [`text`](fn@text) is to whoever reads it.
pub(crate) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// All metrics, as they are now.
pub(crate) fn text(gate: &Gate) -> String {
    let mut text = Text::default();
    write(&mut Sheet::new(&mut text), gate);
    text.into_string()
}

/// All metrics, as they are now, in whatever form.
pub(crate) fn write(sheet: &mut Sheet<'_>, gate: &Gate) {
    process(sheet, gate);
    decisions(sheet, &gate.limiter.metrics());
    storm(sheet, gate);
    memory(sheet, gate);
    redis(sheet, gate);
    server(sheet, gate);
    gateway(sheet, gate);
}

fn process(sheet: &mut Sheet<'_>, gate: &Gate) {
    let version = [("version", env!("CARGO_PKG_VERSION"))];
    sheet
        .family("tollgate_build_info", Gauge, "Which version this is; always 1.")
        .sample(&version, true);
    let started = gate.started_at.as_micros() as f64 / 1e6;
    sheet
        .family("process_start_time_seconds", Gauge, "When the server started, in Unix time.")
        .sample(&[], started);
}

fn decisions(sheet: &mut Sheet<'_>, metrics: &Metrics) {
    let help = "What became of requests, and of what else limits are asked about, by layer.";
    let mut requests = sheet.family("tollgate_requests_total", Counter, help);
    for count in &metrics.requests {
        let labels = [("layer", layer(count.layer)), ("ruling", count.ruling.name())];
        requests.sample(&labels, count.count);
    }
    let help = "What each limit said; a request under several limits is several decisions.";
    let mut decisions = sheet.family("tollgate_decisions_total", Counter, help);
    for count in &metrics.limits {
        let LimitCount { limit, tier, .. } = count;
        for (outcome, times) in [
            ("allowed", count.allowed),
            ("denied", count.denied),
            ("shadow_denied", count.shadow_denied),
            ("store_failed", count.store_failed),
        ] {
            decisions.sample(&[("limit", limit), ("tier", tier), ("outcome", outcome)], times);
        }
    }
    let help = "Denied requests of keys that had been told to wait, and did not.";
    let mut early = sheet.family("tollgate_early_returns_total", Counter, help);
    for (limit, count) in early_by_limit(metrics) {
        early.sample(&[("limit", limit)], count);
    }
    let help =
        "Share of the limit in use after a request that it allowed; of many, few are looked at.";
    let mut headroom = sheet.family("tollgate_headroom_ratio", Histogram, help);
    for LimitCount { limit, tier, used, .. } in &metrics.limits {
        headroom.histogram(&[("limit", limit), ("tier", tier)], used);
    }
    let help = "The same by tenant of the tenants file, of limits that count by tenant.";
    let mut headroom = sheet.family("tollgate_tenant_headroom_ratio", Histogram, help);
    for TenantCount { limit, tenant, used } in &metrics.tenants {
        headroom.histogram(&[("limit", limit), ("tenant", tenant)], used);
    }
    let help = "How long a decision takes, with the store's answer; of many, few are timed.";
    sheet
        .family("tollgate_check_duration_seconds", Histogram, help)
        .histogram(&[], &metrics.check_duration);
}

fn storm(sheet: &mut Sheet<'_>, gate: &Gate) {
    let help = "Whether most of those denied in the last minute did not wait as told.";
    sheet.family("tollgate_retry_storm", Gauge, help).sample(&[], gate.limiter.storm().is_storm);
}

/// Of all tiers of a limit together: whoever does not wait does so in any of them.
fn early_by_limit(metrics: &Metrics) -> BTreeMap<&str, u64> {
    let mut limits = BTreeMap::new();
    for LimitCount { limit, early, .. } in &metrics.limits {
        *limits.entry(&**limit).or_default() += early;
    }
    limits
}

fn layer(layer: Layer) -> &'static str {
    match layer {
        Layer::Request => "request",
        Layer::Connection => "connection",
        Layer::Socket => "websocket",
        Layer::Message => "message",
        Layer::Fragment => "fragment",
        Layer::Stream => "stream",
    }
}

/// The store in this process's memory: the only one, or what counts while Redis does not answer.
fn memory(sheet: &mut Sheet<'_>, gate: &Gate) {
    let store = gate.limiter.store();
    let memory = match (store.memory(), store.redis()) {
        (Some(memory), _) => &**memory,
        (None, Some(redis)) => redis.local(),
        (None, None) => return,
    };
    sheet
        .family("tollgate_store_keys", Gauge, "Keys in memory, those nobody missed yet included.")
        .sample(&[], memory.keys());
    sheet
        .family("tollgate_store_bytes", Gauge, "Bytes that keys in memory take.")
        .sample(&[], memory.bytes());
    sheet
        .family("tollgate_store_max_bytes", Gauge, "Bytes that keys in memory may take.")
        .sample(&[], memory.max_bytes());
    let help = "Keys forgotten before their time, since memory was full.";
    sheet.family("tollgate_store_evictions_total", Counter, help).sample(&[], memory.evicted());
}

fn redis(sheet: &mut Sheet<'_>, gate: &Gate) {
    let redis = gate.limiter.store().redis();
    let servers = redis.map_or_else(Vec::new, RedisStore::health);
    let mut each = |name, kind, help, figure: fn(&Health) -> f64| {
        let mut family = sheet.family(name, kind, help);
        for server in &servers {
            family.sample(&[("server", &server.address)], figure(server));
        }
    };
    let help = "Whether a server is left alone, since it is unreachable or unwell.";
    each("tollgate_redis_breaker_open", Gauge, help, |it| f64::from(u8::from(!it.is_well)));
    let help = "Calls sent to a server; by round trips, how many went in one pipeline.";
    each("tollgate_redis_calls_total", Counter, help, |it| it.calls as f64);
    let help = "Pipelines sent to a server: each is one round trip.";
    each("tollgate_redis_round_trips_total", Counter, help, |it| it.pipelines as f64);
    let help = "Seconds that pipelines were on their way, all together.";
    each("tollgate_redis_round_trip_seconds_total", Counter, help, |it| {
        it.time_in_air.as_secs_f64()
    });
    let help = "Calls that got no answer: too late, broken off, or not sent at all.";
    let mut errors = sheet.family("tollgate_redis_errors_total", Counter, help);
    for Health { address, timeouts, failures, not_sent, .. } in &servers {
        for (kind, count) in [("timeout", timeouts), ("failure", failures), ("not_sent", not_sent)]
        {
            errors.sample(&[("server", address), ("kind", kind)], *count);
        }
    }
    let help = "Requests denied without asking Redis, which had denied their key just before.";
    let mut hits = sheet.family("tollgate_redis_denial_cache_hits_total", Counter, help);
    redis.iter().for_each(|redis| hits.sample(&[], redis.denied_again()));
    let help = "Requests settled by on_store_failure, since Redis did not answer.";
    let mut settled = sheet.family("tollgate_redis_settled_without_total", Counter, help);
    redis.iter().for_each(|redis| settled.sample(&[], redis.settled()));
}

fn server(sheet: &mut Sheet<'_>, gate: &Gate) {
    let loads = gate.policy_status.loads();
    let help = "Attempts to load the policy anew, at the start not included.";
    let mut reloads = sheet.family("tollgate_policy_reloads_total", Counter, help);
    reloads.sample(&[("outcome", "succeeded")], loads.succeeded);
    reloads.sample(&[("outcome", "failed")], loads.failed);
    let help = "Whether the files are wrong as they are, and what was in force before still is.";
    sheet.family("tollgate_policy_rejected", Gauge, help).sample(&[], loads.error.is_some());
    gate.doors.write(sheet);
    gate.exports.write(sheet, &gate.traces);
    sheet
        .family("tollgate_leases", Gauge, "Concurrency slots that callers hold by name.")
        .sample(&[], gate.leases.count());
    sheet
        .family("tollgate_reservations", Gauge, "Reservations, open or settled not long ago.")
        .sample(&[], gate.reservations.count());
    let written = gate.audit.counts();
    let help = "Lines of the audit log that were written, by what they are about.";
    let mut lines = sheet.family("tollgate_audit_lines_total", Counter, help);
    for kind in audit::Kind::ALL {
        lines.sample(&[("kind", kind.name())], written.lines_of(kind));
    }
    let help = "Lines of the audit log beyond its rate, or that could not be written.";
    sheet
        .family("tollgate_audit_dropped_total", Counter, help)
        .sample(&[], written.dropped_lines());
}

fn gateway(sheet: &mut Sheet<'_>, gate: &Gate) {
    let held = gate.layer.held();
    sheet
        .family("tollgate_held_requests", Gauge, "Requests held until their turn comes.")
        .sample(&[], held.now);
    let help = "How long requests were held that then went on.";
    sheet.family("tollgate_held_duration_seconds", Histogram, help).histogram(&[], &held.waited);
    let help = "Requests answered with 503, since too many were held.";
    sheet.family("tollgate_shed_requests_total", Counter, help).sample(&[], held.shed);
    sheet
        .family("tollgate_websockets", Gauge, "WebSockets that are open.")
        .sample(&[], gate.websockets.count());
    let upstreams =
        gate.limiter.with_policy(|policy| gate.targets.tell(&policy.settings().upstream));
    let help = "Requests that a server of the policy took no connection for, or broke off.";
    let mut failures = sheet.family("tollgate_upstream_failures_total", Counter, help);
    for upstream in &upstreams {
        failures.sample(&[("upstream", &upstream.url)], upstream.failures);
    }
    let help = "Whether a server of the policy fails, and is left out for a while.";
    let mut left_out = sheet.family("tollgate_upstream_left_out", Gauge, help);
    for upstream in &upstreams {
        left_out.sample(&[("upstream", &upstream.url)], upstream.is_left_out);
    }
}
