//! Whatever an operator writes is a configuration, or a list of problems that each say something of a line that is there.

#![no_main]

use cove_control::config::check;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    for problem in check(text) {
        assert!(!problem.to_string().is_empty(), "refused without a reason");
        assert!(problem.line.is_none_or(|line| line >= 1 && line <= text.lines().count() + 1), "{problem}");
    }
});
