//! `cove explain`: why a sandbox is in its state, in words.

use clap::Args;
use serde_json::Value;

use crate::client::sandbox::path;
use crate::client::{Client, block_on};
use crate::complaint::Complaint;
use crate::render::{print, print_json};

/// Tell why a sandbox is in its state: cause, evidence, remedy
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  cove explain box")]
pub struct Arguments {
    /// Its name or id
    #[arg(add = crate::complete::sandboxes())]
    sandbox: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub fn run(arguments: &Arguments) -> Result<u8, Complaint> {
    let client = Client::from_environment()?;
    let explained: Value = block_on(client.get(&format!("{}/explain", path(&arguments.sandbox)?)))?;
    if arguments.json {
        print_json(&explained)?;
        return Ok(0);
    }
    let state = explained.get("state").and_then(Value::as_str).unwrap_or_default();
    let cause =
        explained.get("cause").and_then(|cause| cause.get("message")).and_then(Value::as_str).unwrap_or_default();
    print(&format!("{} is {}: {cause}", arguments.sandbox, state))?;
    let lines = |name: &str| -> Vec<String> {
        let lines = explained.get(name).and_then(Value::as_array).into_iter().flatten();
        lines.filter_map(|line| line.as_str().map(str::to_owned)).collect()
    };
    for line in lines("evidence") {
        print(&format!("  {line}"))?;
    }
    for line in lines("remedy") {
        print(&format!("hint: {line}"))?;
    }
    Ok(0)
}
