//! Any body and any query is a check or refused; never a panic. A body is a check if it says so to who reads all of it.
#![no_main]

use libfuzzer_sys::fuzz_target;
use serde_json::{Map, Value};
use tollgate_server::{ReadAs, read_checks};

fuzz_target!(|bytes: &[u8]| {
    let read = read_checks(bytes);
    let Ok(document) = serde_json::from_slice::<Value>(bytes) else {
        // A query may be anything.
        assert_eq!(ReadAs { is_query: false, ..read }, ReadAs::default());
        return;
    };
    // Written again, nothing in it has the same name twice.
    let again = read_checks(document.to_string().as_bytes());
    assert!(again.is_body || !read.is_body);
    if let Some(right) = is_check(&document) {
        assert_eq!(again.is_body, right, "{document}");
    }
});

/// Whether it is a check; nothing if that is not for us to say.
fn is_check(document: &Value) -> Option<bool> {
    let Some(fields) = document.as_object() else { return Some(false) };
    let empty = Map::new();
    let attributes = match fields.get("attributes") {
        None => &empty,
        Some(Value::Object(attributes)) => attributes,
        Some(_) => return Some(false),
    };
    // Names that differ by case alone may be one.
    let is_clear = attributes.len() < 2;
    let is_value =
        |value: &Value| value.is_string() || value.is_boolean() || value.is_u64() || value.is_i64();
    let is_cost = |cost: &Value| cost.as_u64().is_some_and(|units| u32::try_from(units).is_ok());
    let is_check = fields.keys().all(|name| matches!(&**name, "attributes" | "cost"))
        && fields.get("cost").is_none_or(is_cost)
        && attributes.values().all(is_value);
    (is_clear || !is_check).then_some(is_check)
}
