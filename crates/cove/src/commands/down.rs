//! `cove down`: the end of a server in the background.

use std::path::PathBuf;

use clap::Args;
use serde_json::json;

use super::settings;
use crate::background::{self, UNIT};
use crate::complaint::Complaint;
use crate::render::{print, print_json};

/// End the server of this machine; its sandboxes go on
///
/// The next server finds them again. `cove reset` removes them.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  cove down
  cove down --data ./data")]
pub struct Arguments {
    /// The data directory of the server [env: COVE_DATA] [default: /var/lib/cove, or below your home]
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub fn run(arguments: &Arguments) -> Result<u8, Complaint> {
    let data = settings::data_directory(arguments.data.as_deref())?;
    // systemd would start it again.
    let is_the_units = arguments.data.is_none() && background::is_by_systemd();
    if is_the_units && background::server_of(&data)?.is_some() {
        background::systemctl(&["stop", UNIT])?;
    }
    let ended = background::end(&data)?;
    let was_up = ended.is_some() || is_the_units;
    match arguments.json {
        true => print_json(&json!({ "data": data, "pid": ended, "was_up": was_up }))?,
        false if ended.is_none() && !is_the_units => print(&format!("no server has {}", data.display()))?,
        false => print(&format!("the server of {} has ended; its sandboxes go on", data.display()))?,
    }
    Ok(0)
}
