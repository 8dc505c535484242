//! `cove stop`.

use clap::Args;

use super::change::{self, Change};
use crate::complaint::Complaint;

/// End all processes of a sandbox and keep its files
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  cove stop box")]
pub struct Arguments {
    #[command(flatten)]
    targets: change::Targets,
}

pub fn run(arguments: &Arguments) -> Result<u8, Complaint> {
    change::run(&arguments.targets, Change { verb: "stop" })
}
