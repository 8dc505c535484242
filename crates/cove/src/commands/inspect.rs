//! `cove inspect`.

use clap::Args;

use crate::client::{Client, block_on};
use crate::complaint::Complaint;
use crate::render::{print_json, say};

/// Show everything the server knows of a sandbox, as JSON
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  cove inspect box")]
pub struct Arguments {
    /// Its name or id
    #[arg(add = crate::complete::sandboxes())]
    sandbox: String,
    /// Print JSON, as it does anyway
    #[arg(long)]
    json: bool,
}

pub fn run(arguments: &Arguments) -> Result<u8, Complaint> {
    let client = Client::from_environment()?;
    let sandbox = block_on(client.sandbox(&arguments.sandbox))?;
    print_json(&sandbox)?;
    let unheld: Vec<_> = sandbox["unheld"].as_array().into_iter().flatten().filter_map(|one| one.as_str()).collect();
    if !unheld.is_empty() && !arguments.json {
        say(&format!("cove: limits that do not hold on this server: {}", unheld.join(", ")));
        say("hint: `cove doctor` on that machine tells how to get them");
    }
    Ok(0)
}
