//! `cove loadtest`: the crowd is in `cove-bench`.

pub use cove_bench::loadtest::Arguments;

use crate::complaint::Complaint;

pub fn run(arguments: &Arguments) -> Result<u8, Complaint> {
    // Every user has a connection.
    super::serve::open_files_as_allowed();
    cove_bench::loadtest::run(arguments)
}
