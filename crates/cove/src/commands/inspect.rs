//! `cove inspect`.

use clap::Args;

use super::change::Target;
use crate::client::{Client, block_on};
use crate::complaint::Complaint;
use crate::render::{print_json, say};

/// Show everything that the server knows about a sandbox, as JSON
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  cove inspect box")]
pub struct Arguments {
    #[command(flatten)]
    target: Target,
}

pub fn run(arguments: &Arguments) -> Result<u8, Complaint> {
    let target = &arguments.target;
    let client = Client::from_environment()?;
    let sandbox = block_on(client.sandbox(&target.sandbox))?;
    print_json(&sandbox)?;
    let unheld: Vec<_> = sandbox["unheld"].as_array().into_iter().flatten().filter_map(|one| one.as_str()).collect();
    if !unheld.is_empty() && !target.json {
        say(&format!("cove: limits that do not hold on this server: {}", unheld.join(", ")));
        say("hint: `cove doctor` on that machine shows how to get them");
    }
    Ok(0)
}
