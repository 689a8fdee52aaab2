//! Any text is a policy or a list of mistakes, each at a place of its own; never a panic.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tollgate_policy::Policy;

fuzz_target!(|text: &str| {
    let tenants = |_: &str| Ok(text.to_owned());
    if let Err(mistakes) = Policy::parse("fuzz.yaml", text, &mut { tenants }) {
        assert!(mistakes.iter().all(|mistake| mistake.place().line > 0));
        assert!(!mistakes.to_string().bytes().any(|byte| byte == 0x1b));
    }
});
