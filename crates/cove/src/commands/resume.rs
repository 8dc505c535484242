//! `cove resume`.

use clap::Args;

use super::change::{self, Change};
use crate::complaint::Complaint;

/// Resume a paused sandbox
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  cove resume box")]
pub struct Arguments {
    #[command(flatten)]
    targets: change::Targets,
}

pub fn run(arguments: &Arguments) -> Result<u8, Complaint> {
    change::run(&arguments.targets, Change { verb: "resume" })
}
