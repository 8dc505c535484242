//! `cove ports`.

use clap::Args;
use serde_json::Value;

use super::change::Target;
use crate::client::sandbox::path;
use crate::client::{Client, block_on};
use crate::complaint::Complaint;
use crate::render::{List, Tone, number, word};

/// List the ports that something listens on in a sandbox
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  cove ports box")]
pub struct Arguments {
    #[command(flatten)]
    target: Target,
}

pub fn run(arguments: &Arguments) -> Result<u8, Complaint> {
    let client = Client::from_environment()?;
    let target = &arguments.target;
    let ports: Vec<Value> = block_on(async { client.get(&format!("{}/ports", path(&target.sandbox)?)).await })?;
    let list = List { headings: ["port", "address", "pid", "process"], empty: "nothing listens inside" };
    list.show(&ports, target.json, |port| {
        [
            (number(port, "port"), Tone::Plain),
            (word(port, "address").to_owned(), Tone::Plain),
            (number(port, "pid"), Tone::Faint),
            (word(port, "process").to_owned(), Tone::Plain),
        ]
    })
}
