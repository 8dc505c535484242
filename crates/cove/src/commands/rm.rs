//! `cove rm`.

use clap::Args;

use super::change::{Targets, each};
use crate::client::sandbox::path;
use crate::complaint::Complaint;
use crate::progress::waiting;
use crate::render::print;

/// Remove sandboxes: processes, files, everything
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  cove rm box")]
pub struct Arguments {
    #[command(flatten)]
    targets: Targets,
}

pub fn run(arguments: &Arguments) -> Result<u8, Complaint> {
    each(&arguments.targets.sandboxes, async |client, sandbox| {
        let path = path(sandbox)?;
        waiting(&format!("rm {sandbox}"), client.delete(&path)).await?;
        if arguments.targets.json {
            return print(&serde_json::json!({ "sandbox": sandbox, "state": "destroyed" }).to_string());
        }
        print(sandbox)
    })
}
