//! What a response says beside its statuses.

use std::sync::Arc;

use super::{Call, Descriptor, Metadata, Status, Value};

/// The three fields for the client, of the limit that is most in the way: the last that is over, or
/// the first of those with the least left.
pub(super) fn headers(names: [Arc<str>; 3], statuses: &[Status]) -> Vec<(Arc<str>, String)> {
    let limited = || statuses.iter().filter(|status| status.current_limit.is_some());
    let over = limited().rfind(|status| status.is_over);
    let Some(status) = over.or_else(|| limited().min_by_key(|status| status.limit_remaining))
    else {
        return Vec::new();
    };
    let limit = status.current_limit.as_ref().map_or(0, |limit| limit.requests_per_unit);
    let reset = status.seconds_until_reset.unwrap_or(0);
    let figures = [limit.to_string(), status.limit_remaining.to_string(), reset.to_string()];
    names.into_iter().zip(figures).collect()
}

/// What was asked, and whether there are quotas among it.
pub(super) fn asked(call: &Call<'_>, has_quotas: bool) -> Metadata {
    let mut fields: Metadata = vec![
        ("domain", Value::Text(call.domain.to_owned())),
        ("descriptors", Value::List(call.descriptors.iter().map(descriptor).collect())),
    ];
    if call.hits > 0 {
        fields.push(("hitsAddend", Value::Number(f64::from(call.hits))));
    }
    fields.push(("quotaModeEnabled", Value::Bool(has_quotas)));
    fields
}

/// Adds which of the quotas are used up, if any is.
pub(super) fn violations(
    fields: &mut Metadata,
    statuses: &[Status],
    quotas: impl Iterator<Item = usize>,
) {
    let over = quotas.filter(|index| statuses[*index].is_over);
    let over: Vec<Value> = over.map(|index| Value::Number(index as f64)).collect();
    if !over.is_empty() {
        fields.push(("quotaModeViolations", Value::List(over)));
    }
}

fn descriptor(descriptor: &Descriptor<'_>) -> Value {
    let entries = descriptor.entries.iter();
    let entries = entries.map(|(key, value)| Value::Text(format!("{key}={value}"))).collect();
    let mut fields: Metadata = vec![("entries", Value::List(entries))];
    if let Some(limit) = descriptor.limit {
        let unit = limit.unit.name().to_ascii_uppercase();
        let text = format!("requests_per_unit:{} unit:{unit}", limit.requests_per_unit);
        fields.push(("limit", Value::Text(text)));
    }
    if let Some(hits) = descriptor.hits {
        fields.push(("hitsAddend", Value::Number(hits as f64)));
    }
    Value::Map(fields)
}
