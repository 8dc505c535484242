//! `cove stop`.

use clap::Args;

use super::change::{self, Change};
use crate::complaint::Complaint;

/// End all processes of a sandbox and keep its files
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  cove stop box
  cove stop box --durable && cove fsck box")]
pub struct Arguments {
    #[command(flatten)]
    targets: change::Targets,
    #[command(flatten)]
    durability: change::Durability,
}

pub fn run(arguments: &Arguments) -> Result<u8, Complaint> {
    change::run_with(&arguments.targets, Change { verb: "stop" }, &arguments.durability.asked())
}
