//! The process that reads TypeScript cells and nothing else: for this crate's own tests, whose program cannot re-exec
//! itself.

#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    cove_control::interpreter::typescript::main()
}
