//! `cove whoami`.

use clap::Args;
use serde_json::Value;

use crate::client::{Client, block_on};
use crate::complaint::Complaint;
use crate::render::{print, print_json, word};

/// Show whose key you use, and what it may do
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  cove whoami --json")]
pub struct Arguments {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub fn run(arguments: &Arguments) -> Result<u8, Complaint> {
    let client = Client::from_environment()?;
    let me: Value = block_on(client.get("/whoami"))?;
    if arguments.json {
        print_json(&me)?;
        return Ok(0);
    }
    let scopes: Vec<&str> = me["scopes"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    print(&format!("{} of {}: {}", word(&me, "key"), word(&me, "organisation"), scopes.join(", ")))?;
    Ok(0)
}
