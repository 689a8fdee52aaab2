//! Any body and any query is a check or refused; never a panic.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tollgate_server::read_checks;

fuzz_target!(|bytes: &[u8]| {
    read_checks(bytes);
});
