//! Any body says the same in any pieces, as JSON and as events; never a panic.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tollgate::http::settle::{CostReader, Form};

fuzz_target!(|input: (u8, &[u8])| {
    let (size, bytes) = input;
    for form in [Form::Json, Form::Events] {
        let mut whole = CostReader::new(&["usage", "total_tokens"], form);
        let mut pieces = whole.clone();
        whole.read(bytes);
        bytes.chunks(usize::from(size).max(1)).for_each(|piece| pieces.read(piece));
        assert_eq!(pieces.finish(), whole.finish());
    }
});
