//! `cove recover`.

use clap::Args;

use super::change::{self, Change};
use crate::complaint::Complaint;

/// Bring a failed sandbox back, if its files are intact
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  cove explain box; cove recover box")]
pub struct Arguments {
    #[command(flatten)]
    targets: change::Targets,
}

pub fn run(arguments: &Arguments) -> Result<u8, Complaint> {
    change::run(&arguments.targets, Change { verb: "recover" })
}
