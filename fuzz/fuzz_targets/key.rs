//! Two different lists of values never have the same text.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tollgate_core::{Key, Shown, Value};

type Values = Vec<(Option<Vec<u8>>, u8)>;

fuzz_target!(|lists: (Values, Values)| {
    let (one, other) = lists;
    let text = |list: &Values| {
        let values: Vec<Value<'_>> = list
            .iter()
            .map(|(bytes, source)| Value { bytes: bytes.as_deref(), source: *source, shown: Shown::Plainly })
            .collect();
        Key { limit: "limit", values: &values }.text(|_| 0)
    };
    assert_eq!(text(&one) == text(&other), one == other);
});
