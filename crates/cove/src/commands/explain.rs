//! `cove explain`: why a sandbox is in its state.

use clap::Args;
use serde_json::Value;

use super::change::Target;
use crate::client::{Client, block_on};
use crate::complaint::Complaint;
use crate::render::{print, print_json};

/// Explain why a sandbox is in its state: cause, evidence, remedy
///
/// Also of one that is gone, by the name that it had.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  cove explain box")]
pub struct Arguments {
    #[command(flatten)]
    target: Target,
}

pub fn run(arguments: &Arguments) -> Result<u8, Complaint> {
    let target = &arguments.target;
    let client = Client::from_environment()?;
    let explained: Value = block_on(client.ask_also_destroyed(&target.sandbox, "/explain"))?;
    if target.json {
        print_json(&explained)?;
        return Ok(0);
    }
    let state = explained.get("state").and_then(Value::as_str).unwrap_or_default();
    let cause =
        explained.get("cause").and_then(|cause| cause.get("message")).and_then(Value::as_str).unwrap_or_default();
    print(&format!("{} is {}: {cause}", target.sandbox, state))?;
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
