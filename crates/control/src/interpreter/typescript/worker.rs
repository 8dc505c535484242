//! The process that reads one cell: it takes away from itself all that it does not need, then reads, then ends.
//!
//! It trusts nobody: bounds are set before the first byte of the cell is read. Each is the kernel's, so that no mistake in
//! the parser can lift it.

use std::io::{self, Read as _, Write as _};
use std::process::ExitCode;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::{LONGEST, LONGEST_OUTPUT, strip};

/// The hidden argument with which a program that links this library becomes a worker.
pub const ARGUMENT: &str = "__cove-typescript";

/// Bytes of memory beyond what the program itself takes, with the stack.
pub(super) const MEMORY: u64 = 256 << 20;
/// The kernel keeps 128 MiB free below the stack of a program's first thread.
pub(super) const STACK: u64 = 64 << 20;
/// Seconds of a processor.
pub(super) const SECONDS: u64 = 2;

/// How an answer begins.
pub(super) const JAVASCRIPT: u8 = b'J';
pub(super) const REFUSAL: u8 = b'E';
pub(super) const TOO_LONG: &str = "the answer is too long";
/// The last words of a worker that got no more memory: std's, and those of the parser's strings, which panic instead, and
/// of its arena.
pub(super) const NO_MEMORY: [&str; 4] =
    ["memory allocation", "Cannot allocate memory", "out of memory", "capacity overflow"];

/// Reads a cell from standard input and writes what comes of it to standard output. To be called by `main` before anything
/// else when the first argument is [`ARGUMENT`].
pub fn main() -> ExitCode {
    match bound_itself().and_then(|()| serve()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            // Nobody may be there to read it.
            let _said = writeln!(io::stderr(), "{reason}");
            ExitCode::FAILURE
        }
    }
}

fn serve() -> Result<(), String> {
    let mut cell = String::new();
    io::stdin().take(LONGEST as u64).read_to_string(&mut cell).map_err(|error| format!("read the cell: {error}"))?;
    let (kind, text) = match strip::strip(&cell) {
        Ok(javascript) => (JAVASCRIPT, javascript),
        Err(reason) => (REFUSAL, reason),
    };
    if text.len() > LONGEST_OUTPUT {
        return Err(TOO_LONG.into());
    }
    let mut answer = vec![kind];
    answer.extend_from_slice(text.as_bytes());
    io::stdout().write_all(&answer).map_err(|error| format!("write the answer: {error}"))
}

/// A step that fails ends the worker: there is no weaker one.
fn bound_itself() -> Result<(), String> {
    cove_sys::exec::close_from(3).map_err(|errno| format!("close what was inherited: {errno}"))?;
    // Behind whoever serves; that this is refused costs nothing but politeness.
    let _nicer = rustix::process::nice(10);
    let page = rustix::param::page_size() as u64;
    let statm =
        std::fs::read_to_string("/proc/self/statm").map_err(|error| format!("read /proc/self/statm: {error}"))?;
    let pages: u64 = statm.split(' ').next().and_then(|word| word.parse().ok()).ok_or("no size in /proc/self/statm")?;
    for (resource, most) in [
        (Resource::As, pages * page + MEMORY),
        (Resource::Stack, STACK),
        (Resource::Cpu, SECONDS),
        (Resource::Core, 0),
        (Resource::Fsize, 0),
        (Resource::Nofile, 3),
    ] {
        // What is smaller already stays: raising a hard limit is refused.
        let most = getrlimit(resource).maximum.map_or(most, |maximum| most.min(maximum));
        let limit = Rlimit { current: Some(most), maximum: Some(most) };
        setrlimit(resource, limit).map_err(|errno| format!("limit {resource:?}: {errno}"))?;
    }
    crate::confine::to_text().map_err(|refused| refused.to_string())
}
