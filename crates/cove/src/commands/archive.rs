//! `cove archive`.

use clap::Args;

use super::change::{self, Change};
use crate::complaint::Complaint;

/// Move a stopped sandbox's files into the archive
///
/// It then uses no room on the server's own disk. `cove start` brings it back.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  cove stop box && cove archive box")]
pub struct Arguments {
    #[command(flatten)]
    targets: change::Targets,
}

pub fn run(arguments: &Arguments) -> Result<u8, Complaint> {
    change::run(&arguments.targets, Change { verb: "archive" })
}
