//! `cove bench`: the measurement is in `cove-bench`; the program tells it where things are.

pub use cove_bench::bench::{Arguments, ENGINE, engine_at_home};

use crate::complaint::Complaint;
use crate::place::{Files, Place};

pub fn run(arguments: &Arguments) -> Result<u8, Complaint> {
    super::serve::open_files_as_allowed();
    cove_bench::bench::run(arguments, || Place::usual().ephemeral(Files::InMemory))
}
