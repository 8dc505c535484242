//! The parsers of strangers' bytes, for the targets in `fuzz/`.

use std::io::Read;
use std::path::Path;

/// An archive into an upper, as a sandbox's files come back.
pub fn import(upper: &Path, archive: impl Read) -> Result<(), crate::storage::Error> {
    crate::storage::import_into(upper, archive)
}

/// A seccomp policy, and its program where it is one; the number of instructions.
pub fn seccomp_policy(text: &str) -> Result<usize, String> {
    crate::seccomp::compile_text(text)
}
