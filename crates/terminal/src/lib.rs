//! What every verb of the command line has in common, so that all of them speak alike: the program itself, and the
//! measurements in `cove-bench`.
//!
//! # Layout
//! * [`complaint`]: errors with hints and exit codes
//! * [`render`]: tables, JSON and messages; [`terminal`]: its size, its colour, raw mode
//! * [`quantity`]: sizes, times and processor shares as people write and read them
//! * [`landing`]: files that arrive completely or not at all, where a person said

#![forbid(unsafe_code)]

pub mod complaint;
pub mod landing;
pub mod quantity;
pub mod render;
pub mod terminal;

use std::path::PathBuf;

use complaint::{Complaint, doing};

/// This program, which starts itself for work of its own.
pub fn program() -> Result<PathBuf, Complaint> {
    std::env::current_exe().map_err(doing("find this program in /proc/self/exe"))
}
