//! `cove up`: a server in the background.

use clap::Args;
use serde_json::json;

use super::settings::Flags;
use crate::background::{self, UNIT};
use crate::client::block_on;
use crate::complaint::Complaint;
use crate::render::{print, print_json, say};

/// Start a server in the background
///
/// By systemd where `cove setup` has installed the unit and no flags are given, else as a process of its own whose log is
/// `server.log` in the data directory. Already up: nothing to do.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  cove up
  cove up --listen 127.0.0.1:8080 --data ./data
  cove status && cove down")]
pub struct Arguments {
    #[command(flatten)]
    flags: Flags,
    /// Do not ask systemd, even where the unit is installed
    #[arg(long)]
    no_systemd: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub fn run(arguments: &Arguments) -> Result<u8, Complaint> {
    let data = arguments.flags.load()?.config.data;
    let words = arguments.flags.words();
    let by_systemd = words.is_empty() && !arguments.no_systemd && background::is_by_systemd();
    let was_up = background::server_of(&data)?.is_some();
    let child = match (was_up, by_systemd) {
        (true, _) => None,
        (false, true) => background::systemctl(&["start", UNIT]).map(|()| None)?,
        (false, false) => Some(background::start(&data, &words)?),
    };
    let url = block_on(background::ready(&data, child))?;
    let pid = background::server_of(&data)?;
    let key_file = Some(data.join("api-key")).filter(|file| file.exists());
    if arguments.json {
        let told = json!({ "url": url, "pid": pid, "data": data, "key_file": key_file, "was_up": was_up });
        print_json(&told)?;
        return Ok(0);
    }
    print(&url)?;
    match was_up {
        true => say("it was up already"),
        false if by_systemd => say(&format!("hint: journalctl --unit {UNIT} --follow")),
        false => say(&format!("hint: its log is {}", background::log_of(&data).display())),
    }
    if let Some(file) = key_file {
        say(&format!("hint: its first key is in {}", file.display()));
    }
    Ok(0)
}
