//! A policy is a program that the kernel takes, or an error.

#![no_main]

use libfuzzer_sys::fuzz_target;

/// BPF_MAXINSNS: the kernel refuses longer ones.
const MOST: usize = 4096;

fuzz_target!(|text: &str| {
    if let Ok(length) = cove_engine::fuzzing::seccomp_policy(text) {
        assert!(length > 0 && length <= MOST, "{length} instructions");
    }
});
