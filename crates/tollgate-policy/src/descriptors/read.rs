//! From the text of the files to their descriptors, checked.

use std::collections::HashMap;
use std::sync::Arc;

use tollgate_core::{Algorithm, Align, Limit, Micros, Quota};

use super::{DescriptorLimit, DescriptorRule, Descriptors, Level, Node as Descriptor, Unit};
use crate::OnStoreFailure;
use crate::bounds::{
    DESCRIPTOR_LEVELS_MAX, DESCRIPTOR_TEXT_BYTES_MAX, DESCRIPTORS_MAX, POLICY_BYTES_MAX,
    POLICY_MARKS_MAX, RATES_MAX,
};
use crate::decode::{Decoder, Fields};
use crate::mistake::{Mistakes, Report, Source, Span, WarningCode, quoted};
use crate::yaml::{Kind, Node, Reader, Unreadable};

const DOMAIN_FIELDS: [&str; 2] = ["domain", "descriptors"];
const DESCRIPTOR_FIELDS: [&str; 9] = [
    "key",
    "value",
    "rate_limit",
    "descriptors",
    "shadow_mode",
    "quota_mode",
    "share_threshold",
    "detailed_metric",
    "value_to_metric",
];
const RATE_LIMIT_FIELDS: [&str; 10] = [
    "requests_per_unit",
    "unit",
    "unit_multiplier",
    "unlimited",
    "name",
    "replaces",
    "algorithm",
    "burst",
    "every",
    "on_store_failure",
];
const REPLACES_FIELDS: [&str; 1] = ["name"];

pub(super) fn read(files: &[(&str, &str)], merge_domains: bool) -> Result<Descriptors, Mistakes> {
    let mut report = Report::default();
    let mut set = Set { merge_domains, ..Set::default() };
    for (number, (name, text)) in files.iter().enumerate() {
        report.begin_file(number);
        let source = Source::new(name, text);
        set.bytes = set.bytes.saturating_add(text.len());
        if set.bytes > POLICY_BYTES_MAX {
            let sentence =
                format!("the files are longer than {POLICY_BYTES_MAX} bytes together, the most");
            report.mistake(&source, Span::START, sentence);
            break;
        }
        // What keeps a file from being read on is in the report.
        let _ = set.file(&source, &mut report);
    }
    let warnings = report.finish()?;
    Ok(Descriptors { warnings, ..set.descriptors })
}

/// What was read so far.
#[derive(Default)]
struct Set {
    descriptors: Descriptors,
    merge_domains: bool,
    bytes: usize,
    count: usize,
    /// The limits by their numbers, each once.
    limits: HashMap<Limit, usize>,
    /// Where each domain was first spoken of.
    domains: HashMap<String, (String, Span)>,
}

/// Where in a domain a list of descriptors is.
struct Above<'a> {
    /// For messages: the domain, and the descriptors above.
    path: &'a str,
    depth: usize,
    /// What the entries above are counted by instead of their values.
    shared: &'a [Option<Box<str>>],
}

impl Set {
    fn file(&mut self, source: &Source<'_>, report: &mut Report) -> Result<(), Unreadable> {
        let mut reader = Reader::open(source, report, POLICY_MARKS_MAX)?;
        loop {
            let root = reader.node(0)?;
            self.domain(&root, &mut Decoder::new(source, reader.report()));
            if !reader.next_document()? {
                return Ok(());
            }
        }
    }

    fn domain(&mut self, root: &Node, decoder: &mut Decoder<'_, '_, '_>) {
        let Some(fields) = decoder.fields(root, "", &DOMAIN_FIELDS) else { return };
        let list = fields.get("descriptors").filter(|node| !node.is_nothing());
        let list = list.and_then(|node| decoder.list(node, "", "descriptors"));
        let Some(node) = decoder.required(&fields, "", "domain", "shop") else { return };
        let Some(name) = text(decoder, node, "", "domain") else { return };
        let file = decoder.source.name;
        match self.domains.get(name) {
            Some((other, span)) if !self.merge_domains => {
                let sentence = format!(
                    "domain {} is described in {other}, line {}, already; write both in one, or set \
                     merge_domains of the policy's descriptors",
                    quoted(name),
                    span.line
                );
                decoder.mistake(node.span, "", sentence);
            }
            Some(_) => {}
            None => drop(self.domains.insert(name.to_owned(), (file.to_owned(), node.span))),
        }
        let next = self.descriptors.domains.len();
        let known = self.descriptors.domains.remove(name);
        let (number, mut level) = known.unwrap_or_else(|| (next, Level::default()));
        let path = format!("domain {}", quoted(name));
        let above = Above { path: &path, depth: 0, shared: &[] };
        self.level(list.unwrap_or(&[]), &above, &mut level, decoder);
        self.descriptors.domains.insert(name.into(), (number, level));
    }

    fn level(
        &mut self,
        list: &[Node],
        above: &Above<'_>,
        level: &mut Level,
        decoder: &mut Decoder<'_, '_, '_>,
    ) {
        if let Some(first) = list.first().filter(|_| above.depth == DESCRIPTOR_LEVELS_MAX) {
            let sentence = format!("descriptors nest deeper than {DESCRIPTOR_LEVELS_MAX} here");
            decoder.mistake(first.span, above.path, sentence);
            return;
        }
        for node in list {
            self.count += 1;
            if self.count > DESCRIPTORS_MAX {
                if self.count == DESCRIPTORS_MAX + 1 {
                    let sentence = format!("there are more than {DESCRIPTORS_MAX} descriptors");
                    decoder.mistake(node.span, above.path, sentence);
                }
                return;
            }
            self.descriptor(node, above, level, decoder);
        }
    }

    fn descriptor(
        &mut self,
        node: &Node,
        above: &Above<'_>,
        level: &mut Level,
        decoder: &mut Decoder<'_, '_, '_>,
    ) {
        let Some(fields) = decoder.fields(node, above.path, &DESCRIPTOR_FIELDS) else { return };
        let Some(key_node) = decoder.required(&fields, above.path, "key", "remote_address") else {
            return;
        };
        let Some(key) = text(decoder, key_node, above.path, "key") else { return };
        // A value that is written as nothing is no value, as in the service these files come from.
        let value = fields.get("value").filter(|node| !node.is_nothing());
        let value = match value.map(|node| optional_text(decoder, node, above.path, "value")) {
            Some(None) => return,
            value => value.flatten().filter(|value| !value.is_empty()),
        };
        let name = value.map_or(key.to_owned(), |value| format!("{key}={value}"));
        let path = format!("{}: {}", above.path, quoted(&name));
        let is_wildcard = value.is_some_and(|value| value.contains('*'));
        let is_shared = switch(decoder, &fields, &path, "share_threshold");
        if is_shared && !is_wildcard {
            let sentence = "share_threshold is for values with a * in them";
            decoder.mistake(fields.span("share_threshold"), &path, sentence);
        }
        for field in ["detailed_metric", "value_to_metric"] {
            if switch(decoder, &fields, &path, field) {
                let sentence = format!(
                    "{path}: {field} is ignored: metrics are labelled by limit, never by what a \
                     caller sends"
                );
                decoder.warning(fields.span(field), WarningCode::MetricIgnored, sentence);
            }
        }
        let mut shared = above.shared.to_vec();
        shared.push(value.filter(|_| is_shared).map(Box::from));
        let rule = self.rule(&fields, &path, &shared, decoder);
        let mut below = Level::default();
        let list = fields.get("descriptors").filter(|node| !node.is_nothing());
        if let Some(list) = list.and_then(|node| decoder.list(node, &path, "descriptors")) {
            let above = Above { path: &path, depth: above.depth + 1, shared: &shared };
            self.level(list, &above, &mut below, decoder);
        }
        let values = level.0.entry(key.into()).or_default();
        let descriptor = Descriptor { rule, below };
        let is_new = match value {
            None => values.any.replace(Box::new(descriptor)).is_none(),
            Some(value) if is_wildcard => values.wildcards.push(value, descriptor),
            Some(value) => values.exact.insert(value.into(), descriptor).is_none(),
        };
        if !is_new {
            let sentence = "this descriptor is written twice beside each other; write it once";
            decoder.mistake(key_node.span, &path, sentence);
        }
    }

    fn rule(
        &mut self,
        fields: &Fields<'_>,
        path: &str,
        shared: &[Option<Box<str>>],
        decoder: &mut Decoder<'_, '_, '_>,
    ) -> Option<u32> {
        let is_shadow = switch(decoder, fields, path, "shadow_mode");
        let is_quota = switch(decoder, fields, path, "quota_mode");
        let node = fields.get("rate_limit").filter(|node| !node.is_nothing())?;
        let nodes = match &node.kind {
            Kind::List(list) if list.is_empty() || list.len() > RATES_MAX => {
                let sentence =
                    format!("rate_limit lists {} limits, not 1 to {RATES_MAX}", list.len());
                decoder.mistake(node.span, path, sentence);
                return None;
            }
            Kind::List(list) => list,
            Kind::Scalar(_) | Kind::Map(_) => std::slice::from_ref(node),
        };
        let mut rule = DescriptorRule {
            limits: Box::default(),
            is_unlimited: false,
            is_shadow,
            is_quota,
            replaces: Box::default(),
            shared: if shared.iter().any(Option::is_some) { shared.into() } else { Box::default() },
        };
        let (mut limits, mut replaces) = (Vec::new(), Vec::new());
        for node in nodes {
            let Some(fields) = decoder.fields(node, path, &RATE_LIMIT_FIELDS) else { continue };
            let name = fields.get("name").filter(|node| !node.is_nothing());
            let name = name.and_then(|node| text(decoder, node, path, "name"));
            replaces.extend(replaced(decoder, &fields, path, name));
            if switch(decoder, &fields, path, "unlimited") {
                check_unlimited(decoder, &fields, path, nodes.len());
                rule.is_unlimited = true;
            } else {
                limits.extend(self.limit(decoder, &fields, path, name));
            }
        }
        rule.limits = limits.into();
        rule.replaces = replaces.into();
        self.descriptors.rules.push(rule);
        Some(self.descriptors.rules.len() as u32 - 1)
    }

    fn limit(
        &mut self,
        decoder: &mut Decoder<'_, '_, '_>,
        fields: &Fields<'_>,
        path: &str,
        name: Option<&str>,
    ) -> Option<DescriptorLimit> {
        let count = decoder.required(fields, path, "requests_per_unit", "100");
        let count = count.and_then(|node| decoder.count(node, path, "requests_per_unit"));
        let time = time(decoder, fields, path);
        let algorithm = algorithm(decoder, fields, path);
        let burst = fields.get("burst").and_then(|node| decoder.count(node, path, "burst"));
        let failure = on_store_failure(decoder, fields, path);
        let (count, time, algorithm) = (count?, time?, algorithm?);
        let limit = Quota::new(count, time.period).and_then(|quota| match algorithm {
            Algorithm::TokenBucket => Limit::token_bucket(quota, burst.unwrap_or(count)),
            Algorithm::SlidingLog => Limit::sliding_log(quota),
            Algorithm::SlidingWindow => Ok(Limit::sliding_window(quota)),
            _ => Ok(Limit::fixed_window(quota, Align::Clock)),
        });
        let limit = match limit {
            Ok(limit) => limit,
            Err(error) => {
                decoder.mistake(fields.span("requests_per_unit"), path, error);
                return None;
            }
        };
        let limits = &mut self.descriptors.limits;
        let number = *self.limits.entry(limit).or_insert_with(|| {
            limits.push(limit);
            limits.len() - 1
        });
        Some(DescriptorLimit {
            limit: number,
            name: name.map(Arc::from),
            requests_per_unit: count,
            unit: time.unit,
            unit_multiplier: time.multiplier,
            on_store_failure: failure?,
        })
    }
}

/// In what time a limit counts.
struct Time {
    unit: Unit,
    multiplier: u32,
    period: Micros,
}

fn time(decoder: &mut Decoder<'_, '_, '_>, fields: &Fields<'_>, path: &str) -> Option<Time> {
    if let Some(node) = fields.get("every") {
        if let Some(other) = ["unit", "unit_multiplier"].into_iter().find(|it| fields.has(it)) {
            let sentence = format!("every and {other} both say in what time; write one of them");
            decoder.mistake(fields.span(other), path, sentence);
            return None;
        }
        let period = decoder.duration(node, path, "every")?;
        let Some((unit, multiplier)) = in_units(period) else {
            let sentence = format!(
                "every {period} is not made of whole seconds, which is all that Envoy can be told of"
            );
            decoder.mistake(node.span, path, sentence);
            return None;
        };
        return Some(Time { unit, multiplier, period });
    }
    let unit = decoder.required(fields, path, "unit", "minute");
    let unit = unit.and_then(|node| {
        let text = decoder.text(node, path, "unit")?.to_ascii_lowercase();
        let unit = Unit::ALL.into_iter().find(|unit| unit.name() == text);
        // A word that is none is told as written, with what is close to it.
        unit.or_else(|| decoder.one_of(node, path, "unit", &Unit::ALL.map(|it| (it.name(), it))))
    });
    let multiplier = match fields.get("unit_multiplier") {
        Some(node) => decoder.count(node, path, "unit_multiplier").map(|count| (count, node.span)),
        None => Some((1, Span::START)),
    };
    let (unit, (multiplier, span)) = (unit?, multiplier?);
    if multiplier == 0 {
        decoder.mistake(span, path, "unit_multiplier is 0; the least is 1");
        return None;
    }
    let period = Micros::new(unit.period().as_micros().saturating_mul(u64::from(multiplier)));
    Some(Time { unit, multiplier, period })
}

/// The longest unit of which a time is a multiple, and which.
fn in_units(period: Micros) -> Option<(Unit, u32)> {
    let micros = period.as_micros();
    let fits = |unit: &Unit| micros > 0 && micros.is_multiple_of(unit.period().as_micros());
    let unit = Unit::ALL.into_iter().rev().find(fits)?;
    Some((unit, u32::try_from(micros / unit.period().as_micros()).ok()?))
}

/// How a limit counts: in fixed windows unless it says otherwise, since that is what it was written
/// for.
fn algorithm(
    decoder: &mut Decoder<'_, '_, '_>,
    fields: &Fields<'_>,
    path: &str,
) -> Option<Algorithm> {
    let Some(node) = fields.get("algorithm") else {
        if fields.has("burst") {
            let sentence = "burst is for algorithm: token_bucket, and fixed_window is the default";
            decoder.mistake(fields.span("burst"), path, sentence);
        }
        return Some(Algorithm::FixedWindow);
    };
    let words = [
        ("fixed_window", Algorithm::FixedWindow),
        ("sliding_window", Algorithm::SlidingWindow),
        ("token_bucket", Algorithm::TokenBucket),
        ("gcra", Algorithm::TokenBucket),
        ("sliding_log", Algorithm::SlidingLog),
    ];
    let algorithm = decoder.one_of(node, path, "algorithm", &words)?;
    if fields.has("burst") && algorithm != Algorithm::TokenBucket {
        let sentence = format!("burst means nothing to {algorithm}; it is for token_bucket");
        decoder.mistake(fields.span("burst"), path, sentence);
    }
    Some(algorithm)
}

fn on_store_failure(
    decoder: &mut Decoder<'_, '_, '_>,
    fields: &Fields<'_>,
    path: &str,
) -> Option<OnStoreFailure> {
    let Some(node) = fields.get("on_store_failure") else { return Some(OnStoreFailure::default()) };
    let words = [
        ("allow", OnStoreFailure::Allow),
        ("deny", OnStoreFailure::Deny),
        ("local", OnStoreFailure::Local),
    ];
    decoder.one_of(node, path, "on_store_failure", &words)
}

fn check_unlimited(
    decoder: &mut Decoder<'_, '_, '_>,
    fields: &Fields<'_>,
    path: &str,
    limits: usize,
) {
    for field in ["unit", "unit_multiplier", "every", "algorithm", "burst"] {
        if fields.has(field) {
            let sentence = format!("{field} means nothing beside unlimited; write one of them");
            decoder.mistake(fields.span(field), path, sentence);
        }
    }
    if limits > 1 {
        let sentence = "unlimited stands alone; what is unlimited has no other limits";
        decoder.mistake(fields.span("unlimited"), path, sentence);
    }
}

/// The names that a limit replaces.
fn replaced(
    decoder: &mut Decoder<'_, '_, '_>,
    fields: &Fields<'_>,
    path: &str,
    own_name: Option<&str>,
) -> Vec<Box<str>> {
    let list = fields.get("replaces").filter(|node| !node.is_nothing());
    let Some(list) = list.and_then(|node| decoder.list(node, path, "replaces")) else {
        return Vec::new();
    };
    let mut names = Vec::new();
    for node in list {
        let Some(fields) = decoder.fields(node, path, &REPLACES_FIELDS) else { continue };
        let Some(node) = decoder.required(&fields, path, "name", "per_user") else { continue };
        let Some(name) = text(decoder, node, path, "name") else { continue };
        if own_name == Some(name) {
            let sentence = format!("{} replaces itself; name another limit", quoted(name));
            decoder.mistake(node.span, path, sentence);
        }
        names.push(name.into());
    }
    names
}

fn switch(decoder: &mut Decoder<'_, '_, '_>, fields: &Fields<'_>, path: &str, field: &str) -> bool {
    let node = fields.get(field).filter(|node| !node.is_nothing());
    let words = [("true", true), ("false", false)];
    node.and_then(|node| decoder.one_of(node, path, field, &words)).unwrap_or(false)
}

/// A text that says something.
fn text<'n>(
    decoder: &mut Decoder<'_, '_, '_>,
    node: &'n Node,
    path: &str,
    field: &str,
) -> Option<&'n str> {
    let text = optional_text(decoder, node, path, field)?;
    if text.is_empty() {
        decoder.mistake(node.span, path, format!("{field} is empty"));
        return None;
    }
    Some(text)
}

fn optional_text<'n>(
    decoder: &mut Decoder<'_, '_, '_>,
    node: &'n Node,
    path: &str,
    field: &str,
) -> Option<&'n str> {
    let text = decoder.text(node, path, field)?;
    if text.len() > DESCRIPTOR_TEXT_BYTES_MAX {
        let sentence = format!(
            "{field} has {} bytes, and the most is {DESCRIPTOR_TEXT_BYTES_MAX}",
            text.len()
        );
        decoder.mistake(node.span, path, sentence);
        return None;
    }
    Some(text)
}
