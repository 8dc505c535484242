//! `cove start`.

use clap::Args;

use super::change::{self, Change};
use crate::complaint::Complaint;

/// Start a stopped sandbox; its files are as they were
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  cove start box")]
pub struct Arguments {
    #[command(flatten)]
    targets: change::Targets,
}

pub fn run(arguments: &Arguments) -> Result<u8, Complaint> {
    change::run(&arguments.targets, Change { verb: "start" })
}
