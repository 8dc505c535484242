//! Whatever an operator writes is a configuration, or a list of problems with their lines.

#![no_main]

use cove_control::config::Config;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    if let Err(problems) = Config::parse(text) {
        assert!(!problems.is_empty(), "refused without a reason");
        assert!(problems.iter().all(|problem| !problem.to_string().is_empty()));
    }
});
