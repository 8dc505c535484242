//! `cove pause`.

use clap::Args;

use super::change::{self, Change};
use crate::complaint::Complaint;

/// Freeze a sandbox in memory; it uses no processor until it is resumed
///
/// Its processes go on where they were as long as the machine stays up. After a reboot it is stopped, with its files: memory is
/// not written to disk. With --durable its files are proven: `cove fsck` finds every difference.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  cove pause box
  cove pause box --durable && cove fsck box")]
pub struct Arguments {
    #[command(flatten)]
    targets: change::Targets,
    #[command(flatten)]
    durability: change::Durability,
}

pub fn run(arguments: &Arguments) -> Result<u8, Complaint> {
    change::run_with(&arguments.targets, Change { verb: "pause" }, &arguments.durability.asked())
}
