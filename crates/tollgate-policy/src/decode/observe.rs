//! `observe`: what is told of requests, and to whom.

use tollgate_core::{Micros, Quota};

use super::Decoder;
use crate::bounds::OTLP_INTERVAL_MICROS_RANGE;
use crate::mistake::quoted;
use crate::settings::{Audit, Observe, Otlp, ShownKeys};
use crate::upstream::Target;
use crate::yaml::{Kind, Node};

pub(super) const OBSERVE_FIELDS: [&str; 4] = ["keys", "tenants", "audit", "otlp"];
pub(super) const AUDIT_FIELDS: [&str; 3] = ["file", "sample", "rate"];
pub(super) const OTLP_FIELDS: [&str; 3] = ["endpoint", "interval", "traces"];

impl Decoder<'_, '_, '_> {
    pub(super) fn observe(&mut self, node: &Node, has_tenants: bool) -> Observe {
        let owner = "observe";
        let mut observe = Observe::default();
        let Some(fields) = self.fields(node, owner, &OBSERVE_FIELDS) else { return observe };
        let words = [("plain", ShownKeys::Plain), ("hashed", ShownKeys::Hashed)];
        let keys = fields.get("keys").and_then(|node| self.one_of(node, owner, "keys", &words));
        observe.keys = keys.unwrap_or_default();
        if let Some(node) = fields.get("tenants") {
            let words = [("true", true), ("false", false)];
            observe.tenants = self.one_of(node, owner, "tenants", &words).unwrap_or_default();
            if observe.tenants && !has_tenants {
                let sentence = "tenants is true and no file says who they are; write for example \
                                tenants: { from: header:x-api-key, file: tenants.yaml } beside \
                                observe";
                self.mistake(node.span, owner, sentence);
            }
        }
        observe.audit = fields.get("audit").and_then(|node| self.audit(node));
        observe.otlp = fields.get("otlp").and_then(|node| self.otlp(node));
        observe
    }

    /// The name of a file, or the long form.
    fn audit(&mut self, node: &Node) -> Option<Audit> {
        if !matches!(node.kind, Kind::Map(_)) {
            return self.file(node, "observe", "audit").map(Audit::into_file);
        }
        let owner = "observe.audit";
        let fields = self.fields(node, owner, &AUDIT_FIELDS)?;
        let sample = fields.get("sample").and_then(|node| self.share(node, owner, "sample"));
        let rate = fields.get("rate").and_then(|node| self.audit_rate(node, owner));
        let file = self.required(&fields, owner, "file", "audit.jsonl")?;
        let defaults = Audit::into_file(self.file(file, owner, "file")?);
        Some(Audit {
            sample: sample.unwrap_or(defaults.sample),
            rate: rate.unwrap_or(defaults.rate),
            file: defaults.file,
        })
    }

    fn audit_rate(&mut self, node: &Node, owner: &str) -> Option<Quota> {
        let rate = self.quota(node, owner)?;
        if rate.count() == 0 {
            let sentence = format!(
                "rate {rate} lets no denial be written; to write admin actions alone, say sample: 0%"
            );
            self.mistake(node.span, owner, sentence);
            return None;
        }
        Some(rate)
    }

    /// A URL, or the long form.
    fn otlp(&mut self, node: &Node) -> Option<Otlp> {
        if !matches!(node.kind, Kind::Map(_)) {
            return self.endpoint(node, "observe", "otlp").map(Otlp::to);
        }
        let owner = "observe.otlp";
        let fields = self.fields(node, owner, &OTLP_FIELDS)?;
        let interval = fields.get("interval").and_then(|node| self.otlp_interval(node, owner));
        let traces = fields.get("traces").and_then(|node| self.share(node, owner, "traces"));
        let endpoint = self.required(&fields, owner, "endpoint", "http://127.0.0.1:4318")?;
        let defaults = Otlp::to(self.endpoint(endpoint, owner, "endpoint")?);
        Some(Otlp {
            interval: interval.unwrap_or(defaults.interval),
            traces: traces.unwrap_or(defaults.traces),
            endpoint: defaults.endpoint,
        })
    }

    fn endpoint(&mut self, node: &Node, owner: &str, field: &str) -> Option<String> {
        let text = self.text(node, owner, field)?;
        if let Err(wrong) = check_endpoint(text) {
            self.url_mistake(node, owner, field, text, wrong);
            return None;
        }
        Some(text.to_owned())
    }

    fn otlp_interval(&mut self, node: &Node, owner: &str) -> Option<Micros> {
        let interval = self.duration(node, owner, "interval")?;
        if !OTLP_INTERVAL_MICROS_RANGE.contains(&interval.as_micros()) {
            let (least, most) = OTLP_INTERVAL_MICROS_RANGE.into_inner();
            let (least, most) = (Micros::new(least), Micros::new(most));
            let sentence = format!("interval {interval} is outside {least} to {most}");
            self.mistake(node.span, owner, sentence);
            return None;
        }
        Some(interval)
    }

    /// How many of a million.
    fn share(&mut self, node: &Node, owner: &str, field: &str) -> Option<u32> {
        let text = self.text(node, owner, field)?;
        let share = read_percentage(text);
        if share.is_none() {
            let text = quoted(text);
            let sentence = format!(
                "{field} {text} is not a percentage from 0% to 100%; write for example 1% or 0.05%"
            );
            self.mistake(node.span, owner, sentence);
        }
        share
    }
}

/// What is wrong with the URL of a collector, to follow it in a sentence.
fn check_endpoint(url: &str) -> Result<(), &'static str> {
    let rest = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://"));
    let rest = rest.ok_or("is not a URL; write for example http://127.0.0.1:4318")?;
    let path = rest.find('/').unwrap_or(rest.len());
    if rest.contains(['?', '#']) {
        return Err("has a part behind ? or #, which means nothing here");
    }
    if rest.contains('@') {
        return Err("holds a user or password, which nobody would be sent");
    }
    if !rest[path..].bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err("has a path with a character that no URL holds as it is; write it as %XX");
    }
    Target::read(&url[..url.len() - rest.len() + path]).map(|_| ())
}

/// Reads a percentage from `0%` to `100%`, with at most four digits behind the point, as parts of a
/// million.
fn read_percentage(text: &str) -> Option<u32> {
    let number = text.strip_suffix('%')?;
    let (whole, fraction) = match number.split_once('.') {
        Some((_, "")) => return None,
        Some(parts) => parts,
        None => (number, ""),
    };
    let is_number = |digits: &str| digits.bytes().all(|byte| byte.is_ascii_digit());
    if !(1..=3).contains(&whole.len()) || fraction.len() > 4 {
        return None;
    }
    if !is_number(whole) || !is_number(fraction) {
        return None;
    }
    let share = format!("{whole}{fraction:0<4}").parse().ok()?;
    (share <= 1_000_000).then_some(share)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentage_has_at_most_four_digits_behind_the_point() {
        let right = [("0%", 0), ("100%", 1_000_000), ("1%", 10_000), ("0.5%", 5_000)];
        for (text, share) in right.into_iter().chain([("12.3456%", 123_456), ("007%", 70_000)]) {
            assert_eq!(read_percentage(text), Some(share), "{text}");
        }
        let wrong = ["", "%", "1", ".5%", "1.%", "101%", "100.0001%", "1.23456%", "-1%", "+1%"];
        for text in wrong.into_iter().chain(["1 %", "1e1%", "1.-2%", "4294967396%", "NaN%"]) {
            assert_eq!(read_percentage(text), None, "{text}");
        }
    }
}
