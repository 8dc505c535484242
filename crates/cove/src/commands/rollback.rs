//! `cove rollback`.

use clap::Args;
use serde_json::{Value, json};

use crate::client::sandbox::path;
use crate::client::{Client, block_on};
use crate::complaint::Complaint;
use crate::progress::waiting;
use crate::render::{print, print_json, say, word};

/// Give a sandbox the files again that it had at a snapshot or checkpoint
///
/// Its processes end, and it starts anew if it ran. What it had before is kept as a checkpoint, so that this can be
/// undone.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  cove snapshot create box --name before
  cove rollback box before
  cove rollback box")]
pub struct Arguments {
    /// Its name or id
    #[arg(value_name = "SANDBOX", add = crate::complete::sandboxes())]
    sandbox: String,
    /// A snapshot's name, or a checkpoint's id [default: the newest of the sandbox]
    #[arg(add = crate::complete::snapshots())]
    snapshot: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub fn run(arguments: &Arguments) -> Result<u8, Complaint> {
    let client = Client::from_environment()?;
    let body = match &arguments.snapshot {
        Some(snapshot) => json!({ "snapshot": snapshot }),
        None => json!({}),
    };
    let done: Value = block_on(async {
        let call = format!("{}/rollback", path(&arguments.sandbox)?);
        waiting(&format!("rollback {}", arguments.sandbox), client.post(&call, &body)).await
    })?;
    if arguments.json {
        print_json(&done)?;
        return Ok(0);
    }
    let sandbox = &done["sandbox"];
    print(&format!("{} {}", sandbox["name"].as_str().unwrap_or(word(sandbox, "id")), word(sandbox, "state")))?;
    say(&format!("hint: to undo: cove rollback {} {}", arguments.sandbox, word(&done["replaced"], "id")));
    Ok(0)
}
