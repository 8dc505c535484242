//! `cove pause`.

use clap::Args;

use super::change::{self, Change};
use crate::complaint::Complaint;

/// Freeze a sandbox in memory; it uses no processor until it is resumed
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  cove pause box")]
pub struct Arguments {
    #[command(flatten)]
    targets: change::Targets,
}

pub fn run(arguments: &Arguments) -> Result<u8, Complaint> {
    change::run(&arguments.targets, Change { verb: "pause" })
}
