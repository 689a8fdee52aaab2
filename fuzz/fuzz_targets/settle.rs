//! Any body says the same in any pieces, as JSON and as events; and what is one JSON document says what it says to
//! who reads all of it.
//!
//! The first byte says how large the pieces are.
#![no_main]

use libfuzzer_sys::fuzz_target;
use serde_json::Value;
use tollgate::Cost;
use tollgate::http::settle::{CostReader, Form};

fuzz_target!(|input: &[u8]| {
    let Some((&size, bytes)) = input.split_first() else { return };
    for form in [Form::Json, Form::Events] {
        let mut whole = CostReader::new(&["usage", "total_tokens"], form);
        let mut pieces = whole.clone();
        whole.read(bytes);
        bytes.chunks(usize::from(size).max(1)).for_each(|piece| pieces.read(piece));
        let said = whole.finish();
        assert_eq!(pieces.finish(), said);
        if let (Form::Json, Ok(document)) = (form, serde_json::from_slice::<Value>(bytes)) {
            check_document(&document, said);
        }
    }
});

fn check_document(document: &Value, said: Option<Cost>) {
    let number = &document["usage"]["total_tokens"];
    let right = match number.as_u64() {
        // What is too large for a word and what has a fraction are alike to that reader.
        None if number.is_f64() => return assert!(said.is_none_or(|it| it.units() == u32::MAX)),
        units => units.map(|units| Cost::new(u32::try_from(units).unwrap_or(u32::MAX))),
    };
    assert_eq!(said, right, "{document}");
}
