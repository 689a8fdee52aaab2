//! Metrics as OpenTelemetry's protocol has them. The numbers are those of its `metrics.proto`.

use tollgate::Timestamp;
use tollgate::metrics::Histogram;

use super::{nanos, write_attribute, write_scope};
use crate::metrics::sheet::{Figure, Form, Kind, Label};
use crate::protobuf::Writer;

/// Figures that only grow are told as they are, not by how much they grew.
const CUMULATIVE: u64 = 2;

/// Metrics as messages, one behind the other.
#[derive(Debug)]
pub(super) struct Measures {
    started: Timestamp,
    now: Timestamp,
    /// The whole of the `metrics` of a scope.
    metrics: Vec<u8>,
    /// The metric that is being told, with its points.
    open: Option<Open>,
}

#[derive(Debug)]
struct Open {
    name: &'static str,
    kind: Kind,
    help: String,
    points: Vec<u8>,
}

impl Measures {
    pub(super) fn new(started: Timestamp, now: Timestamp) -> Self {
        Self { started, now, metrics: Vec::new(), open: None }
    }

    /// An `ExportMetricsServiceRequest`.
    pub(super) fn into_request(mut self, resource: impl FnOnce(&mut Writer<'_>)) -> Vec<u8> {
        self.close();
        let mut request = Vec::with_capacity(self.metrics.len() + 256);
        Writer(&mut request).message(1, |it| {
            it.message(1, resource);
            it.message(2, |it| {
                write_scope(it);
                it.0.extend_from_slice(&self.metrics);
            });
        });
        request
    }

    fn close(&mut self) {
        let Some(Open { name, kind, help, points }) = self.open.take() else { return };
        Writer(&mut self.metrics).message(2, |it| {
            it.bytes(1, name.as_bytes());
            it.bytes(2, help.as_bytes());
            it.bytes(3, unit(name).as_bytes());
            let field = match kind {
                Kind::Gauge => 5,
                Kind::Counter => 7,
                Kind::Histogram => 9,
            };
            it.message(field, |it| {
                it.0.extend_from_slice(&points);
                if !matches!(kind, Kind::Gauge) {
                    it.varint(2, CUMULATIVE);
                }
                if matches!(kind, Kind::Counter) {
                    it.varint(3, 1);
                }
            });
        });
    }

    fn point(&mut self, write: impl FnOnce(&mut Writer<'_>)) {
        let (started, now) = (nanos(self.started), nanos(self.now));
        let Some(open) = &mut self.open else { return };
        Writer(&mut open.points).message(1, |it| {
            it.fixed(2, started);
            it.fixed(3, now);
            write(it);
        });
    }
}

/// What a metric counts, by its name, in the words of OpenTelemetry.
fn unit(name: &str) -> &'static str {
    let name = name.trim_end_matches("_total");
    match name.rsplit('_').next() {
        Some("seconds") => "s",
        Some("bytes") => "By",
        _ => "1",
    }
}

impl Form for Measures {
    fn begin(&mut self, name: &'static str, kind: Kind, help: &str) {
        self.close();
        self.open = Some(Open { name, kind, help: help.to_owned(), points: Vec::new() });
    }

    fn sample(&mut self, labels: &[Label<'_>], figure: Figure) {
        self.point(|it| {
            match figure {
                Figure::Whole(figure) => it.fixed(6, figure),
                Figure::Real(figure) => it.double(4, figure),
            }
            labels.iter().for_each(|(name, value)| write_attribute(it, 7, name, value));
        });
    }

    fn histogram(&mut self, labels: &[Label<'_>], histogram: &Histogram) {
        let up_to = histogram.buckets.iter().map(|(_, count)| *count);
        let all = up_to.chain([histogram.count]);
        // Each is told by itself here, without those before it.
        let counts = all.scan(0, |before, count| {
            let own = count - *before;
            *before = count;
            Some(own.to_le_bytes())
        });
        let counts: Vec<u8> = counts.flatten().collect();
        let bounds = histogram.buckets.iter().flat_map(|(bound, _)| bound.to_le_bytes());
        let bounds: Vec<u8> = bounds.collect();
        self.point(|it| {
            it.fixed(4, histogram.count);
            it.double(5, histogram.sum);
            it.bytes(6, &counts);
            it.bytes(7, &bounds);
            labels.iter().for_each(|(name, value)| write_attribute(it, 9, name, value));
        });
    }
}
