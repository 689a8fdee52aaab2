//! Every key reads back from its text, so no two share one; and whatever text is read as a key is that key's text.
//!
//! The bytes are taken as a text, and as a key: lines, the limit's name and then the values. The first byte of a value
//! is which attribute it was taken from, a line without one is a value that is missing.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tollgate_core::{Key, KeyBuf, KeyError, Shown, Value};

/// Bytes of a hash.
const HASH: usize = 16;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(text) = std::str::from_utf8(bytes) {
        check_text(text);
    }
    let mut lines = bytes.split(|byte| *byte == b'\n');
    let limit = String::from_utf8_lossy(lines.next().unwrap_or_default());
    let values: Vec<Value<'_>> = lines
        .flat_map(|line| match line {
            [] => vec![Value::MISSING],
            // A value of that length may also be a hash, whose text is another.
            [source, bytes @ ..] if bytes.len() == HASH => {
                [Shown::Plainly, Shown::IsHash].map(|shown| value(*source, bytes, shown)).into()
            }
            [source, bytes @ ..] => vec![value(*source, bytes, Shown::Plainly)],
        })
        .collect();
    let text = Key { limit: &limit, values: &values }.text(|_| 0);
    let read: KeyBuf = text.parse().expect("what is written is read");
    assert_eq!((read.limit(), read.values()), (&*limit, values), "{text}");
    check_text(&text);
});

fn value(source: u8, bytes: &[u8], shown: Shown) -> Value<'_> {
    Value { bytes: Some(bytes), source, shown }
}

fn check_text(text: &str) {
    match text.parse::<KeyBuf>() {
        Ok(key) => assert_eq!(key.to_string(), text),
        Err(KeyError::Spelling { right }) => {
            assert_ne!(right, text);
            let read = right.parse::<KeyBuf>().map(|key| key.to_string());
            assert_eq!(read, Ok(right), "what {text} should be");
        }
        Err(_) => {}
    }
}
