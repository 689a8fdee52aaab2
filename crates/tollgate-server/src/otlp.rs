//! Metrics and traces for whoever collects them by OpenTelemetry's protocol (OTLP over HTTP).
//!
//! Sent from the control thread, one message at a time, each over a connection of its own: there are a
//! few a minute. Nothing is sent again: metrics are told whole the next time, and traces are a sample
//! anyway.

mod measures;
mod traces;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HOST};
use http::{HeaderValue, Request, Uri};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::spawn_blocking;
use tokio::time::{MissedTickBehavior, interval, timeout};
use tokio_rustls::TlsConnector;
use tollgate::{Otlp, Timestamp};

use crate::bounds::{OTLP_ANSWER_BYTES_MAX, OTLP_LAST_MAX, OTLP_MAX};
use crate::gate::Gate;
use crate::metrics;
use crate::metrics::sheet::Kind::Counter;
use crate::metrics::sheet::Sheet;
use crate::protobuf::Writer;
use crate::tls;
use measures::Measures;

pub(crate) use traces::{Span, TRACEPARENT, Traces};

/// How often it is looked whether something is to be sent.
const TICK: Duration = Duration::from_secs(1);

/// What is sent.
#[derive(Clone, Copy, Debug)]
enum Signal {
    Metrics,
    Traces,
}

impl Signal {
    const ALL: [Self; 2] = [Self::Metrics, Self::Traces];

    const fn name(self) -> &'static str {
        match self {
            Self::Metrics => "metrics",
            Self::Traces => "traces",
        }
    }
}

/// What came of sending.
#[derive(Debug, Default)]
pub(crate) struct Exports([Export; Signal::ALL.len()]);

#[derive(Debug, Default)]
struct Export {
    succeeded: AtomicU64,
    failed: AtomicU64,
}

impl Exports {
    pub(crate) fn write(&self, sheet: &mut Sheet<'_>, traces: &Traces) {
        let help = "Messages to the collector of metrics and traces.";
        let mut exports = sheet.family("tollgate_otlp_exports_total", Counter, help);
        for signal in Signal::ALL {
            let Export { succeeded, failed } = &self.0[signal as usize];
            for (outcome, count) in [("succeeded", succeeded), ("failed", failed)] {
                let labels = [("signal", signal.name()), ("outcome", outcome)];
                exports.sample(&labels, count.load(Ordering::Relaxed));
            }
        }
        let help = "Requests that were not told about in traces, since there was no room.";
        sheet
            .family("tollgate_otlp_spans_dropped_total", Counter, help)
            .sample(&[], traces.dropped());
    }
}

/// Sends what the policy in force says, where it says; until it is aborted.
pub(crate) async fn run(gate: Arc<Gate>) {
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut exporter = Exporter::default();
    loop {
        ticks.tick().await;
        let settings = gate.limiter.with_policy(|policy| policy.settings().observe.otlp.clone());
        gate.traces.set_share(settings.as_ref().map_or(0, |settings| settings.traces));
        if let Some(settings) = settings {
            exporter.look(&gate, &settings).await;
        }
    }
}

/// Sends what has come up once more, at the end.
pub(crate) async fn last(gate: &Gate) {
    let settings = gate.limiter.with_policy(|policy| policy.settings().observe.otlp.clone());
    if let Some(settings) = settings {
        let now = gate.limiter.now();
        // Who does not listen has heard most of it before.
        let _ = timeout(OTLP_LAST_MAX, Exporter::default().send_all(gate, &settings, now)).await;
    }
}

#[derive(Debug, Default)]
struct Exporter {
    /// When all was sent last.
    sent_at: Option<Timestamp>,
    is_failing: bool,
    /// Whom the system trusts, once somebody had to know.
    tls: Option<Arc<ClientConfig>>,
}

impl Exporter {
    async fn look(&mut self, gate: &Gate, settings: &Otlp) {
        let now = gate.limiter.now();
        let first = *self.sent_at.get_or_insert(now);
        if now >= first.plus(settings.interval) {
            self.sent_at = Some(now);
            self.send_all(gate, settings, now).await;
        }
    }

    async fn send_all(&mut self, gate: &Gate, settings: &Otlp, now: Timestamp) {
        let mut measures = Measures::new(gate.started_at, now);
        metrics::write(&mut Sheet::new(&mut measures), gate);
        self.send(gate, settings, Signal::Metrics, measures.into_request(write_resource)).await;
        let spans = gate.traces.take();
        if !spans.is_empty() {
            let request = traces::request(&spans, write_resource);
            self.send(gate, settings, Signal::Traces, request).await;
        }
    }

    async fn send(&mut self, gate: &Gate, settings: &Otlp, signal: Signal, message: Vec<u8>) {
        let sending = self.post(&settings.endpoint, signal, message);
        let sent = match timeout(OTLP_MAX, sending).await {
            Ok(sent) => sent.map_err(|error| error.to_string()),
            Err(_) => Err("it takes too long".to_owned()),
        };
        let Export { succeeded, failed } = &gate.exports.0[signal as usize];
        let counter = if sent.is_ok() { succeeded } else { failed };
        counter.fetch_add(1, Ordering::Relaxed);
        let endpoint = &settings.endpoint;
        match sent {
            Ok(()) if self.is_failing => tracing::info!(endpoint, "the collector answers again"),
            Err(why) if !self.is_failing => {
                tracing::warn!(endpoint, why, "cannot send {} to the collector", signal.name());
            }
            Ok(()) | Err(_) => return,
        }
        self.is_failing = !self.is_failing;
    }

    async fn post(&mut self, endpoint: &str, signal: Signal, message: Vec<u8>) -> io::Result<()> {
        let url = format!("{}/v1/{}", endpoint.trim_end_matches('/'), signal.name());
        let url: Uri = url.parse().map_err(io::Error::other)?;
        let authority = url.authority().ok_or_else(|| io::Error::other("its URL has no host"))?;
        let is_secure = url.scheme_str() == Some("https");
        let host = authority.host().trim_start_matches('[').trim_end_matches(']');
        let port = authority.port_u16().unwrap_or(if is_secure { 443 } else { 80 });
        let request = Request::post(url.path())
            .header(HOST, HeaderValue::from_str(authority.as_str()).map_err(io::Error::other)?)
            .header(CONTENT_TYPE, HeaderValue::from_static("application/x-protobuf"))
            .body(Full::new(Bytes::from(message)))
            .map_err(io::Error::other)?;
        let stream = TcpStream::connect((host, port)).await?;
        if !is_secure {
            return exchange(stream, request).await;
        }
        let connector = TlsConnector::from(self.trusting_the_system().await?);
        let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
        exchange(connector.connect(name, stream).await?, request).await
    }

    async fn trusting_the_system(&mut self) -> io::Result<Arc<ClientConfig>> {
        if let Some(known) = &self.tls {
            return Ok(Arc::clone(known));
        }
        // Connections are accepted meanwhile.
        let read = spawn_blocking(tls::for_collector).await.map_err(io::Error::other)?;
        let read = read.map_err(io::Error::other)?;
        Ok(Arc::clone(self.tls.insert(read)))
    }
}

async fn exchange<S>(stream: S, request: Request<Full<Bytes>>) -> io::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (mut requests, connection) =
        http1::handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
    let talking = tokio::spawn(connection);
    let response = requests.send_request(request).await.map_err(io::Error::other)?;
    let (head, body) = response.into_parts();
    // What it says is for nobody, but it is let to the end.
    let _ = Limited::new(body, OTLP_ANSWER_BYTES_MAX).collect().await;
    talking.abort();
    if !head.status.is_success() {
        return Err(io::Error::other(format!("it answers {}", head.status)));
    }
    Ok(())
}

/// Who tells all this.
fn write_resource(it: &mut Writer<'_>) {
    write_attribute(it, 1, "service.name", "tollgate");
    write_attribute(it, 1, "service.version", env!("CARGO_PKG_VERSION"));
}

fn write_scope(it: &mut Writer<'_>) {
    it.message(1, |it| {
        it.bytes(1, b"tollgate");
        it.bytes(2, env!("CARGO_PKG_VERSION").as_bytes());
    });
}

fn write_attribute(it: &mut Writer<'_>, field: u8, name: &str, value: &str) {
    it.message(field, |it| {
        it.bytes(1, name.as_bytes());
        it.message(2, |it| it.bytes(1, value.as_bytes()));
    });
}

fn write_number(it: &mut Writer<'_>, field: u8, name: &str, value: u64) {
    it.message(field, |it| {
        it.bytes(1, name.as_bytes());
        it.message(2, |it| it.varint(3, value));
    });
}

fn nanos(at: Timestamp) -> u64 {
    at.as_micros().saturating_mul(1_000)
}
